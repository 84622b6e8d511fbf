"""The check of the arrows finds what is planted, and nothing in the tree as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts/check_arrows.py"

GOOD = {
    "include/tensorprobe/status.h": "#include <stdint.h>\n",
    "include/tensorprobe/reader.h": '#include "tensorprobe/status.h"\n',
    "src/base/mem.c": '#include "base/mem.h"\n#include <stdlib.h>\nint x = free(malloc(1));\n',
    "src/base/file.c": "int y = write(1, 2, 3);\n",
    "src/journal/writer.c": '#include <zstd.h>\n#include "record/step.h"\n'
    '#include "tensorprobe/reader.h"\n/* write(it) */ int fd = open(path, O_RDONLY);\n'
    'const char *s = "free(x)"; int z = sink->write(a); int w = tp_file_write(b);\n',
    "src/monitor/monitor.c": '#include "base/mem.h"\n#include "sinks/sink.h"\n',
    "python/ext/module.c": '#include <Python.h>\n#include "monitor/hooks.h"\n#include "own.h"\n',
    "examples/c/train.c": '#include "tensorprobe/status.h"\nint *p = malloc(1);\n',
}


def check(root: Path) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, str(CHECK), str(root)], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    return result.returncode, result.stdout


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a small tree that is in order, with the real page."""
    plant(tmp_path, GOOD)
    plant(tmp_path, {"docs/architecture.md": (ROOT / "docs/architecture.md").read_text()})
    return tmp_path


def test_tree_is_in_order() -> None:
    status, output = check(ROOT)
    assert status == 0, output


def test_small_tree_is_in_order(tree: Path) -> None:
    assert check(tree)[0] == 0, check(tree)[1]


@pytest.mark.parametrize(
    ("name", "text", "offence"),
    [
        ("src/base/up.c", '#include "journal/writer.h"\n', "up.c:1: base may not include journal"),
        ("src/rules/up.h", '#include "monitor/hooks.h"\n', "rules may not include monitor"),
        (
            "src/rules/side.c",
            '\n#include "sinks/sink.h"\n',
            "side.c:2: rules may not include sinks",
        ),
        ("src/stats/up.c", '#include "tensorprobe/reader.h"\n', "stats may not include journal"),
        ("src/config/x.c", '#  include "journal/cursor.h"\n', "config may not include journal"),
        ("src/monitor/x.c", "#include <zstd.h>\n", "zstd.h belongs to journal alone"),
        ("src/monitor/y.c", "#include <Python.h>\n", "Python.h belongs to python/ext alone"),
        ("src/base/z.c", "#include <zmq/zmq.h>\n", "of no room and no known library"),
        ("src/attic/z.c", "int x;\n", "attic is not a room"),
        ("include/tensorprobe/x.h", '#include "base/buf.h"\n', "only public headers"),
        ("examples/c/train.c", '#include "base/buf.h"\n', "only public headers"),
        ("src/sinks/m.c", "int x;\nvoid *p = calloc(1, 2);\n", "m.c:2: calloc: heap memory"),
        ("src/sinks/s.c", "/* one\ntwo */ x = strdup (y);\n", "s.c:2: strdup: heap memory"),
        ("tools/f.c", "int f(void)\n{\n    free(x);\n}\n", "f.c:3: free: heap memory"),
        ("src/sinks/w.c", "int x = write(fd, a, 1);\n", "write: output"),
        ("src/sinks/o.c", "int x = open(path,\n    O_WRONLY | O_CREAT);\n", "o.c:1: open: output"),
        ("src/sinks/long.c", "int x;\n" * 601, "601 lines"),
        ("src/sinks/wide.c", "\n/*" + "x" * 99 + "\n", "wide.c:2: 101 columns"),
    ],
)
def test_planted_offence_is_found(tree: Path, name: str, text: str, offence: str) -> None:
    plant(tree, {name: text})
    status, output = check(tree)
    assert status == 1
    assert offence in output
    assert len(output.splitlines()) == 1, output


def test_ring_is_found(tree: Path) -> None:
    page = tree / "docs/architecture.md"
    page.write_text(page.read_text().replace("stats: tensor\n", "stats: tensor rules\n"))
    status, output = check(tree)
    assert status == 1
    assert "ring" in output
