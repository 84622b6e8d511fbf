"""Loops that clip gradients themselves: what is recorded is what was there before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

import tensorprobe
from test_loops import backward, draw, loss_of, net, start, steps_of, values
from test_unknown_optimizers import Momentum

pytestmark = pytest.mark.usefixtures("seed")

Norms = dict[str, float]


def norms_of(model: nn.Module) -> Norms:
    return {
        name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None
    }


def by_foreign_norm(model: nn.Module) -> None:
    parameters = list(model.parameters())
    total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, 1e-3, total)


def in_groups(model: Any) -> None:
    for layer in model:
        clip_grad_norm_(layer.parameters(), 1e-3)


WAYS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "one": lambda model: clip_grad_norm_(model[0].weight, 1e-3),
    "not_foreach": lambda model: clip_grad_norm_(model.parameters(), 1e-3, foreach=False),
    "value": lambda model: clip_grad_value_(model.parameters(), 1e-4),
    "foreign_norm": by_foreign_norm,
    "groups": in_groups,
}


def train(model: nn.Module, optimizer: Any, clip: Callable[[Any], Any], steps: int = 3) -> Any:
    """Return the gradients' norms before clipping, and what is left."""
    expected = []
    for _ in range(steps):
        model.zero_grad()
        backward(loss_of(model))
        expected.append(norms_of(model))
        clip(model)
        optimizer.step()
    return expected, [p.detach().clone() for p in model.parameters()]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", [True, False])
def test_gradients_are_those_before(way: str, given: bool, tmp_path: Path) -> None:
    left = []
    for watched in (False, True):
        torch.manual_seed(4)
        model = net(4, 3, 2)
        optimizer = adam(model)
        session = start(model, optimizer if given else None, tmp_path) if watched else None
        expected, parameters = train(model, optimizer, WAYS[way])
        left.append(parameters)
    assert session is not None
    steps = steps_of(session)
    for step, norms in zip(steps, expected, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-9)
    assert all(torch.equal(a, b) for a, b in zip(*left, strict=True))


def test_an_unknown_optimizer(tmp_path: Path) -> None:
    model = net(4, 3)
    optimizer = Momentum(model.parameters())
    session = start(model, optimizer, tmp_path)
    expected, _ = train(model, optimizer, WAYS["norm"])
    for step, norms in zip(steps_of(session), expected, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-9)


def test_each_optimizer_has_its_own(tmp_path: Path) -> None:
    """As adversaries train: the second one's gradients come when the first one has stepped."""
    model = nn.ModuleDict({"a": net(4, 3), "b": net(4, 3)})
    other = net(4, 3)
    first, second = (torch.optim.SGD(model[name].parameters(), lr=0.1) for name in "ab")
    session = start(model, [first, second], tmp_path)
    expected: list[Norms] = []
    for _ in range(3):
        backward(loss_of(other))
        clip_grad_norm_(other.parameters(), 1e-3)  # not watched
        model.zero_grad()
        norms: Norms = {}
        for name, optimizer in (("a", first), ("b", second)):
            backward(loss_of(model[name]))
            norms |= {f"{name}.{n}": norm for n, norm in norms_of(model[name]).items()}
            clip_grad_norm_(model[name].parameters(), 1e-3)
            optimizer.step()
        expected.append(norms)
    for step, norms in zip(steps_of(session), expected, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-9)


def test_clipping_in_every_micro_step(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """What was there first isn't the step's: said once, and given up after two steps."""
    model = net(4, 3)
    optimizer = adam(model)
    session = start(model, optimizer, tmp_path)
    first, found = [], []
    for _ in range(4):
        model.zero_grad()
        for micro in range(2):
            backward(loss_of(model))
            if micro == 0:
                first.append(norms_of(model))
            clip_grad_norm_(model.parameters(), 1e-3)
        found.append(norms_of(model))
        optimizer.step()
    steps = steps_of(session)
    for number, step in enumerate(steps):
        expected = first[number] if number < 2 else found[number]
        assert values(step, "grad_reduced") == pytest.approx(expected, rel=1e-9)
    assert [str(one.message) for one in recwarn if "before the last forward" in str(one.message)]
    assert len(recwarn) == 1


@pytest.mark.filterwarnings("ignore:tensorprobe. step 1. gradients were clipped")
def test_a_step_that_the_loop_leaves_out(tmp_path: Path) -> None:
    """Its gradients are recorded, as they went wrong; steps behind it are as they were."""
    model = net(4, 3)
    optimizer = adam(model)
    session = start(model, optimizer, tmp_path)
    expected: list[Norms] = []
    for number in range(4):
        for attempt in range(2 if number == 1 else 1):
            model.zero_grad()
            scale = float("inf") if number == 1 and attempt == 0 else 1.0
            backward(loss_of(model) * scale)
            if attempt == 0:
                expected.append(norms_of(model))
            if clip_grad_norm_(model.parameters(), 1e-3).isfinite():
                optimizer.step()
    for step, norms in zip(steps_of(session), expected, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-9, nan_ok=True)


def test_a_closure_leaves_what_it_leaves(tmp_path: Path) -> None:
    model = net(4, 3)
    optimizer = adam(model)
    session = start(model, optimizer, tmp_path)
    found = []

    def closure() -> Tensor:
        model.zero_grad()
        loss = loss_of(model)
        backward(loss)
        clip_grad_norm_(model.parameters(), 1e-3)
        found.append(norms_of(model))
        return loss

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[arg-type]
    for step, norms in zip(steps_of(session), found, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-9)


def test_gradients_that_are_still_scaled(tmp_path: Path) -> None:
    """Clipped by a loop that doesn't unscale them first: they are recorded without the scale."""
    model = net(4, 3)
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    session = start(model, optimizer, tmp_path)
    expected: list[Norms] = []
    for _ in range(3):
        model.zero_grad()
        backward(scaler.scale(loss_of(model)))
        clip_grad_norm_(model.parameters(), 1.0)
        expected.append({name: norm / 2**10 for name, norm in norms_of(model).items()})
        scaler.step(optimizer)
        scaler.update()
    for step, norms in zip(steps_of(session), expected, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-6)


def test_clipping_in_a_graph(tmp_path: Path) -> None:
    """It is compiled as it was; the graph's clipping isn't heard of."""
    left = []
    for watched in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(4)
        model = net(4, 3)
        optimizer = adam(model)
        session = start(model, optimizer, tmp_path) if watched else None
        found: list[Norms] = []

        @torch.compile(fullgraph=True, backend="eager")
        def clip(parameters: list[nn.Parameter]) -> None:
            clip_grad_norm_(parameters, 1e-3)

        def clips(model: nn.Module, clip: Any = clip, found: list[Norms] = found) -> None:
            clip(list(model.parameters()))
            found.append(norms_of(model))

        _, parameters = train(model, optimizer, clips)
        left.append(parameters)
    assert session is not None
    assert all(torch.equal(a, b) for a, b in zip(*left, strict=True))
    for step, norms in zip(steps_of(session), found, strict=True):
        assert values(step, "grad_reduced") == pytest.approx(norms, rel=1e-9)


def test_torch_gets_its_function_back(tmp_path: Path) -> None:
    before = vars(clip_grad).copy()
    model = net(4, 3)
    session = start(model, adam(model), tmp_path, self_check=True)
    assert vars(clip_grad) != before
    session.close()
    assert vars(clip_grad) == before


# ---- self_check ----


def checked(model: Any, clip: Callable[[Any], Any], tmp_path: Path, **config: Any) -> Any:
    """What was recorded, and what clipping said, by step; and the norm of all gradients."""
    optimizer = adam(model)
    session = start(model, optimizer, tmp_path, self_check=True, **config)
    expected, _ = train(model, optimizer, clip)
    steps_of(session)
    journal = tensorprobe.Journal(session.directory)
    totals = [sum(norm**2 for norm in norms.values()) ** 0.5 for norms in expected]
    recorded, framework = (
        journal.series(f"self_check.{name}", "scalar")[1] for name in ("recorded", "framework")
    )
    return recorded, framework, totals


@pytest.mark.parametrize("way", ["norm", "not_foreach", "foreign_norm", "groups"])
def test_the_norm_before_clipping_is_compared(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, framework, totals = checked(net(4, 3, 2), WAYS[way], tmp_path)
    assert recorded == pytest.approx(totals, rel=1e-9)
    assert framework == pytest.approx(totals, rel=1e-9)
    assert "self_check" not in capsys.readouterr().err


def test_a_norm_of_something_else_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(net(4, 3, 2), WAYS["one"], tmp_path)[:2] == ([], [])
    assert "self_check" not in capsys.readouterr().err


def test_targets_that_leave_parameters_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets: dict[str, Any] = {"0": {}}
    assert checked(net(4, 3, 2), WAYS["norm"], tmp_path, targets=targets)[:2] == ([], [])
    assert capsys.readouterr().err.count("leave parameters out") == 1


@pytest.mark.filterwarnings("ignore:tensorprobe. step 0. gradients were clipped")
def test_clipped_gradients_are_compared_with_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where only clipped ones are recorded: from the third step on. Before, with the first norm."""
    model = net(4, 3)
    optimizer = adam(model)
    session = start(model, optimizer, tmp_path, self_check=True)
    for _ in range(4):
        model.zero_grad()
        for _ in range(2):
            backward(loss_of(model, draw(3, 4)))
            clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    steps_of(session)
    framework = tensorprobe.Journal(session.directory).series("self_check.framework", "scalar")[1]
    assert len(framework) == 4
    assert framework[2:] == pytest.approx([1e-3, 1e-3], rel=1e-2)
    assert "self_check" not in capsys.readouterr().err
