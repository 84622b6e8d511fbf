"""Mixed precision: gradient scalers, autocast, and every dtype that a tensor may have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import tensorprobe
from tensorprobe import _scaling

pytestmark = pytest.mark.usefixtures("seed")


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def start(model: Any, optimizer: Any, tmp_path: Path, **config: Any) -> tensorprobe.Session:
    settings = {"format": "api", "strict": True, **config}
    return tensorprobe.watch(model, optimizer, output_dir=tmp_path, config=settings)


def norms(step: tensorprobe.Step, quantity: str) -> dict[str, float]:
    return {r["row"]: r["norm"] for r in step.records if r["quantity"] == quantity}


# ---- gradient scalers ----

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: list[Any] = [
    pytest.param(lambda p: torch.optim.AdamW(p, lr=0.01), id="adamw"),
    pytest.param(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), id="fused"),
    pytest.param(lambda p: torch.optim.SGD(p, lr=0.01), id="sgd"),
]


def scaled_run(
    make: Make, unscale: bool, watch: Callable[[Any, Any], Any] | None
) -> tuple[Any, list[dict[str, float]], list[float], dict[str, Tensor]]:
    """Train seven steps of which the third and the fifth find an infinity.

    Returns the session, the unscaled and unclipped gradients by torch itself, the scales, and what
    is left.
    """
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = make(model.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    session = watch(model, optimizer) if watch else None
    expected, scales = [], []
    for step in range(7):
        loss = model(torch.randn(3, 4)).pow(2).sum()
        if step in (2, 4):
            loss = loss * float("inf")
        backward(scaler.scale(loss))
        scales.append(scaler.get_scale())
        expected.append(
            {
                n: float((p.grad / scales[-1]).norm())
                for n, p in model.named_parameters()
                if p.grad is not None
            }
        )
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if session is not None:
        session.close()
    left = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        left |= {f"{name} {k}": torch.as_tensor(v).clone() for k, v in optimizer.state[p].items()}
    return session, expected, scales, left


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("unscale", [False, True])
def test_a_step_that_the_scaler_skips_is_a_step(make: Make, unscale: bool, tmp_path: Path) -> None:
    session, expected, scales, left = scaled_run(
        make, unscale, lambda model, optimizer: start(model, optimizer, tmp_path)
    )
    steps = list(tensorprobe.Journal(session.directory))
    assert [s.step for s in steps] == [*range(7)]
    assert [s.skipped for s in steps] == [False, False, True, False, True, False, False]
    assert not any(s.partial for s in steps)
    assert [s.micro_steps for s in steps] == [1] * 7
    # the gradients are unscaled, and not clipped yet
    for step, grads in zip(steps, expected, strict=True):
        assert norms(step, "grad_reduced") == pytest.approx(grads, rel=1e-6, nan_ok=True)
    assert tensorprobe.Journal(session.directory).series("grad_scale", "scalar") == (
        [*range(7)],
        scales,
    )
    for step in steps:
        before, after = norms(step, "param_origin"), norms(step, "param_updated")
        assert (before == after) is step.skipped
    plain = scaled_run(make, unscale, None)[3]
    assert plain.keys() == left.keys()
    assert all(torch.equal(plain[name], left[name]) for name in plain)


def test_a_scaler_that_is_switched_off_changes_nothing(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", enabled=False)
    session = start(model, optimizer, tmp_path)
    for _ in range(2):
        backward(scaler.scale(model(torch.randn(3, 4)).sum()))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    session.close()
    steps = list(tensorprobe.Journal(session.directory))
    assert [(s.step, s.skipped) for s in steps] == [(0, False), (1, False)]
    assert all(set(norms(s, "grad_reduced")) == {"weight", "bias"} for s in steps)
    assert not any(norms(s, "scalar") for s in steps)


def test_two_optimizers_and_two_monitors_with_one_scaler(tmp_path: Path) -> None:
    """Only the last optimizer ends the step; a foreign one is nobody's."""
    model, other = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), nn.Linear(4, 1)
    first, second = (torch.optim.Adam(part.parameters(), lr=0.01) for part in model)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=4.0)
    sessions = [
        start(model, [first, second], tmp_path / "a"),
        start(other, foreign, tmp_path / "b"),
    ]
    for step in range(3):
        x = torch.randn(3, 4)
        loss = model(x).sum() * (float("inf") if step == 1 else 1)
        backward(scaler.scale(loss))
        backward(scaler.scale(other(x).sum()))
        for optimizer in (first, second, foreign):
            scaler.step(optimizer)
        scaler.update()
        for optimizer in (first, second, foreign):
            optimizer.zero_grad()
    for session, skipped in zip(sessions, ([False, True, False], [False] * 3), strict=True):
        session.close()
        steps = list(tensorprobe.Journal(session.directory))
        assert [s.skipped for s in steps] == skipped
        assert session.counters()["errors"] == 0


def test_closing_gives_the_scalers_their_methods_back(tmp_path: Path) -> None:
    class Derived(GradScaler):
        def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return super().step(optimizer, *args, **kwargs)

    own = [GradScaler.step, GradScaler.unscale_, Derived.step]
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sessions = [start(model, optimizer, tmp_path / str(i)) for i in range(3)]
    assert [GradScaler.step, GradScaler.unscale_, Derived.step] != own
    scaler = Derived("cpu", init_scale=2.0)
    for factor in (1.0, float("inf")):
        backward(scaler.scale(model(torch.randn(3, 4)).sum() * factor))
        scaler.step(optimizer)
        scaler.update()
    for session in sessions:
        session.close()
        steps = list(tensorprobe.Journal(session.directory))
        assert [s.skipped for s in steps] == [False, True]
        assert all(list(norms(s, "scalar")) == ["grad_scale"] for s in steps)
    assert [GradScaler.step, GradScaler.unscale_, Derived.step] == own
    assert not _scaling._listeners
    assert not _scaling._wrapped


def test_an_error_in_the_optimizer_is_no_skipped_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0)
    session = start(model, optimizer, tmp_path)
    backward(scaler.scale(model(torch.randn(3, 4)).sum()))
    optimizer.zero_grad()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    assert step.partial
    assert not step.skipped
