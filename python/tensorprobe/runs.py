"""What one or many journals hold, as tables. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from tensorprobe import _core
from tensorprobe._core import Table
from tensorprobe.journal import Journal

_LAST = 2**64 - 1


def _list(words: str | Sequence[str] | None) -> list[bytes]:
    if words is None:
        return []
    return [word.encode() for word in ([words] if isinstance(words, str) else words)]


def _steps(steps: int | range | slice | None) -> tuple[int, int]:
    """Return the first and the last step, both included; the last is less when there is none."""
    if steps is None:
        return 0, _LAST
    if isinstance(steps, int):
        steps = range(steps, steps + 1)
    if steps.step not in (None, 1):
        raise ValueError(f"steps must follow one another: {steps}; leave out others afterwards")
    first = steps.start or 0
    behind = _LAST + 1 if steps.stop is None else steps.stop
    if first < 0 or behind < 0:
        raise ValueError(f"steps count from 0: {steps}")
    return (first, behind - 1) if first < behind else (1, 0)


class Runs:
    """Every journal in a directory and below it: a rank, the ranks of a run, or many runs.

    Its methods return tables that are read when they are used, batch by batch, up to what the
    journals hold by then. What runs, ranks, names and steps leave out isn't kept in memory, and
    steps that are left out aren't read.
    """

    def __init__(self, journals: Iterable[Journal]) -> None:
        self.journals = tuple(journals)

    def __repr__(self) -> str:
        return f"Runs({[journal.directory for journal in self.journals]})"

    @property
    def names(self) -> list[str]:
        """The runs' ids, in the order of their directories."""
        return list(dict.fromkeys(str(journal.run["run_id"]) for journal in self.journals))

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a journal."""
        return sorted({int(journal.run["rank"]) for journal in self.journals})

    def of(self, run: str) -> Runs:
        """Those of one run. KeyError when there is no such run."""
        journals = [journal for journal in self.journals if journal.run["run_id"] == run]
        if not journals:
            raise KeyError(f"no run {run}; there are {', '.join(self.names)}")
        return Runs(journals)

    def _table(
        self,
        table: str,
        columns: Sequence[str] | None,
        rank: int | Sequence[int] | None,
        steps: int | range | slice | None = None,
        name: str | Sequence[str] | None = None,
        quantity: str | Sequence[str] | None = None,
        role: str | Sequence[str] | None = None,
        slot: int | None = None,
        call: int | None = None,
        micro_step: int | None = None,
        width: int | None = None,
    ) -> Table:
        ranks: list[Any] = [] if rank is None else [rank] if isinstance(rank, int) else list(rank)
        first, last = _steps(steps)
        return Table(
            table,
            [os.fsencode(journal.directory) for journal in self.journals],
            _list(columns),
            ranks,
            first,
            last,
            _list(name),
            _list(quantity),
            _list(role),
            -2 if slot is None else slot,
            -1 if call is None else call,
            -1 if micro_step is None else micro_step,
            width or 0,
        )

    def runs(self, *, rank: int | Sequence[int] | None = None) -> Table:
        """A row for each journal: where it is, and how far it goes."""
        return self._table("runs", None, rank)

    def keys(
        self,
        name: str | Sequence[str] | None = None,
        quantity: str | Sequence[str] | None = None,
        role: str | Sequence[str] | None = None,
        *,
        rank: int | Sequence[int] | None = None,
        slot: int | None = None,
    ) -> Table:
        """A row for each series."""
        return self._table("keys", None, rank, None, name, quantity, role, slot)

    def series(
        self,
        name: str | Sequence[str] | None = None,
        quantity: str | Sequence[str] | None = None,
        role: str | Sequence[str] | None = None,
        *,
        steps: int | range | slice | None = None,
        rank: int | Sequence[int] | None = None,
        slot: int | None = None,
        call: int | None = None,
        micro_step: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """A row for each value: its key, step and place in it, and every statistic.

        name is a pattern (``*``, ``?``, ``[abc]``) for names as the framework has them, or for
        rows as csv files have them (``fc1.output``). What is None is not looked at.
        """
        return self._table(
            "series", columns, rank, steps, name, quantity, role, slot, call, micro_step
        )

    def overview(
        self,
        name: str | Sequence[str] | None = None,
        quantity: str | Sequence[str] | None = None,
        role: str | Sequence[str] | None = None,
        *,
        steps: int | range | slice | None = None,
        rank: int | Sequence[int] | None = None,
        slot: int | None = None,
        width: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """A row for each key in each span of steps: norms from and to, and how many NaN and Inf.

        Spans have at most ``width`` steps, without it as many as a segment of the journal has.
        They come from what the journal keeps for 16, 256 … steps where that will do, so that a
        long run is seen without reading it all; then a span may reach beyond ``steps``.
        """
        if width is not None and width < 1:
            raise ValueError(f"a span has at least one step: {width}")
        return self._table(
            "overview", columns, rank, steps, name, quantity, role, slot, width=width
        )

    def alerts(
        self,
        name: str | Sequence[str] | None = None,
        quantity: str | Sequence[str] | None = None,
        role: str | Sequence[str] | None = None,
        *,
        steps: int | range | slice | None = None,
        rank: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """A row for each alert, in the order in which they were raised."""
        return self._table("alerts", columns, rank, steps, name, quantity, role)

    def steps(
        self,
        *,
        steps: int | range | slice | None = None,
        rank: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """A row for each step: whether it is whole, and what watching it took."""
        return self._table("steps", columns, rank, steps)

    def gaps(
        self,
        *,
        steps: int | range | slice | None = None,
        rank: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """A row for each step whose records were given up; count tells how many."""
        return self._table("gaps", columns, rank, steps)


def open(directory: str | os.PathLike[str]) -> Runs:  # noqa: A001
    """Find the journals in a directory and up to three levels below it.

    Raises FileNotFoundError when there is none.
    """
    return Runs(Journal(found) for found in _core.find_journals(directory))
