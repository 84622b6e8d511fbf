#!/usr/bin/env python3
"""What does a record cost beyond its statistics, and how fast are the files written?

    bench/sinks.py BUILD [--series 100000] [--steps 20] [--long 1000]

BUILD is the folder of a build, as build/release. CPU times. torch's SummaryWriter and Python's csv
module write the same numbers in turn with ours; the better of three is taken of each. ``--long``
so many steps tell whether memory stays what it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

ROUNDS = 3
NUMBERS = 6


def run(program: Path, *arguments: object) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        words = [str(program), str(arguments[0]), folder, *map(str, arguments[1:])]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def best(function: Any, *arguments: object) -> dict[str, float]:
    rounds = [function(*arguments) for _ in range(ROUNDS)]
    return max(rounds, key=lambda result: float(result["rows_per_s"]))


def python_csv(rows: int) -> dict[str, float]:
    values = [0.1 + i / 7 for i in range(NUMBERS)]
    with tempfile.TemporaryDirectory() as folder, Path(folder, "x.csv").open("w") as file:
        writer = csv.writer(file)
        begin = time.process_time()
        for row in range(rows):
            writer.writerow([0, "layers.0.mlp.linear1.weight", row, *values])
        return {"rows_per_s": rows / (time.process_time() - begin)}


def summary_writer(scalars: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)
        begin = time.process_time()
        for number in range(scalars):
            tag = f"0:layers.{number % 1000}.weight/rank0/post_grad_norm"
            writer.add_scalar(tag, 0.5, number // 1000)
        writer.close()
        return {"rows_per_s": scalars / (time.process_time() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--long", type=int, default=0)
    options = parser.parse_args()
    program = options.build.resolve() / "tests" / "unit" / "bench_sinks"
    size = (options.series, options.steps)
    print(f"{options.series} series a step, {options.steps} steps")
    ours = {sink: best(run, program, sink, *size) for sink in ("csv", "tensorboard", "sqlite")}
    theirs = best(python_csv, 200_000)["rows_per_s"]
    rate = ours["csv"]["rows_per_s"]
    print(f"csv          {rate:12,.0f} rows/s of six numbers; Python's csv writer {theirs:,.0f}")
    theirs = best(summary_writer, 20_000)["rows_per_s"]
    rate = ours["tensorboard"]["rows_per_s"] * NUMBERS
    print(
        f"tensorboard  {rate:12,.0f} scalars/s; torch's SummaryWriter {theirs:,.0f}: "
        f"{rate / theirs:.0f} times as many"
    )
    print(f"sqlite       {ours['sqlite']['rows_per_s']:12,.0f} rows/s of all statistics")
    for what, config in {
        "journal": {"format": "api", "alert": {"rules": []}},
        "+ rules": {"format": "api"},
        "+ csv": {"format": "csv"},
        "+ tensorboard": {"format": ["csv", "tensorboard"]},
    }.items():
        cost = run(program, "monitor", *size, json.dumps(config))
        print(
            f"{what:13}{cost['beyond_ns']:6.0f} ns a record in the training beyond the "
            f"{cost['statistics_ns']:.0f} ns of its statistics; writer {cost['writer_ns']:.0f} ns; "
            f"{cost['bytes']:.1f} bytes in the journal; {cost['gaps']:.0f} gaps"
        )
    if options.long > 0:
        cost = run(program, "monitor", options.series, options.long, '{"format": "api"}')
        print(
            f"memory       {cost['early_mib']:.0f} MiB after a tenth of the steps, "
            f"{cost['late_mib']:.0f} after {options.long}"
        )


if __name__ == "__main__":
    main()
