"""Directories of ranks, and the csv files in them: ours, KJ600's and the msprobe Monitor's."""

from __future__ import annotations

import csv
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = (
    "actv",
    "actv_grad",
    "exp_avg",
    "exp_avg_sq",
    "grad_unreduced",
    "grad_reduced",
    "param_origin",
    "param_updated",
)
"""What csv files hold, by the first part of their names."""

_RANK = re.compile(r"([A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2})-rank(\d+)(?:-|$)")
_TIME = "%b%d_%H-%M-%S"
_FILE = re.compile(r"(.+?)_(\d+)-\d+(?:_part_(\d+))?\.csv")


@dataclass(frozen=True)
class RankDirectory:
    """What one rank of a run has written."""

    rank: int
    time: str
    """When the run began, as the directory's name has it: ``Dec03_21-34-40``."""
    path: Path


@dataclass(frozen=True)
class CsvFile:
    """A csv file of one kind and one window of steps."""

    rank: int
    kind: str
    path: Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a csv file; values has a float for each number, None for anything else."""

    name: str
    vpp_stage: int
    step: int
    micro_step: int | None
    values: list[float | None]


def _order(text: str) -> time.struct_time:
    # A leap year, since the names have none and Feb29 is a day as good as others.
    return time.strptime(f"2024{text}", f"%Y{_TIME}")


def _border(what: str, text: str | None) -> time.struct_time | None:
    if text is None:
        return None
    try:
        return _order(text)
    except ValueError:
        raise ValueError(f"{what} is a time like Dec03_21-34-40, not {text!r}") from None


def find_ranks(
    directory: str | os.PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
) -> list[RankDirectory]:
    """Find the directories of the ranks in one, or take it as that of a rank.

    The times (``Dec03_21-34-40``) are those of the directories' names, both included. A rank that
    has several directories gives its latest one; that is said. Raises FileNotFoundError when there
    is none, ValueError for a time that is none.
    """
    path = Path(directory)
    first, last = (
        _border("--from (time_start)", time_start),
        _border("--until (time_end)", time_end),
    )
    if first and last and first > last:
        raise ValueError(
            f"--from (time_start) is later than --until (time_end): {time_start} and {time_end}"
        )
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no directory")
    latest: dict[int, RankDirectory] = {}
    passed_over = []
    for candidate in [path, *sorted(path.iterdir())]:
        match = _RANK.match(candidate.resolve().name) if candidate.is_dir() else None
        if match is None:
            continue
        begin = _order(match[1])
        if (first and begin < first) or (last and begin > last):
            continue
        found = RankDirectory(int(match[2]), match[1], candidate)
        other = latest.get(found.rank)
        if other is not None:
            if _order(other.time) > begin:
                found, other = other, found
            passed_over.append(other.path.name)
        latest[found.rank] = found
    if not latest:
        raise FileNotFoundError(
            f"{path} has no directory of a rank"
            + (" in that time" if first or last else "")
            + "; they are named like Dec03_21-34-40-rank0-1a2b3c4d"
        )
    if passed_over:
        print(
            f"{path}: of several directories of a rank the latest is taken; passed over: "
            f"{', '.join(sorted(passed_over))} "
            "(--from and --until, in Python time_start and time_end, choose others)",
            file=sys.stderr,
        )
    return [latest[rank] for rank in sorted(latest)]


def find_files(directory: RankDirectory, kinds: Sequence[str] = KINDS) -> list[CsvFile]:
    """Find the csv files of a rank, by kind, then in the order of their steps."""
    found = []
    for path in directory.path.glob("*.csv"):
        match = _FILE.fullmatch(path.name)
        if match is not None and match[1] in kinds:
            order = (kinds.index(match[1]), int(match[2]), int(match[3] or 0))
            found.append((order, CsvFile(directory.rank, match[1], path)))
    return [file for _, file in sorted(found, key=lambda pair: pair[0])]


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a csv file with their numbers; what can't be split is passed over and said."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                _passed_over(path, reader.line_num, str(error))
                continue
            yield reader.line_num, cells


def _passed_over(path: Path, line: int, why: str) -> None:
    print(f"{path}: line {line}: {why}, passed over", file=sys.stderr)


def read_columns(path: Path) -> list[str]:
    """Return the names in the first line; none for an empty file."""
    return next((cells for _, cells in _lines(path)), [])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int:
    number = int(float(text))
    if not -(2**63) <= number < 2**63:
        raise ValueError("no number of a step or stage")
    return number


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Read the lines of a csv file, and of each the values of these columns, in this order.

    A column that the file lacks gives None. A line that has no name, stage or step is passed over
    and said, with its number. Bytes that are no UTF-8 become U+FFFD. Raises ValueError for a file
    without these columns.
    """
    lines = _lines(path)
    header = {name: place for place, name in enumerate(next((cells for _, cells in lines), []))}
    missing = [name for name in ("vpp_stage", "name", "step") if name not in header]
    if missing:
        raise ValueError(f"{path}: line 1: no column {', '.join(missing)}")
    name, stage, step = (header[column] for column in ("name", "vpp_stage", "step"))
    micro_step = header.get("micro_step")
    places = [header.get(column) for column in columns]
    for line, cells in lines:
        try:
            yield Row(
                cells[name],
                _whole(cells[stage]),
                _whole(cells[step]),
                None if micro_step is None else _whole(cells[micro_step]),
                [None if place is None else _number(cells[place]) for place in places],
            )
        except (ValueError, IndexError, OverflowError):
            _passed_over(path, line, "not a row of this table")
