"""Ranks that record different things: one leaves out what the budget doesn't allow, one zooms.

Each layout is trained without a monitor and with one; one rank alone sees an incident.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tensorprobe

STEPS, LARGE = 40, 20
RANK = int(os.environ["RANK"])
CONFIG: dict[str, Any] = {
    "format": "api",
    "budget": "1us",
    "zoom": {"steps": 3, "tensors": True},
    "alert": {
        "rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1000, "targets": ["re:0$"]}}]
    },
}


def build(layout: str) -> torch.nn.Module:
    torch.manual_seed(1)
    parts = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)]
    model = torch.nn.Sequential(*parts)
    if layout == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model[2], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    return DistributedDataParallel(model)


def train(layout: str, fields: dict[str, Any] | None) -> tuple[list[float], str]:
    model = build(layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watched = tensorprobe.watch(model, optimizer, **fields) if fields is not None else None
    generator = torch.Generator().manual_seed(RANK)
    for step in range(STEPS):
        x = torch.randn(4, 6, generator=generator)
        if step == LARGE and RANK == 1:
            x[0, 0] = 1e6
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        while watched and watched.counters()["journaled_steps"] < watched.step_number:
            pass
    state: list[torch.Tensor] = [p.detach() for p in model.parameters()]
    for values in optimizer.state.values():
        state += [values["exp_avg"], values["exp_avg_sq"]]
    flat = [one.to_local() if hasattr(one, "to_local") else one for one in state]
    numbers = torch.cat([*(one.flatten() for one in flat), torch.rand(3)]).tolist()
    if watched is None:
        return numbers, ""
    watched.close()
    return numbers, watched.directory


def main() -> None:
    out, layouts = Path(sys.argv[1]), sys.argv[2:]
    world = int(os.environ["WORLD_SIZE"])
    where = f"file://{out.resolve()}/store"
    dist.init_process_group("gloo", init_method=where, rank=RANK, world_size=world)
    for layout in layouts:
        kind, check = layout.split("_")
        bare, _ = train(kind, None)
        fields = {**CONFIG, "self_check": check == "checked", "output_dir": out / layout}
        with_monitor, directory = train(kind, fields)
        found = {"same": bare == with_monitor, "directory": directory}
        (out / f"{layout}.{RANK}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
