"""The statistics of docs/statistics.md by torch operations, wherever a tensor lives.

The extension calls this for tensors that it can't read in place, and for all of them under
`"device_path": "torch"`. Everything is computed where the tensor is and copied once: three passes
over chunks, no synchronisation before the copy. Counts, extremes and the index are those of the
kernels; the sums are within the bounds of the documentation, but not the same bits.
"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

EXPONENT_FIRST, EXPONENT_BINS = -160, 320
CHUNK = 1 << 22  # elements: bounds what the passes need besides the tensor
NO_INDEX = 2**64 - 1

# Squares of magnitudes between these stay within f64's range; beyond, 2**600 is divided out.
LARGEST, SMALLEST, SCALE_EXP = 2.0**450, 2.0**-450, 600

FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)  # from PyTorch 2.8 on
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _wide(device: torch.device) -> torch.dtype:
    """Apple's devices have no f64: the sums there are those of f32."""
    return torch.float32 if device.type == "mps" else torch.float64


def _smallest_normal(dtype: torch.dtype) -> float:
    if dtype == FLOAT4:
        return 1.0
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).tiny
    return 0.0


def _order(shape: list[int], strides: list[int]) -> list[int]:
    """Return the dimensions in the order of the traversal, without those of one place."""
    kept = [d for d, stride in enumerate(strides) if stride != 0 and shape[d] != 1]
    by_stride = sorted(kept, key=lambda d: -strides[d])
    extent = 1
    for d in reversed(by_stride):
        if strides[d] < extent:
            return kept
        extent += strides[d] * (shape[d] - 1)
    return by_stride


def _modulus(z: Tensor, wide: torch.dtype) -> Tensor:
    parts = torch.view_as_real(z).to(wide).abs()
    if z.dtype != torch.complex128:
        return parts.square().sum(dim=-1).sqrt()
    larger = parts.amax(dim=-1)
    scale = torch.ones_like(larger)
    scale.masked_fill_((larger > 2.0**500) & (larger < math.inf), 2.0**-600)
    scale.masked_fill_(larger < 2.0**-400, 2.0**600)
    return (parts * scale.unsqueeze(-1)).square().sum(dim=-1).sqrt() / scale


def _values(x: Tensor, wide: torch.dtype) -> Tensor:
    """Return one dimension of elements as numbers that torch can calculate with."""
    if x.dtype == FLOAT4:
        raw = x.view(torch.uint8)
        codes = torch.stack([raw & 15, raw >> 4], dim=-1).flatten().long()
        return torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=wide, device=x.device)[codes]
    return _modulus(x, wide) if x.is_complex() else x.to(wide)


def _chunk_counts(y: Tensor, eps: float, normal: float) -> tuple[Tensor, Tensor]:
    """Return NaN, +Inf, -Inf, zeros, subnormal, place of the largest; min, max, largest |x|."""
    finite, nan, size = y.isfinite(), y.isnan(), y.abs()
    largest, place = size.masked_fill(nan, -1.0).max(dim=0)
    counts = [
        nan.sum(),
        (y == math.inf).sum(),
        (y == -math.inf).sum(),
        (size < eps).sum(),
        ((size > 0) & (size < normal)).sum(),
        place,
    ]
    low = y.masked_fill(~finite, math.inf).amin()
    high = y.masked_fill(~finite, -math.inf).amax()
    return torch.stack(counts), torch.stack([low, high, largest])


def _measure(flat: Tensor, eps: float) -> tuple[list[list[int]], list[list[float]], list[float]]:
    """Return the counts and extremes of each chunk, and sum, sum_abs, sum_sq, Σd², Σd, scale."""
    wide = _wide(flat.device)
    normal = _smallest_normal(flat.dtype)
    chunks = flat.split(CHUNK)  # type: ignore[no-untyped-call]
    found = [_chunk_counts(_values(chunk, wide), eps, normal) for chunk in chunks]
    counts = torch.stack([c for c, _ in found])
    extremes = torch.stack([e for _, e in found])

    scale = torch.ones((), dtype=wide, device=flat.device)
    if flat.dtype in (torch.float64, torch.complex128):
        largest = torch.maximum(-extremes[:, 0].amin(), extremes[:, 1].amax())
        scale.masked_fill_(largest > LARGEST, 2.0**-SCALE_EXP)
        scale.masked_fill_((largest < SMALLEST) & (largest > 0), 2.0**SCALE_EXP)

    def scaled(chunk: Tensor, mean: Tensor | float) -> Tensor:
        y = _values(chunk, wide)
        return (y * scale - mean).masked_fill(~y.isfinite(), 0.0)

    sums = torch.zeros(3, dtype=wide, device=flat.device)
    for chunk in chunks:
        y = scaled(chunk, 0.0)
        sums += torch.stack([y.sum(), y.abs().sum(), y.square().sum()])
    elements = flat.numel() * (2 if flat.dtype == FLOAT4 else 1)
    mean = sums[0] / (elements - counts[:, :3].sum()).clamp(min=1)
    spread = torch.zeros(2, dtype=wide, device=flat.device)
    for chunk in chunks:
        d = scaled(chunk, mean)
        spread += torch.stack([d.square().sum(), d.sum()])

    numbers = torch.cat([extremes.flatten(), sums, spread, scale.reshape(1)])
    as_bits = torch.int64 if wide == torch.float64 else torch.int32
    bits = torch.cat([counts.flatten(), numbers.view(as_bits).long()]).tolist()  # the one copy
    whole, rest, k = bits[: counts.numel()], bits[counts.numel() :], len(chunks)
    integer, real = ("q", "d") if wide == torch.float64 else ("i", "f")
    floats = struct.unpack(f"{len(rest)}{real}", struct.pack(f"{len(rest)}{integer}", *rest))
    return (
        [whole[6 * i : 6 * i + 6] for i in range(k)],
        [list(floats[3 * i : 3 * i + 3]) for i in range(k)],
        list(floats[3 * k :]),
    )


def _row_major(place: int, order: list[int], shape: list[int]) -> int:
    at = [0] * len(shape)
    for d in reversed(order):
        place, at[d] = divmod(place, shape[d])
    index = 0
    for d, size in enumerate(shape):
        index = index * size + at[d]
    return index


Fields = tuple[int | float, ...]


def _compute(x: Tensor, eps: float) -> Fields:
    nan = math.nan
    if x.numel() == 0:
        return (0, 0, 0, 0, 0, 0, nan, nan, nan, nan, nan, NO_INDEX, 0.0, 0.0, 0.0, 0.0, 0)
    shape, strides = list(x.shape), list(x.stride())
    order = _order(shape, strides)
    weight = math.prod(s for s, stride in zip(shape, strides, strict=True) if stride == 0)
    for d, stride in enumerate(strides):
        x = x.narrow(d, 0, 1) if stride == 0 else x
    rest = [d for d in range(len(shape)) if d not in order]
    if x.dtype == FLOAT4:
        x = x.view(torch.uint8)  # which torch can copy
        flat = x.permute(rest + order).reshape(-1).view(FLOAT4)
    else:
        flat = x.resolve_conj().resolve_neg().permute(rest + order).reshape(-1)
    counts, extremes, sums = _measure(flat, eps)

    per = 2 if flat.dtype == FLOAT4 else 1
    total = flat.numel() * per
    nans, pos_inf, neg_inf, zeros, subnormal = (sum(c[i] for c in counts) for i in range(5))
    finite = total - nans - pos_inf - neg_inf
    low, high = min(e[0] for e in extremes), max(e[1] for e in extremes)
    largest = max(e[2] for e in extremes)
    index = NO_INDEX
    if largest >= 0:
        chunk = next(i for i, e in enumerate(extremes) if e[2] == largest)
        place = chunk * CHUNK * per + counts[chunk][5]
        index = _row_major(place // per, order, shape) * per + place % per
    sum_x, sum_abs, sum_sq, squares, first, scale = sums
    m2 = max(squares - first * first / max(1, finite), 0.0) if low != high else 0.0
    exp = round(-math.log2(scale))
    return (
        total * weight,
        nans * weight,
        pos_inf * weight,
        neg_inf * weight,
        zeros * weight,
        subnormal * weight,
        nan if nans else -math.inf if neg_inf else low + 0.0,
        nan if nans else math.inf if pos_inf else high + 0.0,
        low + 0.0 if finite else nan,
        high + 0.0 if finite else nan,
        largest if largest >= 0 else nan,
        index,
        sum_x * weight / scale,
        sum_abs * weight / scale,
        sum_sq * weight,
        m2 * weight,
        exp,
    )


def compute(tensor: Tensor, eps: float) -> Fields:
    """Return the fields of `tp_stats` in their order."""
    with torch.no_grad():
        return _compute(tensor.detach(), eps)


def _exponents(x: Tensor) -> list[int]:
    repeats = math.prod(
        size for size, stride in zip(x.shape, x.stride(), strict=True) if stride == 0
    )
    for d, stride in enumerate(x.stride()):
        x = x.narrow(d, 0, 1) if stride == 0 else x
    if x.dtype == FLOAT4:
        flat = x.view(torch.uint8).reshape(-1).view(FLOAT4)
    else:
        flat = x.resolve_conj().resolve_neg().reshape(-1)
    wide = _wide(x.device)
    counts = torch.zeros(EXPONENT_BINS, dtype=torch.int64, device=x.device)
    for chunk in flat.split(CHUNK):  # type: ignore[no-untyped-call]
        y = _values(chunk, wide)
        y = y[y.isfinite() & (y != 0)]
        bins = torch.frexp(y).exponent.long() - 1 - EXPONENT_FIRST
        counts += torch.bincount(bins.clamp(0, EXPONENT_BINS - 1), minlength=EXPONENT_BINS)
    return [count * repeats for count in counts.tolist()]


def read(tensor: Tensor, eps: float, exponents: int) -> tuple[Fields, list[int] | None]:
    """Return the fields, and how many elements have which exponent where that is asked for."""
    fields = compute(tensor, eps)
    with torch.no_grad():
        return fields, _exponents(tensor.detach()) if exponents else None
