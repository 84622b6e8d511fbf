"""Reading what a monitor recorded. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorprobe import _core, _html


@dataclass(frozen=True)
class Alert:
    """A rule fired on a value."""

    step: int
    rule: str
    """``AnomalyNan`` or ``AnomalyTurbulence``."""
    name: str
    """Module or parameter, as the framework names it."""
    row: str
    """The name under which the value stands in CSV files."""
    quantity: str
    """``actv``, ``actv_grad``, ``grad_unreduced`` …"""
    role: str
    """``input`` or ``output`` of the module, or empty."""
    op: str
    """Which statistic."""
    value: float
    baseline: float
    """What earlier values led to expect; NaN where the rule has none."""
    threshold: float
    samples: int
    """How many earlier values the baseline is made of."""
    more: int
    """How many other series fired the same rule in this step (told by the first one only)."""
    order: int
    """Execution order of the value within its step."""
    micro_step: int
    call: int
    vpp_stage: int
    slot: int
    incident: int
    """Number of the incident that it belongs to."""
    text: str
    """The finding in words."""


@dataclass(frozen=True)
class Incident:
    """All alerts of one cause, in one rank, as they were at a step.

    name, row, quantity, role, order, micro_step, call, vpp_stage and slot are those of the tensor
    that went wrong first; rule, op, value, baseline, threshold and samples are those of its alert.
    """

    number: int
    """From 1, in this rank and attempt."""
    state: str
    """``begins``, ``grows`` or ``ends``."""
    step: int
    """When it was so."""
    severity: str
    """``notice``, ``warning`` or ``critical``."""
    cause: str
    """The likely one: ``born``, ``overflow``, ``weight`` …, or ``unknown``."""
    text: str
    """The message, for people."""
    rule: str
    name: str
    row: str
    quantity: str
    role: str
    op: str
    value: float
    baseline: float
    threshold: float
    samples: int
    first_step: int
    last_step: int
    steps: int
    """How many steps have an alert of it."""
    alerts: int
    series: int
    element: int
    """Row-major index of the offending element; -1 where it isn't known."""
    bits: int
    """Its pattern, where the index is known."""
    evidence: float
    """The number that the cause is told by, or NaN."""
    witness: str
    """The row that the cause is told by, or empty."""
    parent: int
    """Number of an incident that may have led to this one; 0: none."""
    zoom_first: int
    """The first step that has more than is configured because of it; -1: none has."""
    zoom_steps: int
    """How many had by ``step``."""
    order: int
    micro_step: int
    call: int
    vpp_stage: int
    slot: int

    def _repr_html_(self) -> str | None:
        return _html.shown(lambda: _html.card(_html.incident(self)))


@dataclass(frozen=True)
class Step:
    """One optimizer step of one rank. Times are in nanoseconds."""

    step: int
    rank: int
    attempt: int
    pp_stage: int
    partial: bool
    """The step did not reach its end."""
    gap: bool
    """The records were given up because the writer was too far behind; count tells how many."""
    skipped: bool
    """The optimizer made no update: a gradient scaler found infinities."""
    micro_steps: int
    unfilled: int
    begin_ns: int
    end_ns: int
    wall_ns: int
    """Unix time of the end."""
    hook_ns: int
    """The monitor's own time in hooks."""
    wait_ns: int
    writer_ns: int
    errors: int
    count: int
    bytes: int
    """Written since the step before, to the journal and to all other files."""
    left_out: list[str]
    """Quantities of which the step has only what rules name, for the sake of the budget."""
    zoom: int
    """Number of the incident for which it has more than is configured; 0: it hasn't."""
    records: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """One dict a record: its key, and every statistic; "histogram" (low, high, bins) of those that
    have one, and "exponents" (first, bins): bins[k] elements have 2**(first+k) <= |x| <
    2**(first+k+1)."""


def _alert(values: dict[str, Any]) -> Alert:
    return Alert(**{name: values[name] for name in Alert.__dataclass_fields__})


def _incident(values: dict[str, Any]) -> Incident:
    return Incident(**{name: values[name] for name in Incident.__dataclass_fields__})


def _step(item: dict[str, Any]) -> Step:
    return Step(**{name: value for name, value in item.items() if name != "type"})


class Journal:
    """The journal in the directory of one rank.

    It may still be growing: each method reads what is there when it is called. A damaged place is
    passed over; ``damaged`` tells how many the last call met.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Raises FileNotFoundError when there is no journal."""
        self.directory = os.fspath(directory)
        self.damaged = 0
        self.run: dict[str, Any] = _core.JournalReader(self.directory).run

    def _repr_html_(self) -> str | None:
        return _html.shown(lambda: _html.runs([self]))

    def _items(
        self, *, records: bool = False, frames_only: bool = False
    ) -> Iterator[dict[str, Any]]:
        reader = _core.JournalReader(self.directory)
        if frames_only:
            reader.frames_only()
        self.damaged = 0
        while True:
            try:
                item = reader.next(records=records)
            except ValueError:
                self.damaged += 1
                continue
            if item is None:
                return
            yield item

    def __iter__(self) -> Iterator[Step]:
        """Every step with its records, in order."""
        return (_step(item) for item in self._items(records=True) if item["type"] == "step")

    def steps(self) -> Iterator[Step]:
        """Every step without its records."""
        return (_step(item) for item in self._items() if item["type"] == "step")

    def alerts(self) -> list[Alert]:
        """Every alert, in order of steps and, within a step, of execution."""
        found = [
            _alert(values)
            for item in self._items()
            if item["type"] == "alerts"
            for values in item["alerts"]
        ]
        return sorted(found, key=lambda alert: (alert.step, alert.order))

    def incidents(self, *, changes: bool = False) -> list[Incident]:
        """Every incident as it is now, in the order in which they began.

        With ``changes`` each state that was recorded: when it began, grew and ended.
        """
        found = [
            (attempt, _incident(values))
            for attempt, item in self._with_attempts()
            for values in item["incidents"]
        ]
        if changes:
            return [incident for _, incident in found]
        latest = {(attempt, incident.number): incident for attempt, incident in found}
        return list(latest.values())

    def _with_attempts(self) -> Iterator[tuple[int, dict[str, Any]]]:
        attempt = 0
        for item in self._items():
            if item["type"] == "step":
                attempt = item["attempt"]
            elif item["type"] == "alerts":
                yield attempt, item

    @property
    def closed(self) -> bool:
        """The monitor ended cleanly."""
        last = None
        for item in self._items(frames_only=True):
            last = item["type"]
        return last == "close"

    def defined(self) -> list[dict[str, Any]]:
        """The series that were recorded: name, row, quantity, role, vpp_stage, slot."""
        reader = _core.JournalReader(self.directory)
        reader.frames_only()
        while True:
            try:
                if reader.next(records=False) is None:
                    return reader.keys()
            except ValueError:
                continue

    def series(
        self,
        name: str,
        quantity: str,
        role: str | None = None,
        op: str | None = None,
        *,
        slot: int | None = None,
        call: int | None = None,
        micro_step: int | None = None,
    ) -> tuple[list[int], list[float]]:
        """Steps and values of one series, for example ``("fc1", "actv", "output")``.

        name is the module's or parameter's own, without ``.input`` or ``.output``; ``defined()``
        lists what there is, and a name that isn't there has no values. op None: the norm, or the
        value itself of a scalar. What is None is not looked
        at: values of every micro step, call and slot then follow one another.
        Raises ValueError for a quantity, role or op that doesn't exist.
        """
        return _core.JournalReader(self.directory).series(
            name,
            quantity,
            role,
            op or ("id" if quantity == "scalar" else "norm"),
            -2 if slot is None else slot,
            -1 if call is None else call,
            -1 if micro_step is None else micro_step,
        )
