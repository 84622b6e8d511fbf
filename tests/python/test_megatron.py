"""Megatron-core's layouts in processes of their own: every number beside brute force."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest

import sharded
import tensorprobe

pytestmark = pytest.mark.slow

TWO = (
    "dp dp_overlap dp_distributed dp_bf16 dp_bf16_distributed_overlap dp_fp16 dp_fp16_distributed "
    "tp tp_sequence tp_bf16_sequence pp pp_tied pp_chunks pp_bf16_distributed ep ep_distributed "
    "dp_each dp_fp16_each pp_chunks_each before_dp before_bf16_distributed before_pp_chunks "
    "tp_sequence_checks pp_tied_checks ep_distributed_checks dp_fp16_distributed_checks"
).split()
FOUR = "4_tp_distributed 4_pp_tied_distributed 4_ep_distributed 4_tp_checks".split()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> sharded.Results:
    out: Path = tmp_path_factory.mktemp("megatron") / "two"
    return sharded.run("megatron_ranks.py", 2, TWO, out)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> sharded.Results:
    out: Path = tmp_path_factory.mktemp("megatron") / "four"
    return sharded.run("megatron_ranks.py", 4, FOUR, out)


@pytest.mark.parametrize("layout", TWO)
def test_two_ranks(two: sharded.Results, layout: str) -> None:
    sharded.check(two[layout])


@pytest.mark.parametrize("layout", FOUR)
def test_four_ranks(four: sharded.Results, layout: str) -> None:
    sharded.check(four[layout])


def test_what_the_ancestors_call_them(two: sharded.Results) -> None:
    for layout in TWO:
        own = "Float16OptimizerWithFloat16Params" if "16" in layout else "FP32Optimizer"
        own = "DistributedOptimizer" if "distributed" in layout else own
        assert two[layout][0]["kinds"] == [f"Megatron_{own}"], layout


def test_the_example(tmp_path: Path) -> None:
    assert "step 20: loss" in sharded.run_example("megatron_gpt", tmp_path)
    table = tensorprobe.open(tmp_path).merged(quantity="grad_reduced", steps=19)
    merged = pyarrow.table(table).to_pylist()
    assert {row["missing"] for row in merged} == {0}
    assert "decoder.layers.1.mlp.linear_fc2.weight" in {row["name"] for row in merged}
