"""What is said to the user, one line each. TENSORPROBE_LOG_LEVEL drops what is less (1, 2, 3)."""

from __future__ import annotations

import os
import sys
import warnings


def say(text: str) -> None:
    """Print a message of TrainerMon's, as its users look for it in their logs."""
    if os.environ.get("TENSORPROBE_LOG_LEVEL", "1") == "1":
        print(text, flush=True)


def complain(text: str) -> None:
    """Say it each time, as the C code does, where a warning would be shown once."""
    if os.environ.get("TENSORPROBE_LOG_LEVEL", "1") in ("1", "2"):
        print(f"tensorprobe: warning: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Warn as Python does, but each time: the place would be a line of torch that many share."""
    if os.environ.get("TENSORPROBE_LOG_LEVEL", "1") in ("3", "4"):
        return
    message = f"tensorprobe: {text}"
    warnings.warn_explicit(message, RuntimeWarning, "tensorprobe", 0, registry={})
