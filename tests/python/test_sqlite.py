"""The SQLite output, read by Python's own client and compared with the journal's records."""

from __future__ import annotations

import math
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from built import TOOL
from tensorprobe import Journal, TrainerMon

CONFIG: dict[str, Any] = {
    "targets": {},
    "xy_distribution": True,
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "format": ["sqlite", "csv"],
    "ops": ["norm", "min", "max", "mean"],
    "ndigits": 0,
    "step_count_per_record": 1000,
    "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
}
COUNTS = ("count", "nan", "pos_inf", "neg_inf", "zeros", "subnormal")
NUMBERS = ("norm", "min", "max", "mean", "std", "finite_min", "finite_max", "abs_max", "sum_abs")

VALUES = """
SELECT step, attempt, position, name, row, quantity, role, vpp_stage, slot, call,
       coalesce(series.micro_step, 0) AS micro_step, dtype, shape, abs_max_index,
       count, nan, pos_inf, neg_inf, zeros, subnormal,
       norm, min, max, mean, std, finite_min, finite_max, abs_max, sum_abs
  FROM value JOIN step ON step.id = step_id JOIN series ON series.id = series_id
 ORDER BY step.id, position
"""


def rows_of(database: Path, sql: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(sql)]
    finally:
        connection.close()


def train(base: Path, steps: int, config: dict[str, Any] = CONFIG) -> Path:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    monitor = TrainerMon(config, output_dir=base)
    monitor.set_monitor(net, optimizer)
    for step in range(steps):
        for _ in range(2):
            x = torch.randn(3, 4)
            if step == steps - 1:
                x[0, 0] = math.nan
                x[1, 1] = math.inf
            net(x).square().mean().backward()
        monitor.log_scalar("loss", float(step))
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    return Path(monitor.directory)


def same(value: Any, other: Any) -> bool:
    """Compare what SQLite gives with a float of the journal."""
    return value is None if math.isnan(other) else bool(value == other)


def compare(directory: Path) -> int:
    """Every record of the journal's whole steps is there once, to the bit; how many there are."""
    found = iter(rows_of(directory / "values.sqlite", VALUES))
    number = 0
    for step in Journal(directory):
        if step.partial or step.gap:
            continue
        for record in step.records:
            row = next(found)
            number += 1
            assert (row["step"], row["attempt"]) == (step.step, step.attempt)
            assert row["position"] == record["order"]
            for name in ("name", "row", "quantity", "role", "vpp_stage", "call", "dtype"):
                assert row[name] == record[name], name
            assert row["micro_step"] == record["micro_step"]
            assert row["slot"] == (None if record["slot"] < 0 else record["slot"])
            assert row["shape"] == str(list(record["shape"]))
            assert all(row[name] == record[name] for name in COUNTS)
            for name in NUMBERS:
                assert same(row[name], record[name]), (name, row[name], record[name])
    assert next(found, None) is None
    return number


def test_every_value(tmp_path: Path) -> None:
    directory = train(tmp_path, 4)
    assert compare(directory) > 200
    steps = rows_of(directory / "values.sqlite", "SELECT * FROM step ORDER BY id")
    for row, step in zip(steps, Journal(directory).steps(), strict=True):
        assert row["step"] == step.step
        assert row["records"] == step.count
        assert row["micro_steps"] == step.micro_steps == 2
        assert row["wall_ns"] == step.wall_ns
        assert row["duration_ns"] == step.end_ns - step.begin_ns
        assert row["pp_stage"] is None
    costs = rows_of(directory / "values.sqlite", "SELECT * FROM cost ORDER BY step_id")
    for row, step in zip(costs, Journal(directory).steps(), strict=True):
        assert row["wait_ns"] == step.wait_ns
        assert row["writer_ns"] == step.writer_ns > 0
        assert row["bytes"] == step.bytes
        assert (row["left_out"], row["zoom"]) == ("", 0)
    alerts = rows_of(
        directory / "values.sqlite",
        "SELECT step, row, quantity, rule, op, value, baseline, position, message FROM alert"
        " JOIN step ON step.id = step_id JOIN series ON series.id = series_id ORDER BY alert.rowid",
    )
    expected = Journal(directory).alerts()
    assert len(alerts) == len(expected) > 10
    for row, alert in zip(alerts, expected, strict=True):
        for name in ("step", "row", "quantity", "rule", "op", "value"):
            assert row[name] == getattr(alert, name)
        assert row["baseline"] is None
        assert row["position"] == alert.order


def test_same_as_csv(tmp_path: Path) -> None:
    directory = train(tmp_path, 3)
    table = pd.read_csv(directory / "actv_0-999.csv")
    rows = [
        row for row in rows_of(directory / "values.sqlite", VALUES) if row["quantity"] == "actv"
    ]
    assert len(table) == len(rows) > 20
    for (_, line), row in zip(table.iterrows(), rows, strict=True):
        assert (line["name"], line["step"]) == (row["row"], row["step"])
        assert line["micro_step"] == row["micro_step"]
        for op in ("norm", "min", "max", "mean"):
            assert same(row[op], float(line[op]))


CHILD = """
import os, sys
sys.path[:0] = [{here!r}]
import test_sqlite
config = {{**test_sqlite.CONFIG, "format": "sqlite"}}
print(test_sqlite.train(__import__("pathlib").Path(sys.argv[1]), 10**6, config))
"""


@pytest.mark.parametrize("delay", [0.3, 0.7])
def test_a_kill_loses_and_doubles_nothing(tmp_path: Path, delay: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(here=str(Path(__file__).parent)), str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    database = None
    while database is None:
        database = next(tmp_path.glob("*/values.sqlite"), None)
        assert child.poll() is None
    try:
        child.wait(delay)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    for _ in range(2):
        recover = [str(TOOL), "recover", str(database.parent)]
        subprocess.run(recover, check=True, capture_output=True)
        assert compare(database.parent) > 0


def test_somebody_reads_meanwhile(tmp_path: Path) -> None:
    """A reader sees whole steps, and the run goes on while it holds a transaction open."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = TrainerMon({**CONFIG, "format": "sqlite"}, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer)
    reader = None
    for step in range(30):
        net(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        path = Path(monitor.directory, "values.sqlite")
        if step == 10:
            while not path.exists() or not rows_of(path, "SELECT 1 FROM sqlite_master"):
                pass
            reader = sqlite3.connect(path)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM value").fetchone()
    assert reader is not None
    seen = reader.execute(
        "SELECT records, (SELECT count(*) FROM value WHERE step_id = step.id) FROM step"
    ).fetchall()
    assert all(records == there for records, there in seen)
    monitor.close()
    reader.close()
    assert compare(Path(monitor.directory)) > 200
