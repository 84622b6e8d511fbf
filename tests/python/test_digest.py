"""Digests of a journal's segments, against NumPy over the records, read without the library."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from journal_reader import BATCH, DIGEST, INDEX, Item, read_journal, record_fields
from tensorprobe import _core

SERIES, STEPS = 5600, 19  # a batch of more than 1 MiB, whose pieces are packed alone
NONE = 0x7FC0DEAD
API = '{"format": "api"}'


def planes(payload: bytes, at: int, size: int, count: int) -> np.ndarray[Any, Any]:
    """Return the items behind `at` as rows of bytes."""
    part = np.frombuffer(payload, np.uint8, size * count, at)
    return np.ascontiguousarray(part.reshape(size, count).T)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    """Return the frames of a journal with NaN, ±Inf, rows that come later, and scalars."""
    folder = tmp_path_factory.mktemp("rank")
    monitor = _core.Monitor(config_json=API, output_dir=str(folder))
    draw = random.Random(3)
    pool = [torch.randn(1 + i % 9) * 10.0 ** draw.uniform(-40, 30) for i in range(97)]
    for i, odd in enumerate((math.nan, math.inf, -math.inf)):
        pool[i][0] = odd
    pool[4] = torch.zeros(5)
    pool[5] = torch.full((3,), 1e300, dtype=torch.float64)
    pool[6] = torch.full((3,), 1e-310, dtype=torch.float64)
    keys = [
        monitor.key(f"fc{i}", _core.GRAD_REDUCED if i % 2 else _core.GRAD_UNREDUCED)
        for i in range(SERIES)
    ]
    for step in range(STEPS):
        for i, key in enumerate(keys[: SERIES - 5 * (step < 2)]):
            if i % 50 == 0 and draw.random() < 0.5:
                continue
            seldom = draw.randrange(97) if i < 300 else 7 + draw.randrange(90)
            monitor.observe(key, pool[seldom])
            if i % 100 == 1:
                monitor.observe(key, pool[7 + step % 90])
        monitor.log_scalar("loss", 1 / (1 + step))
        monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    return [item for item, _ in read_journal(directory)]


def narrow(value: float) -> np.float32:
    with np.errstate(over="ignore", under="ignore"):
        near = np.float32(value)
    limits = np.finfo(np.float32)
    if math.isfinite(value) and np.isinf(near):
        return np.float32(math.copysign(float(limits.max), value))
    return np.float32(math.copysign(float(limits.tiny), value)) if near == 0 and value else near


def values_of(fields: dict[str, Any]) -> list[np.float32]:
    """Return the seven statistics of a record."""
    if fields["nan"]:
        return [np.float32(math.nan)] * 7
    if fields["pos_inf"] + fields["neg_inf"]:
        sign = 1 if fields["pos_inf"] else -1
        return [np.float32(math.inf * s) for s in (1, 1, sign, 1, sign, sign, sign)]
    scale = 2.0 ** fields["sq_exp"]
    numbers = (
        math.sqrt(fields["sum_sq"]) * scale,
        fields["abs_max"],
        fields["sum"] / fields["count"],
        math.sqrt(fields["m2"] / fields["count"]) * scale,
        fields["finite_min"],
        fields["finite_max"],
    )
    return [narrow(x) for x in numbers] + [np.float32(fields["zeros"] / fields["count"])]


@pytest.fixture(scope="module")
def records(items: list[Item]) -> list[list[dict[str, Any]]]:
    batches = [item for item in items if item.type == BATCH]
    return [[record_fields(raw) for raw in batch.records] for batch in batches]


@pytest.fixture(scope="module")
def parts(items: list[Item]) -> list[bytes]:
    found = [item.arena for item in items if item.type == DIGEST]
    assert [struct.unpack_from("<I", part, 4)[0] for part in found] == list(range(9))
    return found


def rows_of(parts: list[bytes]) -> list[tuple[int, ...]]:
    header, _, size, _, count, _ = struct.unpack_from("<4I2Q", parts[1])
    assert size == 32
    return [struct.unpack("<2Q4I", raw) for raw in planes(parts[1], header, size, count)]


@pytest.mark.slow
def test_its_frames_are_in_the_index(items: list[Item]) -> None:
    (index,) = [item for item in items if item.type == INDEX]
    entries = [struct.unpack("<2Q2I", raw) for raw in index.records]
    given = [(offset, level) for _, offset, kind, level in entries if kind == DIGEST]
    assert given == [
        (item.offset, i) for i, item in enumerate([item for item in items if item.type == DIGEST])
    ]


@pytest.mark.slow
def test_steps_are_those_of_the_batches(
    items: list[Item], parts: list[bytes], records: list[list[dict[str, Any]]]
) -> None:
    header, _, rows, _, size, span, scalar, _, steps, spans, scalars = struct.unpack_from(
        "<8I3Q", parts[0]
    )
    assert (header, size, span, scalar) == (56, 120, 8, 16)
    assert (steps, spans, rows) == (STEPS, 2, SERIES + 1)
    found = planes(parts[0], header, size, steps)
    batches = [item for item in items if item.type == BATCH]
    for raw, batch, fields in zip(found, batches, records, strict=True):
        step, offset, begin, end, wall, hook, wait, writer, errors, count, norm, *rest = (
            struct.unpack("<4Qq5QdQ4IiI", raw)
        )
        head = batch.header
        assert (step, offset, count) == (head["step"], batch.offset, head["count"])
        assert (begin, end, wall) == (head["begin_ns"], head["end_ns"], head["wall_ns"])
        assert (hook, wait, writer) == (head["hook_ns"], head["wait_ns"], head["writer_ns"])
        written, flags, left_out, zoom, micro_steps, stage, _ = rest
        assert (errors, written, flags) == (head["errors"], head["bytes"], head["flags"])
        assert (micro_steps, stage) == (head["micro_steps"], head["pp_stage"])
        assert (left_out, zoom) == (head["left_out"], head["zoom"])
        # Keys are given in turn: id 1, 3, … are reduced gradients.
        reduced = [f for f in fields if f["key"] % 2 == 1 and f["key"] < SERIES]
        assert np.isnan(norm) == any(f["nan"] for f in reduced)
        if not np.isnan(norm):
            squares = [np.sqrt(f["sum_sq"]) * 2.0 ** f["sq_exp"] for f in reduced]
            odd = any(f["pos_inf"] + f["neg_inf"] for f in reduced)
            with np.errstate(over="ignore"):
                whole = np.float64(np.inf) if odd else np.sqrt(np.sum(np.square(squares)))
            assert norm == pytest.approx(whole, rel=1e-12)
    at = header + size * steps
    widths = [struct.unpack("<2I", raw) for raw in planes(parts[0], at, span, spans)]
    assert [width for width, _ in widths] == [16, 3]
    logged = planes(parts[0], at + span * spans, scalar, scalars)
    named = rows_of(parts)
    for i, raw in enumerate(logged):
        step, row, value = struct.unpack("<IId", raw)
        assert (step, value) == (i, 1 / (1 + i))
        assert named[row][0] == records[0][-1]["order"]


@pytest.mark.slow
def test_values_are_the_extremes_of_the_records(
    parts: list[bytes], records: list[list[dict[str, Any]]]
) -> None:
    named = rows_of(parts)
    place = {(key, call): i for i, (_, _, key, call, _, _) in enumerate(named)}
    assert len(place) == len(named)
    rows = len(named)
    all_values = np.full((STEPS, 7, rows, 2), np.nan, np.float32)
    has = np.zeros((STEPS, rows), bool)
    for step, batch in enumerate(records):
        for fields in batch:
            row = place[fields["key"], fields["call"]]
            if not has[: step + 1, row].any():
                assert named[row][:2] == (fields["order"], fields["count"])
                assert named[row][4] == fields["dtype"]
            low, high = all_values[step, :, row, 0], all_values[step, :, row, 1]
            values = np.array(values_of(fields))
            # The first one, or what is wider; NaN stays.
            all_values[step, :, row, 0] = np.minimum(low, values) if has[step, row] else values
            all_values[step, :, row, 1] = np.maximum(high, values) if has[step, row] else values
            has[step, row] = True
    for stat in range(7):
        part = parts[2 + stat]
        header, _, size, _, count, _ = struct.unpack_from("<4I2Q", part)
        assert (size, count) == (8, 2 * rows)
        bits = planes(part, header, size, count).view(np.uint32).reshape(2, rows, 2)
        bits[:, :, 1] ^= bits[:, :, 0]
        found = bits.view(np.float32)
        for span, part_of in enumerate((slice(0, 16), slice(16, STEPS))):
            there = has[part_of].any(axis=0)
            is_none = np.all(bits[span] == NONE, axis=1)
            assert np.array_equal(is_none, ~there)
            low, high = all_values[part_of, stat, :, 0], all_values[part_of, stat, :, 1]
            is_nan = np.asarray((np.isnan(low) & has[part_of]).any(axis=0))
            shown_nan = np.asarray(np.isnan(found[span]).all(axis=1) & there)
            assert np.array_equal(shown_nan, is_nan)
            good = there & ~is_nan
            shown = np.where(has[part_of], low, np.inf)[:, good]
            assert np.array_equal(found[span, good, 0], shown.min(axis=0))
            shown = np.where(has[part_of], high, -np.inf)[:, good]
            assert np.array_equal(found[span, good, 1], shown.max(axis=0))


def test_a_small_segment_has_none(tmp_path: Path) -> None:
    monitor = _core.Monitor(config_json=API, output_dir=str(tmp_path))
    key = monitor.key("fc", _core.ACTIVATION, _core.ROLE_OUTPUT)
    for _ in range(40):
        monitor.observe(key, torch.ones(3))
        monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    assert DIGEST not in [item.type for item, _ in read_journal(directory)]
