"""docs/statistics.md once more, in NumPy: the sums of a tensor, to the bit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 4096
HALVES = ("f16", "bf16")


@dataclass
class Part:
    n: int = 0
    s: float = 0.0
    a: float = 0.0
    q: float = 0.0
    m2: float = 0.0
    e: int = 0


def lane_sum(x: Array) -> float:
    """Sixteen lanes, each in the order of the elements; then the lanes in pairs."""
    rows = np.concatenate([np.zeros(16), x, np.zeros(-len(x) % 16)]).reshape(-1, 16)
    lane = np.cumsum(rows, axis=0)[-1]  # adds one row after the other
    for half in (8, 4, 2, 1):
        lane = lane[:half] + lane[half:]
    return float(lane[0])


def half_sum(x: Array, name: str) -> float:
    """Eight elements are added in f32 before they go to a lane."""
    groups = np.concatenate([x, np.zeros(-len(x) % 128, np.float32)]).reshape(-1, 4, 32)
    if name == "f16":
        even, odd = groups[:, :, :16], groups[:, :, 16:]
    else:
        even, odd = groups[:, :, ::2], groups[:, :, 1::2]
    pairs = even + odd
    eight = (pairs[:, 0] + pairs[:, 1]) + (pairs[:, 2] + pairs[:, 3])
    assert eight.dtype == np.float32
    return lane_sum(eight.astype(np.float64).reshape(-1))


def block(x: Array, name: str) -> Part:
    finite = np.isfinite(x)
    n = int(finite.sum())
    if n == 0:
        return Part()
    y = np.where(finite, x, 0.0)
    size = np.abs(y)
    largest = float(size.max())
    scale, e = 1.0, 0
    if name not in ("f32", *HALVES):
        if largest > 2.0**450:
            scale, e = 2.0**-600, 600
        elif 0.0 < largest < 2.0**-450:
            scale, e = 2.0**600, -600
    if name in HALVES and n == len(x) and (largest == 0 or 2.0**-50 <= largest <= 2.0**50):
        f = y.astype(np.float32)
        s, a, q = (half_sum(z, name) for z in (f, np.abs(f), f * f))
    else:
        z = y * scale
        s, a, q = lane_sum(z), lane_sum(size * scale), lane_sum(z * z)
    part = Part(n, s, a, q, 0.0, e)
    kept = x[finite]
    if kept.min() == kept.max():
        return part
    part.m2 = q - s * s / n
    if part.m2 < q * (0.5 if name in HALVES else 1.0 / 1024.0):
        d = np.where(finite, y * scale - s / n, 0.0)
        first, second = lane_sum(d), lane_sum(d * d)
        part.m2 = max(second - first * first / n, 0.0)
    return part


def to_exponent(part: Part, e: int) -> Part:
    if part.q == 0.0 or part.e == e:
        return Part(part.n, part.s, part.a, part.q, part.m2, e)
    by = part.e - e
    s, a = math.ldexp(part.s, by), math.ldexp(part.a, by)
    return Part(part.n, s, a, math.ldexp(part.q, 2 * by), math.ldexp(part.m2, 2 * by), e)


def merge(x: Part, y: Part) -> Part:
    if x.n == 0 or y.n == 0:
        return x if y.n == 0 else y
    if x.e != y.e:
        e = y.e if x.q == 0.0 else x.e if y.q == 0.0 else max(x.e, y.e)
        x, y = to_exponent(x, e), to_exponent(y, e)
    delta = y.s / y.n - x.s / x.n
    nx, ny = float(x.n), float(y.n)
    m2 = (x.m2 + y.m2) + (delta * delta) * (nx * (ny / (nx + ny)))
    return Part(x.n + y.n, x.s + y.s, x.a + y.a, x.q + y.q, m2, x.e)


def tree(parts: list[Part]) -> Part:
    levels: list[Part | None] = []
    for part in parts:
        carry, level = part, 0
        while level < len(levels) and (there := levels[level]) is not None:
            carry, levels[level] = merge(there, carry), None
            level += 1
        levels[level:] = [carry, *levels[level + 1 :]]
    total = Part()
    for there in levels:
        if there is not None:
            total = merge(there, total)
    return total


def counted(codes: Array, values: Array) -> Part:
    """Types of 8 bits and less: from how often each code occurs."""
    part = Part()
    occurrences = np.bincount(codes, minlength=len(values)).tolist()
    here = [(float(c), float(v)) for c, v in zip(occurrences, values, strict=True)]
    here = [(c, v) for c, v in here if c > 0 and math.isfinite(v)]
    for c, v in here:
        part.n += int(c)
        part.s += c * v
        part.a += c * abs(v)
        part.q += c * (v * v)
    if part.n == 0:
        return part
    mean, first, second = part.s / part.n, 0.0, 0.0
    for c, v in here:
        first += c * (v - mean)
        second += c * ((v - mean) * (v - mean))
    part.m2 = max(second - first * first / part.n, 0.0)
    return part


def sums(part: Part, weight: int, constant: bool) -> dict[str, float]:
    """As the fields of tp_stats. constant: the finite elements are all the same."""
    times = float(weight)

    def unscaled(x: float) -> float:
        try:
            return math.ldexp(x, part.e)
        except OverflowError:
            return math.copysign(math.inf, x)

    return {
        "sum": unscaled(part.s * times),
        "sum_abs": unscaled(part.a * times),
        "sum_sq": part.q * times,
        "m2": 0.0 if constant else part.m2 * times,
        "sq_exp": part.e,
    }
