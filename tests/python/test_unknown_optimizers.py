"""Optimizers that are neither torch's nor of a known framework."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from tensorprobe._optimizers import Optimizers

pytestmark = pytest.mark.usefixtures("seed")


class Momentum:
    """Has what torch's optimizers have, but for their hooks."""

    def __init__(self, parameters: Any, keeps: bool = True) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": 0.1}]
        self.state: dict[Any, dict[str, Any]] = {}
        self.keeps = keeps

    def step(self) -> None:
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                own = self.state.setdefault(p, {})
                name = "exp_avg" if self.keeps else "velocity"
                own[name] = 0.9 * own.get(name, torch.zeros_like(p)) + p.grad
                p -= 0.1 * own[name]


def train(model: nn.Linear, optimizer: Momentum, steps: int = 3) -> list[torch.Tensor]:
    gradients: list[Any] = []
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(5, 4)).pow(2).sum().backward()
        gradient: Any = model.weight.grad
        gradients.append(gradient.clone())
        optimizer.step()
    return gradients


def test_it_is_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 3)
    optimizer: Any = Momentum(model.parameters())
    with tensorprobe.watch(model, optimizer, mv_distribution=True, output_dir=tmp_path) as monitor:
        gradients = train(model, optimizer)
    told = capsys.readouterr().err
    assert told.count("a Momentum is neither torch's nor") == 1
    assert "exp_avg" not in told
    journal = tensorprobe.Journal(monitor.directory)
    steps, norms = journal.series("weight", "grad_reduced")
    assert steps == [0, 1, 2]
    assert norms == pytest.approx([grad.norm().item() for grad in gradients])
    steps, norms = journal.series("weight", "exp_avg")
    assert steps == [1, 2]
    first = gradients[0]
    assert norms == pytest.approx([first.norm().item(), (0.9 * first + gradients[1]).norm().item()])
    _, updated = journal.series("weight", "param_updated")
    assert updated[-1] == pytest.approx(model.weight.norm().item())


def test_what_it_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 3)
    optimizer: Any = Momentum(model.parameters(), keeps=False)
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path) as monitor:
        train(model, optimizer)
    assert "keeps no exp_avg for 2 of its 2 parameters" in capsys.readouterr().err
    assert tensorprobe.Journal(monitor.directory).series("weight", "exp_avg") == ([], [])


def test_the_structure_is_printed_at_its_step(tmp_path: Path) -> None:
    config = {"targets": {"": {}}, "print_struct": True, "exit_after_struct": False}
    monitor = tensorprobe.TrainerMon(config, output_dir=tmp_path)
    model = nn.Linear(4, 3)
    optimizer = Momentum(model.parameters())
    monitor.set_monitor(model, optimizer)
    train(model, optimizer)
    monitor.close()
    (found,) = tmp_path.rglob("module_struct.json")
    assert json.loads(found.read_text())["0:"]["input"]["0"] == "size=(5, 4), dtype=torch.float32"


@pytest.mark.parametrize("said", ["Megatron_FP32Optimizer", "unknown", None])
def test_the_right_kind_is_no_news(
    said: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Optimizers, "kinds", lambda _: {"Megatron_FP32Optimizer"})
    attach(said)
    assert "opt_ty" not in capsys.readouterr().err


def test_another_kind_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Optimizers, "kinds", lambda _: {"Megatron_FP32Optimizer"})
    attach("DeepSpeedZeroOptimizer_Stage3")
    told = capsys.readouterr().err
    assert "opt_ty is 'DeepSpeedZeroOptimizer_Stage3'" in told
    assert "the optimizer is Megatron_FP32Optimizer" in told


def test_plain_adam_may_be_called_anything(capsys: pytest.CaptureFixture[str]) -> None:
    attach("DeepSpeedZeroOptimizer_Stage3")
    assert "opt_ty" not in capsys.readouterr().err


def attach(kind: str | None) -> None:
    monitor = tensorprobe.TrainerMon({"targets": {"": {}}, "format": "api"}, opt_ty=kind)
    model = nn.Linear(2, 2)
    monitor.set_monitor(model, torch.optim.Adam(model.parameters()))
    monitor.close()
