"""Optimizers and updates that nobody has told of, and gradients of several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe

pytestmark = pytest.mark.usefixtures("seed")

QUIET: Any = {"rules": []}  # else the console says which of them are warming up
STRANGER = "isn't watched steps with parameters of this model"


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, *steps: Callable[[], Any], times: int = 1) -> None:
    for _ in range(times):
        model.zero_grad()
        model(torch.randn(2, 3, dtype=torch.float64)).sum().backward()
        for step in steps:
            step()


class Around(torch.optim.Optimizer):
    """Steps by another one, as wrappers do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([{"params": inner.param_groups[0]["params"]}], {})
        self.within = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.within.step()


def test_another_optimizer_is_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = small()
    optimizer: torch.optim.Optimizer = sgd(model)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path, alert=QUIET)
    train(model, optimizer.step, times=3)
    assert capfd.readouterr().err == ""
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer.step, times=5)
    err = capfd.readouterr().err
    assert err.count(STRANGER) == 1
    assert "an AdamW that" in err
    session.close()
    said = "5 training forwards came after the last end of a step, where a step has had 1 at most"
    assert said in capfd.readouterr().err


def test_use_optimizer_listens_anew(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = small()
    first, second = sgd(model), sgd(model)
    session = tensorprobe.watch(model, first, output_dir=tmp_path, alert=QUIET)
    session.use_optimizer(second)
    train(model, second.step, times=3)
    session.close()
    assert capfd.readouterr().err == ""
    assert session.step_number == 3
    train(model, first.step)  # closed: nobody listens
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("told", [True, False])
def test_of_two_optimizers_the_second_is_a_stranger(
    told: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without being told the first one that steps ends the steps."""
    model = small()
    first, second = sgd(model[0]), sgd(model[2])
    with tensorprobe.watch(model, first if told else None, output_dir=tmp_path) as session:
        train(model, first.step, second.step, times=2)
    assert capfd.readouterr().err.count(STRANGER) == 1
    assert session.step_number == 2


def test_what_is_no_stranger(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, other = small(), small()
    optimizer, others = sgd(model), sgd(other)
    inner = sgd(model)
    outer = Around(inner)
    for given, steps in [
        (optimizer, [others.step, optimizer.step, others.step]),  # of another model
        (None, [others.step, optimizer.step, others.step]),
        (inner, [outer.step]),  # a wrapper that nobody knows steps by the one that is known
        (outer, [outer.step]),  # and the other way round
        ([inner, optimizer], [inner.step, optimizer.step]),
    ]:
        session = tensorprobe.watch(model, given, output_dir=tmp_path, alert=QUIET)
        train(model, *steps, times=3)
        session.close()
        assert session.step_number == 3
        assert capfd.readouterr().err == ""


def test_updates_made_by_hand_are_told_of_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = small()

    @torch.no_grad()
    def by_hand() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)

    with tensorprobe.watch(model, sgd(model), output_dir=tmp_path):
        train(model, by_hand, times=4)
    assert "4 training forwards came, and no step has ended" in capfd.readouterr().err


def test_an_update_that_comes_later_is_not_made_up(tmp_path: Path) -> None:
    model = small()
    first, second = sgd(model[0]), sgd(model[2])
    found: list[float] = []
    with tensorprobe.watch(model, first, output_dir=tmp_path) as session:

        def note() -> None:
            found.append(float(next(model.parameters()).detach().norm()))

        train(model, first.step, note, second.step, times=2)
        first.add_param_group({"params": [*model[2].parameters()]})  # now it has them
        train(model, first.step, times=1)
    journal = tensorprobe.Journal(session.directory)
    steps, values = journal.series("0.weight", "param_updated")
    assert steps == [0, 1, 2]
    assert values[:2] == pytest.approx(found, rel=1e-12)
    assert journal.series("2.weight", "param_updated")[0] == [2]
    assert journal.series("2.weight", "param_origin")[0] == [0, 1, 2]
    assert journal.series("2.weight", "grad_reduced")[0] == [0, 1, 2]


RANK = """
import sys
import numpy as np, torch, tensorprobe
from torch import distributed, nn

torch.manual_seed(3)
rank, folder = int(sys.argv[1]), sys.argv[2]
store = distributed.FileStore(folder + "/store", 2)
distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
inner = nn.Linear(3, 1, bias=False).double()
model = nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = tensorprobe.watch(model, optimizer, output_dir=folder)
model(torch.full((1, 3), 1.0 + rank, dtype=torch.float64)).sum().backward()
optimizer.step()
session.close()
distributed.barrier()  # gloo's threads may abort the process whose peer has gone already
distributed.destroy_process_group()
"""


def test_gradients_of_two_processes(tmp_path: Path) -> None:
    """The sum of an output has its inputs as gradient: [1, 1, 1] and [2, 2, 2], their mean 1.5."""
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "a launch",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert "grad_unreduced" not in "".join(said)
    runs = tensorprobe.open(tmp_path)
    assert (len(runs.names), runs.ranks) == (1, [0, 1])
    for journal in runs.journals:
        own = 1.0 + journal.run["rank"]
        assert journal.series("weight", "grad_reduced")[1] == pytest.approx([1.5 * 3**0.5])
        assert journal.series("weight", "grad_unreduced")[1] == pytest.approx([own * 3**0.5])
        spans = {key["quantity"]: key["span"] for key in journal.defined()}
        assert spans["grad_reduced"] == ("whole", (), 2, journal.run["rank"])
        assert spans["grad_unreduced"] == ("whole", (), 1, 0)
