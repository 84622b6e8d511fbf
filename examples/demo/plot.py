"""A line of numbers as a small picture for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence


def plot(
    steps: Sequence[int],
    values: Sequence[float],
    width: int = 64,
    height: int = 8,
    mark: int | None = None,
    ascii_only: bool = False,
) -> list[str]:
    """Draw values over steps, logarithmically where they span more than a factor of 50.

    Values that are not finite are drawn as "!" along the top; mark is a step that gets an arrow
    below the axis. Several steps that share a column are shown by their extremes.
    """
    dot, side, corner, line, arrow = (
        ("*", "|", "+", "-", "^") if ascii_only else ("•", "│", "└", "─", "▲")
    )
    finite = [v for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    positive = [v for v in finite if v > 0]
    logarithmic = len(positive) > 0 and high > 50 * max(low, 0.0)
    floor = min(positive) / 10 if positive and low <= 0 else low

    def scaled(value: float) -> float:
        return math.log(max(value, floor)) if logarithmic else value

    bottom, top = scaled(low), scaled(high)
    span = top - bottom or 1.0
    first, last = steps[0], max(steps[-1], steps[0] + 1)
    width = min(width, last - first + 1)

    def column(step: int) -> int:
        return min(width - 1, (step - first) * width // (last - first + 1))

    canvas = [[" "] * width for _ in range(height)]
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            row = round((top - scaled(value)) / span * (height - 1))
            canvas[row][column(step)] = dot
    for step, value in zip(steps, values, strict=True):
        if not math.isfinite(value):
            canvas[0][column(step)] = "!"

    labels = {0: f"{high:.3g}", height - 1: f"{low:.3g}"}
    lines = [f"{labels.get(i, ''):>9} {side}{''.join(row)}" for i, row in enumerate(canvas)]
    lines.append(f"{'':9} {corner}{line * width}")
    numbers = f"{first}".ljust(width - len(str(last))) + f"{last}"
    lines.append(f"{'step':>9}  {numbers}")
    if mark is not None:
        lines.append(f"{'':9}  {' ' * column(mark)}{arrow} step {mark}: the fault")
    return lines
