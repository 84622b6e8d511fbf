"""Observing inside torch.compile without breaking its graphs.

A builtin hook breaks a compiled graph at its module, and a Python hook that is traced sees no
values. What works is a Python hook that calls an operator with an effect: the operator stays in the
graph, in order, and sees real tensors, in the forward and, called from a tensor's hook, in the
backward. So as long as nothing is compiled in this process the modules have the builtin hooks;
with the first compilation they get ``TraceableHook``, which calls the builtin one when it is not
being traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import weakref
from collections import UserDict, deque
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensorprobe import _core
from tensorprobe._messages import warn

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Spec = tuple[int, ...] | str | None
"""None: nothing; (): every tensor; (0, 0): the only one; (n, i): element i of n."""

_INPUT, _OUTPUT, _INPUT_GRAD, _OUTPUT_GRAD = range(4)
_SIDES = ("input", "output", "input_grad", "output_grad")
_CHECKPOINTED = 2  # beside the inputs, 0, and the outputs, 1, of a module

_hooks: dict[int, _core.ModuleHook] = {}
_numbers = itertools.count(1)
_library: Any = None


# One look-up less, in hooks that are called a lot. Older versions, without it, never get there.
is_traced = getattr(torch.compiler, "is_dynamo_compiling", bool)

_said: set[str] = set()


def _warn_once(text: str) -> None:
    """Also where a warning that was turned into an error would end a compilation."""
    if text not in _said:
        _said.add(text)
        with contextlib.suppress(RuntimeWarning):
            warn(text)


# ---- The operators ----


def _run_forward(
    tensors: list[torch.Tensor], number: torch.Tensor, side: int, keywords: str = ""
) -> torch.Tensor:
    own = int(number)
    hook = _hooks.get(own)
    names = keywords.split("\n") if keywords else []
    found = hook.compiled_forward(tensors, side, names) if hook is not None else (0, 0, 0)
    return torch.tensor((own, *found), device="cpu")  # whatever the default is


def _run_checkpointed(tensors: list[torch.Tensor], number: torch.Tensor) -> torch.Tensor:
    return _run_forward(tensors, number, _CHECKPOINTED)


def _run_backward(
    grad: torch.Tensor, ticket: torch.Tensor, side: int, slot: int, keyword: str
) -> None:
    own, step, micro_step, call = ticket.tolist()
    hook = _hooks.get(own)
    if hook is not None:
        hook.compiled_backward(grad, side, slot, keyword, step, micro_step, call)


def _define_operators() -> None:
    """Once a process; without a watched model they do nothing.

    forward gives a ticket: what says to the backward which hook, step, micro step and call a
    gradient belongs to. The hook's number is a tensor so that equal modules share a graph.
    checkpointed is forward for what a module in a checkpointed part returns. It has no effect, as
    the compiler sees it, so that it may be moved to the backward together with that part; it stays
    because a gradient needs its ticket. keywords has a line for each tensor, if any of them was
    given by keyword: its name, or nothing; slot then counts the tensors in that argument.
    """
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library("tensorprobe", "DEF")  # type: ignore[no-untyped-call]
    library.define("forward(Tensor[] tensors, Tensor number, int side, str keywords) -> Tensor")
    library.define("checkpointed(Tensor[] tensors, Tensor number) -> Tensor")
    library.define("backward(Tensor grad, Tensor ticket, int side, int slot, str keyword) -> ()")
    library.impl("forward", _run_forward, "CompositeExplicitAutograd")
    library.impl("checkpointed", _run_checkpointed, "CompositeExplicitAutograd")
    library.impl("backward", _run_backward, "CompositeExplicitAutograd")

    def fake_forward(
        tensors: list[torch.Tensor], number: torch.Tensor, side: int, keywords: str
    ) -> torch.Tensor:
        return number.new_empty((4,))

    def fake_checkpointed(tensors: list[torch.Tensor], number: torch.Tensor) -> torch.Tensor:
        return number.new_empty((4,))

    def fake_backward(
        grad: torch.Tensor, ticket: torch.Tensor, side: int, slot: int, keyword: str
    ) -> None:
        return None

    torch.library.register_fake("tensorprobe::forward", fake_forward, lib=library)
    torch.library.register_fake("tensorprobe::checkpointed", fake_checkpointed, lib=library)
    torch.library.register_fake("tensorprobe::backward", fake_backward, lib=library)
    from torch._library.effects import EffectType

    for name in ("forward", "backward"):
        torch.library._register_effectful_op(f"tensorprobe::{name}", EffectType.ORDERED)
    # At the border of a compiled region a hook isn't part of it: it runs as it is, and calls the
    # builtin one. Without this it would be compiled alone.
    from torch._dynamo.eval_frame import skip_code

    skip_code(TraceableHook.forward_pre.__code__)
    skip_code(TraceableHook.forward.__code__)
    _library = library


def is_supported() -> bool:
    """Whether this torch keeps such operators, and hooks on tensors inside a graph."""
    return (
        hasattr(torch.library, "_register_effectful_op")
        and find_spec("torch._library.effects") is not None
        and find_spec("torch._higher_order_ops.register_hook") is not None
    )


# ---- What is traced ----


def _elements(value: Any) -> list[Any] | None:
    """What a container holds, in order; None: it is none."""
    if isinstance(value, (tuple, list, deque)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, UserDict):  # another Mapping may compute what it is asked for
        return list(value.data.values())
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return None


def _add_tensors(value: Any, integers: bool, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if integers or value.is_floating_point() or value.is_complex():
            found.append(value)
        return
    elements = _elements(value)
    if elements is not None:
        for element in elements:
            _add_tensors(element, integers, found)


_GRAPH, _CHECKPOINT, _ELSEWHERE = range(3)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _place() -> int:
    """Where the part is that is being traced: in the graph, or in an operator with a body.

    Of these a checkpointed part alone is known to take what is done here. Under torch.func tensors
    are something else.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if torch._C._functorch.maybe_current_level() is not None:
        return _ELSEWHERE
    tracer = InstructionTranslator.current_tx().output.current_tracer
    place = _GRAPH
    while tracer.parent is not None:
        name = getattr(tracer.source_target, "__name__", "")
        if name != "tag_activation_checkpoint":
            return _ELSEWHERE
        place = _CHECKPOINT
        tracer = tracer.parent
    return place


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note_rounding() -> int:
    """Say once what inductor does to 16-bit intermediates that are read."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._inductor import config

    compiler = InstructionTranslator.current_tx().output.compiler_fn
    compiler = getattr(compiler, "_torchdynamo_orig_backend", compiler)
    own = getattr(compiler, "config", {})
    emulated = own.get("emulate_precision_casts", getattr(config, "emulate_precision_casts", True))
    if getattr(compiler, "compiler_name", "") == "inductor" and not emulated:
        _warn_once(
            "inductor doesn't round 16-bit intermediates that it fuses, but rounds those that are "
            "read: the training may differ from one that isn't watched in the last bits. With "
            "torch._inductor.config.emulate_precision_casts = True, watched or not, both are equal"
        )
    return 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note_misfit(name: str, side: int, length: int, index: int, there: int) -> int:
    """Say once that a target's side is not what the module has there. there: -1: one tensor."""
    wanted = f"tuple[{length}]:{index}" if length else "tensor"
    real = "a tensor" if there < 0 else f"tuple[{there}]"
    _warn_once(
        f'targets: "{_SIDES[side]}": "{wanted}" does not fit module {name!r}, which has {real} '
        "there: nothing of this side is recorded"
    )
    return 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note_no_keyword(name: str, side: int, keyword: str) -> int:
    """Say once that a module isn't called with the argument that a target names."""
    _warn_once(
        f'targets: "{_SIDES[side]}": "keyword:{keyword}" does not fit module {name!r}, which is '
        "not called with it by keyword: nothing of this side is recorded"
    )
    return 0


def _observe(
    tensors: list[torch.Tensor], number: torch.Tensor, side: int, names: Sequence[str] = ()
) -> torch.Tensor:
    detached = [tensor.detach() for tensor in tensors]
    if any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in detached):
        _note_rounding()
    ticket: torch.Tensor
    if side == _CHECKPOINTED:
        ticket = torch.ops.tensorprobe.checkpointed(detached, number)
    else:
        keywords = "\n".join(names) if any(names) else ""
        ticket = torch.ops.tensorprobe.forward(detached, number, side, keywords)
    return ticket


def _await_gradients(
    tensors: list[torch.Tensor],
    ticket: torch.Tensor,
    side: int,
    names: Sequence[str] = (),
    besides: Sequence[torch.Tensor] = (),
) -> None:
    for number, tensor in enumerate(tensors):
        # A parameter would keep the hook, and one more with every forward.
        kept = isinstance(tensor, torch.nn.Parameter) or any(tensor is one for one in besides)
        if tensor.requires_grad and not kept:
            keyword = names[number] if names else ""
            slot = -1 if len(tensors) == 1 else number
            if keyword:
                first = names.index(keyword)
                slot = -1 if names.count(keyword) == 1 else number - first
            _await_gradient(tensor, ticket, side, slot, keyword)


_kept_record: list[Any] = []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _keep_record() -> int:
    """Remember the tracer's record of changed objects, which a hook on a tensor replaces.

    Not in the body of an operator, at whose end the record is replaced anyway.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    output = InstructionTranslator.current_tx().output
    _kept_record[:] = [output.side_effects] if output.current_tracer.parent is None else []
    return 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _restore_record() -> int:
    """Put the first record, brought up to date, into the place of the copy.

    What has the first one in hand goes on writing into it (torch 2.13): attributes of an object
    that is made in the graph, as transformers' cache is, would be lost.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    output = InstructionTranslator.current_tx().output
    if _kept_record and output.side_effects is not _kept_record[0]:
        kept = _kept_record.pop()
        vars(kept).update(vars(output.side_effects))
        output.side_effects = kept
    _kept_record.clear()
    return 0


def _await_gradient(
    tensor: torch.Tensor, ticket: torch.Tensor, side: int, slot: int, keyword: str
) -> None:
    def arrived(grad: torch.Tensor) -> None:
        torch.ops.tensorprobe.backward(grad.detach(), ticket, side, slot, keyword)

    _keep_record()
    tensor.register_hook(arrived)  # type: ignore[no-untyped-call]
    _restore_record()


class TraceableHook:
    """The hooks of one module, to be traced into a graph, or to call the builtin ones."""

    def __init__(
        self, hook: _core.ModuleHook, module: torch.nn.Module | None, number: int, name: str
    ) -> None:
        self._forward_pre = hook.forward_pre
        self._forward = hook.forward
        self._module = module
        self._number = torch.tensor(number, device="cpu")
        self._name = name
        *sides, self._integers = hook.compiled_sides
        self._sides: tuple[Spec, ...] = tuple(sides)

    def _is_recorded(self, module: torch.nn.Module) -> bool:
        return (
            module is self._module
            and module.training
            and torch.is_grad_enabled()
            and not torch.compiler.is_exporting()
        )

    def _tensors(
        self, side: int, elements: list[Any], lengths: tuple[int, ...]
    ) -> list[torch.Tensor]:
        """Those of one side, which may be taken to have these lengths; 0: as a tensor."""
        spec = self._sides[side]
        found: list[torch.Tensor] = []
        if spec is None or isinstance(spec, str):
            return found
        if not spec:
            _add_tensors(elements, self._integers, found)
        elif spec[0] in lengths:
            _add_tensors(elements[spec[1]], True, found)
        else:
            there = -1 if 0 in lengths else lengths[0]
            _note_misfit(self._name, side, spec[0], spec[1], there)
        return found

    def _of_inputs(
        self, side: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], list[str]]:
        """Find them, and of each the keyword it was given by, where the target leaves that open."""
        if self._sides[side] == ():
            found = self._tensors(side, [*args], ())
            names = [""] * len(found)
            for keyword, value in kwargs.items():
                more = self._tensors(side, [value], ())
                found += more
                names += [keyword] * len(more)
            return found, names
        spec = self._sides[side]
        if isinstance(spec, str):
            picked: list[torch.Tensor] = []
            if spec in kwargs:
                _add_tensors(kwargs[spec], True, picked)
            else:
                _note_no_keyword(self._name, side, spec)
            return picked, [spec] * len(picked)
        elements = [*args, *kwargs.values()]
        if len(elements) == 1 and isinstance(elements[0], torch.Tensor):
            return self._tensors(side, elements, (0, 1)), []
        return self._tensors(side, elements, (len(args), len(elements))), []

    def _of_output(self, side: int, output: Any) -> list[torch.Tensor]:
        if isinstance(output, torch.Tensor):
            return self._tensors(side, [output], (0, 1))
        elements = _elements(output)
        return [] if elements is None else self._tensors(side, elements, (len(elements),))

    def forward_pre(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A forward pre-hook with kwargs."""
        if not is_traced():
            self._forward_pre(module, args, kwargs)
        elif self._is_recorded(module) and _place() == _GRAPH:
            tensors, names = self._of_inputs(_INPUT, args, kwargs)
            ticket = _observe(tensors, self._number, 0, names)
            tensors, names = self._of_inputs(_INPUT_GRAD, args, kwargs)
            _await_gradients(tensors, ticket, 0, names)

    def forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A forward hook with kwargs."""
        if not is_traced():
            self._forward(module, args, kwargs, output)
        elif self._is_recorded(module) and _place() != _ELSEWHERE:
            outputs = self._of_output(_OUTPUT, output)
            gradients = self._of_output(_OUTPUT_GRAD, output)
            if _place() == _GRAPH:
                _await_gradients(gradients, _observe(outputs, self._number, 1), 1)
            else:
                # What goes out unchanged may come from outside, and then takes no hook here.
                inputs: list[torch.Tensor] = []
                _add_tensors((args, kwargs), False, inputs)
                ticket = _observe(outputs, self._number, _CHECKPOINTED)
                _await_gradients(gradients, ticket, 1, besides=inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or copied model takes its hooks along; they must load, and then do nothing."""
        return _inert, ()


def _inert() -> TraceableHook:
    return TraceableHook(_core.inert_hook(), None, 0, "")


# ---- When ----


class _Builtin(NamedTuple):
    hook: _core.ModuleHook
    module: torch.nn.Module
    name: str
    handles: list[RemovableHandle]


class CompileWatch:
    """The hooks of one session, which become traceable when something is compiled."""

    def __init__(self) -> None:
        self._builtin: list[_Builtin] = []
        self._own_numbers: list[int] = []

    def add(
        self,
        hook: _core.ModuleHook,
        module: torch.nn.Module,
        name: str,
        handles: list[RemovableHandle],
    ) -> None:
        """Take a module's hooks into account: forward_pre, and forward if it has one."""
        self._builtin.append(_Builtin(hook, module, name, handles))

    @property
    def is_used(self) -> bool:
        """Whether modules with these hooks may have been compiled."""
        return bool(self._own_numbers)

    def keep(self, hooks: set[_core.ModuleHook]) -> None:
        """Forget the others, which were taken back."""
        self._builtin = [one for one in self._builtin if one.hook in hooks]

    def start(self) -> None:
        """After the hooks were registered. What was compiled before would never call them."""
        handler = _callbacks()
        if handler is None:
            return
        _watches.add(self)
        if _on_compile_start not in handler.start_callbacks:
            handler.register_start_callback(_on_compile_start)
        from torch._dynamo import convert_frame

        if convert_frame.input_codes.seen:
            torch._dynamo.reset_code_caches()

    def become_traceable(self) -> None:
        """Put traceable hooks in the builtin ones' places."""
        if not self._builtin:
            return
        if not is_supported():
            _warn_once(
                f"torch {torch.__version__} can't compile hooks that see values: the graph breaks "
                f"at each of the {len(self._builtin)} modules whose activations are recorded. "
                'Write "xy_distribution": false to record gradients and parameters alone, or '
                "use torch 2.13"
            )
            return
        _define_operators()
        waiting, self._builtin = self._builtin, []
        for one in waiting:
            number = next(_numbers)
            _hooks[number] = one.hook
            self._own_numbers.append(number)
            traceable = TraceableHook(one.hook, one.module, number, one.name)
            both = (traceable.forward_pre, traceable.forward)
            for handle, function in zip(one.handles, both, strict=False):
                hooks = handle.hooks_dict_ref()
                if hooks is not None and handle.id in hooks:
                    hooks[handle.id] = function

    def stop(self) -> None:
        """The hooks are gone. What a compiled graph still calls does nothing."""
        _watches.discard(self)
        self._builtin.clear()
        for number in self._own_numbers:
            _hooks.pop(number, None)
        self._own_numbers.clear()
        handler = _callbacks()
        if handler is not None and not _watches and _on_compile_start in handler.start_callbacks:
            handler.remove_start_callback(_on_compile_start)


_watches: weakref.WeakSet[CompileWatch] = weakref.WeakSet()


def _callbacks() -> Any:
    """Who is told of compilations; None: this torch has nobody."""
    try:
        from torch._dynamo.callback import callback_handler
    except ImportError:
        return None
    return callback_handler


def _on_compile_start(_: Any = None) -> None:
    for watch in list(_watches):
        try:
            watch.become_traceable()
        except Exception as error:
            _warn_once(f"the hooks break compiled graphs: {error}")


def _is_wrapper(module: Any) -> bool:
    """Whether torch.compile has put a module into this one. False where it was never used."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return eval_frame is not None and isinstance(module, eval_frame.OptimizedModule)


def original(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, where torch.compile has put it into another one."""
    while _is_wrapper(module):
        module = module._orig_mod  # type: ignore[assignment]
    return module


def name_in_original(model: torch.nn.Module, name: str) -> str:
    """The name that a part of the model had before parts of it were compiled."""
    if "_orig_mod" not in name:
        return name
    kept = []
    place: Any = model
    for part in name.split("."):
        if not (part == "_orig_mod" and _is_wrapper(place)):
            kept.append(part)
        place = getattr(place, part)
    return ".".join(kept)
