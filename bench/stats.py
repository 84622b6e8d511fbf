"""Cost of the one pass over a tensor, beside what else could be done with the same memory.

Everything is measured in turn, round after round, in CPU time of one thread, so that a busy moment
hits all alike; what is printed are medians, ratios as medians of each round's ratio:

* read: a plain read of the same bytes, nothing but loads and prefetches: the limit;
* pass: tensorprobe's statistics, all seventeen fields, called from C: there is no faster kernel for
  fewer of them; "+ all" is the same with histogram, exponents and hash;
* avx2: the same with AVX2 where the machine has more;
* six ops: what the monitors before it asked torch for, each with its own read: norm and mean in
  f64, min, max, share of zeros, number of NaN;
* 2 threads: in wall time, and so is the one thread that it is compared with in the goals;
* NumKong: its `moments` and its `minmax`, two reads for four of the fields.

Another table does the same for Adam's update and ratio: `compute_adam` with two histograms of 30
bins, torch's expression with two histc, and a plain read of both moments.

Then the goals, each with what was found. Needs a build with the tests (`make build`).

    python bench/stats.py [--json] [--dtype f32 bf16 f8 …] [--max-mib 1024] [--rounds 9]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numkong
import torch
from torch import Tensor

from tensorprobe import _core

ROOT = Path(__file__).parents[1]
BUILD = Path(os.environ.get("TP_BUILD_DIR", ROOT / "build" / "release"))
LIBRARY = BUILD / "tests" / "kernels" / "libkernels_bench.so"

EPS = 1e-8
SAMPLE_NS = 300_000  # calls are repeated until one sample takes about this long
COLUMNS = ["read", "pass", "+ all", "avx2", "2 wall", "six ops", "numkong"]
ADAM_COLUMNS = ["read", "pass", "torch"]
SCALAR, AVX2, AVX512, NEON = range(4)
ISA = {"scalar": SCALAR, "avx2": AVX2, "avx512": AVX512, "neon": NEON}


@dataclass(frozen=True)
class Kind:
    dtype: torch.dtype
    number: int  # TP_F64 … of tensorprobe/tensor.h
    numkong: str | None = None
    integer: torch.dtype | None = None  # how NumPy is given what it has no type for


KINDS = {
    "f32": Kind(torch.float32, 2, "float32"),
    "bf16": Kind(torch.bfloat16, 4, "bfloat16", torch.uint16),
    "f16": Kind(torch.float16, 3, "float16"),
    "f64": Kind(torch.float64, 1, "float64"),
    "f8": Kind(torch.float8_e4m3fn, 5, "e4m3", torch.uint8),
    "i8": Kind(torch.int8, 11, "int8"),
    "i32": Kind(torch.int32, 13),
    "i64": Kind(torch.int64, 14),
    "c64": Kind(torch.complex64, 20),
}


def load_library() -> ctypes.CDLL:
    if not LIBRARY.exists():
        raise SystemExit(f"{LIBRARY} is missing: run `make build` first")
    library = ctypes.CDLL(str(LIBRARY))
    pointer, i64, u32, u64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
    library.tp_bench_stats.argtypes = [pointer, i64, u32, ctypes.c_int, ctypes.c_int, u64]
    library.tp_bench_call.argtypes = [pointer, i64, u32, u64]
    library.tp_bench_threads.argtypes = [pointer, i64, u32, u32, u64]
    library.tp_bench_read.argtypes = [pointer, u64, u64]
    for name in ("stats", "call", "threads", "read"):
        getattr(library, f"tp_bench_{name}").restype = u64
    return library


def six_ops(x: Tensor) -> None:
    if x.dtype == torch.float8_e4m3fn or x.is_complex():  # torch has no order for these
        x = x.abs() if x.is_complex() else x.float()
    wide = x.double()
    torch.linalg.vector_norm(wide).item()
    wide.mean().item()
    x.min().item()
    x.max().item()
    ((x.abs() < EPS).sum() / x.numel()).item()
    torch.isnan(x).sum().item()


def python_loop(call: Callable[[], object]) -> Callable[[int], float]:
    def run(repeats: int) -> float:
        start = time.thread_time_ns()
        for _ in range(repeats):
            call()
        return time.thread_time_ns() - start

    return run


def numkong_calls(x: Tensor, kind: Kind) -> Callable[[], object]:
    array: Any = (x if kind.integer is None else x.view(kind.integer)).numpy()
    name: Any = kind.numkong

    def call() -> None:
        numkong.moments(array, dtype=name)
        numkong.minmax(array, dtype=name)

    return call


@dataclass
class Row:
    """Nanoseconds of CPU time a call; ratios over the pass."""

    dtype: str
    elements: int
    bytes: int
    times: dict[str, float]
    ratios: dict[str, float]

    def of_read(self, way: str) -> float:
        return self.ratios["read"] / self.ratios[way]

    def gb_s(self, way: str) -> float:
        return self.bytes / self.times[way]


def in_turn(ways: dict[str, Callable[[int], float]], rounds: int) -> list[dict[str, float]]:
    """Nanoseconds a call of every way, a round each. Slow ways take part in fewer rounds."""
    repeats, every = {}, {}
    for name, way in ways.items():
        way(1)
        once = max(1.0, way(1))
        repeats[name] = max(1, round(SAMPLE_NS / once))
        every[name] = 1 if once < 2e8 or name in ("read", "pass") else 3
    return [
        {n: w(repeats[n]) / repeats[n] for n, w in ways.items() if turn % every[n] == 0}
        for turn in range(rounds)
    ]


def measure(library: ctypes.CDLL, name: str, x: Tensor, rounds: int) -> Row:
    kind, size, n = KINDS[name], x.numel() * x.element_size(), x.numel()
    address = x.data_ptr()
    best = ISA[_core.isa]

    def native(isa: int, extras: int = 0) -> Callable[[int], float]:
        return lambda k: library.tp_bench_stats(address, n, kind.number, isa, extras, k)

    def threaded(threads: int) -> Callable[[int], float]:
        return lambda k: library.tp_bench_threads(address, n, kind.number, threads, k)

    ways: dict[str, Callable[[int], float]] = {
        "read": lambda k: library.tp_bench_read(address, size, k),
        "pass": native(best),
    }
    if best == AVX512:
        ways["avx2"] = native(AVX2)
    if name in ("f32", "bf16"):
        ways["1 wall"], ways["2 wall"] = threaded(1), threaded(2)
    if size <= 64 << 20:
        ways["+ all"] = native(best, 7)
        ways["six ops"] = python_loop(lambda: six_ops(x))
    if kind.numkong is not None and size >= 16 << 10:
        ways["numkong"] = python_loop(numkong_calls(x, kind))
    return row_of(name, n, size, ways, rounds)


def row_of(
    name: str, elements: int, size: int, ways: dict[str, Callable[[int], float]], rounds: int
) -> Row:
    """Measure; the pass itself takes part in every round."""
    samples = in_turn(ways, rounds)
    times = {w: statistics.median(s[w] for s in samples if w in s) for w in ways}
    ratios = {w: statistics.median(s[w] / s["pass"] for s in samples if w in s) for w in ways}
    return Row(name, elements, size, times, ratios)


def measure_adam(library: ctypes.CDLL, size: int, rounds: int) -> Row:
    moments = torch.randn(size // 4, generator=torch.Generator().manual_seed(1))
    m, v = moments.chunk(2)
    m.mul_(1e-3)
    v.square_().mul_(1e-6)

    def in_torch() -> None:
        deviation = torch.sqrt(v / (1 - 0.999**50))
        direction = m / (1 - 0.9**50)
        torch.histc(direction / (deviation + EPS), 30, -1, 1)
        torch.histc(direction / deviation, 30, -1, 1)

    ways: dict[str, Callable[[int], float]] = {
        "read": lambda k: library.tp_bench_read(moments.data_ptr(), size, k),
        "pass": python_loop(lambda: _core.compute_adam(m, v, step=50, histogram=(30, -1, 1))),
        "torch": python_loop(in_torch),
    }
    return row_of("Adam", len(m), size, ways, rounds)


@dataclass
class Goal:
    text: str
    at_least: bool
    goal: float
    unit: str = ""

    def line(self, found: float) -> str:
        met = found >= self.goal if self.at_least else found <= self.goal
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if met else "missed"
        return f"{self.text:58} {sign} {self.goal:6g} {found:8.2f} {self.unit:5} {verdict}"


def label(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def goals(rows: list[Row]) -> None:
    """Print every goal for which there is a row."""
    kib, mib = 1 << 10, 1 << 20
    reads = {("f32", 4 * mib): 0.9, ("f32", 64 * mib): 0.85, ("f32", 1024 * mib): 0.9}
    reads |= {("bf16", 64 * mib): 0.6, ("bf16", 1024 * mib): 0.8}
    for row in rows:
        what = f"{row.dtype} {label(row.bytes)}"
        if (row.dtype, row.bytes) in reads:
            goal = Goal(f"{what}: share of a plain read", True, reads[row.dtype, row.bytes])
            print(goal.line(row.of_read("pass")))
        if row.dtype == "Adam":
            print(Goal(f"{what}: share of a plain read", True, 0.5).line(row.of_read("pass")))
            goal = Goal(f"{what}: torch's expression over the pass", True, 10, "times")
            print(goal.line(row.ratios["torch"]))
        if row.dtype == "f32" and row.bytes in (4 * kib, 256 * kib):
            print(Goal(f"{what}: from cache", True, 30, "GB/s").line(row.gb_s("pass")))
        if row.dtype == "f8" and row.bytes >= 256 * kib:
            print(Goal(f"{what}: speed", True, 5, "GB/s").line(row.gb_s("pass")))
        if row.dtype in ("f32", "bf16") and "six ops" in row.ratios:
            times = 100 if row.dtype == "bf16" or row.elements < mib else 50
            if row.elements == 4096 or row.elements >= mib:
                goal = Goal(f"{what}: six operations in torch over the pass", True, times, "times")
                print(goal.line(row.ratios["six ops"]))
        if row.dtype == "f32" and "numkong" in row.ratios and row.bytes >= 256 * kib:
            over = 1.4 if row.bytes <= mib else 1.8
            goal = Goal(f"{what}: NumKong's moments + minmax over the pass", True, over, "times")
            print(goal.line(row.ratios["numkong"]))
        if "2 wall" in row.ratios:
            goal = Goal(f"{what}: 2 threads, speed over one (1 less noise)", True, 0.97, "times")
            print(goal.line(row.ratios["1 wall"] / row.ratios["2 wall"]))
        if row.dtype in ("f32", "bf16") and "avx2" in row.ratios and row.bytes >= 64 * mib:
            goal = Goal(f"{what}: AVX2, share of AVX-512's speed", True, 0.8)
            print(goal.line(1.0 / row.ratios["avx2"]))


def heading(columns: list[str]) -> None:
    print(f"{'':5} {'bytes':>8}" + "".join(f"{c:>16}" for c in columns))


def show(row: Row, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(row)), flush=True)
        return
    columns = ADAM_COLUMNS if row.dtype == "Adam" else COLUMNS
    cells = [
        f"{row.gb_s(c):9.2f} ({row.of_read(c):4.0%})" if c in row.times else "" for c in columns
    ]
    print(f"{row.dtype:5} {label(row.bytes):>8}" + "".join(f"{c:>16}" for c in cells), flush=True)


def sizes_of(name: str, most: int) -> list[int]:
    """Elements: the five sizes, and 4 Ki and 1 Mi elements, from where the six ops count."""
    item = KINDS[name].dtype.itemsize
    sizes = {s // item for s in (4 << 10, 256 << 10, 4 << 20, 64 << 20, 1 << 30)} | {4096, 1 << 20}
    return sorted(n for n in sizes if n * item <= most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line, no goals")
    parser.add_argument(
        "--dtype", nargs="+", choices=KINDS, default=["f32", "bf16", "f16", "f64", "f8"]
    )
    parser.add_argument("--max-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    library = load_library()
    memory = torch.empty(arguments.max_mib << 20, dtype=torch.uint8)

    if not arguments.json:
        print("GB/s of " + _core.isa + "; in brackets the share of a plain read's speed")
        heading(COLUMNS)
    rows = []
    for name in arguments.dtype:
        kind = KINDS[name]
        block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
        for elements in sizes_of(name, arguments.max_mib << 20):
            x = memory[: elements * kind.dtype.itemsize].view(kind.dtype)
            for at in range(0, elements, len(block)):
                x[at : at + len(block)].copy_(block[: elements - at])
            rows.append(measure(library, name, x, arguments.rounds))
            show(rows[-1], arguments.json)
    if not arguments.json:
        heading(ADAM_COLUMNS)
    for size in (64 << 10, 4 << 20, 64 << 20):
        if size <= arguments.max_mib << 20:
            rows.append(measure_adam(library, size, arguments.rounds))
            show(rows[-1], arguments.json)
    if arguments.json:
        return
    print("\ngoals")
    goals(rows)
    few = torch.randn(64)
    call = min(
        library.tp_bench_call(few.data_ptr(), 64, 2, 100_000) / 100_000
        for _ in range(arguments.rounds)
    )
    print(Goal("a call from C, 64 f32 elements", False, 60, "ns").line(call))


if __name__ == "__main__":
    main()
