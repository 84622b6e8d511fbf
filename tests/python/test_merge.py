"""Merging statistics of parts, through the C library, against NumPy in 80 bits."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from built import BUILD

SEED = 20261130
U = 2.0**-53
F64, F32 = 1, 2  # tensorprobe/tensor.h

Wide = np.ndarray[tuple[int], np.dtype[np.longdouble]]


class Stats(ctypes.Structure):
    """As tp_stats."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("count", "nan", "pos_inf", "neg_inf")),
        *((name, ctypes.c_uint64) for name in ("zeros", "subnormal")),
        *((name, ctypes.c_double) for name in ("min", "max", "finite_min", "finite_max")),
        ("abs_max", ctypes.c_double),
        ("abs_max_index", ctypes.c_uint64),
        *((name, ctypes.c_double) for name in ("sum", "sum_abs", "sum_sq", "m2")),
        ("sq_exp", ctypes.c_int64),
    ]


class Tensor(ctypes.Structure):
    """As tp_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("dtype", ctypes.c_uint32),
        ("ndim", ctypes.c_uint32),
    ]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(str(BUILD / "tools/libtensorprobe.so"))
    for name in ("norm", "mean", "std"):
        getattr(found, f"tp_stats_{name}").restype = ctypes.c_double
    return found


def compute(library: ctypes.CDLL, x: np.ndarray[tuple[int], np.dtype[np.floating]]) -> Stats:
    shape = (ctypes.c_int64 * 1)(len(x))
    dtype = F64 if x.dtype == np.float64 else F32
    tensor = Tensor(x.ctypes.data, shape, None, dtype, 1)
    stats = Stats()
    status = library.tp_stats_compute(
        ctypes.byref(tensor), ctypes.c_double(0.5), ctypes.byref(stats)
    )
    assert status == 0
    return stats


def merge(library: ctypes.CDLL, parts: list[Stats]) -> Stats:
    total = Stats.from_buffer_copy(parts[0])
    for part in parts[1:]:
        library.tp_stats_merge(ctypes.byref(total), ctypes.byref(part))
    return total


def check(library: ctypes.CDLL, found: Stats, x: Wide, parts: int) -> None:
    """The bounds of docs/statistics.md, for this many parts merged one after the other."""
    finite = x[np.isfinite(x)]
    h = 260 + math.ceil(math.log2(max(1, len(x) / 4096))) + 1 + parts - 1
    assert found.count == len(x)
    assert found.nan == np.isnan(x).sum()
    assert found.pos_inf == np.isposinf(x).sum()
    assert found.neg_inf == np.isneginf(x).sum()
    assert found.zeros == (np.abs(x) < 0.5).sum()
    assert (found.finite_min, found.finite_max) == (finite.min(), finite.max())
    assert found.abs_max == np.nanmax(np.abs(x))
    assert abs(x[found.abs_max_index]) == found.abs_max
    absolute = np.abs(finite).sum()
    assert abs(found.sum - finite.sum()) <= h * U * absolute
    assert abs(found.sum_abs - absolute) <= h * U * absolute
    scale = np.ldexp(np.longdouble(1), 2 * int(found.sq_exp))
    squares = (finite * finite).sum()
    assert abs(found.sum_sq * scale - squares) <= h * U * squares
    m2 = ((finite - finite.mean()) ** 2).sum()
    # In a block that is added up once, 1024 + 3 times h; merges add what the means' errors make.
    error = 1027 * h * U * m2 + 2 * h * U * np.abs(finite).mean() * np.ptp(finite) * len(finite)
    assert abs(found.m2 * scale - m2) <= error
    if len(finite) == len(x):
        norm = library.tp_stats_norm(ctypes.byref(found))
        assert abs(norm - np.sqrt(squares)) <= (h / 2 + 1) * U * np.sqrt(squares)
        std = library.tp_stats_std(ctypes.byref(found))
        assert std == pytest.approx(float(np.sqrt(m2 / len(x))), rel=float(error / m2) + 4 * U)


def draw(generator: np.random.Generator, kind: str, n: int) -> Wide:
    x = generator.standard_normal(n)
    if kind == "means":
        x = x * generator.uniform(0.01, 3) + generator.normal(0, 100)
    elif kind == "huge":
        x = np.ldexp(x, int(generator.choice([-900, 0, 900])))
    elif kind == "not finite" and n > 20:
        x[generator.integers(0, n, 3)] = generator.choice([np.nan, np.inf, -np.inf], 3)
    return x.astype(np.longdouble)


@pytest.mark.parametrize("kind", ["normal", "means", "huge", "not finite"])
@pytest.mark.parametrize("seed", range(6))
def test_parts(library: ctypes.CDLL, kind: str, seed: int) -> None:
    generator = np.random.default_rng(SEED + seed)
    double = kind == "huge" or seed % 2 == 0
    dtype: np.dtype[np.floating] = np.dtype(np.float64 if double else np.float32)
    sizes = [1, 30, 5000, 100_000] if seed < 3 else [3, 700, 9000]
    pieces = [
        draw(generator, kind, int(generator.integers(0, generator.choice(sizes)) + 1)).astype(dtype)
        for _ in range(int(generator.integers(2, 12)))
    ]
    pieces.insert(1, np.zeros(0, dtype))
    found = merge(library, [compute(library, piece) for piece in pieces])
    whole = np.concatenate(pieces).astype(np.longdouble)
    check(library, found, whole, len(pieces))


@pytest.mark.parametrize("copies", [2, 3, 7])
def test_replicated_parts_count_once(library: ctypes.CDLL, copies: int) -> None:
    """Each of some ranks has its own shard and all of them the same replicated one."""
    generator = np.random.default_rng(SEED)
    replicated = generator.standard_normal(5000) * 3 + 40
    shards = [generator.standard_normal(int(generator.integers(1, 9000))) for _ in range(copies)]
    once = merge(library, [compute(library, replicated)] * copies)
    assert library.tp_stats_weigh(ctypes.byref(once), ctypes.c_uint64(copies)) == 0
    found = merge(library, [compute(library, shard) for shard in shards] + [once])
    whole = np.concatenate([*shards, replicated]).astype(np.longdouble)
    check(library, found, whole, 2 * copies + 1)
