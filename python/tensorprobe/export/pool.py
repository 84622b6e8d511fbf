"""Many files, several processes, one bar that shows how far they are."""

from __future__ import annotations

import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

MAX_PROCESSES = 128

Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""

Result = TypeVar("Result")


def check_processes(process_num: int) -> None:
    """Raise ValueError unless it is a number of processes."""
    if not isinstance(process_num, int) or not 1 <= process_num <= MAX_PROCESSES:
        raise ValueError(
            f"process_num is a whole number from 1 to {MAX_PROCESSES}, not {process_num!r}"
        )


def run_tasks(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    process_num: int,
    what: str,
    progress: Progress | None = None,
) -> Iterator[Result]:
    """Call the function with each task's arguments; the results come in the order of the tasks.

    With several processes no more tasks are handed out than a few for each, so that results don't
    pile up in memory.
    """

    def tell(done: int) -> None:
        if progress is not None:
            progress(what, done, len(tasks))

    if process_num == 1 or len(tasks) < 2:
        for done, task in enumerate(tasks, 1):
            yield function(*task)
            tell(done)
        return
    waiting: deque[Future[Result]] = deque()
    context = multiprocessing.get_context("fork")  # a script needn't guard its main part
    with ProcessPoolExecutor(min(process_num, len(tasks)), mp_context=context) as executor:
        try:
            for done in range(len(tasks)):
                while len(waiting) < 2 * process_num and done + len(waiting) < len(tasks):
                    waiting.append(executor.submit(function, *tasks[done + len(waiting)]))
                yield waiting.popleft().result()
                tell(done + 1)
        finally:
            for future in waiting:
                future.cancel()


class Bar:
    """A progress bar on a terminal; elsewhere it says nothing."""

    def __init__(self) -> None:
        self._shown = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show it anew."""
        if not sys.stderr.isatty():
            return
        filled = 30 * done // total
        shown = f"\r{what} {'█' * filled}{'░' * (30 - filled)} {done}/{total}"
        if shown != self._shown:
            sys.stderr.write(shown + ("\n" if done == total else ""))
            sys.stderr.flush()
            self._shown = shown
