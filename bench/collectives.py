"""What watching a collective costs, beside the call's own time.

    python bench/collectives.py [calls]

Two processes of gloo on this machine call all_reduce, by turns without and with the monitor, on
1 KiB and on 16 MiB. The call's own time is that without; the cost is the difference of the medians,
and what the process spends in its own thread (CPU time), which is steadier than the clock on the
wall.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed

import tensorprobe

dist: Any = torch.distributed

SIZES = (("1 KiB", 1 << 10), ("16 MiB", 1 << 24))
ROUNDS = 5


def measure(x: torch.Tensor, calls: int) -> tuple[float, float]:
    """Microseconds a call: on the wall, and of this thread's processor."""
    dist.barrier()
    wall, own = time.perf_counter(), time.thread_time()
    for _ in range(calls):
        dist.all_reduce(x)
    return (
        (time.perf_counter() - wall) / calls * 1e6,
        (time.thread_time() - own) / calls * 1e6,
    )


def watched(out: str, **options: bool) -> Any:
    """Collectives and nothing else."""
    model = torch.nn.Linear(2, 2)
    config: dict[str, Any] = {"format": "api", "journal": {"wait_ms": 0}}
    config |= {f"{name}_distribution": False for name in ("xy", "wg", "param", "mv")}
    config["cc_distribution"] = {"enable": True, **options}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return tensorprobe.watch(model, optimizer, config, output_dir=out)


def rank_main(rank: int, store: str, out: str, calls: int) -> None:
    """One of the two processes; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    for name, size in SIZES:
        x = torch.zeros(size // 4)
        many = calls if size < 1 << 20 else max(calls // 50, 4)
        measure(x, many)
        results: dict[str, list[tuple[float, float]]] = {"without": [], "post": [], "pre+post": []}
        for _ in range(ROUNDS):
            results["without"].append(measure(x, many))
            for kind in ("post", "pre+post"):
                with watched(out, cc_pre_hook=kind != "post") as monitor:
                    dist.all_reduce(x)
                    monitor.step()  # the first step walks stacks for the log
                    monitor._collectives.before_step()
                    results[kind].append(measure(x, many))
                    monitor.step()
        if rank == 0:
            report(name, results)
    dist.destroy_process_group()


def report(name: str, results: dict[str, list[tuple[float, float]]]) -> None:
    """One line for each way of watching."""
    walls = {kind: statistics.median(wall for wall, _ in r) for kind, r in results.items()}
    owns = {kind: statistics.median(own for _, own in r) for kind, r in results.items()}
    for kind in ("post", "pre+post"):
        wall, own = walls[kind] - walls["without"], owns[kind] - owns["without"]
        print(
            f"all_reduce {name:>6}: {walls['without']:10.1f} us without, {kind:>8}: "
            f"{wall:+9.1f} us on the wall, {own:+9.1f} us of the thread's processor",
            flush=True,
        )


def main() -> None:
    """Start both and wait."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(Path(__file__).resolve())]
        environment = {**os.environ, "TENSORPROBE_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [*script, "--rank", str(rank), f"{folder}/store", folder, str(calls)],
                env=environment,
            )
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        rank_main(int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        main()
