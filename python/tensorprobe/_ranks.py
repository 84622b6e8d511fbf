"""Which rank of which run this process is, without speaking to anybody."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
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


def world_size() -> int:
    """The number of processes by torch.distributed, else by the launcher's environment, else 1."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_world_size())
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1


def reduces_gradients() -> bool:
    """Whether gradients may have been reduced over several processes by the optimizer's step."""
    return _distributed() is not None and world_size() > 1


_LAUNCHERS: list[tuple[str, tuple[str, ...]]] = [
    ("TORCHELASTIC_RUN_ID", ("MASTER_ADDR", "MASTER_PORT")),
    ("SLURM_STEP_ID", ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME")),
    ("PMIX_NAMESPACE", ()),
]
_ids_given = 0


def launch_id() -> str | None:
    """A run's id that all ranks of one launch have, by the launcher's environment; else None.

    The second monitor of a process gets another one, as in each of the other ranks.
    """
    if world_size() <= 1:
        return None
    env = os.environ
    for name, others in _LAUNCHERS:
        given = env.get(name)
        if given is None or (given == "none" and not env.get("MASTER_PORT")):
            continue
        parts = [name, given, *(env.get(other, "") for other in others)]
        if given == "none" and env.get("GROUP_WORLD_SIZE") == "1":
            # torchrun without an id, and mostly with the same port: its process tells launches
            # apart, where there is but one.
            parts.append(_process(os.getppid()))
        return _numbered(parts)
    if _is_lightnings():
        # The first process of a node has started the others.
        first = os.getpid() if env["LOCAL_RANK"] == "0" else os.getppid()
        return _numbered(["lightning", env["MASTER_ADDR"], env["MASTER_PORT"], _process(first)])
    return None


def _numbered(parts: list[str]) -> str:
    global _ids_given
    _ids_given += 1
    return hashlib.sha256("\0".join([*parts, str(_ids_given)]).encode()).hexdigest()[:8]


def _is_lightnings() -> bool:
    """Whether Lightning has started the processes of this launch, or is the first of them."""
    told = ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    loaded = any(name in sys.modules for name in ("lightning.fabric", "lightning_fabric"))
    return loaded and all(name in os.environ for name in told)


def _process(number: int) -> str:
    """A process, and when it began: ids of processes come again."""
    try:
        began = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        began = ""
    return f"{number} {began}"


def rank_in(process_group: Any) -> int:
    """This process's place in the group; 0 when there is none, or it isn't in it."""
    distributed = _distributed()
    if process_group is None or distributed is None:
        return 0
    try:
        return max(0, int(distributed.get_rank(process_group)))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return 0  # something else: it says nothing


def pipeline_stage(process_group: Any) -> int:
    """This process's place in the pipeline's process group; -1 when there is none."""
    distributed = _distributed()
    if process_group is None or distributed is None:
        return -1
    return int(distributed.get_rank(process_group))
