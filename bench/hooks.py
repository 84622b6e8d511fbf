"""What one record costs inside of the training: a small output, and the gradient of an input.

    python bench/hooks.py

Each row is the CPU time of one call with hooks less that of the same call without, in the thread
that trains (the writer's is in bench/overhead.py), the least of rounds in which both come by
turns. Goals: a small output at most 0.3 us beyond empty Python hooks; the gradient of a leaf
module's input, from noting it to its record, at most 10 us.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import tensorprobe

CALLS, ROUNDS = 2000, 25


class Ready(nn.Module):
    """Returns tensors that are there already, another one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.outputs = [torch.randn(16) for _ in range(CALLS)]
        self.number = 0

    def forward(self) -> Tensor:
        self.number = (self.number + 1) % CALLS
        return self.outputs[self.number]


def forward_only(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    for _ in range(CALLS):
        inner()


def forward_and_backward(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    x = torch.randn(4, 4, requires_grad=True)
    for _ in range(CALLS):
        inner(x).backward(x)


def empty_hooks(model: nn.Module) -> None:
    inner = model.get_submodule("0")
    inner.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
    inner.register_forward_hook(lambda *_: None, with_kwargs=True)


def measure(
    build: Callable[[], nn.Module],
    run: Callable[[nn.Module], None],
    prepare: Callable[[nn.Module], Any],
) -> float:
    """Microseconds of a call of a prepared model beyond one as it was built."""
    plain, other = nn.Sequential(build()), nn.Sequential(build())
    session = prepare(other)
    least = {plain: math.inf, other: math.inf}
    for number in range(ROUNDS):
        for model in (plain, other) if number % 2 else (other, plain):
            begin = time.thread_time()
            run(model)
            least[model] = min(least[model], time.thread_time() - begin)
            if session is not None:
                session.step()
    if session is not None:
        session.close()
    return (least[other] - least[plain]) / CALLS * 1e6


def line(what: str, found: float, goal: float) -> None:
    verdict = "met" if found <= goal else "missed"
    print(f"{what:41} {found:6.2f} us, goal {goal:g}: {verdict}")


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

        empty = measure(Ready, forward_only, empty_hooks)
        small = measure(Ready, forward_only, watch(forward_only=True))
        linear: Callable[[], nn.Module] = lambda: nn.Linear(4, 4)  # noqa: E731
        sides = {"input": ("tensor", False), "input_grad": ("tensor", True)}
        grads = {
            side: measure(
                linear,
                forward_and_backward,
                watch(targets={"0": {side: spec}}, backward_only=backward),
            )
            for side, (spec, backward) in sides.items()
        }
    print(f"empty Python hooks                        {empty:6.2f} us")
    print(f"a small output                            {small:6.2f} us")
    line("a small output, beyond empty Python hooks", small - empty, 0.3)
    print(f"a leaf module's input                     {grads['input']:6.2f} us")
    line("a leaf module's input_grad", grads["input_grad"], 10)


if __name__ == "__main__":
    main()
