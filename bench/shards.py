#!/usr/bin/env python3
"""How much memory watching a sharded model takes, in every layout: bench/shards.py [LAYOUT …].

A model of some hundred MiB is trained on the CPU in two processes, unwatched and then watched
(gradients before and after the reduction, weights, moments, Adam's update). Prints how far the peak
of resident memory grew by watching, and by as many steps before; the exit status is 1 where it
grew by 1 % of the parameters' bytes and 64 MiB or more. Large pieces of memory are given back at
once, so that what the allocator keeps doesn't blur it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

import tensorprobe

WORLD, STEPS, TOKENS, VOCABULARY = 2, 4, 8, 64
RANKS = Path(__file__).parents[1] / "tests" / "python" / "ranks"
EVERYTHING = {"ur_distribution": True, "mg_direction": True}


class Training(NamedTuple):
    """What is watched, and one step of it."""

    model: Any
    optimizer: Any
    step: Callable[[], None]
    parameter_bytes: int


def blocks(hidden: int, layers: int) -> Any:
    """Layers whose largest matrix is a small part of all."""
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden))
            for _ in range(layers)
        )
    )


def bytes_of(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def plain(model: Any, hidden: int, size: int) -> Training:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        model(torch.ones(2, hidden)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, optimizer, step, size)


def torch_layout(kind: str, hidden: int, layers: int) -> Training:
    """DDP, FSDP and tensor parallelism."""
    from torch.distributed.device_mesh import init_device_mesh

    model = blocks(hidden, layers)
    size = bytes_of(model)
    block = type(model[0])
    mesh = init_device_mesh("cpu", (WORLD,))
    if kind.startswith("ddp"):
        view = kind == "ddp_view"
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    elif kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({block}),
            device_id=torch.device("cpu"),
            use_orig_params=kind == "fsdp1_orig",
        )
    elif kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for one in model:
            fully_shard(one, mesh=mesh)
        model = fully_shard(model, mesh=mesh)
    else:
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        for one in model:
            parallelize_module(one, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    return plain(model, hidden, size)


def deepspeed_layout(kind: str, hidden: int, layers: int) -> Training:
    """ZeRO 0 to 3, in halves, with the optimizer on the CPU."""
    import deepspeed

    comm: Any = sys.modules["deepspeed.comm.torch"]
    comm.build_shm_op = lambda: None
    deepspeed.logger.setLevel("ERROR")
    accelerator = type(deepspeed.accelerator.get_accelerator())
    accelerator.is_fp16_supported = lambda _: True  # as torch computes with it on CPUs
    _, stage, *rest = kind.split("_")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": int(stage)},
    }
    if "offload" in rest:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    for name in {"fp16", "bf16"}.intersection(rest):
        config[name] = {"enabled": True}
    if "bf16" in rest and stage == "1":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    model = blocks(hidden, layers)
    size = bytes_of(model)
    base = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=base, config=config)
    x = torch.ones(2, hidden)
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        if name in rest:
            x, size = x.to(dtype), size // 2

    def step() -> None:
        engine.backward(engine(x).float().square().mean())
        engine.step()

    return Training(engine, engine.optimizer, step, size)


def megatron_layout(kind: str, hidden: int, layers: int) -> Training:
    """A GPT, over data and tensor parallel processes, with either optimizer."""
    sys.path.insert(0, str(RANKS))
    import megatron_cpu

    megatron_cpu.patch()
    import megatron_ranks

    megatron_ranks.WIDTH, megatron_ranks.VOCABULARY = hidden, VOCABULARY
    megatron_ranks.LENGTH = TOKENS
    tp = 2 if "tp" in kind else 1
    dtype = next((one for one in ("bf16", "fp16") if one in kind), "f32")
    layout = megatron_ranks.Layout(
        tp=tp, sequence=tp > 1, dtype=dtype, distributed="distributed" in kind, layers=layers
    )
    bare, wrapped, optimizer = layout.build(lambda _: None)
    size = bytes_of(bare[0])
    ids = torch.zeros(2, TOKENS, dtype=torch.long)

    def step() -> None:
        layout.forward_backward(wrapped, optimizer, [(ids, ids)] * 2)
        optimizer.step()

    return Training(wrapped, optimizer, step, size)


LAYOUTS: dict[str, Callable[[str, int, int], Training]] = {
    **dict.fromkeys("ddp ddp_view fsdp1_orig fsdp1_flat fsdp2 tp".split(), torch_layout),
    **dict.fromkeys(
        "zero_0 zero_0_fp16 zero_1 zero_1_bf16 zero_2 zero_2_offload zero_2_fp16 zero_3 "
        "zero_3_offload zero_3_bf16".split(),
        deepspeed_layout,
    ),
    **dict.fromkeys(
        "megatron_f32 megatron_fp16 megatron_distributed megatron_bf16_distributed "
        "megatron_tp".split(),
        megatron_layout,
    ),
}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rank(layout: str, hidden: int, layers: int, folder: str) -> None:
    """One of the processes: prints what it has found."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    number = int(os.environ["RANK"])
    distributed.init_process_group("gloo", init_method=store, rank=number, world_size=WORLD)
    torch.manual_seed(1)
    training = LAYOUTS[layout](layout, hidden, layers)

    def train() -> None:
        for _ in range(STEPS):
            training.step()

    train()
    earlier = peak()
    train()
    before = peak()
    config: Any = {"xy_distribution": False, "format": "api", **EVERYTHING}
    with tensorprobe.watch(
        training.model, training.optimizer, output_dir=folder, **config
    ) as session:
        train()
        counters = session.counters()
    found = {
        "parameters": training.parameter_bytes,
        "peak": before,
        "earlier": before - earlier,
        "grown": peak() - before,
        "records": counters["records"],
        "errors": counters["errors"],
    }
    distributed.barrier()
    print(json.dumps(found), flush=True)
    os._exit(0)  # frameworks leave threads behind


def measure(layout: str, hidden: int, layers: int) -> list[dict[str, Any]]:
    """Start the processes of a layout; what each has found."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": "131072",
            "MALLOC_TRIM_THRESHOLD_": "131072",
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(WORLD),
            "LOCAL_WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "DS_ACCELERATOR": "cpu",
            "LOCAL_SIZE": str(WORLD),  # else DeepSpeed asks numactl
        }
        command = [sys.executable, __file__, layout, "--hidden", str(hidden)]
        command += ["--layers", str(layers), "--folder", folder]
        processes = [
            subprocess.Popen(
                command,
                env={**environment, "RANK": str(one), "LOCAL_RANK": str(one)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for one in range(WORLD)
        ]
        said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{layout} has failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def main() -> None:
    """Print a line for each layout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=", ".join(LAYOUTS))
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = [name for name in given.layouts if name not in LAYOUTS]
    if unknown:
        parser.error(f"no layout {unknown[0]!r}; there are {', '.join(LAYOUTS)}")
    if given.folder:
        rank(given.layouts[0], given.hidden, given.layers, given.folder)
        return
    exceeded = False
    print(f"{'layout':<26} parameters   peak before  grown before      watched   bound  records")
    for layout in given.layouts or LAYOUTS:
        for found in measure(layout, given.hidden, given.layers):
            bound = found["parameters"] // 100 + (64 << 20)
            exceeded = exceeded or found["grown"] >= bound or found["errors"] > 0
            sizes = [found[name] / 2**20 for name in ("parameters", "peak", "earlier", "grown")]
            print(
                f"{layout:<26} {sizes[0]:6.0f} MiB   {sizes[1]:7.0f} MiB   {sizes[2]:7.1f} MiB  "
                f"{sizes[3]:7.1f} MiB {bound / 2**20:5.0f}  {found['records']:7}",
                flush=True,
            )
    raise SystemExit(exceeded)


if __name__ == "__main__":
    main()
