"""``tensorprobe show`` prints what ``tensorprobe.open`` reads, in each format."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import tensorprobe
from built import TOOL
from tensorprobe import _core

STEPS = 6
NAMES = ["fc1", 'a,"b"', "up\n\x1b[2Jdown", "层.权重", "x" * 300]
TABLES = ["runs", "keys", "series", "alerts", "steps", "gaps"]


def record(folder: Path, rank: int) -> Path:
    monitor = _core.Monitor(
        config_json='{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}',
        output_dir=str(folder),
        rank=rank,
        run_id="run",
    )
    keys = [monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT) for name in NAMES]
    for step in range(STEPS):
        for i, key in enumerate(keys):
            values = torch.tensor([[0.1, 1e-300, -(2.0**60)]], dtype=torch.float64) * (step + i)
            values[0, 0] = {3: math.nan, 4: math.inf, 5: -math.inf}.get(step, 1 / 3)
            monitor.observe(key, values)
        monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    for rank in (0, 1):
        record(path, rank)
    return path


def show(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [TOOL, "show", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == status, result.stderr
    return result


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(getattr(tensorprobe.open(folder), table)()).to_pylist()
    return rows


def same(printed: Any, value: Any) -> bool:
    """A printed cell is the value: numbers to the last bit."""
    if isinstance(value, bool):
        return str(printed).lower() == str(value).lower()
    if isinstance(value, float):
        return struct.pack("<d", float(printed)) == struct.pack("<d", value)
    if isinstance(value, int):
        return int(printed) == value
    if hasattr(value, "isoformat"):  # a time
        return bool(printed == f"{value.strftime('%Y-%m-%dT%H:%M:%S')}.{value.value % 10**9:09}Z")
    return bool(printed == (value if isinstance(printed, type(value)) else str(value)))


@pytest.mark.parametrize("table", TABLES)
def test_csv_and_json_hold_every_cell(folder: Path, table: str) -> None:
    right = rows_of(folder, table)
    columns = getattr(tensorprobe.open(folder), table)().columns
    text = show("--table", table, "--format", "csv", folder).stdout
    head, *lines = list(csv.reader(io.StringIO(text, newline="")))
    assert head == columns
    json_rows = [
        json.loads(line)
        for line in show(folder, "--table", table, "--format=json").stdout.split("\n")
        if line
    ]
    assert len(lines) == len(json_rows) == len(right)
    assert (len(right) > 0) == (table != "gaps")
    for line, json_row, row in zip(lines, json_rows, right, strict=True):
        assert list(json_row) == columns
        for cell, name in zip(line, columns, strict=True):
            assert same(cell, row[name]), name
            assert same(json_row[name], row[name]), name
    numbers = [row["norm"] for row in json_rows if "norm" in row]
    assert {n for n in numbers if isinstance(n, str)} == ({"NaN", "Infinity"} if numbers else set())


def test_tables_stand_in_line(folder: Path) -> None:
    names = ("fc1", "层*", "up*")
    lines = show(folder, *names, "--columns", "step,name,norm,rank").stdout.splitlines()
    assert lines[0].split() == ["step", "name", "norm", "rank"]
    assert len(lines) == 1 + 2 * 3 * STEPS
    assert {len(line) for line in lines} == {len(lines[0])}
    right = [
        row for row in rows_of(folder, "series") if row["name"] in (NAMES[0], NAMES[3], NAMES[2])
    ]
    for line, row in zip(lines[1:], right, strict=True):
        name = re.sub(r"[\n\x1b]", "?", row["name"])
        assert line.split() == [str(row["step"]), name, f"{row['norm']:.6g}", str(row["rank"])]


def test_filters(folder: Path) -> None:
    def steps(*arguments: str) -> list[int]:
        printed = show(folder, *arguments, "--columns", "step", "--format", "csv").stdout
        return [int(line) for line in printed.split()[1:]]

    assert steps("fc1", "--rank", "1") == list(range(STEPS))
    assert steps("fc1", "--rank", "1", "--step", "2") == [2]
    assert steps("fc1.output", "--rank", "0", "--step", "2-4") == [2, 3, 4]
    assert steps("fc1", "--step", "4-") == [4, 5] * 2
    assert steps("fc1", "--quantity", "actv_grad") == []
    assert steps("fc?", "--quantity", "actv_grad", "--quantity", "actv", "--rank", "0") == [
        *range(STEPS)
    ]
    assert steps("--table", "alerts", "--role", "output", "--rank", "0") == [
        step for step in (3, 4, 5) for _ in NAMES
    ]
    assert steps("--table", "alerts", "--role", "input") == []


def test_without_a_table(folder: Path) -> None:
    many = show(folder).stdout.splitlines()
    assert many[0].split()[:3] == ["run", "rank", "opened"]
    assert [line.split()[1] for line in many[1:]] == ["0", "1"]
    (first, _) = sorted(folder.iterdir())
    assert re.search(rf"^steps +{STEPS} \(0 to {STEPS - 1}\), closed$", show(first).stdout, re.M)
    # Of a single journal a table tells neither run nor rank.
    assert show(first, "fc1").stdout.split()[:2] == ["step", "micro_step"]


def test_a_filter_alone_asks_for_values(folder: Path) -> None:
    (first, _) = sorted(folder.iterdir())
    values = show(first, "--step", "3").stdout.splitlines()
    assert values[0].split()[:2] == ["step", "micro_step"]
    assert [line.split()[0] for line in values[1:] if line[0] != "?"] == ["3"] * len(NAMES)
    assert len(show(first, "--quantity", "actv").stdout.splitlines()) == 1 + len(NAMES) * STEPS
    assert show(first, "--quantity", "scalar", "--step", "198").stdout.splitlines()[1:] == []
    alerts = show(first, "--alerts", "--step", "3", "--format", "csv").stdout
    assert {line["rule"] for line in csv.DictReader(io.StringIO(alerts))} == {"AnomalyNan"}
    runs = show(folder, "--rank", "1").stdout.splitlines()
    assert [line.split()[1] for line in runs[1:]] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "3-1"], "no step: 3-1; write"),
        (["--series", "--quantity", "scalar"], "--series and --alerts add to the summary"),
        (["--table", "steps", "fc1"], "this table has no names, quantities and roles"),
        (["--table", "gaps", "--role", "input"], "this table has no names, quantities and roles"),
        (["--table", "keys", "--step", "3"], "this table is of all steps"),
        (["fc1", "--width", "3"], "--width is of --table overview"),
    ],
)
def test_a_filter_that_would_do_nothing_is_refused(
    folder: Path, arguments: list[str], message: str
) -> None:
    result = show(folder, *arguments, status=2)
    assert message in result.stderr
    assert result.stdout == ""


def test_an_unknown_name_or_rank_is_told(folder: Path) -> None:
    error = show(folder, "fc2.output", status=1).stderr
    assert "no name or row matches 'fc2.output'; nearest are 'fc1.output', " in error
    assert "no name or row matches 'nobody*'" in show(folder, "fc1", "nobody*", status=1).stderr
    error = show(folder, "fc1", "--rank", "9", status=1).stderr
    assert "no journal is of rank 9; there are 0, 1\n" in error
    assert show(folder, "--rank", "9", status=1).stdout == ""


def test_the_end_of_a_row_is_enough(tmp_path: Path) -> None:
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=str(tmp_path))
    for name in ("", "blocks.0.fc1", "blocks.1.fc1", "head.norm", "xnorm"):
        monitor.observe(monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT), torch.ones(1))
    monitor.step()
    monitor.close()

    def rows(*names: str) -> list[str]:
        text = show(tmp_path, *names, "--columns", "row", "--format", "csv").stdout
        return text.split()[1:]

    assert rows("0.fc1.output", "norm") == ["blocks.0.fc1.output", "head.norm.output"]
    assert rows("*.fc1") == ["blocks.0.fc1.output", "blocks.1.fc1.output"]
    error = show(tmp_path, "no", status=1).stderr
    assert "nearest are 'head.norm', 'blocks" in error  # not '', which is the model
    error = show(tmp_path, "fc1.output", status=1).stderr
    assert (
        "'fc1.output' is the end of 'blocks.0.fc1.output', 'blocks.1.fc1.output': "
        "write one of them, or '*.fc1.output' for all"
    ) in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "records"], "no such table: records; write runs, keys, series, "),
        (["--step", "x"], "no step: x; write 7, 7-9 or 7-"),
        (["--step", "7-x"], "no step: 7-x; "),
        (["--quantity", "gradient"], "no such quantity: 'gradient'; write one of actv, "),
        (["--role", "side"], "no such role: 'side'; write one of input, output"),
        (["--rank", "-1"], "no rank: -1; write a number"),
        (["--format", "xml"], "no such format: xml; write table, csv or json"),
    ],
)
def test_wrong_words_are_told(folder: Path, arguments: list[str], message: str) -> None:
    assert message in show(folder, *arguments, status=2).stderr


def test_a_column_that_does_not_exist(folder: Path) -> None:
    error = show(folder, "fc1", "--columns", "step,nrom", status=1).stderr
    assert "no such column: 'nrom'; there are run, rank, attempt, step, " in error


def test_damage_is_told(tmp_path: Path) -> None:
    path = record(tmp_path, 0) / "journal" / "000000.tpj"
    data = bytearray(path.read_bytes())
    (_, second, *_) = [m.start() for m in re.finditer(rb"TPF\x01\x02", data)]  # batches
    data[second + 60] ^= 0xFF
    path.write_bytes(data)
    result = show(tmp_path, "fc1", "--columns", "step", status=1)
    assert result.stdout.split() == ["step", "0", "2", "3", "4", "5"]
    assert "passed over 1 damaged place" in result.stderr


def test_a_terminal_gets_what_fits(folder: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(
        [TOOL, "show", folder, "fc1"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 65536):
            text += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    error = process.communicate()[1]
    lines = text.decode().splitlines()
    assert len(lines) == 1 + 2 * STEPS
    assert max(len(line) for line in lines) <= 60
    assert "more columns don't fit: --columns chooses" in error


def test_a_pager_may_leave_early(tmp_path: Path) -> None:
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=str(tmp_path))
    for i in range(20_000):
        monitor.observe(
            monitor.key(f"layer{i}", _core.ACTIVATION, _core.ROLE_OUTPUT), torch.ones(1)
        )
    monitor.step()
    monitor.close()
    process = subprocess.Popen(
        [TOOL, "show", tmp_path, "*"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"step ")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == -signal.SIGPIPE


def test_a_full_device_is_told(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [TOOL, "show", folder, "*"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert "can't write to standard output" in result.stderr
