"""FullyShardedDataParallel (FSDP1): torchrun --nproc-per-node 2 examples/frameworks/fsdp1.py."""

import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import tensorprobe
from common import Block, Model, start, train

rank = start()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = FullyShardedDataParallel(
    Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, use_orig_params=True
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# Each rank records the pieces that it has of parameters, under the parameters' own names.
with tensorprobe.watch(model, optimizer):
    train(model, optimizer, rank)

distributed.destroy_process_group()
