"""accelerate: wraps optimizers, and clips gradients between backward() and step()."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _frameworks
from tensorprobe._frameworks import Adapter, Handle
from tensorprobe._frameworks._living import chain, kind
from tensorprobe._frameworks._patch import listen
from tensorprobe._ranks import reduces_gradients

if TYPE_CHECKING:
    import torch

    from tensorprobe import _core


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of what is inside, if it is accelerate's optimizer."""
    of = kind("accelerate.optimizer", "AcceleratedOptimizer")
    if of is None or not isinstance(optimizer, of):
        return None
    inner = chain(optimizer)[-1]
    found = _frameworks.find(chunks, inner)
    if found is None:
        found = Adapter()
        found.reduces = reduces_gradients()
    found.early = functools.partial(_before_clipping, optimizer, inner)
    return found


def _before_clipping(optimizer: Any, inner: Any, hook: _core.OptimizerHook) -> list[Handle]:
    """Take gradients as the accelerator begins to clip them, once all micro steps are there."""

    def before(accelerator: Any, *_: Any, **__: Any) -> None:
        own = any(one is optimizer for one in accelerator._optimizers)
        # A scaler divides them first, and says so.
        if own and accelerator.sync_gradients and accelerator.scaler is None:
            hook.unscaled(inner)

    of = kind("accelerate.accelerator", "Accelerator")
    names = ("clip_grad_norm_", "clip_grad_value_")
    return [listen(of, name, before=before) for name in names if hasattr(of, name)]
