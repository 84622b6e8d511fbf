"""The hooks on a model's optimizers, and on what a framework does with its gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _core, _scaling
from tensorprobe._checks import Checks
from tensorprobe._clipping import before_clipping
from tensorprobe._frameworks import Adapter, Handle, Row
from tensorprobe._messages import complain
from tensorprobe._ranks import rank_in, reduces_gradients, world_size
from tensorprobe._strangers import Strangers
from tensorprobe._targets import Selection

if TYPE_CHECKING:
    import torch

Metrics = dict[str, dict[str, Any]]


def torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer itself, or the one inside of its wrappers."""
    inner = _scaling.inner_optimizer(optimizer)
    if inner is not None:
        return inner
    raise TypeError(
        f"a {type(optimizer).__name__} has no step hooks, and no torch optimizer as .optimizer: "
        "pass the torch optimizer whose step() ends a training step"
    )


class Optimizers:
    """The optimizers of one session: which they are, and what is recorded of them."""

    def __init__(
        self,
        monitor: _core.Monitor,
        main_grad: bool,
        selection: Callable[[], Selection],
        is_on: Callable[[], bool],
        is_selected: Callable[[], tuple[bool, bool]],
    ) -> None:
        """selection: what the configuration means in the model now. is_on: modules have hooks.

        is_selected: whether this rank is watched, and whether it speaks for all.
        """
        self._monitor = monitor
        self._main_grad = main_grad
        self._selection = selection
        self._is_on = is_on
        self._is_selected = is_selected
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._hooks: list[_core.OptimizerHook] = []
        self._handles: list[Any] = []
        self._reduction_handles: list[Handle] = []
        self._has_warned_of_reduction = False
        self._is_missing = False  # what is recorded before a reduction
        self.waits = False  # for a framework's optimizer, which may know more
        self._adapter: Adapter | None = None
        self._dp_rank = self._tp_rank = 0
        self._checks: Checks | None = None
        self._shares: list[list[Row]] = []  # what each hook reads
        self._others: list[Row] | None = None  # what none of them does; None: not looked for
        self._reports: list[Callable[[], None]] = []

    def have_copies(self, dp_group: Any, tp_group: Any) -> None:
        """Record reduced gradients that a group's processes share in the first of them alone.

        dp_group: they share all; tp_group: those of parameters that aren't tensor_model_parallel.
        """
        self._dp_rank = rank_in(dp_group)
        self._tp_rank = rank_in(tp_group)

    @property
    def last(self) -> torch.optim.Optimizer | None:
        """The one that ends a step; None: the first one that steps does, or a framework's."""
        return self._optimizers[-1]() if self._optimizers else None

    def use(self, optimizer: Any, adapter: Adapter | None) -> None:
        """End steps with this optimizer's from now on, instead of with the one before."""
        self._adapter = adapter
        if adapter is not None and self._use_boundary(adapter):
            return
        every = optimizer if isinstance(optimizer, Sequence) else [optimizer]
        try:
            own = [torch_optimizer(one) for one in every if one is not None]
        except Exception:
            if adapter is None:
                raise
            own = []  # a framework's, which could not be asked: the first one that steps
        self.forget()
        self._hook_optimizers(own)
        strangers = Strangers(own, lambda: self._selection().members(), self._is_on)
        self._handles.extend(strangers.register())

    def _use_boundary(self, adapter: Adapter) -> bool:
        """Have the framework's own steps end ours; False: it leaves that to torch's optimizers."""
        hook = self._monitor.optimizer_hook([], self._main_grad, None, True)
        handles = adapter.boundary(hook)
        if handles is None:
            return False
        self.forget()
        self._hooks.append(hook)
        self._handles.extend(handles)
        self._hook_early()
        self.watch()
        return True

    def _hook_early(self) -> None:
        """Have gradients taken before they are clipped, which may be before the step."""
        early = None if self._adapter is None else self._adapter.early
        if early is None:
            self._handles.extend(before_clipping(self._clips))
            return
        for hook in self._hooks:
            self._handles.extend(early(hook))

    def _clips(self, concerns: Callable[[torch.Tensor], bool]) -> None:
        """Record the gradients of each optimizer some of whose the loop is about to clip."""
        for hook, rows in zip(self._hooks, self._shares, strict=True):
            if any(one.parameter.grad is not None and concerns(one.parameter.grad) for one in rows):
                hook.clipping()

    def report(self, report: Callable[[], None]) -> None:
        """Have this called at the end of each step, while it is open."""
        self._reports.append(report)
        if self._hooks:
            self._hooks[-1].ending = self._ending

    def norm(self) -> float | None:
        """The gradient norm that a framework has computed for the step that ends; None: none."""
        found = None if self._adapter is None else self._adapter.norm()
        return None if found is None else found.value

    def _ending(self) -> None:
        check = None if self._checks is None else self._checks.ending
        if check is not None:
            check()
        for report in tuple(self._reports):
            try:
                report()
            except Exception as error:
                self._reports.remove(report)
                complain(f"at the end of a step: {error}: that isn't recorded from now on")

    def forget(self) -> None:
        """Take every hook back."""
        _remove(self._handles)
        _remove(self._reduction_handles)
        if self._checks is not None:
            self._checks.remove()
            self._checks = None
        for hook in self._hooks:
            hook.locate = hook.reducer = hook.ending = None
            _scaling.forget(hook)
        self._hooks.clear()
        self._optimizers.clear()

    def close(self) -> None:
        """Take every hook back, and let go of everything."""
        self.forget()
        self._reports.clear()
        self._adapter, self._shares, self._others = None, [], None

    def on_step_end(self, after: Callable[..., None]) -> list[Any] | None:
        """Have this called where a framework's steps have ended; None: no framework's steps count.

        Otherwise the handles.
        """
        end: Any = _End(after)
        return None if self._adapter is None else self._adapter.boundary(end)

    def kinds(self) -> set[str]:
        """What the ancestors' ``opt_ty`` may call the optimizer; empty: anything."""
        return set() if self._adapter is None else self._adapter.kinds()

    def watch(self, adapter: Adapter | None = None) -> None:
        """Look at the parameters that are to be recorded now. adapter: another one than before."""
        self._adapter = adapter or self._adapter
        _remove(self._reduction_handles)
        missing = False
        self._shares, self._others = self._rows(), None
        for hook, rows in zip(self._hooks, self._shares, strict=True):
            missing = not self._watch(hook, rows) or missing
        self._is_missing = missing
        if self._adapter is not None:
            self.warn_of_reduction()
        if self._checks is None and self._hooks:
            hooks = tuple(self._hooks)
            self._checks = Checks(
                self._monitor, hooks, lambda: self._adapter, self._watched, self._left_out
            )
            wanted = self._checks.ending is not None or self._reports
            hooks[-1].ending = self._ending if wanted else None

    def _watched(self) -> list[Row]:
        return [row for rows in self._shares for row in rows]

    def _left_out(self) -> list[Row]:
        """Of the model's parameters those of which this process records nothing."""
        if self._others is None:
            selection = self._selection()
            others = selection.others()
            if not self._is_selected()[0]:
                others += selection.parameters()
            self._others = [Row(p.name, p.parameter, p.vpp_stage, p.original) for p in others]
        return self._others

    def _watch(self, hook: _core.OptimizerHook, rows: list[Row]) -> bool:
        """Give the hook its rows. False: their gradients are there only when they are reduced."""
        adapter = self._adapter
        if adapter is None:
            hook.watch(
                [
                    (*row[:3], None, None, None, False, self._is_duplicate(row.parameter))
                    for row in rows
                ]
            )
            hook.locate = None
        else:
            rows = self._watch_adapted(hook, rows, adapter)
        config = self._monitor.config
        micro = config["monitor_mbs_grad"]
        reduces = reduces_gradients() if adapter is None else adapter.reduces
        if not rows or not config["wg_distribution"] or not (micro or reduces):
            return True
        if adapter is None and not micro:
            return False
        handles = (adapter or Adapter()).before_reduction(hook, rows, micro)
        self._reduction_handles.extend(handles or [])
        return handles is not None

    def _watch_adapted(
        self, hook: _core.OptimizerHook, rows: list[Row], adapter: Adapter
    ) -> list[Row]:
        known: list[Row] = []
        told: list[Any] = []
        for row in rows:
            span = adapter.span(row)
            local = adapter.local_span(row) if adapter.reduces else span
            if span is not None or local is not None:
                known.append(row)
                duplicate = self._is_duplicate(row.parameter)
                name = adapter.global_name(row)
                place = adapter.place(row)
                told.append((*row[:3], span, name, local, span is None, duplicate, place))

        def locate(after: bool, optimizer: Any) -> list[Any]:
            adapter.optimizer = optimizer
            try:
                return adapter.locate(known, after)
            finally:
                adapter.optimizer = None

        hook.watch(told)
        hook.locate = locate if adapter.locates else None
        return known

    def _is_duplicate(self, parameter: torch.nn.Parameter) -> bool:
        """Whether another process of the groups that were given records the same gradient."""
        return (self._dp_rank > 0) or (
            self._tp_rank > 0 and not getattr(parameter, "tensor_model_parallel", False)
        )

    def _rows(self) -> list[list[Row]]:
        """What each optimizer reads: its own parameters, the last one those of nobody, too."""
        config = self._monitor.config
        adapter = self._adapter
        micro = config["monitor_mbs_grad"]
        reduces = reduces_gradients() if adapter is None else adapter.reduces
        # What hooks have recorded before the reduction isn't there at the step's entry.
        self._monitor.reduced_only = reduces or micro
        switches = ("wg", "mv", "param", "ur")
        wanted = any(config[f"{one}_distribution"] for one in switches) or config["mg_direction"]
        rows: list[Row] = []
        if wanted and self._is_selected()[0]:
            rows = [
                Row(p.name, p.parameter, p.vpp_stage, p.original)
                for p in self._selection().parameters()
            ]
        shares = []
        for optimizer in [known() for known in self._optimizers[:-1]]:
            groups = [] if optimizer is None else optimizer.param_groups
            own = {id(p) for group in groups for p in group["params"]}
            shares.append([row for row in rows if id(row.parameter) in own])
            rows = [row for row in rows if id(row.parameter) not in own]
        return [*shares, rows]

    def warn_of_reduction(self) -> None:
        """Say once that unreduced gradients are left out, as nothing has held them."""
        if not self._is_missing or self._has_warned_of_reduction or not self._is_selected()[1]:
            return
        if self.waits:
            return
        self._has_warned_of_reduction = True
        where = "" if self._adapter is None else f" by {self._adapter.framework}"
        complain(
            f"torch.distributed runs {world_size()} processes: grad_unreduced is not recorded, "
            f"for by the optimizer's step .grad holds the gradient as reduced{where} "
            '(grad_reduced); "monitor_mbs_grad": true records each micro step\'s'
        )

    def _hook_optimizers(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self._optimizers = [weakref.ref(one) for one in optimizers]
        last = optimizers[-1] if optimizers else None
        members = self._selection().members() if last is None else None
        every: list[torch.optim.Optimizer | None] = [*optimizers] or [None]
        for optimizer in every:
            ends = optimizer is last
            hook = self._monitor.optimizer_hook([], self._main_grad, members, ends)
            self._hooks.append(hook)
            self._handles.extend(on_step(optimizer, hook.step_pre, hook.step_post))
            _scaling.listen(hook, optimizer)
        self._hook_early()
        self.watch()

    def gradients(self) -> Metrics:
        """Read every watched parameter's gradient as it is now, recording nothing."""
        return {
            f"{stage}:{name}": values
            for hook in self._hooks
            for stage, name, values in hook.gradients()
        }

    def with_state(self, stage: int, name: str) -> tuple[torch.nn.Parameter, Any] | None:
        """The parameter that has rows under this name, and what an optimizer keeps for it."""
        for row in self._watched():
            if (row.vpp_stage, row.name) == (stage, name):
                optimizers = [one for known in self._optimizers if (one := known()) is not None]
                states = [one.state for one in optimizers if row.parameter in one.state]
                return row.parameter, states[0][row.parameter] if states else {}
        return None

    def take_gradients(self) -> None:
        """Record the gradients as reduced now, and not at the step's entry."""
        for hook in self._hooks:
            hook.unscaled(self.last)

    def has_member(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer is one of the session's."""
        return any(known() is optimizer for known in self._optimizers)


class _End:
    """Stands where a hook would, and hears of ends of steps alone."""

    def __init__(self, after: Callable[..., None]) -> None:
        self._after = after

    def step_pre(self, *_: Any) -> None:
        """Do nothing."""

    def step_post(self, optimizer: Any, *_: Any) -> None:
        """Tell."""
        self._after(optimizer)

    def mark_skipped(self) -> None:
        """Do nothing."""


def on_step(optimizer: torch.optim.Optimizer | None, before: Any, after: Any) -> list[Any]:
    """Have these, where they are any, called before and after the optimizer's steps.

    optimizer: None: those of all optimizers.
    """
    if optimizer is None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        handles = (
            before and register_optimizer_step_pre_hook(before),
            after and register_optimizer_step_post_hook(after),
        )
    else:
        handles = (
            before and optimizer.register_step_pre_hook(before),
            after and optimizer.register_step_post_hook(after),
        )
    return [handle for handle in handles if handle]


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
