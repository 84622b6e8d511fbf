"""What one or many journals hold, as tables. Needs no torch."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any

from tensorprobe import _core, _html
from tensorprobe._core import Table
from tensorprobe.journal import Journal

_LAST = 2**64 - 1


def _list(what: str, words: str | Sequence[str] | None) -> list[bytes]:
    if words is None:
        return []
    given: Any = [words] if isinstance(words, str) else words
    if not isinstance(given, Iterable) or not all(isinstance(word, str) for word in given):
        raise TypeError(f"{what} is text or a list of texts, not {words!r}")
    return [word.encode() for word in given]


def _whole(what: str, number: Any, default: int) -> int:
    if number is None:
        return default
    if not hasattr(number, "__index__"):
        raise TypeError(f"{what} is a whole number, not {number!r}")
    return operator.index(number)


def _ranks(rank: Any) -> list[int]:
    if rank is None:
        return []
    if hasattr(rank, "__index__"):
        return [operator.index(rank)]
    if isinstance(rank, str) or not isinstance(rank, Iterable):
        raise TypeError(f"rank is a number or a list of them, not {rank!r}: write rank=0")
    return [_whole("each rank", one, 0) for one in rank]


def _steps(steps: int | range | slice | None) -> tuple[int, int]:
    """Return the first and the last step, both included; the last is less when there is none."""
    if steps is None:
        return 0, _LAST
    if hasattr(steps, "__index__"):
        step = operator.index(steps)
        steps = range(step, step + 1)
    if not isinstance(steps, (range, slice)):
        raise TypeError(
            f"steps is a number, a range or a slice, not {steps!r}: "
            "write steps=3, steps=range(3, 5) or steps=slice(3, None)"
        )
    for border in (steps.start, steps.stop, steps.step):
        _whole("each border of steps", border, 0)
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

    def _repr_html_(self) -> str | None:
        return _html.shown(lambda: _html.runs(self.journals))

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
        first, last = _steps(steps)
        return Table(
            table,
            [os.fsencode(journal.directory) for journal in self.journals],
            _list("columns", columns),
            _ranks(rank),
            first,
            last,
            _list("name", name),
            _list("quantity", quantity),
            _list("role", role),
            _whole("slot", slot, -2),
            _whole("call", call, -1),
            _whole("micro_step", micro_step, -1),
            _whole("width", width, 0),
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

    def exponents(
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
        """A row for each exponent that elements of a value have, where they were counted.

        ``elements`` of its ``count`` have ``2**exponent <= |x| < 2**(exponent + 1)``.
        """
        return self._table(
            "exponents", columns, rank, steps, name, quantity, role, slot, call, micro_step
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
        if _whole("width", width, 1) < 1:
            raise ValueError(f"a span has at least one step: {width}")
        return self._table(
            "overview", columns, rank, steps, name, quantity, role, slot, width=width
        )

    def merged(
        self,
        name: str | Sequence[str] | None = None,
        quantity: str | Sequence[str] | None = None,
        *,
        steps: int | range | slice | None = None,
        rank: int | Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """A row for each whole parameter in each step: what a run's ranks have of it, together.

        Of its value, reduced gradient, moments, update and ratio. Copies count once. ``missing``
        elements are in no journal; ``name`` has layers counted over pipeline stages.
        """
        return self._table("merged", columns, rank, steps, name, quantity)

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
