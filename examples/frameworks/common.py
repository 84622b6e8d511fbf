"""A small language model on made-up text, for the examples beside this file."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed, nn

VOCAB, HIDDEN, TOKENS, STEPS = 64, 64, 32, 20


class Block(nn.Module):
    """Attention, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.proj = nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> Any:
        """Return a tensor of the same shape."""
        batch, tokens, _ = x.shape
        h = self.norm1(x)
        q, k, v = (
            layer(h).view(batch, tokens, -1, 16).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Model(nn.Module):
    """Predicts the next token."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB)

    def forward(self, ids: torch.Tensor) -> Any:
        """Return the logits of each token's successor."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def start() -> int:
    """Join the processes that torchrun has started; return this one's rank."""
    torch.set_num_threads(1)
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return distributed.get_rank()


def loss_of(model: nn.Module, step: int, rank: int) -> Any:
    """Return the loss of one batch of this rank's."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    start_of = torch.randint(VOCAB, (8, 1), generator=generator)
    ids = (start_of + torch.arange(TOKENS + 1) * 3) % VOCAB
    ids = ids.to(next(model.parameters()).device)
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Train, as one would without a monitor."""
    for step in range(STEPS):
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 and distributed.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
