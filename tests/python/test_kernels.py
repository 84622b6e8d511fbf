"""The scalar kernels, which specify all others, against NumPy in 80-bit arithmetic.

`test_kernels --write` draws the tensors (any dtype, layout and content, adversarial ones too) and
writes them with what the specification finds; the bounds are those of docs/statistics.md.
"""

from __future__ import annotations

import math
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import specification
from built import BUILD
from conftest import SEED
from tensorprobe import _core

ROOT = Path(__file__).parents[2]
PROGRAM = BUILD / "tests" / "kernels" / "test_kernels"
CASES = 50_000 if "TP_SOAK" in os.environ else 8000

Array = np.ndarray[Any, np.dtype[Any]]

NAMES = "none f64 f32 f16 bf16 e4m3fn e5m2 e4m3fnuz e5m2fnuz e8m0fnu e2m1 i1 i2 i4 i8 u1 u2 u4 u8"
NAMES += " bool c64 c128"
DTYPES = NAMES.split()
NUMPY = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "u2", "c64": "c8", "c128": "c16"}
NORMAL = {"f64": -1022, "f32": -126, "f16": -14, "bf16": -126, "c64": -126, "c128": -1022}
NORMAL |= {"e4m3fn": -6, "e5m2": -14, "e4m3fnuz": -7, "e5m2fnuz": -15, "e8m0fnu": -127, "e2m1": 0}
FIELDS = "count nan pos_inf neg_inf zeros subnormal min max finite_min finite_max abs_max"
FIELDS += " abs_max_index sum sum_abs sum_sq m2 sq_exp"
STATS = struct.Struct("<6Q5dQ4dq")
U = 2.0**-53


def small_floats(exponent_bits: int, fraction_bits: int, bias: int) -> list[float]:
    """Every code of a format whose numbers are all finite: OCP 8-bit Floating Point, 5.1."""
    values = []
    for code in range(2 ** (1 + exponent_bits + fraction_bits)):
        sign, rest = divmod(code, 2 ** (exponent_bits + fraction_bits))
        exponent, fraction = divmod(rest, 2**fraction_bits)
        significand = Fraction(fraction, 2**fraction_bits) + (exponent > 0)
        value = significand * Fraction(2) ** (max(exponent, 1) - bias)
        values.append(float(-value if sign else value))
    return values


def tables() -> dict[str, Array]:
    """What each byte of the small types stands for (for e2m1: each half byte)."""
    e4m3fn, e5m2 = small_floats(4, 3, 7), small_floats(5, 2, 15)
    e4m3fnuz, e5m2fnuz = small_floats(4, 3, 8), small_floats(5, 2, 16)
    for sign in (0x00, 0x80):
        e4m3fn[sign + 0x7F] = math.nan
        e5m2[sign + 0x7C] = -math.inf if sign else math.inf
        e5m2[sign + 0x7D : sign + 0x80] = [math.nan] * 3
    e4m3fnuz[0x80] = e5m2fnuz[0x80] = math.nan
    found = {
        "e4m3fn": e4m3fn,
        "e5m2": e5m2,
        "e4m3fnuz": e4m3fnuz,
        "e5m2fnuz": e5m2fnuz,
        "e8m0fnu": [2.0 ** (code - 127) for code in range(255)] + [math.nan],
        "e2m1": small_floats(2, 1, 1),
        "i1": [code - 256 * (code > 127) for code in range(256)],
        "u1": list(range(256)),
        "bool": [0] + [1] * 255,
    }
    return {name: np.array(values, np.float64) for name, values in found.items()}


TABLES = tables()


@dataclass
class Case:
    name: str
    shape: list[int]
    strides: list[int]
    start: int  # bytes
    raw: bytes
    eps: float
    range: tuple[int, float, float]
    stats: dict[str, Any]
    hash: int
    bins: list[int]
    exponents: Array  # negative, positive


def read_cases(path: Path) -> Iterator[Case]:
    with path.open("rb") as file:
        while head := file.read(128):
            dtype, ndim, size, bins, start = struct.unpack("<5Q", head[:40])
            eps, low, high = struct.unpack("<3d", head[40:64])
            dims = struct.unpack("<8q", head[64:])
            raw = file.read(size)
            stats = dict(zip(FIELDS.split(), STATS.unpack(file.read(STATS.size)), strict=True))
            (content,) = struct.unpack("<Q", file.read(8))
            histogram = list(struct.unpack(f"<{bins}Q", file.read(8 * bins)))
            exponents = np.frombuffer(file.read(16 * 320), "<u8").reshape(2, 320)
            shape, strides = list(dims[:ndim]), list(dims[4 : 4 + ndim])
            name = DTYPES[dtype]
            limits = (bins, low, high)
            yield Case(
                name, shape, strides, start, raw, eps, limits, stats, content, histogram, exponents
            )


def modulus(z: Array) -> Array:
    """As docs/statistics.md has it, to the bit; checked against 80 bits here."""
    parts = np.abs(np.stack([z.real, z.imag]).astype(np.float64))
    larger = parts.max(axis=0)
    power = np.zeros(larger.shape, np.int64)
    if z.dtype == np.complex128:
        power[(larger > 2.0**500) & (larger < math.inf)] = -600
        power[larger < 2.0**-400] = 600
    a, b = np.ldexp(parts, power)
    found: Array = np.ldexp(np.sqrt(a * a + b * b), -power)
    wide = np.abs(z.astype(np.clongdouble))
    finite = np.isfinite(found) & (found > 0)
    assert (np.abs(found[finite] - wide[finite]) <= 3 * U * wide[finite] + 5e-324).all()
    assert (np.isnan(found) == (np.isnan(z.real) | np.isnan(z.imag))).all()
    return found


def values_of(case: Case) -> Array:
    """The elements in memory, as f64."""
    if case.name in TABLES:
        codes = np.frombuffer(case.raw, np.uint8)
        return codes if case.name == "e2m1" else TABLES[case.name][codes]
    x = np.frombuffer(case.raw, "<" + NUMPY.get(case.name, case.name))
    if case.name == "bf16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return modulus(x) if x.dtype.kind == "c" else x.astype(np.float64)


def itemsize(name: str) -> int:
    return 1 if name in TABLES else np.dtype(NUMPY.get(name, name)).itemsize


def strided(x: Array, case: Case) -> Array:
    """The tensor as an array with its shape."""
    first = case.start // itemsize(case.name)
    steps = [s * x.itemsize for s in case.strides]
    return np.lib.stride_tricks.as_strided(x[first:], case.shape, steps, writeable=False)


def traversal(case: Case) -> Array:
    """Row-major indices in the order in which they are read, expanded dimensions left out."""
    index = np.arange(math.prod(case.shape)).reshape(case.shape)
    kept = [d for d, s in enumerate(case.strides) if s != 0 and case.shape[d] != 1]
    for d, stride in enumerate(case.strides):
        if stride == 0 or case.shape[d] == 1:
            index = index.take([0], axis=d)
    ordered = sorted(kept, key=lambda d: -case.strides[d])
    reach = 0
    for d in reversed(ordered):
        if case.strides[d] < reach + 1:
            ordered = kept
            break
        reach += (case.shape[d] - 1) * case.strides[d]
    rest = [d for d in range(len(case.shape)) if d not in ordered]
    return index.transpose(rest + ordered).reshape(-1)


def check_exact(case: Case, x: Array) -> None:
    stats = case.stats
    finite = x[np.isfinite(x)]
    known = np.abs(x[~np.isnan(x)])
    empty_or_nan = x.size == 0 or bool(np.isnan(x).any())
    normal = 2.0 ** NORMAL[case.name] if case.name in NORMAL else 0.0
    with np.errstate(invalid="ignore"):
        right = {
            "count": x.size,
            "nan": np.isnan(x).sum(),
            "pos_inf": np.isposinf(x).sum(),
            "neg_inf": np.isneginf(x).sum(),
            "zeros": (np.abs(x) < case.eps).sum(),
            "subnormal": ((x != 0) & (np.abs(x) < normal)).sum(),
            "min": math.nan if empty_or_nan else x.min(),
            "max": math.nan if empty_or_nan else x.max(),
            "finite_min": finite.min() if finite.size else math.nan,
            "finite_max": finite.max() if finite.size else math.nan,
            "abs_max": known.max() if known.size else math.nan,
        }
    for field, value in right.items():
        np.testing.assert_equal(stats[field], value + 0.0, err_msg=field)
    if not known.size:
        assert stats["abs_max_index"] == 2**64 - 1
        return
    if case.name == "e2m1":  # two elements a place
        order = (2 * traversal(case)[:, None] + [0, 1]).reshape(-1)
    else:
        order = traversal(case)
    largest = np.flatnonzero(np.abs(x[order]) == right["abs_max"])
    assert stats["abs_max_index"] == order[largest[0]]


def check_sums(case: Case, x: Array) -> None:
    stats = case.stats
    wide = x[np.isfinite(x)].astype(np.longdouble)
    halves = case.name in ("f16", "bf16")
    blocks = max(1, math.prod(case.shape) // 4096 + 1)
    hu = (262 + math.ceil(math.log2(blocks))) * U
    h = hu + (3 * 2.0**-24 if halves else 0.0)
    total_abs = np.abs(wide).sum()
    least = 2.0**-1074
    with np.errstate(over="ignore"):
        for field, right in (("sum", wide.sum()), ("sum_abs", total_abs)):
            if math.isinf(stats[field]):  # no sum may leave the range earlier than the bound says
                assert (right > 0) == (stats[field] > 0), field
                assert math.isinf(float(abs(right) + h * total_abs)), field
            else:
                assert abs(stats[field] - right) <= h * total_abs + least, field
    scale = np.ldexp(np.longdouble(1), 2 * stats["sq_exp"])
    squares = (wide * wide).sum()
    assert abs(stats["sum_sq"] * scale - squares) <= h * squares + least * scale
    assert stats["sq_exp"] in ((-600, 0, 600) if case.name in ("f64", "c128") else (0,))
    if wide.size == 0 or (wide == wide[0]).all():
        assert stats["m2"] == 0.0
        return
    mean = wide.sum() / wide.size
    m2 = ((wide - mean) ** 2).sum()
    merging = 4 * h * total_abs * (wide.max() - wide.min())
    error = (9e-7 if halves else 1027 * h) * m2 + merging + wide.size * (h * mean) ** 2
    assert abs(stats["m2"] * scale - m2) <= error + least * scale


def check_bits(case: Case, x: Array) -> None:
    """The same 64 bits as a program that was written after the documentation."""
    weight = math.prod(n for n, stride in zip(case.shape, case.strides, strict=True) if stride == 0)
    order = traversal(case) if x.size else np.zeros(0, np.int64)
    if case.name in TABLES:
        codes = strided(np.frombuffer(case.raw, np.uint8), case).reshape(-1)[order]
        if case.name == "e2m1":
            codes = np.concatenate([codes & 15, codes >> 4])
        part = specification.counted(codes, TABLES[case.name])
    else:
        read = x[order]
        blocks = range(0, len(read), specification.BLOCK)
        part = specification.tree(
            [specification.block(read[i : i + specification.BLOCK], case.name) for i in blocks]
        )
    finite = x[np.isfinite(x)]
    constant = bool(finite.size > 0 and finite.min() == finite.max())
    for field, right in specification.sums(part, weight, constant).items():
        assert case.stats[field] == right, field


def check_extras(case: Case, x: Array) -> None:
    bins, low, high = case.range
    wide = case.name in ("f64", "c64", "c128") or case.name in ("i2", "i4", "i8", "u2", "u4", "u8")
    kind = "f8" if wide else "f4"
    y = x[(x >= low) & (x <= high)].astype(kind)
    first, last, count = np.array([low, high, bins], kind)
    y = y[(y >= first) & (y <= last)]
    place = ((y - first) * count / (last - first)).astype(np.int64)
    right = np.bincount(np.minimum(place, bins - 1), minlength=bins)
    assert case.bins == right.tolist()
    finite = x[np.isfinite(x) & (x != 0)]
    exponent = np.clip(np.frexp(finite)[1] - 1 + 160, 0, 319)
    for sign, found in ((finite < 0, case.exponents[0]), (finite > 0, case.exponents[1])):
        assert (np.bincount(exponent[sign], minlength=320) == found).all()


PRIME, R, MASK = 2**61 - 1, 0x0F58C6CD7A2C3E95, 2**64 - 1


def mixed(total: int, count: int) -> int:
    z = (total % PRIME + count * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def check_hash(case: Case) -> None:
    size = itemsize(case.name)
    elements = np.frombuffer(case.raw, np.dtype((np.void, size)))
    row_major = strided(elements, case).tobytes()
    total, power = 0, 1
    for word in np.frombuffer(row_major, f"<u{min(size, 4)}").tolist():
        total += word * power
        power = power * R % PRIME
    assert case.hash == mixed(total, math.prod(case.shape))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is what is looked for
def test_the_specification_against_numpy(tmp_path: Path) -> None:
    path = tmp_path / "cases"
    environment = {**os.environ, "TP_TEST_SEED": str(SEED), "TP_TEST_CASES": str(CASES)}
    subprocess.run([PROGRAM, "--write", path], check=True, env=environment)
    seen, large = set(), 0
    for number, case in enumerate(read_cases(path)):
        x = strided(values_of(case), case).reshape(-1)
        if case.name == "e2m1":
            x = TABLES["e2m1"][np.stack([x & 15, x >> 4], axis=-1).reshape(-1)]
        try:
            large += len(case.raw) > 2**20
            check_exact(case, x)
            check_sums(case, x)
            check_bits(case, x)
            check_extras(case, x)
            if len(case.raw) <= 4000:
                check_hash(case)
        except AssertionError as error:
            error.add_note(f"case {number}: {case.name} {case.shape} {case.strides} {case.stats}")
            raise
        seen.add(case.name)
    assert number + 1 == CASES
    assert large >= 15
    assert seen == set(DTYPES[1:])


def test_the_table_of_small_floats_is_that_of_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu"):
        theirs = codes.view(getattr(torch, f"float8_{name}")).double().numpy()
        np.testing.assert_array_equal(TABLES[name], theirs)


@pytest.mark.parametrize("byte", [1, 0x5A])
def test_hash_of_more_than_four_billion_elements(byte: int) -> None:
    """By the formula of the geometric series; expanded, so that one element is read."""
    for shape in ((3, 2**32 + 5), (2**20, 2**20), (1, 2**32)):
        n = math.prod(shape)
        x = torch.tensor([byte], dtype=torch.uint8).expand(shape)
        series = (pow(R, n, PRIME) - 1) * pow(R - 1, -1, PRIME) % PRIME
        found = _core.compute_stats(x, content_hash=True)
        assert found["content_hash"] == mixed(byte * series, n)
        assert (found["count"], found["sum"]) == (n, float(byte * n))
