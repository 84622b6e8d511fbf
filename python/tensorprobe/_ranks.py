"""Which rank of which run this process is, without speaking to anybody."""

from __future__ import annotations

import os
import sys


def this_rank() -> int:
    """The rank by torch.distributed, else by the launcher's environment, else 0."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0
