"""A long run with everything on takes no more memory than a short one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "steady.py"
SOAK = "TP_SOAK" in os.environ


@pytest.mark.slow
@pytest.mark.parametrize("ddp", [False, True])
def test_memory_does_not_grow(ddp: bool) -> None:
    """What a step leaves behind shows after thousands: 8 MiB is all that the rest may take."""
    steps = 10000 if SOAK else 400 if ddp else 1000
    done = subprocess.run(
        [sys.executable, BENCH, "--json", "--steps", str(steps), *(["--ddp"] if ddp else [])],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MALLOC_ARENA_MAX": "2"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == 0
    assert found["records"] > 200 * (steps - found["gaps"])
    assert found["grown_bytes"] <= 8 << 20
