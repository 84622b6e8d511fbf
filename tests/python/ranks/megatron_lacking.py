"""Megatron-core as other versions may be: without what the adapter asks for. One rank of them.

Real objects are shown to the adapter without some attribute; Megatron-core itself has them.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import common
import megatron_cpu
import tensorprobe
from common import Truth
from megatron_ranks import Layout
from tensorprobe._frameworks import _careful, _living, _megatron


class Without:
    """An object without some of its attributes."""

    def __init__(self, thing: Any, *names: str) -> None:
        self.thing, self.names = thing, names

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            raise AttributeError(f"no {name}")
        return getattr(self.thing, name)


def members_without(*names: str) -> Any:
    own = _megatron._members

    def members(optimizer: Any) -> list[Any]:
        return [Without(member, *names) for member in own(optimizer)]

    return mock.patch.object(_megatron, "_members", members)


def world_without(name: str) -> Any:
    lacking = Without(_megatron._world(), name)
    return mock.patch.object(_megatron, "_world", return_value=lacking)


def scaler_without_scale() -> Any:
    own = _megatron._members

    def members(optimizer: Any) -> list[Any]:
        found = [Without(member) for member in own(optimizer)]
        for member in found:
            member.grad_scaler = Without(member.thing.grad_scaler, "scale")  # type: ignore
        return found

    return mock.patch.object(_megatron, "_members", members)


@contextlib.contextmanager
def step_says_less() -> Iterator[None]:
    """What step() returns is what the listener is told."""
    own = _megatron._said_by_step
    with mock.patch.object(_megatron, "_said_by_step", lambda result: own(result[0])):
        yield


def parameters_without_dimension() -> Any:
    own = _megatron._span

    def span(parameter: Any, part: Any) -> Any:
        return own(Without(parameter, "partition_dim"), part)

    return mock.patch.object(_megatron, "_span", span)


def no_reducer() -> Any:
    classes = ("_ParamAndGradBucketGroup", "Bucket")

    def kind(module: str, name: str) -> Any:
        found = _living.kind(module, name)
        return Without(found, "start_grad_sync") if name in classes and found else found

    return mock.patch("tensorprobe._frameworks._megatron.kind", kind)


CASES: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "ranges": ({"distributed": True}, lambda: members_without("_get_model_param_range_map")),
    "maps": ({"distributed": True}, lambda: members_without("model_param_group_index_map")),
    "scale": ({"dtype": "fp16"}, scaler_without_scale),
    "world": ({}, lambda: world_without("get_data_parallel_world_size")),
    "step": ({}, step_says_less),
    "dimension": ({"tp": 2}, parameters_without_dimension),
    "reducer": ({}, no_reducer),
}


def run(name: str) -> Callable[[Path], dict[str, Any]]:
    options, patch = CASES[name]

    def both(out: Path) -> dict[str, Any]:
        layout = Layout(**options)
        plain, watched = Truth(), Truth()
        layout.train(None, plain)
        _careful._said.clear()
        sessions: list[Any] = []

        def watch(*args: Any) -> Any:
            config: Any = {"xy_distribution": False, "format": "api", "alert": {"rules": []}}
            sessions.append(tensorprobe.watch(*args, output_dir=out, **config))
            return sessions[-1]

        with patch(), contextlib.redirect_stderr(io.StringIO()) as said:
            layout.train(watch, watched)
        journal = tensorprobe.Journal(sessions[0].directory)
        quantities = {key["quantity"] for key in journal.defined()}
        return {
            "problems": [] if plain.state == watched.state else ["training has other bits"],
            "said": [line for line in said.getvalue().splitlines() if "warning" in line],
            "steps": len(list(journal)),
            "errors": sessions[0].counters()["errors"],
            "quantities": sorted(quantities),
        }

    return both


if __name__ == "__main__":
    megatron_cpu.patch()
    common.main({name: run(name) for name in CASES})
