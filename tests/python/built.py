"""Where the C programs of the tests have been built."""

from __future__ import annotations

import os
from pathlib import Path

BUILD = Path(os.environ.get("TP_BUILD_DIR", Path(__file__).resolve().parents[2] / "build/release"))
TOOL = BUILD / "tools/tensorprobe"
"""The ``tensorprobe`` command."""
