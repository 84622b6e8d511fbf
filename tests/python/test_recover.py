"""``tensorprobe recover`` makes files again from the journal."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
import torch

from built import TOOL
from tensorprobe import _core

STEPS = 5


def record(
    folder: Path, formats: str, rank: int = 0, segment_bytes: int = 1 << 20, steps: int = STEPS
) -> Path:
    monitor = _core.Monitor(
        config_json=f"""{{"format": {formats}, "xy_distribution": true, "ops": ["max", "nans"],
            "step_count_per_record": 2, "journal": {{"segment_bytes": {segment_bytes}}},
            "alert": {{"rules": [{{"rule_name": "AnomalyNan"}}], "dump": true}}}}""",
        output_dir=str(folder),
        rank=rank,
        run_id="run",
    )
    key = monitor.key("fc1", _core.ACTIVATION, _core.ROLE_OUTPUT)
    for step in range(steps):
        monitor.observe(key, torch.tensor([step, math.nan if step == 3 else 0.1]))
        monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    return directory


def recover(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [TOOL, "recover", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stderr
    return result


def test_a_parent_stands_for_all_below_it(tmp_path: Path) -> None:
    directories = [record(tmp_path / "runs", '"csv"', rank) for rank in (0, 1)]
    lines = recover(tmp_path).stdout.splitlines()
    assert lines == [f"{directory}: 0 steps added to csv, anomaly" for directory in directories]
    (tmp_path / "empty").mkdir()
    assert "holds no journal" in recover(tmp_path / "empty", status=1).stderr


ALL = ["csv", "tensorboard", "sqlite", "anomaly"]
FILES = {
    "csv": "*.csv",
    "tensorboard": "events.out.*",
    "sqlite": "values.sqlite",
    "anomaly": "anomaly.json",
}


def content(directory: Path) -> dict[str, object]:
    """What people look at, but for the names of event files, which hold the time."""
    found: dict[str, object] = {}
    for pattern in FILES.values():
        for path in directory.glob(pattern):
            if path.suffix == ".sqlite":
                with sqlite3.connect(path) as database:
                    found[path.name] = list(database.iterdump())
                database.close()
            elif path.suffix == ".tensorprobe":
                found["events"] = path.stat().st_size
            else:
                found[path.name] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("whole"), '["csv", "tensorboard", "sqlite"]')


@pytest.fixture
def directory(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize("sink", ALL)
@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_files_that_are_gone_are_made_again(
    whole: Path, directory: Path, sink: str, harm: str
) -> None:
    paths = sorted(directory.glob(FILES[sink]))
    for path in paths:
        if harm == "removed":
            path.unlink()
        elif sink == "sqlite":
            with sqlite3.connect(path) as database:
                database.execute("DELETE FROM step WHERE id > 2")
            database.close()
        else:
            os.truncate(path, path.stat().st_size // 2)
    result = recover(directory)
    assert (
        f"{directory}: {STEPS} steps added to csv, tensorboard, anomaly, sqlite\n" == result.stdout
    )
    assert f"files of the {sink} output are gone: made anew from the journal" in result.stderr
    assert content(directory) == content(whole)
    assert ": 0 steps added" in recover(directory).stdout
    assert content(directory) == content(whole)


@pytest.mark.parametrize("sink", ALL)
def test_files_are_made_anew_without_a_cursor(whole: Path, directory: Path, sink: str) -> None:
    for path in directory.glob(FILES[sink]):
        path.unlink()
    (directory / "followers" / f"{sink}.cursor").unlink()
    assert sink not in recover(directory).stdout.split("added to")[1]
    assert f"{STEPS} steps added" in recover("--rebuild", sink, directory).stdout
    assert content(directory) == content(whole)
    assert f"{STEPS} steps added" in recover("--rebuild", sink, directory).stdout
    assert content(directory) == content(whole)


def test_a_run_without_cursors_is_told(directory: Path) -> None:
    before = content(directory)
    tables = set(directory.glob("*.csv"))
    for path in (directory / "followers").iterdir():
        path.unlink()
    assert "--rebuild FORMAT makes them" in recover(directory, status=1).stdout
    assert content(directory) == before
    for path in tables:
        path.unlink()
    recover("--rebuild", "csv", directory)  # the journal tells which columns
    assert content(directory) == before
    assert recover("--rebuild", "excel", directory, status=2).stderr.startswith(
        "tensorprobe recover: no such files: excel; write csv, "
    )


def test_what_can_not_be_made_again_stays(tmp_path: Path) -> None:
    """Rows of a segment that was removed are in csv files alone."""
    directory = record(tmp_path, '["csv", "sqlite"]', segment_bytes=4096, steps=200)
    assert len(list((directory / "journal").iterdir())) > 1
    (directory / "journal" / "000000.tpj").unlink()
    (directory / "actv_198-199.csv").write_bytes(b"")
    before = content(directory)
    recover(directory)
    assert content(directory) == before
    assert "first segment is gone" in recover("--rebuild", "csv", directory, status=1).stderr
    assert content(directory) == before


def test_a_run_without_files_gets_some(tmp_path: Path) -> None:
    directory = record(tmp_path, '"api"')
    shutil.rmtree(directory / "followers")
    (directory / "anomaly.json").unlink()
    assert "the run has no other files" in recover(directory).stdout
    recover("--rebuild", "sqlite", directory)
    with sqlite3.connect(directory / "values.sqlite") as database:
        assert database.execute("SELECT count(*) FROM value").fetchone() == (STEPS,)
    database.close()
