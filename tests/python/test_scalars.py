"""Numbers that the training loop logs: in the journal, the files, and the alerts."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import tensorprobe

pytestmark = pytest.mark.usefixtures("seed")


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def session(tmp_path: Path, **config: Any) -> tuple[tensorprobe.Session, torch.optim.Optimizer]:
    model, optimizer = small()
    config = {"xy_distribution": False, **config}
    return tensorprobe.watch(model, optimizer, output_dir=tmp_path, **config), optimizer


def test_every_kind_of_number_is_read_back(tmp_path: Path) -> None:
    values: list[Any] = [
        0.1,
        -3,
        True,
        torch.tensor(-2.5, requires_grad=True) * 1,
        torch.tensor([7]),
        torch.tensor(1.5, dtype=torch.bfloat16),
        np.float32(0.1),
        np.int64(9),
        -0.0,
        math.inf,
    ]
    monitor, optimizer = session(tmp_path)
    for value in values:
        monitor.log_scalar("loss/train, total", value)
        optimizer.step()
    monitor.close()
    expected = [float(v.item() if hasattr(v, "item") else v) for v in values]
    journal = tensorprobe.Journal(monitor.directory)
    assert journal.series("loss/train, total", "scalar") == ([*range(len(values))], expected)
    (path,) = Path(monitor.directory).glob("scalar_*.csv")
    table = pd.read_csv(path)
    assert list(table.columns) == ["vpp_stage", "name", "step", "value"]
    assert list(table["value"]) == expected
    assert set(table["name"]) == {"loss/train, total"}
    events = EventAccumulator(monitor.directory, size_guidance={"tensors": 0}).Reload()
    tag = "loss/train, total/rank0/scalar"
    assert [e.tensor_proto.double_val[0] for e in events.Tensors(tag)] == expected
    assert monitor.counters()["errors"] == 0


def test_several_values_in_a_step_are_told_apart(tmp_path: Path) -> None:
    monitor, optimizer = session(tmp_path)
    for step in range(3):
        for micro in range(2 + step % 2):
            monitor.log_scalar("loss", 10 * step + micro)
        monitor.log_scalar("rate", 0.5)
        optimizer.step()
    monitor.close()
    journal = tensorprobe.Journal(monitor.directory)
    rows = [
        [(r["row"], r["norm"]) for r in s.records if r["quantity"] == "scalar"] for s in journal
    ]
    assert rows[0] == [("loss", 0), ("loss#1", 1), ("rate", 0.5)]
    assert rows[1] == [("loss", 10), ("loss#1", 11), ("loss#2", 12), ("rate", 0.5)]
    assert rows[2] == [("loss", 20), ("loss#1", 21), ("rate", 0.5)]
    assert journal.series("loss", "scalar", call=1) == ([0, 1, 2], [1, 11, 21])


def test_a_loss_that_is_nan_or_jumps_is_named_and_one_that_falls_is_not(tmp_path: Path) -> None:
    monitor, optimizer = session(tmp_path)
    losses = [*(4.0 - 0.1 * i for i in range(30)), 0.001, 100.0, math.nan]
    for loss in losses:
        monitor.log_scalar("loss", loss)
        optimizer.step()
    monitor.close()
    alerts = tensorprobe.Journal(monitor.directory).alerts()
    assert [(a.step, a.rule, a.name) for a in alerts] == [
        (31, "LossSpike", "loss"),
        (32, "AnomalyNan", "loss"),
    ]


@pytest.mark.parametrize(
    "value", [torch.zeros(2), "much", None, torch.zeros((), device="meta")], ids=str
)
def test_what_is_no_number_is_named_once_and_ends_nothing(tmp_path: Path, value: Any) -> None:
    monitor, optimizer = session(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            monitor.log_scalar("loss", value)
            monitor.log_scalar("other", 1)
            optimizer.step()
    assert len(caught) == 1
    monitor.close()
    assert monitor.counters()["errors"] == 3
    assert {k["name"] for k in tensorprobe.Journal(monitor.directory).defined()} >= {"other"}
    monitor.log_scalar("loss", 1.0)  # closed: nothing happens


def test_trainer_mon_and_left_out_steps(tmp_path: Path) -> None:
    model, optimizer = small()
    config = {"format": "csv", "step_interval": 2, "param_distribution": True}
    monitor = tensorprobe.TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(model, optimizer)
    for step in range(5):
        monitor.log_scalar("lr\ud800\0", step / 10)
        optimizer.step()
    monitor.close()
    journal = tensorprobe.Journal(monitor.directory)
    assert journal.series("lr\\ud800\\x00", "scalar") == ([0, 2, 4], [0.0, 0.2, 0.4])
