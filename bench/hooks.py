"""What one record costs inside of the training: a small output, and the gradient of an input.

    python bench/hooks.py

Each row is the CPU time of one call with hooks less that of the same call without, or with empty
hooks, in the thread that trains (the writer's is in bench/overhead.py): the median of rounds in
which all come by turns. "Beyond" takes a forward pre-hook and a forward hook, both empty, from the
pre-hook and the hook of the monitor: what is left is the way from a tensor to its filled slot, with
the pre-hook's share (is this a training forward, of which micro step, the how many-th call?), the
statistics, and what torch's own code loses for having its caches shared.

* In a module's call: the module makes a tensor of 16 elements, as modules do, and its hooks are
  called by torch; code and data of the hooks have made way for those of the call meanwhile. What
  this takes more than back to back is the way of both from the second cache, and branches that are
  guessed wrong.
* Back to back: the two hooks are called again and again, with nothing between.
* Of tensors that lie there: the module returns one of 2000 tensors that nobody has touched for
  2000 calls, so that the hook waits for its memory. No training does that.
* Where gradients are asked for, too: without "forward_only" the hook has to look for the gradient
  of what it reads, or, as here, to find that there is none.
* The statistics alone: the same tensor read by one call from C after another.

Goals: a small output less than 150 ns beyond empty hooks in C, and at most 0.3 us beyond empty ones
in Python, both in a module's call; the gradient of a leaf module's input, from noting it to its
record, at most 10 us.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tensorprobe
from tensorprobe import _core

CALLS, ROUNDS = 1000, 60
BUILD = Path(os.environ.get("TP_BUILD_DIR", Path(__file__).parents[1] / "build" / "release"))
F32 = 2  # TP_F32

Prepare = Callable[[nn.Module], Any]


class Ready(nn.Module):
    """Returns tensors that are there already, another one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.outputs = [torch.randn(16) for _ in range(2 * CALLS)]
        self.number = 0

    def forward(self) -> Tensor:
        self.number = (self.number + 1) % len(self.outputs)
        return self.outputs[self.number]


class Making(nn.Module):
    """Makes a small tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.x = torch.randn(16)

    def forward(self) -> Tensor:
        return self.x.neg()


def forward_only(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    for _ in range(CALLS):
        inner()


def forward_and_backward(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    x = torch.randn(4, 4, requires_grad=True)
    for _ in range(CALLS):
        inner(x).backward(x)


def hooks_alone(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    (before,) = inner._forward_pre_hooks.values()
    (after,) = inner._forward_hooks.values()
    output = inner.forward()
    for _ in range(CALLS):
        before(inner, (), {})
        after(inner, (), {}, output)


def none(model: nn.Module) -> None:
    """Add no hooks: by what two of these differ tells how much is noise."""


def python_hooks(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    inner.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    inner.register_forward_hook(lambda *_: None, with_kwargs=True)


def c_hooks(model: nn.Module) -> None:
    """Built-in functions that return None: those of a watched model that was pickled."""
    inner = model.get_submodule("0")
    inert = _core.inert_hook()
    inner.register_forward_pre_hook(inert.forward_pre, with_kwargs=True)
    inner.register_forward_hook(inert.forward, with_kwargs=True)


def measure(
    build: Callable[[], nn.Module], run: Callable[[nn.Module], None], *prepares: Prepare
) -> list[float]:
    """Microseconds of a call of each prepared model beyond the first of them."""
    models = [nn.Sequential(build()) for _ in prepares]
    sessions = [prepare(model) for prepare, model in zip(prepares, models, strict=True)]
    times: list[list[float]] = [[] for _ in models]
    for number in range(ROUNDS):
        for k in range(len(models)):
            which = (k + number) % len(models)
            begin = time.thread_time()
            run(models[which])
            times[which].append(time.thread_time() - begin)
            if sessions[which] is not None:
                sessions[which].step()
    for session in sessions:
        if session is not None:
            session.close()
    return [
        statistics.median(one - first for one, first in zip(row, times[0], strict=True))
        / CALLS
        * 1e6
        for row in times
    ]


def statistics_alone() -> float:
    """Microseconds of one call from C."""
    library = ctypes.CDLL(str(BUILD / "tests" / "kernels" / "libkernels_bench.so"))
    call = library.tp_bench_call
    call.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64]
    call.restype = ctypes.c_uint64
    x = torch.randn(16)
    took = [int(call(x.data_ptr(), 16, F32, CALLS)) for _ in range(ROUNDS)]
    return float(statistics.median(took)) / CALLS / 1e3


def line(what: str, found: float, goal: float) -> None:
    verdict = "met" if found <= goal else "missed"
    print(f"{what:44} {found:7.3f} us, goal {goal:g}: {verdict}")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:

        def watch(**config: Any) -> Callable[[nn.Module], tensorprobe.Session]:
            def start(model: nn.Module) -> tensorprobe.Session:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                switches = {"format": "api", "wg_distribution": False, "param_distribution": False}
                return tensorprobe.watch(
                    model, optimizer, output_dir=folder, config={**switches, **config}
                )

            return start

        monitor = watch(forward_only=True)
        making = measure(Making, forward_only, none, none, python_hooks, c_hooks, monitor, watch())
        alone = measure(Making, hooks_alone, c_hooks, monitor)
        ready = measure(Ready, forward_only, c_hooks, monitor)
        linear: Callable[[], nn.Module] = lambda: nn.Linear(4, 4)  # noqa: E731
        sides = {"input": ("tensor", False), "input_grad": ("tensor", True)}
        grads = {
            side: measure(
                linear,
                forward_and_backward,
                none,
                watch(targets={"0": {side: spec}}, backward_only=backward),
            )[1]
            for side, (spec, backward) in sides.items()
        }
    _, noise, empty, empty_c, small, with_gradients = making
    print(f"ways into torch: {_core.shortcuts()}")
    print(f"no hooks, beside no hooks                    {noise:7.3f} us")
    print(f"empty Python hooks                           {empty:7.3f} us")
    print(f"empty C hooks                                {empty_c:7.3f} us")
    print(f"a small output                               {small:7.3f} us")
    line("a small output, beyond empty C hooks", small - empty_c, 0.15)
    line("a small output, beyond empty Python hooks", small - empty, 0.3)
    print(f"the same, back to back, beyond C hooks       {alone[1]:7.3f} us")
    print(f"of tensors that lie there, beyond C hooks    {ready[1]:7.3f} us")
    print(f"where gradients are asked for, too           {with_gradients - empty_c:7.3f} us")
    print(f"its statistics alone, by a call from C       {statistics_alone():7.3f} us")
    print(f"a leaf module's input                        {grads['input']:7.3f} us")
    line("a leaf module's input_grad", grads["input_grad"], 10)


if __name__ == "__main__":
    main()
