"""The demo finds what it breaks: 20 seeds of every fault, with the monitor's unchanged defaults.

The model is a smaller one than the demo's own and trains for fewer steps; the full demo runs once.
What the injector did is compared with what the journal says, and the injector knows nothing of the
monitor.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import models  # puts the demo's folder on the path
from fault import Fault, candidates, draw
from model import GPT, SYMBOLS, standard_library_text
from train_gpt import WARM_UP, Options, Result, Screen, train

SEEDS = range(320, 420) if os.environ.get("TP_SOAK") else range(320, 340)
SMALL = {"steps": 48, "layers": 2, "width": 64, "heads": 2, "length": 32, "batch": 16}


@functools.cache
def text() -> torch.Tensor:
    return standard_library_text()[0]


def run_demo(fault: str, seed: int, folder: Path) -> Result:
    print(f"seed {seed}")
    options = Options(fault=fault, seed=seed, output=str(folder), **SMALL)
    return train(options, text(), Screen(quiet=True))


def small_model() -> GPT:
    return GPT(len(SYMBOLS), SMALL["length"], SMALL["layers"], SMALL["width"], SMALL["heads"])


def kind_of(module: str) -> str:
    """Say which place in the model a module has, whatever its layer."""
    return re.sub(r"\d+", "*", module)


def test_injector_imports_nothing_of_the_monitor() -> None:
    source = (models.DEMO / "fault.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:from|import) (\w+)", source, flags=re.MULTILINE))
    assert imported == {"__future__", "random", "dataclasses", "torch"}


@pytest.mark.parametrize("fault", ["nan", "spike", "dead"])
def test_seeds_cover_every_kind_of_module_and_many_steps(fault: str) -> None:
    model = small_model()
    faults = [draw(fault, model, seed, WARM_UP, SMALL["steps"] * 2 // 3) for seed in SEEDS]
    assert {kind_of(f.module) for f in faults} == {kind_of(name) for name in candidates(model)}
    assert min(f.step for f in faults) >= 20
    assert len({f.step for f in faults}) >= 5


def names_of(fault: Fault) -> set[str]:
    """Name the poisoned parameters, and the output that carries them first."""
    return {f"{fault.module}.weight", f"{fault.module}.bias", f"{fault.module}.output"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", ["nan", "spike", "dead"])
def test_fault_is_named_first(fault: str, seed: int, tmp_path: Path) -> None:
    result = run_demo(fault, seed, tmp_path)
    assert result.fault is not None
    assert result.incidents, f"nothing said about {result.fault}"
    first = result.incidents[0]
    within = 0 if fault == "nan" else 2
    assert result.fault.step <= first.first_step <= result.fault.step + within
    assert first.row in names_of(result.fault), f"{result.fault}, but {first}"
    assert first.rule == ("AnomalyNan" if fault == "nan" else "VarianceBounds")


@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_training_is_silent(seed: int, tmp_path: Path) -> None:
    result = run_demo("none", seed, tmp_path)
    assert result.fault is None
    assert result.alerts == []
    assert result.incidents == []
    assert result.counters["steps"] == SMALL["steps"]
    assert result.counters["alerts"] == 0


@pytest.mark.slow
def test_full_demo(tmp_path: Path) -> None:
    """The program as it is started by hand: it ends well and shows what it promises."""
    command = [sys.executable, str(models.DEMO / "train_gpt.py"), "--seed", "3"]
    command += ["--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    target = re.search(r">> NaN written into (\S+\.weight) before step (\d+)", done.stdout)
    assert target
    assert "AnomalyNan" in done.stdout
    first = re.search(r"What went wrong first ─*\n\s*step\s+(\d+)\n\s*tensor\s+(\S+)", done.stdout)
    assert first, done.stdout
    assert first[1] == target[2]
    assert first[2] == target[1]
    for promised in ("in hooks", "tensorboard --logdir", "NaN", "the fault"):
        assert promised in done.stdout
