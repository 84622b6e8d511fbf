"""Fixtures that several test files share."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SEED = int(os.environ.get("TENSORPROBE_TEST_SEED", random.SystemRandom().randrange(2**31)))


@pytest.fixture(scope="session", autouse=True)
def boxes() -> Iterator[None]:
    """Black boxes where only these tests' processes look for them: any start recovers all."""
    folder = tempfile.mkdtemp(prefix="tp-boxes-", dir="/dev/shm")
    os.environ["TENSORPROBE_JOURNAL_DIR"] = folder
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where four ranks (collectives_child.py) have left their journals and results."""
    out = tmp_path_factory.mktemp("collectives")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENSORPROBE_LOG_LEVEL": "1"}
    command = [sys.executable, str(Path(__file__).parent / "collectives_child.py")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(out / "store"), str(out)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    outputs = [rank.communicate(timeout=500)[0] for rank in ranks]
    for rank, text in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, text[-4000:]
    return out


@pytest.fixture(scope="session")
def fake_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where fake_ranks.py has left the journals of its cases."""
    out = tmp_path_factory.mktemp("fake")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENSORPROBE_LOG_LEVEL": "3"}
    script = [sys.executable, str(Path(__file__).parent / "fake_ranks.py"), str(out)]
    subprocess.run(script, env=environment, check=True, capture_output=True, timeout=300)
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Not longer than a module: its loop stands in the way of others."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


def pytest_report_header() -> str:
    """Print the seed with which a failure can be run again."""
    return f"TENSORPROBE_TEST_SEED={SEED}"


@pytest.fixture
def seed() -> int:
    """Seed torch and tell the seed."""
    torch.manual_seed(SEED)
    return SEED


@pytest.fixture
def no_gc() -> Iterator[None]:
    """Without the cycle collector: what a test finds freed was freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server."""
    from servers import Postgres

    with contextlib.closing(Postgres()) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Any]:
    """A MariaDB server."""
    from servers import MariaDB

    with contextlib.closing(MariaDB()) as server:
        yield server


@pytest.fixture(scope="session")
def metrics() -> Iterator[Any]:
    """A VictoriaMetrics server."""
    from servers import VictoriaMetrics

    with contextlib.closing(VictoriaMetrics()) as server:
        yield server
