"""fully_shard (FSDP2): torchrun --nproc-per-node 2 examples/frameworks/fsdp.py."""

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tensorprobe
from common import Model, start, train

rank = start()
mesh = init_device_mesh(
    "cuda" if torch.cuda.is_available() else "cpu", (distributed.get_world_size(),)
)
model = Model()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# Each rank records its shards. `tensorprobe show --merge monitor_output` puts them together.
with tensorprobe.watch(model, optimizer):
    train(model, optimizer, rank)

distributed.destroy_process_group()
