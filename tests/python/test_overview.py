"""Overviews and the index of a journal's segments, against brute force over the records."""

from __future__ import annotations

import functools
import json
import math
import random
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import tensorprobe
from journal_reader import (
    ALERTS,
    BATCH,
    CLOSE,
    CONTINUED,
    DEFINITIONS,
    INDEX,
    OVERVIEW,
    Item,
    overview_fields,
    read_journal,
    record_fields,
)
from tensorprobe import _core

STEPS = 700
Row = dict[str, Any]


@pytest.fixture(scope="module", params=["closed", "killed"])
def directory(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a journal of three segments and more; a killed one has a torn end."""
    config = {
        "format": "api",
        "journal": {"segment_bytes": 120_000},
        "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
    }
    folder = tmp_path_factory.mktemp("rank")
    monitor = _core.Monitor(config_json=json.dumps(config), output_dir=str(folder))
    draw = random.Random(7)
    for step in range(STEPS):
        for k in range(min(6, 2 + step // 100)):
            key = monitor.key(f"fc{k}", _core.ACTIVATION, _core.ROLE_OUTPUT)
            for micro_step in range(1 + k % 2):
                if draw.random() < 0.9:
                    tensor = torch.randn(5, generator=torch.Generator().manual_seed(step + k))
                    tensor[0] = draw.choice([0.0] * 20 + [math.nan, math.inf, -math.inf])
                    tensor *= 0 if step % 50 == 49 else 1
                    monitor.observe(key, tensor, micro_step)
        monitor.step()
    path = Path(monitor.directory)
    monitor.close()
    if request.param == "killed":
        last = max((path / "journal").iterdir())
        last.write_bytes(last.read_bytes()[:-200])
    return path


@functools.cache  # checksums in Python take their time
def segments_of(directory: Path) -> list[list[Item]]:
    segments: dict[int, list[Item]] = defaultdict(list)
    for item, _ in read_journal(directory):
        segments[item.run["segment"]].append(item)
    return list(segments.values())


def brute_force(items: list[Item], width: int) -> list[Row]:
    """Make the rows of the spans of so many steps (0: all are one), in any order."""
    rows: dict[tuple[int, int], Row] = {}
    for item in items:
        for stored in item.records if item.type == BATCH else ():
            record = record_fields(stored)
            row = rows.setdefault(
                (item.step // width if width else 0, record["key"]),
                {"first_step": item.step, "key": record["key"], "count": 0, "nan": 0, "inf": 0}
                | {"norm_min": math.nan, "norm_max": math.nan},
            )
            row["last_step"] = item.step
            row["count"] += 1
            if record["nan"]:
                row["nan"] += 1
            elif record["pos_inf"] or record["neg_inf"]:
                row["inf"] += 1
            else:
                norm = math.sqrt(record["sum_sq"]) * 2.0 ** record["sq_exp"]
                row["norm_min"] = norm if not norm >= row["norm_min"] else row["norm_min"]
                row["norm_max"] = norm if not norm <= row["norm_max"] else row["norm_max"]
    return list(rows.values())


def in_order(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Make rows comparable, floats by their bits."""
    names = ("first_step", "key", "last_step", "count", "nan", "inf")
    return sorted(
        (*(row[name] for name in names), struct.pack("<2d", row["norm_min"], row["norm_max"]))
        for row in rows
    )


def ended(items: list[Item]) -> bool:
    return items[-1].type in (CONTINUED, CLOSE)


def test_segments_that_have_ended_keep_overviews(directory: Path) -> None:
    segments = segments_of(directory)
    assert len(segments) >= 3
    assert [ended(items) for items in segments[:-1]] == [True] * (len(segments) - 1)
    for items in segments:
        steps = sum(item.type == BATCH for item in items)
        overviews = [item for item in items if item.type == OVERVIEW]
        if not ended(items):
            assert overviews == [] or items[-1].type in (OVERVIEW, INDEX)  # torn in or behind them
            continue
        levels = [0] + [level for level in range(1, 6) if steps >= 2 * 16**level]
        assert [item.header["level"] for item in overviews] == levels
        for item in overviews:
            level = item.header["level"]
            assert item.header["width"] == (16**level if level else 0)
            found = [overview_fields(row) for row in item.records]
            assert in_order(found) == in_order(brute_force(items, item.header["width"]))
            firsts = [row["first_step"] // (item.header["width"] or STEPS) for row in found]
            assert firsts == sorted(firsts)


def test_the_index_names_every_frame(directory: Path) -> None:
    for items in filter(ended, segments_of(directory)):
        (index,) = (item for item in items if item.type == INDEX)
        assert items[-1].header["index"] == index.offset
        kinds = (DEFINITIONS, BATCH, ALERTS, OVERVIEW)
        assert [struct.unpack("<QQII", entry) for entry in index.records] == [
            (item.step, item.offset, item.type, item.header.get("level", 0))
            for item in items
            if item.type in kinds
        ]
        steps = [item.step for item in items if item.type == BATCH]
        assert index.header == {"first_step": min(steps), "last_step": max(steps)}


def read(table: tensorprobe.Table) -> list[Row]:
    rows: list[Row] = pa.table(table).to_pylist()
    return rows


def named(rows: list[Row]) -> list[Row]:
    """The keys of this journal are numbered as they are named."""
    return [row | {"key": int(row["name"].removeprefix("fc"))} for row in rows]


@pytest.mark.parametrize("width", [None, 1, 7, 16, 100, 256, 10_000])
def test_an_overview_is_complete(directory: Path, width: int | None) -> None:
    """Whatever comes from where: spans are short enough, and nothing is missing or there twice."""
    table = tensorprobe.open(directory).overview(width=width)
    rows = named(read(table))
    assert table.damaged == 0
    records = [item for items in segments_of(directory) for item in items if item.type == BATCH]
    for row in rows:
        assert row["last_step"] - row["first_step"] < (width or STEPS)
        within = records[row["first_step"] : row["last_step"] + 1]
        (exact,) = (other for other in brute_force(within, 0) if other["key"] == row["key"])
        assert in_order([row]) == in_order([exact])
    whole = brute_force(records, 0)
    for key in range(6):
        (right,) = (row for row in whole if row["key"] == key)
        assert sum(row["count"] for row in rows if row["key"] == key) == right["count"]


def test_an_overview_of_some_steps_and_names(directory: Path) -> None:
    runs = tensorprobe.open(directory)
    rows = read(runs.overview("fc[02]", steps=range(300, 400), width=16))
    assert {row["name"] for row in rows} == {"fc0", "fc2"}
    for row in rows:
        assert row["first_step"] < 400
        assert row["last_step"] >= 300
    assert min(row["first_step"] for row in rows) in range(288, 302)
    assert read(runs.overview(steps=slice(STEPS, None))) == []
    with pytest.raises(ValueError, match="at least one step: 0"):
        runs.overview(width=0)


@pytest.mark.parametrize("steps", [range(3), range(340, 345), slice(690, None)])
def test_the_index_leads_to_the_same_records(directory: Path, steps: range | slice) -> None:
    runs = tensorprobe.open(directory)
    some = read(runs.series(steps=steps))
    every = read(runs.series())
    chosen = range(STEPS)[steps] if isinstance(steps, slice) else steps
    assert repr(some) == repr([row for row in every if row["step"] in chosen])
    assert len(some) > 0


@pytest.mark.parametrize("what", [INDEX, OVERVIEW, CONTINUED])
def test_damage_to_them_costs_no_record(directory: Path, tmp_path: Path, what: int) -> None:
    (tmp_path / "journal").mkdir()
    for segment in (directory / "journal").iterdir():
        data = bytearray(segment.read_bytes())
        for item in segments_of(directory)[0] if segment.name == "000000.tpj" else ():
            if item.type == what:
                data[item.offset + 30] ^= 1
                break
        (tmp_path / "journal" / segment.name).write_bytes(data)
    damaged = tensorprobe.open(tmp_path)
    right = tensorprobe.open(directory)
    steps = range(10, 500)
    assert repr(read(damaged.series(steps=steps))) == repr(read(right.series(steps=steps)))
    if what != OVERVIEW:  # it is made from the records then
        assert repr(sorted(map(repr, read(damaged.overview())))) == repr(
            sorted(map(repr, read(right.overview())))
        )
    else:
        table = damaged.overview()
        assert len(read(table)) < len(read(right.overview()))
        assert table.damaged == 1
