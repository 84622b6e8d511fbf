"""Incidents and alerts of all ranks of a run, put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorprobe.journal import Alert, Incident, Journal

BEFORE_FORWARD, FORWARD, BACKWARD, OPTIMIZER, AFTER_STEP = range(-1, 4)

_STAGES = {
    "actv": FORWARD,
    **dict.fromkeys(("actv_grad", "acc_grad", "pre_grad", "post_grad", "comm"), BACKWARD),
    **dict.fromkeys(("grad_unreduced", "grad_reduced"), BACKWARD),
    **dict.fromkeys(("exp_avg", "exp_avg_sq", "mg_direction"), OPTIMIZER),
    **dict.fromkeys(("adam_update", "adam_ratio", "param_updated", "scalar"), AFTER_STEP),
}
_KINDS = {"grad_unreduced": "acc_grad", "grad_reduced": "post_grad"}


def counted(count: int, noun: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def stage_of(kind: str) -> int:
    """Which part of a step a quantity, or the last part of a tag, belongs to."""
    return _STAGES.get(kind, BEFORE_FORWARD)


def order(
    step: int, micro_step: int, kind: str, vpp_stage: int, pp_stage: int, call_id: int
) -> tuple[int, ...]:
    """Return what findings of all ranks are sorted by.

    Data goes up the virtual and pipeline stages in the forward, and down again afterwards.
    """
    stage = stage_of(kind)
    up = 1 if stage == FORWARD else -1
    return (step, micro_step, stage, up * vpp_stage, up * pp_stage, call_id)


@dataclass(frozen=True)
class Found:
    """An alert or incident of one rank."""

    rank: int
    pp_stage: int
    micro_steps: int
    """That its step had."""
    what: Alert | Incident

    @property
    def order(self) -> tuple[int, ...]:
        """What it is sorted by; an incident stands where it began."""
        what = self.what
        step = what.first_step if isinstance(what, Incident) else what.step
        # Of what is there once a step, the last micro step has a part (as in src/cause/order.c).
        once = what.quantity.startswith("grad_") or stage_of(what.quantity) > BACKWARD
        micro_step = max(self.micro_steps - 1, 0) if once else what.micro_step
        place = order(step, micro_step, what.quantity, what.vpp_stage, self.pp_stage, what.order)
        return (*place, self.rank)

    @property
    def tag(self) -> str:
        """The name that anomaly.json has for it."""
        what = self.what
        if what.quantity == "scalar":
            return f"{what.row}/rank{self.rank}/scalar"
        micro = f":{what.micro_step}" if what.quantity in ("actv", "actv_grad") else ""
        kind = _KINDS.get(what.quantity, what.quantity)
        return f"{what.vpp_stage}:{what.row}{micro}/rank{self.rank}/{kind}"


def read_journal(journal: Journal) -> Iterator[Found]:
    """Yield every alert, and every incident as it is now."""
    rank = int(journal.run["rank"])
    pp_stage = 0
    micro_steps = 0
    attempt = 0
    incidents: dict[tuple[int, int], Found] = {}
    for item in journal._items():
        if item["type"] == "step":
            attempt, pp_stage = item["attempt"], max(item["pp_stage"], 0)
            micro_steps = item["micro_steps"]
        elif item["type"] == "alerts":
            for values in item["alerts"]:
                yield Found(rank, pp_stage, micro_steps, _make(Alert, values))
            for values in item["incidents"]:
                incidents[attempt, values["number"]] = Found(
                    rank, pp_stage, micro_steps, _make(Incident, values)
                )
    yield from incidents.values()


def _make(kind: type[Any], values: dict[str, Any]) -> Any:
    return kind(**{name: values[name] for name in kind.__dataclass_fields__})


@dataclass
class Cause:
    """What went wrong in a run: the incidents of its ranks that have one cause."""

    members: list[Found] = field(default_factory=list)

    @property
    def first(self) -> Found:
        """The one whose tensor comes first in the order of all ranks."""
        return min(self.members, key=lambda found: found.order)

    @property
    def ranks(self) -> list[int]:
        """Where it shows."""
        return sorted({found.rank for found in self.members})

    @property
    def is_broken(self) -> bool:
        """It is about NaN and infinities."""
        return _is_broken(_incident(self.first))


def _incident(found: Found) -> Incident:
    assert isinstance(found.what, Incident)
    return found.what


def _is_broken(incident: Incident) -> bool:
    return incident.rule == "AnomalyNan" and incident.op in ("nans", "min", "max")


def put_together(incidents: Iterable[Found]) -> list[Cause]:
    """Put the incidents of all ranks together that began together, and are of one kind.

    What breaks one rank reaches the others in the same step, by gradients, or in the next, by
    weights.
    """
    causes: list[Cause] = []
    for found in sorted(incidents, key=lambda item: item.order):
        incident = _incident(found)
        for cause in causes:
            first = _incident(cause.first)
            if (
                _is_broken(first) == _is_broken(incident)
                and found.rank not in cause.ranks
                and 0 <= incident.first_step - first.first_step <= 1
            ):
                cause.members.append(found)
                break
        else:
            causes.append(Cause([found]))
    return causes


def alerts_of(cause: Cause, found: Iterable[Found]) -> list[Found]:
    """Return the alerts of a cause, among those of all ranks, in their order."""
    numbers = {(member.rank, _incident(member).number) for member in cause.members}
    own = [
        item
        for item in found
        if isinstance(item.what, Alert) and (item.rank, item.what.incident) in numbers
    ]
    return sorted(own, key=lambda item: item.order)


def describe(cause: Cause, alerts: list[Found], ranks: int, count: int) -> list[str]:
    """Say it in lines for people: what, where, why, and how it spread in its first step.

    alerts: those of the cause; ranks: how many have a journal; count: rows that are named.
    """
    first = cause.first
    incident = _incident(first)
    last = max(item.what.last_step for item in cause.members if isinstance(item.what, Incident))
    last = max([last, *(item.what.step for item in alerts if isinstance(item.what, Alert))])
    rows: dict[str, None] = {}
    for item in alerts:
        if isinstance(item.what, Alert) and item.what.step == incident.first_step:
            rows.setdefault(f"{item.what.row} ({item.what.quantity})")
    lines = [
        f"step {incident.first_step}, {incident.severity}, rank {first.rank}: {incident.text}",
        f"  {counted(len(alerts), 'alert')} until step {last}, "
        f"on {len(cause.ranks)} of {counted(ranks, 'rank')}"
        + (f": {', '.join(map(str, cause.ranks))}" if len(cause.ranks) < ranks else ""),
    ]
    if len(rows) > 1:
        lines.append(f"  in its first step: {' → '.join(list(rows)[:count])}")
    if ranks > 1 and cause.ranks == [first.rank]:
        lines.append(
            f"  rank {first.rank} alone: look at its data, its memory and its machine, not at the "
            "model"
        )
    elif cause.is_broken and all(_incident(item).cause == "reduction" for item in cause.members):
        lines.append(
            "  no rank gave a NaN or an infinity: the sum over ranks overflowed, or something "
            "changed gradients behind it"
        )
    return lines
