"""What hooks record, what they leave alone, and that nothing of them stays."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tensorprobe
from tensorprobe import _core

Record = dict[str, Any]

pytestmark = pytest.mark.usefixtures("seed")


class Call(nn.Module):
    """A module around a function; its own parameters keep it from being trivial."""

    def __init__(self, function: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def linear(inputs: int = 4, outputs: int = 4) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=torch.float64)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def start(
    model: nn.Module,
    tmp_path: Path,
    optimizer: torch.optim.Optimizer | None = None,
    **config: Any,
) -> tensorprobe.Session:
    optimizer = optimizer or sgd(model)
    return tensorprobe.watch(
        model, optimizer, output_dir=tmp_path, config={"format": "api", "strict": True, **config}
    )


def rows(session: tensorprobe.Session) -> list[Record]:
    session.close()
    return [record for step in tensorprobe.Journal(session.directory) for record in step.records]


def named(records: list[Record], row: str, quantity: str = "actv") -> list[Record]:
    return [r for r in records if r["row"] == row and r["quantity"] == quantity]


def norm_of(records: list[Record], row: str, quantity: str = "actv") -> float:
    (record,) = named(records, row, quantity)
    return float(record["norm"])


def equal(value: float, tensor: Tensor) -> bool:
    return value == pytest.approx(float(torch.linalg.vector_norm(tensor.double())), rel=1e-12)


# ---- what is recorded ----


def test_input_before_an_in_place_change(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.act(m.fc(x)).sum(), fc=linear(), act=nn.ReLU(inplace=True))
    x = draw(3, 4)
    before = model.get_submodule("fc")(x).detach().clone()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)
    assert equal(norm_of(records, "fc.output"), before)
    assert equal(norm_of(records, "act.input"), before)
    assert equal(norm_of(records, "act.output"), before.relu())


def test_keyword_arguments_and_nested_containers(tmp_path: Path) -> None:
    def inner(_: nn.Module, a: Tensor, *, more: dict[str, Any], flag: bool) -> dict[str, Any]:
        assert flag
        return {"first": (a * 2, [more["b"] * 3]), "none": None, "ids": torch.arange(3)}

    def outer(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        out = m.inner(y, more={"b": y + 1, "text": "t"}, flag=True)
        total: Tensor = out["first"][0].sum() + out["first"][1][0].sum()
        return total

    model = Call(outer, fc=linear(), inner=Call(inner))
    x = draw(3, 4)
    y = model.get_submodule("fc")(x).detach()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)
    assert equal(norm_of(records, "inner.input_0"), y)
    assert equal(norm_of(records, "inner.input_more"), y + 1)
    assert equal(norm_of(records, "inner.output_0"), y * 2)
    assert equal(norm_of(records, "inner.output_1"), (y + 1) * 3)
    assert not named(records, "inner.output_2")
    assert equal(norm_of(records, "inner.input_0", "actv_grad"), torch.full_like(y, 2))
    assert equal(norm_of(records, "inner.input_more", "actv_grad"), torch.full_like(y, 3))
    assert equal(norm_of(records, "inner.output_0", "actv_grad"), torch.ones_like(y))


class Parts(nn.Module):
    """Modules that are called in all the ways that their hooks tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.makes = Call(lambda _: torch.linspace(-1, 1, 8))
        self.takes = Call(lambda _, x: x.float().neg())
        self.takes_two = Call(lambda _, x, *, y: (x + y).to(torch.bfloat16))
        self.outer = Call(lambda m, x: m.inner(m.inner(x)) * 2, inner=Call(lambda _, x: x + 1))
        self.strided = Call(lambda _, x: x.reshape(2, 4).t())
        self.broken = Call(lambda _, x: x / torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 1]))
        self.whole = Call(lambda _, x: x.long())
        self.empty = Call(lambda _, x: x[:0])
        self.scalar = Call(lambda _, x: x.sum())
        self.large = Call(lambda _, x: x.repeat(1000).half())
        self.pair = Call(lambda _, x: (x, x.double()))
        self.resized = Call(lambda _, x: x)
        self.asleep = Call(lambda _, x: x * 3).eval()
        self.unseen = Call(lambda _, x: x * 3)
        self.again = Call(lambda m, x: m.one(x), one=Call(lambda _, x: x.tanh()))
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.takes(x) + self.makes() * self.weight
        total = self.takes_two(x, y=x).float().sum() + self.outer(x).sum()
        for part in (self.strided, self.broken, self.whole, self.empty, self.scalar, self.large):
            total = total + part(x).float().nan_to_num(0, 0, 0).sum()
        for length in (8, 4, 4):
            total = total + self.resized(x[:length]).sum()
        total = total + self.pair(x)[1].sum() + self.asleep(x).sum()
        with torch.no_grad():
            self.unseen(x)
        total = total + checkpoint(self.again, x, use_reentrant=True).sum()
        total = total + checkpoint(self.again, x, use_reentrant=False).sum()
        return torch.as_tensor(total)


def test_forwards_alone_give_the_same_records(tmp_path: Path) -> None:
    found = []
    for alone in (False, True):
        torch.manual_seed(1)
        model = Parts()
        session = start(model, tmp_path / str(alone), forward_only=alone)
        for _ in range(2):
            model(torch.randn(8)).backward()
            session.step()
        records = [r for r in rows(session) if r["quantity"] == "actv"]
        for record in records:
            del record["order"], record["time_ns"]
        found.append([repr(sorted(record.items())) for record in records])
    assert len(found[0]) == 84
    assert found[0] == found[1]


def test_a_target_names_a_keyword(tmp_path: Path) -> None:
    def outer(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        total: Tensor = m.inner(y, mask=y * 2, scale=0.5).sum() + m.other(y, bias=y).sum()
        return total

    inner = Call(lambda _, x, *, mask, scale: x * mask * scale)
    model = Call(outer, fc=linear(), inner=inner, other=Call(lambda _, x, *, bias: x + bias))
    x = draw(3, 4)
    y = model.get_submodule("fc")(x).detach()
    given = {"input": "keyword:mask", "input_grad": "keyword:mask"}
    targets = {"inner": given, "other": {"input": "keyword:mask"}, "fc": {"input": "tensor"}}
    session = start(model, tmp_path, targets=targets, ops=["norm", "id"])
    with pytest.warns(
        RuntimeWarning, match='"keyword:mask" does not fit.*"keyword:bias" for size='
    ):
        model(x).backward()
    session.step()
    records = [r for r in rows(session) if r["quantity"].startswith("actv")]
    assert {r["row"] for r in records} == {"fc.input", "inner.input_mask"}
    assert equal(norm_of(records, "inner.input_mask"), y * 2)
    assert equal(norm_of(records, "inner.input_mask", "actv_grad"), y * 0.5)


def test_a_target_names_a_number_by_keyword(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(x).sum() * m.by(x, n=2.5), fc=linear(), by=Call(lambda *_, n: n))
    session = start(model, tmp_path, targets={"by": {"input": "keyword:n"}}, ops=["id"])
    model(draw(3, 4)).backward()
    session.step()
    (record,) = named(rows(session), "by.input_n")
    assert record["max"] == 2.5


LONG = "a_keyword_that_is_longer_than_a_span"


def test_keyword_inputs_keep_their_names_in_any_order(tmp_path: Path) -> None:
    def inner(_: nn.Module, x: Tensor, **parts: Any) -> Tensor:
        one, two = parts["pair"]
        total: Tensor = x * parts[LONG] + one * 2 - two
        return total if parts["mask"] is None else total * parts["mask"]

    def outer(m: Any, x: Tensor) -> Tensor:
        parts: dict[str, Any] = {"pair": (x + 1, x + 2), LONG: x + 3, "mask": None}
        first = m.inner(m.fc(x), **parts)
        second = m.inner(m.fc(x), **dict(reversed({**parts, "mask": x + 4}.items())))
        only = m.inner(x=m.fc(x), **parts)
        total: Tensor = (first + second + only).sum()
        return total

    model = Call(outer, fc=linear(), inner=Call(inner))
    x = draw(3, 4).requires_grad_()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)
    calls = ("", "#1", "#2")
    for call in calls:
        for row, value in {"pair.0": 1, "pair.1": 2, LONG: 3}.items():
            assert equal(norm_of(records, f"inner.input_{row}{call}"), x + value)
    assert equal(norm_of(records, "inner.input_mask#1"), x + 4)
    assert not named(records, "inner.input_mask")
    assert not named(records, "inner.input_mask#2")
    for call, mask in zip(calls, (x * 0 + 1, x + 4, x * 0 + 1), strict=True):
        gradients = {"pair.0": 2 * torch.ones_like(x), "pair.1": torch.ones_like(x)}
        for row, gradient in gradients.items():
            found = norm_of(records, f"inner.input_{row}{call}", "actv_grad")
            assert equal(found, gradient * mask)
    assert named(records, "inner.input_0")
    assert named(records, "inner.input_x#2")
    ours = {(r["argument"], r["slot"]) for r in records if r["name"] == "inner"}
    assert {("pair", 0), ("pair", 1), (LONG, -1), ("mask", -1), ("x", -1), (None, 0)} <= ours


def test_a_module_called_twice(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(m.fc(x)).sum(), fc=linear())
    x = draw(3, 4)
    fc = model.get_submodule("fc")
    once = fc(x).detach()
    session = start(model, tmp_path)
    for _ in range(2):
        model(x).backward()
    session.step()
    records = rows(session)
    for row in ("fc.input", "fc.output"):
        assert [(r["micro_step"], r["call"]) for r in named(records, row)] == [(0, 0), (1, 0)]
        assert [(r["micro_step"], r["call"]) for r in named(records, row + "#1")] == [
            (0, 1),
            (1, 1),
        ]
    assert all(equal(r["norm"], once) for r in named(records, "fc.input#1"))
    # x needs no gradient, so only the second call's input has one
    assert len(named(records, "fc.input#1", "actv_grad")) == 2
    assert not named(records, "fc.input", "actv_grad")


def test_a_container_that_returns_what_its_child_returned(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: (m.block(m.fc(x)) ** 2).sum(), fc=linear(), block=nn.Sequential(linear())
    )
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    records = rows(session)
    outer, inner = (
        named(records, row, "actv_grad")[0] for row in ("block.output", "block.0.output")
    )
    assert outer["norm"] == inner["norm"] > 0
    assert outer["order"] < inner["order"]


def expected_input_grad(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient that flows through function alone: x is cut off from everything else."""
    x = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(function(x), x)
    return grad


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * 2, id="one consumer"),
        pytest.param(lambda x: x * x, id="one consumer, twice"),
        pytest.param(lambda x: x + x.exp() * x.sin(), id="several consumers"),
        pytest.param(lambda x: x.relu_() + 1, id="in place"),
        pytest.param(lambda x: torch.cat([x[:1], x[1:]]) @ x.T, id="views"),
        pytest.param(lambda x: torch.stack([x] * 9).prod(0), id="many positions of one node"),
    ],
)
def test_input_gradient_is_what_flows_through_the_module(
    tmp_path: Path, function: Callable[[Tensor], Tensor]
) -> None:
    weight = draw(3, 4)

    def outer(m: Any, x: Tensor) -> Tensor:
        y = x * weight
        total: Tensor = (y * 5).sum() + m.inner(y).pow(2).sum()  # y is used outside as well
        return total

    model = Call(outer, inner=Call(lambda _, y: function(y)), fc=linear())
    x = draw(3, 4).requires_grad_()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    expected = expected_input_grad(lambda y: function(y * 1).pow(2).sum(), (x * weight).detach())
    assert equal(norm_of(rows(session), "inner.input", "actv_grad"), expected)


def test_a_way_around_the_module_does_not_count(tmp_path: Path) -> None:
    """What the module takes from outside, other than its inputs, was made before it."""
    outside: list[Tensor] = []

    def outer(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        outside[:] = [y * 7]
        total: Tensor = m.inner(y).sum()
        return total

    model = Call(outer, fc=linear(), inner=Call(lambda _, y: y * 2 + outside[0]))
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    assert equal(norm_of(rows(session), "inner.input", "actv_grad"), torch.full((3, 4), 2.0))


def test_total_gradient_of_the_input_when_asked_for(tmp_path: Path) -> None:
    def outer(m: Any, x: Tensor) -> Tensor:
        y = x * 1
        total: Tensor = (y * 5).sum() + m.inner(y).sum()
        return total

    model = Call(outer, inner=Call(lambda _, y: y * 2), fc=linear())
    session = start(model, tmp_path, input_grad="tensor")
    x = draw(3, 4).requires_grad_()
    model(x).backward()
    session.step()
    records = rows(session)
    assert equal(norm_of(records, "inner.input", "actv_grad"), torch.full((3, 4), 7.0))
    assert equal(norm_of(records, ".input", "actv_grad"), torch.full((3, 4), 7.0))
    assert x.grad is not None
    assert equal(norm_of(records, ".input", "actv_grad"), x.grad)


def test_a_leaf_as_input(tmp_path: Path) -> None:
    model = Call(lambda m, x: (m.fc(x) * 3).sum(), fc=linear())
    x = draw(3, 4).requires_grad_()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    assert x.grad is not None
    assert equal(norm_of(rows(session), "fc.input", "actv_grad"), x.grad)


def test_consumers_that_never_run_in_a_backward(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.two(m.fc(x)), fc=linear(), two=Call(lambda _, y: (y * 2, y * 3)))
    session = start(model, tmp_path)
    first, _ = model(draw(3, 4))
    first.sum().backward()
    session.step()
    assert equal(norm_of(rows(session), "two.input", "actv_grad"), torch.full((3, 4), 2.0))


def test_two_backwards_through_one_graph(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.two(m.fc(x)), fc=linear(), two=Call(lambda _, y: y * 2 + y.exp()))
    session = start(model, tmp_path)
    loss = model(draw(3, 4)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    session.step()
    norms = [r["norm"] for r in named(rows(session), "two.input", "actv_grad")]
    assert len(norms) == 2
    assert norms[0] == norms[1]


def test_create_graph_makes_no_graph_of_ours(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.two(m.fc(x)), fc=linear(), two=Call(lambda _, y: y**3 + y.exp()))
    x = draw(3, 4)

    def second_gradient() -> Tensor:
        loss = model(x).sum()
        weight = model.get_parameter("fc.weight")
        (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), weight)
        return second

    def nodes_made() -> tuple[Tensor, int]:
        before = torch._C._autograd._get_sequence_nr()
        second = second_gradient()
        return second, torch._C._autograd._get_sequence_nr() - before

    plain, made = nodes_made()
    session = start(model, tmp_path)
    watched, made_watched = nodes_made()
    assert torch.equal(watched, plain)
    assert made_watched == made
    session.step()
    assert named(rows(session), "two.input", "actv_grad")


def test_accumulated_in_place_gradients_are_read_anew(tmp_path: Path) -> None:
    """The engine adds gradients of several uses in place: an earlier value must not be shown."""
    model = Call(
        lambda m, x: sum(m.fc(x).mul(k).sin().sum() for k in range(1, 5)) + m.many(m.fc(x)),
        fc=linear(),
        many=Call(lambda _, y: sum((y * k).cos().sum() for k in range(1, 7))),
    )
    x = draw(3, 4)
    y = model.get_submodule("fc")(x)
    expected = expected_input_grad(
        lambda y: sum(((y * k).cos().sum() for k in range(1, 7)), torch.zeros(())), y
    )
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    assert equal(norm_of(rows(session), "many.input", "actv_grad"), expected)


def test_micro_steps_and_calls(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(x).sum(), fc=linear())
    optimizer = sgd(model)
    session = start(model, tmp_path, optimizer)
    for _ in range(2):
        for _ in range(3):
            model(draw(3, 4)).backward()
        optimizer.step()
    session.close()
    steps = list(tensorprobe.Journal(session.directory))
    assert [s.micro_steps for s in steps] == [3, 3]
    for step in steps:
        outputs = named(step.records, "fc.output")
        assert [(r["micro_step"], r["call"]) for r in outputs] == [(0, 0), (1, 0), (2, 0)]
        grads = named(step.records, "fc.output", "actv_grad")
        assert [r["micro_step"] for r in grads] == [0, 1, 2]


def test_optimizer_rows(tmp_path: Path) -> None:
    first, second = linear(), linear()
    model = nn.Sequential(first, second)
    second.bias.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen: list[dict[str, float]] = []

    def look(*_: Any) -> None:
        weight = first.weight
        assert weight.grad is not None
        found = {
            "grad_unreduced": weight.grad.norm().item(),
            "grad_reduced": weight.grad.norm().item(),
            "param_origin": weight.norm().item(),
        }
        if weight in optimizer.state:
            found["exp_avg"] = optimizer.state[weight]["exp_avg"].norm().item()
            found["exp_avg_sq"] = optimizer.state[weight]["exp_avg_sq"].norm().item()
        seen.append(found)

    optimizer.register_step_pre_hook(look)
    config = {"format": "api", "strict": True}
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path, config=config) as session:
        for _ in range(3):
            optimizer.zero_grad()
            model(draw(3, 4)).pow(2).sum().backward()
            optimizer.step()
            seen[-1]["param_updated"] = first.weight.norm().item()
    steps = list(tensorprobe.Journal(session.directory))
    assert len(steps) == len(seen) == 3
    for step, expected in zip(steps, seen, strict=True):
        found = {r["quantity"]: r["norm"] for r in step.records if r["name"] == "0.weight"}
        assert found == pytest.approx(expected, rel=1e-12)
        assert not [r for r in step.records if r["name"] == "1.bias"]
    assert "exp_avg" not in seen[0]
    assert "exp_avg" in seen[1]


def test_looking_for_moments_makes_no_entry(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), linear())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path, format="api"):
        model[0](draw(3, 4)).sum().backward()  # the second layer gets no gradient
        optimizer.step()
        assert set(optimizer.state) == set(model[0].parameters())
        assert all(optimizer.state.values())


def test_tied_weights_have_every_name(tmp_path: Path) -> None:
    first, second = linear(), linear()
    model = nn.Sequential(first, second)
    second.weight = first.weight
    optimizer = sgd(model)
    session = start(model, tmp_path, optimizer)
    model(draw(3, 4)).sum().backward()
    optimizer.step()
    names = Counter(r["name"] for r in rows(session) if r["quantity"] == "grad_reduced")
    assert names == {"0.weight": 1, "0.bias": 1, "1.weight": 1, "1.bias": 1}


def test_the_same_tensor_is_recorded_as_often_as_it_is_used(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: m.b(m.a(x).mul_(2)).sum(), a=nn.Sequential(linear(), nn.Tanh()), b=nn.Tanh()
    )
    x = draw(3, 4)
    y = model.get_submodule("a")(x).detach()
    session = start(model, tmp_path)
    with torch.no_grad(), torch.enable_grad():
        model(x)
    session.step()
    records = rows(session)
    assert equal(norm_of(records, "a.1.output"), y)
    assert equal(norm_of(records, "a.output"), y)
    assert equal(norm_of(records, "b.input"), y * 2)


def test_tensors_that_cannot_be_read(tmp_path: Path) -> None:
    def inner(_: nn.Module, x: Tensor) -> Any:
        freed = draw(3)
        freed.untyped_storage().resize_(0)
        negative = torch.complex(draw(3), draw(3)).conj().imag
        assert negative.is_neg()
        return (
            x,
            torch.eye(2).to_sparse(),
            torch.empty(2, device="meta"),
            freed,
            negative,
            torch.zeros(2, dtype=torch.complex64),
            torch.zeros(2).to(torch.float8_e4m3fn),
            torch.zeros(0),
        )

    model = Call(lambda m, x: m.inner(m.fc(x))[0].sum(), fc=linear(), inner=Call(inner))
    session = start(model, tmp_path, strict=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model(draw(3, 4)).backward()
    session.step()
    texts = [str(w.message) for w in caught]
    assert len(texts) == len(set(texts)) == 3
    assert all("'inner' is not recorded" in text for text in texts)
    assert session.counters()["unreadable"] == 6
    assert session.counters()["errors"] == 6
    slots = {r["slot"] for r in rows(session) if r["name"] == "inner" and r["role"] == "output"}
    assert slots == {0, 4, 5, 6, 7}


def test_a_big_transposed_tensor(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(x[:, :4]).sum(), fc=linear())
    session = start(model, tmp_path)
    x = torch.randn(1024, 2048, dtype=torch.float32).double().T
    model(x)
    session.step()
    assert equal(norm_of(rows(session), ".input"), x)


# ---- what is not recorded ----


def test_evaluation_and_recomputation_are_not_recorded(tmp_path: Path) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        total: Tensor = checkpoint(m.block, m.fc(x), use_reentrant=False).sum()
        return total

    model = Call(forward, fc=linear(), block=nn.Sequential(linear(), nn.Tanh()))
    session = start(model, tmp_path)
    model.eval()
    model(draw(3, 4))
    model.train()
    with torch.no_grad():
        model(draw(3, 4))
    model(draw(3, 4)).backward()
    session.step()
    records = rows(session)
    for row in (".input", "fc.input", "block.input", "block.0.output", "block.1.output", ".output"):
        assert [r["micro_step"] for r in named(records, row)] == [0], row


def test_copies_are_not_recorded(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(x).sum(), fc=linear())
    session = start(model, tmp_path)
    copied = copy.deepcopy(model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for other in (copied, averaged, model):
        other.train()
        other(draw(3, 4)).backward()
    session.step()
    records = rows(session)
    assert len(named(records, "fc.output")) == 1
    assert len(named(records, "fc.output", "actv_grad")) == 1


def module_level_sum(_: nn.Module, x: Tensor) -> Tensor:
    return x.sum()


def test_a_watched_model_can_be_pickled(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), Call(module_level_sum))
    session = start(model, tmp_path)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    again = pickle.loads(pickle.dumps(model))
    x = draw(3, 4)
    for other in (loaded, again):
        assert torch.equal(other(x), model.eval()(x))
        other.train()(x).backward()
    session.step()
    assert not rows(session)


# ---- what stays ----


def hook_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    fields = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    more = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs")
    return (
        [{f: dict(getattr(m, f)) for f in fields + more} for m in model.modules()],
        dict(optimizer._optimizer_step_pre_hooks),
        dict(optimizer._optimizer_step_post_hooks),
    )


def test_close_restores_everything(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    model[0].register_forward_hook(lambda *_: None)
    optimizer = torch.optim.AdamW(model.parameters())
    before = hook_state(model, optimizer)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    assert hook_state(model, optimizer) != before
    loss = model(draw(3, 4)).sum()
    session.close()
    session.close()
    assert hook_state(model, optimizer) == before
    loss.backward()  # hooks that are still in this graph do nothing
    optimizer.step()
    assert session.counters()["steps"] == 0
    with pytest.raises(RuntimeError, match="closed"):
        session.step()


def test_an_exception_in_the_block_closes(tmp_path: Path) -> None:
    model = nn.Sequential(linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = hook_state(model, optimizer)

    def train(session: tensorprobe.Session) -> None:
        with session:
            model(draw(3, 4)).sum().backward()
            raise ZeroDivisionError

    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    with pytest.raises(ZeroDivisionError):
        train(session)
    assert hook_state(model, optimizer) == before
    (step,) = tensorprobe.Journal(session.directory)
    assert step.partial
    assert named(step.records, "0.output")


def test_nothing_is_kept_after_a_backward(tmp_path: Path, no_gc: None) -> None:
    kept: list[weakref.ref[Any]] = []

    def inner(_: nn.Module, y: Tensor) -> Tensor:
        kept.append(weakref.ref(y))
        z = y + y.exp()
        kept.append(weakref.ref(z))
        return z

    model = Call(lambda m, x: m.inner(m.fc(x)).sum(), fc=linear(), inner=Call(inner))
    session = start(model, tmp_path)
    for _ in range(3):
        model(draw(3, 4)).backward()
        assert [ref() for ref in kept] == [None] * len(kept)
    session.close()


def count_objects() -> Counter[str]:
    return Counter(type(o).__name__ for o in gc.get_objects())


def test_nothing_piles_up_over_steps(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: (m.two(m.act(m.fc(x)))[0] + m.fc.weight).sum(),
        fc=linear(),
        act=nn.ReLU(inplace=True),
        two=Call(lambda m, y: (y + y.exp(), y * 3)),
        leaf=Call(lambda m: None),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = start(model, tmp_path, optimizer)

    def steps(count: int) -> None:
        for _ in range(count):
            model(draw(4, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def grown_blocks() -> int:
        blocks = sys.getallocatedblocks()
        steps(300)
        gc.collect()
        return sys.getallocatedblocks() - blocks

    steps(20)
    gc.collect()
    objects = count_objects()
    # One object a step would be 300 each time; caches of the interpreter's own come and go.
    assert min(grown_blocks() for _ in range(4)) <= 150
    grown = count_objects() - objects
    assert sum(grown.values()) <= 5, grown
    session.close()


def test_hooks_on_leaves_are_taken_back(tmp_path: Path) -> None:
    model = Call(lambda m, x: (m.leaf(x) * m.fc(x)).sum(), fc=linear(), leaf=Call(lambda m, x: m.w))
    w = nn.Parameter(draw(3, 4))
    model.get_submodule("leaf").w = w
    session = start(model, tmp_path)
    for _ in range(4):
        model(draw(3, 4)).backward()
        session.step()
    session.close()
    steps = list(tensorprobe.Journal(session.directory))
    counts = [len(named(s.records, "leaf.output", "actv_grad")) for s in steps]
    assert counts == [1, 1, 1, 1]
    assert not w._backward_hooks


@pytest.mark.parametrize("pipelined", [False, True])
def test_each_backward_has_its_own_rows_of_a_leaf(tmp_path: Path, pipelined: bool) -> None:
    model = Call(lambda m, k: m.fc(m.leaf() * k).sum(), fc=linear(), leaf=Call(lambda m: m.w))
    w = nn.Parameter(draw(3, 4))
    model.get_submodule("leaf").w = w
    factors = (1.0, 10.0, 100.0)
    fc = model.get_submodule("fc")
    assert isinstance(fc, nn.Linear)
    single = fc.weight.detach().sum(0).expand(3, 4)
    session = start(model, tmp_path)
    losses = []
    for k in factors:
        losses.append(model(k))
        if not pipelined:
            losses.pop().backward()
    for loss in losses:
        loss.backward()
    session.step()
    found = named(rows(session), "leaf.output", "actv_grad")
    assert [r["micro_step"] for r in found] == [0, 1, 2]
    assert all(equal(r["norm"], single * k) for r, k in zip(found, factors, strict=True))


def test_the_total_gradient_of_a_leaf_input_is_each_backwards_own(tmp_path: Path) -> None:
    model = Call(lambda m, x, k: (m.fc(x) * k).sum(), fc=linear())
    fc = model.get_submodule("fc")
    assert isinstance(fc, nn.Linear)
    single = fc.weight.detach().sum(0).expand(3, 4)
    x = draw(3, 4).requires_grad_()
    session = start(model, tmp_path, input_grad="tensor")
    for k in (1.0, 10.0, 100.0):
        model(x, k).backward()
    session.step()
    records = rows(session)
    for row in (".input", "fc.input"):
        found = named(records, row, "actv_grad")
        assert [r["micro_step"] for r in found] == [0, 1, 2]
        assert all(equal(r["norm"], single * 10**i) for i, r in enumerate(found))


class InPlace(torch.autograd.Function):
    """Changes the gradient that it is given."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.mul_(100)


def test_a_gradient_that_is_changed_meanwhile_is_not_recorded(tmp_path: Path) -> None:
    pair = Call(lambda _, x: (x * 2, x * 3))
    apply: Callable[[Tensor], Tensor] = InPlace.apply
    model = Call(lambda m, x: m.b(apply(m.a(x))), a=linear(), b=pair)
    session = start(model, tmp_path)
    model(draw(3, 4))[0].sum().backward()
    session.step()
    sum(t.sum() for t in model(draw(3, 4))).backward()
    session.step()
    found = named(rows(session), "b.input", "actv_grad")
    assert [r["step"] for r in found] == [1]
    assert equal(found[0]["norm"], torch.full((3, 4), 5.0))


def test_an_exception_in_a_forward_leaves_nothing(tmp_path: Path, no_gc: None) -> None:
    fail = True

    def inner(_: nn.Module, y: Tensor) -> Tensor:
        if fail:
            raise ValueError("planted")
        return y * 2

    saved: list[weakref.ref[Tensor]] = []

    def outer(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        saved.append(weakref.ref(y))  # the graph of sin holds it
        total: Tensor = m.inner(y.sin()).sum()
        return total

    model = Call(outer, fc=linear(), inner=Call(inner))
    session = start(model, tmp_path)
    for _ in range(3):
        with pytest.raises(ValueError, match="planted"):
            model(draw(3, 4))
    fail = False
    model(draw(3, 4)).backward()
    assert [ref() for ref in saved] == [None] * 4
    session.step()
    records = rows(session)
    assert [r["micro_step"] for r in named(records, "fc.output")] == [0, 1, 2, 3]
    assert [r["micro_step"] for r in named(records, "inner.output")] == [3]
    assert [r["micro_step"] for r in named(records, "inner.input", "actv_grad")] == [3]


def test_failures_do_not_reach_the_training(tmp_path: Path) -> None:
    """A module that can't be asked whether it trains makes its hooks fail."""

    class Odd(nn.Linear):
        broken = False

        def __getattribute__(self, name: str) -> Any:
            if name == "training" and type(self).broken:
                raise KeyError("odd")
            return super().__getattribute__(name)

    model = nn.Sequential(Odd(4, 4, dtype=torch.float64))
    session = start(model, tmp_path, strict=False)
    Odd.broken = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model(draw(3, 4)).sum().backward()
    assert ["odd" in str(w.message) for w in caught] == [True]
    assert session.counters()["errors"] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(draw(3, 4))
    session.close()

    strict = start(model, tmp_path, strict=True)
    with pytest.raises(KeyError, match="odd"):
        model(draw(3, 4))
    strict.close()


def test_a_forked_child_records_nothing(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(x).sum(), fc=linear())
    optimizer = sgd(model)
    session = start(model, tmp_path, optimizer)
    model(draw(3, 4)).backward()
    optimizer.step()
    pid = os.fork()
    if pid == 0:
        try:
            model(draw(3, 4))
            optimizer.step()
            session.counters()
            session.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    model(draw(3, 4)).backward()
    optimizer.step()
    session.close()
    journal = tensorprobe.Journal(session.directory)
    assert [s.step for s in journal.steps()] == [0, 1]
    assert journal.closed


def test_inert_hooks_accept_anything() -> None:
    hook: Any = _core.inert_hook()
    assert hook.forward_pre(None, (), {}) is None
    assert hook.forward(None, (), {}, None) is None
    with pytest.raises(TypeError):
        type(hook)()
