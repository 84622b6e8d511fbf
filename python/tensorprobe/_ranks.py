"""Which rank of which run this process is, without speaking to anybody."""

from __future__ import annotations

import os
import sys
from typing import Any


def _distributed() -> Any:
    """torch.distributed when this process takes part in it, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def this_rank() -> int:
    """The rank by torch.distributed, else by the launcher's environment, else 0."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank())
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


def pipeline_stage(process_group: Any) -> int:
    """This process's place in the pipeline's process group; -1 when there is none."""
    distributed = _distributed()
    if process_group is None or distributed is None:
        return -1
    return int(distributed.get_rank(process_group))
