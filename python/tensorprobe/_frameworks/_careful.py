"""Adapters look into places that another version of their framework may lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tensorprobe._frameworks import Adapter, Handle, Norm, Part, Row, Span
from tensorprobe._messages import complain

if TYPE_CHECKING:
    import torch

    from tensorprobe import _core

Answer = TypeVar("Answer")

_CONSEQUENCES = {
    "adapt": "it is watched as a model of plain torch",
    "expect": "an optimizer that it makes later isn't noticed",
    "original": "names have its wrappers in them",
    "expand": "parameters that it has put together are one",
    "span": "where nothing tells which part of a parameter is here, none of it is recorded",
    "local_span": "gradients before the reduction are not recorded where nothing tells their part",
    "copies": "how many ranks have the same isn't known",
    "scale": "gradients are not recorded",
    "place": "tied weights may be left out",
    "global_name": "names are those of this process alone",
    "locate": "gradients after the reduction, moments and weights are not recorded",
    "boundary": "steps end with those of torch's optimizer",
    "before_reduction": "gradients before the reduction are not recorded",
    "norm": "there is no norm to compare with",
    "kinds": "opt_ty isn't compared",
    "group": "all processes are asked",
}

_said: set[str] = set()


def ask(
    framework: str,
    question: str,
    otherwise: Answer,
    function: Callable[..., Answer],
    *args: Any,
) -> Answer:
    """Return its answer, or otherwise where it fails, which is said once."""
    try:
        return function(*args)
    except Exception as error:
        why = f"{framework}: {question}: {type(error).__name__}: {error}"
        if why not in _said:
            _said.add(why)
            complain(f"{why} (another version?): {_CONSEQUENCES[question]}")
        return otherwise


class Careful(Adapter):
    """Has an adapter's answers, or those that nobody has to know anything for."""

    def __init__(self, own: Adapter) -> None:
        self._own = own
        self.framework, self.early = own.framework, own.early
        self.reduces, self.locates = own.reduces, own.locates

    def _ask(self, otherwise: Answer, function: Callable[..., Answer], *args: Any) -> Answer:
        return ask(self.framework, function.__name__, otherwise, function, *args)

    def original(self, name: str) -> str:
        return self._ask(name, self._own.original, name)

    def expand(
        self, name: str, parameter: torch.nn.Parameter
    ) -> list[tuple[str, torch.nn.Parameter]]:
        alone = [(self.original(name), parameter)]
        return self._ask(alone, self._own.expand, name, parameter)

    def span(self, row: Row) -> Span | None:
        return self._ask(None, self._own.span, row)

    def local_span(self, row: Row) -> Span | None:
        return self._ask(None, self._own.local_span, row)

    def place(self, row: Row) -> Any:
        return self._ask(None, self._own.place, row)

    def global_name(self, row: Row) -> str | None:
        return self._ask(None, self._own.global_name, row)

    def locate(self, rows: Sequence[Row], after: bool) -> list[Part | None]:
        self._own.optimizer = self.optimizer
        try:
            return self._ask([None] * len(rows), self._own.locate, rows, after)
        finally:
            self._own.optimizer = None

    def boundary(self, hook: _core.OptimizerHook) -> list[Handle] | None:
        return self._ask(None, self._own.boundary, hook)

    def before_reduction(
        self, hook: _core.OptimizerHook, rows: Sequence[Row], micro: bool
    ) -> list[Handle] | None:
        return self._ask(None, self._own.before_reduction, hook, rows, micro)

    def norm(self) -> Norm | None:
        return self._ask(None, self._own.norm)

    def kinds(self) -> set[str]:
        return self._ask(set[str](), self._own.kinds)

    @property
    def group(self) -> Any:
        return ask(self.framework, "group", None, lambda: self._own.group)
