"""``tensorprobe tail`` on a real terminal (tmux's) beside a run that is killed, and without one."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from built import TOOL
from tensorprobe import _core

Ended = tuple[Path, list[dict[str, list[float]]]]
STEPS, BROKEN = 90, 80
RULES = '{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}'
NAMES = [f"layers.{layer}.{part}" for layer in range(6) for part in ("attn.qkv", "mlp.down_proj")]
FIRST = "layers.3.mlp.down_proj"
ODD = "odd\x1b[31m\tname\u00e9"


def record(folder: Path, rank: int, draw: random.Random) -> dict[str, list[float]]:
    """Make a journal in which one tensor breaks first, and those behind it in the same step."""
    monitor = _core.Monitor(config_json=RULES, output_dir=str(folder), rank=rank, run_id="r1")
    names = [*NAMES, ODD]
    keys = {name: monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT) for name in names}
    loss = monitor.key("train/loss", _core.SCALAR, 0)
    values: dict[str, list[float]] = {name: [] for name in names}
    for step in range(STEPS):
        for place, name in enumerate(names):
            value = (place + 1) * (1 + 0.01 * draw.gauss(0, 1))
            if name == "layers.1.attn.qkv" and step > 70:
                value *= 1.5 ** (step - 70)
            breaks = name != "layers.1.attn.qkv"
            if (breaks and step > BROKEN) or (step == BROKEN and place > NAMES.index(FIRST)):
                value = float("nan")
            if step == BROKEN and name == FIRST:
                value = float("inf")
            values[name].append(value)
            monitor.observe(keys[name], torch.tensor([value, value / 2]))
        monitor.observe(loss, torch.tensor(2.5 if step < BROKEN else float("nan")))
        monitor.step()
    monitor.close()
    return values


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("ended")
    draw = random.Random(1)
    return folder, [record(folder, rank, draw) for rank in range(2)]


def tail(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [TOOL, "tail", *map(str, arguments)],
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return done.stdout.decode()


def test_once_names_the_first_and_shows_values(ended: Ended) -> None:
    folder, values = ended
    text = tail("--once", folder)
    lines = text.splitlines()
    assert "r1" in lines[0]
    assert "ended" in lines[0]
    assert "step 89" in lines[0]
    assert "2 ranks, 0 late" in lines[0]
    assert "loss NaN (2.5)" in lines[1]
    assert any(
        f"rank 0, then 1 more  AnomalyNan: first in {FIRST}.output" in line for line in lines
    )
    rows = lines[lines.index(next(x for x in lines if "worst now" in x)) + 1 :]
    assert rows[0].split()[0] == f"{FIRST}.output", "the first that broke is on top"
    assert "NaN" in rows[0]
    assert rows[0].rstrip().endswith("×")
    assert "\x1b" not in text
    assert "\t" not in text
    # The one that drifted before: its largest element as NumPy has it, and far from normal.
    text = tail("--once", "--stat", "max_abs", "--filter", "layers.1.attn*", folder)
    (row,) = [x for x in text.splitlines() if x.startswith("  layers.1.attn.qkv.output")]
    assert any(
        f"{np.float32(rank['layers.1.attn.qkv'][-1]):.3e}".replace("e+0", "e") in row
        for rank in values
    )
    assert "MAD" in row


def test_width_height_and_characters(ended: Ended) -> None:
    folder, _ = ended
    for width, height in [
        (300, 60),
        (120, 30),
        (80, 24),
        (60, 12),
        (40, 8),
        (39, 8),
        (12, 3),
        (1, 1),
    ]:
        size = {"COLUMNS": str(width), "LINES": str(height)}
        text = tail("--once", folder, **size)
        assert all(len(line) <= width for line in text.splitlines())
        assert len(text.splitlines()) <= height
        assert tail("--once", folder, **size, LC_ALL="C").isascii()
        if width >= 40 and height >= 12:
            assert FIRST.rpartition(".")[2] in text, "names keep their ends"
            assert "NaN" in text
    assert "!" in tail("--once", folder, LC_ALL="C")
    assert "no series has a name like that" in tail("--once", "--filter", "nowhere", folder)


def test_lines_where_there_is_no_terminal(ended: Ended) -> None:
    folder, _ = ended
    first, last = tail(folder).splitlines()
    assert re.fullmatch(
        rf'\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d step=80 incident=1 first="{FIRST}.output" '
        r'quantity=actv rank=0 what="AnomalyNan: .*"',
        first,
    )
    assert 'state="ended" step=89 loss=NaN' in last
    assert "incidents=1" in last


def test_wrong_command_lines(tmp_path: Path, ended: Ended) -> None:
    for arguments, code, said in [
        ([], 2, "--help"),
        (["--stat", "median", str(ended[0])], 2, "no statistic median"),
        ([str(tmp_path)], 1, "no journal"),
        (["--run", "nobody", str(ended[0])], 1, "no run nobody"),
    ]:
        done = subprocess.run([TOOL, "tail", *arguments], capture_output=True, text=True)
        assert done.returncode == code
        assert said in done.stderr


def show(*arguments: object, status: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [TOOL, "show", *map(str, arguments)],
        env={**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "150", **environment},
        capture_output=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return (done.stdout + done.stderr).decode()


def test_small_plots(ended: Ended) -> None:
    folder, _ = ended
    head, *rows = show("--plot", folder).splitlines()
    assert head.split()[0] == "series"
    found = [row.split()[0] for row in rows]
    assert found[: len(NAMES)] == [f"{name}.output" for name in NAMES], "as they are executed"
    assert found[-1] == "train/loss"
    # A character for each two of all steps, the last ones broken; the one that drifts isn't.
    for name, row in zip(NAMES, rows, strict=False):
        plot = row.split()[-1]
        assert len(plot) == STEPS // 2
        assert set(plot[: BROKEN // 2]) <= set("▁▂▃▄▅▆▇█")
        ends = plot[BROKEN // 2 :]
        assert ("×" in ends) != (name == "layers.1.attn.qkv")
        assert "×" not in ends or set(ends) == {"×"}
        # The range that is called normal ends at three of the distances that are told.
        fields = re.search(r" ([\d.e-]+) +([\d.e-]+)–([\d.e-]+) +(-?[\d.]+) MAD ", row)
        assert (fields is None) == ("×" in ends)
        if fields is not None:
            value, low, high, far = map(float, fields.groups())
            assert high / low > 0.999 * 2 ** (6 * 0.05), "a MAD is at least 0.05"
            assert (low <= value <= high) == (abs(far) < 3)
    one = show("--plot", folder, "layers.1.*", LC_ALL="C").splitlines()
    assert [row.split()[0] for row in one[1:]] == [f"{name}.output" for name in NAMES[2:4]]
    assert "no name or row matches" in show("--plot", folder, "nowhere", status=1)
    assert "names alone" in show("--plot", "--step", "3", folder, status=2)


# ---- a terminal ----

CHILD = """
import sys, time, torch
from pathlib import Path
from tensorprobe import _core
folder = Path(sys.argv[1])
monitor = _core.Monitor(config_json=sys.argv[2], output_dir=str(folder), run_id="live1")
keys = [monitor.key(f"layers.{i}.mlp", _core.ACTIVATION, _core.ROLE_OUTPUT) for i in range(40)]
for step in range(1 << 30):
    broken = (folder / "break").exists()
    for i, key in enumerate(keys):
        value = float("nan") if broken and i >= 17 else i + 1.0
        monitor.observe(key, torch.tensor([value, 1.0]))
    monitor.step()
    time.sleep(0.02 if step > 50 else 0)
"""


class Terminal:
    """A terminal of so many columns and rows in which a command runs."""

    def __init__(self, folder: Path, command: str, width: int, height: int) -> None:
        self.tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self.call("new-session", "-d", "-x", str(width), "-y", str(height), "sh")
        self.call("set-option", "-g", "window-size", "manual")
        self.call("send-keys", command, "Enter")

    def call(self, *arguments: str) -> str:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            [*self.tmux, *arguments], env=environment, capture_output=True, text=True, check=True
        ).stdout

    def press(self, *keys: str) -> None:
        self.call("send-keys", *keys)

    def text(self, *options: str) -> str:
        return self.call("capture-pane", "-p", *options)

    def wait(self, condition: Callable[[str], object], *options: str) -> str:
        """Return the first screen that is as it should be."""
        deadline = time.monotonic() + 120
        while not condition(text := self.text(*options)):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text

    def close(self) -> None:
        self.call("kill-server")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), RULES])
    while not list(tmp_path.glob("*/journal/*")):
        assert child.poll() is None
        time.sleep(0.05)
    yield tmp_path, child
    child.kill()
    child.wait()


def step_of(text: str) -> int:
    found = re.search(r"step ([\d,]+)", text.splitlines()[0])
    return int(found[1].replace(",", "")) if found else -1


def rows_of(text: str) -> list[str]:
    return re.findall(r"^[› ] (layers\.\S+)", text, re.MULTILINE)


def test_a_run_on_a_terminal(live: tuple[Path, subprocess.Popen[bytes]]) -> None:
    folder, child = live
    terminal = Terminal(folder, f"LC_ALL=C.UTF-8 {TOOL} tail {folder}", 110, 24)
    try:
        text = terminal.wait(lambda x: "live1" in x and "● live" in x and step_of(x) > 60)
        assert "no incident" in text
        assert len(text.splitlines()) == 24
        assert "quit" in text.splitlines()[-1]
        before = step_of(text)
        terminal.wait(lambda x: step_of(x) > before)

        # Another size.
        terminal.call("resize-window", "-x", "64", "-y", "12")
        terminal.wait(lambda x: len(x.splitlines()) == 12 and "quit" in x.splitlines()[-1])
        terminal.call("resize-window", "-x", "110", "-y", "30")
        text = terminal.wait(lambda x: len(x.splitlines()) == 30 and "quit" in x.splitlines()[-1])

        # Order, moving, one series, and back.
        terminal.press("o")
        terminal.wait(lambda x: rows_of(x)[:2] == ["layers.0.mlp.output", "layers.1.mlp.output"])
        terminal.press("o")
        terminal.wait(lambda x: rows_of(x)[:2] == ["layers.39.mlp.output", "layers.38.mlp.output"])
        terminal.press("Down", "Down")
        terminal.wait(lambda x: "› layers.37.mlp" in x)
        terminal.press("Enter")
        text = terminal.wait(lambda x: "2 elements" in x)
        assert "layers.37.mlp.output" in text
        assert re.search(r"max \|x\|\s+38\b", text)
        terminal.press("Enter")
        terminal.press("NPage", "NPage", "NPage")
        terminal.wait(lambda x: "› layers.0.mlp" in x)

        # A filter.
        terminal.press("/", "s", ".", "2")
        terminal.wait(
            lambda x: set(rows_of(x)) == {f"layers.{i}.mlp.output" for i in (2, *range(20, 30))}
        )
        terminal.press("Enter")
        terminal.press("Escape")
        terminal.press("Home")
        terminal.wait(lambda x: "layers.39.mlp.output" in rows_of(x))
        terminal.press("o")

        # A fault, and colours.
        (folder / "break").touch()
        terminal.wait(lambda x: "first in layers.17.mlp.output" in x)
        text = terminal.wait(lambda x: rows_of(x)[:1] == ["layers.17.mlp.output"])
        assert re.search(r"layers\.17\.mlp.* NaN .* NaN .*×", text)
        coloured = terminal.text("-e")
        assert "\x1b[1m\x1b[35m" in coloured or "\x1b[1;35m" in coloured

        # Paused, it stands still; and goes on.
        terminal.press("Space")
        paused = step_of(terminal.wait(lambda x: "paused" in x))
        time.sleep(0.6)
        assert step_of(terminal.text()) == paused
        terminal.press("Space")
        terminal.wait(lambda x: "paused" not in x and step_of(x) > paused)

        # Stopped and fetched back by the shell.
        terminal.press("C-z")
        terminal.wait(lambda x: "Stopped" in x)
        terminal.press("fg", "Enter")
        terminal.wait(lambda x: "quit" in x.splitlines()[-1])

        assert ", still running" in show(folder)
        child.kill()
        terminal.wait(lambda x: "killed" in x.splitlines()[0])
        assert ", not closed: its process is gone" in show(folder)
        terminal.press("q")
        text = terminal.wait(lambda x: 'state="killed' in x)
        assert 'first="layers.17.mlp.output"' in text, "the last incident stays"
    finally:
        terminal.close()


def test_no_colours_where_none_are_wanted(ended: Ended, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, f"NO_COLOR=1 LC_ALL=C {TOOL} tail {ended[0]}", 100, 30)
    try:
        text = terminal.wait(lambda x: "worst now" in x and "quit" in x, "-e")
        assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7])m", text)
        assert terminal.text().isascii()
        terminal.press("C-c")
        terminal.wait(lambda x: 'state="ended"' in x)
    finally:
        terminal.close()
