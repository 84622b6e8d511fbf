"""DeepSpeed, ZeRO 2: torchrun --nproc-per-node 2 examples/frameworks/deepspeed_zero.py.

Without a GPU: with DS_ACCELERATOR=cpu in the environment.
"""

import deepspeed
import torch
from torch import nn

import tensorprobe

config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2},
}
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

# ZeRO 2 reduces each micro step for itself: so this is how a rank's own gradients are seen.
with tensorprobe.watch(engine, engine.optimizer, monitor_mbs_grad=True) as monitor:
    for _ in range(20):
        x = torch.randn(4, 16, device=engine.device)
        loss = (engine(x) - x.sum(1, keepdim=True)).square().mean()
        monitor.log_scalar("loss", loss.detach())
        engine.backward(loss)
        engine.step()
print(monitor.directory)
