"""Lightning: python examples/frameworks/lightning_trainer.py, which starts its processes itself."""

from typing import Any

import lightning
import torch
from torch import nn

from tensorprobe.lightning_callback import TensorProbeCallback


class Net(lightning.LightningModule):
    """Adds numbers up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))

    def training_step(self, x: torch.Tensor, _: int) -> Any:
        """Return the loss of a batch."""
        loss: Any = (self.layers(x) - x.sum(1, keepdim=True)).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    watching = TensorProbeCallback()  # takes what watch() takes, but for model and optimizer
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=20,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[watching],
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(640, 16), batch_size=4))
    if watching.session is not None:
        print(watching.session.directory)
