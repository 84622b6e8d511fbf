"""``tensorprobe diff`` finds the step and tensor at which two runs part."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
import torch

from built import TOOL
from tensorprobe import _core

RANKS, STEPS, SERIES = 2, 5, 6
# torch.testing.assert_close's own default tolerances.
RTOL = {torch.float32: 1.3e-6, torch.float64: 1e-7, torch.bfloat16: 1.6e-2, torch.float16: 1e-3}
Place = tuple[int, int, int]  # rank, step, series
Series = tuple[int, int, str, str | None]  # rank, chunk, name, global name


def diff(*arguments: str | Path, status: int) -> str:
    result = subprocess.run(
        [TOOL, "diff", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def record(
    folder: Path,
    factors: dict[Place, float],
    dtype: torch.dtype = torch.float32,
    ranks: list[int] | None = None,
    leave_out: int | None = None,
) -> Path:
    """Make a run whose values are drawn alike each time, some of them times a factor."""
    for rank in ranks or range(RANKS):
        draw = torch.Generator().manual_seed(rank)
        monitor = _core.Monitor(
            config_json='{"format": "api"}', output_dir=str(folder), rank=rank, run_id="run"
        )
        keys = [
            monitor.key(f"layers.{i}", _core.ACTIVATION, _core.ROLE_OUTPUT) for i in range(SERIES)
        ]
        for step in range(STEPS):
            for i, key in enumerate(keys):
                values = torch.randn(64, generator=draw, dtype=torch.float64)
                values *= factors.get((rank, step, i), 1.0)
                if i != leave_out:
                    monitor.observe(key, values.to(dtype))
            monitor.step()
        monitor.close()
    return folder


@pytest.mark.parametrize("dtype", RTOL)
def test_the_first_in_execution_order_is_named(
    tmp_path: Path, dtype: torch.dtype, seed: int
) -> None:
    draw = random.Random(seed)
    a = record(tmp_path / "a", {}, dtype)
    places = [(r, s, i) for r in range(RANKS) for s in range(STEPS) for i in range(SERIES)]
    for case in range(3):
        wrong = draw.sample(places, 4)
        b = record(tmp_path / f"b{case}", dict.fromkeys(wrong, 1 + 9 * RTOL[dtype]), dtype)
        rank, step, i = min(wrong, key=lambda place: (place[1], place[2], place[0]))
        text = diff(a, b, status=1)
        assert f"first difference: step {step}, layers.{i}.output (actv), norm" in text
        there = [place for place in wrong if place[1] == step]
        assert f"in it: {len(there)} of {RANKS * SERIES} values differ" in text
        first = next(line for line in text.splitlines() if line.endswith(f"layers.{i}.output"))
        assert int(first.split()[0]) == rank
        diff("--tolerance", f"{12 * RTOL[dtype]}", a, b, status=0)


def test_what_rounding_explains_is_no_difference(tmp_path: Path) -> None:
    a = record(tmp_path / "a", {})
    b = record(tmp_path / "b", {(0, 2, 1): 1 + 2e-7, (1, 3, 0): 1 - 2e-7})
    count = RANKS * STEPS * SERIES
    assert f"no difference: {count} values in {STEPS} steps, the last 4" in diff(a, b, status=0)
    assert "step 2, layers.1.output" in diff("--tolerance", "0", a, b, status=1)
    assert "step 3, layers.0.output" in diff("--tolerance=0", "--step=3-", a, b, status=1)
    diff("--tolerance=0", "--step=-1", a, b, status=0)
    # Two dtypes: the coarser one's tolerance.
    half = record(tmp_path / "half", {}, torch.bfloat16)
    diff(a, half, status=0)


def test_nan_and_inf(tmp_path: Path) -> None:
    a = record(tmp_path / "a", {(0, 1, 3): float("nan"), (1, 3, 2): float("inf")})
    diff(a, record(tmp_path / "same", {(0, 1, 3): float("nan"), (1, 3, 2): float("inf")}), status=0)
    assert "step 1, layers.3.output (actv), nans 64 and 0" in diff(
        a, record(tmp_path / "b", {}), status=1
    )
    text = diff(a, record(tmp_path / "c", {(0, 1, 3): float("nan")}), status=1)
    assert "step 3, layers.2.output (actv), +inf" in text


def test_ranks_and_what_is_missing(tmp_path: Path) -> None:
    a = record(tmp_path / "a", {})
    assert "first difference: step 0, layers.0" in diff("--rank", "0:1", a, a, status=1)
    diff("--rank", "1:1", a, a, status=0)
    assert "no journal is of rank 7" in diff("--rank", "7:1", a, a, status=1)
    fewer = record(tmp_path / "fewer", {}, leave_out=2)
    lost = RANKS * STEPS
    assert f"{lost} values that only A has, 0 that only B has" in diff(a, fewer, status=0)
    assert f"0 values that only A has, {lost} that only B has" in diff(fewer, a, status=0)
    # On another rank, with the same names: found there.
    only = record(tmp_path / "only", {}, ranks=[1])
    assert "no difference" in diff("--rank", "1:1", a, only, status=0)
    assert "layers.0.output" in diff(only, record(tmp_path / "zero", {}, ranks=[0]), status=1)


def test_mistakes_are_answered(tmp_path: Path) -> None:
    a = record(tmp_path / "a", {}, ranks=[0])
    assert "0 on" in diff("--tolerance", "-1", a, a, status=2)
    assert "N-M" in diff("--step", "5-3", a, a, status=2)
    assert "N:M" in diff("--rank", "5", a, a, status=2)
    assert "--help" in diff(a, status=2)
    assert "No such file" in diff(a, tmp_path / "nowhere", status=1)
    assert "no value in common" in diff("--step", "99", a, a, status=1)
    other = _core.Monitor(
        config_json='{"format": "api"}', output_dir=str(a), rank=0, run_id="another"
    )
    other.step()
    other.close()
    assert "name the directory of one" in diff(a, a, status=1)


# ---- spread over ranks in another way ----


def test_names_of_wrappers_and_pipeline_stages(tmp_path: Path, seed: int) -> None:
    """The same layers in one process, in wrappers, and on two ranks of a pipeline in two chunks."""
    layers = 8
    draws = torch.randn(STEPS, layers, 64)
    wrong = (random.Random(seed).randrange(STEPS), random.Random(seed + 1).randrange(layers))

    def one(folder: str, names: list[Series], factor: float = 1) -> Path:
        for rank in sorted({rank for rank, *_ in names}):
            monitor = _core.Monitor(
                config_json='{"format": "api"}',
                output_dir=str(tmp_path / folder),
                rank=rank,
                run_id="run",
            )
            keys = {
                i: monitor.key(name, _core.PARAM_ORIGIN, vpp_stage=chunk, global_name=global_name)
                for i, (of, chunk, name, global_name) in enumerate(names)
                if of == rank
            }
            for step in range(STEPS):
                for i, key in keys.items():
                    grown = factor if (step, i) == wrong else 1
                    monitor.observe(key, draws[step, i] * grown)
                monitor.step()
            monitor.close()
        return tmp_path / folder

    plain: list[Series] = [(0, 0, f"layers.{i}.fc.weight", None) for i in range(layers)]
    wrapped: list[Series] = [
        (0, 0, f"module.module.layers.{i}._checkpoint_wrapped_module._orig_mod.fc.weight", None)
        for i in range(layers)
    ]
    # Two layers in each of two chunks of two stages: stage 0 has 0, 1, 4, 5.
    stages: list[Series] = [
        (i // 2 % 2, i // 4, f"module.layers.{i % 2}.fc.weight", f"layers.{i}.fc.weight")
        for i in range(layers)
    ]
    a = one("plain", plain)
    count = f"no difference: {STEPS * layers} values in {STEPS} steps, the last {STEPS - 1}"
    step, layer = wrong
    for name, names in (("wrapped", wrapped), ("stages", stages)):
        assert diff(a, one(name, names), status=0).splitlines()[2:] == [count]
        b = one(f"{name} wrong", names, 1.5)
        for text in (diff(a, b, status=1), diff(b, a, status=1)):
            assert f"first difference: step {step}," in text
            assert re.search(rf"layers\.{layer}\..*fc\.weight \(param_origin\), norm", text)
            assert f"in it: 1 of {layers} values differ" in text
