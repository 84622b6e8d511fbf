"""Running `tensorprobe ship` over made-up journals."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from built import BUILD, TOOL
from servers import PASSWORD, SECRET

WRITER = BUILD / "tests/unit/write_journals"
SOAK = os.environ.get("TP_SOAK") == "1"
RANKS, SERIES, STEPS = 4, 10_000 if SOAK else 400, 20


def environment(**more: str) -> dict[str, str]:
    return os.environ | more


def ship(
    *arguments: str | Path, status: int = 0, text: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; DB_URL is $DB_URL."""
    line = [str(part) for part in (TOOL, "ship", *arguments)]
    done = subprocess.run(
        line,
        input=text,
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    assert PASSWORD not in done.stderr + done.stdout
    assert SECRET not in done.stderr + done.stdout
    return done


def write(
    folder: Path,
    run: str,
    ranks: int = RANKS,
    series: int = SERIES,
    steps: int = STEPS,
    pause_ms: int = 0,
) -> subprocess.Popen[bytes]:
    """Begin to write the journals of a made-up run, in small segments."""
    folder.mkdir(exist_ok=True)
    numbers = [str(n) for n in (ranks, series, steps, 200_000, pause_ms * 1000)]
    return subprocess.Popen([WRITER, folder, run, *numbers])


def written(*arguments: Any, **more: Any) -> None:
    assert write(*arguments, **more).wait() == 0
