"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator

import pytest
import torch

SEED = int(os.environ.get("TENSORPROBE_TEST_SEED", random.SystemRandom().randrange(2**31)))


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
