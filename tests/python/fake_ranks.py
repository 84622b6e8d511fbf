"""Four ranks one after the other, in a process group that passes nothing on: what they call.

A script: its argument is where each case has a folder with the ranks' journals.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from collectives_parts import watched

dist: Any = torch.distributed


def common(rank: int) -> None:
    """What all ranks do alike, in two steps."""
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(2, 3), 1)
    dist.all_gather_into_tensor(torch.empty(8), torch.ones(2))
    # Sizes that differ from rank to rank, as with experts.
    sizes = [1 + rank, 1, 1, 1]
    dist.all_to_all_single(torch.empty(sum(sizes)), torch.empty(sum(sizes)), sizes, sizes)


def agree(rank: int) -> None:
    common(rank)
    if rank < 2:
        call = (dist.send, dist.recv)[rank]
        call(torch.ones(5), 1 - rank)


def shape(rank: int) -> None:
    common(rank)
    dist.all_reduce(torch.ones(7 if rank == 2 else 6))
    common(rank)


def dtype(rank: int) -> None:
    common(rank)
    dist.all_reduce(torch.ones(6, dtype=torch.float64 if rank == 1 else torch.float32))


def root(rank: int) -> None:
    common(rank)
    dist.broadcast(torch.ones(1), 3 if rank == 0 else 2)


def operation(rank: int) -> None:
    common(rank)
    dist.all_reduce(torch.ones(6)) if rank == 3 else dist.barrier()


def missing(rank: int) -> None:
    common(rank)
    if rank != 3:
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(8))


def pair(rank: int) -> None:
    common(rank)
    if rank == 0:
        dist.send(torch.ones(5), 2)
    if rank == 2:
        dist.recv(torch.ones(3), 0)


CASES = (agree, shape, dtype, root, operation, missing, pair)


def main() -> None:
    """Run every case on every rank."""
    for case in CASES:
        for rank in range(4):
            dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
            with watched(sys.argv[1], case.__name__) as monitor:
                case(rank)
                monitor.step()
                if case is not missing:
                    common(rank)
                monitor.step()
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
