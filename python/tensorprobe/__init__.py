"""TensorProbe watches a PyTorch training run from inside.

``watch(model, optimizer)`` is the short way; ``TrainerMon`` takes the JSON configurations of its
ancestors. ``open`` hands out what was recorded as tables, ``Journal`` reads that of one rank; they
need no torch.
"""

from tensorprobe._core import ConfigError, Table, compute_stats, isa
from tensorprobe._core import version as __version__
from tensorprobe.journal import Alert, Incident, Journal, Step
from tensorprobe.runs import Runs, open  # noqa: A004
from tensorprobe.session import Session
from tensorprobe.trainer_mon import TrainerMon
from tensorprobe.watch import watch

__all__ = [
    "Alert",
    "ConfigError",
    "Incident",
    "Journal",
    "Runs",
    "Session",
    "Step",
    "Table",
    "TrainerMon",
    "__version__",
    "compute_stats",
    "isa",
    "open",
    "watch",
]
