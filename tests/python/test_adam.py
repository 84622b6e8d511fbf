"""ur_distribution and mg_direction: what is recorded of torch's optimizers, and where it goes."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import tensorprobe
from built import TOOL
from journal_reader import BATCH, read_journal
from tensorprobe import _core

STEPS = 4
CONFIG = {
    "ur_distribution": True,
    "mg_direction": True,
    "format": ["csv", "tensorboard"],
    "ops": ["norm", "max", "nans", "id"],
    "step_count_per_record": 100,
    "strict": True,
}

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 70), nn.ReLU(), nn.Linear(70, 3)).to(dtype)


def two_groups(net: nn.Module) -> torch.optim.Optimizer:
    """Each with betas and an eps of its own; the default of the optimizer is nobody's."""
    weights = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim == 1]
    groups = [
        {"params": weights, "betas": (0.8, 0.9), "eps": 1e-3},
        {"params": others, "betas": (0.5, 0.99), "eps": 1e-6},
    ]
    return torch.optim.AdamW(groups, lr=1e-3)


class GroupStep(torch.optim.Optimizer):
    """Counts its steps once a group, in an int, as some fused optimizers do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net.parameters(), {"betas": (0.7, 0.8), "eps": 1e-5, "step": 0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["exp_avg"].lerp_(parameter.grad, 0.3)
                state["exp_avg_sq"].lerp_(parameter.grad.square(), 0.2)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=1e-2),
    "foreach": lambda net: torch.optim.Adam(net.parameters(), foreach=True),
    "fused": lambda net: torch.optim.Adam(net.parameters(), fused=True),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.3),
    "adamw-foreach": lambda net: torch.optim.AdamW(net.parameters(), foreach=True),
    "adamw-fused": lambda net: torch.optim.AdamW(net.parameters(), fused=True),
    "amsgrad": lambda net: torch.optim.Adam(net.parameters(), amsgrad=True),
    "maximize": lambda net: torch.optim.AdamW(net.parameters(), maximize=True),
    "tensor-lr": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-2)),
    "group-step": GroupStep,
    "groups": two_groups,
    "nadam": lambda net: torch.optim.NAdam(net.parameters()),
}


@dataclass
class Expected:
    """Of one parameter in one step."""

    update: Tensor
    ratio: Tensor
    direction: float


def expected_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Expected | None:
    """As msprobe writes it, but with the betas of the parameter's group and a well rounded root."""
    state = optimizer.state.get(parameter)
    if not state or "exp_avg_sq" not in state:
        return None
    (group,) = [one for one in optimizer.param_groups if any(p is parameter for p in one["params"])]
    step = float(state["step"] if "step" in state else group["step"])
    beta1, beta2 = (float(beta) for beta in group["betas"])
    m, v = (state[name].float() for name in ("exp_avg", "exp_avg_sq"))
    m = m / (1 - beta1**step)
    deviation = torch.from_numpy(np.sqrt((v / (1 - beta2**step)).numpy()))
    assert parameter.grad is not None
    signs = parameter.grad.sign() * state["exp_avg"].sign()
    direction = (signs.double().sum().item() / signs.numel() + 1) / 2
    return Expected(m / (deviation + group["eps"]), m / deviation, direction)


@dataclass
class Run:
    """A training, and what should be recorded of it: by step and name."""

    net: nn.Module
    optimizer: torch.optim.Optimizer
    expected: dict[tuple[int, str], Expected]
    directory: Path


def train(
    make: MakeOptimizer,
    base: Path | None,
    dtype: torch.dtype = torch.float32,
    config: dict[str, Any] | None = None,
    net: nn.Module | None = None,
) -> Run:
    net = model(dtype) if net is None else net
    optimizer = make(net)
    run = Run(net, optimizer, {}, Path())
    monitor = None
    if base is not None:
        monitor = tensorprobe.TrainerMon(config or CONFIG, params_have_main_grad=False)
        monitor.set_monitor(net, optimizer)
    torch.manual_seed(4)
    for step in range(STEPS):
        loss = net(torch.randn(6, 10).to(dtype)).square().mean()
        loss.backward()
        for name, parameter in net.named_parameters():
            found = expected_of(optimizer, parameter) if base is not None else None
            if found is not None:
                run.expected[step, name] = found
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
        assert base is not None
        (run.directory,) = base.glob("*-rank0-*")
    return run


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSORPROBE_OUTPUT_DIR", str(tmp_path))
    return tmp_path


def records_of(run: Run, quantity: str) -> dict[tuple[int, str], dict[str, Any]]:
    return {
        (step.step, record["name"]): record
        for step in tensorprobe.Journal(run.directory)
        for record in step.records
        if record["quantity"] == quantity
    }


def check_records(run: Run) -> None:
    assert len(run.expected) == (STEPS - 1) * 4  # nothing of the first step: there are no moments
    for quantity in ("adam_update", "adam_ratio"):
        found = records_of(run, quantity)
        assert found.keys() == run.expected.keys()
        for place, record in found.items():
            right = run.expected[place]
            tensor = right.update if quantity == "adam_update" else right.ratio
            bins = torch.histc(tensor, 30, -1, 1).long().tolist()
            assert record["histogram"] == {"low": -1.0, "high": 1.0, "bins": bins}
            assert record["shape"] == tuple(tensor.shape)
            assert record["dtype"] == "torch.float32"
            stats = _core.compute_stats(tensor)
            for name in ("count", "nan", "zeros", "min", "max", "norm", "std", "abs_max_index"):
                np.testing.assert_equal(record[name], stats[name], err_msg=name)
    directions = records_of(run, "mg_direction")
    assert directions.keys() == run.expected.keys()
    for place, record in directions.items():
        assert record["min"] == pytest.approx(run.expected[place].direction, rel=1e-15)
        assert (record["count"], record["shape"]) == (1, ())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_those_of_the_state_before_the_step(name: str, base: Path) -> None:
    check_records(train(OPTIMIZERS[name], base))


def test_halves(base: Path) -> None:
    """bf16 moments are made f32; the bins of the small update don't vanish."""
    run = train(OPTIMIZERS["adamw"], base, torch.bfloat16)
    check_records(run)
    update = records_of(run, "adam_update")[2, "0.weight"]
    assert sum(update["histogram"]["bins"]) > 500


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_of_the_training_stay(name: str, base: Path) -> None:
    watched = train(OPTIMIZERS[name], base)
    generator = torch.get_rng_state()
    plain = train(OPTIMIZERS[name], None)
    assert torch.equal(torch.get_rng_state(), generator)
    for (key, ours), theirs in zip(
        watched.net.named_parameters(), plain.net.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), key
        left, right = watched.optimizer.state[ours], plain.optimizer.state[theirs]
        assert left.keys() == right.keys()
        for part, value in left.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(right[part])), (key, part)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_csv_files(base: Path) -> None:
    """The direction stands in the ancestors' `other`, its number under every op."""
    run = train(OPTIMIZERS["adam"], base)
    files = sorted(path.name for path in run.directory.glob("*.csv"))
    assert files == ["adam_ratio_0-99.csv", "adam_update_0-99.csv", "other_0-99.csv"]
    for kind in ("update", "ratio"):
        for row in rows_of(run.directory / f"adam_{kind}_0-99.csv"):
            right = run.expected[int(row["step"]), row["name"]]
            stats = _core.compute_stats(right.update if kind == "update" else right.ratio)
            assert list(row) == ["vpp_stage", "name", "step", "norm", "max", "nans", "id"]
            np.testing.assert_equal(float(row["norm"]), stats["norm"])
            assert int(row["nans"]) == stats["nan"]
    rows = rows_of(run.directory / "other_0-99.csv")
    assert len(rows) == len(run.expected)
    for row in rows:
        direction = run.expected[int(row["step"]), row["name"]].direction
        for op in ("norm", "max", "id"):
            assert float(row[op]) == pytest.approx(direction, rel=1e-15)


def test_tensorboard_histograms(base: Path) -> None:
    run = train(OPTIMIZERS["adam"], base)
    events = EventAccumulator(str(run.directory), {"histograms": 0}).Reload()
    names = {name for _, name in run.expected}
    assert set(events.Tags()["histograms"]) == {
        f"0:{name}/rank0/adam_{kind}" for name in names for kind in ("update", "ratio")
    }
    assert "0:0.weight/rank0/mg_direction_norm" in events.Tags()["tensors"]
    for name in names:
        found = events.Histograms(f"0:{name}/rank0/adam_update")
        assert [event.step for event in found] == [1, 2, 3]
        for event in found:
            histogram = event.histogram_value
            bins = torch.histc(run.expected[event.step, name].update, 30, -1, 1)
            assert histogram.bucket == bins.tolist()
            assert histogram.num == bins.sum()
            assert (histogram.min, histogram.max) == (-1, 1)
            np.testing.assert_allclose(histogram.bucket_limit, np.linspace(-1, 1, 31)[1:])


def test_recovered_event_files_have_the_histograms(base: Path) -> None:
    """From the files as they were at an early step, and the whole journal."""
    early = base / "early"

    def copy(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        time.sleep(0.05)  # a cursor is written with the next step's data
        counts = [state["step"] for state in optimizer.state.values()]
        until = time.monotonic() + (30 if counts and counts[0] == STEPS - 1 else 0)
        while not early.exists():
            cursors = list(base.glob("*-rank0-*/followers/tensorboard.cursor"))
            if cursors:  # these first: a cursor is never ahead of its files
                shutil.copytree(cursors[0].parent, early / "followers")
                others = shutil.ignore_patterns("followers")
                shutil.copytree(cursors[0].parents[1], early, ignore=others, dirs_exist_ok=True)
            elif time.monotonic() >= until:
                break

    def make(net: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(net.parameters())
        optimizer.register_step_pre_hook(copy)
        return optimizer

    run = train(make, base)
    shutil.copytree(run.directory / "journal", early / "journal", dirs_exist_ok=True)
    subprocess.run([TOOL, "recover", early], check=True, capture_output=True)

    def histograms(directory: Path) -> list[Any]:
        events = EventAccumulator(str(directory), {"histograms": 0}).Reload()
        found = events.Histograms("0:2.weight/rank0/adam_ratio")
        return [(event.step, event.histogram_value) for event in found]

    assert histograms(early) == histograms(run.directory)
    assert len(histograms(early)) == STEPS - 1


def test_the_independent_reader_finds_the_histograms(base: Path) -> None:
    run = train(OPTIMIZERS["adam"], base)
    seen = 0
    for item, definitions in read_journal(run.directory):
        for record in item.records if item.type == BATCH else []:
            key = definitions.keys[int.from_bytes(record[4:8], "little")]
            if key["quantity"] in (10, 11):
                right = run.expected[item.step, key["name"]]
                tensor = right.update if key["quantity"] == 10 else right.ratio
                bins = torch.histc(tensor, 30, -1, 1).long().tolist()
                assert item.histogram(record) == (-1, 1, bins)
                seen += 1
            else:
                assert item.histogram(record) is None
    assert seen == 2 * len(run.expected)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda net: torch.optim.SGD(net.parameters(), momentum=0.9), {"ur", "mg"}),
        (lambda net: torch.optim.Adamax(net.parameters()), {"ur"}),
    ],
)
def test_an_optimizer_without_moments_is_named_once(
    make: MakeOptimizer, told: set[str], base: Path
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train(make, base)
    texts = [str(one.message) for one in caught if "keeps no" in str(one.message)]
    assert {text.removeprefix("tensorprobe: ")[:2] for text in texts} == told
    assert len(texts) == len(told)
    assert all(type(run.optimizer).__name__ in text for text in texts)
    assert not records_of(run, "adam_update")
    assert bool(records_of(run, "mg_direction")) == ("mg" not in told)


def test_warnings_as_errors_do_not_reach_the_training(base: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(
            lambda net: torch.optim.SGD(net.parameters()), base, config={**CONFIG, "strict": False}
        )


def test_some_parameters_without_moments(base: Path) -> None:
    """One that never had a gradient has no state, and no row."""
    net = model()
    net.register_parameter("unused", nn.Parameter(torch.ones(3)))
    run = train(OPTIMIZERS["adam"], base, net=net)
    check_records(run)


def test_tied_weights_have_a_row_for_each_name(base: Path) -> None:

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.again = self.net[0]

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

    updates = records_of(train(OPTIMIZERS["adam"], base, net=Tied()), "adam_update")
    for step in range(1, STEPS):
        ours, other = (dict(updates[step, name]) for name in ("net.0.weight", "again.weight"))
        assert ours["histogram"] == other["histogram"]
        assert ours["norm"] == other["norm"]


def test_a_closure_makes_its_gradient_later(base: Path) -> None:
    """What is there before the step is the step before's: there is no direction."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    monitor = tensorprobe.TrainerMon(CONFIG, params_have_main_grad=False)
    monitor.set_monitor(net, optimizer)

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 10)).sum()
        loss.backward()
        return float(loss.item())

    for _ in range(3):
        optimizer.step(closure)
    monitor.close()
    (directory,) = base.iterdir()
    run = Run(net, optimizer, {}, directory)
    assert len(records_of(run, "adam_update")) == 8
    assert not records_of(run, "mg_direction")


def test_ratios_that_are_nan_alert_nobody(base: Path) -> None:
    """0 / 0 wherever a row of an embedding has not been used yet is no accident."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(net.parameters())
    alert = {"rules": [{"rule_name": "AnomalyNan"}]}
    monitor = tensorprobe.TrainerMon({**CONFIG, "alert": alert}, params_have_main_grad=False)
    monitor.set_monitor(net, optimizer)
    for step in range(4):
        net(torch.tensor([1, 2, step])).sum().backward()
        optimizer.step()
        if step == 2:
            optimizer.state[next(net.parameters())]["exp_avg"][7, 1] = math.nan
    monitor.close()
    (directory,) = base.iterdir()
    journal = tensorprobe.Journal(directory)
    ratios = [r for s in journal for r in s.records if r["quantity"] == "adam_ratio"]
    assert any(record["nan"] > 100 for record in ratios)
    assert {(a.step, a.quantity) for a in journal.alerts()} == {
        (3, "adam_update"),
        (3, "mg_direction"),
    }
