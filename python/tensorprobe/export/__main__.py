"""The command ``tensorprobe export``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tensorprobe.export.database import load_mapping
from tensorprobe.export.formats import FORMATS, export


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code: 0 fine, 1 failed, 2 wrong command line."""
    parser = argparse.ArgumentParser(
        prog="tensorprobe export",
        description="Write what was recorded in another form: csv, TensorBoard, SQLite or parquet "
        "of each rank, or one database of all for the msprobe Monitor's trend viewer. "
        "With --to postgresql://USER@HOST/DATABASE (mysql://…, http://…) it is `tensorprobe ship`.",
    )
    parser.add_argument("directory", help="of a run, with the ranks' directories; or of one rank")
    parser.add_argument("--to", required=True, choices=FORMATS)
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="directory to write to")
    parser.add_argument(
        "--process_num", type=int, default=1, metavar="N", help="processes side by side (1)"
    )
    parser.add_argument(
        "--mapping", metavar="JSON", help="trend: a file with pieces of names and their substitutes"
    )
    parser.add_argument(
        "--micro_step",
        choices=("true", "false"),
        type=str.lower,
        default="true",
        help="trend: whether the step axis counts micro steps through (true)",
    )
    times = "directories of ranks from that time on, like Dec03_21-34-40"
    parser.add_argument("--from", dest="time_start", metavar="TIME", help=times)
    parser.add_argument("--until", dest="time_end", metavar="TIME", help="… and up to that time")
    given = parser.parse_args(arguments)
    try:
        paths = export(
            given.directory,
            given.out,
            given.to,
            mapping=load_mapping(given.mapping),
            micro_step=given.micro_step == "true",
            process_num=given.process_num,
            time_start=given.time_start,
            time_end=given.time_end,
        )
    except (OSError, ValueError, ImportError) as error:
        print(f"tensorprobe export: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
