"""What a hook costs in a step that isn't collected, beside calls that everybody knows.

python bench/idle_hooks.py
"""

from __future__ import annotations

import tempfile
import timeit
from collections.abc import Callable
from typing import Any

import torch

import tensorprobe

CALLS = 200_000


def nanoseconds(call: Callable[..., Any], *arguments: Any) -> float:
    """Time of one call, the loop around it taken off; the least of nine."""
    names = [f"a{number}" for number in range(len(arguments))]
    known = {"call": call, **dict(zip(names, arguments, strict=True))}
    loop = min(timeit.repeat("pass", number=CALLS, repeat=9))
    both = min(timeit.repeat(f"call({', '.join(names)})", globals=known, number=CALLS, repeat=9))
    return 1e9 * (both - loop) / CALLS


def main() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        tempfile.TemporaryDirectory() as folder,
        tensorprobe.watch(model, optimizer, output_dir=folder, start_step=10**12),
    ):
        (before,) = model._forward_pre_hooks.values()
        (after,) = model._forward_hooks.values()
        (step_before,) = optimizer._optimizer_step_pre_hooks.values()
        (step_after,) = optimizer._optimizer_step_post_hooks.values()
        rows = {
            "len([])": nanoseconds(len, []),
            "an empty function of Python": nanoseconds(lambda *_: None, model, (), {}),
            "before a module's forward": nanoseconds(before, model, (), {}),
            "after a module's forward": nanoseconds(after, model, (), {}, None),
            "before the optimizer's step": nanoseconds(step_before, optimizer, (), {}),
            "after the optimizer's step": nanoseconds(step_after, optimizer, (), {}),
        }
    for name, time in rows.items():
        print(f"{name:30} {time:6.0f} ns")


if __name__ == "__main__":
    main()
