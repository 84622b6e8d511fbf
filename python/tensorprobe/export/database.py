"""``data2db`` as the msprobe Monitor has it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tensorprobe.export.directories import find_files, find_ranks
from tensorprobe.export.pool import Bar, check_processes
from tensorprobe.export.trend import FILE_NAME, METRICS, write_trend


def load_mapping(path: str | os.PathLike[str] | None) -> dict[str, str]:
    """Read the replacements of names from a JSON object of texts; none without a file.

    Raises ValueError, with the place, for anything else.
    """
    if path is None:
        return {}
    try:
        mapping = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    if not isinstance(mapping, dict) or not all(isinstance(new, str) for new in mapping.values()):
        raise ValueError(f'{path}: it must hold one object of texts, like {{"module.": ""}}')
    return mapping


def _truth(value: bool | str) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"micro_step is True or False, not {value!r}")
    return value


def data2db(
    db: str | os.PathLike[str],
    data: str | os.PathLike[str],
    format: str = "auto",  # noqa: A002
    mapping: str | os.PathLike[str] | Mapping[str, str] | None = None,
    micro_step: bool | str = True,
    process_num: int = 1,
) -> Path:
    """Write the csv files of the ranks in data into ``monitor_data.trend.db`` in the directory db.

    format: ``auto`` or ``monitor``; ``dump`` isn't ours. mapping: replacements of pieces of names,
    or a JSON file of them. micro_step: the step axis counts micro steps through (the default), or
    else steps, with micro steps told apart by their targets. Returns the file. Raises
    FileNotFoundError when there are no csv files, ValueError for arguments that make no sense.
    """
    if format not in ("auto", "monitor"):
        raise ValueError(f"format is auto or monitor, not {format!r}")
    check_processes(process_num)
    shown = _truth(micro_step)
    replaced = mapping if isinstance(mapping, Mapping) else load_mapping(mapping)
    ranks = find_ranks(data)
    files = [file for rank in ranks for file in find_files(rank, METRICS)]
    if not files:
        raise FileNotFoundError(
            f"{data}: no csv files in {', '.join(rank.path.name for rank in ranks)}; "
            f"of a journal `tensorprobe export --to trend -o {db} {data}` makes the database"
        )
    Path(db).mkdir(parents=True, exist_ok=True)
    path = Path(db) / FILE_NAME
    if path.exists():
        print(f"{path} is replaced", file=sys.stderr)
    write_trend(
        files,
        path,
        mapping=replaced,
        micro_step=shown,
        process_num=process_num,
        progress=Bar(),
    )
    return path
