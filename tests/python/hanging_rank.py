"""One of two ranks, of which the second never comes: killed by test_diff_ranks.py."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from collectives_parts import watched

dist: Any = torch.distributed


def main() -> None:
    """Arguments: rank, file of the store, folder for what comes out."""
    rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    monitor = watched(out, "hang")
    dist.all_reduce(torch.ones(2))
    monitor.step()
    dist.all_reduce(torch.ones(3))
    if rank == 0:
        work = dist.all_reduce(torch.ones(5), async_op=True)
        Path(out, "ready0").touch()
        work.wait()
    monitor.log_scalar("loss", 0.5)
    Path(out, "ready1").touch()
    signal.pause()


if __name__ == "__main__":
    main()
