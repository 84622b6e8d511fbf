"""A reader of journals, written from docs/journal.md and nothing else.

It is here to prove that page; the library has a faster one.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

DEFINITIONS, BATCH, ALERTS, CONTINUED, CLOSE, OVERVIEW, INDEX = range(1, 8)
DIGEST = 10

RECORD = "state key order micro_step call kind dtype shape flags time_ns arena".split()
STATISTICS = (
    "count nan pos_inf neg_inf zeros subnormal min max finite_min finite_max abs_max "
    "abs_max_index sum sum_abs sum_sq m2 sq_exp"
).split()
ALERT = "rule op value baseline threshold samples more incident".split()
COLLECTIVE = (
    "op tag peer group_size sequence bytes_in bytes_out signature running issue_ns location flags "
    "call_ns done_ns waited_ns"
).split()
INCIDENT = (
    "number state severity cause rule op value baseline threshold samples first_step last_step "
    "steps alerts series element bits evidence witness parent zoom_steps zoom_after"
).split()
HEADER = (
    "step rank attempt pp_stage flags micro_steps unfilled begin_ns end_ns wall_ns hook_ns wait_ns "
    "writer_ns errors count"
).split()
HEADER_4 = "bytes left_out zoom".split()

OVERVIEW_ROW = "first_step last_step key count nan inf norm_min norm_max".split()

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def crc32c(data: bytes) -> int:
    """CRC-32C of data."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@dataclass
class Item:
    """One frame: its kind, step, offset, header fields, and records, rows or entries as bytes."""

    type: int
    step: int
    run: dict[str, Any]
    offset: int
    header: dict[str, int] = field(default_factory=dict)
    records: list[bytes] = field(default_factory=list)
    arena: bytes = b""

    def histogram(self, record: bytes) -> tuple[float, float, list[int]] | None:
        """Return low, high and the bins of one record; None when it has none."""
        fields = record_fields(record)
        at = fields["arena"]
        if not fields["flags"] & 1 or at % 8 or at + 24 > len(self.arena):
            return None
        low, high, count = struct.unpack_from("<ddI", self.arena, at)
        if at + 24 + 8 * count > len(self.arena):
            return None
        return low, high, list(struct.unpack_from(f"<{count}Q", self.arena, at + 24))

    def exponents(self, record: bytes) -> tuple[int, list[int]] | None:
        """Return the exponent of the first bin, and the bins; None when it has none."""
        fields = record_fields(record)
        if not fields["flags"] & 4:
            return None
        at = fields["arena"]
        if fields["flags"] & 3:  # behind a block of another kind
            (count,) = struct.unpack_from("<I", self.arena, at + 16)
            at += 24 + 8 * count
        low, high, count = struct.unpack_from("<ddI", self.arena, at)
        assert high == low + count
        return int(low), list(struct.unpack_from(f"<{count}Q", self.arena, at + 24))

    def order(self, record: bytes) -> int:
        """Return the record's place in the order of execution."""
        return int(record_fields(record)["order"])


@dataclass
class Definitions:
    """Keys and shapes of one segment, by id."""

    keys: dict[int, dict[str, Any]] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def take(self, payload: bytes) -> None:
        """Take in the payload of a definitions frame."""
        at = 0
        while at < len(payload):
            length, kind, id_ = struct.unpack_from("<IH2xI", payload, at)
            entry = payload[at : at + length]
            if kind == 1:
                vpp, slot, quantity, role, n, m = struct.unpack_from("<iiIIII", entry, 12)
                self.keys[id_] = {
                    "name": entry[36 : 36 + n].decode(),
                    "global_name": entry[36 + n : 36 + n + m].decode(),
                    "vpp_stage": vpp,
                    "slot": slot,
                    "quantity": quantity,
                    "role": role,
                    "argument": None,
                    "span": span_of(entry[36 + n + m :]),
                }
                span = 36 + n + m
                if length - span >= 16:
                    (ranges,) = struct.unpack_from("<I", entry, span + 4)
                    argument = entry[span + 16 + 24 * ranges :].decode()
                    self.keys[id_]["argument"] = argument or None
            elif kind == 2:
                (ndim,) = struct.unpack_from("<I", entry, 12)
                self.shapes[id_] = struct.unpack_from(f"<{ndim}q", entry, 16)
            at += length


def span_of(rest: bytes) -> tuple[int, list[tuple[int, ...]], int, int] | None:
    """Return kind, ranges, copies and copy of what stands behind a key's strings."""
    if len(rest) < 16 or not any(rest[:16]):  # zeros stand in front of an argument's name
        return None
    kind, count, copies, copy = struct.unpack_from("<4I", rest)
    ranges = [struct.unpack_from("<3q", rest, 16 + 24 * i) for i in range(count)]
    return kind, ranges, copies, copy


def record_fields(record: bytes) -> dict[str, Any]:
    """Return the fields of one record by their names."""
    fields = dict(zip(RECORD, struct.unpack_from("<IIQIIIIIIQQ", record), strict=True))
    if fields["kind"] == 1:
        fields |= zip(STATISTICS, struct.unpack_from("<6Q5dQ4dq", record, 56), strict=True)
    elif fields["kind"] == 2:
        fields |= zip(ALERT, struct.unpack_from("<II3d3Q", record, 56), strict=True)
    elif fields["kind"] == 3:
        fields |= zip(COLLECTIVE, struct.unpack_from("<IIiI11Q", record, 56), strict=True)
    elif fields["kind"] == 4:
        fields |= zip(INCIDENT, struct.unpack_from("<6I3d8Qd4I", record, 56), strict=True)
    return fields


def overview_fields(row: bytes) -> dict[str, Any]:
    """Return the fields of a row of an overview by their names."""
    return dict(zip(OVERVIEW_ROW, struct.unpack_from("<QQIIIIdd", row), strict=True))


def _records(payload: bytes, at: int, size: int, count: int) -> list[bytes]:
    planes = payload[at : at + size * count]
    return [planes[i::count] for i in range(count)]


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return int(bits)


def _without_differences(records: list[bytes]) -> list[bytes]:
    """Make the fields of a batch's records what they were."""
    whole, time = [], 0
    for stored in records:
        words = list(struct.unpack("<24Q", stored))
        numbers = struct.unpack("<24d", stored)
        if words[3] & 0xFFFFFFFF == 1 and words[4] >> 63:
            words[4] &= 2**63 - 1
            words[5] = (words[5] + time) % 2**64
            words[15] ^= words[13]
            words[16] ^= words[14]
            low, high = struct.unpack("<2d", struct.pack("<2Q", *words[15:17]))
            words[17] ^= _bits(abs(low) if abs(low) > abs(high) else abs(high))
            total, squares, count = numbers[19], numbers[21], float(words[7])
            guess = squares - total * total / count if count else math.nan
            difference = words[22] >> 1 ^ -(words[22] & 1)
            words[22] = (difference + (_bits(guess) if math.isfinite(guess) else 0)) % 2**64
        time = words[5]
        whole.append(struct.pack("<24Q", *words))
    return whole


def read_segment(path: Path) -> Iterator[tuple[Item, Definitions]]:
    """Yield the frames of one segment up to its end or torn tail, with what is defined by then."""
    data = path.read_bytes()
    size = struct.unpack_from("<I", data, 12)[0] if len(data) >= 16 else 0
    if not size or len(data) < size:
        return
    assert data[:8] == b"\x89TPJ\r\n\x1a\n"
    assert crc32c(data[: size - 4]) == struct.unpack_from("<I", data, size - 4)[0]
    major, _, _, segment, rank, attempt, start = struct.unpack_from("<HHIQIIq", data, 8)
    assert major == 1
    run_id = data[40:104].split(b"\0")[0].decode()
    run = {"run_id": run_id, "rank": rank, "attempt": attempt, "start": start, "segment": segment}
    definitions = Definitions()
    at = size
    while len(data) >= at + 40:
        magic, type_, codec, stored, raw, step, offset, payload_crc, header_crc = (
            struct.unpack_from("<4sBB2xIIQQII", data, at)
        )
        payload = data[at + 40 : at + 40 + stored]
        if (magic, offset) != (b"TPF\1", at) or crc32c(data[at : at + 36]) != header_crc:
            return
        if len(payload) < stored or crc32c(payload) != payload_crc:
            return
        at += 40 + stored
        if codec == 1:
            with zstandard.ZstdDecompressor().stream_reader(
                payload, read_across_frames=True
            ) as unpacked:
                payload = unpacked.read(raw + 1)
        assert len(payload) == raw
        item = Item(type_, step, run, offset)
        if type_ == DEFINITIONS:
            definitions.take(payload)
        elif type_ == BATCH:
            h, r, *values = struct.unpack_from("<IIQIIiIIIQQqQQQQQ", payload)
            item.header = dict(zip(HEADER, values, strict=True))
            later = struct.unpack_from("<QII", payload, 112) if h >= 128 else (0, 0, 0)
            item.header |= zip(HEADER_4, later, strict=True)
            if not item.header["flags"] & 2:
                count = item.header["count"]
                item.records = _without_differences(_records(payload, h, r, count))
                size = struct.unpack_from("<Q", payload, 104)[0] if h >= 112 else 0
                item.arena = payload[h + r * count :][:size]
                assert len(item.arena) == size
        elif type_ == ALERTS:
            h, r, count = struct.unpack_from("<IIQ", payload)
            item.records = _records(payload, h, r, count)
        elif type_ == OVERVIEW:
            h, r, level, width, count = struct.unpack_from("<III4xQQ", payload)
            item.header = {"level": level, "width": width}
            item.records = _records(payload, h, r, count)
        elif type_ == INDEX:
            h, r, first, last, count = struct.unpack_from("<IIQQQ", payload)
            item.header = {"first_step": first, "last_step": last}
            item.records = _records(payload, h, r, count)
        elif type_ == DIGEST:
            item.arena = payload
        elif type_ in (CONTINUED, CLOSE) and payload:
            (item.header["index"],) = struct.unpack("<Q", payload)
        yield item, definitions


def read_journal(directory: Path) -> Iterator[tuple[Item, Definitions]]:
    """Yield all frames of the journal below a rank's directory, segment by segment."""
    segments = [
        p for p in (directory / "journal").iterdir() if re.fullmatch(r"\d{6,}\.tpj", p.name)
    ]
    for path in sorted(segments, key=lambda p: int(p.stem)):
        yield from read_segment(path)
