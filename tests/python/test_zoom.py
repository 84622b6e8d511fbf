"""What is recorded in addition when something goes wrong, and that it is over again."""

from __future__ import annotations

import gc
import os
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import sharded
import tensorprobe
from built import TOOL
from tensorprobe.journal import Journal, Step

STEPS = 40
BAD = 12
NARROW: dict[str, Any] = {
    "targets": {"body.1": {"output": "tensor"}},
    "mv_distribution": False,
    "wg_distribution": False,
    "param_distribution": False,
    "forward_only": True,
    "format": "api",
    "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6)]
        self.body = torch.nn.Sequential(*parts)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x))
        return result


class Run:
    """A training in which batches hold a NaN from step BAD on, for a few steps."""

    def __init__(self, *, compiled: bool = False) -> None:
        torch.manual_seed(3)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.called: Any = (
            torch.compile(self.model, backend="aot_eager") if compiled else self.model
        )
        self.generator = torch.Generator().manual_seed(11)
        self.hooks: list[int] = []
        self.seen: dict[tuple[int, str], torch.Tensor] = {}

    def count_hooks(self) -> int:
        modules = list(self.model.modules())
        return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in modules)

    def step(self, number: int, bad: range) -> None:
        x = torch.randn(8, 6, generator=self.generator)
        if number in bad:
            x[0, 0] = float("nan")
        self.optimizer.zero_grad()
        for part in x.chunk(2):
            # The update is kept clean, so that a NaN is in some steps alone.
            loss = self.called(part).square().mean()
            loss.backward()
        for p in self.model.parameters():
            assert p.grad is not None
            p.grad.nan_to_num_(0.0)
        self.optimizer.step()
        self.hooks.append(self.count_hooks())

    def state(self) -> list[torch.Tensor]:
        state = [p.detach().clone() for p in self.model.parameters()]
        for values in self.optimizer.state.values():
            state += [values["exp_avg"].clone(), values["exp_avg_sq"].clone()]
        return [*state, torch.random.get_rng_state(), torch.rand(3)]


def wait_for(monitor: Any, interval: int = 1) -> None:
    """The rules run beside the training: here each step waits for them."""
    while monitor.counters()["journaled_steps"] < monitor.step_number // interval:
        time.sleep(0.0005)


def train(
    fields: dict[str, Any] | None,
    *,
    compiled: bool = False,
    steps: int = STEPS,
    bad: range = range(BAD, BAD + 3),
) -> tuple[Run, list[torch.Tensor], str]:
    run = Run(compiled=compiled)
    if fields is None:
        for number in range(steps):
            run.step(number, bad)
        return run, run.state(), ""
    with tensorprobe.watch(run.model, run.optimizer, **fields) as monitor:
        for number in range(steps):
            run.step(number, bad)
            wait_for(monitor, fields.get("step_interval", 1))
    assert run.count_hooks() == 0
    return run, run.state(), monitor.directory


def rows(step: Step) -> set[tuple[str, str, str]]:
    return {(one["name"], one["quantity"], one["role"]) for one in step.records}


def zoomed(directory: str) -> dict[int, int]:
    return {step.step: step.zoom for step in Journal(directory) if step.zoom}


def test_everything_for_some_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {**NARROW, "output_dir": tmp_path, "zoom": {"steps": 4}}
    _, bare, _ = train(None)
    run, state, directory = train(fields)
    for one, other in zip(bare, state, strict=True):
        assert torch.equal(one, other)
    # The step that went wrong has been written when the next one begins, or one later.
    first = min(zoomed(directory))
    assert first in (BAD + 1, BAD + 2)
    assert zoomed(directory) == {first + i: 1 for i in range(4)}
    steps = {step.step: step for step in Journal(directory)}
    narrow = {("body.1", "actv", "output")}
    names = ["", "body", "body.0", "body.1", "body.2", "head"]
    kinds = [("actv", "input"), ("actv", "output"), ("actv_grad", "output")]
    wide = {(name, *kind) for name in names for kind in kinds}
    parameters = {name for name, _ in run.model.named_parameters()}
    quantities = "grad_unreduced grad_reduced param_origin param_updated exp_avg exp_avg_sq"
    wide |= {(name, quantity, "") for name in parameters for quantity in quantities.split()}
    for number, step in steps.items():
        if number in zoomed(directory):
            assert rows(step) >= wide
            assert {one["micro_step"] for one in step.records if one["role"]} == {0, 1}
        else:
            assert rows(step) == narrow
    # Hooks were added, and are gone again.
    few, many = run.hooks[0], max(run.hooks)
    assert run.hooks == [many if s + 1 in zoomed(directory) else few for s in range(STEPS)]
    incident = Journal(directory).incidents()[0]
    assert (incident.zoom_first, incident.zoom_steps) == (first, 4)
    assert f"From step {first} on 4 steps are recorded with everything" in incident.text
    told = capfd.readouterr().err
    assert f"step {first}: because of incident 1 every module and parameter is recorded" in told
    assert f"step {first + 4}: what is configured is recorded again\n" in told
    assert not list(Path(directory).glob("zoom*"))
    shown = subprocess.run([TOOL, "show", directory], capture_output=True, text=True, check=True)
    assert f"\nzoom     4 steps: from step {first} for incident 1\n" in shown.stdout


def test_not_without_being_asked(tmp_path: Path) -> None:
    run, _, directory = train({**NARROW, "output_dir": tmp_path})
    assert zoomed(directory) == {}
    assert len(set(run.hooks)) == 1


def test_a_budget_of_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {**NARROW, "output_dir": tmp_path, "zoom": {"steps": 20, "bytes": 1}}
    _, _, directory = train(fields)
    assert len(zoomed(directory)) == 1
    assert "zoom.bytes are used up" in capfd.readouterr().err


def test_rarely(tmp_path: Path) -> None:
    """Another incident, as soon as the first one has ended, gets none; much later it does."""
    fields: dict[str, Any] = {
        **NARROW,
        "output_dir": tmp_path,
        "zoom": {"steps": 2},
        "step_interval": 2,
    }
    bad = [BAD, BAD + 40, BAD + 160]
    _, _, directory = train(fields, steps=190, bad=bad)  # type: ignore[arg-type]
    found = zoomed(directory)
    assert len({one.number for one in Journal(directory).incidents()}) == 3
    assert sorted(set(found.values())) == [1, 3]
    first = min(found)
    assert found[first + 1] == 1  # whatever the interval says
    assert min(step for step, number in found.items() if number == 3) >= BAD + 160


@pytest.mark.parametrize("place", ["module", "parameter"])
def test_tensors(place: str, tmp_path: Path) -> None:
    """Their values are those that the training has had, to the bit."""
    fields: dict[str, Any] = {
        **NARROW,
        "output_dir": tmp_path,
        "zoom": {"steps": 3, "tensors": True},
    }
    if place == "parameter":
        fields |= {"param_distribution": True, "targets": {"head.bias": {}}}
        fields["alert"] = {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 50}}]}
    run = Run()
    seen: dict[int, list[torch.Tensor]] = {}
    kept: list[torch.Tensor] = []

    def keep(_: Any, args: Any, output: torch.Tensor) -> None:
        kept.extend([args[0].clone(), output.clone()])

    with tensorprobe.watch(run.model, run.optimizer, **fields) as monitor:
        for number in range(30):
            if place == "parameter" and number == BAD:
                with torch.no_grad():
                    run.model.head.bias[1] = 100.0
            if place == "module":
                handle = run.model.body[1].register_forward_hook(keep)
            run.step(number, range(BAD, BAD + 3) if place == "module" else range(0))
            if place == "module":
                handle.remove()
            else:
                bias = run.model.head.bias
                state = run.optimizer.state[bias]
                kept += [bias.detach().clone(), bias.grad.clone()]  # type: ignore[union-attr]
                kept += [state["exp_avg"].clone(), state["exp_avg_sq"].clone()]
            seen[number] = kept[:]
            kept.clear()
            wait_for(monitor)
    directory = Path(monitor.directory)
    files = sorted((directory / "zoom").iterdir())
    steps = sorted(zoomed(str(directory)))
    assert len(steps) == 3
    assert [path.name for path in files] == [f"step{s}-incident1.safetensors" for s in steps]
    for step, path in zip(steps, files, strict=True):
        assert path.stat().st_mode & 0o777 == 0o640
        with safe_open(path, "pt") as opened:
            assert opened.metadata() == {"step": str(step), "incident": "1"}
        tensors = load_file(path)
        if place == "parameter":
            names = ["head.bias", "head.bias.grad", "head.bias.exp_avg", "head.bias.exp_avg_sq"]
            expected = {f"{name}#0": value for name, value in zip(names, seen[step], strict=True)}
            assert tensors.keys() == expected.keys()
        else:
            sides = [
                "body.1.input.0#0",
                "body.1.output.0#0",
                "body.1.input.0#1",
                "body.1.output.0#1",
            ]
            expected = dict(zip(sides, seen[step], strict=True))
            assert expected.keys() | {"body.1.output.0.grad#0", "body.1.output.0.grad#1"} <= (
                tensors.keys()
            )
        for name, value in expected.items():
            assert torch.equal(tensors[name].nan_to_num(7.0), value.nan_to_num(7.0)), name


def test_compiled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Hooks can't be added there: that is said, and what can be recorded without is."""
    fields: dict[str, Any] = {
        **NARROW,
        "output_dir": tmp_path,
        "zoom": {"steps": 2, "tensors": True},
    }
    _, bare, _ = train(None, compiled=True)
    run, state, directory = train(fields, compiled=True)
    for one, other in zip(bare, state, strict=True):
        assert torch.equal(one, other)
    assert len(zoomed(directory)) == 2
    assert len(set(run.hooks[1:])) == 1
    assert capfd.readouterr().err.count("hooks can't be added to what is compiled") == 1


def test_close_in_the_middle(tmp_path: Path) -> None:
    """Nothing is left: no hook, no reference, and the next start begins as it is configured."""
    fields: dict[str, Any] = {
        **NARROW,
        "output_dir": tmp_path,
        "zoom": {"steps": 1000, "tensors": True},
    }
    run, _, directory = train(fields)
    first = min(zoomed(directory))
    assert list(zoomed(directory)) == list(range(first, STEPS))
    again = Run()
    with tensorprobe.watch(again.model, again.optimizer, resume=directory, **fields) as monitor:
        again.step(STEPS, range(0))
        assert monitor.directory == directory
    assert STEPS not in zoomed(directory)
    model = weakref.ref(run.model)
    del run
    gc.collect()
    assert model() is None


def test_with_a_budget(tmp_path: Path) -> None:
    """What is left out to keep it is recorded, too."""
    rule = {"rule_name": "AnomalyNan", "args": {"targets": ["body.1"]}}
    fields = {"output_dir": tmp_path, "format": "api", "alert": {"rules": [rule]}}
    fields |= {"budget": "1us", "zoom": {"steps": 3}}
    _, _, directory = train(fields, bad=range(25, 28))
    steps = {step.step: step for step in Journal(directory)}
    assert steps[24].left_out
    assert [steps[number].left_out for number in zoomed(directory)] == [[]] * 3
    assert steps[max(zoomed(directory)) + 3].left_out


def test_other_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, or configured anew, in the middle."""
    monkeypatch.setitem(os.environ, "TENSORPROBE_LOG_LEVEL", "3")
    config = {**NARROW, "xy_distribution": True, "zoom": {"steps": 6}}
    run = Run()
    monitor = tensorprobe.TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(run.model, run.optimizer)
    few = run.count_hooks()
    number = 0
    while run.count_hooks() == few and number < 200:
        run.step(number, range(BAD, BAD + 3))
        number += 1
    assert run.count_hooks() > few
    monitor.start(config={**config, "targets": {"head": {}}})
    run.step(number, range(0))
    assert run.count_hooks() == few
    for _ in range(110):
        number += 1
        run.step(number, range(0))
    while run.count_hooks() == few and number < 400:
        number += 1
        run.step(number, range(400))
    assert run.count_hooks() > few
    monitor.stop()
    assert run.count_hooks() == 0
    for _ in range(8):
        number += 1
        run.step(number, range(0))
    assert run.count_hooks() == 0
    monitor.start()
    run.step(number + 1, range(0))
    assert run.count_hooks() == few
    monitor.close()
    assert run.count_hooks() == 0


def test_ranks_that_record_different_things(tmp_path: Path) -> None:
    """One of them zooms, all of them leave out what a budget doesn't allow: it trains as before."""
    layouts = ["ddp_plain", "ddp_checked", "fsdp2_plain", "fsdp2_checked"]
    for layout, ranks in sharded.run("collection_ranks.py", 2, layouts, tmp_path / "out").items():
        for rank, found in enumerate(ranks):
            assert found.get("same"), (layout, rank, found)
            steps = {step.step: step for step in Journal(found["directory"])}
            assert len(steps) == 40
            last = steps[39].left_out
            assert {"actv", "actv_grad", "param_origin", "exp_avg"} <= set(last)
            assert ("grad_reduced" in last) == layout.endswith("plain")
            assert len(zoomed(found["directory"])) == (3 if rank == 1 else 0), (layout, rank)
            assert all(not steps[number].left_out for number in zoomed(found["directory"]))
        files = list(Path(ranks[1]["directory"]).glob("zoom/*.safetensors"))
        assert len(files) == 3
