"""Parts of tensors as adapters give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorprobe._frameworks import Row


def cut(tensor: Any, part: tuple[int, int] | None) -> Any:
    """Return these elements of the flat tensor, as a view; None: all of it, as it is."""
    if tensor is None or part is None:
        return tensor
    start, end = part
    return tensor.detach().reshape(-1)[start:end]


def unscaled(gradient: Any, scale: float) -> Any:
    """Return the gradient of a loss that was multiplied by scale, or what makes it.

    In f32: in 16 bits it might vanish.
    """
    if gradient is None or scale == 1.0:
        return gradient
    make: Callable[[], Any] = lambda: gradient.detach().float().mul_(1.0 / scale)  # noqa: E731
    if gradient.dtype.itemsize >= 4:
        make = lambda: gradient.detach().mul(1.0 / scale)  # noqa: E731
    return make


def first_numbers(rows: Sequence[Row]) -> dict[int, int]:
    """Return the number of each parameter's first row, by the parameter's id."""
    numbers: dict[int, int] = {}
    for number, row in enumerate(rows):
        numbers.setdefault(id(row.parameter), number)
    return numbers
