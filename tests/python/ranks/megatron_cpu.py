"""What has to be replaced so that Megatron-core runs on a machine without a GPU: call patch()."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")


class _Stream:
    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def record_event(self, *_: Any) -> _Stream:
        return self

    def synchronize(self) -> None: ...


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device", "cpu")
        if str(device).startswith("cuda") or isinstance(device, int):
            kwargs["device"] = CPU
        return function(*args, **kwargs)

    return call


def patch() -> None:
    """Have Megatron-core take the CPU for a GPU."""
    # Before torch.cuda is changed: torch._dynamo refuses one object under two of torch's names.
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    torch._dynamo.config.disable = True
    for name in "empty zeros ones full tensor arange rand randn empty_like zeros_like".split():
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    kind = torch.Tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = kind(self, *args, **kwargs)  # optimizers compare with torch.cuda.FloatTensor
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found

    def nothing() -> Callable[..., None]:
        return lambda *_, **__: None  # each time another: torch._dynamo knows functions by names

    def norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        made = torch.nn.LayerNorm(hidden_size, eps=eps)  # its own refuses sequence_parallel
        for p in made.parameters():
            setattr(p, "sequence_parallel", config.sequence_parallel)  # noqa: B010
        return made

    cuda: Any = torch.cuda
    for owner, attribute, value in (
        (torch.Tensor, "type", type_),
        (torch.Tensor, "cuda", lambda self, *_, **__: self),
        (torch.nn.Module, "cuda", lambda self, *_, **__: self),
        (WrappedTorchNorm, "__new__", norm),
        (moe_utils, "te_general_gemm", None),  # without Transformer Engine it has no such name
        (random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
        (random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
        (cuda, "current_device", lambda: CPU),
        (cuda, "manual_seed", lambda seed: torch.manual_seed(seed)),
        (cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state()),
        (cuda, "current_stream", lambda *_, **__: _Stream()),
        (cuda, "default_stream", lambda *_, **__: _Stream()),
        (cuda, "Stream", lambda *_, **__: _Stream()),
        (cuda, "stream", lambda *_, **__: contextlib.nullcontext()),
        *((cuda, name, nothing()) for name in "set_device synchronize empty_cache".split()),
        (cuda, "ipc_collect", nothing()),
    ):
        setattr(owner, attribute, value)
