"""accelerate: torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py.

Or accelerate launch --num_processes 2 …, which without GPUs starts one process alone.
"""

import torch
from accelerate import Accelerator
from torch import nn

import tensorprobe

accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)

with tensorprobe.watch(model, optimizer) as monitor:  # gradients are recorded before clipping
    for _ in range(40):
        with accelerator.accumulate(model):
            x = torch.randn(4, 16, device=accelerator.device)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            monitor.log_scalar("loss", loss)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
print(monitor.directory)
