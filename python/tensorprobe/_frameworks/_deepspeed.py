"""DeepSpeed: whatever its engine wraps around the optimizer keeps flat pieces of each parameter."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._frameworks import Adapter, Handle, Norm, Part, Row, Span
from tensorprobe._frameworks._living import chain, instances, kind
from tensorprobe._frameworks._patch import listen
from tensorprobe._frameworks._values import cut, first_numbers, unscaled

if TYPE_CHECKING:
    import torch

_STAGES_1_AND_2, _STAGE_3 = "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def _engine_kind() -> type | None:
    return kind("deepspeed.runtime.engine", "DeepSpeedEngine")


def _has_any(engine: Any, own: set[int]) -> bool:
    module = vars(engine).get("_modules", {}).get("module")
    return module is not None and any(id(p) in own for p in module.parameters())


def _engine_of(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Any:
    """Return the engine that trains these; None: there is none."""
    of = _engine_kind()
    if of is None:
        return None
    for chunk in chunks:
        if isinstance(chunk, of):
            return chunk
    own = {id(p) for chunk in chunks for p in chunk.parameters()}
    found = [engine for engine in instances(of) if _has_any(engine, own)]
    given = chain(optimizer)
    for engine in found:
        if any(
            one is inner for one in chain(getattr(engine, "optimizer", None)) for inner in given
        ):
            return engine
    return found[-1] if found and not given else None


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of what an engine trains."""
    engine = _engine_of(chunks, optimizer)
    return None if engine is None or engine.optimizer is None else DeepSpeed(engine)


def expect(chunks: Sequence[torch.nn.Module], found: Callable[[Any], None]) -> list[Handle] | None:
    """Tell of the optimizer of an engine that is made for these later."""
    of = _engine_kind()
    if of is None:
        return None
    own = {id(p) for chunk in chunks for p in chunk.parameters()}

    def made(_: Any, engine: Any, *__: Any, **___: Any) -> None:
        if getattr(engine, "optimizer", None) is not None and _has_any(engine, own):
            found(engine.optimizer)

    return [listen(of, "__init__", after=made)]


@dataclass
class _Place:
    """Where one parameter is."""

    parameter: Any
    key: Any
    """In the torch optimizer's state."""
    at: tuple[int, int] | None
    """Which elements of that tensor; None: all."""
    part: tuple[int, int] | None
    """Which elements of the parameter these are; None: all."""
    full: int
    """The elements of the whole parameter."""
    group: Callable[[], dict[str, Any]]
    gradient: Callable[[], Any]
    weight: Callable[[], Any]
    copies: tuple[int, int]
    """How many processes have the same, and which of them this is."""

    def state(self, every: Any) -> dict[str, Any]:
        """Return this part of the moments, and the number of steps."""
        own = every.get(self.key, {})
        found = {name: cut(own[name], self.at) for name in _MOMENTS if name in own}
        if self.part is None and self.at is not None:  # as the gradient is
            found = {name: one.view(self.parameter.shape) for name, one in found.items()}
        if "step" in own:
            found["step"] = own["step"]
        return found


def _ranks(group: Any) -> tuple[int, int]:
    """Return how many processes a group has, and which of them this is."""
    from torch.distributed import get_rank, get_world_size

    return get_world_size(group), get_rank(group)


def _piece(pieces: Any, begin: int, end: int) -> Any:
    """Return these elements of tensors that follow one another, as a view, or what joins them."""
    if pieces is None:
        return None
    flat = getattr(pieces, "flat_partition", None)
    if flat is not None:
        return cut(flat, (begin, end))
    found = []
    at = 0
    for piece in pieces:
        behind = at + piece.numel()
        if at < end and begin < behind:
            found.append(cut(piece, (max(begin, at) - at, min(end, behind) - at)))
        at = behind
    if len(found) == 1:
        return found[0]
    import torch

    return torch.cat(found) if found else None


def _offsets(wrapper: Any, group: int, parameters: Sequence[Any]) -> list[int]:
    known = getattr(wrapper, "round_robin_bit16_offsets", None)
    if known is not None:
        return [int(offset) for offset in known[group]]
    found = [0]
    for p in parameters:
        found.append(found[-1] + p.numel())
    return found[:-1]


def _of_stage_1_and_2(wrapper: Any) -> Iterator[_Place]:
    """Yield the pieces that lie in this rank's partition of the flat groups."""
    groups = getattr(wrapper, "round_robin_bit16_groups", None) or wrapper.bit16_groups
    for g, parameters in enumerate(groups):
        size = int(wrapper.partition_size[g])
        _, rank = _ranks(wrapper.real_dp_process_group[g])
        key = wrapper.single_partition_of_fp32_groups[g]
        for p, offset in zip(parameters, _offsets(wrapper, g, parameters), strict=True):
            begin = max(offset, rank * size)
            end = min(offset + p.numel(), (rank + 1) * size)
            if begin < end:
                at = (begin - rank * size, end - rank * size)
                part = (begin - offset, end - offset)
                yield _place_in_flat(wrapper, p, key, g, at, part)


def _place_in_flat(
    wrapper: Any, p: Any, key: Any, g: int, at: tuple[int, int], part: tuple[int, int]
) -> _Place:
    def gradient() -> Any:
        if getattr(wrapper, "cpu_offload", False):
            return cut(key.grad, at)
        return _piece(wrapper.averaged_gradients.get(g), *at)

    def group() -> dict[str, Any]:
        found: dict[str, Any] = wrapper.optimizer.param_groups[g]
        return found

    return _Place(p, key, at, part, p.numel(), group, gradient, lambda: cut(p, part), (1, 0))


def _of_stage_3(wrapper: Any) -> Iterator[_Place]:
    """Yield this rank's shard of each parameter."""
    for s, parameters in enumerate(wrapper.fp16_groups):
        for i, p in enumerate(parameters):
            group_of_ranks = getattr(p, "ds_process_group", None) or wrapper.dp_process_group
            _, rank = _ranks(group_of_ranks)
            _, offset, size = wrapper.grad_position[wrapper.get_param_id(p)]
            start = rank * size
            count = min(size, p.ds_numel - start)
            if count > 0:
                yield _shard(wrapper, p, s, i, (offset, offset + count), (start, start + count))


def _shard(
    wrapper: Any, p: Any, s: int, i: int, at: tuple[int, int], part: tuple[int, int]
) -> _Place:
    key = wrapper.fp32_partitioned_groups_flat[s]
    inside = (0, part[1] - part[0])

    def gradient() -> Any:
        if wrapper.offload_optimizer:
            return cut(key.grad, at)
        every = wrapper.averaged_gradients.get(s)
        return None if every is None else cut(every[i], inside)

    def group() -> dict[str, Any]:
        found: dict[str, Any] = wrapper.optimizer.param_groups[wrapper.sub_group_to_group_id[s]]
        return found

    def weight() -> Any:
        local = p.ds_tensor
        is_here = getattr(getattr(local, "status", None), "name", "AVAILABLE") == "AVAILABLE"
        return cut(local, inside) if is_here else None

    return _Place(p, key, at, part, p.ds_numel, group, gradient, weight, (1, 0))


def _of_bf16(wrapper: Any) -> Iterator[_Place]:
    """Yield the pieces in this rank's partition, whose gradients are there in whole."""
    for g, parameters in enumerate(wrapper.bf16_groups):
        key = wrapper.fp32_groups_flat_partition[g]
        size = key.numel()
        _, rank = _ranks(wrapper.real_dp_process_group[g])
        offset = 0
        for i, p in enumerate(parameters):
            begin = max(offset, rank * size)
            end = min(offset + p.numel(), (rank + 1) * size)
            if begin < end:
                at = (begin - rank * size, end - rank * size)
                part = (begin - offset, end - offset)
                yield _bf16_place(wrapper, (p, key), (g, i), at, part)
            offset += p.numel()


def _bf16_place(
    wrapper: Any,
    known: tuple[Any, Any],
    number: tuple[int, int],
    at: tuple[int, int],
    part: tuple[int, int],
) -> _Place:
    (p, key), (g, i) = known, number

    def gradient() -> Any:
        return cut(wrapper.fp32_groups_gradients[g][i], part)

    def group() -> dict[str, Any]:
        found: dict[str, Any] = wrapper.optimizer.param_groups[g]
        return found

    return _Place(p, key, at, part, p.numel(), group, gradient, lambda: cut(p, part), (1, 0))


def _of_whole_copies(engine: Any, wrapper: Any) -> Iterator[_Place]:
    """Yield the parameters of wrappers, or of torch's own, that keep all of them on each rank."""
    ranks = _ranks(getattr(engine, "data_parallel_group", None))
    base = chain(wrapper)[-1]
    groups = getattr(wrapper, "fp16_groups", None)
    for g, own in enumerate(base.param_groups):
        parameters = own["params"] if groups is None else groups[g]
        offset = 0
        for i, p in enumerate(parameters):
            at = None
            key = p
            if hasattr(wrapper, "fp32_groups_flat"):
                key, at = wrapper.fp32_groups_flat[g], (offset, offset + p.numel())
            elif hasattr(wrapper, "fp32_groups"):
                key = wrapper.fp32_groups[g][i]
            offset += p.numel()
            yield _whole(p, key, at, own, ranks)


def _whole(
    p: Any, key: Any, at: tuple[int, int] | None, group: dict[str, Any], ranks: tuple[int, int]
) -> _Place:
    return _Place(p, key, at, None, p.numel(), lambda: group, lambda: p.grad, lambda: p, ranks)


def _local_gradients(wrapper: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter with the sum of this rank's micro steps, where nothing is cut."""
    if hasattr(wrapper, "bf16_groups"):
        for own, gradients in zip(wrapper.bf16_groups, wrapper.fp32_groups_gradients, strict=True):
            yield from zip(own, gradients, strict=True)
        return
    groups = getattr(wrapper, "fp16_groups", None)
    if groups is None:
        groups = [group["params"] for group in wrapper.param_groups]
    yield from ((p, p.grad) for own in groups for p in own)


def _places(engine: Any) -> dict[int, _Place]:
    """Return where each parameter is of which this rank has a part, by what wraps the optimizer."""
    wrapper = engine.optimizer
    names = {one.__name__ for one in type(wrapper).__mro__}
    if _STAGES_1_AND_2 in names:
        found = _of_stage_1_and_2(wrapper)
    elif _STAGE_3 in names:
        found = _of_stage_3(wrapper)
    elif "BF16_Optimizer" in names:
        found = _of_bf16(wrapper)
    else:
        found = _of_whole_copies(engine, wrapper)
    return {id(place.parameter): place for place in found}


class DeepSpeed(Adapter):
    """Asks what wraps the optimizer; its step is the engine's."""

    framework = "DeepSpeed"
    reduces = True
    locates = True

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._wrapper = engine.optimizer
        self._places = _places(engine)
        self._norm: Norm | None = None
        self._micro_steps: Counter[int] = Counter()  # of each parameter, in this step

    def original(self, name: str) -> str:
        """Return the name in the module that the engine has wrapped."""
        return "" if name == "module" else name.removeprefix("module.")

    def span(self, row: Row) -> Span | None:
        """Return which part of it this rank updates."""
        place = self._places.get(id(row.parameter))
        if place is None:
            return None
        if place.part is None or place.part == (0, place.full):
            return Span("whole", (), *place.copies)
        start, end = place.part
        return Span("flat", ((start, end - start, place.full),), *place.copies)

    def local_span(self, row: Row) -> Span | None:
        """Return the whole: every rank has a gradient of its own of all of it."""
        return Span("whole")

    def locate(self, rows: Sequence[Row], after: bool) -> list[Part | None]:
        """Return views of the flat partitions."""
        every = chain(self._wrapper)[-1].state
        scale = self._scale()
        parts: list[Part | None] = []
        for row in rows:
            place = self._places.get(id(row.parameter))
            if place is None:
                parts.append(None)
            elif after:
                parts.append(Part(place.weight(), None, None, None))
            else:
                gradient = unscaled(place.gradient(), scale)
                parts.append(Part(place.weight(), gradient, place.state(every), place.group()))
        return parts

    def _scale(self) -> float:
        """Return what the loss is multiplied by."""
        base = kind("deepspeed.runtime.base_optimizer", "ZeROOptimizer")
        is_newer = base is not None and hasattr(base, "scale_if_loss")
        if is_newer and base is not None and not isinstance(self._wrapper, base):
            # The newer engines scale the loss for these alone, whatever others say.
            return self._autocast_scale()
        return float(getattr(self._wrapper, "loss_scale", 1.0))

    def _autocast_scale(self) -> float:
        """Return the scale of torch's scaler, which it has with autocasting and without ZeRO."""
        scaler = getattr(self._engine, "torch_autocast_z0_gradscaler", None)
        return 1.0 if scaler is None else float(scaler.get_scale())

    def boundary(self, hook: _core.OptimizerHook) -> list[Handle] | None:
        """Begin and end steps with those of the engine, before it clips anything."""

        clipping: list[Any] = []  # while the engine steps: the norms that it clips by
        scale = 1.0

        def before(engine: Any, *_: Any, **__: Any) -> None:
            nonlocal scale
            clipping.clear()
            if engine is self._engine:
                scale = self._autocast_scale()
                hook.step_pre(engine.optimizer, (), {})

        def clipped(norm: Any, *_: Any, **__: Any) -> None:
            clipping.append(norm)

        def after(_: Any, engine: Any, *__: Any, **___: Any) -> None:
            if engine is not self._engine:
                return
            self._micro_steps.clear()
            norm = engine.get_global_grad_norm()
            if norm is None and clipping:  # it has forgotten it where torch's own optimizer steps
                norm = clipping[-1]
            self._norm = None if norm is None else Norm(float(norm))
            if getattr(engine.optimizer, "overflow", False) or self._autocast_scale() < scale:
                hook.mark_skipped()
            hook.step_post(engine.optimizer, (), {})

        of: Any = _engine_kind()
        handles: list[Handle] = [listen(of, "_take_model_step", before=before, after=after)]
        module = sys.modules[of.__module__]
        if hasattr(module, "clip_grad_norm_"):
            handles.append(listen(module, "clip_grad_norm_", after=clipped))
        return handles

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Read whole gradients as they come to the buckets; of micro steps, as they are made."""
        numbers = first_numbers(rows)
        if micro:
            return self._each_micro_step(hook, rows, numbers)
        names = {one.__name__ for one in type(self._wrapper).__mro__}
        if names & {_STAGES_1_AND_2, _STAGE_3}:
            often = _STAGE_3 in names or self._wrapper.partition_gradients
            if often and self._engine.gradient_accumulation_steps() > 1:
                return None  # each micro step is reduced for itself: nothing holds their sum
            return [self._at_the_buckets(hook, numbers)]
        return [self._at_the_engine(hook, numbers)]

    def _at_the_buckets(self, hook: _core.OptimizerHook, numbers: dict[int, int]) -> Handle:
        def before(wrapper: Any, parameter: Any, *_: Any) -> None:
            number = numbers.get(id(parameter))
            if number is None or wrapper is not self._wrapper:
                return
            found = getattr(wrapper, "get_gradient_for_reduction", lambda p: p.grad)(parameter)
            gradient = unscaled(found, self._scale())
            hook.take(_core.GRAD_UNREDUCED, [number], [gradient], False)

        method = "reduce_independent_p_g_buckets_and_remove_grads"
        own = next(one for one in type(self._wrapper).__mro__ if method in vars(one))
        return listen(own, method, before=before)

    def _at_the_engine(self, hook: _core.OptimizerHook, numbers: dict[int, int]) -> Handle:
        def before(engine: Any, *_: Any, **__: Any) -> None:
            if engine is not self._engine or not engine.is_gradient_accumulation_boundary():
                return
            found = [(numbers.get(id(p)), grad) for p, grad in _local_gradients(self._wrapper)]
            scale = self._scale()
            own = [(n, unscaled(grad, scale)) for n, grad in found if n is not None]
            hook.take(_core.GRAD_UNREDUCED, [n for n, _ in own], [one for _, one in own], False)

        of = _engine_kind()
        return listen(of, "allreduce_gradients", before=before)

    def _each_micro_step(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], numbers: dict[int, int]
    ) -> list[Handle]:
        def register(p: Any) -> Handle:
            def made(gradient: Any) -> None:
                taken = unscaled(gradient, self._scale())
                micro = self._micro_steps[id(p)]
                self._micro_steps[id(p)] += 1
                hook.take(_core.GRAD_UNREDUCED, [numbers[id(p)]], [taken], micro)

            handle: Handle = p.register_hook(made)
            return handle

        distinct = {id(row.parameter): row.parameter for row in rows}
        return [register(p) for p in distinct.values() if p.requires_grad]

    def kinds(self) -> set[str]:
        """Return the ancestors' word for what wraps the optimizer."""
        names = {one.__name__ for one in type(self._wrapper).__mro__}
        if _STAGE_3 in names:
            return {_STAGE_3}
        return {f"DeepSpeedZeroOptimizer_Stage{'1_or_2' if _STAGES_1_AND_2 in names else '0'}"}

    def norm(self) -> Norm | None:
        """Return what the engine has computed in this step."""
        return self._norm
