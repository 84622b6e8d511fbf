"""Loops that clip gradients before the optimizer's step: what hears of it, just before.

torch's ``clip_grad_norm_``, ``clip_grad_value_`` and ``clip_grads_with_norm_`` sort the gradients
by one function of their module, whatever name the loop has for them; FullyShardedDataParallel has
a method of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe._frameworks._patch import Listener, listen

if TYPE_CHECKING:
    import torch


def before_clipping(clips: Callable[[Callable[[torch.Tensor], bool]], None]) -> list[Listener]:
    """Have it called with a question: is this gradient one of those that are clipped now?"""

    def sorts(lists: Sequence[Sequence[Any]], *_: Any, **__: Any) -> None:
        own = {id(one) for one in lists[0]}
        clips(lambda gradient: id(gradient) in own)

    def method(module: torch.nn.Module, *_: Any, **__: Any) -> None:
        own = {id(parameter.grad) for parameter in module.parameters()}
        clips(lambda gradient: id(gradient) in own)

    handles = []
    module = sys.modules.get("torch.nn.utils.clip_grad")
    if hasattr(module, "_group_tensors_by_device_and_dtype"):
        handles.append(listen(module, "_group_tensors_by_device_and_dtype", before=sorts))
    sharded = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if sharded is not None:
        owner = sharded.FullyShardedDataParallel
        handles.append(listen(owner, "clip_grad_norm_", before=method))
    return handles
