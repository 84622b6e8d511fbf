"""The two models of the value test and the bit test, and the training loop that both run."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"
sys.path.insert(0, str(DEMO))

from model import GPT  # noqa: E402

# Small tensors gain nothing from threads, and lose a lot when they wait for a busy core.
torch.set_num_threads(1)

VOCABULARY = 61
LENGTH = 12
STEPS = 20
SEED = 20240229


class GLU(nn.Module):
    """Gated MLP whose activation, unless told otherwise, overwrites the gate's output."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.act = activation
        self.down = nn.Linear(2 * width, width, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.down(self.act(self.gate(x)) * self.up(x)))
        return y


class Attention(nn.Module):
    """Causal attention of one head that returns what it attended to beside its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(1, 2) * x.shape[-1] ** -0.5 + mask, dim=-1)
        return self.out(scores @ v), scores


class LlamaBlock(nn.Module):
    """RMSNorm, attention, RMSNorm, gated MLP, with residuals around both halves."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width)
        self.attn = Attention(width)
        self.norm2 = nn.RMSNorm(width)
        self.mlp = GLU(width, activation)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed, _ = self.attn(self.norm1(x), mask=mask)
        x = x + mixed
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Llama(nn.Module):
    """A small Llama with what makes watching hard.

    A block that is called twice, activations in place, an embedding tied to the head, keyword
    arguments, a side with two tensors, and a dictionary as result.
    """

    def __init__(self, in_place: bool = True) -> None:
        super().__init__()
        width = 24
        self.embed = nn.Embedding(VOCABULARY, width)
        self.first = LlamaBlock(width, nn.ReLU(inplace=in_place))
        self.shared = LlamaBlock(width, nn.SiLU(inplace=in_place))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=width**-0.5)

    def forward(self, ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        length = ids.shape[1]
        mask = torch.full((length, length), -1e9).triu(1)
        x = self.first(self.embed(ids), mask)
        for _ in range(2):
            x = self.shared(x, mask)
        logits = self.head(self.norm(x))
        return {
            "logits": logits,
            "loss": functional.cross_entropy(logits.flatten(0, 1), targets.flatten()),
        }


def small_gpt() -> GPT:
    return GPT(VOCABULARY, LENGTH, layers=2, width=32, heads=2)


@dataclass(frozen=True)
class Setting:
    """One of the runs that are compared: which model, which optimizer, how many micro steps."""

    model: str
    optimizer: str

    @property
    def micro_steps(self) -> int:
        return 2 if self.model == "llama" else 1

    def build(self, in_place: bool = True) -> nn.Module:
        return Llama(in_place) if self.model == "llama" else small_gpt()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        options: dict[str, Any] = {"adamw": {}, "foreach": {"foreach": True}}.get(
            self.optimizer, {"fused": True}
        )
        return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the loss of one micro step, as it enters backward()."""
        ids, targets = batch
        if self.model == "llama":
            loss: Tensor = model(ids, targets=targets)["loss"]
        else:
            loss = functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        return loss / self.micro_steps


SETTINGS = [
    Setting(model, optimizer)
    for model in ("gpt", "llama")
    for optimizer in ("adamw", "foreach", "fused", "sgd")
]


@dataclass
class Outcome:
    """Everything that a training leaves behind and that watching it must not change."""

    tensors: dict[str, Tensor]
    random_states: dict[str, Any]


def draw_batch() -> tuple[Tensor, Tensor]:
    """Draw a batch that depends on all three random generators."""
    rows = random.randint(2, 4)
    ids = torch.from_numpy(np.random.randint(0, VOCABULARY, (rows, LENGTH + 1)))
    ids = (ids + torch.randint(0, 2, ids.shape)) % VOCABULARY
    return ids[:, :-1], ids[:, 1:]


Watcher = Callable[
    [nn.Module, torch.optim.Optimizer],
    contextlib.AbstractContextManager[Callable[[tuple[Tensor, Tensor]], None] | None],
]


def train(setting: Setting, watcher: Watcher | None = None, steps: int = STEPS) -> Outcome:
    """Train from the same start.

    watcher(model, optimizer) is entered around the loop, and what it yields is called with every
    training batch before the model is.
    """
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    model = setting.build().train()
    optimizer = setting.build_optimizer(model)
    with watcher(model, optimizer) if watcher else contextlib.nullcontext() as before_batch:
        for step in range(steps):
            for _ in range(setting.micro_steps):
                batch = draw_batch()
                if before_batch:
                    before_batch(batch)
                setting.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 2:  # a validation in between must leave no trace
                model.eval()
                with torch.no_grad():
                    setting.loss(model, draw_batch())
                model.train()
    tensors = {f"parameter {name}": p.detach().clone() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"state {name} {key}"] = torch.as_tensor(value).clone()
    algorithm, keys, *rest = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": (algorithm, np.asarray(keys).tolist(), *rest),
    }
    return Outcome(tensors, states)
