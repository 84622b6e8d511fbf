"""Which modules and parameters a configuration speaks of, and the names of their rows."""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from tensorprobe._messages import warn

if TYPE_CHECKING:
    import torch

    from tensorprobe._frameworks import Adapter

# What wrappers put into the names of a model's parts: DistributedDataParallel and its like in
# front, torch.compile, FSDP and activation checkpointing anywhere.
_ANYWHERE = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)")
_IN_FRONT = re.compile(r"^(module(\.|$))+")

_SHORT = [
    re.compile(pattern)
    for pattern in (
        r"^.*\.(layers?\..*)",
        r"^.*\.(embeddings?\..*)",
        r"^.*\.(final.*)",
        r"^.*\.(output.*)",
        r"^.*\.(norm.*)",
    )
]
_SHORTER = [
    re.compile(pattern)
    for pattern in (
        r"layers?\.(.*)",
        r"embeddings?\.(.*)",
        r"(final.*)",
        r"(output.*)",
        r"(norm.*)",
    )
]


_MOST_NAMES = 64  # of one module, under which its parameters have rows

_NAMED_STRANGERS = 4  # targets without a match that a warning names; the others are counted


@lru_cache(1 << 16)
def unwrapped(name: str) -> str:
    """The name without what wrappers put into it."""
    return _IN_FRONT.sub("", _ANYWHERE.sub("", name).lstrip("."))


def _first_match(name: str, patterns: list[re.Pattern[str]]) -> str:
    for pattern in patterns:
        found = pattern.search(name)
        if found:
            return found[1]
    return name


@lru_cache(1 << 16)
def squashed(name: str) -> str:
    """The name from its last ``layers.``, ``embedding.``, ``final``, ``output`` or ``norm`` on."""
    return _first_match(name, _SHORT)


@lru_cache(1 << 16)
def _squashed_before(name: str) -> str:
    """As the ancestors shortened names up to 8.1: what stands behind the first ``layers.``."""
    return _first_match(name, _SHORTER)


# How a target may be written, from the most to the least literal: what the target is compared with,
# and what is made of the target itself.
_READINGS: list[tuple[Callable[[str], str], Callable[[str], str]]] = [
    (str, str),
    (unwrapped, unwrapped),
    (squashed, str),
    (_squashed_before, str),
]


def has_prefix(name: str, prefix: str) -> bool:
    """Whether the parameter lies below prefix: the same name, or the border is a dot."""
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


def _split(target: str) -> tuple[int | None, str]:
    """The chunk that a target like ``1:layers.0`` is limited to, and the rest of it."""
    found = re.match(r"(\d+):", target)
    return (int(found[1]), target[found.end() :]) if found else (None, target)


def _walk(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Every module under its names, in the model's order; whether it is the first of them.

    A module within itself isn't entered again, and none under more names than a shared one may
    well have: modules that share modules that share modules have names without end. What models
    make of ``named_modules()`` and ``named_parameters()`` is not asked.
    """
    names: Counter[int] = Counter()
    above: set[int] = set()

    def visit(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
        own = id(module)
        if own in above or names[own] == _MOST_NAMES:
            return
        names[own] += 1
        yield name, module, names[own] == 1
        above.add(own)
        for part, child in module._modules.items():
            if child is not None:
                yield from visit(f"{name}.{part}" if name else part, child)
        above.discard(own)

    return visit("", root)


def in_functional_call() -> bool:
    """Whether the parameters may be those of a torch.func.functional_call that runs."""
    from torch.nn.utils.stateless import _functional_call

    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _functional_call.__code__:
        frame = frame.f_back
    return frame is not None


@dataclass(frozen=True)
class WatchedModule:
    """A module whose activations are recorded."""

    name: str
    """Of its rows."""
    vpp_stage: int
    module: torch.nn.Module
    target: int
    """Number of the target whose object says which tensors; -1: all tensors."""


@dataclass(frozen=True)
class WatchedParameter:
    """A parameter whose gradient, moments and values are recorded."""

    name: str
    vpp_stage: int
    parameter: torch.nn.Parameter
    original: str
    """Its whole name; that of the rows may be shortened."""


@dataclass(frozen=True)
class _Named:
    vpp_stage: int
    name: str
    thing: Any


class Selection:
    """What a configuration means in a model, whose chunks are those of a virtual pipeline."""

    def __init__(
        self,
        chunks: Sequence[torch.nn.Module],
        config: dict[str, Any],
        pattern_matches: Callable[[int, str, bool], bool],
        adapter: Adapter | None = None,
    ) -> None:
        """pattern_matches: as ``_core.Monitor.matches``. adapter: knows what a framework did."""
        self.targets: list[str] = config["targets"]
        self._patterns: list[bool] = config["patterns"]
        self._pattern_matches = pattern_matches
        self._below = str.startswith if config["string_prefix"] else has_prefix
        self._squash: bool = config["squash_name"]
        from tensorprobe._compile import name_in_original, original

        self._modules: list[_Named] = []
        self._parameters: list[_Named] = []
        for stage, chunk in enumerate(chunks):
            for name, module, is_first in _walk(chunk):
                own = name_in_original(chunk, name)
                if is_first and original(module) is module:
                    plain = adapter.original(own) if adapter is not None else own
                    self._modules.append(_Named(stage, plain, module))
                for part, parameter in module._parameters.items():
                    if parameter is None:
                        continue
                    full = f"{own}.{part}" if own else part
                    found = [(full, parameter)]
                    if adapter is not None:
                        found = adapter.expand(full, parameter)
                    self._parameters += [_Named(stage, name, one) for name, one in found]

    def members(self) -> set[torch.nn.Parameter]:
        """Every parameter of the model, whatever the targets are."""
        return {named.thing for named in self._parameters}

    def _readings(self, number: int, beginning: bool) -> Iterator[Callable[[str], bool]]:
        """How a target may be meant, from the most to the least literal way.

        beginning: names that begin with it are meant, too.
        """
        text = _split(self.targets[number])[1]
        fits = self._below if beginning else str.__eq__

        def literally(of_name: Callable[[str], str], wanted: str) -> Callable[[str], bool]:
            return lambda name: fits(of_name(name), wanted)

        def as_pattern(of_name: Callable[[str], str]) -> Callable[[str], bool]:
            return lambda name: self._pattern_matches(number, of_name(name), beginning)

        if self._patterns[number]:
            yield literally(str, text)
            for of_name, _ in _READINGS:
                yield as_pattern(of_name)
            return
        for of_name, of_target in _READINGS:
            wanted = of_target(text)
            if wanted != "" or text == "":  # nothing but wrappers' names: not everything
                yield literally(of_name, wanted)

    def _named_by(self, number: int, things: list[_Named], *, beginning: bool) -> list[_Named]:
        """What the target means in its most literal reading that means anything."""
        chunk = _split(self.targets[number])[0]
        candidates = [thing for thing in things if chunk is None or thing.vpp_stage == chunk]
        for fits in self._readings(number, beginning):
            found = [thing for thing in candidates if fits(thing.name)]
            if found:
                return found
        return []

    def modules(self, everything: bool) -> list[WatchedModule]:
        """Those that a target names (or all), each once, in the model's order."""
        numbers: dict[int, int] = {}
        if everything:
            numbers = {id(named.thing): -1 for named in self._modules}
        else:
            for number in range(len(self.targets)):
                for named in self._named_by(number, self._modules, beginning=False):
                    numbers.setdefault(id(named.thing), number)
        chosen = [named for named in self._modules if id(named.thing) in numbers]
        return [
            WatchedModule(name, named.vpp_stage, named.thing, numbers[id(named.thing)])
            for name, named in zip(self._row_names(chosen), chosen, strict=True)
        ]

    def parameters(self) -> list[WatchedParameter]:
        """Those below a target, under each of their names, in the model's order.

        Frozen ones too: whether a parameter is trained may change on the way.
        """
        wanted = self._wanted()
        chosen = [named for named in self._parameters if (named.vpp_stage, named.name) in wanted]
        return [
            WatchedParameter(name, named.vpp_stage, named.thing, named.name)
            for name, named in zip(self._row_names(chosen), chosen, strict=True)
        ]

    def others(self) -> list[WatchedParameter]:
        """Those below no target."""
        wanted = self._wanted()
        return [
            WatchedParameter(named.name, named.vpp_stage, named.thing, named.name)
            for named in self._parameters
            if (named.vpp_stage, named.name) not in wanted
        ]

    def _wanted(self) -> set[tuple[int, str]]:
        return {
            (named.vpp_stage, named.name)
            for number in range(len(self.targets))
            for named in self._named_by(number, self._parameters, beginning=True)
        }

    def _row_names(self, chosen: list[_Named]) -> list[str]:
        """Shortened if that is wanted, but for names that are then no longer different."""
        names = [named.name for named in chosen]
        if not self._squash:
            return names
        short = [(named.vpp_stage, squashed(named.name)) for named in chosen]
        count = Counter(short)
        return [one[1] if count[one] == 1 else name for one, name in zip(short, names, strict=True)]

    def warn_of_strangers(self) -> None:
        """Warn of targets that name neither a module nor a parameter, with the nearest names."""
        strangers = [
            target
            for number, target in enumerate(self.targets)
            if not self._named_by(number, self._modules, beginning=False)
            and not self._named_by(number, self._parameters, beginning=True)
        ]
        if not strangers:
            return
        names = list({named.name: None for named in (*self._modules, *self._parameters)})
        lines = [
            f"the model has no module or parameter {target!r}; {_nearest(target, names)}"
            for target in strangers[:_NAMED_STRANGERS]
        ]
        if len(strangers) > len(lines):
            lines.append(f"and {len(strangers) - len(lines)} more")
        warn("targets: " + "; ".join(lines))


def _nearest(target: str, names: list[str]) -> str:
    """Say which names a mistyped target may have meant."""
    text = _split(target)[1].removeprefix("re:")
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.7)
    if len(near) > 1:
        return "the nearest names are " + ", ".join(map(repr, near))
    return f"the nearest name is {difflib.get_close_matches(text, names, n=1, cutoff=0)[0]!r}"
