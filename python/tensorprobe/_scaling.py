"""Gradient scalers, which torch gives no hooks: their methods are wrapped while a session needs it.

A scaler multiplies the loss, divides the gradients, and leaves the optimizer's step out when it
finds an infinity. All of it has to be known: the gradients are recorded when they have been
divided, and a step that is left out is a step.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tensorprobe._core import OptimizerHook


@dataclass(frozen=True)
class _Listener:
    hook: OptimizerHook
    optimizer: weakref.ref[torch.optim.Optimizer] | None


_listeners: list[_Listener] = []
_wrapped: list[tuple[type, str, Any, Any]] = []  # class, name, the original, our wrapper


def inner_optimizer(optimizer: Any) -> torch.optim.Optimizer | None:
    """The torch optimizer itself, or the one inside of its wrappers; None: there is none."""
    from torch.optim import Optimizer

    inner = optimizer
    for _ in range(8):  # wrappers in wrappers; one may name itself
        if isinstance(inner, Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
            return inner
        inner = getattr(inner, "optimizer", None)
    return None


def _hooks_of(optimizer: Any) -> list[OptimizerHook]:
    return [one.hook for one in _listeners if one.optimizer is None or one.optimizer() is optimizer]


def _scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            for one in _listeners:
                one.hook.scaled()
        return original(scaler, *args, **kwargs)

    return scale


def _unscale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def unscale_(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scaler, optimizer, *args, **kwargs)
        if scaler.is_enabled():
            inner = inner_optimizer(optimizer) or optimizer
            for hook in _hooks_of(inner):
                hook.unscaled(inner)
        return result

    return unscale_


def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        inner = inner_optimizer(optimizer) or optimizer
        hooks = _hooks_of(inner)
        for hook in hooks:
            hook.scaler_begin(inner, getattr(scaler, "_scale", None))
        failed = True
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            failed = False
        finally:
            for hook in hooks:
                hook.scaler_end(inner, failed)
        return result

    return step


def _classes() -> list[type]:
    """Every kind of scaler that has been imported."""
    found: list[type] = []
    for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
        scaler = getattr(sys.modules.get(name), "GradScaler", None)
        if scaler is not None and scaler not in found:
            found.append(scaler)
    for scaler in found:  # which grows on the way
        below: list[type] = scaler.__subclasses__()
        for derived in below:
            if derived not in found:
                found.append(derived)
    return found


def listen(hook: OptimizerHook, optimizer: torch.optim.Optimizer | None) -> None:
    """Tell the hook what scalers do with its optimizer, until ``forget``. None: with any."""
    _listeners.append(_Listener(hook, None if optimizer is None else weakref.ref(optimizer)))
    for scaler in _classes():
        for name, wrap in (("scale", _scale), ("unscale_", _unscale), ("step", _step)):
            own = scaler.__dict__.get(name)
            if own is not None and not any(own is wrapper for *_, wrapper in _wrapped):
                wrapper = wrap(own)
                setattr(scaler, name, wrapper)
                _wrapped.append((scaler, name, own, wrapper))


def forget(hook: OptimizerHook) -> None:
    """Tell it no longer. With the last one the scalers get their own methods back."""
    _listeners[:] = [one for one in _listeners if one.hook is not hook]
    if _listeners:
        return
    for scaler, name, own, wrapper in _wrapped:
        if scaler.__dict__.get(name) is wrapper:  # else somebody has wrapped it again
            setattr(scaler, name, own)
    _wrapped.clear()
