"""docs/journal.md is enough to read a journal: its reader finds what a C program has written."""

from __future__ import annotations

import math
import struct
import subprocess
from pathlib import Path

import pytest

import tensorprobe
from built import BUILD
from journal_reader import (
    ALERTS,
    BATCH,
    CLOSE,
    CONTINUED,
    DEFINITIONS,
    Definitions,
    Item,
    crc32c,
    read_journal,
    record_fields,
)

STEPS = 40


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the journal that tests/unit/test_journal_known.c describes."""
    path = tmp_path_factory.mktemp("rank")
    program = BUILD / "tests" / "unit" / "test_journal_known"
    subprocess.run([program, path], check=True, capture_output=True)
    return path


def word(step: int, record: int, index: int) -> int:
    mixed = (step * 1000003 + record * 8191 + index + 1) * 0x9E3779B97F4A7C15 % 2**64
    return mixed >> 8 * (index % 8)


def expected_record(step: int, i: int) -> bytes:
    words = [word(step, i, w) for w in range(24)]
    words[0] = (2 if i % 2 == 0 else 1) | i % (step % 1000 + 1) << 32
    return struct.pack("<24Q", *words)


def expected_key(s: int) -> dict[str, object]:
    name = "" if s == 1 else f"层.{s}.fc"
    return {
        "name": name,
        "global_name": "global" if s % 2 == 0 else name,
        "vpp_stage": s,
        "slot": s - 1,
        "quantity": s % 8 + 1,
        "role": s % 3,
        "argument": "an_argument_longer_than_a_span" if s % 3 == 0 else "x" if s % 5 == 0 else None,
        "span": (2, [(1, 2, s + 3), (0, 5, 5)][: s % 3], s, s // 2) if s % 4 == 3 else None,
    }


def expected_header(s: int) -> dict[str, int]:
    return {
        "step": s,
        "rank": 5,
        "attempt": 2,
        "pp_stage": -1 if s % 2 == 0 else s,
        "flags": 2 if s % 10 == 9 else s % 2,
        "micro_steps": 1,
        "unfilled": 2,
        "begin_ns": 3,
        "end_ns": 4,
        "wall_ns": -5,
        "hook_ns": 6,
        "wait_ns": 7,
        "writer_ns": 8,
        "errors": 2**64 - 1,
        "bytes": 2**64 - 1 - s,
        "left_out": s << 1,
        "zoom": s % 3,
        "count": 1 if s == 0 else s * 7 % 50,
    }


def items_of(directory: Path, kind: int) -> list[tuple[Item, Definitions]]:
    return [found for found in read_journal(directory) if found[0].type == kind]


def test_crc() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_frames_come_in_order(directory: Path) -> None:
    frames = [(item.type, item.step) for item, _ in read_journal(directory)]
    expected = [(kind, s) for s in range(STEPS) for kind in (BATCH, ALERTS)[: 2 - bool(s % 5)]]
    assert [frame for frame in frames if frame[0] in (BATCH, ALERTS)] == expected
    assert frames[-1] == (CLOSE, 0)
    segments = sorted({item.run["segment"] for item, _ in read_journal(directory)})
    assert segments == list(range(len(segments)))
    assert len(segments) > 2
    assert sum(kind == CONTINUED for kind, _ in frames) == len(segments) - 1
    for item, _ in read_journal(directory):
        assert item.run["run_id"] == "known"
        assert item.run["rank"] == 5
        assert item.run["attempt"] == 2
        assert item.run["start"] == -1234567890123456789


def test_batches_hold_what_was_written(directory: Path) -> None:
    batches = items_of(directory, BATCH)
    assert len(batches) == STEPS
    for s, (item, _) in enumerate(batches):
        assert item.header == expected_header(s)
        if s % 10 == 9:
            assert item.records == []
        elif s > 0:
            assert item.records == [expected_record(s, i) for i in range(s * 7 % 50)]


def test_alerts_hold_what_was_written(directory: Path) -> None:
    for item, _ in items_of(directory, ALERTS)[1:]:
        count = item.step % 3 + 1
        assert item.records == [expected_record(item.step + 1000, i) for i in range(count)]


def test_names_come_before_their_first_use(directory: Path) -> None:
    known = {}
    for item, definitions in read_journal(directory):
        known[item.run["segment"]] = definitions
        if item.type == BATCH:
            assert definitions.keys == {s: expected_key(s) for s in range(item.step + 1)}
            # Shapes that are equal have one id: every fifth is the scalar's.
            shapes = [tuple(s << 8 * d for d in range(s % 5)) for s in range(item.step + 1)]
            assert list(definitions.shapes.values()) == list(dict.fromkeys(shapes))
    assert len(known) > 2
    assert sum(item.type == DEFINITIONS for item, _ in read_journal(directory)) >= STEPS


def test_a_histogram_lies_in_the_arena(directory: Path) -> None:
    item = items_of(directory, BATCH)[0][0]
    assert item.histogram(item.records[0]) == (-1.0, 0.5, [41, 0, 2**40])
    record = next(iter(tensorprobe.Journal(directory))).records[0]
    assert record["histogram"] == {"low": -1.0, "high": 0.5, "bins": [41, 0, 2**40]}
    assert all(
        "histogram" not in other
        for step in list(tensorprobe.Journal(directory))[1:3]
        for other in step.records
    )


def test_fields_by_name(directory: Path) -> None:
    batch = record_fields(items_of(directory, BATCH)[0][0].records[0])
    assert math.isnan(batch.pop("min"))
    assert batch == {
        "state": 2,
        "key": 0,
        "order": 1,
        "micro_step": 2,
        "call": 3,
        "kind": 1,
        "dtype": 4,
        "shape": 0,
        "flags": 1,
        "time_ns": 4,
        "arena": 8,
        "count": 10,
        "nan": 11,
        "pos_inf": 12,
        "neg_inf": 13,
        "zeros": 14,
        "subnormal": 15,
        "max": math.inf,
        "finite_min": -16.5,
        "finite_max": 17.25,
        "abs_max": 1e308,
        "abs_max_index": 18,
        "sum": 5e-324,
        "sum_abs": 0.1,
        "sum_sq": 19.0,
        "m2": 20.0,
        "sq_exp": -21,
    }
    alert = record_fields(items_of(directory, ALERTS)[0][0].records[0])
    assert math.isnan(alert["threshold"])
    assert {
        name: alert[name] for name in ("rule", "op", "value", "baseline", "samples", "more")
    } == {
        "rule": 2,
        "op": 4,
        "value": 30.5,
        "baseline": -math.inf,
        "samples": 31,
        "more": 32,
    }


def test_a_torn_tail_ends_the_journal(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    whole = (directory / "journal" / "000000.tpj").read_bytes()
    torn = tmp_path / "journal" / "000000.tpj"
    torn.write_bytes(whole)
    frames = len(list(read_journal(tmp_path)))
    torn.write_bytes(whole[:-1])
    assert len(list(read_journal(tmp_path))) == frames - 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "gradient"), "no such quantity: 'gradient'"),
        (("a", "actv", "outptu"), "no such role: 'outptu'"),
        (("a", "actv", "output", "nrom"), "no such op: 'nrom'"),
    ],
)
def test_series_refuses_words_that_do_not_exist(
    directory: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tensorprobe.Journal(directory).series(*words)


def test_series_of_an_unknown_name_has_no_values(directory: Path) -> None:
    assert tensorprobe.Journal(directory).series("nobody", "actv", "input") == ([], [])
