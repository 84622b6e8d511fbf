"""DistributedDataParallel: torchrun --nproc-per-node 2 examples/frameworks/ddp.py."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import tensorprobe
from common import Model, start, train

rank = start()
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# Gradients of this rank before the average, and after it; and whether all ranks stay the same.
with tensorprobe.watch(model, optimizer, replica_check=10):
    train(model, optimizer, rank)

distributed.destroy_process_group()
