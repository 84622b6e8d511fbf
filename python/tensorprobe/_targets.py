"""Which modules and parameters a configuration speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def select_modules(
    model: torch.nn.Module, config: dict[str, Any]
) -> list[tuple[str, torch.nn.Module]]:
    """Names and modules whose activations are recorded; a module used twice appears once."""
    if not config["xy_distribution"]:
        return []
    if config["all_xy"]:
        return list(model.named_modules())
    wanted = set(config["targets"])
    return [(name, module) for name, module in model.named_modules() if name in wanted]


def has_prefix(name: str, prefix: str) -> bool:
    """Whether the parameter lies below prefix: the same name, or the border is a dot."""
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


def select_parameters(
    model: torch.nn.Module, targets: Iterable[str]
) -> list[tuple[str, torch.nn.Parameter]]:
    """Names and trainable parameters below one of the targets; a tied one appears once."""
    prefixes = list(targets)
    return [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and any(has_prefix(name, prefix) for prefix in prefixes)
    ]
