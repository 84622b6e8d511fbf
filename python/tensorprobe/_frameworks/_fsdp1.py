"""FullyShardedDataParallel: many parameters in a flat one, of which each process has a range."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._frameworks import Adapter, Handle, Part, Row, Span
from tensorprobe._frameworks._patch import listen

if TYPE_CHECKING:
    import torch

_RUNTIME = "torch.distributed.fsdp._runtime_utils"
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of models some part of which is wrapped so."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    modules = (module for chunk in chunks for module in chunk.modules())
    if any(isinstance(module, FullyShardedDataParallel) for module in modules):
        return FullySharded(chunks, optimizer)
    return None


@dataclass(frozen=True)
class _Place:
    """Where an original parameter is in its flat parameter."""

    handle: Any
    number: int
    """Of the parameter in the flat one."""
    begin: int
    """Of its elements in the whole flat parameter."""
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        result = 1
        for size in self.shape:
            result *= size
        return result

    @property
    def shard(self) -> Any:
        return self.handle.flat_param._shard_param_infos[self.number]

    def cut(self, flat: torch.Tensor | None) -> torch.Tensor | None:
        """The parameter's own range of a tensor that is laid out as this process's shard."""
        shard = self.shard
        if flat is None or not shard.in_shard:
            return None
        return flat[shard.offset_in_shard : shard.offset_in_shard + shard.numel_in_shard]


class FullySharded(Adapter):
    """The optimizer has ranges of parameters, as 1-D pieces, or flat parameters as they are."""

    framework = "FullyShardedDataParallel"
    reduces = True
    locates = True

    def __init__(self, chunks: Sequence[torch.nn.Module], optimizer: Any) -> None:
        from torch.distributed.fsdp._traversal_utils import _get_fsdp_states

        states = [state for chunk in chunks for state in _get_fsdp_states(chunk)]
        self._handles = [state._handle for state in states if state._handle is not None]
        self._states = {id(state._handle): state for state in states}
        names = {id(m): self.original(n) for chunk in chunks for n, m in chunk.named_modules()}
        self._places: dict[str, _Place] = {}
        self._names: dict[int, list[str]] = {}  # id of a flat parameter → those in it
        for handle in self._handles:
            own = dict(_places_in(handle, names))
            self._places.update(own)
            self._names[id(handle.flat_param)] = list(own)

    def original(self, name: str) -> str:
        """Return the name without its wrappers."""
        return ".".join(part for part in name.split(".") if part not in _WRAPPERS)

    def expand(
        self, name: str, parameter: torch.nn.Parameter
    ) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters in a flat one, if the optimizer has that."""
        inside = self._names.get(id(parameter))
        return (
            [(self.original(name), parameter)]
            if inside is None
            else [(one, parameter) for one in inside]
        )

    def place(self, row: Row) -> Any:
        """Return where in the flat parameter it is."""
        place = self._places.get(row.original)
        return None if place is None else place.begin

    def span(self, row: Row) -> Span | None:
        """Return the range of the parameter's elements that this process has."""
        place = self._places.get(row.original)
        if place is None:
            return Span("whole", (), 0)  # not sharded, and who has it isn't known
        from torch.distributed import get_rank, get_world_size

        handle, shard = place.handle, place.shard
        if not handle.uses_sharded_strategy:
            group = handle.process_group
            return Span("whole", (), get_world_size(group), get_rank(group))
        if not shard.in_shard:
            return None
        copies, copy = self._replicas(handle)
        if shard.numel_in_shard == place.numel:
            return Span("whole", (), copies, copy)
        ranges = ((shard.intra_param_start_idx, shard.numel_in_shard, place.numel),)
        return Span("flat", ranges, copies, copy)

    def _replicas(self, handle: Any) -> tuple[int, int]:
        """How many processes have the same shard, and which of them this is."""
        from torch.distributed import get_rank, get_world_size

        if not handle._sharding_strategy.name.startswith("HYBRID"):
            return 1, 0
        between = getattr(self._states.get(id(handle)), "_inter_node_pg", None)
        return (0, 0) if between is None else (get_world_size(between), get_rank(between))

    def local_span(self, row: Row) -> Span | None:
        """Return the whole, which the reduction cuts."""
        return Span("whole")

    def locate(self, rows: Sequence[Row], after: bool) -> list[Part | None]:
        """Return pieces of parameters, or ranges of the flat ones."""
        optimizers = [self.optimizer] if self.optimizer is not None else []
        groups = {
            id(p): (one.state, group)
            for one in optimizers
            for group in one.param_groups
            for p in group["params"]
        }
        return [self._part(row, *groups.get(id(row.parameter), ({}, None))) for row in rows]

    def _part(self, row: Row, states: Any, group: dict[str, Any] | None) -> Part | None:
        parameter = row.parameter
        state = states.get(parameter)
        if id(parameter) not in self._names:
            return Part(parameter, parameter.grad, state, group)
        place = self._places[row.original]
        if place.handle.uses_sharded_strategy and not place.shard.in_shard:
            return None
        own = None
        if state is not None:
            own = {
                key: place.cut(value) if getattr(value, "shape", None) == parameter.shape else value
                for key, value in state.items()
            }
        return Part(place.cut(parameter.data), place.cut(parameter.grad), own, group)

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Read the flat parameter's gradient, whole, before it is reduced."""
        runtime = sys.modules.get(_RUNTIME)
        names = ["_post_backward_hook"] if micro else ["_reduce_grad", "_reduce_grad_no_shard"]
        if runtime is None or not all(hasattr(runtime, name) for name in names):
            return None
        inside: dict[int, list[tuple[int, _Place]]] = {}
        for number, row in enumerate(rows):
            place = self._places.get(row.original)
            if place is not None:
                inside.setdefault(id(place.handle), []).append((number, place))

        def before(_: Any, handle: Any, *__: Any) -> None:
            gradient = handle.flat_param.grad
            own = inside.get(id(handle), [])
            if gradient is None or not own:
                return
            flat = gradient.data
            tensors = [
                flat[place.begin : place.begin + place.numel].view(place.shape) for _, place in own
            ]
            hook.take(_core.GRAD_UNREDUCED, [number for number, _ in own], tensors, micro)

        return [listen(runtime, name, before=before) for name in names]


def _places_in(handle: Any, names: dict[int, str]) -> Iterator[tuple[str, _Place]]:
    """The parameters in a flat one under their original names, also those that share one."""
    flat = handle.flat_param
    by_module: dict[tuple[int, str], _Place] = {}
    begin = number = 0
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            info = flat._param_infos[number]
            place = _Place(handle, number, begin, tuple(flat._shapes[number]))
            by_module[id(info.module), info.param_name] = place
            number += 1
        begin += numel
    for shared in flat._shared_param_infos:
        first = by_module.get((id(shared.prim_module), shared.prim_param_name))
        if first is not None:
            by_module[id(shared.module), shared.param_name] = first
    for (module, part), place in by_module.items():
        prefix = names.get(module)
        if prefix is not None:
            yield (f"{prefix}.{part}" if prefix else part), place
