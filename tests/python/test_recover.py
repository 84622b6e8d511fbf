"""``tensorprobe recover`` makes files again from the journal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch

from tensorprobe import _core

BUILD = Path(os.environ.get("TP_BUILD_DIR", Path(__file__).parents[2] / "build/release"))
STEPS = 5


def record(folder: Path, formats: str, rank: int = 0) -> Path:
    monitor = _core.Monitor(
        config_json=f'{{"format": {formats}, "xy_distribution": true, "step_count_per_record": 2}}',
        output_dir=str(folder),
        rank=rank,
        run_id="run",
    )
    key = monitor.key("fc1", _core.ACTIVATION, _core.ROLE_OUTPUT)
    for step in range(STEPS):
        monitor.observe(key, torch.ones(3) * step)
        monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    return directory


def recover(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [BUILD / "tools/tensorprobe", "recover", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stderr
    return result


def test_a_parent_stands_for_all_below_it(tmp_path: Path) -> None:
    directories = [record(tmp_path / "runs", '"csv"', rank) for rank in (0, 1)]
    lines = recover(tmp_path).stdout.splitlines()
    assert lines == [f"{directory}: 0 steps added" for directory in directories]
    (tmp_path / "empty").mkdir()
    assert "holds no journal" in recover(tmp_path / "empty", status=1).stderr
