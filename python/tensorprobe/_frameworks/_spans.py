"""Which part of a parameter a DTensor's local tensor is."""

from __future__ import annotations

import sys
from typing import Any

from tensorprobe._frameworks import Span


def is_dtensor(tensor: Any) -> bool:
    """Whether this is a DTensor, without importing what makes them."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def span_of(tensor: Any, copies: int = 1, copy: int = 0) -> Span | None:
    """The span of what this process holds of the tensor; copies of all of it multiply.

    None: the process isn't in the tensor's mesh, or its part is empty.
    """
    if not is_dtensor(tensor):
        return Span("whole", (), copies, copy)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    for place, size, at in zip(tensor.placements, mesh.shape, coordinate, strict=True):
        if (place.is_replicate() or place.is_partial()) and size > 1:
            copies, copy = copies * size, copy * size + at
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    ranges = tuple(zip(offset, shape, tensor.shape, strict=True))
    if not all(shape) and all(tensor.shape):
        return None
    if all(length == full for _, length, full in ranges):
        return Span("whole", (), copies, copy)
    return Span("box", ranges, copies, copy)
