"""What a budget leaves out, and that it is nothing else: the records are those of a run without."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

import tensorprobe
from built import TOOL
from tensorprobe.journal import Journal, Step

STEPS = 60
ALL = [
    *("actv", "actv_grad", "grad_unreduced", "grad_reduced", "param_origin", "param_updated"),
    *("exp_avg", "exp_avg_sq"),
]
RULES = [
    {"rule_name": "AnomalyNan"},
    {"rule_name": "DeadUnits", "args": {"targets": ["body.1", "re:^head"]}},
]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6)]
        self.body = torch.nn.Sequential(*blocks)
        self.head = torch.nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x))
        return result


Loop = Callable[[torch.nn.Module, torch.optim.Optimizer, torch.Tensor], None]


def plain(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    for part in x.chunk(2):
        model(part).square().mean().backward()
    optimizer.step()


def closure(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    def again() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return float(loss.item())

    optimizer.step(again)


class Scaled:
    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def __call__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor
    ) -> None:
        optimizer.zero_grad()
        self.scaler.scale(model(x).square().mean()).backward()
        self.scaler.unscale_(optimizer)
        self.scaler.step(optimizer)
        self.scaler.update()


def train(
    loop: Loop, fields: dict[str, Any] | None = None, *, compiled: bool = False
) -> tuple[list[torch.Tensor], str]:
    torch.manual_seed(5)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watched = None if fields is None else tensorprobe.watch(model, optimizer, **fields)
    called: Any = torch.compile(model, backend="aot_eager") if compiled else model
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        loop(called, optimizer, torch.randn(8, 6, generator=generator))
    state = [p.detach().clone() for p in model.parameters()]
    state += [torch.random.get_rng_state(), torch.rand(3)]
    for values in optimizer.state.values():
        state += [values["exp_avg"], values["exp_avg_sq"]]
    directory = ""
    if watched is not None:
        watched.close()
        directory = watched.directory
    return state, directory


def rows(step: Step, left_out: list[str], named: list[str]) -> list[tuple[Any, ...]]:
    """All that a step has recorded, but for what is left out and no rule names."""
    return [
        (
            *(one[key] for key in ("name", "quantity", "role", "slot", "micro_step", "call")),
            *(repr(one[key]) for key in ("norm", "min", "max", "m2", "count")),
        )
        for one in step.records
        if one["quantity"] not in left_out or one["name"] in named
    ]


def compare(budgeted: str, whole: str, named: list[str]) -> list[list[str]]:
    """Returns what each step has left out."""
    journals = [list(Journal(directory)) for directory in (budgeted, whole)]
    assert len(journals[0]) == len(journals[1]) == STEPS
    for thin, full in zip(*journals, strict=True):
        assert full.left_out == []
        assert rows(thin, [], []) == rows(full, thin.left_out, named)
    return [step.left_out for step in journals[0]]


@pytest.mark.parametrize("kind", ["plain", "closure", "scaled", "compiled"])
def test_what_is_left_out(kind: str, tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A budget that nothing keeps: everything goes, but for what a rule names."""

    def loop() -> Loop:
        return Scaled() if kind == "scaled" else closure if kind == "closure" else plain

    fields = {"alert": {"rules": RULES}, "format": "api", "output_dir": tmp_path}
    named = ["body.1", "head", "head.weight", "head.bias"]
    compiled = kind == "compiled"
    bare, _ = train(loop(), compiled=compiled)
    full, whole = train(loop(), fields, compiled=compiled)
    thin, budgeted = train(loop(), {**fields, "budget": "1us"}, compiled=compiled)
    for one, other, third in zip(bare, full, thin, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
    left_out = compare(budgeted, whole, named)
    assert left_out[0] == []
    assert left_out[-1] == ALL
    assert any(0 < len(names) < len(ALL) for names in left_out)  # the gradients came last
    lines = [line for line in capfd.readouterr().err.splitlines() if "budget" in line]
    assert "recorded in one of 4 steps, to keep the budget: actv" in lines[0]
    assert "the budget of 0.001 ms a step isn't kept" in lines[-1]
    shown = subprocess.run([TOOL, "show", budgeted], capture_output=True, text=True, check=True)
    assert f"\nbudget   {sum(map(bool, left_out))} steps without {' '.join(ALL)} (" in shown.stdout
    table = pa.table(tensorprobe.open(budgeted).steps())
    assert table["left_out"].to_pylist() == [" ".join(names) for names in left_out]


def test_enough(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    fields = {"format": "api", "output_dir": tmp_path}
    _, whole = train(plain, fields)
    _, budgeted = train(plain, {**fields, "budget": "10s"})
    assert compare(budgeted, whole, []) == [[]] * STEPS
    assert "budget" not in capfd.readouterr().err


def test_checks_over_processes_keep_what_they_need(tmp_path: Any) -> None:
    fields = {"format": "api", "output_dir": tmp_path, "self_check": True}
    _, budgeted = train(plain, {**fields, "budget": "1us"})
    last = list(Journal(budgeted))[-1]
    assert last.left_out == [name for name in ALL if not name.startswith("grad_")]
    assert {one["quantity"] for one in last.records} >= {"grad_unreduced", "grad_reduced"}
