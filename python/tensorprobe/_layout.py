"""Where torch keeps what a tensor is: found by looking, and believed only if it is always there.

DLPack's table gives a tensor's memory, shape and strides in some forty nanoseconds, which is a
third of what a hook takes for a small tensor. The same lies in torch's own objects, at places that
differ from build to build. Here tensors are made whose every property is known, and each property
is looked for in their memory. The extension compares what it reads so with what DLPack says of each
of them before it uses any of it, and later looks only into tensors of the same kind: strided ones
in the CPU's memory, whose set of dispatch keys is that of the tensors here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

OBJECT, IMPLEMENTATION, STORAGE = 48, 176, 64  # bytes that are looked through: all are larger
DIMS = 5  # with more of them the shape is kept elsewhere

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
    torch.complex64,
)


class _UnknownPlaceError(Exception):
    """A property is nowhere, or in several places."""


def _read(address: int, kind: type[Any]) -> int:
    return int(kind.from_address(address).value)


def _place(size: int, kind: type[Any], has: Callable[[int], bool]) -> int:
    """Find the only offset below size at which this holds."""
    step = ctypes.sizeof(kind)
    found = [at for at in range(0, size - step + 1, step) if has(at)]
    if len(found) != 1:
        raise _UnknownPlaceError
    return found[0]


def _probes() -> list[Tensor]:
    """Tensors that differ in everything: shapes, strides, offsets, dtypes, memory."""
    made = []
    for dims in range(DIMS + 1):
        shape = [3 + dims - i for i in range(dims)]
        whole = torch.zeros([*shape, 11], dtype=torch.float32)
        made += [whole.select(-1, 5 + dims)]
        made += [torch.zeros(shape).permute(tuple(reversed(range(dims))))]
    for number, dtype in enumerate(DTYPES):
        made += [torch.zeros(40 + number, dtype=dtype)[2 * number + 13 :] for _ in range(2)]
    made += [torch.frombuffer(bytearray(64), dtype=torch.float32), torch.zeros(0)]
    made += [torch.zeros(3, 4, requires_grad=True), torch.nn.Parameter(torch.zeros(7, 2))]
    return [made[-1].relu(), torch.zeros(1).expand(6, 2), *made]


def _dispatch_keys(tensor: Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _find(probes: list[Tensor]) -> tuple[int, ...]:
    word = ctypes.c_uint64
    impls = [probe._cdata for probe in probes]
    stores = [probe.untyped_storage() for probe in probes]
    pairs = list(zip(impls, probes, strict=True))

    def among(kind: type[Any], value: Callable[[Tensor], int]) -> int:
        return _place(
            IMPLEMENTATION,
            kind,
            lambda at: all(_read(impl + at, kind) == value(probe) for impl, probe in pairs),
        )

    def dims(values: Callable[[Tensor], tuple[int, ...]]) -> int:
        def are_there(at: int) -> bool:
            return all(
                at + 8 * probe.dim() <= IMPLEMENTATION
                and all(_read(impl + at + 8 * i, word) == v for i, v in enumerate(values(probe)))
                for impl, probe in pairs
            )

        return _place(IMPLEMENTATION, word, are_there)

    def tells_dtypes(at: int) -> bool:
        seen = {(probe.dtype, _read(impl + at, ctypes.c_uint16)) for impl, probe in pairs}
        return len(seen) == len({d for d, _ in seen}) == len({v for _, v in seen})

    return (
        _place(
            OBJECT,
            word,
            lambda at: all(_read(id(probe) + at, word) == probe._cdata for probe in probes),
        ),
        among(word, _dispatch_keys),
        _place(IMPLEMENTATION, ctypes.c_uint16, tells_dtypes),
        among(word, lambda probe: probe.dim()),
        dims(lambda probe: tuple(probe.shape)),
        dims(lambda probe: probe.stride()),
        among(word, lambda probe: int(probe.untyped_storage()._cdata)),
        among(word, lambda probe: int(probe.storage_offset())),
        _place(
            STORAGE,
            word,
            lambda at: all(_read(s._cdata + at, word) == s.data_ptr() for s in stores),
        ),
    )


def find() -> tuple[tuple[int, ...], int, list[Tensor]] | None:
    """Nine offsets (see tensor_layout.h), the dispatch keys, and tensors to try them on.

    None: this torch keeps its tensors in another way.
    """
    if not hasattr(torch._C.DispatchKeySet, "raw_repr"):
        return None  # an older torch, without DLPack's table, too
    with torch.inference_mode(False), torch.enable_grad():
        probes = _probes()
    keys = {_dispatch_keys(probe) for probe in probes}
    others = [torch.zeros(2, 2, dtype=torch.complex64).conj().imag, torch.zeros(2, device="meta")]
    if len(keys) != 1 or keys & {_dispatch_keys(other) for other in others}:
        return None
    try:
        return _find(probes), keys.pop(), probes
    except _UnknownPlaceError:
        return None
