"""Where in the program a call comes from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

from tensorprobe._messages import complain

_OWN = f"{Path(__file__).parent}{os.sep}"
_LEFT_OUT = tuple(
    part.replace("/", os.sep)
    for part in (
        "/torch/nn/modules/module.py",
        "/torch/distributed/distributed_c10d.py",
        "/torch/distributed/c10d_logger.py",
        "/torch/_ops.py",
        "/typing_extensions.py",
        "/multiprocessing/",
        "/debugpy/",
    )
)


class CallStack:
    """Lines as ``path[line]   function``, the innermost first."""

    def __init__(self, places: list[tuple[CodeType, int]], patterns: list[re.Pattern[str]]) -> None:
        self.codes = [code for code, _ in places]
        """Held, for they are known by their ids."""
        self.lines = [
            f"{code.co_filename}[{line}]   {code.co_name}"
            for code, line in places
            if not code.co_filename.startswith(_OWN)
            and not any(part in code.co_filename for part in _LEFT_OUT)
        ]
        joined = ";".join(self.lines)
        self.wanted = not patterns or any(pattern.search(joined) for pattern in patterns)
        self.place = self.lines[0].partition("   ")[0] if self.lines else "?"
        self.key = -1


class CallStacks:
    """Each stack is made into text once; after that its code and lines are compared."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compile(i, pattern) for i, pattern in enumerate(patterns)]
        self._known: dict[tuple[int, ...], CallStack] = {}

    def walk(self) -> CallStack:
        """The stack of the caller."""
        frame: FrameType | None = sys._getframe(1)
        places = []
        numbers: list[int] = []
        while frame is not None:
            code, line = frame.f_code, frame.f_lineno or 0
            places.append((code, line))
            numbers += (id(code), line)
            frame = frame.f_back
        mark = tuple(numbers)
        known = self._known.get(mark)
        if known is None:
            if len(self._known) >= 10000:  # a program that makes code without end
                self._known.clear()
            known = self._known[mark] = CallStack(places, self._patterns)
        return known


def _compile(number: int, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        complain(
            f"cc_distribution.cc_codeline[{number}]: {pattern!r} is no regular expression "
            f"({error}): it is looked for as it is; write a dot, a bracket or a star that means "
            "itself with a backslash"
        )
        return re.compile(re.escape(pattern))
