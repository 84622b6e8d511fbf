"""Training loops of every kind: where a step ends, and what belongs to it."""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensorprobe

pytestmark = pytest.mark.usefixtures("seed")

Row = tuple[str, str]


def net(*widths: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(a, b, dtype=torch.float64) for a, b in itertools.pairwise(widths))
    )


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def loss_of(model: nn.Module, x: Tensor | None = None) -> Tensor:
    y: Tensor = model(draw(3, 4) if x is None else x).pow(2).sum()
    return y


def backward(loss: Tensor, **options: Any) -> None:
    loss.backward(**options)  # type: ignore[no-untyped-call]


def start(model: Any, optimizer: Any, tmp_path: Path, **config: Any) -> tensorprobe.Session:
    config = {"format": "api", "strict": True, **config}
    return tensorprobe.watch(model, optimizer, output_dir=tmp_path, config=config)


def steps_of(session: tensorprobe.Session) -> list[tensorprobe.Step]:
    session.close()
    assert session.counters()["errors"] == 0
    return list(tensorprobe.Journal(session.directory))


def values(step: tensorprobe.Step, quantity: str) -> dict[str, float]:
    """Norms by row; every row once."""
    found = [(r["row"], r["norm"]) for r in step.records if r["quantity"] == quantity]
    assert len(found) == len(dict(found))
    return dict(found)


def gradients(model: nn.Module) -> dict[str, float]:
    """What the parameters have at this moment, by torch."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: float(p.grad.norm()) for name, p in named if p.grad is not None}


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found == pytest.approx(expected, rel=1e-12)


# ---- micro steps ----


@pytest.mark.parametrize("accumulation", [1, 2, 3, 5, 8])
def test_micro_steps_follow_the_loop(accumulation: int, tmp_path: Path) -> None:
    """Whatever happens beside the training forwards, each step has its own and begins at 0."""
    model = net(4, 3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = start(model, optimizer, tmp_path)
    expected = []
    for number in range(4):
        for micro in range(accumulation):
            loss = loss_of(model)
            if not (number == 1 and micro == 0 and accumulation > 1):  # a micro batch is left out
                backward(loss)
            if micro == number % accumulation:
                model.eval()  # a validation in the middle of a step
                loss_of(model)
                model.train()
                with torch.no_grad():
                    loss_of(model)
        optimizer.step()
        if number != 2:  # once without
            optimizer.zero_grad()
        expected.append([*range(accumulation)])
    found = steps_of(session)
    assert [step.micro_steps for step in found] == [accumulation] * 4
    for step, numbers in zip(found, expected, strict=True):
        rows = [r for r in step.records if r["row"] == "1.output"]
        assert [r["micro_step"] for r in rows if r["quantity"] == "actv"] == numbers
        grads = [r["micro_step"] for r in rows if r["quantity"] == "actv_grad"]
        assert grads == (numbers[1:] if step.step == 1 and accumulation > 1 else numbers)


def test_zero_grad_anywhere(tmp_path: Path) -> None:
    """Before the forward, before the backward, after the step, to zero or to None."""
    model = net(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = start(model, optimizer, tmp_path)
    expected = []
    for number in range(6):
        if number % 3 == 0:
            optimizer.zero_grad()
        loss = loss_of(model)
        if number % 3 == 1:
            optimizer.zero_grad(set_to_none=False)
        backward(loss)
        expected.append(gradients(model))
        optimizer.step()
        if number % 3 == 1:
            model.zero_grad()
    found = steps_of(session)
    assert len(found) == 6
    for step, grads in zip(found, expected, strict=True):
        assert same(values(step, "grad_reduced"), grads)


def test_several_backwards_and_autograd_grad(tmp_path: Path) -> None:
    model = net(4, 3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = start(model, optimizer, tmp_path)
    expected = []
    for _ in range(3):
        loss = loss_of(model)
        backward(loss, retain_graph=True)
        backward(loss * 2)
        x = draw(3, 4).requires_grad_()
        torch.autograd.grad(loss_of(model, x), x)
        expected.append(gradients(model))
        optimizer.step()
        optimizer.zero_grad()
    found = steps_of(session)
    assert [step.micro_steps for step in found] == [2, 2, 2]
    for step, grads in zip(found, expected, strict=True):
        assert same(values(step, "grad_reduced"), grads)


# ---- closures ----


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.LBFGS(p, max_iter=3, line_search_fn="strong_wolfe"),
        lambda p: torch.optim.SGD(p, lr=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ],
    ids=["lbfgs", "sgd", "adam"],
)
@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_makes_the_gradients_of_its_own_step(
    make: Callable[[Any], Any], keyword: bool, tmp_path: Path
) -> None:
    """Before the step there are those of the step before."""
    model = net(4, 1)
    optimizer = make(model.parameters())
    x = draw(5, 4)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = loss_of(model, x)
        backward(loss)
        return loss

    session = start(model, optimizer, tmp_path)
    expected = []
    for _ in range(3):
        calls = 0
        if keyword:
            optimizer.step(closure=closure)
        else:
            optimizer.step(closure)
        expected.append((calls, gradients(model)))
    found = steps_of(session)
    assert len(found) == 3
    for step, (count, grads) in zip(found, expected, strict=True):
        assert step.micro_steps == count
        assert same(values(step, "grad_reduced"), grads)
        assert same(values(step, "grad_unreduced"), grads)


# ---- parameters ----


def test_frozen_and_unfrozen_on_the_way(tmp_path: Path) -> None:
    model = net(4, 3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model[0].requires_grad_(False)
    session = start(model, optimizer, tmp_path)
    for number in range(4):
        if number == 2:
            model[0].requires_grad_(True)
            model[1].bias.requires_grad_(False)
            model[1].bias.grad = None
        backward(loss_of(model))
        optimizer.step()
        optimizer.zero_grad()
    found = steps_of(session)
    for step in found:
        names = {"1.weight", "1.bias"} if step.step < 2 else {"0.weight", "0.bias", "1.weight"}
        for quantity in ("grad_reduced", "param_origin", "param_updated"):
            assert set(values(step, quantity)) == names


def test_a_parameter_without_gradient_has_no_stale_row(tmp_path: Path) -> None:
    model = net(4, 2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = start(model, optimizer, tmp_path)
    for number in range(3):
        x = draw(3, 4)
        backward(loss_of(model[0], x) if number == 1 else loss_of(model, x))
        optimizer.step()
        optimizer.zero_grad()
    found = steps_of(session)
    assert [sorted(values(step, "grad_reduced")) for step in found] == [
        ["0.bias", "0.weight", "1.bias", "1.weight"],
        ["0.bias", "0.weight"],
        ["0.bias", "0.weight", "1.bias", "1.weight"],
    ]


def test_tied_weights_have_every_name_and_one_value(tmp_path: Path) -> None:
    model = net(4, 4, 4, 4)
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    session = start(model, optimizer, tmp_path)
    for _ in range(2):
        backward(loss_of(model))
        expected = gradients(model)
        optimizer.step()
    step = steps_of(session)[1]
    for quantity in ("grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"):
        found = values(step, quantity)
        assert set(found) == set(expected)
        assert found["0.weight"] == found["2.weight"] != found["1.weight"]
    assert same(values(step, "grad_reduced"), expected)


def test_a_target_finds_a_tied_weight_by_its_second_name(tmp_path: Path) -> None:
    model = net(4, 4, 4)
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = start(model, optimizer, tmp_path, targets={"1": {}})
    backward(loss_of(model))
    optimizer.step()
    (step,) = steps_of(session)
    assert set(values(step, "grad_reduced")) == {"1.weight", "1.bias"}


# ---- optimizers ----


def test_several_optimizers_of_one_model(tmp_path: Path) -> None:
    """Each has its own moments; the step ends with the last of them."""
    model = net(4, 3, 2, 1)
    model[2].requires_grad_(True)
    first = torch.optim.Adam(model[0].parameters(), lr=0.01)
    second = torch.optim.AdamW(model[1].parameters(), lr=0.01)
    session = start(model, [first, second], tmp_path)
    expected = []
    for number in range(4):
        backward(loss_of(model))
        expected.append(gradients(model))
        if number != 2:  # the first one steps less often
            first.step()
        second.step()
        model.zero_grad()
    found = steps_of(session)
    assert len(found) == 4
    for step, grads in zip(found, expected, strict=True):
        own = {name: v for name, v in grads.items() if step.step != 2 or not name.startswith("0")}
        assert same(values(step, "grad_reduced"), own)
    assert set(values(found[3], "exp_avg")) == {"0.weight", "0.bias", "1.weight", "1.bias"}


class Reporting(torch.optim.AdamW):
    """A subclass of the usual kind: torch runs an optimizer's hooks for both of its steps."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if self.fails:
            raise RuntimeError("as asked for")
        return loss


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("named", [True, False])
def test_a_step_within_a_step_is_one(named: bool, interval: int, tmp_path: Path) -> None:
    base = nn.Linear(1, 1)
    torch.optim.AdamW(base.parameters())  # from now on the base class runs hooks, too
    model = net(4, 3, 1)
    optimizer = Reporting(model.parameters())
    given = optimizer if named else None
    session = start(model, given, tmp_path, step_interval=interval, collect_times=100)
    expected = {}
    for step in range(9):
        backward(loss_of(model))
        expected[step] = gradients(model)
        optimizer.fails = step == 4 and interval == 3
        if optimizer.fails:
            with pytest.raises(RuntimeError, match="as asked for"):
                optimizer.step()
            optimizer.fails = False
        optimizer.step()
        optimizer.zero_grad()
    assert session.step_number == 9
    found = {step.step: values(step, "grad_reduced") for step in steps_of(session)}
    assert found.keys() == {step for step in range(9) if step % interval == 0}
    assert all(same(found[step], expected[step]) for step in found)


def test_the_monitor_is_made_before_the_optimizer(tmp_path: Path) -> None:
    model, other = net(4, 2), net(4, 2)
    session = start(model, None, tmp_path)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        backward(loss_of(other))
        foreign.step()
        backward(loss_of(model))
        optimizer.step()
    found = steps_of(session)
    assert len(found) == 2
    assert set(values(found[1], "exp_avg")) == {"0.weight", "0.bias"}


# ---- exceptions ----


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_leaves_a_partial_step(
    error: type[BaseException], where: str, tmp_path: Path
) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if fail and where == "forward":
                raise error
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            if fail:
                raise error
            return grad

    class Middle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = Failing.apply(x)  # type: ignore[no-untyped-call]
            return y

    fail = False
    model = nn.Sequential(net(4, 4), Middle(), net(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> Iterator[None]:
        nonlocal fail
        with start(model, optimizer, tmp_path) as session:
            holder.append(session)
            for number in range(3):
                fail = number == 2
                backward(loss_of(model))
                optimizer.step()
                yield

    holder: list[tensorprobe.Session] = []
    with pytest.raises(error):
        list(train())
    found = list(tensorprobe.Journal(holder[0].directory))
    assert [(step.step, step.partial) for step in found] == [(0, False), (1, False), (2, True)]
    rows = {(r["row"], r["quantity"]) for r in found[2].records}
    assert ("0.0.output", "actv") in rows
    assert (("2.0.output", "actv_grad") in rows) is (where == "backward")
    assert holder[0].counters()["errors"] == 0


# ---- a model that changes ----


def rows_of(step: tensorprobe.Step, quantity: str) -> set[str]:
    return {r["row"] for r in step.records if r["quantity"] == quantity}


def test_modules_that_are_replaced_added_and_removed(tmp_path: Path) -> None:
    """In every way in which a tree can change; what has stayed keeps its rows."""
    model = net(4, 4, 4)
    session = start(model, None, tmp_path)
    expected: list[tuple[set[str], set[str]]] = []

    def replace() -> None:
        model[0] = nn.Linear(4, 4, dtype=torch.float64)

    def add() -> None:
        model.append(nn.Sequential(nn.Linear(4, 2, dtype=torch.float64), nn.Tanh()))

    def remove() -> None:
        del model[1]

    def reparametrize() -> None:
        model[0].weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))

    def directly() -> None:
        model[0]._parameters["bias"] = None

    for change in (None, replace, add, remove, reparametrize, directly, None):
        if change is not None:
            change()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session.use_optimizer(optimizer)
        for _ in range(2):
            backward(loss_of(model))
        modules = {name for name, _ in model.named_modules()}
        expected.append(({f"{name}.output" for name in modules}, set(gradients(model))))
        optimizer.step()
    found = steps_of(session)
    assert len(found) == len(expected) == 7
    for step, (outputs, parameters) in zip(found, expected, strict=True):
        assert step.micro_steps == 2
        assert {r for r in rows_of(step, "actv") if r.endswith("output")} == outputs
        assert rows_of(step, "grad_reduced") == parameters
        assert rows_of(step, "param_updated") == parameters
        counts = [r["row"] for r in step.records if r["quantity"] == "actv"]
        assert all(counts.count(row) == 2 for row in counts)


def test_a_removed_parameter_is_let_go(tmp_path: Path) -> None:
    model = net(4, 4, 1)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path)
    backward(loss_of(model))
    optimizer.step()
    gone = weakref.ref(model[0].weight)
    model[0] = nn.Identity()
    backward(loss_of(model))
    gc.collect()
    assert gone() is None
    optimizer.step()
    assert rows_of(steps_of(session)[1], "param_updated") == {"1.weight", "1.bias"}


def test_an_unchanged_model_is_not_hooked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(tensorprobe.Session, "_refresh", lambda self: calls.append(1))
    model = nn.Sequential(net(4, 4), nn.LazyLinear(2, dtype=torch.float64))
    model(draw(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path)
    for _ in range(3):
        backward(loss_of(model))
        optimizer.step()
        model.eval().float().double().train()
        model.load_state_dict(model.state_dict())
    steps_of(session)
    assert calls == []


# ---- targets that are never called ----


def silence(
    model: nn.Module, tmp_path: Path, forward: Callable[[Tensor], Tensor], **config: Any
) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path, format="api", **config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            backward(forward(draw(3, 4)).sum())
            optimizer.step()
    session.close()
    return [str(w.message) for w in caught]


def test_targets_that_are_never_called_are_named_once(tmp_path: Path) -> None:
    model = net(4, 3, 1)
    by_forward = lambda x: model[1](model[0].forward(x))  # noqa: E731
    (text,) = silence(model, tmp_path, by_forward, targets={"0": {}, "1": {}})
    assert "targets that matched but were never called: '0', in a training" in text
    assert "model.forward(...)" in text
    assert silence(model, tmp_path, by_forward) == []  # not everything has to be called
    assert silence(model, tmp_path, model, targets={"0": {}, "*": {}}) == []
    (text,) = silence(model.eval(), tmp_path, model)
    assert "no module of the model was called" in text
    assert "eval mode" in text
