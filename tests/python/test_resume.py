"""Going on from a checkpoint: which rows the files and the tables have then."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    TENSORS,
    EventAccumulator,
)

import tensorprobe
from built import TOOL

FIELDS: dict[str, Any] = {
    "format": ["csv", "tensorboard", "sqlite"],
    "step_count_per_record": 3,
    "ops": ["norm"],
    "alert": {"rules": []},
    "xy_distribution": False,
    "mv_distribution": False,
    "param_distribution": False,
}


class Training:
    """A parameter whose gradient is its attempt and step."""

    def __init__(self, attempt: int) -> None:
        self.model = torch.nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.attempt = attempt

    def run(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            x = torch.tensor([[1000.0 * self.attempt + step]])
            self.model(x).sum().backward()
            self.optimizer.step()


def check(directory: str, attempts: list[int]) -> None:
    """Each step is everywhere once, with the value of its attempt."""
    expected = [(step, 1000.0 * attempt + step) for step, attempt in enumerate(attempts)]
    rows = pd.concat(
        pd.read_csv(path) for path in sorted(Path(directory).glob("grad_reduced_*.csv"))
    )
    assert list(zip(rows["step"], rows["norm"], strict=True)) == expected
    events = EventAccumulator(directory, size_guidance={TENSORS: 0})
    events.Reload()
    shown = events.Tensors("0:weight/rank0/post_grad_norm")
    assert [(e.step, e.tensor_proto.double_val[0]) for e in shown] == expected
    with sqlite3.connect(f"{directory}/values.sqlite") as db:
        stored = db.execute(
            "SELECT step, attempt, norm FROM value JOIN step ON step.id = step_id "
            "JOIN series ON series.id = series_id WHERE quantity = 'grad_reduced' ORDER BY step_id"
        ).fetchall()
    assert stored == [(s, a, v) for (s, v), a in zip(expected, attempts, strict=True)]
    series = tensorprobe.open(directory).series("weight", "grad_reduced")
    frame = pd.DataFrame.from_arrow(series)  # type: ignore[attr-defined]
    assert list(zip(frame["step"], frame["norm"], strict=True)) == expected
    assert list(frame["attempt"]) == attempts
    steps, norms = tensorprobe.Journal(directory).series("weight", "grad_reduced")
    assert list(zip(steps, norms, strict=True)) == expected


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """A run of 8 steps, and the state that it had before step 5."""
    training = Training(0)
    with tensorprobe.watch(
        training.model, training.optimizer, dict(FIELDS), output_dir=tmp_path
    ) as monitor:
        training.run(range(5))
        state = monitor.state_dict()
        training.run(range(5, 8))
    return monitor.directory, state


def test_the_number_of_the_open_step(tmp_path: Path) -> None:
    run = Training(1)
    watch: dict[str, Any] = {"output_dir": tmp_path, "config": FIELDS, "run_id": "n"}
    with tensorprobe.watch(run.model, run.optimizer, start_iteration=5, **watch) as session:
        assert session.step_number == 5
        run.run(range(5, 8))
        assert session.step_number == 8
    assert session.step_number == 8  # once closed, too
    with tensorprobe.watch(run.model, run.optimizer, resume=session.directory, **watch) as later:
        assert later.step_number == 8
        run.run(range(8, 9))
        assert later.step_number == 9
    frame = pd.concat(map(pd.read_csv, sorted(Path(later.directory).glob("grad_reduced_*.csv"))))
    assert list(frame["step"]) == [5, 6, 7, 8]


def test_the_state_of_a_checkpoint(saved: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    directory, state = saved
    training = Training(1)
    with tensorprobe.watch(
        training.model, training.optimizer, dict(FIELDS), output_dir=tmp_path / "elsewhere"
    ) as monitor:
        monitor.load_state_dict(state)
        assert monitor.directory == directory
        training.run(range(5, 7))
        later = monitor.state_dict()
        training.run(range(7, 9))
        training.attempt = 2
        monitor.load_state_dict(later)  # the same process goes back
        training.run(range(7, 8))
    check(directory, [0, 0, 0, 0, 0, 1, 1, 2])
    assert not (tmp_path / "elsewhere").exists()


def test_by_run_and_number(saved: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    directory, state = saved
    for attempt, start in ((1, 6), (2, 5), (3, None)):
        training = Training(attempt)
        with tensorprobe.watch(
            training.model,
            training.optimizer,
            dict(FIELDS),
            output_dir=tmp_path,
            resume=state["run_id"] if attempt == 1 else directory,
            start_iteration=start,
        ):
            first = 6 if start is None else start
            training.run(range(first, first + 1))
    check(directory, [0, 0, 0, 0, 0, 2, 3])


def test_another_format_gets_all_steps(saved: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    directory, _ = saved
    Path(directory, "values.sqlite").unlink()
    Path(directory, "followers", "sqlite.cursor").unlink()
    stamp = Path(directory).name[:14]
    training = Training(1)
    monitor = tensorprobe.TrainerMon(
        {**FIELDS, "wg_distribution": True, "append_output": [stamp, stamp]}, output_dir=tmp_path
    )
    monitor.set_monitor(training.model, training.optimizer, start_iteration=2)
    training.run(range(2, 4))
    monitor.close()
    assert monitor.directory == directory
    check(directory, [0, 0, 1, 1])


def test_show_counts_each_step_once(saved: tuple[str, dict[str, Any]]) -> None:
    directory, state = saved
    training = Training(1)
    monitor = tensorprobe.watch(
        training.model, training.optimizer, dict(FIELDS), output_dir=Path(directory).parent
    )
    monitor.load_state_dict(state)
    training.run(range(5, 7))
    monitor.close()
    command = [str(TOOL), "show", directory]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "steps    7 (0 to 6), closed" in done.stdout
    assert ", attempt 1\n" in done.stdout


def test_too_late_or_not_a_state(saved: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    _, state = saved
    training = Training(1)
    with tensorprobe.watch(
        training.model, training.optimizer, dict(FIELDS), output_dir=tmp_path
    ) as monitor:
        with pytest.raises(TypeError, match="takes what state_dict"):
            monitor.load_state_dict([])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'step' is missing"):
            monitor.load_state_dict({"run_id": "x", "directory": "y"})
        training.run(range(1))
        with pytest.raises(RuntimeError, match="recorded in another directory"):
            monitor.load_state_dict(state)
    with pytest.raises(FileNotFoundError, match="no journal is there"):
        tensorprobe.watch(training.model, training.optimizer, resume=tmp_path / "nothing")


def test_an_export_keeps_the_names_of_each_attempt(tmp_path: Path) -> None:
    """The second attempt gives the numbers of the first one's series to others."""
    state: dict[str, Any] = {}
    config = {**FIELDS, "format": "api"}
    for attempt, names in enumerate((["a", "b"], ["b", "c", "a"])):
        modules = {name: torch.nn.Linear(1, 1, bias=False) for name in names}
        model = torch.nn.ModuleDict(modules)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        monitor = tensorprobe.watch(model, optimizer, dict(config), output_dir=tmp_path)
        if state:
            monitor.load_state_dict(state)
        for step in range(attempt, attempt + 2):
            optimizer.zero_grad()
            for name, module in modules.items():
                module(torch.full((1, 1), 100.0 * ord(name) + 10 * attempt + step)).backward()
            optimizer.step()
            if step == 0:
                state = monitor.state_dict()
        monitor.close()
    out = tmp_path / "out"
    command = [str(TOOL), "export", monitor.directory, "--to", "csv"]
    subprocess.run([*command, "-o", str(out)], check=True, capture_output=True)
    rows = pd.concat(pd.read_csv(path) for path in sorted(out.rglob("grad_reduced_*.csv")))
    expected = [(f"{n}.weight", 0, 100.0 * ord(n)) for n in "ab"]
    expected += [(f"{n}.weight", s, 100.0 * ord(n) + 10 + s) for s in (1, 2) for n in "bca"]
    assert sorted(zip(rows["name"], rows["step"], rows["norm"], strict=True)) == sorted(expected)
