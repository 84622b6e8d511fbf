"""The training process of test_kill.py: a small model watched with everything on."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import torch
from torch import nn

import tensorprobe


class Odd(nn.Module):
    """Passes its input on; its second output has NaN, both infinities and a zero."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 1.0, torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 32)
        self.odd = Odd()
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.odd(torch.tanh(self.fc1(x)))
        out: torch.Tensor = self.fc2(hidden)
        return out


def train(output_dir: str, steps: int, finished: Connection | None) -> str:
    """Trains; sends the run's directory, then of each step its number - 0.5 when its forward has
    returned, and its number when its optimizer.step() has. The same seeds give the same values in
    every process. Returns the run's directory."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tensorprobe.watch(model, optimizer, output_dir=output_dir) as monitor:
        if finished is not None:
            finished.send(str(monitor.directory))
        for step in range(steps):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if finished is not None:
                finished.send(step - 0.5)
            loss.backward()
            optimizer.step()
            if finished is not None:
                finished.send(step)
        return str(monitor.directory)


def child(output_dir: str, finished: Connection) -> None:
    """Trains until it is killed."""
    os.environ["TENSORPROBE_LOG_LEVEL"] = "4"
    train(output_dir, 1_000_000, finished)
