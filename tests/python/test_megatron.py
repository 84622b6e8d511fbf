"""Megatron-core's layouts in processes of their own: every number beside brute force."""

from __future__ import annotations

from pathlib import Path

import pytest

import sharded

pytestmark = pytest.mark.slow

TWO = (
    "dp dp_overlap dp_bf16 dp_fp16 tp tp_sequence tp_bf16_sequence pp pp_tied pp_chunks "
    "pp_bf16_distributed ep before_dp before_pp_chunks"
).split()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> sharded.Results:
    out: Path = tmp_path_factory.mktemp("megatron") / "two"
    return sharded.run("megatron_ranks.py", 2, TWO, out)


@pytest.mark.parametrize("layout", TWO)
def test_two_ranks(two: sharded.Results, layout: str) -> None:
    sharded.check(two[layout])
