"""What watching costs a training that inductor has compiled.

The model of bench/overhead.py, smaller if told so, is trained in blocks of steps, one after the
other in changing order, in one process: eager and compiled, each unwatched and watched, and
compiled with a monitor whose step is never collected. That last one pays for intermediates that
have to be in memory because an operator takes them, and for the operators' calls, but reads
nothing. Figures are CPU time of the whole process a step, the median over the rounds.

    python bench/compile.py [--layers 8] [--rounds 8] [--steps 4]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import overhead
import tensorprobe
from idle_hooks import nanoseconds


class Case:
    """A training of its own, and what its steps took."""

    def __init__(self, folder: str, *, compiled: bool, watched: bool, collected: bool) -> None:
        self.trainer = overhead.Trainer()
        self.session: Any = None
        if watched:
            never: dict[str, Any] = {} if collected else {"start_step": 10**12}
            self.session = tensorprobe.watch(
                self.trainer.model, self.trainer.optimizer, output_dir=folder, **never
            )
        if compiled:
            self.trainer.model.compile(fullgraph=True)
        self.times: list[float] = []
        began = time.perf_counter()
        self.trainer.step()
        self.first = time.perf_counter() - began
        self.trainer.step()

    def block(self, steps: int) -> None:
        """Run and time some steps."""
        began = time.process_time()
        for _ in range(steps):
            self.trainer.step()
        self.times.append((time.process_time() - began) / steps)

    def hook_ms(self) -> float:
        """Of a step, in hooks and operators."""
        if self.session is None:
            return 0.0
        counters: dict[str, int] = self.session.counters()
        return counters["hook_ns"] / max(counters["steps"], 1) / 1e6


def hook_costs() -> None:
    """What a module's hooks cost where nothing is compiled, and in eager parts where it is."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def cost() -> float:
        (before,) = model._forward_pre_hooks.values()
        return nanoseconds(before, model, (), {})

    with (
        tempfile.TemporaryDirectory() as folder,
        tensorprobe.watch(model, optimizer, output_dir=folder, start_step=10**12),
    ):
        builtin = cost()
        compiled: Callable[..., Any] = torch.compile(torch.nn.Identity(), backend="eager")
        compiled(torch.zeros(1))
        print(f"an idle hook before a module's forward: {builtin:.0f} ns, {cost():.0f} ns")
        print("once something is compiled in the process")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=overhead.LAYERS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="timed steps in a block")
    options = parser.parse_args()
    overhead.LAYERS = options.layers
    torch.set_num_threads(1)
    hook_costs()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cases = {
            "eager": Case(folder, compiled=False, watched=False, collected=False),
            "eager, watched": Case(folder, compiled=False, watched=True, collected=True),
            "compiled": Case(folder, compiled=True, watched=False, collected=False),
            "compiled, not collected": Case(folder, compiled=True, watched=True, collected=False),
            "compiled, watched": Case(folder, compiled=True, watched=True, collected=True),
        }
        for case in cases.values():
            if case.session is not None:
                stack.enter_context(case.session)
        for number in range(options.rounds):
            order = list(cases.values())
            for case in order if number % 2 == 0 else reversed(order):
                case.block(options.steps)
        print(
            f"{'':26} {'a step':>10} {'of eager':>9} {'of compiled':>12} {'hooks':>9} {'first':>8}"
        )
        for name, case in cases.items():

            def share(base: str, times: list[float] = case.times) -> float:
                pairs = zip(times, cases[base].times, strict=True)
                return statistics.median(one / other for one, other in pairs)

            print(
                f"{name:26} {1e3 * statistics.median(case.times):7.1f} ms {share('eager'):8.1%} "
                f"{share('compiled'):11.1%} {case.hook_ms():6.2f} ms {case.first:6.1f} s"
            )
    print(overhead.machine())


if __name__ == "__main__":
    main()
