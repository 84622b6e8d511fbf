"""Optimizers that step with parameters of a watched model, though nobody has told of them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe._arguments import kind
from tensorprobe._messages import complain

if TYPE_CHECKING:
    import torch

    Optimizer = torch.optim.Optimizer


class Strangers:
    """Warns once, when one steps: the steps don't end with it.

    What steps within another's step is part of that one, whichever of the two is known.
    """

    def __init__(
        self,
        known: Sequence[Optimizer],
        members: Callable[[], set[torch.nn.Parameter]],
        is_on: Callable[[], bool],
    ) -> None:
        """known: none means the first that steps and has a parameter of the model."""
        self._known = [weakref.ref(one) for one in known]
        self._takes_first = not known
        self._members = members
        self._is_on = is_on
        self._pid = os.getpid()
        self._others: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # of other models
        self._steps = 0  # of those that are known
        self._is_running = False  # one of them
        self._begun = (0, 0)  # a stranger, and how many steps there had been
        self._has_warned = False
        self._is_traced: Callable[[], bool] = lambda: False  # as long as torch has no such thing

    def register(self) -> list[Any]:
        """Listen to all optimizers; the hooks' handles."""
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        # What a graph takes in of a hook would be compiled anew with each number that has changed.
        self._is_traced = getattr(torch.compiler, "is_compiling", None) or self._is_traced
        return [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def _is_of_model(self, optimizer: Optimizer) -> bool:
        members = self._members()
        if any(p in members for group in optimizer.param_groups for p in group["params"]):
            return True
        self._others.add(optimizer)
        return False

    def _is_known(self, optimizer: Optimizer) -> bool:
        if any(known() is optimizer for known in self._known):
            return True
        if not self._takes_first or any(known() is not None for known in self._known):
            return False
        if optimizer in self._others or not self._is_of_model(optimizer):
            return False
        self._known = [weakref.ref(optimizer)]
        return True

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_traced() or self._has_warned or self._pid != os.getpid():
            return
        with contextlib.suppress(Exception):
            if self._is_known(optimizer):
                self._is_running = True
            elif not self._is_running:
                self._begun = (id(optimizer), self._steps)

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_traced() or self._has_warned or self._pid != os.getpid():
            return
        with contextlib.suppress(Exception):
            if self._is_known(optimizer):
                self._is_running = False
                self._steps += 1
                return
            alone = not self._is_running and self._begun == (id(optimizer), self._steps)
            if not alone or optimizer in self._others or not self._is_on():
                return
            if self._is_of_model(optimizer):
                self._has_warned = True
                complain(
                    f"{kind(optimizer)} that isn't watched steps with parameters of this model. "
                    "No step ends with it, and its part of the step isn't recorded: give it to "
                    "use_optimizer() (of TrainerMon: set_wrapped_optimizer()), or all of them to "
                    "watch(model, [first, last])"
                )
