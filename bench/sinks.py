#!/usr/bin/env python3
"""What does a record cost beyond its statistics, and how fast are the files written?

    bench/sinks.py BUILD [--series 100000] [--steps 20] [--long 1000]

BUILD is the folder of a build, as build/release. CPU times. torch's SummaryWriter and Python's csv
module write the same numbers in turn with ours; the best of three is taken of each. The black box
is compared with memory in turn, and the smaller of three taken as well. A small transformer tells
how many bytes a record of a real run takes. ``--long`` so many steps tell whether memory stays what
it was, and how long it takes to open what they left: in files of some 2 GB for 1,000 steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow
import torch
from torch.utils.tensorboard import SummaryWriter

import tensorprobe

ROUNDS = 3
QUIET = {**os.environ, "TENSORPROBE_LOG_LEVEL": "3"}
NO_BOX = {"TENSORPROBE_JOURNAL_DIR": "/proc"}  # no place for a black box: memory instead
NUMBERS = 6


def run_in(folder: str, program: Path, *arguments: object, **more: str) -> dict[str, float]:
    words = [str(program), str(arguments[0]), folder, *map(str, arguments[1:])]
    done = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env={**QUIET, **more}
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def run(program: Path, *arguments: object, **more: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return run_in(folder, program, *arguments, **more)


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


class Block(torch.nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        result: torch.Tensor = x + self.mlp(self.norms[1](x))
        return result


def real_run(dtype: torch.dtype, steps: int = 200) -> tuple[float, float]:
    """Train a small transformer, everything watched; bytes a record in the journal, records."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 64), *(Block(64) for _ in range(4)), torch.nn.Linear(64, 256)
    ).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        with tensorprobe.watch(model, optimizer, output_dir=folder, format="api") as monitor:
            for _ in range(steps):
                ids = torch.randint(256, (4, 33))
                loss = torch.nn.functional.cross_entropy(
                    model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten()
                )
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        size = sum(path.stat().st_size for path in Path(monitor.directory, "journal").iterdir())
        records = pyarrow.table(tensorprobe.open(folder).steps())["count"].to_pylist()
    return size / sum(records), sum(records)


def opening(folder: str) -> None:
    """How long until Arrow tables of a long run are there."""
    runs = tensorprobe.open(folder)
    for what, table in {
        "overview of all series": runs.overview(),
        "overview of a hundred": runs.overview("layers.7.*"),
        "every value of a step": runs.series(steps=500),
    }.items():
        begin = time.process_time()
        rows = pyarrow.table(table).num_rows
        print(f"opening      {time.process_time() - begin:.2f} s, {what}: {rows:,} rows")


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
    for what, config, more in (
        ("journal", {"format": "api", "alert": {"rules": []}}, {}),
        ("- black box", {"format": "api", "alert": {"rules": []}}, NO_BOX),
        ("+ rules", {"format": "api"}, {}),
        ("+ csv", {"format": "csv"}, {}),
        ("+ tensorboard", {"format": ["csv", "tensorboard"]}, {}),
    ):
        rounds = [run(program, "monitor", *size, json.dumps(config), **more) for _ in range(ROUNDS)]
        cost = min(rounds, key=lambda one: one["beyond_ns"])
        print(
            f"{what:13}{cost['beyond_ns']:6.0f} ns a record in the training beyond the "
            f"{cost['statistics_ns']:.0f} ns of its statistics; writer {cost['writer_ns']:.0f} ns; "
            f"{cost['bytes']:.1f} bytes in the journal; {cost['gaps']:.0f} gaps"
        )
    for dtype in (torch.float32, torch.bfloat16):
        size_of_one, records = real_run(dtype)
        print(
            f"a real run   {size_of_one:.1f} bytes a record, names included, {dtype}: {records:,}"
        )
    if options.long > 0:
        with tempfile.TemporaryDirectory() as folder:
            cost = run_in(
                folder, program, "monitor", options.series, options.long, '{"format": "api"}'
            )
            print(
                f"memory       {cost['early_mib']:.0f} MiB at most in the fourth tenth of "
                f"{options.long} steps, {cost['late_mib']:.0f} in the last; {cost['gaps']:.0f} gaps"
            )
            opening(folder)


if __name__ == "__main__":
    main()
