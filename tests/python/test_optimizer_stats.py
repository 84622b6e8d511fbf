"""Adam's update and ratio and the agreement of signs against torch, computed in one read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tensorprobe import _core

SEED = 20261130
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
NAN = math.nan


def moments(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    m = torch.randn(shape, generator=generator, dtype=torch.float64) * 1e-3
    v = torch.randn(shape, generator=generator, dtype=torch.float64).square() * 1e-6
    return m.to(dtype), v.to(dtype)


def expression(m: Tensor, v: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """As msprobe 1.1.1 and 26.2.0 write it; step 0: as KJ600, without bias correction."""
    if step:
        m = m / (1 - BETA1**step)
        v = v / (1 - BETA2**step)
    # Rounded as IEEE 754 says, which torch.sqrt is not: a fifth of its f32 results are 1 ulp off.
    with np.errstate(invalid="ignore"):
        deviation = torch.from_numpy(np.sqrt(v.numpy()))
    return m / (deviation + EPS), m / deviation


def check(m: Tensor, v: Tensor, step: int, bins: tuple[int, float, float] = (30, -1, 1)) -> None:
    """Statistics equal those of torch's tensors bit for bit, bins equal torch.histc."""
    found = _core.compute_adam(m, v, eps=EPS, step=step, histogram=bins)
    wide = torch.float64 if torch.float64 in (m.dtype, v.dtype) else torch.float32
    right = expression(m.to(wide), v.to(wide), step)
    count, low, high = bins
    for ours, tensor in zip(found, right, strict=True):
        histogram = ours.pop("histogram")
        assert histogram == torch.histc(tensor, count, low, high).long().tolist()
        expected = _core.compute_stats(tensor)
        del ours["kernel"], expected["kernel"]
        assert repr(ours) == repr(expected)  # NaN equals NaN


@pytest.mark.parametrize("step", [0, 1, 7, 1000, 30000])
@pytest.mark.parametrize("size", [0, 1, 17, 4096, 4097, 100_000])
def test_sizes_and_steps(size: int, step: int) -> None:
    check(*moments((size,)), step)


@pytest.mark.parametrize("step", [0, 3])
def test_values_in_f64(step: int) -> None:
    """What is calculated in f32 is right to f32's precision."""
    m, v = moments((300, 70))
    found = _core.compute_adam(m, v, eps=EPS, step=step)
    for ours, tensor in zip(found, expression(m.double(), v.double(), step), strict=True):
        assert ours["norm"] == pytest.approx(torch.linalg.vector_norm(tensor).item(), rel=1e-6)
        error = 1e-6 * tensor.abs().mean().item()
        assert ours["mean"] == pytest.approx(tensor.mean().item(), abs=error)
        assert ours["std"] == pytest.approx(tensor.std(correction=0).item(), rel=1e-6)
        assert ours["min"] == pytest.approx(tensor.min().item(), rel=1e-6)
        assert ours["max"] == pytest.approx(tensor.max().item(), rel=1e-6)


@pytest.mark.parametrize("step", [0, 3])
def test_bins_of_torchs_own_expression(step: int) -> None:
    """Its root may move a number that lies within 1 ulp of an edge to the next bin."""
    m, v = moments((1_000_000,))
    found = _core.compute_adam(m, v, eps=EPS, step=step, histogram=(30, -1, 1))
    if step:
        m = m / (1 - BETA1**step)
        v = v / (1 - BETA2**step)
    for ours, tensor in zip(found, (m / (torch.sqrt(v) + EPS), m / torch.sqrt(v)), strict=True):
        right = torch.histc(tensor, 30, -1, 1)
        assert (torch.tensor(ours["histogram"]) - right).abs().sum() <= 4
        assert min(ours["histogram"]) > 500


@pytest.mark.parametrize("bins", [(30, -1, 1), (1, -1, 1), (64, -0.5, 3), (65, -1, 2), (999, 0, 9)])
def test_any_bins(bins: tuple[int, float, float]) -> None:
    check(*moments((20_000,)), 5, bins)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("first", DTYPES)
def test_dtypes(first: torch.dtype, second: torch.dtype) -> None:
    """Halves are made f32 first; a half of 1e-6 squared vanishes, and the ratio is infinite."""
    m, v = moments((5000,), torch.float64)
    check((m * 100).to(first), (v * 1e4).to(second), 11)


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: torch.stack([x, x], -1)[..., 0],
    lambda x: x[:, :1].expand_as(x),
]


@pytest.mark.parametrize("second", range(len(LAYOUTS)))
@pytest.mark.parametrize("first", range(len(LAYOUTS)))
def test_strides(first: int, second: int) -> None:
    """Everything that doesn't depend on the order of the sums is that of the contiguous tensors."""
    m, v = moments((13, 40, 17))
    m, v = LAYOUTS[first](m), LAYOUTS[second](v)
    found = _core.compute_adam(m, v, eps=EPS, step=4, histogram=(30, -1, 1))
    right = expression(m.contiguous(), v.contiguous(), 4)
    for ours, tensor in zip(found, right, strict=True):
        expected = _core.compute_stats(tensor)
        histogram = torch.histc(tensor, 30, -1, 1).long().tolist()
        assert ours["histogram"] == histogram
        for name in ("count", "nan", "zeros", "min", "max", "abs_max"):
            assert ours[name] == expected[name], name
        assert ours["norm"] == pytest.approx(expected["norm"], rel=1e-12)
        assert ours["std"] == pytest.approx(expected["std"], rel=1e-12)
        assert tensor.flatten()[ours["abs_max_index"]].abs() == ours["abs_max"]


def test_where_nothing_has_happened_the_ratio_is_nan() -> None:
    m, v = moments((100,))
    m[::2] = 0
    v[::2] = 0
    check(m, v, 2)
    update, ratio = _core.compute_adam(m, v, step=2, histogram=(30, -1, 1))
    assert (update["nan"], update["zeros"]) == (0, 50)
    assert ratio["nan"] == 50
    assert sum(ratio["histogram"]) <= 50


def test_odd_numbers() -> None:
    odd = [0.0, -0.0, NAN, math.inf, -math.inf, 1e-45, -1e-45, 1e-38, 3e38, -1.0, 1.0]
    m = torch.tensor(odd).repeat_interleave(len(odd))
    v = torch.tensor(odd).repeat(len(odd))
    for step in (0, 1, 100):
        check(m, v, step)


def test_mistakes() -> None:
    m, v = moments((5,))
    with pytest.raises(ValueError, match="TP_ERR_ARGUMENT"):
        _core.compute_adam(m, v[:4])
    with pytest.raises(ValueError, match="TP_ERR_ARGUMENT"):
        _core.compute_adam(m, v, beta1=1.0)
    with pytest.raises(ValueError, match="TP_ERR_UNSUPPORTED"):
        _core.compute_adam(m.long(), v)
    with pytest.raises(TypeError, match="two tensors"):
        _core.compute_agreement(m, 3)  # type: ignore[arg-type]


def brute_agreement(g: Tensor, m: Tensor) -> dict[str, Any]:
    product = g.double().sign() * m.double().sign()
    nan = g.isnan() | m.isnan()
    return {
        "count": g.numel(),
        "same": int((product > 0)[~nan].sum()),
        "opposite": int((product < 0)[~nan].sum()),
        "zero": int((product == 0)[~nan].sum()),
        "nan": int(nan.sum()),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (1,), (31,), (5000,), (70, 90)])
def test_agreement(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g, m = (x.to(dtype) for x in moments(shape, torch.float64))
    m = m - 4e-7
    g.masked_fill_(torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.1, 0.0)
    found = _core.compute_agreement(g, m)
    direction = found.pop("direction")
    assert found == brute_agreement(g, m)
    # As msprobe's get_sign_matches.
    right = ((g.sign() * m.sign()).double().sum() / m.numel() + 1) / 2 if m.numel() else 1.0
    assert direction == pytest.approx(float(right), rel=1e-15)


def test_agreement_of_odd_numbers() -> None:
    odd = [0.0, -0.0, NAN, math.inf, -math.inf, 1e-45, -1e-45, 1.0]
    g = torch.tensor(odd).repeat_interleave(len(odd)).view(8, 8)
    m = torch.tensor(odd).repeat(len(odd)).view(8, 8)
    for left, right in ((g, m), (g.t(), m), (g[:1].expand(8, 8), m[:1].expand(8, 8))):
        found = _core.compute_agreement(left, right)
        assert math.isnan(found.pop("direction"))
        assert found == brute_agreement(left, right)
