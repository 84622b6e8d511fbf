"""DeepSpeed's layouts in processes of their own: every number beside brute force."""

from __future__ import annotations

from pathlib import Path

import pytest

import sharded

pytestmark = pytest.mark.slow

WHOLE = (
    "z0_f32 z0_bf16 z0_fp16 z0_bf16_fused z0_each z1_f32 z1_bf16 z1_bf16_f32 z1_fp16 z1_offload "
    "z1_each z1_engine z2_each z2_fp16_each z3_each z0_f32_checks z0_bf16_checks z1_bf16_checks"
).split()
# Each micro step is reduced for itself: of their sum nobody has the gradient of one rank.
OFTEN = (
    "z2_f32 z2_bf16 z2_bf16_f32 z2_fp16 z2_round_robin z2_offload z2_before "
    "z3_f32 z3_bf16 z3_fp16 z3_offload z3_before z3_engine z2_fp16_checks z3_f32_checks"
).split()
SKIPPING = ["z1_skips", "z3_skips"]
AUTOCAST = ["z0_autocast", "z0_autocast_skips"]  # behind which DeepSpeed scales in every engine


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> sharded.Results:
    out: Path = tmp_path_factory.mktemp("deepspeed") / "two"
    return sharded.run("deepspeed_ranks.py", 2, WHOLE + OFTEN + SKIPPING + AUTOCAST, out)


@pytest.mark.parametrize("layout", [*WHOLE, AUTOCAST[0]])
def test_everything_is_whole(two: sharded.Results, layout: str) -> None:
    sharded.check(two[layout], 2e-2 if "16" in layout else 1e-4)


@pytest.mark.parametrize("layout", OFTEN)
def test_gradients_are_reduced_often(two: sharded.Results, layout: str) -> None:
    sharded.check(two[layout], 2e-2 if "16" in layout else 1e-4, absent="grad_unreduced")


@pytest.mark.parametrize("layout", [*SKIPPING, AUTOCAST[1]])
def test_steps_that_are_skipped(two: sharded.Results, layout: str) -> None:
    for one in two[layout]:
        assert not one["problems"], one["problems"]
        assert one["marked"] == one["skipped"]
        assert 0 < sum(one["skipped"]) < len(one["skipped"])


def test_what_the_ancestors_call_them(two: sharded.Results) -> None:
    for layout in WHOLE + OFTEN:
        stage = "1_or_2" if layout[1] in "12" else layout[1]
        if layout in ("z1_bf16_f32", "z1_bf16_checks"):  # BF16_Optimizer
            stage = "0"
        assert two[layout][0]["kinds"] == [f"DeepSpeedZeroOptimizer_Stage{stage}"], layout
