"""``monitor_data.trend.db``: the SQLite database that the msprobe Monitor's trend viewer shows.

The viewer is a TensorBoard plug-in that looks for ``*.trend.db``. Its tables, and what stands in
them, are those that mindstudio-probe 26.2.0 makes with its ``data2db``.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from tensorprobe.export.directories import KINDS, CsvFile, read_columns, read_rows
from tensorprobe.export.pool import run_tasks

FILE_NAME = "monitor_data.trend.db"
METRICS = (*KINDS, "other")
STATISTICS = (
    "norm",
    "min",
    "max",
    "zeros",
    "nans",
    "mean",
    "entropy",
    "softmax_max",
    "sr",
    "kernel_norm",
    "std_x",
    "jacobian",
    "proxy",
    "token_similarity",
)
"""The columns that the viewer knows."""

_LARGEST = 1e9  # the viewer's; infinities lie one beyond it
_ROWS = 5000  # that are inserted at once

Target = tuple[str, int, int]
"""Name, virtual pipeline stage, micro step."""

_SCHEMA = """
CREATE TABLE monitoring_targets (
    target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL,
    vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0,
    UNIQUE (target_name, vpp_stage, micro_step));
CREATE TABLE monitoring_metrics (
    metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name TEXT UNIQUE NOT NULL);
CREATE TABLE monitoring_tags (
    tag_id INTEGER PRIMARY KEY AUTOINCREMENT, tag_name TEXT NOT NULL, category TEXT NOT NULL,
    metric_id INTEGER NOT NULL REFERENCES monitoring_metrics (metric_id),
    UNIQUE (tag_name, category, metric_id));
CREATE TABLE tag_target_mapping (
    tag_id INTEGER NOT NULL REFERENCES monitoring_tags (tag_id),
    target_id INTEGER NOT NULL REFERENCES monitoring_targets (target_id),
    PRIMARY KEY (tag_id, target_id));
"""


@dataclass
class _Scan:
    """What a csv file speaks of."""

    metric: str
    statistics: set[str] = field(default_factory=set)
    targets: dict[Target, None] = field(default_factory=dict)  # a set that keeps the order
    micro_steps: dict[int, int] = field(default_factory=dict)  # step → how many


@dataclass(frozen=True)
class _Options:
    mapping: Mapping[str, str]
    micro_step: bool


def _renamed(name: str, mapping: Mapping[str, str]) -> str:
    for old, new in mapping.items():
        name = name.replace(old, new)
    return name


def _scan(file: CsvFile, options: _Options) -> _Scan:
    scan = _Scan(file.kind)
    scan.statistics.update(name for name in read_columns(file.path) if name in STATISTICS)
    for row in read_rows(file.path, ()):
        micro_step = row.micro_step or 0
        scan.micro_steps[row.step] = max(scan.micro_steps.get(row.step, 0), micro_step + 1)
        shown = 0 if options.micro_step else micro_step
        scan.targets[_renamed(row.name, options.mapping), row.vpp_stage, shown] = None
    return scan


def _shown(value: float | None) -> float | None:
    """Limit a value to what the viewer can draw; NaN is NULL."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return math.copysign(_LARGEST + 1, value)
    return max(-_LARGEST, min(_LARGEST, value))


@dataclass(frozen=True)
class _Reading:
    """What turns rows into those of the database."""

    options: _Options
    statistics: tuple[str, ...]
    metric_ids: Mapping[str, int]
    target_ids: Mapping[Target, int]
    first_of_step: Mapping[int, int]  # empty without micro steps

    def rows(self, file: CsvFile) -> list[tuple[float | None, ...]]:
        metric = self.metric_ids[file.kind]
        found = []
        for row in read_rows(file.path, self.statistics):
            micro_step = row.micro_step or 0
            at, shown = row.step, micro_step
            if self.options.micro_step:
                at, shown = self.first_of_step[row.step] + micro_step, 0
            name = _renamed(row.name, self.options.mapping)
            target = self.target_ids[name, row.vpp_stage, shown]
            found.append((file.rank, at, target, metric, *map(_shown, row.values)))
        return found


def _tags(name: str) -> dict[tuple[str, str], None]:
    """``layers.22.mlp`` is of layer ``layers.22``, and of the modules ``layers`` and ``mlp``."""
    parts = name.split(".")
    tags = {(part, "module"): None for part in parts if not part.isdigit()}
    for before, part in pairwise(parts):
        if part.isdigit() and not before.isdigit():
            tags[f"{before}.{part}", "layer"] = None
    return tags


class _Database:
    """The file, while it is being made under another name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        self.unfinished.unlink(missing_ok=True)
        self.connection = sqlite3.connect(self.unfinished, isolation_level=None)
        # It is a copy: should the machine fail, it is made again.
        self.connection.execute("PRAGMA journal_mode = OFF")
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.executescript(_SCHEMA)
        self.connection.execute("BEGIN")

    def add_dimensions(self, targets: Mapping[str, Mapping[Target, None]]) -> None:
        for metric in targets:
            self.connection.executemany(
                "INSERT OR IGNORE INTO monitoring_targets (target_name, vpp_stage, micro_step)"
                " VALUES (?, ?, ?)",
                targets[metric],
            )
        self.connection.executemany(
            "INSERT INTO monitoring_metrics (metric_name) VALUES (?)",
            [(metric,) for metric in targets],
        )

    def metric_ids(self) -> dict[str, int]:
        return dict(
            self.connection.execute("SELECT metric_name, metric_id FROM monitoring_metrics")
        )

    def target_ids(self) -> dict[Target, int]:
        rows = self.connection.execute(
            "SELECT target_name, vpp_stage, micro_step, target_id FROM monitoring_targets"
        )
        return {(name, stage, micro_step): target for name, stage, micro_step, target in rows}

    def add_tags(
        self,
        targets: Mapping[str, Mapping[Target, None]],
        metric_ids: Mapping[str, int],
        target_ids: Mapping[Target, int],
    ) -> None:
        for metric, of_metric in targets.items():
            tag_ids: dict[tuple[str, str], int] = {}
            mapped = []
            for target in of_metric:
                for tag in _tags(target[0]):
                    if tag not in tag_ids:
                        cursor = self.connection.execute(
                            "INSERT INTO monitoring_tags (tag_name, category, metric_id)"
                            " VALUES (?, ?, ?)",
                            (*tag, metric_ids[metric]),
                        )
                        tag_ids[tag] = cursor.lastrowid or 0
                    mapped.append((tag_ids[tag], target_ids[target]))
            self.connection.executemany("INSERT INTO tag_target_mapping VALUES (?, ?)", mapped)

    def add_global_stats(
        self, steps: tuple[int, int], max_rank: int, statistics: Mapping[str, Sequence[str]]
    ) -> None:
        columns = "".join(f", {metric} TEXT DEFAULT NULL" for metric in statistics)
        self.connection.execute(
            "CREATE TABLE global_stats (min_step INTEGER DEFAULT 0, max_step INTEGER DEFAULT 0,"
            f" max_rank INTEGER DEFAULT 0{columns})"
        )
        values = [*steps, max_rank, *(",".join(names) for names in statistics.values())]
        marks = ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO global_stats VALUES ({marks})", values)

    def add_trend_table(self, statistics: Sequence[str]) -> None:
        columns = "".join(f" {name} REAL DEFAULT NULL," for name in statistics)
        self.connection.execute(
            "CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL,"
            " target_id INTEGER NOT NULL REFERENCES monitoring_targets (target_id),"
            " metric_id INTEGER NOT NULL REFERENCES monitoring_metrics (metric_id),"
            f"{columns} PRIMARY KEY (rank, step, target_id, metric_id)) WITHOUT ROWID"
        )

    def add_rows(self, rows: Sequence[tuple[float | None, ...]]) -> None:
        for first in range(0, len(rows), _ROWS):
            some = rows[first : first + _ROWS]
            marks = ", ".join("?" * len(some[0]))
            self.connection.executemany(f"INSERT OR IGNORE INTO trend_data VALUES ({marks})", some)

    def finish(self) -> None:
        self.connection.execute("COMMIT")
        self.connection.close()
        self.unfinished.replace(self.path)

    def give_up(self) -> None:
        self.connection.close()
        self.unfinished.unlink(missing_ok=True)


def _first_of_steps(scans: Iterable[_Scan]) -> dict[int, int]:
    """The number of a step's first micro step, when all micro steps are counted through."""
    most: dict[int, int] = {}
    for scan in scans:
        for step, count in scan.micro_steps.items():
            most[step] = max(most.get(step, 0), count)
    ends = list(accumulate(most[step] for step in sorted(most)))
    return dict(zip(sorted(most), [0, *ends], strict=False))


def _steps(scans: Sequence[_Scan], first_of_step: Mapping[int, int]) -> tuple[int, int]:
    if not first_of_step:
        steps = [step for scan in scans for step in scan.micro_steps]
        return min(steps), max(steps)
    last = max(first_of_step)
    of_last = max(scan.micro_steps.get(last, 0) for scan in scans)
    return 0, first_of_step[last] + of_last - 1


def write_trend(
    files: Sequence[CsvFile],
    path: Path,
    *,
    mapping: Mapping[str, str] | None = None,
    micro_step: bool = True,
    process_num: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> int:
    """Write the values of csv files into a new database at path; returns how many rows it has.

    mapping: pieces of names and what is shown in their stead, one after the other. micro_step: the
    axis counts micro steps through, else steps, and a target's micro step is part of it. progress
    is told what is done, how much of it, and of how much. A file that is there is replaced when the
    new one is whole. Raises ValueError when the files have no rows.
    """
    options = _Options(mapping or {}, micro_step)
    scans = list(
        run_tasks(_scan, [(file, options) for file in files], process_num, "looking", progress)
    )
    scans = [scan for scan in scans if scan.micro_steps]
    if not scans:
        raise ValueError("the csv files have no rows that the trend viewer could show")
    targets: dict[str, dict[Target, None]] = {}
    seen: dict[str, set[str]] = {}
    for metric in METRICS:
        for scan in scans:
            if scan.metric == metric:
                targets.setdefault(metric, {}).update(scan.targets)
                seen.setdefault(metric, set()).update(scan.statistics)
    ordered = {m: [name for name in STATISTICS if name in seen[m]] for m in targets}
    all_seen = tuple(name for name in STATISTICS if any(name in names for names in seen.values()))
    first_of_step = _first_of_steps(scans) if micro_step else {}
    database = _Database(path)
    try:
        database.add_dimensions(targets)
        metric_ids, target_ids = database.metric_ids(), database.target_ids()
        database.add_tags(targets, metric_ids, target_ids)
        max_rank = max(file.rank for file in files)
        database.add_global_stats(_steps(scans, first_of_step), max_rank, ordered)
        database.add_trend_table(all_seen)
        reading = _Reading(options, all_seen, metric_ids, target_ids, first_of_step)
        tasks = [(file,) for file in files if file.kind in metric_ids]
        for rows in run_tasks(reading.rows, tasks, process_num, "copying", progress):
            database.add_rows(rows)
        (count,) = database.connection.execute("SELECT count(*) FROM trend_data").fetchone()
        database.finish()
    except BaseException:
        database.give_up()
        raise
    return int(count)
