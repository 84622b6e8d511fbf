"""Where frameworks keep gradients, moments and weights: one file for each framework.

A file is imported only when the framework itself has been, and has one function::

    def adapt(chunks, optimizer) -> Adapter | None

``chunks``: the modules that are watched, in order (with virtual pipelines several). ``optimizer``:
what the user gave, with all its wrappers; None when nothing was given. It answers with an adapter
if these are its framework's objects, by what they are and not by what somebody called them.
A file may also have ``expect(chunks, found) -> list[Handle] | None``: where no optimizer has been
given, it calls ``found(optimizer)`` when the framework makes one for these, or steps with it.
``find`` asks the files in the order of ``_KNOWN``: who wraps others comes first. A framework that
only wraps another (accelerate, a trainer) unwraps, and returns ``find(inner chunks, inner
optimizer)``.

What an adapter tells (class ``Adapter``; whatever it doesn't know better it inherits, and that is
right for a plain torch optimizer):

* ``original(name)``: a module's or parameter's name without what the framework put into it.
* ``expand(name, parameter)``: the parameters that this one stands for (a flat parameter holds
  many), as (original name, parameter) pairs. A parameter may stand in several.
* ``span(row)``: which part of the whole tensor is here, and how many have the same: a ``Span``.
  None where the process has no part at all: such a row has no values, but for the next one.
* ``local_span(row)``: which part the gradient covers before it is reduced. (Shards of gradients and
  moments are often made by the reduction: before it each process has all of the gradient.)
* ``place(row)``: what tells rows apart that have the same parameter object and span; rows that are
  equal in all three are names of the same values (tied weights), which are read once.
* ``global_name(row)``: the name with layers counted over pipeline stages.
* ``locate(rows, after)``: where each row's values are now, a ``Part`` or None (not here) for each,
  in order. Called when the gradients are taken and at the step's entry (after False), and behind
  the update (after True: only weights are asked for). Tensors are the framework's own or views of
  them (``flat[a:b]``, ``narrow``), never copies; a gradient may also be a function that makes it,
  where the framework keeps nothing better: it is called when its turn comes. Only called if
  ``locates`` is true; otherwise .grad (or .main_grad), the torch optimizer's state and the
  parameter itself are read, DTensors by their local tensors.
* ``boundary(hook)``: registers the hook where a step of this framework begins and ends, and returns
  the handles: ``hook.step_pre(optimizer, (), {})`` when gradients are reduced and not yet clipped,
  ``hook.step_post(optimizer, (), {})`` when the update has been made. None: a torch optimizer's own
  hooks do. Where gradients are whole earlier than the step (a callback before clipping),
  ``hook.unscaled(optimizer)`` takes them then. Of a step that the framework skips,
  ``hook.mark_skipped()`` in between says so.
* ``early(hook)``, if it isn't None: registers what takes gradients before the step, as above.
* ``before_reduction(hook, rows, micro)``: registers what records gradients that are not reduced
  yet, and returns the handles. micro: of every micro step (``monitor_mbs_grad``), as
  ``hook.take(GRAD_UNREDUCED, row numbers, tensors, True)`` (or the micro step's number, where later
  ones have run forward by then); otherwise once a step, where a buffer
  holds the sum of this process's micro steps, with False. None: there is no such buffer.
  Row numbers are places in ``rows``. ``hook.take`` does nothing on steps that aren't collected,
  and never raises.
* ``reduces``: whether gradients are summed over processes before the step. If not, the gradient at
  the step's entry is both, unreduced and reduced.
* ``norm()``: the gradient norm that the framework has computed for the step that is about to end,
  for ``self_check``; and ``group``: the processes among which it is told apart.

Handles have ``remove()``. ``_patch.listen`` makes those of a function that has to be wrapped: it is
shared by all sessions, and the last one puts the original back.

Nothing here may start a collective, keep a tensor alive beyond a call, or change what the framework
does. What can't be found is absent and said once (``_messages.complain``), never made up.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from tensorprobe import _core

_KNOWN: list[tuple[str, str]] = [
    ("megatron.core.optimizer", "_megatron"),
    ("deepspeed.runtime.engine", "_deepspeed"),
    ("lightning.pytorch", "_lightning"),
    ("pytorch_lightning", "_lightning"),
    ("accelerate.optimizer", "_accelerate"),
    ("torch.nn.parallel.distributed", "_ddp"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "_fsdp1"),
    ("torch.distributed.fsdp._fully_shard", "_fsdp2"),
    ("torch.distributed.tensor", "_dtensor"),
]
"""A module that is there when the framework has been imported, and our file for it."""


class Handle(Protocol):
    """What takes a hook back."""

    def remove(self) -> None:
        """Take it back."""


class Span(NamedTuple):
    """Which part of a whole tensor this process has."""

    kind: str
    """``whole``; ``flat``: one range of its elements in row-major order; ``box``: one range of each
    dimension."""
    ranges: tuple[tuple[int, int, int], ...] = ()
    """(start, length, length of the whole)."""
    copies: int = 1
    """Processes that have this part, this one included; 0: not known."""
    copy: int = 0
    """Which of them this is, from 0."""


class Part(NamedTuple):
    """Where the values of one row are now. What isn't there is None."""

    weight: torch.Tensor | None
    gradient: torch.Tensor | Callable[[], torch.Tensor] | None
    """Reduced and not clipped, unless there is nothing else."""
    state: dict[str, Any] | None
    """``exp_avg``, ``exp_avg_sq`` and ``step`` of this part; others are not looked at."""
    group: dict[str, Any] | None
    """``betas`` and ``eps`` (and ``step``, if it is kept there): the parameter's group."""


class Row(NamedTuple):
    """A parameter under one of its names."""

    name: str
    """Of the files: the original name, shortened if that is wanted."""
    parameter: torch.nn.Parameter
    vpp_stage: int
    original: str


class Norm(NamedTuple):
    """The norm of all gradients, as a framework has computed it."""

    value: float
    clip: float | None = None
    """Given when gradients were recorded after clipping to this norm."""


class Adapter:
    """What is true of plain torch: one process's parameters, whole, in ``.grad`` and ``state``."""

    framework = "torch"
    reduces = False
    locates = False
    early: Callable[[_core.OptimizerHook], list[Handle]] | None = None
    """Where gradients are whole before the step, and clipped in between: registers what calls
    ``hook.unscaled(optimizer)`` then."""
    optimizer: Any = None
    """What steps, as ``step_pre`` was given it: while ``locate`` runs."""

    def original(self, name: str) -> str:
        """Return the name without what the framework put into it."""
        return name

    def expand(
        self, name: str, parameter: torch.nn.Parameter
    ) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters that this one stands for, under their original names."""
        return [(self.original(name), parameter)]

    def span(self, row: Row) -> Span | None:
        """Return which part of the parameter is here; None: none."""
        return Span("whole")

    def local_span(self, row: Row) -> Span | None:
        """Return which part the gradient covers that isn't reduced yet; None: it is never seen."""
        return Span("whole")

    def place(self, row: Row) -> Any:
        """Return what tells rows of one parameter apart, which are not names of the same."""
        return None

    def global_name(self, row: Row) -> str | None:
        """Return the name with layers counted over pipeline stages; None: the name."""
        return None

    def locate(self, rows: Sequence[Row], after: bool) -> list[Part | None]:
        """Return where the values of each row are."""
        raise NotImplementedError

    def boundary(self, hook: _core.OptimizerHook) -> list[Handle] | None:
        """Register the hook where steps begin and end; None: a torch optimizer's own hooks do."""
        return None

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        """Register what records gradients before they are reduced; None: nothing can."""
        if self.reduces and not micro:
            return None
        return on_accumulated(hook, rows)

    def norm(self) -> Norm | None:
        """Return the gradient norm of the step that is about to end; None: it isn't known."""
        return None

    def kinds(self) -> set[str]:
        """Return what the ancestors' ``opt_ty`` may call this; nothing: any of their words."""
        return set()

    @property
    def group(self) -> Any:
        """The process group over which rows together are the whole; None: all processes."""
        return None


def on_accumulated(hook: _core.OptimizerHook, rows: Sequence[Row]) -> list[Handle]:
    """Have the hook look at each .grad of the rows when something has been added to it."""
    handles: list[Handle] = []
    for parameter in {id(row.parameter): row.parameter for row in rows}.values():
        if parameter.requires_grad:
            register: Any = parameter.register_post_accumulate_grad_hook
            handles.append(register(hook.accumulated))
    return handles


def expect(chunks: Sequence[torch.nn.Module], found: Callable[[Any], None]) -> list[Handle]:
    """Tell of an optimizer that some framework makes for these later, or steps with."""
    from tensorprobe._frameworks._careful import ask

    handles: list[Handle] = []
    for needed, file in _KNOWN:
        if needed in sys.modules:
            own: Any = getattr(importlib.import_module(f"{__name__}.{file}"), "expect", None)
            if own is not None:
                nothing: list[Handle] = []
                handles += ask(needed, "expect", nothing, own, chunks, found) or nothing
    return handles


def when_wrapped(
    chunks: Callable[[], Sequence[torch.nn.Module]], call: Callable[[], None]
) -> list[Handle]:
    """Have it called when DistributedDataParallel is put around a chunk that is watched already."""
    owner = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if owner is None:
        return []
    from tensorprobe._frameworks._patch import listen

    def after(_: None, ddp: Any, *__: Any, **___: Any) -> None:
        if any(ddp.module is chunk for chunk in chunks()):
            call()

    return [listen(owner, "__init__", after=after)]


def find(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of the framework that these objects belong to; None: plain torch's.

    What it asks in vain, as this is another version of the framework, it says once.
    """
    from tensorprobe._frameworks._careful import Careful

    found = _find(chunks, optimizer)
    return found if found is None or isinstance(found, Careful) else Careful(found)


def _find(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    from tensorprobe._frameworks._careful import ask

    for needed, file in _KNOWN:
        if needed in sys.modules:
            adapt = importlib.import_module(f"{__name__}.{file}").adapt
            adapter: Adapter | None = ask(needed, "adapt", None, adapt, chunks, optimizer)
            if adapter is not None:
                return adapter
    if is_stranger(optimizer):
        return importlib.import_module(f"{__name__}._generic").Generic(optimizer)  # type: ignore
    if "torch.nn.parallel.distributed" not in sys.modules:
        return None
    from tensorprobe._frameworks import _ddp

    return _ddp.around(chunks)


def is_stranger(optimizer: Any) -> bool:
    """Whether it steps with parameters, but is no torch optimizer and has none inside."""
    if optimizer is None or isinstance(optimizer, Sequence):
        return False
    from tensorprobe._scaling import inner_optimizer

    steps = any("step" in vars(one) for one in type(optimizer).__mro__)
    groups = getattr(optimizer, "param_groups", None)
    return steps and isinstance(groups, list) and inner_optimizer(optimizer) is None
