"""Recording that is switched on, off and over while the training runs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import tensorprobe
from built import TOOL
from tensorprobe import TrainerMon

pytestmark = pytest.mark.usefixtures("seed")

ON = {"dynamic_on": True, "format": "csv", "step_count_per_record": 100}
PARAMETERS = ("param_origin", "param_updated")


class Training:
    """A small one, that can be gone through step by step."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.inputs: list[float] = []

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            x = torch.randn(2, 4, dtype=torch.float64)
            self.inputs.append(float(x.norm()))
            self.model(x).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Writes the watched file; DYNAMIC_MONITOR is set."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "monitor.json"
    times = itertools.count(time.time_ns(), 10_000_000)

    def write(content: Any) -> str:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        now = next(times)  # a file system's clock may not have moved on
        os.utime(path, ns=(now, now))
        return str(path)

    return write


def table(monitor: Any, name: str) -> pd.DataFrame:
    return pd.read_csv(Path(monitor.directory) / name)


def recorded_steps(monitor: Any) -> list[int]:
    monitor.close()
    return [step.step for step in tensorprobe.Journal(monitor.directory)]


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_the_file_switches_on_and_over(
    edit: Callable[[Any], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training()
    path = edit({"dynamic_on": False})
    monitor = TrainerMon(path, output_dir=tmp_path)
    monitor.set_monitor(training.model, training.optimizer, start_iteration=10)
    training.step(2)
    assert hooks_of(training.model) == 0
    waiting = f"> waiting for a change of {path} that has dynamic_on true.\n"
    assert capfd.readouterr() == (waiting, "")

    edit({**ON, "xy_distribution": True, "targets": {"0": {}}, "collect_times": 2, "start_step": 9})
    training.step(4)  # the first of them ends before the file is looked at
    assert hooks_of(training.model) == 0
    out, err = capfd.readouterr()
    assert "> 0 is monitored successfully\n> 1 out of 1 modules are monitored.\n" in out
    assert "> config is updated at step12, will start new hook at step13.\n" in out
    assert err == ""

    edit({**ON, "dynamic_on": False, "xy_distribution": True})
    training.step(2)
    edit({**ON, "wg_distribution": True, "ops": ["min", "max"], "step_interval": 2})
    training.step(5)
    assert recorded_steps(monitor) == [13, 14, 19, 21]

    activations = table(monitor, "actv_0-99.csv")
    assert list(activations) == ["vpp_stage", "name", "step", "micro_step", "norm"]
    inputs = activations[activations["name"] == "0.input"]
    assert list(inputs["norm"]) == pytest.approx(training.inputs[3:5], rel=1e-14)
    # Other columns: another file.
    gradients = table(monitor, "grad_reduced_0-99_part_1.csv")
    assert list(gradients) == ["vpp_stage", "name", "step", "min", "max"]
    bias = gradients[gradients["name"] == "2.bias"]
    assert list(bias["step"]) == [19, 21]
    assert list(bias["max"]) == [2.0, 2.0]  # of a sum over two rows
    assert capfd.readouterr().err == ""


def test_a_broken_edit_changes_nothing(
    edit: Callable[[Any], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training()
    path = edit({**ON, "wg_distribution": True})
    monitor = TrainerMon(path, output_dir=tmp_path)
    monitor.set_monitor(training.model, training.optimizer)
    training.step(2)
    edit('{"dynamic_on": true,\n "wg_distribution": flase}')
    training.step(2)
    edit('{"dynamic_on": true,\n  "wg_distributon": true}')
    training.step(2)
    Path(path).unlink()
    training.step(1)
    err = capfd.readouterr().err
    assert err.count("the configuration is not changed") == 2
    assert f"{path}:2:21: " in err
    assert f'{path}:2:3: wg_distributon: unknown field; write "wg_distribution"; ' in err
    edit({"dynamic_on": True, "collect_times": 0, "wg_distribution": True})  # the ancestors' stop
    training.step(2)
    edit({**ON, "wg_distribution": True, "format": "tensorboard", "step_count_per_record": 3})
    training.step(2)
    assert recorded_steps(monitor) == [1, 2, 3, 4, 5, 6, 7, 10]
    assert "keeps its files as they are: format, " in capfd.readouterr().err
    assert not list(Path(monitor.directory).glob("events*"))


def test_rules_and_ranks_change(edit: Callable[[Any], str], tmp_path: Path) -> None:
    training = Training()
    rule = {"rule_name": "AnomalyNan", "args": {"threshold": 1e-9}}
    monitor = TrainerMon(
        edit({**ON, "wg_distribution": True, "module_ranks": [1]}), output_dir=tmp_path, rank=0
    )
    monitor.hook_modules(training.model)  # torch's global hooks
    training.step(2)
    edit({**ON, "wg_distribution": True, "module_ranks": [0]})
    training.step(2)
    edit({**ON, "wg_distribution": True, "alert": {"rules": [rule]}})
    monitor.set_wrapped_optimizer(training.optimizer)
    training.step(2)
    assert recorded_steps(monitor) == [3, 4, 5]
    assert {alert.step for alert in monitor.alerts()} == {5}


def test_several_optimizers_and_another_module(edit: Callable[[Any], str], tmp_path: Path) -> None:
    """Each optimizer reads its own parameters; the model is looked at anew."""
    training = Training()
    first, _, last = training.model
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (first, last)]
    fields = {**ON, "param_distribution": True, "xy_distribution": True}
    monitor = TrainerMon(edit({"dynamic_on": False}), output_dir=tmp_path)
    monitor.set_monitor(training.model, optimizers)

    def step() -> None:
        training.model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()

    step()
    training.model[1] = nn.Sequential(nn.Sigmoid())
    edit(fields)
    step()
    step()
    edit({**fields, "targets": {"2": {}}})
    step()
    step()
    monitor.close()
    found = [
        {(r["quantity"], r["row"]) for r in step.records if r["quantity"] != "actv_grad"}
        for step in tensorprobe.Journal(monitor.directory)
    ]
    weights = {(kind, f"{n}.{p}") for kind in PARAMETERS for n in "02" for p in ("weight", "bias")}
    names = ("", "0", "1", "1.0", "2")
    sides = {("actv", f"{name}.{side}") for name in names for side in ("input", "output")}
    assert found[0] == found[1] == weights | sides
    assert found[2] == {row for row in weights | sides if row[1].startswith("2.")}


def test_training_is_not_changed(edit: Callable[[Any], str], tmp_path: Path) -> None:
    everything = {
        **ON,
        "xy_distribution": True,
        "wg_distribution": True,
        "mv_distribution": True,
        "param_distribution": True,
        "step_interval": 2,
    }

    def run(watched: bool) -> list[torch.Tensor]:
        training = Training()
        if watched:
            monitor = TrainerMon(edit(everything), output_dir=tmp_path)
            monitor.set_monitor(training.model, training.optimizer)
        edits: list[Any] = [
            {},
            {"ops": ["max"]},
            "}",
            {"dynamic_on": False},
            {"targets": {"2": {}}},
        ]
        for content in edits:
            training.step(3)
            if watched:
                edit(content if isinstance(content, str) else {**everything, **content})
        if watched:
            assert recorded_steps(monitor) == [1, 3, 4, 6, 7, 9, 11]
        state = training.optimizer.state_dict()["state"]
        moments = [value for one in state.values() for value in one.values()]
        return [*training.model.parameters(), *moments, torch.get_rng_state()]

    for one, other in zip(run(False), run(True), strict=True):
        assert torch.equal(one, other)


def test_the_structure_is_printed_when_the_file_wants_it(
    edit: Callable[[Any], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training()
    monitor = TrainerMon(edit({"dynamic_on": False, "print_struct": True}), output_dir=tmp_path)
    monitor.set_monitor(training.model, training.optimizer)
    training.step(2)
    edit({"dynamic_on": True, "print_struct": True})
    training.step(1)
    with pytest.raises(SystemExit) as ended:
        training.step(1)
    assert ended.value.code == 0
    assert '"0:2": {"input"' in capfd.readouterr().out


def test_a_dict_cannot_be_watched(edit: Callable[[Any], str]) -> None:
    with pytest.raises(ValueError, match="DYNAMIC_MONITOR is set: TrainerMon needs the path"):
        TrainerMon({})


def test_start_and_stop(tmp_path: Path) -> None:
    training = Training()
    with tensorprobe.watch(training.model, training.optimizer, output_dir=tmp_path) as monitor:
        training.step(1)
        training.model(torch.ones(2, 4, dtype=torch.float64))
        monitor.stop()  # in a step, which is completed
        training.step(2)
        assert hooks_of(training.model) == 0
        monitor.start()
        training.step(1)
        monitor.stop()
        assert hooks_of(training.model) == 0
        training.step(1)
        monitor.start({"xy_distribution": True, "targets": {"2": {}}, "collect_times": 1})
        training.step(2)
        monitor.stop()
        with pytest.raises(tensorprobe.ConfigError, match='write "targets"'):
            monitor.start({"target": {}})
        training.step(1)
    steps = list(tensorprobe.Journal(monitor.directory))
    assert [step.step for step in steps] == [0, 1, 3, 5]
    rows = [{(r["quantity"], r["row"]) for r in step.records} for step in steps]
    assert steps[1].micro_steps == 2
    assert ("param_updated", "0.weight") in rows[1] & rows[2]
    everything = {"0.input", "0.output", "1.output", "2.output", ".output"}
    assert everything < {row for _, row in rows[2]}
    assert {row for _, row in rows[3]} == {"2.input", "2.output", "2.weight", "2.bias"}


def test_start_prints_the_structure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training = Training()
    with tensorprobe.watch(training.model, training.optimizer, output_dir=tmp_path) as monitor:
        training.step(1)
        monitor.start({"print_struct": True, "exit_after_struct": False})
        hooks = hooks_of(training.model)
        training.step(2)
        assert hooks_of(training.model) < hooks
        monitor.start({"print_struct": False})
        training.step(1)
    assert capfd.readouterr().out.count("> module struct:") == 1
    assert hooks_of(training.model) == 0


def test_other_ops(tmp_path: Path) -> None:
    training = Training()
    config = {"wg_distribution": True, "format": "csv", "step_count_per_record": 100}
    monitor = TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(training.model, training.optimizer)
    training.step(2)
    monitor.ops = ["max", "nans"]
    training.step(2)
    monitor.ops = ["norm"]
    training.step(1)
    monitor.close()
    found = {}
    for part in ("", "_part_1", "_part_2"):
        rows = table(monitor, f"grad_reduced_0-99{part}.csv")
        found[part] = (list(rows)[3:], list(rows[rows["name"] == "2.bias"]["step"]))
    assert found == {
        "": (["norm"], [0, 1]),
        "_part_1": (["max", "nans"], [2, 3]),
        "_part_2": (["norm"], [4]),
    }


def test_start_with_a_model(tmp_path: Path) -> None:
    training = Training()
    monitor = TrainerMon({"wg_distribution": True, "format": "api"}, output_dir=tmp_path)
    with pytest.raises(RuntimeError, match="call set_monitor"):
        monitor.stop()
    monitor.start(training.model, training.optimizer)
    training.step(2)
    monitor.stop()
    training.step(2)
    monitor.step()  # by hand: nothing is recorded in it
    monitor.start()
    training.step(1)
    assert recorded_steps(monitor) == [0, 1, 5]


KILLED = """
import os, sys, torch, tensorprobe
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {"wg_distribution": True, "format": "csv", "step_count_per_record": 100}
monitor = tensorprobe.TrainerMon(config, output_dir=sys.argv[1])
monitor.set_monitor(model, optimizer)
for ops in (["norm"], ["min", "max"]):
    monitor.start(config={**config, "ops": ops})
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print(monitor.directory, flush=True)
os._exit(9)
"""


@pytest.mark.slow
def test_a_kill_after_other_columns(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 9
    directory = Path(done.stdout.split()[-1])
    subprocess.run([TOOL, "recover", directory], check=True, capture_output=True)
    steps = []
    for name, ops in ((".csv", ["norm"]), ("_part_1.csv", ["min", "max"])):
        found = pd.read_csv(directory / f"grad_reduced_0-99{name}")
        assert list(found)[3:] == ops
        steps += list(found[found["name"] == "bias"]["step"])
    assert steps == sorted(set(steps)) == list(range(len(steps)))
    assert len(steps) >= 9  # the last one may be lost
