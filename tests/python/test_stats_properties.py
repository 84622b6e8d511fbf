"""What must hold for any tensor at all, drawn by hypothesis: `compute_stats` beside torch."""

from __future__ import annotations

import math
import os
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from torch import Tensor

from tensorprobe import _core

REAL = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-8, 0.05, 300.0, 50000.0, 65504.0, 1e8, 1e8 + 1.0, 2.0**-24]
SPECIAL += [2.0**-126, 2.0**-149, 3e38, math.nan, math.inf, -math.inf]

properties = settings(
    max_examples=20_000 if "TP_SOAK" in os.environ else 150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def flat(draw: st.DrawFn, dtypes: list[torch.dtype]) -> Tensor:
    """Any bits, or numbers of one kind, in one dimension."""
    dtype = draw(st.sampled_from(dtypes))
    if draw(st.booleans()):
        size = dtype.itemsize
        raw = draw(st.binary(max_size=600))
        return torch.tensor(list(raw[: len(raw) // size * size]), dtype=torch.uint8).view(dtype)
    if dtype in WHOLE:
        info = torch.iinfo(dtype)
        whole = draw(st.lists(st.integers(info.min, info.max), max_size=80))
        return torch.tensor(whole, dtype=dtype)
    numbers = st.sampled_from(SPECIAL) | st.floats(width=32)
    values = draw(st.lists(numbers, max_size=40)) * draw(st.sampled_from([1, 3, 130]))
    return torch.tensor(values, dtype=torch.float64).to(dtype)


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype]) -> Tensor:
    """With any strides."""
    x = draw(flat(dtypes))
    if len(x) % 6 == 0 and len(x) > 0:
        x = x.view(2, -1, 3)
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(["transpose", "slice", "expand", "window", "select"])):
            case "transpose" if x.dim() > 1:
                x = x.transpose(draw(st.integers(0, x.dim() - 1)), draw(st.integers(-1, 0)))
            case "slice" if x.dim() > 0:
                start, step = draw(st.integers(0, 3)), draw(st.integers(1, 3))
                x = x[start::step]
            case "expand":
                x = x.unsqueeze(0).expand(draw(st.integers(0, 5)), *x.shape)
            case "window" if x.dim() > 0 and x.shape[0] > 2:
                x = x.unfold(0, 3, draw(st.integers(1, 2)))
            case "select" if x.dim() > 0 and x.shape[0] > 0:
                x = x[draw(st.integers(0, x.shape[0] - 1))]
    return x


def stats(x: Tensor, **keywords: Any) -> dict[str, Any]:
    return dict(_core.compute_stats(x, **keywords))


def widen(x: Tensor) -> Tensor:
    return x.to(torch.float64).reshape(-1)


@properties
@given(tensors(REAL + SMALL + WHOLE), st.sampled_from([0.0, 1e-8, 0.5, 2.0]))
@example(torch.tensor([300.0, 50000.0], dtype=torch.float16), 0.0)
@example(torch.tensor([1e200, -1e200, 1e-200], dtype=torch.float64), 0.0)
def test_beside_torch(x: Tensor, eps: float) -> None:
    found, wide = stats(x, eps=eps), widen(x)
    known = wide[~wide.isnan()].abs()
    assert found["count"] == x.numel()
    assert found["nan"] == int(wide.isnan().sum())
    assert found["pos_inf"] == int((wide == math.inf).sum())
    assert found["neg_inf"] == int((wide == -math.inf).sum())
    assert found["zeros"] == int((wide.abs() < eps).sum())
    if x.numel() > 0:  # as torch: NaN where any element is
        np.testing.assert_equal(found["min"], wide.min().item() + 0.0)
        np.testing.assert_equal(found["max"], wide.max().item() + 0.0)
    if len(known) > 0:
        assert found["abs_max"] == known.max().item()
        assert wide[found["abs_max_index"]].abs() == found["abs_max"]
    error = 1e-6 if x.dtype in (torch.float16, torch.bfloat16) else 1e-12
    norm = float(np.sqrt((wide.numpy().astype(np.longdouble) ** 2).sum()))
    assert found["norm"] == pytest.approx(norm, rel=error, nan_ok=True)
    finite = wide[wide.isfinite()].numpy().astype(np.longdouble)
    bound = error * float(np.abs(finite).sum())
    total = float(finite.sum())
    if math.isfinite(total) and math.isfinite(bound):
        assert found["sum"] == pytest.approx(total, rel=0, abs=bound)


@properties
@given(tensors(REAL + SMALL + WHOLE))
def test_strides_and_kernels_dont_matter(x: Tensor) -> None:
    """Row-major copies have the same exact fields; scalar code has the same bits."""
    keywords = {"histogram": (7, -2.0, 3.0), "exponents": True, "content_hash": True}
    found = stats(x, **keywords)
    copy = stats(x.contiguous(), **keywords)
    exact = "count nan pos_inf neg_inf zeros subnormal min max finite_min finite_max abs_max"
    for field in [*exact.split(), *(k for k in found if k.startswith(("hist", "exp", "cont")))]:
        np.testing.assert_equal(found[field], copy[field], err_msg=field)
    scalar = stats(x, isa="scalar", **keywords)
    scalar["kernel"] = found["kernel"]
    np.testing.assert_equal(found, scalar)


@properties
@given(flat(REAL + SMALL), st.randoms(use_true_random=False))
def test_the_order_moves_rounding_only(x: Tensor, random: Any) -> None:
    order = list(range(len(x)))
    random.shuffle(order)
    found = stats(x, histogram=(30, -1.0, 1.0), exponents=True)
    shuffled = stats(
        x.view(torch.uint8).view(len(x), x.dtype.itemsize)[order].flatten().view(x.dtype),
        histogram=(30, -1.0, 1.0),
        exponents=True,
    )
    for field in found:
        if field.startswith("sum") or field in ("mean", "norm", "std", "m2", "abs_max_index"):
            continue
        np.testing.assert_equal(found[field], shuffled[field], err_msg=field)
    if math.isfinite(found["sum_abs"]):
        assert shuffled["sum"] == pytest.approx(found["sum"], rel=0, abs=1e-6 * found["sum_abs"])
        assert shuffled["sum_abs"] == pytest.approx(found["sum_abs"], rel=1e-6)


@properties
@given(flat([torch.float64, torch.float32]), st.integers(-60, 60))
def test_powers_of_two_scale_exactly(x: Tensor, power: int) -> None:
    """No rounding depends on the magnitude, so that bits of sums scale with the numbers."""
    size = x.abs()
    x = x[((size > 1e-18) & (size < 1e18)) | (size == 0) | x.isnan()].double()
    found, scaled = stats(x), stats(x * 2.0**power)
    for field in ("min", "max", "finite_min", "finite_max", "abs_max", "sum", "sum_abs", "mean"):
        np.testing.assert_equal(scaled[field], found[field] * 2.0**power, err_msg=field)
    for field in ("norm", "std"):
        np.testing.assert_equal(scaled[field], found[field] * 2.0**power, err_msg=field)


@properties
@given(flat(REAL))
def test_negation_mirrors(x: Tensor) -> None:
    found, mirrored = stats(x, exponents=True), stats(-x, exponents=True)
    for a, b in (("min", "max"), ("finite_min", "finite_max"), ("sum", "sum"), ("mean", "mean")):
        np.testing.assert_equal(mirrored[a], 0.0 - found[b], err_msg=a)
    for field in ("sum_abs", "sum_sq", "m2", "abs_max", "abs_max_index", "zeros", "norm", "std"):
        np.testing.assert_equal(mirrored[field], found[field], err_msg=field)
    assert mirrored["pos_inf"] == found["neg_inf"]
    assert mirrored["exponents_positive"] == found["exponents_negative"]
