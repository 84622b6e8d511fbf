"""Models whose modules are no tree, and trees that change for the time of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensorprobe
from test_loops import backward, draw, gradients, loss_of, rows_of, same, start, steps_of, values

pytestmark = pytest.mark.usefixtures("seed")


class Wired(nn.Module):
    """A layer, and whatever else it holds."""

    def __init__(self, **held: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        for name, module in held.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


@pytest.mark.parametrize("late", [False, True])
def test_children_that_hold_their_parent(late: bool, tmp_path: Path) -> None:
    """From the beginning or in the run; several make as many paths as there is time for."""
    model = nn.Sequential(*(Wired() for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def tie() -> None:
        for child in model:
            child.owner = model

    if not late:
        tie()
    session = start(model, optimizer, tmp_path)
    expected = []
    for number in range(3):
        if late and number == 1:
            tie()
        elif number == 2:
            model[1].layer = nn.Linear(4, 4, dtype=torch.float64)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        backward(loss_of(model))
        expected.append(
            {
                f"{i}.layer.{part}": p
                for i in range(3)
                for part, p in gradients(model.get_submodule(f"{i}.layer")).items()
            }
        )
        optimizer.step()
        optimizer.zero_grad()
    for step, wanted in zip(steps_of(session), expected, strict=True):
        assert same(values(step, "grad_reduced"), wanted)
        assert {f"{i}.layer.output" for i in range(3)} < rows_of(step, "actv")


def test_shared_modules_that_share_modules(tmp_path: Path) -> None:
    """2 to the 40th paths lead to the innermost: it is hooked once, and has names enough."""
    model = inner = Wired()
    for _ in range(40):
        model = Wired(first=model, second=model)
    session = start(model, None, tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        backward(loss_of(model) + sum(p.pow(2).sum() for p in model.parameters()))
        optimizer.step()
    for step in steps_of(session):
        norms = values(step, "grad_reduced")
        assert {"layer.weight", "first.layer.weight", "second.layer.weight"} < set(norms)
        of_inner = {row: norms[row] for row in norms if row.count(".") == 41 and "weight" in row}
        assert len(of_inner) == 64
        assert "first." * 40 + "layer.weight" in of_inner
        assert len(set(of_inner.values())) == 1
    assert same(of_inner, dict.fromkeys(of_inner, gradients(inner)["layer.weight"]))


def test_a_model_with_a_named_parameters_of_its_own(tmp_path: Path) -> None:
    """As it was before torch 2.0: without remove_duplicate."""

    class Own(Wired):
        def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:  # type: ignore[override]
            yield from super().named_parameters(prefix, recurse)

    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path)
    backward(loss_of(model))
    optimizer.step()
    (step,) = steps_of(session)
    assert rows_of(step, "param_updated") == {"layer.weight", "layer.bias"}


def double_net() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4, dtype=torch.float64) for _ in range(2)))


@pytest.mark.parametrize("own_parameters", [False, True])
def test_parameters_of_a_functional_call_are_not_the_models(
    own_parameters: bool, tmp_path: Path
) -> None:
    """Neither computed ones nor another model's; and what is really replaced is still noticed."""
    model = double_net()
    other: dict[str, Tensor] = dict(double_net().named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path)
    expected = []
    for number in range(5):
        if number == 3:
            model[1] = nn.Linear(4, 4, dtype=torch.float64)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        optimizer.zero_grad()
        if number > 0:
            fast: dict[str, Tensor] = {name: p * 1000 for name, p in model.named_parameters()}
            swapped = other if own_parameters else fast
            backward(torch.func.functional_call(model, swapped, (draw(3, 4),)).sum())
        if number != 2:
            backward(loss_of(model))
        before = {name: float(p.detach().norm()) for name, p in model.named_parameters()}
        expected.append((gradients(model), before))
        optimizer.step()
    for step, (grads, before) in zip(steps_of(session), expected, strict=True):
        assert same(values(step, "grad_reduced"), grads)
        assert same(values(step, "param_origin"), before)


def test_a_module_replaced_in_a_compiled_model(tmp_path: Path) -> None:
    """Its parameters at once; its activations from the step after, which is compiled anew."""

    def train(watched: bool) -> tuple[list[Tensor], str]:
        torch._dynamo.reset()
        torch.manual_seed(3)
        model = double_net()
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = start(model, optimizer, tmp_path) if watched else None
        left = []
        for number in range(4):
            if number == 1:
                model[1] = nn.Linear(4, 4, dtype=torch.float64)
                optimizer.param_groups[0]["params"] = list(model.parameters())
            backward(run(draw(3, 4)).pow(2).sum())
            optimizer.step()
            optimizer.zero_grad()
            left.append(model.get_parameter("1.weight").detach().clone())
        if session is None:
            return left, ""
        session.close()
        return left, session.directory

    left, directory = train(True)
    assert all(torch.equal(a, b) for a, b in zip(left, train(False)[0], strict=True))
    found = list(tensorprobe.Journal(directory))
    for step, weight in zip(found, left, strict=True):
        assert same(
            {"1.weight": values(step, "param_updated")["1.weight"]},
            {"1.weight": float(weight.norm())},
        )
        assert "1.weight" in rows_of(step, "grad_reduced")
    assert ["1.output" in rows_of(step, "actv") for step in found] == [True, False, True, True]
