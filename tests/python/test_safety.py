"""Who may read what is written, where it may go, and that every name comes back."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import sqlite3
import stat
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

import tensorprobe
from built import TOOL
from tensorprobe import _core

CONFIG = (
    '{"format": ["csv", "tensorboard", "sqlite"], "ops": ["max"], "step_count_per_record": 10,'
    ' "alert": {"dump": true, "rules": [{"rule_name": "AnomalyNan"}]}}'
)
NAMES = [
    "a/b:c",
    "two\nlines",
    "return\r",
    'double"quote',
    "it's",
    "comma,semicolon;",
    "权重.🦙.weight",
    "../../etc/passwd",
    "%s%n{}",
    "x" * 4096,
    "🦙" * 1024,
    " blank ",
    "back\\slash",
]


def run(base: Path, run_id: str | None = None, value: float = 1.0) -> Path:
    monitor = _core.Monitor(config_json=CONFIG, output_dir=str(base), run_id=run_id, watch=True)
    for number, name in enumerate(NAMES):
        key = monitor.key(name, _core.GRAD_REDUCED)
        monitor.observe(key, torch.tensor([value * number]))
    monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    return directory


def test_files_are_the_groups_at_most(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = run(tmp_path / "new" / "base", value=float("nan"))
    finally:
        os.umask(before)
    paths = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(paths) > 10
    for path in paths:
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o750 if path.is_dir() else 0o640), path
    assert {p.name for p in directory.iterdir()} >= {"journal", "followers", "values.sqlite"}


@pytest.mark.parametrize("name", ["journal", "followers", "values.sqlite"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    """In a directory that a resumed run writes to, somebody has put a link."""
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    directory = run(base)
    place = directory / name
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    content = {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()}
    if elsewhere.is_file():
        content = {elsewhere: elsewhere.read_bytes()}
    monitor = _core.Monitor(
        config_json=CONFIG, output_dir=str(base), watch=True, resume=str(base / directory.name)
    )
    key = monitor.key("w", _core.GRAD_REDUCED)
    monitor.observe(key, torch.ones(1))
    monitor.step()
    with contextlib.suppress(OSError):  # of the journal nothing could be written
        monitor.close()
    after = [elsewhere] if elsewhere.is_file() else [p for p in elsewhere.rglob("*") if p.is_file()]
    assert {p: p.read_bytes() for p in after} == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "elsewhere"]


def test_every_name_comes_back(tmp_path: Path) -> None:
    directory = run(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"anomaly_detected", directory.name}
    expected = list(enumerate(NAMES))
    table = next(iter(directory.glob("grad_reduced_*.csv")))
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(float(r["max"])), r["name"]) for r in rows] == expected
    with sqlite3.connect(directory / "values.sqlite") as db:
        found = db.execute("SELECT max, name FROM value JOIN series ON id = series_id").fetchall()
    assert sorted(found) == expected
    events = EventAccumulator(str(directory))
    events.Reload()
    tags = set(events.PluginTagToContent("scalars"))
    tags = {tag for tag in tags if not tag.startswith("tensorprobe/")}
    assert tags == {f"0:{name}/rank0/post_grad_max" for name in NAMES}
    runs = tensorprobe.open(directory)
    series = pa.table(runs.series()).to_pylist()
    assert [(int(r["max"]), r["name"]) for r in series] == expected
    assert [key["name"] for key in runs.journals[0].defined()] == NAMES
    for name in NAMES:
        assert runs.journals[0].series(name, "grad_reduced", op="max")[1] == [NAMES.index(name)]


def test_files_made_without_their_cursors_are_as_configured(tmp_path: Path) -> None:
    directory = run(tmp_path)
    (table,) = directory.glob("grad_reduced_*.csv")
    content = table.read_bytes()
    for path in [table, *(directory / "followers").iterdir()]:
        path.unlink()
    command = [str(TOOL), "recover", "--rebuild", "csv", str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    assert table.read_bytes() == content


def test_a_second_run_with_the_same_name_has_its_own_place(tmp_path: Path) -> None:
    first, second = run(tmp_path, "warmup"), run(tmp_path, "warmup")
    assert first != second
    assert all(re.fullmatch(r"\w{5}_\d\d-\d\d-\d\d-rank0-warmup", p.name) for p in (first, second))
    assert all(len(list(tensorprobe.Journal(p).steps())) == 1 for p in (first, second))
