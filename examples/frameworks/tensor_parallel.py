"""Tensor parallelism: torchrun --nproc-per-node 2 examples/frameworks/tensor_parallel.py."""

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tensorprobe
from common import Model, start, train

start()
mesh = init_device_mesh(
    "cuda" if torch.cuda.is_available() else "cpu", (distributed.get_world_size(),)
)
model = Model()
for block in model.blocks:
    columns = {name: ColwiseParallel() for name in ("q", "k", "v", "fc1")}
    rows = {name: RowwiseParallel() for name in ("proj", "fc2")}
    parallelize_module(block, mesh, {**columns, **rows})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

# Each rank records its columns or rows, and the parameters that all have.
with tensorprobe.watch(model, optimizer):
    train(model, optimizer, rank=0)  # all ranks see the same batches

distributed.destroy_process_group()
