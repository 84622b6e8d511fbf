"""The short way to watch a training run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._ranks import this_rank
from tensorprobe.session import Session

if TYPE_CHECKING:
    import torch


def watch(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    config: dict[str, Any] | None = None,
    rank: int | None = None,
    run_id: str | None = None,
    **shortcuts: Any,
) -> Session:
    """Watches everything in the model until ``close()``, or to the end of a ``with`` block.

    config: fields of a JSON configuration that differ from the defaults of ``watch``. shortcuts
    are single fields of it, as in ``format="csv"``, ``ops=["norm"]`` or ``targets={"fc1": {}}``.
    optimizer: its ``step()`` ends a step; of several that of the last one. None: the first one that
    steps and has a parameter of the model, which may be made later.
    output_dir: default is TENSORPROBE_OUTPUT_DIR, else ``./monitor_output``. model: several are
    the chunks of a virtual pipeline, in order.
    Raises ConfigError (a ValueError) when the configuration is wrong.
    """
    rank = this_rank() if rank is None else rank
    monitor = _core.Monitor(
        config_json=json.dumps({**(config or {}), **shortcuts}),
        rank=rank,
        output_dir=None if output_dir is None else os.fspath(output_dir),
        run_id=run_id,
        watch=True,
    )
    return Session(monitor, model, optimizer, rank=rank)
