"""A journal's values as a parquet file, by way of pyarrow."""

from __future__ import annotations

import sys
from pathlib import Path

from tensorprobe.runs import open as open_runs

_ROWS = 1 << 20  # of a row group: what a reader that wants a part of the file has to read at least


def write_parquet(directory: Path, path: Path) -> int:
    """Write every value of the journals in a directory and below it; returns how many rows.

    The columns are those of ``tensorprobe.open(directory).series()``. A file that is there is
    replaced when the new one is whole. Needs pyarrow. Raises FileNotFoundError without a journal.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("parquet needs pyarrow: pip install pyarrow") from None
    runs = open_runs(directory)
    for run in pyarrow.table(runs.runs()).to_pylist():
        if run["removed"] > 0:
            print(
                f"{run['directory']}: {run['removed']} steps before step {run['first_step']} have "
                f"been removed to keep the journal small, and are not in {path}",
                file=sys.stderr,
            )
    table = runs.series()
    reader = pyarrow.RecordBatchReader.from_stream(table)
    unfinished = path.with_name(f".{path.name}")
    rows = 0
    try:
        with parquet.ParquetWriter(unfinished, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch, row_group_size=_ROWS)
                rows += batch.num_rows
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return rows
