"""``tensorprobe view`` as a process of its own."""

from __future__ import annotations

import json
import struct
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from built import TOOL

COMMAND = TOOL


def split(content: bytes) -> tuple[Any, bytes]:
    """Return the head and the cells of a map."""
    (size,) = struct.unpack_from("<I", content)
    return json.loads(content[4 : 4 + size]), content[4 + size :]


class Server:
    """Serves the runs below some directories, as long as the block lasts."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "view", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http"), "it has said why"
        self.port = int(urllib.parse.urlsplit(self.url).port or 0)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0

    def read(self, path: str, **params: Any) -> bytes:
        query = urllib.parse.urlencode(params)
        with urllib.request.urlopen(f"{self.url}api/{path}?{query}") as answer:
            content: bytes = answer.read()
        return content

    def ask(self, path: str, **params: Any) -> Any:
        return json.loads(self.read(path, **params))

    def map(self, **params: Any) -> tuple[Any, bytes]:
        """Return the head and the cells."""
        return split(self.read("map", **params))

    def wait(self, run: str = "") -> Any:
        """Return what is known of the run once all that is there has been read."""
        while True:
            info = self.ask("run", r=run)
            if info["read"]:
                return info
            time.sleep(0.05)
