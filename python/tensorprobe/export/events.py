"""csv files as event files, a scalar for each value at its training step."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorprobe.export.directories import (
    KINDS,
    CsvFile,
    RankDirectory,
    find_files,
    find_ranks,
    read_columns,
    read_rows,
)
from tensorprobe.export.pool import Bar, check_processes, run_tasks

if TYPE_CHECKING:
    import os

_STATISTICS = ("norm", "min", "max", "zeros", "nans", "id", "mean")


def _collect(files: Sequence[CsvFile]) -> dict[int, dict[str, float]]:
    """Step → tag → value. Of a value that is there twice the later file's counts."""
    steps: dict[int, dict[str, float]] = {}
    repeated = 0
    for file in files:
        columns = [name for name in read_columns(file.path) if name in _STATISTICS]
        for row in read_rows(file.path, columns):
            name = f"vp{row.vpp_stage}:{row.name}"
            if row.micro_step is not None:
                name += f":micro{row.micro_step}"
            values = steps.setdefault(row.step, {})
            for column, value in zip(columns, row.values, strict=True):
                if value is not None:
                    tag = f"{name}/{column}"
                    repeated += tag in values
                    values[tag] = value
    if repeated:
        print(
            f"{files[0].path.parent}: {repeated} values of {files[0].kind} stand there twice; "
            "the later ones are taken",
            file=sys.stderr,
        )
    return steps


def _write(directory: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory))
    now = time.time()
    for step in sorted(steps):
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in steps[step].items()]
        writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=values)))
    writer.close()


def write_events(directory: RankDirectory, out: Path, kinds: Sequence[str]) -> int:
    """Write ``rank<R>/<kind>`` below out, in place of what is there; returns how many values."""
    count = 0
    for kind in kinds:
        files = find_files(directory, (kind,))
        steps = _collect(files) if files else {}
        if steps:
            target = out / f"rank{directory.rank}" / kind
            if target.exists():
                print(f"{target} is replaced", file=sys.stderr)
                shutil.rmtree(target)
            _write(target, steps)
            count += sum(map(len, steps.values()))
    return count


def csv2tensorboard_by_step(
    monitor_path: str | os.PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | os.PathLike[str] | None = None,
) -> Path:
    """Make event files of the csv files of every rank, with each value at its training step.

    ``monitor_path`` has the directories of the ranks; the times (``Dec03_21-34-40``, both
    included) choose among them. ``data_type_list`` has kinds of csv files (``actv``,
    ``grad_reduced`` …; None: all). Returns the directory, by default
    ``<now>-csv2tensorboard_by_step`` in monitor_path, which then has ``rank<R>/<kind>/events…``.
    Tags are ``vp<stage>:<name>[:micro<m>]/<op>``. Needs tensorboard. Raises ValueError for an
    unknown kind, a time that is none, or process_num outside 1 to 128.
    """
    check_processes(process_num)
    kinds = KINDS if data_type_list is None else tuple(data_type_list)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if isinstance(data_type_list, str) or unknown:
        raise ValueError(
            f"data_type_list is a list of {', '.join(KINDS)}; not {unknown or data_type_list!r}"
        )
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise ImportError("event files need tensorboard: pip install tensorboard") from None
    ranks = find_ranks(monitor_path, time_start, time_end)
    if output_dirpath is None:
        output_dirpath = Path(monitor_path) / time.strftime("%b%d_%H-%M-%S-csv2tensorboard_by_step")
    out = Path(output_dirpath)
    out.mkdir(parents=True, exist_ok=True)
    tasks = [(rank, out, kinds) for rank in ranks]
    count = sum(run_tasks(write_events, tasks, process_num, "event files", Bar()))
    if count == 0:
        print(f"{monitor_path}: there were no csv files of {', '.join(kinds)}", file=sys.stderr)
    return out
