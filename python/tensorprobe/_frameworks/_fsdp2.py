"""``fully_shard``: parameters are DTensors, sharded over processes between forwards and updates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._frameworks import Adapter, Handle, Row, Span
from tensorprobe._frameworks._patch import listen
from tensorprobe._frameworks._spans import is_dtensor, span_of

if TYPE_CHECKING:
    import torch

_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of models some part of which is sharded so."""
    from torch.distributed.fsdp._fully_shard import FSDPModule

    if any(isinstance(module, FSDPModule) for chunk in chunks for module in chunk.modules()):
        return FullyShard(chunks)
    return None


class FullyShard(Adapter):
    """What the optimizer sees are shards. The whole gradients are there when they are reduced."""

    framework = "fully_shard"
    reduces = True

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._chunks = chunks
        parameters: list[Any] = [one for chunk in chunks for one in chunk.parameters()]
        meshes = [one.device_mesh for one in parameters if is_dtensor(one)]
        self._mesh: Any = max(meshes, key=lambda mesh: mesh.ndim, default=None)
        # What is in the modules while one of them runs, for what is there otherwise.
        self._sharded = {
            id(one._unsharded_param): one.sharded_param
            for one in self._parameters().values()
            if getattr(one, "_unsharded_param", None) is not None
        }

    def expand(
        self, name: str, parameter: torch.nn.Parameter
    ) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the sharded parameter, which the optimizer has."""
        return [(self.original(name), self._sharded.get(id(parameter), parameter))]

    def span(self, row: Row) -> Span | None:
        """Return the box of the shard; None: this process has nothing of the parameter."""
        return span_of(row.parameter, *self._copies(row.parameter))

    def _copies(self, parameter: Any) -> tuple[int, int]:
        """How often it is there along the dimensions of the largest mesh that its own lacks."""
        whole, own = self._mesh, getattr(parameter, "device_mesh", None)
        names = getattr(whole, "mesh_dim_names", None)
        if whole is None or own is None or not names or own.ndim == whole.ndim:
            return 1, 0
        copies, copy = 1, 0
        for name, size, at in zip(names, whole.shape, whole.get_coordinate() or (), strict=True):
            if name not in (own.mesh_dim_names or ()):
                copies, copy = copies * size, copy * size + at
        return copies, copy

    def local_span(self, row: Row) -> Span | None:
        """Return the whole, or what is left of it where tensor parallelism has cut it, too."""
        found = self._parameters().get(id(row.parameter))
        cut = getattr(found, "_tp_spec", None)
        if cut is None or not is_dtensor(row.parameter):
            return Span("whole")
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        shape, offset = compute_local_shape_and_global_offset(
            row.parameter.shape, cut.mesh, cut.placements
        )
        return Span("box", tuple(zip(offset, shape, row.parameter.shape, strict=True)))

    def _parameters(self) -> dict[int, Any]:
        """What fully_shard knows of each sharded parameter, by the parameter's id."""
        found = {}
        for module in (one for chunk in self._chunks for one in chunk.modules()):
            get_state = getattr(module, "_get_fsdp_state", None)
            if get_state is None:
                continue
            state = get_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            if groups is None:  # before there could be several
                groups = [group for group in [state._fsdp_param_group] if group is not None]
            for group in groups:
                for one in group.fsdp_params:
                    found[id(one.sharded_param)] = one
        return found

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Read what goes into the reduction: it has the sum of the micro steps."""
        module = sys.modules.get(_GROUPS)
        if module is None or not hasattr(module, "foreach_reduce"):
            return None
        places = {id(row.parameter): number for number, row in enumerate(rows)}

        def take(parameters: list[Any], gradients: list[torch.Tensor]) -> None:
            own = [
                (places[id(one.sharded_param)], gradient)
                for one, gradient in zip(parameters, gradients, strict=True)
                if id(one.sharded_param) in places
            ]
            if own:
                hook.take(_core.GRAD_UNREDUCED, [n for n, _ in own], [g for _, g in own], micro)

        def reduces(
            parameters: list[Any], gradients: list[torch.Tensor], *_: Any, **__: Any
        ) -> None:
            take(parameters, gradients)

        handles: list[Handle] = [listen(module, "foreach_reduce", before=reduces)]
        if micro:
            handles.append(_listen_to_others(module.FSDPParamGroup, take))
        return handles


def _listen_to_others(group_class: type, take: Any) -> Handle:
    """Take gradients of micro steps that aren't reduced but kept for the next."""
    ended: set[int] = set()

    def before(group: Any, *_: Any) -> None:
        # It comes again at the end of the backward, for groups that have ended already.
        if group._training_state.name == "POST_BACKWARD":
            ended.add(id(group))

    def after(_: Any, group: Any, *__: Any) -> None:
        if id(group) in ended:
            ended.discard(id(group))
        elif not group.reduce_grads:
            parameters, gradients = [], []
            for one in group.fsdp_params:
                kept = getattr(one, "unsharded_accumulated_grad", None)
                if kept is None:
                    kept = getattr(getattr(one, "_unsharded_param", None), "grad", None)
                if kept is not None:
                    parameters.append(one)
                    gradients.append(kept)
            take(parameters, gradients)

    return listen(group_class, "post_backward", before=before, after=after)
