"""How runs, monitors and incidents show themselves in a notebook: small HTML, without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorprobe.journal import Incident, Journal

WIDTH, HEIGHT = 240, 44
LONG = 20_000
"""Steps of a journal beyond which only its ends are looked at: a cell is shown at once."""
RUNS, INCIDENTS, RANKS = 8, 3, 64
"""How many are shown."""
BROKEN, RANGE, GOOD = "#c2178f", "#b85c00", "#2e7d32"
"""Of NaN and Inf, of what left its range, and of what is fine; on light and on dark ground."""
QUIET = "opacity:.65"


def shown(make: Callable[[], str]) -> str | None:
    """What is made; None, so that the plain text is shown, where a journal can't be read now."""
    try:
        return make()
    except (OSError, ValueError):
        return None


def _text(value: object) -> str:
    return html.escape(str(value))


def number(value: float) -> str:
    """Four digits at most: 2.071, 6.548e4, NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "−Inf"
    if value == 0 or 0.01 <= abs(value) < 999.95:
        return f"{value:.4g}".replace("-", "−")
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}".replace("-", "−", mantissa.startswith("-"))


def card(*parts: str) -> str:
    """A frame around parts."""
    return (
        '<div style="display:inline-block;max-width:60em;border:1px solid rgba(128,128,128,.4);'
        'border-radius:6px;padding:8px 12px;margin:2px 0;font-size:13px;line-height:1.5">'
        + "".join(parts)
        + "</div>"
    )


def heading(title: str, state: str, colour: str) -> str:
    """The first line: what it is, and how it stands."""
    return f'<div><b>{_text(title)}</b> <span style="color:{colour}">● {_text(state)}</span></div>'


def line(*pairs: tuple[str, object]) -> str:
    """Labels and values in one line."""
    found = [f'<span style="{QUIET}">{_text(a)}</span> {_text(b)}' for a, b in pairs]
    return f"<div>{' &nbsp; '.join(found)}</div>"


def plot(title: str, steps: Sequence[int], values: Sequence[float]) -> str:
    """A small line; each of its columns has the smallest and the largest value of its steps.

    NaN and Inf are marks at the bottom and the top: nothing extreme is averaged away.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not steps:
        return ""
    is_log = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > 50
    scaled = [math.log(value) if is_log and math.isfinite(value) else value for value in values]
    shown = [value for value in scaled if math.isfinite(value)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    span = (high - low) or 1.0
    per = max(1, -(-(steps[-1] - steps[0] + 1) * 2 // WIDTH))
    columns: dict[int, list[float]] = {}
    for step, value in zip(steps, scaled, strict=True):
        columns.setdefault((step - steps[0]) // per, []).append(value)
    right = max(columns) or 1
    paths: list[list[str]] = [[]]
    marks = []
    for column, found in sorted(columns.items()):
        x = f"{column / right * WIDTH:.1f}"
        good = [value for value in found if math.isfinite(value)]
        if len(good) < len(found):
            paths.append([])
            marks.append(f'<path d="M{x} 0V{HEIGHT}" stroke="{BROKEN}" stroke-width="1.5"/>')
        ends = dict.fromkeys((min(good), max(good))) if good else {}
        paths[-1] += [f"{x} {HEIGHT - 3 - (y - low) / span * (HEIGHT - 6):.1f}" for y in ends]
    drawn = "".join(
        f'<path d="M{"L".join(path)}" fill="none" stroke="currentColor"/>' for path in paths if path
    )
    ends_at = f"{number(min(finite))} … {number(max(finite))}" if finite else "no finite value"
    last = number(values[-1])
    colour = f' style="color:{BROKEN}"' if not math.isfinite(values[-1]) else ""
    return (
        '<div style="display:inline-block;margin:4px 16px 4px 0;vertical-align:top">'
        f'<div style="font-size:12px">{_text(title)} <b{colour}>{last}</b> '
        f'<span style="{QUIET}">{ends_at}{", log" if is_log else ""}</span></div>'
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{_text(title)}, steps {steps[0]} to {steps[-1]}">'
        f"{''.join(marks)}{drawn}</svg>"
        f'<div style="font-size:11px;{QUIET}">steps {steps[0]:,} … {steps[-1]:,}</div></div>'
    )


def incident(one: Incident) -> str:
    """What went wrong: its kind, step, tensor and message."""
    colour = {"critical": BROKEN, "warning": RANGE}.get(one.severity, "inherit")
    steps = f"step {one.first_step:,}"
    if one.last_step > one.first_step:
        steps += f" … {one.last_step:,}"
    return (
        f'<div style="border-left:3px solid {colour};padding-left:8px;margin:4px 0">'
        f'<b style="color:{colour}">{_text(one.severity)}</b> '
        f"<b>{steps}</b> <code>{_text(one.row)}</code> "
        f'<span style="{QUIET}">{_text(one.quantity)}, {_text(one.rule)}</span>'
        f"<div>{_text(one.text)}</div></div>"
    )


def incidents(found: Sequence[Incident]) -> str:
    """The newest ones in full, and how many there were before."""
    shown = "".join(incident(one) for one in reversed(found[-INCIDENTS:]))
    if len(found) > INCIDENTS:
        shown += f'<div style="{QUIET}">{len(found) - INCIDENTS} earlier</div>'
    return shown


class Extent:
    """How far a journal goes, by its frames' heads alone."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.first, self.last, self.steps = -1, -1, 0
        kind = None
        for item in journal._items(frames_only=True):
            kind = item["type"]
            if kind == "step":
                self.first = item["step"] if self.steps == 0 else min(self.first, item["step"])
                self.last = max(self.last, item["step"])
                self.steps += 1
        self.closed = kind == "close"


def _plots(extent: Extent, broken: Sequence[Incident]) -> str:
    """The loss, and the tensor that the newest incident began with."""
    journal = extent.journal
    if extent.steps > LONG:
        return ""
    scalars = [key["name"] for key in journal.defined() if key["quantity"] == "scalar"]
    wanted = [(name, "scalar") for name in scalars if "loss" in name.lower()][:1]
    drawn = [plot(name, *journal.series(name, kind)) for name, kind in wanted]
    if broken:
        one = broken[-1]
        role = one.role or None
        found = journal.series(
            one.name, one.quantity, role, slot=one.slot, call=one.call, micro_step=one.micro_step
        )
        drawn.append(plot(f"norm of {one.row}, {one.quantity}", *found))
    return f"<div>{''.join(drawn)}</div>"


def _run(name: str, journals: Sequence[Journal]) -> str:
    extents = [Extent(journal) for journal in journals[:RANKS]]
    recorded = [extent for extent in extents if extent.steps > 0]
    ranks = sorted({int(journal.run["rank"]) for journal in journals})
    state, colour = "not closed", RANGE
    if all(extent.closed for extent in extents):
        state, colour = "ended", GOOD
    parts = [heading(f"run {name}", state, colour)]
    facts: list[tuple[str, object]] = [("ranks" if len(ranks) > 1 else "rank", _span(ranks))]
    if recorded:
        first, last = min(e.first for e in recorded), max(e.last for e in recorded)
        facts.append(("steps", f"{first:,} … {last:,}"))
    facts.append(("in", Path(journals[0].directory).absolute().parent))
    parts.append(line(*facts))
    if not recorded:
        return "".join([*parts, "<div>no step yet</div>"])
    short = [extent for extent in recorded if extent.steps <= LONG]
    # The one in which something went wrong first.
    found = [(extent, extent.journal.incidents()) for extent in short]
    found = [(extent, some) for extent, some in found if some]
    if found:
        extent, some = min(found, key=lambda pair: (pair[1][-1].first_step, pair[1][-1].order))
        parts.append(_plots(extent, some))
        if len(ranks) > 1:
            rank = extent.journal.run["rank"]
            parts.append(line(("on rank", rank), ("incidents on", f"{len(found)} of them")))
        parts.append(incidents(some))
    else:
        parts.append(_plots(recorded[0], []))
        looked = "no incident" if len(short) == len(journals) else "too long to look through here"
        parts.append(f'<div style="{QUIET}">{looked}</div>')
    return "".join(parts)


def _span(ranks: Sequence[int]) -> str:
    """0–7, or 0, 3, 4."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks[:RANKS])) + (" …" if len(ranks) > RANKS else "")


def runs(journals: Iterable[Journal]) -> str:
    """A card of each run, the newest ones."""
    by_run: dict[str, list[Journal]] = {}
    for journal in journals:
        by_run.setdefault(str(journal.run["run_id"]), []).append(journal)
    shown = [card(_run(name, found)) for name, found in list(by_run.items())[-RUNS:]]
    if len(by_run) > RUNS:
        shown.insert(0, f'<div style="{QUIET}">{len(by_run) - RUNS} earlier runs</div>')
    return "<br>".join(shown) or "<div>no journal</div>"


def monitor(directory: str, counters: dict[str, int], found: Sequence[Incident], open: bool) -> str:  # noqa: A002
    """How a monitor of this process stands."""
    facts: list[tuple[str, Any]] = [
        ("steps", f"{counters['steps']:,}"),
        ("records", f"{counters['records']:,}"),
        ("in hooks", f"{number(counters['hook_ns'] / 1e6 / max(1, counters['steps']))} ms a step"),
    ]
    facts += [
        (label, f"{counters[name]:,}")
        for label, name in (("steps lost", "gaps"), ("errors", "errors"))
        if counters[name] > 0
    ]
    state, colour = ("watching", GOOD) if open else ("closed", "inherit")
    said = incidents(found) or f'<div style="{QUIET}">no incident</div>'
    return card(
        heading("tensorprobe monitor", state, colour), line(*facts), line(("in", directory)), said
    )
