"""accelerate, transformers' Trainer and Lightning in processes of their own, over DDP and ZeRO."""

from __future__ import annotations

from pathlib import Path

import pytest

import sharded

pytestmark = pytest.mark.slow

STEPS = 6
LAYOUTS = [
    f"{name}_{stage}" for name in ("accelerate", "transformers", "lightning") for stage in range(4)
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> sharded.Results:
    out: Path = tmp_path_factory.mktemp("trainers") / "two"
    return sharded.run("trainer_ranks.py", 2, LAYOUTS, out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_recorded(two: sharded.Results, layout: str) -> None:
    often = layout[-1] in "23"  # of what is reduced often nobody has one rank's sum
    sharded.check(two[layout], absent="grad_unreduced" if often else "")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_norm_is_that_of_the_framework(two: sharded.Results, layout: str) -> None:
    for one in two[layout]:
        for name in ("self_check.recorded", "self_check.framework"):
            expected = pytest.approx(list(one["norms"].values()), rel=1e-4)
            assert one["scalars"][name] == expected


@pytest.mark.parametrize("layout", LAYOUTS[4:])
def test_the_callbacks_pick_up_the_norm(two: sharded.Results, layout: str) -> None:
    for one in two[layout]:
        assert one["scalars"]["grad_norm"] == pytest.approx(list(one["norms"].values()), rel=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS[4:8])
def test_the_trainers_own_numbers(two: sharded.Results, layout: str) -> None:
    first, second = (one["scalars"] for one in two[layout])
    logged = two[layout][0]["logged"]
    assert len(logged) == STEPS
    pairs = zip(first["loss"], second["loss"], strict=True)
    assert [sum(pair) / 2 for pair in pairs] == pytest.approx([one["loss"] for one in logged])
    assert first["lr"] == pytest.approx([one["learning_rate"] for one in logged])
    assert first["grad_norm"] == pytest.approx([one["grad_norm"] for one in logged])


@pytest.mark.parametrize("layout", LAYOUTS[8:])
def test_lightnings_losses(two: sharded.Results, layout: str) -> None:
    for one in two[layout]:
        parts = [micro["micro"] for micro in one["logged"]]
        sums = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        assert one["scalars"]["loss"] == pytest.approx(sums)
        assert one["scalars"]["lr"] == [0.01] * STEPS
