"""Cost of the one pass over a tensor, beside what else could be done with the same memory.

Four ways, measured in turn, round after round, so that a busy moment hits them alike; the table
shows medians of CPU time of this thread:

* pass: tensorprobe's statistics (through `compute_stats`, which builds a dict: that is most of
  the time of a small tensor; a hook does not);
* six ops: what the monitors before it asked torch for, each with its own read: norm and mean in
  f64, min, max, share of zeros, number of NaN;
* vector_norm: torch.linalg.vector_norm alone;
* read: a plain read of as many bytes (libc's memchr for a byte that is not there): the physical
  limit.

Another table does the same for Adam's update and ratio: `compute_adam` with two histograms of 30
bins, torch's expression with two histc, and a plain read of both moments.

    python bench/stats.py [--json] [--dtype f32 bf16 f8 …] [--max-mib 64] [--rounds 11]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from tensorprobe import _core

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "f8": torch.float8_e4m3fn,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
    "c64": torch.complex64,
}
EPS = 1e-8
SAMPLE_NS = 300_000  # calls are repeated until one sample takes about this long

libc = ctypes.CDLL(None)
libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.memchr.restype = ctypes.c_void_p


def six_ops(x: Tensor) -> None:
    if x.dtype in (torch.float8_e4m3fn, torch.complex64):  # torch has no order for these
        x = x.abs() if x.is_complex() else x.float()
    wide = x.double()
    torch.linalg.vector_norm(wide).item()
    wide.mean().item()
    x.min().item()
    x.max().item()
    ((x.abs() < EPS).sum() / x.numel()).item()
    torch.isnan(x).sum().item()


def plain_read(size: int) -> Callable[[], None]:
    memory = torch.full((size,), 0x55, dtype=torch.uint8)
    address = memory.data_ptr()

    def read(keep: Tensor = memory) -> None:
        libc.memchr(address, 0xAA, keep.numel())

    return read


def sample(call: Callable[[], object], repeats: int) -> float:
    """CPU nanoseconds of one call."""
    start = time.thread_time_ns()
    for _ in range(repeats):
        call()
    return (time.thread_time_ns() - start) / repeats


@dataclass
class Row:
    """Medians over the rounds; nanoseconds of CPU time a call."""

    dtype: str
    elements: int
    bytes: int
    kernel: str
    pass_ns: float
    six_ops_ns: float
    vector_norm_ns: float
    read_ns: float
    pass_gb_s: float
    read_gb_s: float
    share_of_read: float
    six_ops_over_pass: float


def measure(name: str, elements: int, rounds: int) -> Row:
    x = torch.randn(elements, generator=torch.Generator().manual_seed(1)).to(DTYPES[name])
    size = elements * x.element_size()
    has_norm = x.is_complex() or (x.is_floating_point() and x.element_size() > 1)
    ways: list[Callable[[], object]] = [
        lambda: _core.compute_stats(x, EPS),
        lambda: six_ops(x),
        lambda: torch.linalg.vector_norm(x if has_norm else x.float()).item(),
        plain_read(size),
    ]
    repeats = []
    for way in ways:
        way()
        repeats.append(max(1, round(SAMPLE_NS / max(1.0, sample(way, 3)))))
    times = [[sample(w, n) for w, n in zip(ways, repeats, strict=True)] for _ in range(rounds)]
    ours, ops, norm, read = (statistics.median(column) for column in zip(*times, strict=True))
    return Row(
        dtype=name,
        elements=elements,
        bytes=size,
        kernel=str(_core.compute_stats(x, EPS)["kernel"]),
        pass_ns=ours,
        six_ops_ns=ops,
        vector_norm_ns=norm,
        read_ns=read,
        pass_gb_s=size / ours,
        read_gb_s=size / read,
        share_of_read=read / ours,
        six_ops_over_pass=ops / ours,
    )


@dataclass
class AdamRow:
    """As Row; of Adam's update and ratio with two histograms."""

    elements: int
    bytes: int
    pass_ns: float
    torch_ns: float
    read_ns: float
    pass_gb_s: float
    share_of_read: float
    torch_over_pass: float


def measure_adam(elements: int, rounds: int) -> AdamRow:
    generator = torch.Generator().manual_seed(1)
    m = torch.randn(elements, generator=generator) * 1e-3
    v = torch.randn(elements, generator=generator).square() * 1e-6
    size = 2 * elements * m.element_size()

    def in_torch() -> None:
        deviation = torch.sqrt(v / (1 - 0.999**50))
        direction = m / (1 - 0.9**50)
        torch.histc(direction / (deviation + EPS), 30, -1, 1)
        torch.histc(direction / deviation, 30, -1, 1)

    ways: list[Callable[[], object]] = [
        lambda: _core.compute_adam(m, v, step=50, histogram=(30, -1, 1)),
        in_torch,
        plain_read(size),
    ]
    repeats = []
    for way in ways:
        way()
        repeats.append(max(1, round(SAMPLE_NS / max(1.0, sample(way, 3)))))
    times = [[sample(w, n) for w, n in zip(ways, repeats, strict=True)] for _ in range(rounds)]
    ours, in_ops, read = (statistics.median(column) for column in zip(*times, strict=True))
    return AdamRow(
        elements=elements,
        bytes=size,
        pass_ns=ours,
        torch_ns=in_ops,
        read_ns=read,
        pass_gb_s=size / ours,
        share_of_read=read / ours,
        torch_over_pass=in_ops / ours,
    )


def show_adam(sizes: list[int], rounds: int, as_json: bool) -> None:
    if not as_json:
        print(
            f"\n{'Adam':5} {'elements':>10} {'pass':>12} {'torch':>13} {'read':>12} "
            f"{'pass GB/s':>9} {'of read':>7} {'torch/pass':>12}"
        )
    for size in sizes:
        row = measure_adam(size // 8, rounds)
        if as_json:
            print(json.dumps(asdict(row)), flush=True)
            continue
        print(
            f"{'f32':5} {row.elements:10} {row.pass_ns / 1e3:9.2f} µs "
            f"{row.torch_ns / 1e3:10.1f} µs "
            f"{row.read_ns / 1e3:9.2f} µs {row.pass_gb_s:9.1f} {row.share_of_read:7.0%} "
            f"{row.torch_over_pass:11.1f}×",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, default=["f32", "bf16", "f16", "f64", "f8"]
    )
    parser.add_argument("--max-mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    sizes = [4 << 10, 64 << 10, 512 << 10, 4 << 20, 64 << 20, 256 << 20]  # bytes
    if not arguments.json:
        print(
            f"{'dtype':5} {'elements':>10} {'kernel':>12} {'pass':>12} {'six ops':>13} "
            f"{'vector_norm':>13} {'read':>12} {'pass GB/s':>9} {'of read':>7} {'six ops/pass':>12}"
        )
    for name in arguments.dtype:
        item = DTYPES[name].itemsize
        counts = [64, 1024]
        counts += [s // item for s in sizes if 1024 * item < s <= arguments.max_mib << 20]
        for elements in counts:
            row = measure(name, elements, arguments.rounds)
            if arguments.json:
                print(json.dumps(asdict(row)), flush=True)
                continue
            print(
                f"{name:5} {elements:10} {row.kernel:>12} {row.pass_ns / 1e3:9.2f} µs "
                f"{row.six_ops_ns / 1e3:10.1f} µs {row.vector_norm_ns / 1e3:10.2f} µs "
                f"{row.read_ns / 1e3:9.2f} µs {row.pass_gb_s:9.1f} {row.share_of_read:7.0%} "
                f"{row.six_ops_over_pass:11.0f}×",
                flush=True,
            )
    show_adam([s for s in sizes if s <= arguments.max_mib << 20], arguments.rounds, arguments.json)


if __name__ == "__main__":
    main()
