"""What modules pass around: as ``print_struct`` prints it, and in the warning of a wrong target."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import UserDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprobe._messages import warn

if TYPE_CHECKING:
    import torch

Structure = dict[str, str]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def _text(value: Any) -> str:
    if _is_tensor(value):
        return f"size={tuple(value.shape)}, dtype={value.dtype}"
    return str(type(value))


def _elements(value: Any) -> list[Any] | None:
    """What a container holds, in order; None: it is none."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, UserDict):  # another Mapping may compute what it is asked for
        return list(value.data.values())
    if isinstance(value, (tuple, list, deque)):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return None


def _of_tuple(elements: list[Any]) -> Structure:
    numbered = {str(index): _text(element) for index, element in enumerate(elements)}
    return {"config": f"tuple[{len(elements)}]", **numbered}


def of_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Structure:
    """The positional arguments, then the keyword arguments."""
    return _of_tuple([*args, *kwargs.values()])


def of_output(output: Any) -> Structure:
    """Of what a module returned."""
    elements = _elements(output)
    if elements is not None:
        return _of_tuple(elements)
    if _is_tensor(output):
        return {"config": "tensor", "tensor": _text(output)}
    return {"config": _text(output)}


def of_gradients(values: list[Any]) -> Structure:
    """Of the gradients that come back to these: of the same size and dtype, or None."""
    return _of_tuple(
        [value if _is_tensor(value) and value.requires_grad else None for value in values]
    )


def warn_misfit(
    module: str, side: str, spec: str, values: Any, kwargs: dict[str, Any] | None
) -> None:
    """Say that a target's side is not what the module really has there."""
    if kwargs is not None:
        elements = [*values, *kwargs.values()]
        real = of_gradients(elements) if side == "input_grad" else _of_tuple(elements)
    elif side == "output_grad":
        inner = _elements(values)
        real = of_gradients([values] if inner is None else inner)
    else:
        real = of_output(values)
    number = len(real) - 1
    keywords = {} if kwargs is None else dict(enumerate(kwargs, len(values)))

    def spec_of(place: str) -> str:
        if place == "tensor":
            return place
        keyword = keywords.get(int(place))
        return f"tuple[{number}]:{place}" if keyword is None else f"keyword:{keyword}"

    fitting = [
        f'"{spec_of(place)}" for {text}' for place, text in real.items() if text.startswith("size=")
    ]
    advice = " or ".join(fitting[:8]) if fitting else "nothing, for it has no tensor there"
    warn(
        f'targets: "{side}": "{spec}" does not fit module {module!r}, which has '
        f"{json.dumps(real)}: nothing of this side is recorded; write {advice}"
    )


class StructurePrinter:
    """Collects what every module passes around in the first step, prints it once, ends the run.

    Gradients have the size and dtype of what they belong to, so that the forward tells all of it
    and nothing is put into the graph.
    """

    def __init__(self, chunks: Sequence[torch.nn.Module], path: Path, *, aloud: bool) -> None:
        self._path = path
        self._aloud = aloud
        self._found: dict[str, dict[str, Structure]] = {}
        self._handles: list[Any] = []
        for stage, chunk in enumerate(chunks):
            for name, module in chunk.named_modules():
                self._hook(f"{stage}:{name}", module)

    def _hook(self, key: str, module: torch.nn.Module) -> None:
        before, after = self._hooks_of(key)
        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after))

    def _hooks_of(self, key: str) -> tuple[Callable[..., None], Callable[..., None]]:
        from torch import is_grad_enabled
        from torch._C import _current_graph_task_id

        def counts(module: torch.nn.Module) -> bool:
            return module.training and is_grad_enabled() and _current_graph_task_id() == -1

        def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if key not in self._found and counts(module):
                self._found[key] = {
                    "input": of_inputs(args, kwargs),
                    "input_grad": of_gradients([*args, *kwargs.values()]),
                }

        def after(module: torch.nn.Module, _: Any, output: Any) -> None:
            own = self._found.get(key)
            if own is not None and "output" not in own and counts(module):
                inner = _elements(output)
                own["output"] = of_output(output)
                own["output_grad"] = of_gradients([output] if inner is None else inner)

        return before, after

    def has_seen_a_step(self) -> bool:
        """Whether a training forward has been seen: it may have been asked for after one."""
        return bool(self._found)

    def remove(self) -> None:
        """Take the hooks back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def finish(self) -> None:
        """Print and write what the first step showed."""
        self.remove()
        sides = ("input", "output", "input_grad", "output_grad")
        ordered = {
            key: {side: own[side] for side in sides if side in own}
            for key, own in self._found.items()
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
        if self._aloud:
            print("> module struct:", json.dumps(ordered), sep="\n", flush=True)
        print(f"> save module struct to {self._path}", flush=True)
