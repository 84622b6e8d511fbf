"""How much memory watching a sharded model takes: torchrun --nproc-per-node 2 bench/shards.py.

A model of some hundred MiB under fully_shard or FullyShardedDataParallel, trained on the CPU in two
processes, unwatched and then watched (gradients before and after the reduction, weights, moments).
Prints how far the peak of resident memory grew by watching, and by as many steps before. Large
pieces of memory are given back at once, so that what the allocator keeps doesn't blur it.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from typing import Any

import torch
from torch import distributed, nn

import tensorprobe

STEPS = 4


def build(layout: str, hidden: int, layers: int) -> Any:
    blocks = [
        nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden))
        for _ in range(layers)
    ]
    model: Any = nn.Sequential(*blocks)
    if layout == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if layout == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(blocks[0])}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(model: nn.Module, optimizer: torch.optim.Optimizer, hidden: int) -> None:
    for _ in range(STEPS):
        model(torch.ones(2, hidden)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=("ddp", "fsdp1", "fsdp2"), default="fsdp2")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    model = build(given.layout, given.hidden, given.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    total = given.layers * (8 * given.hidden**2 + 5 * given.hidden) * 4
    for _ in range(3):
        train(model, optimizer, given.hidden)
    earlier = peak()
    for _ in range(3):
        train(model, optimizer, given.hidden)
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        config = {"xy_distribution": False, "format": "api"}
        with tensorprobe.watch(model, optimizer, config, output_dir=folder) as session:
            for _ in range(3):
                train(model, optimizer, given.hidden)
            records = session.counters()["records"]
    grown = peak() - before
    distributed.barrier()
    print(
        f"{given.layout}: rank {distributed.get_rank()} of {distributed.get_world_size()}: "
        f"parameters {total / 2**20:.0f} MiB, peak {before / 2**20:.0f} MiB, which had grown by "
        f"{(before - earlier) / 2**20:.1f} MiB in as many steps before, grown by "
        f"{grown / 2**20:.1f} MiB ({100 * grown / total:.2f} % of the parameters), "
        f"{records} records",
        flush=True,
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.environ.update(MALLOC_MMAP_THRESHOLD_="131072", MALLOC_TRIM_THRESHOLD_="131072")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
