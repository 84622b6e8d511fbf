"""Statistics by torch operations beside the kernels': exact fields equal, sums within bounds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
import tensorprobe
from brute import OPS
from tensorprobe import _core, _torch_stats

FIELDS = "count nan pos_inf neg_inf zeros subnormal min max finite_min finite_max abs_max"
FIELDS += " abs_max_index sum sum_abs sum_sq m2 sq_exp"
EXACT = [*FIELDS.split()[:12], "sq_exp"]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OTHERS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
OTHERS += [torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.int8, torch.int16, torch.int32]
OTHERS += [torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]
OTHERS += [torch.complex64, torch.complex128]


def by_torch(x: Tensor, eps: float = 1e-8) -> dict[str, Any]:
    return dict(zip(FIELDS.split(), _torch_stats.compute(x, eps), strict=True))


def check(x: Tensor, eps: float = 1e-8) -> None:
    found, right = by_torch(x, eps), _core.compute_stats(x, eps)
    for field in EXACT:
        np.testing.assert_equal(found[field], right[field], err_msg=f"{field} of {x.dtype}")
    error = 2e-6 if x.dtype in (torch.float16, torch.bfloat16) else 1e-12
    for field in ("sum_abs", "sum_sq"):
        assert found[field] == pytest.approx(right[field], rel=error, abs=0.0), field
    if math.isfinite(right["sum_abs"]):
        assert abs(found["sum"] - right["sum"]) <= error * right["sum_abs"]
    spread = 1e-9 if error < 1e-9 else error
    assert found["m2"] == pytest.approx(
        right["m2"], rel=spread, abs=spread * right["sum_sq"] * 1e-6
    )


def any_bits(n: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (n * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return (raw & 1 if dtype == torch.bool else raw).view(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
@pytest.mark.parametrize("chunk", [_torch_stats.CHUNK, 64])
def test_any_bits_in_any_layout(
    dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_torch_stats, "CHUNK", chunk)
    for n in (0, 1, 17, 1200):
        check(any_bits(n, dtype, n))
    x = any_bits(1200, dtype, 5).view(10, 30, 4)
    for y in (x.permute(2, 0, 1), x[2::3, 5:], x[:, :1].expand(10, 7, 4), x[0, 0, 0], x[:0]):
        check(y)
    check(x.flatten().unfold(0, 5, 2), 0.5)
    check(x.flatten().as_strided((30, 40), (3, 7)), 0.5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(70, 90, generator=generator, dtype=torch.float64)
    for y in (x, x + 3.0, 1e8 + x.sign(), torch.full_like(x, 0.1), -x * 0.0, x * 1e-9):
        check(y.to(dtype))
    y = x.to(dtype)
    y[3, 4], y[5, 5], y[7, 7] = math.nan, math.inf, -math.inf
    check(y)
    check(y.t()[:, ::2])
    check(torch.full((9,), math.inf, dtype=dtype))
    check(torch.full((9,), math.nan, dtype=dtype))


def test_far_from_one() -> None:
    check(torch.tensor([3e200, -4e200, 1.0, 0.0], dtype=torch.float64))
    check(torch.tensor([3e-200, -4e-200, 0.0], dtype=torch.float64))
    check(torch.tensor([300.0, 50000.0], dtype=torch.float16))
    for scale in (1e-320, 1e-200, 1e200, 2e307):
        check(torch.tensor([complex(3.0, 4.0)] * 10, dtype=torch.complex128) * scale)


def test_views_that_memory_shows_wrongly() -> None:
    """Conjugated and negated views are only signs in flight, which no kernel sees."""
    z = torch.randn(40, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
    negative = z.conj().imag
    assert negative.is_neg()
    assert by_torch(negative)["sum"] == pytest.approx(-float(z.imag.double().sum()), rel=1e-12)
    assert by_torch(z.conj()) == by_torch(z)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operators run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex128])
def test_nothing_waits_for_a_device_or_lands_on_another(dtype: torch.dtype) -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    x = x.requires_grad_()
    right = by_torch(x)
    state = torch.get_rng_state()
    with Watch() as watch, torch.device("meta"):  # where a tensor without a device would be made
        assert by_torch(x) == right
    waiting = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero"}
    assert waiting.isdisjoint(watch.seen)
    assert len(watch.seen) > 20
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


class Negated(nn.Module):
    """Returns a view whose sign is only a flag."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.complex(x, x + 1.0).conj().imag


def test_a_hook_records_what_the_kernels_cant_read(tmp_path: Path) -> None:
    model = nn.Sequential(Negated())
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    config = {"targets": {"0": {"output": "tensor"}}, "device_path": "torch", "ops": ["max"]}
    with tensorprobe.watch(model, optimizer, output_dir=str(tmp_path), config=config) as monitor:
        assert model(torch.ones(5)).is_neg()
        optimizer.step()
        assert monitor.counters()["unreadable"] == 0
    (table,) = tmp_path.glob("*/actv_[0-9]*.csv")
    assert pd.read_csv(table)["max"].tolist() == [-2.0]


@contextlib.contextmanager
def watched(model: nn.Module, optimizer: Any, folder: Path, path: str) -> Iterator[None]:
    config = {"ops": OPS, "format": "csv", "device_path": path, "strict": True}
    with tensorprobe.watch(model, optimizer, output_dir=str(folder), config=config):
        yield


@pytest.mark.parametrize("setting", models.SETTINGS, ids=lambda s: f"{s.model}-{s.optimizer}")
def test_a_training_leaves_the_same_files(
    setting: models.Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same bits of weights, optimizer state and random generators."""
    outcomes = {}
    calls = []
    original = _torch_stats._compute

    def counted(x: Tensor, eps: float) -> tuple[int | float, ...]:
        calls.append(x)
        return original(x, eps)

    monkeypatch.setattr(_torch_stats, "_compute", counted)
    for path in ("native", "torch"):

        @contextlib.contextmanager
        def watcher(model: nn.Module, optimizer: Any, path: str = path) -> Iterator[None]:
            with watched(model, optimizer, tmp_path / path, path):
                yield

        assert calls == []
        outcomes[path] = models.train(setting, watcher, steps=3)
    assert len(calls) > 300
    plain = models.train(setting, steps=3)
    assert outcomes["torch"].random_states == plain.random_states
    for name, tensor in plain.tensors.items():
        assert torch.equal(tensor, outcomes["torch"].tensors[name]), name
    tables = [sorted((tmp_path / path).glob("*/*.csv")) for path in ("native", "torch")]
    assert [t.name for t in tables[0]] == [t.name for t in tables[1]]
    assert len(tables[0]) >= 6
    for native, other in zip(*tables, strict=True):
        a, b = pd.read_csv(native), pd.read_csv(other)
        loose = ["norm", "mean"]
        pd.testing.assert_frame_equal(a.drop(columns=loose), b.drop(columns=loose))
        np.testing.assert_allclose(a["norm"], b["norm"], rtol=1e-12)
        np.testing.assert_allclose(a["mean"], b["mean"], rtol=0, atol=1e-12 * a["norm"].max())
