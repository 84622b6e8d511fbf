"""What users do by mistake: they are told what was wrong and what to write instead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe import TrainerMon
from tensorprobe._ranks import launch_id

pytestmark = pytest.mark.usefixtures("seed")


def small() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        model(torch.randn(2, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()


MODEL, OPTIMIZER = small()
WATCH: Any = tensorprobe.watch  # whatever a type checker would say
MONITOR: Any = TrainerMon


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: WATCH(OPTIMIZER, MODEL), "model comes first: watch(model, optimizer)"),
        (lambda: WATCH(MODEL.state_dict()), "not an OrderedDict; a state_dict has no"),
        (lambda: WATCH([MODEL, 3]), "not an int: write watch(model, optimizer)"),
        (lambda: MONITOR({}).set_monitor(OPTIMIZER, MODEL), "first: set_monitor(model, optim"),
        (
            lambda: MONITOR.set_monitor(MODEL, OPTIMIZER),
            "was called on the class, with a Sequential: write TrainerMon(config).set_monitor(",
        ),
        (lambda: MONITOR.hook_modules(MODEL, 1), "TrainerMon(config).hook_modules("),
        (lambda: MONITOR(3), "the path of a JSON file or a dict, not an int"),
        (
            lambda: WATCH(MODEL, config={"eps": torch.tensor(1.0)}),
            "eps is a Tensor; write a number, text, list or dict, as eps=x.item()",
        ),
        (
            lambda: MONITOR({"targets": {"fc": {"input": [{1}]}}}),
            "targets.fc.input[0] is a set; write",
        ),
        (lambda: WATCH(MODEL, config=3), "the path of a JSON file or a dict, not an int"),
    ],
)
def test_wrong_objects_are_named(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        call()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"steps": "3"}, "not '3': write steps=3, steps=range(3, 5)"),
        ({"steps": (1, 2)}, "not (1, 2): write steps=3"),
        ({"steps": slice("1", None)}, "each border of steps is a whole number, not '1'"),
        ({"rank": "0"}, "not '0': write rank=0"),
        ({"name": 3}, "name is text or a list of texts, not 3"),
        ({"slot": "1"}, "slot is a whole number, not '1'"),
    ],
)
def test_wrong_choices_of_rows_are_named(
    arguments: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model, optimizer = small()
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path):
        train(model, optimizer)
    with pytest.raises(TypeError, match=re.escape(says)):
        tensorprobe.open(tmp_path).series(**arguments)


def test_a_name_that_is_no_text_ends_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = small()
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)

    def log(name: Any, times: int) -> None:
        for _ in range(times):
            session.log_scalar(name, 2.0)

    with pytest.warns(RuntimeWarning, match="takes a name and a value; the name is 1") as caught:
        log(1, 2)
    assert len(caught) == 1
    session.close()
    capfd.readouterr()
    log("loss", 2)
    assert capfd.readouterr().err.count("log_scalar('loss', …) after close()") == 1


@pytest.mark.parametrize(("ranks", "warned"), [([1, 2], True), ([0, 1], False), ([], False)])
def test_ranks_that_are_not_there(
    ranks: list[int], warned: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = small()
    tensorprobe.watch(model, optimizer, output_dir=tmp_path, module_ranks=ranks).close()
    said = "module_ranks [1, 2] have none of the ranks of this launch (0 to 0)"
    assert (said in capfd.readouterr().err) == warned


def test_switching_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "true")
    path = tmp_path / "monitor.json"
    content = {"dynamic_on": True, "collect_times": 2, "wg_distribution": True}
    path.write_text(json.dumps(content))
    monitor = TrainerMon(str(path), output_dir=tmp_path)
    model, optimizer = small()
    monitor.set_monitor(model, optimizer)
    assert f"> waiting for a change of {path} " in capfd.readouterr().out
    train(model, optimizer, steps=5)  # the first step reads the file
    assert re.findall("> (Finish monitor at step.)", capfd.readouterr().out) == [
        "Finish monitor at step2"
    ]
    path.write_text(json.dumps({**content, "collect_times": 100}))
    train(model, optimizer, steps=2)
    path.write_text(json.dumps({**content, "dynamic_on": False, "collect_times": 100}))
    train(model, optimizer, steps=3)
    assert re.findall("> config is updated at (step.*)", capfd.readouterr().out) == [
        "step5, will start new hook at step6.",
        "step7, monitoring stops.",
    ]
    monitor.close()


TORCHRUN = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job", "MASTER_PORT": "29500"}


def id_of(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> str | None:
    monkeypatch.setattr("tensorprobe._ranks._ids_given", 0)
    with monkeypatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith(("SLURM_", "TORCHELASTIC_", "PMIX_", "MASTER_", "WORLD_", "LOCAL_")):
                patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        return launch_id()


def test_a_run_is_named_by_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = id_of(monkeypatch, {**TORCHRUN, "RANK": "0"})
    assert torchrun is not None
    assert re.fullmatch("[0-9a-f]{8}", torchrun)
    assert id_of(monkeypatch, {**TORCHRUN, "RANK": "1"}) == torchrun
    assert id_of(monkeypatch, {**TORCHRUN, "MASTER_PORT": "29501"}) != torchrun
    assert id_of(monkeypatch, {**TORCHRUN, "WORLD_SIZE": "1"}) is None
    without = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    assert id_of(monkeypatch, without) is None
    assert id_of(monkeypatch, {**without, "MASTER_PORT": "29500"}) is not None
    slurm = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert id_of(monkeypatch, slurm) not in (None, torchrun)
    assert id_of(monkeypatch, {**slurm, "SLURM_STEP_ID": "1"}) != id_of(monkeypatch, slurm)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert launch_id() != launch_id()  # two monitors of one process


def test_lightnings_first_process_starts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    assert id_of(monkeypatch, environment) is None  # somebody else's
    monkeypatch.setitem(sys.modules, "lightning.fabric", types.ModuleType("fabric"))
    first = id_of(monkeypatch, environment)
    code = "import sys, types; sys.modules['lightning.fabric'] = types.ModuleType('fabric');"
    done = subprocess.run(
        [sys.executable, "-c", f"{code} from tensorprobe._ranks import launch_id as i; print(i())"],
        env={**os.environ, **environment, "LOCAL_RANK": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [first]


def test_each_monitor_warns_of_its_own_targets(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        warnings.simplefilter("default")  # which shows what comes from one line once
        for _ in range(2):
            tensorprobe.watch(MODEL, OPTIMIZER, output_dir=tmp_path, targets={"fc9": {}}).close()
    said = [
        str(one.message) for one in caught if "no module or parameter 'fc9'" in str(one.message)
    ]
    assert len(said) == 2
