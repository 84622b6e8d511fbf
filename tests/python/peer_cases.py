"""Small trainings whose csv files are compared with those of an ancestor, cell by cell.

Models in float64 whose weights and inputs come from a formula, so that every machine, and both
tools, see the same numbers. scripts/peer_fixtures.py runs them with the ancestor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

OPS = ["norm", "min", "max", "mean", "zeros", "nans", "shape", "dtype"]
EVERYTHING = {
    "xy_distribution": True,
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
}


def wave(*shape: int, phase: float = 0.0) -> Tensor:
    """Numbers of both signs, no two of them alike, and one of them zero."""
    count = torch.Size(shape).numel()
    numbers = torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + phase)
    numbers[count // 2] = 0.0
    return numbers.reshape(shape)


class Layer(nn.Module):
    """Takes a mask that may be missing and a number; returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        y = self.act(self.linear(x)) * scale
        if mask is not None:
            y = y * mask
        return y, y.sum(0)


class Net(nn.Module):
    """Layers in the names and with the arguments that the ancestors' users have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 4, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        x, extra = self.layers[0](x, None, 2.0)
        x, _ = self.layers[1](x + extra, mask=torch.ones(4, dtype=torch.float64))
        y: Tensor = self.norm(x)
        return y


class Twice(nn.Module):
    """Calls one module twice, and another one only in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.shared = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        x = self.shared(self.shared(self.first(x)).tanh())
        y: Tensor = x + self.sometimes(x) if self.forwards == 1 else x
        return y


class Tokens(nn.Module):
    """Integers in, a dict in the middle, a frozen weight; an evaluation runs before each step."""

    class Middle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"y": self.up(x)}

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.middle = Tokens.Middle()
        self.down = nn.Linear(4, 4)
        self.embedding.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        ids = (x.detach() * 3.99).abs().long()
        y: Tensor = self.down(self.middle(self.embedding(ids)[:, 0])["y"])
        return y


class InPlace(nn.Sequential):
    """An activation in place, of a two-dimensional output."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))


class Scale(nn.Module):
    """One multiplication and one addition, each of which rounds as IEEE 754 says."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = nn.Parameter(torch.empty(4))
        self.bias = nn.Parameter(torch.empty(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(self.dtype) * self.weight.to(self.dtype)
        return y + self.bias.to(self.dtype)


class Dtypes(nn.Sequential):
    """Activations of other types than float64."""

    def __init__(self) -> None:
        super().__init__(Scale(torch.float32), Scale(torch.bfloat16), Scale(torch.float16))


class Chunks(nn.Sequential):
    """Two chunks of a virtual pipeline."""

    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))


class Wrapped(nn.Module):
    """Its names get shorter by squash_name."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Module()
        self.module.encoder = nn.Module()
        self.module.encoder.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.module.encoder.final_layernorm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        encoder = self.module.encoder
        for layer in encoder.layers:  # type: ignore[union-attr]
            x = layer(x).tanh()
        y: Tensor = encoder.final_layernorm(x)  # type: ignore[operator, union-attr]
        return y


@dataclass(frozen=True)
class Case:
    """One training. The configuration gets csv and 17 digits."""

    config: dict[str, Any]
    model: Callable[[], nn.Module] = Net
    steps: int = 3
    micro_steps: int = 1
    start_iteration: int = 0
    optimizer: Callable[..., torch.optim.Optimizer] = field(default=torch.optim.AdamW)
    evaluate: bool = False

    def watched_part(self, model: nn.Module) -> Any:
        """What ``set_monitor`` gets."""
        return list(model.children()) if self.model is Chunks else model

    def full_config(self) -> dict[str, Any]:
        return {"format": "csv", "ndigits": 17, "ops": OPS, "targets": {}, **self.config}

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = self.model().double()
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(wave(*parameter.shape, phase=float(number)))
        return model, self.optimizer(model.parameters(), lr=0.01)

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(self.steps):
            if self.evaluate:
                model.eval()(wave(2, 4))
                model.train()
            optimizer.zero_grad()
            for micro in range(self.micro_steps):
                x = wave(2, 4, phase=10.0 * step + micro).requires_grad_()
                (model(x) * wave(2, 4, phase=0.5)).sum().backward()
            optimizer.step()


CASES = {
    "everything": Case(EVERYTHING),
    "activations": Case({"xy_distribution": True, "all_xy": True, "ops": ["mean", "norm"]}),
    "forward_only": Case({"xy_distribution": True, "forward_only": True}, steps=1),
    "backward_only": Case({"xy_distribution": True, "backward_only": True}, steps=1),
    "gradients": Case({"wg_distribution": True, "ops": ["norm"]}, optimizer=torch.optim.SGD),
    "targets": Case(
        {**EVERYTHING, "targets": {"embedding": {}, "layers.1": {}, "layers.0.linear": {}}}
    ),
    "accumulation": Case(EVERYTHING, micro_steps=3, steps=2),
    "twice": Case(EVERYTHING, model=Twice, steps=2),
    "squash": Case({**EVERYTHING, "squash_name": True}, model=Wrapped, steps=2),
    "direction": Case({"mg_direction": True, "mv_distribution": True}),
    "chunks": Case({**EVERYTHING, "eps": 0.3, "ops": ["zeros", "norm"]}, model=Chunks, steps=2),
    "inplace": Case(EVERYTHING, model=InPlace, steps=1),
    "dtypes": Case({"xy_distribution": True, "wg_distribution": True}, model=Dtypes, steps=1),
    "tokens": Case(
        {**EVERYTHING, "all_xy": True}, model=Tokens, steps=2, micro_steps=2, evaluate=True
    ),
    "windows": Case(
        {"wg_distribution": True, "step_count_per_record": 2, "start_step": 1, "step_interval": 2},
        steps=7,
        start_iteration=2,
    ),
    "times": Case({"wg_distribution": True, "collect_times": 2, "ops": []}, steps=4),
}
