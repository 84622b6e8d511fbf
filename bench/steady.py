#!/usr/bin/env python3
"""Does watching stay what it was? Memory and step time over a long run with everything on.

    bench/steady.py [--steps 10000] [--ddp]

Trains a small model, watched and not, and prints what the process's memory has grown by since
step 100, and the CPU time of the training thread in a step in the first and in the last tenth
behind it. The two take turns, step by step, so that what else the machine does meets both: how
much longer the watched step takes than the plain one beside it is what may not grow. With --ddp
they train in two processes under DistributedDataParallel, and all that ranks can compare is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import tensorprobe

WARM_UP = 100
EVERYTHING = {
    "ur_distribution": True,
    "mg_direction": True,
    "strict": True,
    "format": ["csv", "tensorboard"],
}


class Net(nn.Module):
    """Small, so that the hooks are most of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = self.head(x)
        return y


OVER_RANKS = {"self_check": True, "replica_check": 10}


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Training:
    """A model, its optimizer, and the CPU time of its steps."""

    def __init__(self, ddp: bool) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = Net()
        if ddp:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.seconds: list[float] = []

    def step(self, session: tensorprobe.Session | None) -> None:
        begin = time.thread_time()
        ids = torch.randint(0, 32, (2, 9))
        logits = self.model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        if session is not None:
            session.log_scalar("loss", loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.thread_time() - begin)


def drift(values: list[float]) -> tuple[float, float]:
    """The medians of the first and of the last tenth behind the warm-up."""
    tenth = max(1, (len(values) - WARM_UP) // 10)
    return statistics.median(values[WARM_UP : WARM_UP + tenth]), statistics.median(values[-tenth:])


def measure(steps: int, ddp: bool = False) -> dict[str, Any]:
    """Run it."""
    torch.set_num_threads(1)
    plain, watched = Training(ddp), Training(ddp)
    config = {**EVERYTHING, **(OVER_RANKS if ddp else {})}
    with tempfile.TemporaryDirectory() as folder:
        session = tensorprobe.watch(
            watched.model, watched.optimizer, output_dir=folder, config=config
        )
        before = peak = 0
        for number in range(steps):
            plain.step(None)
            watched.step(session)
            if number == WARM_UP:
                before = resident()
            if number % 50 == 0:
                peak = max(peak, resident())
        grown = max(peak, resident()) - before
        session.close()
        counters = session.counters()
    return {
        "steps": steps,
        "grown_bytes": grown,
        "plain_us": [1e6 * s for s in drift(plain.seconds)],
        "watched_us": [1e6 * s for s in drift(watched.seconds)],
        "ratio": drift([w / p for w, p in zip(watched.seconds, plain.seconds, strict=True)]),
        "records": counters["records"],
        "gaps": counters["gaps"],
        "errors": counters["errors"],
    }


def measure_ddp(steps: int) -> dict[str, Any]:
    """Run it in two processes; what the first has found."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.environ.get("STEADY_STORE", f"{folder}/store")
        rank = int("STEADY_STORE" in os.environ)
        other = None
        if rank == 0:
            environment = {**os.environ, "STEADY_STORE": store}
            command = [sys.executable, *sys.argv]
            other = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=2
        )
        found = measure(steps, ddp=True)
        distributed.destroy_process_group()
        if other is not None and other.wait() != 0:
            raise SystemExit("the other process has failed")
    return found


def main() -> None:
    """Print the figures, or as JSON for the test."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = (measure_ddp if arguments.ddp else measure)(arguments.steps)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['steps']} steps, {found['records']} records, {found['gaps']} steps given up")
    print(f"memory grown since step {WARM_UP}: {found['grown_bytes'] / 2**20:.2f} MiB")
    for name in ("plain", "watched"):
        first, last = found[f"{name}_us"]
        change = 100 * (last / first - 1)
        print(f"{name:<8} {first:8.0f} → {last:8.0f} µs of the thread a step ({change:+.1f} %)")
    first, last = found["ratio"]
    change = 100 * (last / first - 1)
    print(f"watched beside plain {first:.3f} → {last:.3f} times ({change:+.1f} %)")


if __name__ == "__main__":
    main()
