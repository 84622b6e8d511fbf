"""Optimizers of unknown kinds, which step with parameters but have no hooks of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe._arguments import kind
from tensorprobe._frameworks import Adapter, Handle, Part, Row
from tensorprobe._frameworks._patch import listen
from tensorprobe._messages import complain
from tensorprobe._ranks import reduces_gradients

if TYPE_CHECKING:
    from tensorprobe import _core


class Generic(Adapter):
    """Follows its step(), reads .main_grad or .grad, and looks into .state as torch's have it."""

    locates = True

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._has_looked = False
        self.framework = type(optimizer).__name__
        self.reduces = reduces_gradients()

    def _state(self, parameter: Any) -> dict[str, Any]:
        every = getattr(self._optimizer, "state", None)
        for key in (parameter, getattr(parameter, "main_param", None)):
            own = every.get(key) if isinstance(every, dict) and key is not None else None
            if isinstance(own, dict):
                return own
        return {}

    def locate(self, rows: Sequence[Row], after: bool) -> list[Part | None]:
        """Return the parameters themselves, and what is kept under them."""
        groups = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        parts: list[Part | None] = []
        for row in rows:
            p: Any = row.parameter
            main = getattr(p, "main_grad", None)
            group = groups.get(id(p))
            parts.append(Part(p, p.grad if main is None else main, self._state(p), group))
        return parts

    def boundary(self, hook: _core.OptimizerHook) -> list[Handle] | None:
        """Begin and end steps with its own."""

        def before(optimizer: Any, *_: Any, **__: Any) -> None:
            if optimizer is self._optimizer:
                hook.step_pre(optimizer, (), {})

        def after(_: Any, optimizer: Any, *__: Any, **___: Any) -> None:
            if optimizer is self._optimizer:
                hook.step_post(optimizer, (), {})
                self._say_what_is_missing()

        own = next(one for one in type(self._optimizer).__mro__ if "step" in vars(one))
        return [listen(own, "step", before=before, after=after)]

    def _say_what_is_missing(self) -> None:
        if self._has_looked:
            return
        self._has_looked = True
        every = [p for group in self._optimizer.param_groups for p in group["params"]]
        without = [p for p in every if "exp_avg" not in self._state(p)]
        what = f"; it keeps no exp_avg for {len(without)} of its {len(every)} parameters"
        complain(
            f"{kind(self._optimizer)} is neither torch's nor of a framework that is known: steps "
            f"end with its step(), gradients are .main_grad or .grad{what if without else ''}"
        )
