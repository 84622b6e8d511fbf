"""Observing inside torch.compile without breaking its graphs.

A builtin hook breaks a compiled graph at its module, and a Python hook that is traced sees no
values. What works is a Python hook that calls an operator with an effect: the operator stays in the
graph, in order, and sees real tensors, in the forward and, called from a tensor's hook, in the
backward. So as long as nothing is compiled in this process the modules have the builtin hooks;
with the first compilation they get ``TraceableHook``, which calls the builtin one when it is not
being traced.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from tensorprobe import _core

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Spec = tuple[int, ...] | None
"""None: nothing; (): every tensor; (0, 0): the only one; (n, i): element i of n."""

_INPUT, _OUTPUT, _INPUT_GRAD, _OUTPUT_GRAD = range(4)

_hooks: dict[int, _core.ModuleHook] = {}
_numbers = itertools.count(1)
_library: Any = None


# ---- The operators ----


def _run_forward(tensors: list[torch.Tensor], number: torch.Tensor, side: int) -> torch.Tensor:
    own = int(number)
    hook = _hooks.get(own)
    return torch.tensor((own, *hook.compiled_forward(tensors, side)) if hook else (own, 0, 0, 0))


def _run_checkpointed(tensors: list[torch.Tensor], number: torch.Tensor) -> torch.Tensor:
    return _run_forward(tensors, number, 2)


def _run_backward(grad: torch.Tensor, ticket: torch.Tensor, side: int, slot: int) -> None:
    own, step, micro_step, call = ticket.tolist()
    hook = _hooks.get(own)
    if hook is not None:
        hook.compiled_backward(grad, side, slot, step, micro_step, call)


def _define_operators() -> None:
    """Once a process; without a watched model they do nothing.

    forward gives a ticket: what says to the backward which hook, step, micro step and call a
    gradient belongs to. The hook's number is a tensor so that equal modules share a graph.
    checkpointed is forward for what a module in a checkpointed part returns. It has no effect, as
    the compiler sees it, so that it may be moved to the backward together with that part; it stays
    because a gradient needs its ticket.
    """
    global _library
    if _library is not None:
        return
    library: Any = torch.library.Library("tensorprobe", "DEF")  # type: ignore[no-untyped-call]
    library.define("forward(Tensor[] tensors, Tensor number, int side) -> Tensor")
    library.define("checkpointed(Tensor[] tensors, Tensor number) -> Tensor")
    library.define("backward(Tensor grad, Tensor ticket, int side, int slot) -> ()")
    library.impl("forward", _run_forward, "CompositeExplicitAutograd")
    library.impl("checkpointed", _run_checkpointed, "CompositeExplicitAutograd")
    library.impl("backward", _run_backward, "CompositeExplicitAutograd")

    def fake_forward(tensors: list[torch.Tensor], number: torch.Tensor, side: int) -> torch.Tensor:
        return number.new_empty((4,))

    def fake_checkpointed(tensors: list[torch.Tensor], number: torch.Tensor) -> torch.Tensor:
        return number.new_empty((4,))

    def fake_backward(grad: torch.Tensor, ticket: torch.Tensor, side: int, slot: int) -> None:
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


def _add_tensors(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            found.append(value)
    elif isinstance(value, (tuple, list)):
        for element in value:
            _add_tensors(element, found)
    elif isinstance(value, dict):
        for element in value.values():
            _add_tensors(element, found)


def _chosen(spec: Spec, elements: list[Any], lengths: Sequence[int]) -> list[torch.Tensor]:
    """The tensors that a spec names; none where it doesn't fit."""
    found: list[torch.Tensor] = []
    if spec is None:
        return found
    if not spec:
        _add_tensors(elements, found)
    elif spec[0] in lengths:
        _add_tensors(elements[spec[1]], found)
    return found


def _of_inputs(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    elements = [*args, *kwargs.values()]
    if len(elements) == 1 and isinstance(elements[0], torch.Tensor):
        return _chosen(spec, elements, (0, 1))
    return _chosen(spec, elements, (len(args), len(elements)))


def _of_output(spec: Spec, output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return _chosen(spec, [output], (0, 1))
    if isinstance(output, dict):
        return _chosen(spec, list(output.values()), (len(output),))
    if isinstance(output, (tuple, list)):
        return _chosen(spec, list(output), (len(output),))
    return []


_GRAPH, _CHECKPOINT, _ELSEWHERE = range(3)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _place() -> int:
    """Where the part is that is being traced: in the graph, or in an operator with a body.

    Of these a checkpointed part alone is known to take what is done here.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer = InstructionTranslator.current_tx().output.current_tracer
    place = _GRAPH
    while tracer.parent is not None:
        name = getattr(tracer.source_target, "__name__", "")
        if name != "tag_activation_checkpoint":
            return _ELSEWHERE
        place = _CHECKPOINT
        tracer = tracer.parent
    return place


def _observe(tensors: list[torch.Tensor], number: torch.Tensor, side: int) -> torch.Tensor:
    detached = [tensor.detach() for tensor in tensors]
    ticket: torch.Tensor = torch.ops.tensorprobe.forward(detached, number, side)
    return ticket


def _await_gradients(
    tensors: list[torch.Tensor],
    ticket: torch.Tensor,
    side: int,
    besides: Sequence[torch.Tensor] = (),
) -> None:
    for slot, tensor in enumerate(tensors):
        # A parameter would keep the hook, and one more with every forward.
        kept = isinstance(tensor, torch.nn.Parameter) or any(tensor is one for one in besides)
        if tensor.requires_grad and not kept:
            _await_gradient(tensor, ticket, side, -1 if len(tensors) == 1 else slot)


def _await_gradient(tensor: torch.Tensor, ticket: torch.Tensor, side: int, slot: int) -> None:
    def arrived(grad: torch.Tensor) -> None:
        torch.ops.tensorprobe.backward(grad.detach(), ticket, side, slot)

    tensor.register_hook(arrived)  # type: ignore[no-untyped-call]


class TraceableHook:
    """The hooks of one module, to be traced into a graph, or to call the builtin ones."""

    def __init__(self, hook: _core.ModuleHook, module: torch.nn.Module | None, number: int) -> None:
        self._forward_pre = hook.forward_pre
        self._forward = hook.forward
        self._module = module
        self._number = torch.tensor(number)
        self._sides: tuple[Spec, ...] = hook.compiled_sides

    def _is_recorded(self, module: torch.nn.Module) -> bool:
        return (
            module is self._module
            and module.training
            and torch.is_grad_enabled()
            and not torch.compiler.is_exporting()
        )

    def forward_pre(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A forward pre-hook with kwargs."""
        if not torch.compiler.is_dynamo_compiling():
            self._forward_pre(module, args, kwargs)
        elif self._is_recorded(module) and _place() == _GRAPH:
            inputs = _of_inputs(self._sides[_INPUT], args, kwargs)
            ticket = _observe(inputs, self._number, 0)
            _await_gradients(_of_inputs(self._sides[_INPUT_GRAD], args, kwargs), ticket, 0)

    def forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A forward hook with kwargs."""
        if not torch.compiler.is_dynamo_compiling():
            self._forward(module, args, kwargs, output)
        elif self._is_recorded(module) and _place() != _ELSEWHERE:
            outputs = _of_output(self._sides[_OUTPUT], output)
            gradients = _of_output(self._sides[_OUTPUT_GRAD], output)
            if _place() == _GRAPH:
                _await_gradients(gradients, _observe(outputs, self._number, 1), 1)
            else:
                detached = [tensor.detach() for tensor in outputs]
                ticket = torch.ops.tensorprobe.checkpointed(detached, self._number)
                # What goes out unchanged may come from outside, and then takes no hook here.
                inputs = _of_inputs((), args, kwargs)
                _await_gradients(gradients, ticket, 1, besides=inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or copied model takes its hooks along; they must load, and then do nothing."""
        return _inert, ()


def _inert() -> TraceableHook:
    return TraceableHook(_core.inert_hook(), None, 0)


# ---- When ----


class CompileWatch:
    """The hooks of one session, which become traceable when something is compiled."""

    def __init__(self) -> None:
        self._builtin: list[tuple[_core.ModuleHook, torch.nn.Module, list[RemovableHandle]]] = []
        self._own_numbers: list[int] = []
        self._warned = False

    def add(
        self, hook: _core.ModuleHook, module: torch.nn.Module, handles: list[RemovableHandle]
    ) -> None:
        """Take a module's hooks into account: forward_pre, and forward if it has one."""
        self._builtin.append((hook, module, handles))

    def keep(self, hooks: set[_core.ModuleHook]) -> None:
        """Forget the others, which were taken back."""
        self._builtin = [one for one in self._builtin if one[0] in hooks]

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
            self._warn_of_breaks()
            return
        _define_operators()
        waiting, self._builtin = self._builtin, []
        for hook, module, handles in waiting:
            number = next(_numbers)
            _hooks[number] = hook
            self._own_numbers.append(number)
            traceable = TraceableHook(hook, module, number)
            both = (traceable.forward_pre, traceable.forward)
            for handle, function in zip(handles, both, strict=False):
                hooks = handle.hooks_dict_ref()
                if hooks is not None and handle.id in hooks:
                    hooks[handle.id] = function

    def _warn_of_breaks(self) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"tensorprobe: torch {torch.__version__} can't compile hooks: the graph breaks at each "
            f"of the {len(self._builtin)} modules whose activations are recorded; "
            'write "xy_distribution": false to record parameters and gradients alone, '
            "or use torch 2.13",
            RuntimeWarning,
            stacklevel=2,
        )

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
            warnings.warn(
                f"tensorprobe: the hooks break compiled graphs: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


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
