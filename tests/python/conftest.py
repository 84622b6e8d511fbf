"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
from collections.abc import Iterator

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
