"""Megatron-core's layouts in processes of their own: every number beside brute force."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow
import pytest

import sharded
import tensorprobe
from built import TOOL

pytestmark = pytest.mark.slow

TWO = (
    "dp dp_overlap dp_distributed dp_bf16 dp_bf16_distributed_overlap dp_fp16 dp_fp16_distributed "
    "tp tp_sequence tp_bf16_sequence pp pp_tied pp_chunks pp_bf16_distributed ep ep_distributed "
    "dp_each dp_fp16_each pp_chunks_each before_dp before_bf16_distributed before_pp_chunks "
    "tp_sequence_checks pp_tied_checks ep_distributed_checks dp_fp16_distributed_checks"
).split()
FOUR = "4_tp_distributed 4_pp_tied_distributed 4_ep_distributed 4_tp_checks".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("megatron")


@pytest.fixture(scope="module")
def two(folder: Path) -> sharded.Results:
    return sharded.run("megatron_ranks.py", 2, TWO, folder / "two")


@pytest.fixture(scope="module")
def four(folder: Path) -> sharded.Results:
    return sharded.run("megatron_ranks.py", 4, FOUR, folder / "four")


@pytest.mark.parametrize("layout", TWO)
def test_two_ranks(two: sharded.Results, layout: str) -> None:
    sharded.check(two[layout])


@pytest.mark.parametrize("layout", FOUR)
def test_four_ranks(four: sharded.Results, layout: str) -> None:
    sharded.check(four[layout])


def test_diff_across_layouts(two: sharded.Results, four: sharded.Results, folder: Path) -> None:
    """With data parallel ranks that have the same data, whatever else the model is spread over."""
    assert two["dp"]
    assert four["4_tp_distributed"]
    for other in ("two/dp_overlap", "two/dp_distributed", "four/4_tp_distributed"):
        done = subprocess.run(
            [TOOL, "diff", "--tolerance", "1e-3", folder / "two/dp", folder / other],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "values in 6 steps, the last 5" in done.stdout
        assert "only" not in done.stdout


@pytest.mark.parametrize("layout", FOUR)
def test_what_is_put_together(four: sharded.Results, folder: Path, layout: str) -> None:
    sharded.check_merged(folder / "four" / layout, four[layout])


def test_what_the_ancestors_call_them(two: sharded.Results) -> None:
    for layout in TWO:
        own = "Float16OptimizerWithFloat16Params" if "16" in layout else "FP32Optimizer"
        own = "DistributedOptimizer" if "distributed" in layout else own
        assert two[layout][0]["kinds"] == [f"Megatron_{own}"], layout


STATE = {"exp_avg", "exp_avg_sq", "param_origin", "param_updated"}
LACKING = {
    "ranges": ({"grad_unreduced"}, ["locate: AttributeError: no _get_model_param_range_map"]),
    "maps": ({"grad_unreduced"}, ["locate: AttributeError: it has shards, and no model_param_gr"]),
    "scale": (STATE, ["start_grad_sync: AttributeError: no scale", "gradients are not recorded"]),
    "world": (STATE | {"grad_reduced", "grad_unreduced"}, ["how many ranks have the same isn't"]),
    "step": (STATE | {"grad_reduced", "grad_unreduced"}, ["there is no norm to compare with"]),
    "dimension": (
        STATE | {"grad_reduced", "grad_unreduced"},  # of parameters that aren't cut
        ["span: AttributeError: no partition_dim", "local_span: AttributeError: no partition_dim"],
    ),
    "reducer": (STATE | {"grad_reduced"}, ["grad_unreduced is not recorded"]),
}


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> sharded.Results:
    out: Path = tmp_path_factory.mktemp("megatron_lacking") / "two"
    return sharded.run("megatron_lacking.py", 2, [*LACKING], out)


@pytest.mark.parametrize("case", LACKING)
def test_what_another_version_lacks_is_said_once(lacking: sharded.Results, case: str) -> None:
    quantities, told = LACKING[case]
    for rank, one in enumerate(lacking[case]):
        assert one["problems"] == []
        assert (one["steps"], one["errors"]) == (6, 0)
        assert set(one["quantities"]) == quantities
        if rank == 0 or case != "reducer":  # which rank 0 says for all
            assert len(one["said"]) == len(told)
            assert all(part in line for part, line in zip(told, one["said"], strict=True))


def test_the_example(tmp_path: Path) -> None:
    assert "step 20: loss" in sharded.run_example("megatron_gpt", tmp_path)
    table = tensorprobe.open(tmp_path).merged(quantity="grad_reduced", steps=19)
    merged = pyarrow.table(table).to_pylist()
    assert {row["missing"] for row in merged} == {0}
    assert "decoder.layers.1.mlp.linear_fc2.weight" in {row["name"] for row in merged}
