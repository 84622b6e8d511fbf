"""The training of test_full_disk.py: in the middle the disk is full, and then there is room again.

full_disk_child.py OUT HOW: HOW is "disk" (a file fills the file system that OUT is in, which is
small), "limit" (no file may grow: RLIMIT_FSIZE) or "never". Prints what came of it as JSON.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tensorprobe

STEPS, FULL_FROM, FULL_UNTIL = 60, 20, 40
SMALL = 16 << 20
# A few steps may wait in memory.
JOURNAL = {"wait_ms": 5, "budget_bytes": 20_000}
FORMATS = ["csv", "tensorboard", "sqlite"]


def fill(out: Path) -> Callable[[], None]:
    """Leave no room; returns what makes room again."""
    ballast = out / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while file.tell() < SMALL:
                    file.write(b"x" * size)
            except OSError:
                pass
        assert file.tell() < SMALL, "the file system is not small"
    return ballast.unlink


def limit(_: Path) -> Callable[[], None]:
    """No file may grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def settle(monitor: tensorprobe.Session) -> None:
    """Wait until nothing waits: a machine that is busy loses no step here."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        counters = monitor.counters()
        done = counters["followed_steps"] + counters["gaps"]
        if counters["journaled_steps"] == done == counters["steps"]:  # the journal has gaps, too
            return
        time.sleep(0.001)


def main() -> None:
    out, how = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    config = {"format": FORMATS, "step_count_per_record": 10, "journal": JOURNAL}
    monitor = None
    if how != "never":
        monitor = tensorprobe.watch(model, optimizer, config, output_dir=out)
    make_room: Callable[[], None] | None = None
    for step in range(STEPS):
        if step == FULL_FROM and how != "never":
            make_room = {"disk": fill, "limit": limit}[how](out)
        if step == FULL_UNTIL and monitor is not None and make_room is not None:
            make_room()
            settle(monitor)
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        if monitor is not None and not FULL_FROM <= step < FULL_UNTIL:
            settle(monitor)
    digest = hashlib.sha256()
    for tensor in (*model.parameters(), torch.get_rng_state()):
        digest.update(tensor.detach().numpy().tobytes())
    result: dict[str, object] = {"digest": digest.hexdigest()}
    if monitor is not None:
        monitor.close()
        result |= {"directory": monitor.directory, "gaps": monitor.counters()["gaps"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
