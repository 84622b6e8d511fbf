"""Where a configuration comes from: a dict, or a file that may change while the training runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tensorprobe._arguments import config_text, kind

ConfigSource = str | os.PathLike[str] | dict[str, Any]


def config_source(config: ConfigSource) -> dict[str, Any]:
    """Arguments for ``_core.Monitor`` and its ``configure``."""
    if isinstance(config, dict):
        return {"config_json": config_text(config)}
    if not isinstance(config, (str, os.PathLike)):
        raise TypeError(f"config is the path of a JSON file or a dict, not {kind(config)}")
    return {"config_path": os.fspath(config)}


def is_watched() -> bool:
    """Whether the configuration's file is to be looked at after each step."""
    return os.environ.get("DYNAMIC_MONITOR", "").lower() == "true"


class ConfigFile:
    """A file whose changes are told by its time of modification.

    A file system's clock may stand still for some milliseconds: the size, and which file it is,
    tell, too.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def has_changed(self) -> bool:
        """Whether it has changed since the last call; the first time it has."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return False  # an editor may be replacing it
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        changed = now != self._seen
        self._seen = now
        return changed
