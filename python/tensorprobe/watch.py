"""The short way to watch a training run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._arguments import check_model
from tensorprobe._config_file import ConfigSource, config_source
from tensorprobe._ranks import launch_id, this_rank
from tensorprobe._resume import start_at
from tensorprobe.session import Session

if TYPE_CHECKING:
    import torch


def watch(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    config: ConfigSource | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    run_id: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    start_iteration: int | None = None,
    **shortcuts: Any,
) -> Session:
    """Watches everything in the model until ``close()``, or to the end of a ``with`` block.

    config: the path of a JSON file, or the same as a dict; what it leaves out has the defaults of
    ``watch``. shortcuts are single fields of it, as in ``format="csv"``, ``ops=["norm"]`` or
    ``targets={"fc1": {}}``, and go over a dict's; a file has them all in itself.
    optimizer: its ``step()`` ends a step; of several that of the last one. None: the first one that
    steps and has a parameter of the model, which may be made later.
    output_dir: default is TENSORPROBE_OUTPUT_DIR, else ``./monitor_output``. model: several are
    the chunks of a virtual pipeline, in order.
    resume: the id of an earlier run, or the directory of one of its ranks: this rank goes on in its
    directory, as another attempt. start_iteration: the number of the first step, by default 0, or
    behind the last one of what is resumed.
    Raises ConfigError (a ValueError) when the configuration is wrong.
    """
    check_model(model, "watch")
    rank = this_rank() if rank is None else rank
    if config is None or isinstance(config, dict):
        config = {**(config or {}), **shortcuts}
    elif shortcuts and isinstance(config, (str, os.PathLike)):
        given = ", ".join(shortcuts)
        raise TypeError(
            f"watch() got {given} beside a configuration file: write it into {os.fspath(config)}"
        )
    monitor = _core.Monitor(
        rank=rank,
        output_dir=None if output_dir is None else os.fspath(output_dir),
        run_id=launch_id() if run_id is None else run_id,
        watch=True,
        resume=resume,
        **config_source(config),
    )
    start_at(monitor, start_iteration)
    return Session(monitor, model, optimizer, rank=rank)
