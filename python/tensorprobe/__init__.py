"""TensorProbe watches a PyTorch training run from inside.

``watch(model, optimizer)`` is the short way; ``TrainerMon`` takes the JSON configurations of its
ancestors. ``Journal`` reads back what was recorded, and needs no torch.
"""

from tensorprobe._core import ConfigError, compute_stats, isa
from tensorprobe._core import version as __version__
from tensorprobe.journal import Alert, Journal, Step
from tensorprobe.session import Session
from tensorprobe.trainer_mon import TrainerMon
from tensorprobe.watch import watch

__all__ = [
    "Alert",
    "ConfigError",
    "Journal",
    "Session",
    "Step",
    "TrainerMon",
    "__version__",
    "compute_stats",
    "isa",
    "watch",
]
