"""What a watched model can't do, said where it is tried."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensorprobe import _core
from tensorprobe._frameworks._patch import Listener, listen
from tensorprobe._messages import complain

if TYPE_CHECKING:
    import torch

FRAMES = 5
"""Python's frames that a call of a module with hooks takes, its own forward included; else 4."""


def listen_to_script() -> Listener:
    """Say why, when torch.jit.script meets a module with our hooks. Others it may compile."""
    import torch.jit._recursive as compiler

    ours = type(_core.inert_hook())

    def before(module: torch.nn.Module) -> None:
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(isinstance(getattr(one, "__self__", None), ours) for one in hooks):
            complain(
                f"torch.jit.script can't compile the hooks of a watched {type(module).__name__}: "
                "close() the monitor before, or use torch.jit.trace; what follows is its error"
            )

    return listen(compiler, "get_hook_stubs", before=before)


def warn_of_depth(names: Iterable[str]) -> None:
    """Say that hooks on modules nested so deep may reach Python's limit, before they do."""
    depth = 1 + max((name.count(".") + 1 for name in names if name), default=0)
    limit = sys.getrecursionlimit()
    needed = FRAMES * depth + 100  # what runs around the model, and inside of its innermost module
    if needed > limit:
        complain(
            f"modules are nested {depth} deep, and each takes {FRAMES} of Python's frames when it "
            f"has hooks, of which there are {limit}: sys.setrecursionlimit({needed}) before the "
            "training makes a RecursionError less likely"
        )


def warn_of_lost_steps(monitor: _core.Monitor) -> None:
    """Say that forwards came after the last end of a step, more than belong to a step."""
    steps = monitor.counters()["steps"]
    forwards, most = monitor.forwards
    advice = (
        "a step ends with the step() of the optimizer that watch(), set_monitor() or "
        "use_optimizer() has been given, or with step() of the monitor"
    )
    if steps == 0 and forwards > 0:
        complain(f"{forwards} training forwards came, and no step has ended: {advice}")
    elif forwards > most > 0:
        complain(
            f"{forwards} training forwards came after the last end of a step, where a step "
            f"has had {most} at most: {advice}"
        )
