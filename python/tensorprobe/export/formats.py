"""One function for every form."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorprobe import _core
from tensorprobe.export.directories import CsvFile, RankDirectory, find_files, find_ranks
from tensorprobe.export.events import csv2tensorboard_by_step
from tensorprobe.export.pool import Bar, check_processes, run_tasks
from tensorprobe.export.tables import write_parquet
from tensorprobe.export.trend import FILE_NAME, METRICS, write_trend

FORMATS = ("csv", "tensorboard", "sqlite", "parquet", "trend")


def _has_journal(rank: RankDirectory) -> bool:
    return (rank.path / "journal").is_dir()


def _fresh(directory: Path) -> Path:
    """Make an empty directory in place of what is there."""
    if directory.exists():
        print(f"{directory} is replaced", file=sys.stderr)
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return directory


def _from_journal(rank: RankDirectory, sink: str, directory: Path) -> int:
    return _core.export_journal(rank.path, sink, _fresh(directory))


def _csv_files(ranks: Sequence[RankDirectory], scratch: Path, process_num: int) -> list[CsvFile]:
    """Take the csv files that there are; make those of journals that have none."""
    without = [rank for rank in ranks if not find_files(rank, METRICS) and _has_journal(rank)]
    made = {rank.rank: scratch / f"rank{rank.rank}" for rank in without}
    tasks = [(rank, "csv", made[rank.rank]) for rank in without]
    for _ in run_tasks(_from_journal, tasks, process_num, "reading journals", Bar()):
        pass
    found = [replace(rank, path=made.get(rank.rank, rank.path)) for rank in ranks]
    return [file for rank in found for file in find_files(rank, METRICS)]


def _write_parquet(rank: RankDirectory, path: Path) -> int:
    return write_parquet(rank.path, path)


def export(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str,
    *,
    mapping: Mapping[str, str] | None = None,
    micro_step: bool = True,
    process_num: int = 1,
    time_start: str | None = None,
    time_end: str | None = None,
) -> list[Path]:
    """Write what the ranks in a directory have recorded in another form; returns the paths.

    to is one of FORMATS. ``csv``, ``tensorboard`` and ``sqlite`` make a folder for each rank in
    out, as the run itself would have, ``parquet`` a file for each; ``trend`` makes one database of
    all ranks, for the msprobe Monitor's trend viewer. They are made from journals; ``trend`` takes
    csv files where a rank has some, ``tensorboard`` where it has no journal: those may be the
    ancestors'. A run that is going on is read as far as it is. What is there already is replaced.
    mapping (pieces of names and what is shown in their stead) and micro_step (count micro steps
    through) are for ``trend``. The times choose among a rank's directories, as their names have
    them (``Dec03_21-34-40``). Raises FileNotFoundError where there is nothing to read, ValueError
    for arguments that make no sense, ImportError for what isn't installed.
    """
    if to not in FORMATS:
        raise ValueError(
            f"there is no format {to!r}; there are {', '.join(FORMATS)}; "
            "database servers are filled by the command `tensorprobe ship`"
        )
    check_processes(process_num)
    ranks = find_ranks(directory, time_start, time_end)
    target = Path(out)
    if to == "trend":
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=target) as scratch:
            files = _csv_files(ranks, Path(scratch), process_num)
            write_trend(
                files,
                target / FILE_NAME,
                mapping=mapping,
                micro_step=micro_step,
                process_num=process_num,
                progress=Bar(),
            )
        return [target / FILE_NAME]
    without = [rank for rank in ranks if not _has_journal(rank)]
    if without and to == "tensorboard" and len(without) == len(ranks):
        return [csv2tensorboard_by_step(directory, time_start, time_end, process_num, None, out)]
    if without:
        raise FileNotFoundError(
            f"no journal in {', '.join(rank.path.name for rank in without)}; of csv files alone "
            "tensorboard and trend can be made"
        )
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"rank{rank.rank}" for rank in ranks]
    function: Callable[..., int] = _from_journal
    tasks: list[tuple[Any, ...]] = [
        (rank, to, path) for rank, path in zip(ranks, paths, strict=True)
    ]
    if to == "parquet":
        paths = [path.with_suffix(".parquet") for path in paths]
        function, tasks = _write_parquet, list(zip(ranks, paths, strict=True))
    for _ in run_tasks(function, tasks, process_num, to, Bar()):
        pass
    return paths
