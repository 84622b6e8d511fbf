"""Gradients of activations, against torch's own full backward hook and against brute force."""

from __future__ import annotations

import itertools
import os
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensorprobe
from conftest import SEED
from test_hooks import Call, draw, equal, linear, named, norm_of, rows, start

pytestmark = pytest.mark.usefixtures("seed")

Norms = dict[tuple[str, int], list[float]]  # module, slot


def who_hands_on(model: nn.Module) -> tuple[Counter[str], Counter[str]]:
    """Count how often each module returns one of its inputs, and how often it is called."""
    counted: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for name, module in model.named_modules():

        def after(_: nn.Module, args: Any, result: Any, name: str = name) -> None:
            results = result if isinstance(result, tuple) else (result,)
            calls[name] += 1
            counted[name] += any(a is r for a, r in itertools.product(args, results))

        module.register_forward_hook(after)
    return counted, calls


def full_hooks(model: nn.Module) -> Norms:
    """Fill what is returned with torch's gradients of inputs.

    Its hooks make a tensor of each argument of its own; here one tensor has one gradient, shown at
    its first place.
    """
    norms: Norms = defaultdict(list)
    for name, module in model.named_modules():
        places: list[int | None] = []  # of every call the same

        def before(_: nn.Module, args: Any, places: Any = places) -> None:
            known = [id(arg) for arg in args]
            places[:] = [
                (known.index(id(arg)) if len(args) > 1 else -1) if arg.requires_grad else None
                for arg in args
            ]

        def full(_: nn.Module, grads: Any, __: Any, name: str = name, places: Any = places) -> None:
            sums: dict[int, Tensor] = {}
            for place, grad in zip(places, grads, strict=True):
                if place is not None and grad is not None:
                    sums[place] = sums[place] + grad if place in sums else grad
            for slot, total in sums.items():
                if total.any():  # where nothing comes, torch's hook may bring zeros
                    norms[name, slot].append(float(total.norm()))

        module.register_forward_pre_hook(before)
        module.register_full_backward_hook(full)
    return norms


def found(session: tensorprobe.Session) -> Norms:
    norms: Norms = defaultdict(list)
    for record in rows(session):
        if record["quantity"] == "actv_grad" and record["role"] == "input":
            norms[record["name"], record["slot"]].append(record["norm"])
    return norms


class Twice(nn.Module):
    """Two arguments, and two results, one of which is an argument."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a * b.sin() + a, b


class Random(nn.Module):
    """A random program of modules and functions; the same for the same seed."""

    def __init__(self, generator: random.Random, depth: int) -> None:
        super().__init__()
        self.steps: list[tuple[str, int, int]] = []
        inner: list[nn.Module] = []
        shareable: list[nn.Module] = []
        values = 1
        for _ in range(generator.randint(2, 7)):
            kind = generator.choice(
                ["layer", "layer", "same", "two", "add", "mul", "view", "shared", "inner"]
            )
            if kind == "inner" and depth == 0:
                kind = "layer"
            if kind == "shared" and not shareable:
                kind = "same"
            self.steps.append((kind, generator.randrange(values), generator.randrange(values)))
            if kind == "layer":
                inner.append(generator.choice([linear(), nn.Tanh(), nn.LayerNorm(4).double()]))
            elif kind == "same":
                inner.append(generator.choice([nn.Identity(), nn.Dropout(0.0)]))
            elif kind == "two":
                inner.append(Twice())
            elif kind == "inner":
                inner.append(Random(generator, depth - 1))
            elif kind == "shared":
                inner.append(generator.choice(shareable))
            else:
                inner.append(nn.Tanh())  # never called
            shareable = [module for module in inner if not isinstance(module, Twice)]
            values += 1 if kind != "two" else 2
        self.unused = nn.Parameter(torch.zeros(1))
        self.inner = nn.ModuleList(inner)
        self.results = [generator.randrange(values) for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for (kind, first, second), module in zip(self.steps, self.inner, strict=True):
            a, b = values[first], values[second]
            if kind == "add":
                values.append(a + b)
            elif kind == "mul":
                values.append(a * b.cos())
            elif kind == "view":
                values.append(a.flip(0).t().reshape(4, 3).t() * 2)
            elif isinstance(module, Twice):
                values.extend(module(a, b))
            else:
                values.append(module(a))
        one, other = (values[result] for result in self.results)
        return one if self.results[0] == self.results[1] else one + other


def program(seed: int) -> tuple[Random, Tensor]:
    torch.manual_seed(seed)
    return Random(random.Random(seed), depth=2).train(), draw(3, 4)


PROGRAMS = 2000 if os.environ.get("TP_SOAK") else 120


def test_random_programs_against_torchs_full_backward_hook(tmp_path: Path) -> None:
    compared = told = absent = 0
    for seed in range(SEED, SEED + PROGRAMS):
        model, x = program(seed)
        session = start(model, tmp_path)
        y = model(x.clone().requires_grad_() * 1)
        y.sin().sum().backward()
        session.step()
        ours = found(session)

        plain, x = program(seed)
        handed_on, calls = who_hands_on(plain)
        plain(x.clone().requires_grad_() * 1)
        twin, x = program(seed)
        theirs = full_hooks(twin)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(Full|For) backward hook")
            z = twin(x.clone().requires_grad_() * 1)
        assert torch.equal(y, z)
        z.sin().sum().backward()
        for row, norms in theirs.items():
            if handed_on[row[0]]:
                # No row where a use of the output can't be told from one of the input. That an
                # output that is the input is not used at all is not expected.
                if len(norms) == calls[row[0]]:
                    absent += len(norms) - len(ours[row])
                    told += len(ours[row])
                    for norm in ours[row]:
                        nearest = min(norms, key=lambda other: abs(other - norm))
                        assert norm == pytest.approx(nearest, rel=1e-9), (seed, row)
            else:
                assert sorted(ours[row]) == pytest.approx(sorted(norms), rel=1e-9), (seed, row)
                compared += len(norms)
    assert compared > 40
    assert told > 0
    assert absent > 0


# ---- one tensor in several places ----


def through(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The gradients that flow through function alone: its inputs are cut off from all else."""
    cut = [x.detach().clone().requires_grad_() for x in inputs]
    return list(torch.autograd.grad(function(*(x * 1 for x in cut)), cut))


def test_the_same_tensor_as_several_arguments(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: (m.attend(m.fc(x), m.fc(x).sin(), x * 2) + m.pair(x * 3)).sum(),
        fc=linear(),
        attend=Call(lambda m, a, b, c: m.mha(a, a, a)[0] + m.mha(a, b, b)[0] * c),
        pair=Call(
            lambda m, a: m.times(a, other=a) + a, times=Call(lambda _, a, other: a**2 * other)
        ),
    )
    attention = nn.MultiheadAttention(4, 2, dtype=torch.float64)
    model.get_submodule("attend").add_module("mha", attention)
    x = draw(3, 4).requires_grad_()
    y = model.get_submodule("fc")(x).detach()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)

    def attend(a: Tensor) -> Tensor:
        total: Tensor = attention(a, a.detach(), a.detach())[0].sum()
        return total

    (query,) = through(attend, y)
    whole = through(lambda a: attention(a, a, a)[0].sum(), y)[0]
    assert equal(norm_of(records, "attend.mha.input_0", "actv_grad"), whole)
    assert not torch.allclose(whole, query)
    for row in ("attend.mha.input_1", "attend.mha.input_2", "pair.times.input_1"):
        assert not named(records, row, "actv_grad")
    second = through(lambda a, b: (attention(a, b, b)[0] * x.detach() * 2).sum(), y, y.sin())
    assert equal(norm_of(records, "attend.mha.input_0#1", "actv_grad"), second[0])
    assert equal(norm_of(records, "attend.mha.input_1#1", "actv_grad"), second[1])
    cubed = through(lambda a: (a**3).sum(), x * 3)[0]
    assert equal(norm_of(records, "pair.times.input_0", "actv_grad"), cubed)
    assert equal(norm_of(records, "pair.input", "actv_grad"), cubed + 1)


def test_inputs_that_have_no_gradient(tmp_path: Path) -> None:
    def inner(_: nn.Module, y: Tensor, ids: Tensor, mask: Tensor, cut: Tensor, rank: Tensor) -> Any:
        return y[ids] * mask + cut + rank.argsort(0), y.argmax(), (y > 0).double()

    model = Call(
        lambda m, x: (
            (y := m.fc(x)) is not None
            and m.inner(y, torch.tensor([2, 0]), draw(2, 4), y.detach()[:2], y[:2])[0].sum()
        ),
        fc=linear(),
        inner=Call(inner),
    )
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    records = rows(session)
    gradients = {
        r["row"]: r["norm"]
        for r in records
        if r["name"] == "inner" and r["quantity"] == "actv_grad"
    }
    (mask,) = named(records, "inner.input_1")
    assert gradients == {
        "inner.input_0": pytest.approx(mask["norm"], rel=1e-12),
        "inner.output_0": pytest.approx(8**0.5, rel=1e-12),
    }


# ---- modules that return their input ----

HANDED_ON: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[Tensor], Tensor] | None]] = {
    # name: what is done with h and the identity m.same; the gradient of same.input, None: none
    "in a row": (lambda m, h: m.same(h).sin(), lambda h: h.cos()),
    "used before as well": (lambda m, h: h.exp() + m.same(h).sin(), lambda h: h.cos()),
    "as a shortcut": (lambda m, h: h.exp() + m.same(h), torch.ones_like),
    "as an output": (lambda m, h: m.wrap(h).sin() * 2 + m.out(h), lambda h: h.cos() * 2),
    "twice": (lambda m, h: m.same(h * 1).sin() + m.same(h * 2).sin(), None),
    "a use beside it": (lambda m, h: m.same(h).sin() + h, None),
    "a residual around it": (lambda m, h: h + m.same(h), None),
    "two uses of it": (lambda m, h: (s := m.same(h)).sin() * s, None),
}


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Dropout(0.0)], ids=["Identity", "Dropout"])
@pytest.mark.parametrize("case", HANDED_ON)
def test_a_module_that_returns_its_input(tmp_path: Path, layer: nn.Module, case: str) -> None:
    function, gradient = HANDED_ON[case]
    model = Call(
        lambda m, x: function(m, m.fc(x)).sum(),
        fc=linear(),
        same=layer,
        wrap=Call(lambda m, h: m.same(h * 1), same=layer),
        out=nn.Sequential(linear(), nn.Identity()),
    )
    x = draw(3, 4)
    h = model.get_submodule("fc")(x).detach().clone()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)
    if case == "twice":
        assert equal(norm_of(records, "same.input", "actv_grad"), h.cos())
        assert equal(norm_of(records, "same.input#1", "actv_grad"), (h * 2).cos())
    elif gradient is None:
        assert not named(records, "same.input", "actv_grad")
    else:
        assert equal(norm_of(records, "same.input", "actv_grad"), gradient(h))
    if case == "as an output":
        last = norm_of(records, "out.1.input", "actv_grad")
        assert last == norm_of(records, "out.1.output", "actv_grad") == pytest.approx(12**0.5)


def test_no_row_when_one_of_several_results_is_the_input(tmp_path: Path) -> None:
    model = Call(
        lambda m, x: m.two(m.fc(x))[0].sum(), fc=linear(), two=Call(lambda _, h: (h, h * 2))
    )
    session = start(model, tmp_path)
    model(draw(3, 4)).backward()
    session.step()
    assert not named(rows(session), "two.input", "actv_grad")


# ---- in place ----


def test_in_place_on_views(tmp_path: Path) -> None:
    """What was there before the change has its gradient, too."""
    layers: dict[str, nn.Module] = {
        "cube": nn.Linear(4, 4),
        "relu": nn.ReLU(inplace=True),
        "code": nn.Linear(4, 4),
        "wide": nn.Linear(4, 6, bias=False),
        "part": Call(lambda m, a: m.elu(a.mul_(2)), elu=nn.ELU(inplace=True)),
        "end": nn.Linear(4, 4),
    }

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.relu(m.cube(x))
        y = torch.nn.functional.leaky_relu_(m.code(y))
        wide = m.wide(y) * 1
        m.part(wide[:, :, 1:5])
        total: Tensor = m.end(wide[..., :4] + wide[..., 2:]).sin().sum()
        return total

    model = Call(forward, **layers).double()
    x = draw(2, 3, 4).requires_grad_()
    session = start(model, tmp_path)
    model(x).backward()
    session.step()
    records = rows(session)

    m: Any = model
    kept = {"cube.input": x.detach().clone().requires_grad_()}
    kept["cube.output"] = kept["relu.input"] = m.cube(kept["cube.input"])
    kept["code.input"] = kept["relu.output"] = kept["relu.input"].relu()
    kept["code.output"] = m.code(kept["code.input"])
    kept["wide.input"] = torch.nn.functional.leaky_relu(kept["code.output"])
    wide = m.wide(kept["wide.input"]) * 1
    kept["part.input"] = wide[..., 1:5].clone()
    kept["part.elu.input"] = kept["part.input"] * 2
    changed = torch.nn.functional.elu(kept["part.elu.input"])
    wide = torch.cat([wide[..., :1], changed, wide[..., 5:]], -1)
    kept["end.input"] = wide[..., :4] + wide[..., 2:]
    loss: Tensor = m.end(kept["end.input"]).sin().sum()
    for row, grad in zip(kept, torch.autograd.grad(loss, list(kept.values())), strict=True):
        (record,) = named(records, row, "actv_grad")
        assert equal(record["norm"], grad), row
        assert tuple(record["shape"]) == tuple(grad.shape), row
        assert record["mean"] == pytest.approx(float(grad.mean()), rel=1e-9, abs=1e-15), row


# ---- the walk ----


def test_the_way_back_costs_the_graph_once(tmp_path: Path) -> None:
    """Modules around modules go by what these have found."""

    def nodes(depth: int) -> int:
        model: nn.Module = nn.Sequential(*(nn.Sequential(linear(), nn.Tanh()) for _ in range(30)))
        for _ in range(depth):
            model = nn.Sequential(model)
        session = start(model, tmp_path)
        model(draw(3, 4).requires_grad_()).sum().backward()
        session.step()
        assert len([r for r in rows(session) if r["quantity"] == "actv_grad"]) == 2 * (91 + depth)
        return session.counters()["graph_nodes"]

    flat = nodes(0)
    assert flat <= 30 * 6  # three nodes, the two that leave a layer, and the one that leaves both
    assert nodes(20) - flat <= 2 * 20


def test_outputs_stay_what_they_were(tmp_path: Path) -> None:
    kept: list[Tensor] = []
    model = Call(lambda m, x: m.act(m.fc(x)), fc=linear(), act=nn.Identity())
    for module in model.modules():
        module.register_forward_hook(lambda _, __, result: kept.append(result))
    plain = model(draw(3, 4))
    names = [type(t.grad_fn).__name__ for t in kept]
    kept.clear()
    session = start(model, tmp_path)
    watched = model(draw(3, 4))
    session.close()
    assert [type(t.grad_fn).__name__ for t in kept] == names
    assert all(t._base is None and t._version == 0 for t in kept)
    assert kept[0] is kept[1] is kept[2] is watched
    assert plain.shape == watched.shape
