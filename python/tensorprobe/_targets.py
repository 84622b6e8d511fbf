"""Which modules and parameters a configuration speaks of, and the names of their rows."""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

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


@dataclass(frozen=True)
class _Named:
    vpp_stage: int
    name: str
    thing: Any


def _matching(
    target: str, things: list[_Named], fits: Callable[[str, str], bool]
) -> Iterable[_Named]:
    """What the target means in its most literal reading that means anything."""
    chunk, text = _split(target)
    candidates = [thing for thing in things if chunk is None or thing.vpp_stage == chunk]
    for of_name, of_target in _READINGS:
        wanted = of_target(text)
        if wanted == "" and text != "":
            continue  # nothing but wrappers' names: not everything
        found = [thing for thing in candidates if fits(of_name(thing.name), wanted)]
        if found:
            return found
    return []


class Selection:
    """What a configuration means in a model, whose chunks are those of a virtual pipeline."""

    def __init__(self, chunks: Sequence[torch.nn.Module], config: dict[str, Any]) -> None:
        self.targets: list[str] = config["targets"]
        self._squash: bool = config["squash_name"]
        self._modules = [
            _Named(stage, name, module)
            for stage, chunk in enumerate(chunks)
            for name, module in chunk.named_modules()
        ]
        self._parameters = [
            _Named(stage, name, parameter)
            for stage, chunk in enumerate(chunks)
            for name, parameter in chunk.named_parameters()
        ]

    def modules(self, everything: bool) -> list[WatchedModule]:
        """Those that a target names (or all), each once, in the model's order."""
        numbers: dict[int, int] = {}
        if everything:
            numbers = {id(named.thing): -1 for named in self._modules}
        else:
            for number, target in enumerate(self.targets):
                for named in _matching(target, self._modules, str.__eq__):
                    numbers.setdefault(id(named.thing), number)
        chosen = [named for named in self._modules if id(named.thing) in numbers]
        return [
            WatchedModule(name, named.vpp_stage, named.thing, numbers[id(named.thing)])
            for name, named in zip(self._row_names(chosen), chosen, strict=True)
        ]

    def parameters(self) -> list[WatchedParameter]:
        """The trainable ones below a target, each once, in the model's order."""
        trainable = [named for named in self._parameters if named.thing.requires_grad]
        wanted = {
            id(named.thing)
            for target in self.targets
            for named in _matching(target, trainable, has_prefix)
        }
        chosen = [named for named in trainable if id(named.thing) in wanted]
        return [
            WatchedParameter(name, named.vpp_stage, named.thing)
            for name, named in zip(self._row_names(chosen), chosen, strict=True)
        ]

    def _row_names(self, chosen: list[_Named]) -> list[str]:
        """Shortened if that is wanted, but for names that are then no longer different."""
        names = [named.name for named in chosen]
        if not self._squash:
            return names
        short = [(named.vpp_stage, squashed(named.name)) for named in chosen]
        count = Counter(short)
        return [one[1] if count[one] == 1 else name for one, name in zip(short, names, strict=True)]

    def warn_of_strangers(self) -> None:
        """Warn of targets that name neither a module nor a parameter."""
        strangers = [
            target
            for target in self.targets
            if not _matching(target, self._modules, str.__eq__)
            and not _matching(target, self._parameters, has_prefix)
        ]
        if not strangers:
            return
        names = [named.name for named in (*self._modules, *self._parameters)]
        near = difflib.get_close_matches(strangers[0], names, n=1, cutoff=0)
        more = f" (and {len(strangers) - 1} more)" if len(strangers) > 1 else ""
        warnings.warn(
            f"tensorprobe: targets: the model has no module or parameter {strangers[0]!r}{more}; "
            f"the nearest name is {near[0]!r}",
            RuntimeWarning,
            stacklevel=2,
        )
