"""Mixed precision: gradient scalers, autocast, and every dtype that a tensor may have."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

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


class Around:
    """What frameworks hand to the scaler in the place of the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


@pytest.mark.parametrize("make", [*OPTIMIZERS, lambda p: Around(torch.optim.SGD(p, lr=0.1))])
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


# ---- dtypes ----


class Through(nn.Module):
    """Returns what it is given, beside a trained layer."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.inner = nn.Identity()
        self.values = values

    def forward(self, x: Tensor) -> Tensor:
        self.inner(self.values if len(self.values) != 1 else self.values[0])
        y: Tensor = self.fc(x).sum()
        return y


def recorded(
    tmp_path: Path, *values: Any, errors: int = 0, **config: Any
) -> dict[str, dict[str, Any]]:
    """What inner's outputs have after a step."""
    model = Through(*values)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path, strict=errors == 0, **config)
    backward(model(torch.randn(3, 2)))
    optimizer.step()
    session.close()
    assert session.counters()["errors"] == errors
    (step,) = tensorprobe.Journal(session.directory)
    return {r["row"]: r for r in step.records if r["row"].startswith("inner.output")}


def in_f64(tensor: Tensor) -> Tensor:
    return tensor.abs().double() if tensor.is_complex() else tensor.to(torch.float64)


ALL = {"all_xy": True}
FLOATING: list[torch.dtype] = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.complex64,
    torch.complex128,
]
WHOLE: list[torch.dtype] = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", [*FLOATING, *WHOLE], ids=str)
def test_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    value = (
        (torch.randn(4, 5) * 3).to(dtype)
        if dtype in FLOATING
        else torch.randint(0, 2, (4, 5)).to(dtype)
    )
    expected = in_f64(value)
    (row,) = recorded(tmp_path, value.T, **(ALL if dtype in WHOLE else {})).values()
    assert row["norm"] == pytest.approx(float(torch.linalg.vector_norm(expected)), rel=1e-6)
    assert row["min"] == pytest.approx(float(expected.min()), rel=1e-15)
    assert row["max"] == pytest.approx(float(expected.max()), rel=1e-15)
    assert list(row["shape"]) == [5, 4]


def test_integers_have_rows_where_they_are_asked_for(tmp_path: Path) -> None:
    ids, x, mask = torch.arange(7), torch.randn(3), torch.tensor([True, False])
    assert set(recorded(tmp_path, ids, x, mask)) == {"inner.output"}
    assert set(recorded(tmp_path, ids, x, mask, **ALL)) == {f"inner.output_{i}" for i in range(3)}
    rows = recorded(tmp_path, ids, x, mask, targets={"inner": {}})
    assert [rows[f"inner.output_{i}"]["max"] for i in range(3)] == [6, float(x.max()), 1]
    (row,) = recorded(tmp_path, ids, x, mask, targets={"inner": {"output": "tuple[3]:0"}}).values()
    assert (row["min"], row["max"]) == (0, 6)


def test_negative_and_conjugate_views(tmp_path: Path) -> None:
    z = torch.complex(torch.randn(5), torch.randn(5))
    z[2] = torch.complex(torch.tensor(1.0), torch.tensor(float("inf")))
    negative = z.conj().imag
    assert negative.is_neg()
    rows = recorded(tmp_path, negative, z[:2].conj(), negative.clone())
    found, copied = (dict(rows[f"inner.output_{i}"]) for i in (0, 2))
    for key in ("order", "time_ns", "row", "slot"):
        found.pop(key, None), copied.pop(key, None)
    assert found == copied
    assert found["neg_inf"] == 1
    assert rows["inner.output_1"]["norm"] == pytest.approx(float(z[:2].abs().norm()), rel=1e-6)


# ---- tensors in tensors ----


class Wrapper(Tensor):
    """A tensor whose values are in another one, which is read where that can be known."""

    parts: tuple[str, ...] = ("inner",)

    @staticmethod
    def __new__(cls: Any, inner: Tensor, dtype: torch.dtype | None = None) -> Any:
        made: Any = Tensor._make_wrapper_subclass
        self = made(cls, inner.shape, dtype=dtype or inner.dtype)
        self.inner = inner
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return list(self.parts), None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"a hook had {func} run")


class Scaled(Wrapper):
    """Two parts: what they mean together isn't known."""

    parts = ("inner", "inner")


class Running(Wrapper):
    """Its values may not be there yet."""

    def trigger_wait(self) -> None:
        raise AssertionError("a hook waited")


class Local(Wrapper):
    """As a distributed tensor."""

    parts = ()

    def to_local(self) -> Tensor:
        return cast(Tensor, self.inner)


def test_the_tensor_inside_is_read(tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    norm = float(x.double().norm())
    for value in (Wrapper(x), Local(x), Wrapper(Local(x))):
        (row,) = recorded(tmp_path, value).values()
        assert row["norm"] == pytest.approx(norm, rel=1e-12)


class Interrupted(Local):
    """Ctrl-C comes while its code runs."""

    def to_local(self) -> Tensor:
        signal.raise_signal(signal.SIGINT)
        return super().to_local()


def test_an_interrupt_in_a_tensors_code_is_not_lost(tmp_path: Path) -> None:
    model = Through(Interrupted(torch.randn(3)))
    session = start(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, strict=False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(3, 2))
    finally:
        signal.signal(signal.SIGINT, before)
    session.close()


@pytest.mark.parametrize(
    "make", [Scaled, Running, lambda x: Wrapper(x, torch.bfloat16)], ids=["two", "running", "dtype"]
)
def test_what_is_not_known_is_named_once(make: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    with pytest.warns(RuntimeWarning, match="its type keeps the values elsewhere") as caught:
        assert set(recorded(tmp_path, make(x), x, errors=2)) == {"inner.output_1"}
    assert len(caught) == 1


def test_masters_in_f32_have_the_moments(tmp_path: Path) -> None:
    """The optimizer's parameters are copies, which the model's name as main_param."""
    model = nn.Linear(3, 2).bfloat16()
    masters = []
    for p in model.parameters():
        p.main_param = p.detach().float()  # type: ignore[attr-defined]
        masters.append(p.main_param)  # type: ignore[attr-defined]
    optimizer = torch.optim.Adam(masters, lr=0.01)
    session = start(model, optimizer, tmp_path)
    expected: list[dict[str, float]] = []
    for _ in range(3):
        backward(model(torch.randn(4, 3).bfloat16()).sum())
        names = [name for name, _ in model.named_parameters()]
        state = zip(names, masters, strict=True)
        expected.append(
            {
                n: float(optimizer.state[m]["exp_avg"].norm())
                for n, m in state
                if m in optimizer.state
            }
        )
        for p, master in zip(model.parameters(), masters, strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
        optimizer.step()
        for p, master in zip(model.parameters(), masters, strict=True):
            p.data.copy_(master)
            p.grad = None
    session.close()
    steps = list(tensorprobe.Journal(session.directory))
    for step, moments in zip(steps, expected, strict=True):
        assert norms(step, "exp_avg") == pytest.approx(moments, rel=1e-6)
        assert set(norms(step, "grad_reduced")) == {"weight", "bias"}
    assert {r["dtype"] for r in steps[2].records if r["quantity"] == "exp_avg"} == {"torch.float32"}
    assert {r["dtype"] for r in steps[2].records if r["quantity"] == "grad_reduced"} == {
        "torch.bfloat16"
    }


def test_autocast(tmp_path: Path) -> None:
    """Inputs of one dtype, outputs of another, gradients of both: as they are."""
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path)
    seen: list[str] = []
    model[0].register_forward_hook(lambda m, i, o: seen.append(str(o.dtype)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(2, 4)).sum()
    backward(loss)
    optimizer.step()
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    dtypes = {(r["row"], r["quantity"]): r["dtype"] for r in step.records}
    assert seen == ["torch.bfloat16"]
    assert dtypes["0.input", "actv"] == "torch.float32"
    assert dtypes["0.output", "actv"] == dtypes["0.output", "actv_grad"] == "torch.bfloat16"
    assert dtypes["0.weight", "grad_reduced"] == "torch.float32"
