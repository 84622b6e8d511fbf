#!/usr/bin/env python3
"""Keep the house in order: who may include whom, and who may ask the system for what.

The rooms and their arrows are read from the block marked ``rooms`` in docs/architecture.md, so that
the page and the check can't differ. Prints one line for each offence and ends with status 1.

    scripts/check_arrows.py [ROOT]
"""

from __future__ import annotations

import graphlib
import re
import sys
from pathlib import Path

MAX_LINES = 600
MAX_COLUMNS = 100

# A library's header is included in one room only. A header that is neither here nor the system's is
# an offence too: a new library gets its room here first.
FOREIGN = {
    "jansson.h": "config",
    "pcre2.h": "config",
    "png.h": "sinks",
    "sqlite3.h": "sinks",
    "zstd.h": "journal",
    "microhttpd.h": "view",
    "ncurses.h": "tools",
    "protobuf-c/protobuf-c.h": "sinks",
    "event.pb-c.h": "sinks",  # made from sinks/event.proto
    "Python.h": "python/ext",
    "structmember.h": "python/ext",
    "libpq-fe.h": "ship",
    "mysql.h": "ship",
    "curl/curl.h": "ship",
    "immintrin.h": "stats",
    "arm_neon.h": "stats",
    "cpuid.h": "base",
}
SYSTEM = set(
    "assert complex ctype errno fenv float inttypes langinfo limits locale math setjmp "
    "signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string "
    "strings tgmath time arpa/inet dirent dlfcn fcntl fnmatch getopt netinet/in poll pthread sched "
    "termios unistd sys/file sys/ioctl sys/mman sys/random sys/resource sys/socket sys/stat "
    "sys/statvfs sys/syscall sys/time sys/types sys/uio "
    "sys/utsname sys/vfs sys/wait wchar "
    "spawn linux/futex".split()
)

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
COMMENT_OR_STRING = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL
)


def call_of(names: str) -> re.Pattern[str]:
    """Match a call of one of these functions, not of a member or a longer name."""
    return re.compile(rf"(?<![\w.>])({names})\s*\(")


HEAP = call_of(
    "malloc|calloc|realloc|reallocarray|aligned_alloc|posix_memalign|free|strdup|strndup|asprintf|vasprintf"
)
OUTPUT = call_of("write|pwrite|writev|creat|rename|truncate|ftruncate|mkdir|fopen|fdopen|freopen")
OPEN_TO_WRITE = re.compile(
    r"(?<![\w.>])open(?:at)?\s*\([^;]*O_(?:WRONLY|RDWR|CREAT|APPEND|TRUNC)", re.DOTALL
)
# Who may make such a call, and what everybody else uses.
CALL_RULES = [
    (HEAP, {"src/base/mem.c"}, "heap memory comes from base/mem.h"),
    (OUTPUT, {"src/base/file.c", "src/base/log.c"}, "output goes through base/file.h"),
    # monitor/run.c opens the lock file, into which nothing is written; base/mapping.c maps files.
    (
        OPEN_TO_WRITE,
        {"src/base/file.c", "src/base/mapping.c", "src/monitor/run.c"},
        "output goes through base/file.h",
    ),
]


def read_rooms(page: Path) -> dict[str, set[str]]:
    """Return each room with the rooms that it names in the block of the page."""
    block = re.search(r"^```rooms\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError(f"{page}: no block marked ```rooms")
    rooms: dict[str, set[str]] = {}
    for line in block[1].splitlines():
        room, _, below = line.partition(":")
        rooms[room.strip()] = set(below.split())
    return rooms


def everything_below(rooms: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return each room with all that it reaches; graphlib.CycleError if arrows form a ring."""
    reach: dict[str, set[str]] = {}
    for room in graphlib.TopologicalSorter(rooms).static_order():
        direct = rooms[room]
        reach[room] = direct.union(*(reach[other] for other in direct))
    return reach


def public_rooms(rooms: dict[str, set[str]]) -> dict[str, str]:
    """Return the room that stands behind each public header."""
    owners = {f"tensorprobe/{room}.h": room for room in rooms}
    owners |= {"tensorprobe/status.h": "base", "tensorprobe/version.h": "base"}
    owners |= {"tensorprobe/reader.h": "journal", "tensorprobe/optimizer.h": "stats"}
    return owners


def blank(match: re.Match[str]) -> str:
    """Replace a comment or string by as many lines of nothing."""
    return "\n" * match[0].count("\n") or '""'


class Check:
    """One walk over the tree; ``offences`` holds what was found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.offences: list[str] = []
        self.rooms = read_rooms(root / "docs/architecture.md")
        self.reach = everything_below(self.rooms)
        self.owners = public_rooms(self.rooms)

    def room_of(self, path: str) -> str:
        """Return the room in which a source file lives."""
        folder = path.rpartition("/")[0]
        return folder.removeprefix("src/")

    def include(self, where: str, room: str, header: str) -> None:
        """Judge one #include of a file of a room (or of a public header: room "public")."""
        if header.removesuffix(".h") in SYSTEM:
            return
        if header in FOREIGN:
            if room != FOREIGN[header]:
                self.offences.append(f"{where}: {header} belongs to {FOREIGN[header]} alone")
            return
        if room in ("public", "examples/c"):
            if not header.startswith("tensorprobe/"):
                self.offences.append(f"{where}: only public headers may be included here: {header}")
            return
        owner = self.owners.get(header) or header.rpartition("/")[0] or room
        if owner not in self.rooms:
            self.offences.append(f"{where}: {header} is of no room and no known library")
        elif owner != room and owner not in self.reach[room]:
            self.offences.append(f"{where}: {room} may not include {owner} ({header})")

    def calls(self, path: str, text: str) -> None:
        """Find memory and output that bypass the base room."""
        code = COMMENT_OR_STRING.sub(blank, text)
        for pattern, exempt, why in CALL_RULES:
            for match in pattern.finditer(code) if path not in exempt else ():
                line = code.count("\n", 0, match.start()) + 1
                self.offences.append(f"{path}:{line}: {match[0].split('(')[0].strip()}: {why}")

    def file(self, path: str, room: str) -> None:
        """Judge one file."""
        text = (self.root / path).read_text()
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            self.offences.append(f"{path}: {len(lines)} lines; more than {MAX_LINES} need a cut")
        for number, line in enumerate(lines, 1):
            where = f"{path}:{number}"
            if len(line) > MAX_COLUMNS:
                self.offences.append(f"{where}: {len(line)} columns; at most {MAX_COLUMNS}")
            if match := INCLUDE.match(line):
                self.include(where, room, match[1])
        if room != "examples/c":
            self.calls(path, text)

    def run(self) -> list[str]:
        """Judge the whole tree and return the offences, in order of files."""
        for path in sorted(self.root.glob("include/**/*.h")):
            self.file(str(path.relative_to(self.root)), "public")
        for folder in ("src", "python/ext", "tools", "examples/c"):
            for path in sorted((self.root / folder).glob("**/*.[ch]")):
                name = str(path.relative_to(self.root))
                room = "examples/c" if folder == "examples/c" else self.room_of(name)
                if room in self.rooms or room == "examples/c":
                    self.file(name, room)
                else:
                    self.offences.append(f"{name}: {room} is not a room of docs/architecture.md")
        return self.offences


def main() -> int:
    """Check the tree given as argument, or the one around this file."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    try:
        offences = Check(root).run()
    except graphlib.CycleError as error:
        offences = [f"docs/architecture.md: the rooms form a ring: {' <- '.join(error.args[1])}"]
    for offence in offences:
        print(offence)
    if not offences:
        print("arrows: every include points down")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
