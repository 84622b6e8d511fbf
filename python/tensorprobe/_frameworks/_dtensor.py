"""DTensor parameters of ``parallelize_module`` and its like: each process has its local tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorprobe._frameworks import Adapter, Row, Span
from tensorprobe._frameworks._spans import is_dtensor, span_of

if TYPE_CHECKING:
    import torch


def adapt(chunks: Sequence[torch.nn.Module], optimizer: Any) -> Adapter | None:
    """Return the adapter of models that have such parameters."""
    for chunk in chunks:
        for parameter in chunk.parameters():
            if is_dtensor(parameter):
                return TensorParallel(parameter)
    return None


class TensorParallel(Adapter):
    """Gradients are right as autograd leaves them: nothing reduces them over processes.

    Parameters that are no DTensors are the same on each process of the mesh.
    """

    framework = "DTensor"

    def __init__(self, first: Any) -> None:
        mesh = first.device_mesh
        coordinate = mesh.get_coordinate() or [0] * len(mesh.shape)
        self._copies, self._copy = 1, 0
        for size, at in zip(mesh.shape, coordinate, strict=True):
            self._copies, self._copy = self._copies * size, self._copy * size + at

    def span(self, row: Row) -> Span | None:
        """Return the box of the local tensor; None: it is empty."""
        if is_dtensor(row.parameter):
            return span_of(row.parameter)
        return Span("whole", (), self._copies, self._copy)
