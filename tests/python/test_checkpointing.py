"""Activation checkpointing: each activation is recorded once, with its gradient."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import tensorprobe
from test_hooks import Call, draw, linear, named, rows, start

Apply = Callable[..., Any]
Found = dict[tuple[str, str, int, int], float]

pytestmark = pytest.mark.usefixtures("seed")


def plainly(function: Apply, *args: Any) -> Any:
    return function(*args)


reentrant = functools.partial(checkpoint, use_reentrant=True)
without = functools.partial(checkpoint, use_reentrant=False)


def selective(function: Apply, *args: Any) -> Any:
    keep = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, keep)
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


class Own(torch.autograd.Function):
    """What a framework may bring along instead of torch's: one input, one output."""

    @staticmethod
    def forward(ctx: Any, function: Apply, x: Tensor) -> Any:
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        torch.autograd.backward(y, grads)
        return None, x.grad


class Block(nn.Module):
    """A residual block whose inner part may be checkpointed by itself."""

    def __init__(self, inner: Apply) -> None:
        super().__init__()
        self.inner = inner
        self.first = linear()
        self.act = nn.Tanh()
        self.second = nn.Sequential(linear(), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(self.second, self.act(self.first(x)))
        return y


class Net(nn.Module):
    """Three parts that may be checkpointed, two of which are the same block."""

    def __init__(self, outer: Apply, inner: Apply) -> None:
        super().__init__()
        self.outer = outer
        self.embed = linear()
        self.block = Block(inner)
        self.twice = Block(inner)
        self.head = linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.outer(self.block, self.embed(x))
        y = self.outer(self.twice, y)
        y = self.outer(self.both, y)
        return self.head(y).sum()  # type: ignore[no-any-return]

    def both(self, y: Tensor) -> Tensor:
        z: Tensor = self.twice(self.twice(y)) * self.block(y)
        return z


def values(folder: Path, outer: Apply, inner: Apply, order: str) -> Found:
    """What is recorded of two micro steps."""
    torch.manual_seed(3)
    model = Net(outer, inner)
    batches = [draw(3, 4).requires_grad_() for _ in range(2)]
    session = start(model, folder)
    if order == "one after the other":
        for batch in batches:
            model(batch).backward()
    else:
        losses = [model(batch) for batch in batches]
        for loss in losses if order == "first comes first" else reversed(losses):
            loss.backward()
    session.step()
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    assert step.micro_steps == 2
    found: Found = {}
    for record in step.records:
        key = record["quantity"], record["row"], record["micro_step"], record["call"]
        assert key not in found
        found[key] = record["norm"]
    return found


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pytest.param(reentrant, plainly, id="reentrant"),
        pytest.param(without, plainly, id="non-reentrant"),
        pytest.param(selective, plainly, id="selective"),
        pytest.param(plainly, reentrant, id="inner reentrant"),
        pytest.param(reentrant, reentrant, id="reentrant in reentrant"),
        pytest.param(reentrant, without, id="non-reentrant in reentrant"),
        pytest.param(without, reentrant, id="reentrant in non-reentrant"),
        pytest.param(Own.apply, Own.apply, id="a framework's own"),
        pytest.param(without, without, id="non-reentrant in non-reentrant"),
    ],
)
@pytest.mark.parametrize("order", ["one after the other", "first comes first", "last comes first"])
def test_the_same_is_recorded_as_without(
    tmp_path: Path, outer: Apply, inner: Apply, order: str
) -> None:
    expected = values(tmp_path, plainly, plainly, order)
    assert len(expected) > 100
    found = values(tmp_path, outer, inner, order)
    assert set(found) == set(expected)
    for key, norm in found.items():
        assert norm == pytest.approx(expected[key], rel=1e-12), key


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_recomputation_that_stops_early_leaves_nothing(tmp_path: Path, early_stop: bool) -> None:
    """The next forward isn't taken for one within the module that was left in the middle."""
    model = Call(
        lambda m, x: without(m.block, m.fc(x)).sum() + reentrant(m.last, m.fc(x)).sum(),
        fc=linear(),
        block=nn.Sequential(linear(), nn.Tanh()),
        last=linear(),
    )
    session = start(model, tmp_path)
    with set_checkpoint_early_stop(early_stop):
        for _ in range(3):
            model(draw(3, 4)).backward()
    session.step()
    records = rows(session)
    for row in ("block.input", "block.0.output", "block.1.output", "last.output"):
        for quantity in ("actv", "actv_grad"):
            assert [r["micro_step"] for r in named(records, row, quantity)] == [0, 1, 2], row


def test_forwards_without_gradients_are_none(tmp_path: Path) -> None:
    """Checkpointing inside of no_grad, inference mode or evaluation is no training either."""
    model = Net(reentrant, plainly)
    session = start(model, tmp_path)
    with torch.no_grad():
        model(draw(3, 4))
    with torch.inference_mode():
        model(draw(3, 4))
    model.eval()
    model(draw(3, 4).requires_grad_()).backward()
    model.train()
    session.step()
    assert not rows(session)

    def with_a_teacher(m: Any, x: Tensor) -> Any:
        with torch.no_grad():
            wanted = m.teacher(x)
        return m.student(x) - wanted

    distilled = Call(with_a_teacher, student=linear(), teacher=Block(reentrant))
    other = start(distilled, tmp_path)
    distilled(draw(3, 4).requires_grad_()).sum().backward()
    other.step()
    records = rows(other)
    assert named(records, "student.output")
    assert not [r for r in records if "teacher" in r["name"] and r["quantity"].startswith("actv")]


def test_a_checkpoint_outside_of_any_module(tmp_path: Path) -> None:
    model = Call(lambda m, x: m.fc(x), fc=linear())
    session = start(model, tmp_path)
    x = draw(3, 4).requires_grad_()
    reentrant(model, x).sum().backward()
    session.step()
    records = rows(session)
    for row in (".input", ".output", "fc.input", "fc.output"):
        assert len(named(records, row)) == len(named(records, row, "actv_grad")) == 1
    assert x.grad is not None
    (grad,) = named(records, ".input", "actv_grad")
    assert grad["norm"] == pytest.approx(float(x.grad.norm()), rel=1e-12)


def test_a_root_that_calls_itself_counts_once(tmp_path: Path) -> None:
    def forward(m: Any, x: Tensor, depth: int = 2) -> Tensor:
        y = m.fc(x)
        z: Tensor = m(y, depth - 1) if depth else y.sum()
        return z

    model = Call(forward, fc=linear())
    session = start(model, tmp_path)
    for _ in range(2):
        model(draw(3, 4)).backward()
    with contextlib.suppress(TypeError):
        model(None)
    model(draw(3, 4)).backward()
    session.step()
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    assert step.micro_steps == 4
    for call in range(3):
        row = "fc.output" + (f"#{call}" if call else "")
        assert [r["micro_step"] for r in named(step.records, row)] == [0, 1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_transformers_own_checkpointing(tmp_path: Path, use_reentrant: bool) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_cache=False,
    )

    def run(checkpointing: bool, watch: bool = True) -> tuple[Found, list[Tensor]]:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        optimizer = torch.optim.AdamW(model.parameters())
        session = start(model, tmp_path, optimizer) if watch else None
        for _ in range(2):
            ids = torch.randint(3, 50, (2, 6))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        state = [p.detach().clone() for p in model.parameters()]
        state += [v.clone() for p in model.parameters() for v in optimizer.state[p].values()]
        state.append(torch.get_rng_state())
        if session is None:
            return {}, state
        session.close()
        found = {
            (record["quantity"], record["row"], step.step, record["call"]): record["norm"]
            for step in tensorprobe.Journal(session.directory)
            for record in step.records
            if record["quantity"] in ("actv", "actv_grad") and math.isfinite(record["norm"])
        }
        return found, state

    expected, _ = run(checkpointing=False)
    found, state = run(checkpointing=True)
    _, unwatched = run(checkpointing=True, watch=False)
    assert all(torch.equal(a, b) for a, b in zip(state, unwatched, strict=True))
    assert set(found) == set(expected)
    for key, norm in found.items():
        assert norm == pytest.approx(expected[key], rel=1e-4, abs=1e-7), key
