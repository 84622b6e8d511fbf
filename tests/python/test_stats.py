"""Statistics of one tensor against NumPy and exact sums in f64, for every dtype and layout."""

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
EPS = 1e-8
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INF = math.inf
NAN = math.nan

Stats = dict[str, Any]


def compute(tensor: Tensor, eps: float = EPS) -> Stats:
    return dict(_core.compute_stats(tensor, eps))


def shown_infinity(infinite: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return float(infinite[0]) if (infinite == infinite[0]).all() else NAN


def brute(tensor: Tensor, eps: float) -> Stats:
    """The same fields from NumPy; sums are correctly rounded (math.fsum)."""
    x: np.ndarray[Any, np.dtype[np.float64]] = tensor.detach().double().numpy().reshape(-1)
    finite = x[np.isfinite(x)]
    magnitude = np.abs(x[~np.isnan(x)])
    empty_or_nan = x.size == 0 or bool(np.isnan(x).any())
    mean = math.fsum(finite) / finite.size if finite.size else NAN
    infinite = x[np.isinf(x)]
    shown_mean = NAN if empty_or_nan else shown_infinity(infinite) if infinite.size else mean
    return {
        "count": x.size,
        "nan": int(np.isnan(x).sum()),
        "pos_inf": int(np.isposinf(x).sum()),
        "neg_inf": int(np.isneginf(x).sum()),
        "zeros": int((np.abs(x) < eps).sum()),
        "subnormal": int(((x != 0) & (np.abs(x) < torch.finfo(tensor.dtype).tiny)).sum()),
        "min": NAN if empty_or_nan else x.min(),
        "max": NAN if empty_or_nan else x.max(),
        "finite_min": finite.min() if finite.size else NAN,
        "finite_max": finite.max() if finite.size else NAN,
        "abs_max": magnitude.max() if magnitude.size else NAN,
        "sum": math.fsum(finite),
        "sum_abs": math.fsum(np.abs(finite)),
        "mean": shown_mean,
        "norm": NAN if np.isnan(x).any() else INF if infinite.size else float(math.hypot(*finite)),
        "std": math.hypot(*(finite - mean)) / math.sqrt(finite.size) if finite.size else NAN,
    }


EXACT = ["count", "nan", "pos_inf", "neg_inf", "zeros", "subnormal"]
EXACT += ["min", "max", "finite_min", "finite_max", "abs_max"]


def check(tensor: Tensor, eps: float = EPS) -> Stats:
    found = compute(tensor, eps)
    right = brute(tensor, eps)
    for field in EXACT:
        # Adding 0 makes -0 positive, as every zero of a record is.
        np.testing.assert_equal(found[field], right[field] + 0.0, err_msg=field)
    scale = right["sum_abs"]
    # f16 and bf16 are added in f32 first: three roundings (docs/statistics.md).
    halves = tensor.dtype in (torch.float16, torch.bfloat16)
    error = 3.0 * 2.0**-24 if halves else 1e-14
    assert abs(found["sum"] - right["sum"]) <= error * scale
    assert found["sum_abs"] == pytest.approx(scale, rel=error, abs=0.0)
    norm_error = 1e-7 if halves else 1e-12
    assert found["norm"] == pytest.approx(right["norm"], rel=norm_error, abs=0.0, nan_ok=True)
    mean_error = max(error, 1e-12) * scale / max(1, right["count"])
    assert found["mean"] == pytest.approx(right["mean"], rel=0.0, abs=mean_error, nan_ok=True)
    std_error = 5e-7 if halves else 1e-9
    assert found["std"] == pytest.approx(right["std"], rel=std_error, abs=mean_error, nan_ok=True)
    if math.isnan(right["abs_max"]):
        assert found["abs_max_index"] == 2**64 - 1
    else:
        element = tensor.reshape(-1)[found["abs_max_index"]]
        assert abs(float(element)) == right["abs_max"]
    return found


def normal(*shape: int, seed: int = SEED) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 64, 100, 4095, 4096, 4097, 8193, 20000, 99999])
def test_lengths(dtype: torch.dtype, n: int) -> None:
    found = check(normal(n, seed=n).to(dtype))
    best = {"torch.float64": "f64", "torch.float32": "f32"}.get(str(dtype))
    best = best or {"torch.float16": "f16", "torch.bfloat16": "bf16"}[str(dtype)]
    assert found["kernel"].startswith(best + "_")


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: normal(70, 90).t(),
    "permuted": lambda: normal(7, 40, 30).permute(2, 0, 1),
    "channels_last": lambda: normal(2, 8, 16, 17).contiguous(memory_format=torch.channels_last),
    "rows": lambda: normal(100, 100)[:, 3:60],
    "long_rows": lambda: normal(5, 9000)[1:, 10:8800],
    "columns": lambda: normal(100, 120)[:, ::3],
    "column": lambda: normal(5000, 3)[:, 1],
    "every_other_row": lambda: normal(90, 64)[::2],
    "sliced_permuted": lambda: normal(12, 20, 30)[1:9, ::2, 5:].permute(1, 2, 0),
    "expanded_front": lambda: normal(1, 50).expand(300, 50),
    "expanded_middle": lambda: normal(40, 1, 50).expand(40, 30, 50),
    "expanded_scalar": lambda: normal(1).expand(7, 1000),
    "overlapping": lambda: normal(3000).unfold(0, 5, 2),
    "as_strided": lambda: torch.as_strided(normal(500), (30, 40), (3, 7)),
    "offset": lambda: normal(10001)[1:],
    "diagonal": lambda: normal(200, 200).diagonal(),
    "size_one_dims": lambda: normal(1, 600, 1, 7, 1).transpose(1, 3),
    "scalar": lambda: normal(1)[0],
    "empty": lambda: normal(0, 5),
    "empty_strided": lambda: normal(4, 5)[:, 5:],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    tensor = LAYOUTS[layout]()
    # An exact copy of the layout in another dtype.
    storage = torch.tensor(tensor.untyped_storage(), dtype=torch.uint8).view(torch.float64)
    other = torch.as_strided(
        storage.to(dtype), tensor.shape, tensor.stride(), tensor.storage_offset()
    )
    check(other)


def test_index_is_row_major_and_first_in_memory() -> None:
    base = torch.zeros(50, 60)
    base[41, 7] = -9.0
    base[3, 50] = 9.0
    assert compute(base)["abs_max_index"] == 3 * 60 + 50
    assert compute(base.t())["abs_max_index"] == 50 * 50 + 3
    assert compute(base[3:, 7:])["abs_max_index"] == 43
    block = torch.zeros(3, 5000)
    block[1, 4321] = 2.0
    assert compute(block)["abs_max_index"] == 9321
    assert compute(block.t())["abs_max_index"] == 4321 * 3 + 1
    assert compute(torch.tensor([[0.0], [5.0]]).expand(2, 9))["abs_max_index"] == 9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", [[NAN], [INF], [-INF], [INF, -INF], [NAN, INF], [NAN] * 3])
@pytest.mark.parametrize("n", [0, 5, 5000, 20000])
def test_not_finite(values: list[float], n: int, dtype: torch.dtype) -> None:
    tensor = normal(n + len(values)).to(dtype)
    tensor[n // 2 : n // 2 + len(values)] = torch.tensor(values, dtype=dtype)
    check(tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_bits(dtype: torch.dtype) -> None:
    width = torch.finfo(dtype).bits
    generator = torch.Generator().manual_seed(SEED)
    raw = torch.randint(0, 256, (30000 * width // 8,), dtype=torch.uint8, generator=generator)
    tensor = raw.view(dtype)
    found = compute(tensor)
    x = tensor.double().numpy()
    assert found["nan"] == np.isnan(x).sum()
    assert found["pos_inf"] == np.isposinf(x).sum()
    assert found["neg_inf"] == np.isneginf(x).sum()
    assert found["subnormal"] == ((x != 0) & (np.abs(x) < torch.finfo(dtype).tiny)).sum()
    assert found["finite_max"] == x[np.isfinite(x)].max()
    assert found["finite_min"] == x[np.isfinite(x)].min()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.1, 1e-45, 5e-324, 1e39, 1e300, INF])
def test_zeros(eps: float, dtype: torch.dtype) -> None:
    tensor = torch.cat([normal(3000), torch.tensor([0.0, -0.0, 1e-8, -1e-8, 1e-9, 2.5, NAN, INF])])
    check(tensor.to(dtype), eps)


def test_zeros_are_compared_in_f64() -> None:
    # The float next to 0.1 is larger than the double 0.1, so it is no zero for eps = 0.1.
    assert compute(torch.tensor([0.1]), 0.1)["zeros"] == 0
    assert compute(torch.tensor([0.1]), math.nextafter(float(np.float32(0.1)), 1))["zeros"] == 1


def test_bad_eps_is_refused() -> None:
    for eps in (-1.0, NAN):
        with pytest.raises(ValueError):  # noqa: PT011
            compute(torch.ones(3), eps)


@pytest.mark.parametrize("power", [-1000, -600, -451, -449, 449, 451, 1000])
@pytest.mark.parametrize("n", [1, 100, 5000])
def test_squares_beyond_the_range_of_f64(power: int, n: int) -> None:
    check(torch.from_numpy(np.ldexp(normal(n).numpy(), power)))


def test_norm_of_huge_and_tiny() -> None:
    assert compute(torch.full((10000,), 1e200, dtype=torch.float64))["norm"] == pytest.approx(1e202)
    tiny = torch.full((10000,), 1e-200, dtype=torch.float64)
    assert compute(tiny)["norm"] == pytest.approx(1e-198, rel=1e-12)
    zeros = torch.zeros(8192, dtype=torch.float64)
    assert compute(torch.cat([zeros, tiny]))["norm"] == pytest.approx(1e-198, rel=1e-12)
    mixed = torch.cat([tiny, torch.ones(9, dtype=torch.float64), tiny * 1e300, tiny * 1e400])
    assert compute(mixed)["norm"] == INF  # 1e-200 * 1e400 is infinite
    mixed = torch.cat([tiny, torch.ones(9, dtype=torch.float64), tiny * 1e300 * 1e100])
    assert compute(mixed)["norm"] == pytest.approx(1e202, rel=1e-12)
    assert compute(zeros)["sq_exp"] == 0
    assert compute(torch.ones(3))["sq_exp"] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [2, 1000, 4096, 100000])
def test_std_far_from_zero(n: int, dtype: torch.dtype) -> None:
    step = 1.0 if dtype == torch.float64 else 8.0  # floats near 1e8 are 8 apart
    signs = torch.ones(n, dtype=torch.float64)
    signs[::2] = -1.0
    tensor = (1e8 + step * signs).to(dtype)
    assert compute(tensor)["std"] == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.1, -3.7e-5, 1.0, 0.0, 12345.678])
def test_std_of_a_constant_is_zero(value: float, dtype: torch.dtype) -> None:
    tensor = torch.full((10007,), value, dtype=dtype)
    found = check(tensor)
    assert found["std"] == 0.0
    tensor[77] = NAN
    assert compute(tensor)["std"] == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_at_the_limits_of_f32(dtype: torch.dtype) -> None:
    """Rounding errors that all go one way, squares that leave f32's range, offsets."""
    info = torch.finfo(dtype)
    worst = torch.full((8192,), 2.0**-14 * (1.0 + info.eps))
    worst[::8] = 2.0 - info.eps  # swallows the others' last bits
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(20000, generator=generator)
    cases = [worst, noise + 3.0, noise * 0.01 + 1.0, noise.exp() * 1e-3]
    if dtype == torch.bfloat16:
        spread = torch.exp2(torch.randint(-126, 127, (20000,), generator=generator).float())
        for power in (-133, -120, -75, -51, -50, -49, 49, 50, 51, 64, 120):
            cases.append((noise * 2.0**power).clamp(-1e38, 1e38))
        cases += [spread, spread * noise.sign(), spread.clamp(max=2.0**50)]
    else:
        cases += [noise * 2.0**-20, noise.clamp(-3, 3) * 20000]
    for case in cases:
        check(case.to(dtype))


def test_zero_is_positive() -> None:
    found = compute(torch.full((20,), -0.0))
    for field in ("min", "max", "finite_min", "finite_max", "abs_max", "sum", "mean", "norm"):
        assert math.copysign(1.0, found[field]) == 1.0, field


def test_empty_and_scalar() -> None:
    found = compute(torch.empty(0, 3))
    assert (found["count"], found["norm"], found["sum"]) == (0, 0, 0)
    assert found["abs_max_index"] == 2**64 - 1
    for field in ("min", "max", "finite_min", "finite_max", "abs_max", "mean", "std"):
        assert math.isnan(found[field]), field
    found = compute(torch.tensor(-2.5))
    assert (found["count"], found["min"], found["max"], found["norm"]) == (1, -2.5, -2.5, 2.5)
    assert (found["std"], found["abs_max_index"]) == (0.0, 0)


def test_flush_denormal_changes_nothing() -> None:
    tensor = torch.tensor([1e-40, -3e-42, 1.0, 0.0])
    right = compute(tensor, 1e-41)
    assert right["subnormal"] == 2
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU can't flush subnormals")
    try:
        assert compute(tensor, 1e-41) == right
    finally:
        torch.set_flush_denormal(False)


FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8(dtype: torch.dtype) -> None:
    """PyTorch's own conversion is the reference: each byte alone, then all of them mixed."""
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    tiny = torch.finfo(dtype).tiny
    for byte in range(256):
        check(every[byte : byte + 1], eps=2.0 * tiny)
    found = check(every, eps=1.0)
    assert found["kernel"] == "f8" + str(dtype).removeprefix("torch.float8") + "_bytes"
    generator = torch.Generator().manual_seed(SEED)
    for n in (7, 255, 4097, 100_000):
        check(torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator).view(dtype))


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP Microscaling Formats 1.0, table 5
E2M1 += [-x for x in E2M1]


def float4(raw: Tensor) -> Tensor:
    """The elements of packed bytes, the low half first."""
    table = torch.tensor(E2M1, dtype=torch.float64)
    codes = torch.stack([raw & 15, raw >> 4], dim=-1).flatten()
    return table[codes.long()]


@pytest.mark.parametrize("n", [1, 256, 33_000, 70_001])
def test_every_float4(n: int) -> None:
    generator = torch.Generator().manual_seed(SEED)
    draws = [torch.arange(256, dtype=torch.uint8).repeat(n // 256)] if n >= 256 else []
    draws += [torch.tensor([byte] * n, dtype=torch.uint8) for byte in range(256 if n == 1 else 2)]
    draws += [torch.randint(0, 64, (n,), dtype=torch.uint8, generator=generator)]
    for raw in draws:
        values = float4(raw)
        right = brute(values, 0.75)
        right["subnormal"] = int((values.abs() == 0.5).sum())
        found = compute(raw.view(torch.float4_e2m1fn_x2), 0.75)
        for field in EXACT:
            assert found[field] == right[field], field
        for field in ("sum", "sum_abs", "norm", "mean", "std"):
            assert found[field] == pytest.approx(right[field], rel=1e-14, abs=1e-14), field
        assert found["abs_max_index"] == int(values.abs().argmax())
        assert found["kernel"] == "f4_e2m1fn_bytes"


INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]
INTEGERS += [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("n", [0, 1, 17, 4096, 50_000])
def test_integers(n: int, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    generator = np.random.default_rng(SEED + n)
    name = str(dtype).removeprefix("torch.")
    for low, high in ((info.min, info.max), (max(-5, info.min), 5)):
        x = generator.integers(low, high, n, dtype=name, endpoint=True)
        if n > 1:
            x[n // 2 : n // 2 + 2] = low, high
        found = compute(torch.from_numpy(x), 1.5)
        exact = [int(v) for v in x]
        assert found["count"] == n
        assert found["zeros"] == sum(abs(v) < 2 for v in exact)
        assert [found[f] for f in ("nan", "pos_inf", "neg_inf", "subnormal")] == [0, 0, 0, 0]
        assert found["sum"] == pytest.approx(sum(exact), rel=0, abs=1e-14 * sum(map(abs, exact), 1))
        assert found["sum_abs"] == pytest.approx(sum(map(abs, exact)), rel=1e-14)
        assert found["norm"] == pytest.approx(math.isqrt(sum(v * v for v in exact) << 80) / 2**40)
        if n > 0:
            assert (found["min"], found["max"]) == (float(min(exact)), float(max(exact)))
            largest = max(abs(float(v)) for v in exact)
            assert found["abs_max"] == largest
            assert abs(float(exact[found["abs_max_index"]])) == largest
            std = float(np.std(x.astype(np.longdouble)))
            assert found["std"] == pytest.approx(std, rel=1e-9)
    strided = torch.from_numpy(np.arange(120, dtype=name).reshape(10, 12))[1::2, 1::3].t()
    assert compute(strided)["sum"] == int(strided.long().sum())
    assert compute(strided)["abs_max_index"] == 19
    assert compute(torch.from_numpy(np.array([3], dtype=name)).expand(1000, 7))["sum"] == 21000


def test_bool() -> None:
    x = torch.zeros(3, 5000, dtype=torch.bool)
    x[1, 70:90] = True
    found = compute(x)
    assert [found[f] for f in ("count", "zeros", "sum", "sum_sq", "min", "max")] == [
        15000,
        14980,
        20,
        20,
        0,
        1,
    ]
    assert found["abs_max_index"] == 5070
    assert compute(x.t())["abs_max_index"] == 70 * 3 + 1


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("n", [0, 1, 5, 4096, 30_000])
def test_complex_numbers_count_as_their_modulus(n: int, dtype: torch.dtype) -> None:
    x = torch.complex(normal(n, seed=1), normal(n, seed=2)).to(dtype)
    if n >= 5:
        x[0] = 0
        small = 1e-39 if dtype == torch.complex64 else 1e-309
        x[1] = torch.tensor(complex(3 * small, -4 * small), dtype=dtype)
        x[2] = torch.tensor(complex(-30.0, 40.0))
    wide = x.numpy().astype(np.clongdouble)
    found = compute(x, 1e-3)
    modulus = np.sqrt(wide.real**2 + wide.imag**2)
    assert found["zeros"] == (modulus < 1e-3).sum()
    assert found["subnormal"] == (1 if n >= 5 else 0)
    assert found["sum"] == found["sum_abs"] == pytest.approx(float(modulus.sum()), rel=1e-14)
    assert found["norm"] == pytest.approx(float(np.sqrt((modulus**2).sum())), rel=1e-12)
    if n > 0:
        for field, right in (
            ("min", modulus.min()),
            ("max", modulus.max()),
            ("std", modulus.std()),
        ):
            assert found[field] == pytest.approx(float(right), rel=1e-12, abs=1e-300), field
        assert found["abs_max_index"] == modulus.argmax()
    if n >= 5:
        assert found["abs_max"] == 50.0
        x[3] = torch.tensor(complex(NAN, 1.0))
        x[4] = torch.tensor(complex(0.0, -INF))
        found = compute(x)
        assert [found[f] for f in ("nan", "pos_inf", "neg_inf", "abs_max")] == [1, 1, 0, INF]
    assert compute(x.conj())["sum"] == compute(x)["sum"]
    assert compute(x[::2].expand(3, (n + 1) // 2))["count"] == 3 * ((n + 1) // 2)


def test_complex_far_from_one() -> None:
    for scale in (1e-320, 1e-200, 1e200, 2e307):
        x = torch.tensor([complex(3.0, 4.0)] * 10, dtype=torch.complex128) * scale
        found = compute(x)
        right = math.hypot(float(x[0].real), float(x[0].imag))
        assert found["abs_max"] == pytest.approx(right, rel=1e-15)
        assert found["norm"] == pytest.approx(right * math.sqrt(10.0), rel=1e-12)


@pytest.mark.parametrize("dtype", [*FLOAT8[:4], torch.int8, torch.int32, torch.complex64])
def test_the_other_dtypes_in_any_layout(dtype: torch.dtype) -> None:
    for layout, make in LAYOUTS.items():
        tensor = make()
        storage = torch.tensor(tensor.untyped_storage(), dtype=torch.uint8).view(torch.float64)
        other = torch.as_strided(
            (storage * 4).to(dtype), tensor.shape, tensor.stride(), tensor.storage_offset()
        )
        found = compute(other, 0.7)
        right = brute(other.abs() if dtype.is_complex else other.double(), 0.7)
        for field in ("count", "nan", "zeros", "finite_min", "finite_max", "abs_max"):
            np.testing.assert_allclose(found[field], right[field], rtol=1e-7, err_msg=layout)
        error = 1e-7 * max(1.0, right["sum_abs"])
        assert found["sum"] == pytest.approx(right["sum"], rel=0, abs=error)


def histogram_of(tensor: Tensor, bins: int, low: float, high: float) -> list[int]:
    return list(_core.compute_stats(tensor, histogram=(bins, low, high))["histogram"])


@pytest.mark.parametrize("dtype", [*DTYPES, *FLOAT8])
@pytest.mark.parametrize(
    "arguments", [(30, -1.0, 1.0), (7, -0.3, 2.7), (1000, -1e-3, 1e-3), (1, 0.0, 3.0)]
)
def test_histogram_is_that_of_torch(
    arguments: tuple[int, float, float], dtype: torch.dtype
) -> None:
    bins, low, high = arguments
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)
    values = torch.cat([normal(20_000), edges, edges.float().double(), edges.nextafter(edges + 1)])
    x = values.to(dtype)
    reference = x if dtype in (torch.float64, torch.float32) else x.float()
    if dtype not in FLOAT8[2:]:  # histc counts no NaN, and here its own range would be NaN
        x[0], x[1], x[2] = NAN, INF, -INF
        reference = x if dtype in (torch.float64, torch.float32) else x.float()
    right = torch.histc(reference[reference.isfinite()], bins, low, high)
    assert histogram_of(x, *arguments) == right.long().tolist()
    part = x[:20_000].view(100, 200).t()[3:, ::2]
    whole = part.to(reference.dtype)
    right = torch.histc(whole[whole.isfinite()], bins, low, high)
    assert histogram_of(part, *arguments) == right.long().tolist()
    right = torch.histc(reference[2:3][reference[2:3].isfinite()], bins, low, high) * 12
    assert histogram_of(x[2:3].expand(12, 1), *arguments) == right.long().tolist()


@pytest.mark.parametrize(
    "arguments", [(0, 0, 1), (3, 1, 1), (3, NAN, 1), (3, -1, INF), (2**21, 0, 1)]
)
def test_histogram_refuses(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="ARGUMENT"):
        histogram_of(torch.ones(3), *arguments)
    with pytest.raises(TypeError):
        _core.compute_stats(torch.ones(3), histogram=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [*DTYPES, *FLOAT8, torch.int32, torch.complex64])
def test_exponents(dtype: torch.dtype) -> None:
    if dtype.itemsize == 1:
        x = torch.arange(256, dtype=torch.uint8).repeat(3).view(dtype)
    elif dtype.is_floating_point:
        generator = torch.Generator().manual_seed(SEED)
        raw = torch.randint(0, 256, (40_000,), dtype=torch.uint8, generator=generator)
        x = raw.view(dtype)
    else:
        x = (normal(5000) * 1000).to(dtype)
    wide = (x.abs() if dtype.is_complex else x).double().numpy()
    wide = wide[np.isfinite(wide) & (wide != 0)]
    bins = np.clip(np.frexp(wide)[1] - 1 + 160, 0, 319)
    found = _core.compute_stats(x, exponents=True)
    assert found["exponents_negative"] == np.bincount(bins[wide < 0], minlength=320).tolist()
    assert found["exponents_positive"] == np.bincount(bins[wide > 0], minlength=320).tolist()


def slow_hash(tensor: Tensor) -> int:
    """As docs/statistics.md says, with Python's integers."""
    prime, r, mask = 2**61 - 1, 0x0F58C6CD7A2C3E95, 2**64 - 1
    width = min(4, tensor.element_size())
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    total, power = 0, 1
    for i in range(0, len(raw), width):
        total += int.from_bytes(raw[i : i + width], "little") * power
        power = power * r % prime
    z = (total % prime + tensor.numel() * 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def hash_of(tensor: Tensor) -> int:
    return int(_core.compute_stats(tensor, content_hash=True)["content_hash"])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.int64, torch.complex128])
def test_hash_does_not_depend_on_strides(dtype: torch.dtype) -> None:
    seen = set()
    for layout, make in LAYOUTS.items():
        tensor = make()
        storage = torch.tensor(tensor.untyped_storage(), dtype=torch.uint8).view(torch.float64)
        other = torch.as_strided(
            storage.to(dtype), tensor.shape, tensor.stride(), tensor.storage_offset()
        )
        found = hash_of(other)
        assert found == slow_hash(other), layout
        assert found == hash_of(other.contiguous()), layout
        seen.add(found)
    assert len(seen) == len(LAYOUTS) - 1  # two are empty


def test_hash_sees_every_bit() -> None:
    x = normal(4999).float()
    right = hash_of(x)
    raw = x.view(torch.int32)
    for place, bit in [(0, 0), (63, 31), (64, 5), (2500, 22), (4096, 31), (4998, 0)]:
        raw[place] ^= 1 << bit if bit < 31 else -(2**31)
        assert hash_of(x) != right
        raw[place] ^= 1 << bit if bit < 31 else -(2**31)
    assert hash_of(x) == right
    assert hash_of(x.flip(0)) != right
    assert len({hash_of(torch.zeros(n)) for n in range(70)}) == 70
