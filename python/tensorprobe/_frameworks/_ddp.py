"""DistributedDataParallel: every process has all of the model, and gradients are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe._frameworks import Adapter, Handle, Row, Span, on_accumulated
from tensorprobe._frameworks._living import instances
from tensorprobe._frameworks._spans import span_of
from tensorprobe._ranks import reduces_gradients

if TYPE_CHECKING:
    import torch

    from tensorprobe import _core


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of a model that is wrapped by it."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = len(chunks) == 1 and isinstance(chunks[0], DistributedDataParallel)
    return Ddp(chunks[0], "module") if wrapped else None


def around(chunks: Sequence[torch.nn.Module]) -> Adapter | None:
    """Return the adapter of a model that some wrapper, which isn't watched itself, is around."""
    from torch.nn.parallel import DistributedDataParallel

    if len(chunks) != 1 or not reduces_gradients():
        return None
    found = [ddp for ddp in instances(DistributedDataParallel) if ddp.module is chunks[0]]
    return Ddp(found[-1], "") if found else None


class Ddp(Adapter):
    """The gradient after backward() is the average; what was there before goes to the buckets."""

    framework = "DistributedDataParallel"
    reduces = True

    def __init__(self, ddp: Any, prefix: str) -> None:
        self._ddp = ddp
        self._prefix = prefix  # of names in what is watched

    def original(self, name: str) -> str:
        """Return the name in the module that was wrapped."""
        return "" if name == self._prefix else name.removeprefix(f"{self._prefix}.")

    def span(self, row: Row) -> Span | None:
        """Return the whole, which each process of the group has (of a DTensor its part)."""
        from torch.distributed import get_rank, get_world_size

        group = self._ddp.process_group
        return span_of(row.parameter, get_world_size(group), get_rank(group))

    def local_span(self, row: Row) -> Span | None:
        """Return the same part: but no other process has this gradient."""
        return span_of(row.parameter)

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Read .grad when it holds the local sum, before the reducer takes it."""
        hook.reducer = (self._ddp, "require_backward_grad_sync")
        return on_accumulated(hook, rows)

    @property
    def group(self) -> Any:
        """The processes among which gradients are averaged."""
        return self._ddp.process_group
