"""Megatron-core: main_grad in buffers, f32 copies of weights, ranges of them, pipeline chunks."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._frameworks import Adapter, Handle, Norm, Part, Row, Span
from tensorprobe._frameworks._careful import ask
from tensorprobe._frameworks._living import chain, instances, kind, kinds_of
from tensorprobe._frameworks._patch import listen
from tensorprobe._frameworks._values import cut, first_numbers, unscaled

if TYPE_CHECKING:
    import torch

    Parameter = torch.nn.Parameter

_SHARDED = ("shard_fp32_from_float16_groups", "shard_fp32_groups")
_EMBEDDING = "embedding.word_embeddings.weight"  # so Megatron calls it in checkpoints
_IN_FRONT = re.compile(r"^(module(\.|$))+")


def _optimizer_kind() -> type | None:
    return kind("megatron.core.optimizer.optimizer", "MegatronOptimizer")


def _is_megatrons(chunks: Sequence[torch.nn.Module]) -> bool:
    kinds = (
        kind("megatron.core.transformer.module", "MegatronModule"),
        kind("megatron.core.distributed.data_parallel_base", "_BaseDataParallel"),
    )
    known = tuple(one for one in kinds if one is not None)
    return any(isinstance(module, known) for chunk in chunks for module in chunk.modules())


def _members(optimizer: Any) -> list[Any]:
    """Return those of a chain, or this one; not those that have nothing to do."""
    members = getattr(optimizer, "chained_optimizers", None)
    every = [optimizer] if members is None else members
    return [one for one in every if getattr(one, "optimizer", None) is not None]


def _parameters(member: Any) -> Iterator[Parameter]:
    """Yield the model's parameters that a member steps with, as far as this rank has a part."""
    pairs = _pairs(member)
    if pairs is not None:
        yield from (p for p, _ in pairs)
    else:
        for group in member.optimizer.param_groups:
            yield from group["params"]


def _pairs(member: Any) -> list[tuple[Parameter, Any]] | None:
    """Return each parameter with what the torch optimizer has for it; None: itself."""
    found: list[tuple[Parameter, Any]] = []
    known = False
    for models, mains in (
        ("float16_groups", "fp32_from_float16_groups"),
        ("fp32_from_fp32_groups", "fp32_from_fp32_groups"),
        ("model_float16_groups", "shard_fp32_from_float16_groups"),
        ("model_fp32_groups", "shard_fp32_groups"),
    ):
        if hasattr(member, models) and hasattr(member, mains):
            known = True
            for own, main in zip(getattr(member, models), getattr(member, mains), strict=True):
                found += zip(own, main, strict=True)
    return found if known else None


def _steps_with(optimizer: Any, own: set[int]) -> bool:
    return any(id(p) in own for member in _members(optimizer) for p in _parameters(member))


def _outermost(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Any:
    """Return the optimizer whose step() is the training's; None: there is none."""
    of = _optimizer_kind()
    given = chain(optimizer)
    for one in given:
        if of is not None and isinstance(one, of):
            return one
    if of is None or not _is_megatrons(chunks):
        return None
    # What was given is inside of it, or nothing was.
    own = {id(p) for chunk in chunks for p in chunk.parameters()}
    found = [one for one in instances(of) if _steps_with(one, own)]
    inner = {id(member) for one in found for member in _members(one) if member is not one}
    outer = [one for one in found if id(one) not in inner]
    return outer[-1] if outer else None


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter where Megatron's optimizer steps, or will."""
    outermost = _outermost(chunks, optimizer)
    if outermost is not None:
        return Megatron(chunks, outermost)
    return Bare() if optimizer is None and _is_megatrons(chunks) else None


class Bare(Adapter):
    """A model that has no optimizer yet."""

    framework = "Megatron-core"
    reduces = True

    def original(self, name: str) -> str:
        """Return the name without those of the wrappers for data parallelism and 16 bits."""
        return _IN_FRONT.sub("", name)

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Wait for the optimizer."""
        return []


def expect(chunks: Sequence[torch.nn.Module], found: Callable[[Any], None]) -> list[Handle] | None:
    """Tell of an optimizer of these as soon as it has been made, or steps."""
    of = _optimizer_kind()
    if of is None or not _is_megatrons(chunks):
        return None
    own = {id(p) for chunk in chunks for p in chunk.parameters()}
    known: list[Any] = []  # with what is inside of them

    def seen(optimizer: Any) -> None:
        if not any(optimizer is one for one in known) and _steps_with(optimizer, own):
            known.extend((optimizer, *_members(optimizer)))
            found(optimizer)

    def watch(one: type) -> Iterator[Handle]:
        def steps(optimizer: Any) -> None:
            seen(optimizer)

        def made(_: Any, optimizer: Any, *__: Any, **___: Any) -> None:
            if next(c for c in type(optimizer).__mro__ if "__init__" in vars(c)) is one:
                seen(optimizer)  # complete: not within the constructor of a derived class

        if "step" in vars(one):
            yield listen(one, "step", before=steps)
        if "__init__" in vars(one):
            yield listen(one, "__init__", after=made)

    return [handle for one in kinds_of(of) for handle in watch(one)]


# ---- Reductions ----


def _reducer() -> tuple[type, str] | None:
    """Return the class whose method begins to reduce, and the method's name."""
    for module, name in (
        ("param_and_grad_buffer", "_ParamAndGradBucketGroup"),  # since 0.9
        ("param_and_grad_buffer", "Bucket"),
        ("grad_buffer", "Bucket"),
    ):
        found = kind(f"megatron.core.distributed.{module}", name)
        if found is not None and hasattr(found, "start_grad_sync"):
            return found, "start_grad_sync"
    return None


def _reduced_by(group: Any) -> list[Parameter]:
    """Return the parameters whose gradients a group of buckets begins to reduce."""
    if getattr(group, "is_first_batch", False) and group.grad_reduce_handle is not None:
        return []  # it returns at once, for that has happened
    buckets = getattr(group, "buckets", None)
    if buckets is not None:
        return [p for bucket in buckets for p in bucket.params_list]
    return list(getattr(group, "params_list", None) or group.params)


def _gradient(parameter: Any) -> Any:
    main = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None else main


# ---- Spans ----


def _world() -> Any:
    from megatron.core import parallel_state

    return parallel_state


def _copies(parameter: Any, sharded: bool) -> tuple[int, int]:
    """Return how many ranks have the same of this parameter, and which of them this is."""
    state = _world()
    expert = not getattr(parameter, "allreduce", True)
    copies, copy = 1, 0
    if not getattr(parameter, "tensor_model_parallel", False) and not expert:
        copies = state.get_tensor_model_parallel_world_size()
        copy = state.get_tensor_model_parallel_rank()
    if getattr(parameter, "shared_embedding", False):  # by the first and the last stage
        group = state.get_embedding_group()
        if group is not None and group.size() > 1:
            copies, copy = copies * group.size(), copy * group.size() + group.rank()
    if not sharded:
        if expert:
            group = state.get_expert_data_parallel_group()
            size, rank = group.size(), group.rank()
        else:
            size = state.get_data_parallel_world_size(with_context_parallel=True)
            rank = state.get_data_parallel_rank(with_context_parallel=True)
        copies, copy = copies * size, copy * size + rank
    return copies, copy


def _pieces(parameter: Any) -> tuple[int, int]:
    """Return into how many tensor parallel pieces it is cut, and which of them this is."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return 1, 0
    state = _world()
    if not getattr(parameter, "allreduce", True):
        group = state.get_expert_tensor_parallel_group()
        return group.size(), group.rank()
    return (
        state.get_tensor_model_parallel_world_size(),
        state.get_tensor_model_parallel_rank(),
    )


def _span(parameter: Any, part: tuple[int, int] | None) -> Span:
    """Return which part of the whole parameter this rank has, or the optimizer of this rank."""
    copies, copy = ask("Megatron-core", "copies", (0, 0), _copies, parameter, part is not None)
    pieces, piece = _pieces(parameter)
    size = parameter.numel()
    if part is not None:
        start, end = part
        if pieces == 1 and (start, end) == (0, size):
            return Span("whole", (), copies, copy)
        return Span("flat", ((piece * size + start, end - start, pieces * size),), copies, copy)
    if pieces == 1:
        return Span("whole", (), copies, copy)
    ranges = [(0, n, n) for n in parameter.shape]
    dim = parameter.partition_dim
    n = parameter.shape[dim]
    ranges[dim] = (piece * n, n, pieces * n)
    return Span("box", tuple(ranges), copies, copy)


# ---- Names ----


def _global_names(chunk: torch.nn.Module) -> list[tuple[str, str]]:
    """Return prefixes of names with numbers of this rank, and what they are among all ranks."""
    found: list[tuple[str, str]] = []
    for name, module in chunk.named_modules():
        name = _IN_FRONT.sub("", name)
        number = getattr(module, "layer_number", None)
        front, _, last = name.rpartition(".")
        if last.isdigit() and isinstance(number, int) and number - 1 != int(last):
            found.append((f"{name}.", f"{front}.{number - 1}."))
        experts = getattr(module, "local_expert_indices", None)
        for own, whole in enumerate(experts or ()):
            if own != whole:
                below = f"{name}.experts.local_experts"
                found.append((f"{below}.{own}.", f"{below}.{whole}."))
    return found


class _Place:
    """Where the optimizer keeps one parameter."""

    def __init__(self, member: Any, main: Any, part: tuple[int, int] | None) -> None:
        self.member = member
        self.main = main
        """The key in the torch optimizer's state."""
        self.part = part
        """Which elements of the parameter it is; None: all."""

    def state(self, parameter: Parameter) -> dict[str, Any]:
        """Return what the torch optimizer knows of it; nothing before its first step."""
        own: dict[str, Any] = self.member.optimizer.state.get(self.main, {})
        config = getattr(self.member, "config", None)
        if own and getattr(config, "use_precision_aware_optimizer", False):
            # Its moments are stored with a scale, or in 16 bits.
            found: dict[str, Any] = self.member._get_main_param_and_optimizer_states(parameter)
            return found
        return own


def _all_places_of(member: Any) -> list[tuple[Any, _Place]]:
    return list(_places_of(member))


def _places_of(member: Any) -> Iterator[tuple[Any, _Place]]:
    """Yield each parameter of which a member has a part on this rank, and where that is."""
    maps = getattr(member, "model_param_group_index_map", None)
    if maps is not None:
        groups = member.optimizer.param_groups
        for p, (at, order) in maps.items():
            own = member._get_model_param_range_map(p)["param"]
            yield p, _Place(member, groups[at]["params"][order], (own.start, own.end))
        return
    if any(hasattr(member, name) for name in _SHARDED):
        raise AttributeError("it has shards, and no model_param_group_index_map")
    pairs = _pairs(member)
    for p, main in [(p, p) for p in _parameters(member)] if pairs is None else pairs:
        yield p, _Place(member, main, None)


def _places(optimizer: Any) -> dict[int, _Place]:
    """Return where each parameter is that the optimizer of this rank has a part of."""
    found: dict[int, _Place] = {}
    for member in _members(optimizer):
        nothing: list[tuple[Any, _Place]] = []
        own = ask(type(member).__name__, "locate", nothing, _all_places_of, member)
        found |= {id(p): place for p, place in own}
    return found


class Megatron(Bare):
    """Asks the optimizer's own maps, anew for each step."""

    locates = True

    def __init__(self, chunks: Sequence[torch.nn.Module], optimizer: Any) -> None:
        self._optimizer = optimizer
        self._global_names = [_global_names(chunk) for chunk in chunks]
        self._norm: Norm | None = None
        self._micro_steps: Counter[int] = Counter()  # of each parameter, in this step
        self._known: tuple[Any, dict[int, _Place], dict[int, dict[str, Any]]] = ((), {}, {})

    def _places(self) -> tuple[dict[int, _Place], dict[int, dict[str, Any]]]:
        """Return where each parameter is, and the group of each of torch's parameters."""
        every = [group for one in _members(self._optimizer) for group in one.optimizer.param_groups]
        now = [(id(group), id(group["params"]), len(group["params"])) for group in every]
        if now != self._known[0]:
            groups = {id(main): group for group in every for main in group["params"]}
            self._known = (now, _places(self._optimizer), groups)
        return self._known[1:]

    def global_name(self, row: Row) -> str | None:
        """Return it with layers counted over pipeline stages, and experts over their ranks."""
        name = row.original
        for own, whole in reversed(self._global_names[row.vpp_stage]):
            if name.startswith(own):
                name = whole + name.removeprefix(own)
        if getattr(row.parameter, "shared_embedding", False):  # the last stage's copy of it
            name = re.sub(r"(^|\.)output_layer\.weight$", r"\1" + _EMBEDDING, name)
        return name

    def span(self, row: Row) -> Span | None:
        """Return which range of it the optimizer of this rank has."""
        place = self._places()[0].get(id(row.parameter))
        return None if place is None else _span(row.parameter, place.part)

    def local_span(self, row: Row) -> Span | None:
        """Return what this rank has of it, all or one piece; no other has this gradient."""
        return _span(row.parameter, None)._replace(copies=1, copy=0)

    def locate(self, rows: Sequence[Row], after: bool) -> list[Part | None]:
        """Return views of main_grad and of the weights, and the state of the f32 copies."""
        places, groups = self._places()
        scale = ask(self.framework, "scale", None, self._known_scale)
        parts: list[Part | None] = []
        for row in rows:
            p = row.parameter
            place = places.get(id(p))
            if place is None:
                parts.append(None)
            elif after:
                parts.append(Part(cut(p, place.part), None, None, None))
            else:
                whole = None if scale is None else _gradient(p)
                gradient = unscaled(cut(whole, place.part), scale or 1.0)
                state, group = place.state(p), groups.get(id(place.main))
                parts.append(Part(cut(p, place.part), gradient, state, group))
        return parts

    def _known_scale(self) -> float | None:
        return self._scale()

    def _scale(self) -> float:
        """Return what the loss is multiplied by."""
        for member in _members(self._optimizer):
            scaler = getattr(member, "grad_scaler", None)
            if scaler:
                return float(scaler.scale)
        return 1.0

    def boundary(self, hook: _core.OptimizerHook) -> list[Handle] | None:
        """Begin and end steps with those of the outermost optimizer."""

        def before(optimizer: Any, *_: Any, **__: Any) -> None:
            if optimizer is self._optimizer:
                hook.step_pre(optimizer, (), {})

        def after(result: Any, optimizer: Any, *_: Any, **__: Any) -> None:
            if optimizer is not self._optimizer:
                return
            nothing: tuple[bool, float | None] = (True, None)
            updated, norm = ask(self.framework, "norm", nothing, _said_by_step, result)
            self._norm = Norm(float(norm)) if norm else None  # 0: it hasn't been computed
            self._micro_steps.clear()
            if not updated:
                hook.mark_skipped()
            hook.step_post(optimizer, (), {})

        own = next(one for one in type(self._optimizer).__mro__ if "step" in vars(one))
        return [listen(own, "step", before=before, after=after)]

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Read main_grad as its bucket begins to be reduced, or what each micro step adds to it."""
        numbers = first_numbers(rows)
        if micro:
            return self._each_micro_step(hook, rows, numbers)
        reducer = _reducer()
        if reducer is None:
            return None

        def before(group: Any, *_: Any, **__: Any) -> None:
            own = [p for p in _reduced_by(group) if id(p) in numbers]
            scale = self._scale() if own else 1.0
            gradients = [unscaled(_gradient(p), scale) for p in own]
            hook.take(_core.GRAD_UNREDUCED, [numbers[id(p)] for p in own], gradients, False)

        return [listen(*reducer, before=before)]

    def _each_micro_step(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], numbers: dict[int, int]
    ) -> list[Handle]:
        def added(p: Any) -> None:
            # With fused accumulation .grad is a stand-in, and main_grad has the sum already.
            fused = getattr(p, "grad_added_to_main_grad", False)
            gradient = _gradient(p) if fused else p.grad
            taken = unscaled(gradient, self._scale())
            # In a pipeline later micro steps may have run forward before this one runs back.
            micro = self._micro_steps[id(p)]
            self._micro_steps[id(p)] += 1
            hook.take(_core.GRAD_UNREDUCED, [numbers[id(p)]], [taken], micro)

        distinct = {id(row.parameter): row.parameter for row in rows}
        handles: list[Handle] = []
        for p in distinct.values():
            if p.requires_grad:
                register: Any = p.register_post_accumulate_grad_hook
                handles.append(register(_quietly(added)))
        return handles

    def kinds(self) -> set[str]:
        """Return the ancestors' words for the optimizers that hold parameters."""
        return {f"Megatron_{type(one).__name__}" for one in _members(self._optimizer)}

    def norm(self) -> Norm | None:
        """Return what step() has returned."""
        return self._norm


def _said_by_step(result: Any) -> tuple[bool, float | None]:
    """Return whether there was an update, and the norm of the gradients."""
    updated, norm, *_ = result
    return bool(updated), norm


def _quietly(function: Callable[..., None]) -> Callable[..., None]:
    """Nothing that it raises leaves the hook: what isn't there isn't recorded."""

    def hook(*args: Any) -> None:
        with contextlib.suppress(Exception):
            function(*args)

    return hook
