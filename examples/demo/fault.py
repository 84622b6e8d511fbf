"""Breaks a model on purpose. Knows nothing of the monitor that has to find the break."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import nn

FAULTS = ("nan", "spike", "dead", "none")
SPIKE_FACTOR = 1000.0


@dataclass(frozen=True)
class Fault:
    """What is broken, where, and before which training step."""

    kind: str
    module: str
    step: int

    def __str__(self) -> str:
        what = {
            "nan": f"NaN written into {self.module}.weight",
            "spike": f"{self.module}.weight multiplied by {SPIKE_FACTOR:g}",
            "dead": f"weight and bias of {self.module} set to zero",
        }
        return f"{what[self.kind]} before step {self.step}"


def candidates(model: nn.Module) -> list[str]:
    """List the names of the modules that own parameters."""
    return [
        name
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]


def draw(kind: str, model: nn.Module, seed: int, first: int, last: int) -> Fault:
    """Draw the fault of this seed: a random module, a random step from first to last."""
    chance = random.Random(seed)
    return Fault(kind, chance.choice(candidates(model)), chance.randint(first, last))


@torch.no_grad()
def inject(fault: Fault, model: nn.Module) -> None:
    """Break the model in place, as a flipped bit or a bad kernel would."""
    module = model.get_submodule(fault.module)
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    if fault.kind == "nan":
        if isinstance(module, nn.Embedding):
            weight.fill_(float("nan"))  # any single row may be absent from the next batch
        else:
            chance = random.Random(str(fault))
            weight.view(-1)[chance.randrange(weight.numel())] = float("nan")
    elif fault.kind == "spike":
        weight.mul_(SPIKE_FACTOR)
    elif fault.kind == "dead":
        for parameter in module.parameters(recurse=False):
            parameter.zero_()
    else:
        raise ValueError(f"no such fault: {fault.kind}")
