"""Going on with an earlier run: what a checkpoint keeps, and the number of the first step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorprobe import _core
from tensorprobe._arguments import kind


def check_start(start_iteration: Any) -> None:
    """Raise TypeError or ValueError when this is no number of a step."""
    if isinstance(start_iteration, bool) or not isinstance(start_iteration, int):
        raise TypeError(f"start_iteration is an integer, not {start_iteration!r}")
    if start_iteration < 0:
        raise ValueError(f"start_iteration is not negative; it is {start_iteration}")


def start_at(monitor: _core.Monitor, start_iteration: int | None) -> None:
    """Number the open step, unless this is None; when it can't be done the monitor is closed."""
    if start_iteration is None:
        return
    try:
        check_start(start_iteration)
        monitor.start_at(start_iteration)
    except BaseException:
        monitor.close()
        raise


def state_of(monitor: _core.Monitor, directory: str) -> dict[str, Any]:
    """What a checkpoint keeps of a monitor."""
    return {
        "run_id": monitor.run["run_id"],
        "directory": str(Path(directory).absolute()),
        "step": monitor.open_step,
    }


def load_state(monitor: _core.Monitor, state: Any) -> str:
    """Go on where the state was taken; returns the directory."""
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict takes what state_dict() has given, not {kind(state)}")
    try:
        run_id, directory, step = (state[name] for name in ("run_id", "directory", "step"))
    except KeyError as error:
        raise ValueError(f"load_state_dict: {error} is missing; state_dict() gives it") from None
    monitor.go_on(directory if Path(directory, "journal").is_dir() else run_id)
    monitor.start_at(step)
    return monitor.directory
