"""An output directory that can't be written is told at once; what is lost later is counted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

import tensorprobe
from tensorprobe import _core


@pytest.mark.parametrize("below", ["", "/", "/a/b"])
def test_a_file_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (tmp_path / "f").touch()
    path = f"{tmp_path}/f{below}"
    message = f"can't write to the output directory {path}: Not a directory"
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
        tensorprobe.watch(model, optimizer, output_dir=path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="output directory f/x: Not a directory"):
        tensorprobe.TrainerMon({}, output_dir="f/x")
    monkeypatch.setenv("TENSORPROBE_OUTPUT_DIR", "f")
    with pytest.raises(OSError, match="output directory f: Not a directory"):
        _core.Monitor(config_json="{}")
    # A rank that records nothing needs no place for it.
    _core.Monitor(config_json='{"module_ranks": [3]}').close()


def test_a_place_without_permission() -> None:
    with pytest.raises(OSError, match="output directory /proc/self/x/y: "):
        _core.Monitor(config_json="{}", output_dir="/proc/self/x/y")


@pytest.mark.parametrize("name", ["new/deeper", "new//", "."])
def test_nothing_is_made_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _core.Monitor(config_json="{}", output_dir=name).close()
    assert list(tmp_path.iterdir()) == []


def test_steps_that_could_not_be_written_are_gaps(tmp_path: Path) -> None:
    base = tmp_path / "base"
    monitor = _core.Monitor(
        config_json='{"format": "api", "xy_distribution": true}', output_dir=str(base)
    )
    key = monitor.key("a", _core.ACTIVATION, _core.ROLE_OUTPUT)
    shutil.rmtree(base, ignore_errors=True)  # a black box may have made it
    base.touch()
    for _ in range(2):
        monitor.observe(key, torch.ones(1))
        monitor.step()
    with pytest.raises(OSError, match="2 steps are lost; a warning has said why"):
        monitor.close()
    counters = monitor.counters()
    assert (counters["steps"], counters["gaps"], counters["journaled_steps"]) == (2, 2, 0)
