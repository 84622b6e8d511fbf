"""What was recorded in other forms, read by others: sqlite3, pandas, pyarrow, TensorBoard."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tensorprobe
from built import TOOL
from tensorprobe.export import csv2tensorboard_by_step, data2db, export
from tensorprobe.export.__main__ import main
from tensorprobe.export.directories import find_ranks, read_columns, read_rows
from tensorprobe.export.pool import Bar, run_tasks
from tensorprobe.export.trend import FILE_NAME
from trend_cases import EXPECTED, VARIANTS, make_ranks, read_trend

STEPS = 3
CONFIG = {
    "targets": {},
    "xy_distribution": True,
    "all_xy": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "ops": ["norm", "min", "max", "mean", "nans"],
    "step_count_per_record": 2,
}


def train(directory: Path, formats: list[str]) -> Path:
    """A small run on one rank; returns the rank's directory."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    monitor = tensorprobe.TrainerMon(
        {**CONFIG, "format": formats}, params_have_main_grad=False, output_dir=directory
    )
    monitor.set_monitor(model, optimizer, grad_acc_steps=2)
    for _ in range(STEPS):
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    return Path(monitor.directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank with csv files, event files and a database; its journal is in the same directory."""
    return train(tmp_path_factory.mktemp("run"), ["csv", "tensorboard", "sqlite"])


def without_csv(run: Path, into: Path) -> Path:
    """A directory of runs with one that has a journal alone."""
    target = into / run.name
    target.mkdir(parents=True)
    shutil.copytree(run / "journal", target / "journal")
    shutil.copytree(run / "followers", target / "followers")
    return into


@pytest.mark.parametrize("process_num", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_trend_is_the_ancestors(variant: str, process_num: int, tmp_path: Path) -> None:
    make_ranks(tmp_path / "ranks")
    arguments = VARIANTS[variant]
    path = data2db(tmp_path / "db", tmp_path / "ranks", process_num=process_num, **arguments)
    expected: dict[str, list[list[Any]]] = json.loads(EXPECTED.read_text())[variant]
    found = json.loads(json.dumps(read_trend(path)))
    assert found["trend_data"] == sorted(expected.pop("trend_data"))
    assert {name: found[name] for name in expected} == expected


def test_trend_of_a_journal_is_that_of_its_csv_files(run: Path, tmp_path: Path) -> None:
    from_csv = read_trend(data2db(tmp_path / "csv", run))
    (path,) = export(without_csv(run, tmp_path / "bare"), tmp_path / "out", "trend")
    assert read_trend(path) == from_csv
    assert len(from_csv["trend_data"]) == sum(len(pd.read_csv(file)) for file in run.glob("*.csv"))
    assert [entry.name for entry in path.parent.iterdir()] == [FILE_NAME]


def test_csv_is_that_of_the_run(run: Path, tmp_path: Path) -> None:
    (folder,) = export(run, tmp_path, "csv")
    made = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    assert made == {path.name: path.read_bytes() for path in run.glob("*.csv")}
    assert len(made) > 8


def test_sqlite_is_that_of_the_run(run: Path, tmp_path: Path) -> None:
    (folder,) = export(run, tmp_path, "sqlite", process_num=2)
    query = "SELECT row, quantity, step, value.* FROM value JOIN series ON series.id = series_id"
    query += " JOIN step ON step.id = step_id ORDER BY step_id, position"
    rows = [
        sqlite3.connect(path / "values.sqlite").execute(query).fetchall() for path in (folder, run)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) > 100


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_is_that_of_the_run(run: Path, tmp_path: Path) -> None:
    (folder,) = export(run, tmp_path, "tensorboard")
    assert scalars(folder) == scalars(run)


def test_parquet_has_every_value(run: Path, tmp_path: Path) -> None:
    (path,) = export(run, tmp_path, "parquet")
    assert path.name == "rank0.parquet"
    table = pd.DataFrame(parquet.read_table(path).to_pydict())
    journal = tensorprobe.Journal(run)
    records = [record for step in journal for record in step.records]
    assert len(table) == len(records)
    assert list(table["norm"]) == pytest.approx([record["norm"] for record in records], nan_ok=True)


@pytest.mark.parametrize("process_num", [1, 2])
def test_csv2tensorboard_by_step(process_num: int, tmp_path: Path) -> None:
    make_ranks(tmp_path)
    out = csv2tensorboard_by_step(
        tmp_path,
        "Dec03_21-34-40",
        "Dec03_21-34-40",
        process_num,
        ["actv", "grad_reduced"],
        tmp_path / "events",
    )
    for directory in find_ranks(tmp_path):
        for kind in ("actv", "grad_reduced"):
            files = sorted(directory.path.glob(f"{kind}_[0-9]*.csv"))
            expected: dict[str, list[tuple[int, float]]] = {}
            for _, row in pd.concat(map(pd.read_csv, files)).iterrows() if files else ():
                micro = f":micro{row['micro_step']}" if "micro_step" in row else ""
                for op in ("norm", "min", "max", "zeros", "nans", "mean"):
                    tag = f"vp{row['vpp_stage']}:{row['name']}{micro}/{op}"
                    if op in row and not (directory.rank == 2 and pd.isna(row[op])):
                        value = float(torch.tensor(float(row[op]), dtype=torch.float32))
                        expected.setdefault(tag, []).append((row["step"], value))
            folder = out / f"rank{directory.rank}" / kind
            found = scalars(folder) if folder.exists() else {}
            if directory.rank == 2:  # here a NaN that was written is a NaN, an empty cell is none
                found = {
                    tag: [pair for pair in pairs if not math.isnan(pair[1])]
                    for tag, pairs in found.items()
                }
                found = {tag: pairs for tag, pairs in found.items() if pairs}
            assert {tag: sorted(pairs) for tag, pairs in expected.items()} == found
    assert not (out / "rank0" / "exp_avg").exists()


def test_the_command(run: Path, tmp_path: Path) -> None:
    command = TOOL
    result = subprocess.run(
        [command, "export", "--to", "trend", "-o", tmp_path, run],
        env={**os.environ, "TENSORPROBE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"{tmp_path / FILE_NAME}\n"
    assert sqlite3.connect(tmp_path / FILE_NAME).execute("SELECT count(*) FROM trend_data")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for shown, stream in ((True, Terminal()), (False, io.StringIO())):
        monkeypatch.setattr(sys, "stderr", stream)
        bar = Bar()
        tasks = [(n,) for n in range(3)]
        assert list(run_tasks(lambda n: n, tasks, 1, "csv", bar)) == [0, 1, 2]
        lines = stream.getvalue().split("\r")
        assert lines[1:] == (
            [
                "csv " + "█" * 10 + "░" * 20 + " 1/3",
                "csv " + "█" * 20 + "░" * 10 + " 2/3",
                "csv " + "█" * 30 + " 3/3\n",
            ]
            if shown
            else []
        )


def test_what_is_there_is_replaced(run: Path, tmp_path: Path, capsys: Any) -> None:
    for _ in range(2):
        (folder,) = export(run, tmp_path, "csv")
        (folder / "old.csv").write_text("old")
    assert capsys.readouterr().err == f"{folder} is replaced\n"
    export(run, tmp_path, "csv")
    assert not (folder / "old.csv").exists()


def test_a_later_directory_of_a_rank(run: Path, tmp_path: Path, capsys: Any) -> None:
    make_ranks(tmp_path)
    earlier, later = "Dec01_00-00-00-rank0-1a2b3c4d", "Dec04_00-00-00-rank0-1a2b3c4d"
    (tmp_path / earlier).mkdir()
    (tmp_path / later).mkdir()
    assert [rank.path.name[:5] for rank in find_ranks(tmp_path)] == ["Dec04", "Dec03", "Dec03"]
    assert earlier in (said := capsys.readouterr().err)
    assert later not in said
    assert "(--from and --until, in Python time_start and time_end, choose others)" in said
    (first,) = find_ranks(tmp_path, time_end="Dec02_00-00-00")
    assert first.path.name == earlier


def test_broken_rows_are_said(tmp_path: Path, capsys: Any) -> None:
    make_ranks(tmp_path)
    path = tmp_path / "Dec03_21-34-40-rank2-1a2b3c4d" / "actv_0-99.csv"
    whole = path.read_text()
    path.write_text(whole + "0,cut,4")
    found = read_trend(data2db(tmp_path / "db", tmp_path))
    assert f"{path}: line 7: not a row of this table, passed over" in capsys.readouterr().err
    path.write_text(whole)
    assert found == read_trend(data2db(tmp_path / "db", tmp_path))


HEAD = b"vpp_stage,name,step,micro_step,norm\n"


@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(
            st.sampled_from(
                [
                    b"0",
                    b"1",
                    b"w",
                    b"-1e400",
                    b"nan",
                    b",",
                    b",",
                    b'"',
                    b"\n",
                    b"\r",
                    b"\0",
                    b"\xff",
                    b"1e30",
                    b"0x1p3",
                    b"\xf0\x9f\x98\x80",
                ]
            ),
            max_size=60,
        ).map(lambda parts: HEAD + b"".join(parts)),
    )
)
@example(HEAD + b"0,w,inf,0,1\n0,w,1,0,2\n")
@example(HEAD + b"0,w,1e300,0,1\n")
@example(HEAD + b'0,"' + b"w" * 200_000 + b"\n")
@example(HEAD + b"0,\xff\xfe,1,0,1\n")
@example(HEAD + b"0,w\0,1,0,1\n")
@example(b"\xef\xbb\xbf" + HEAD)
@example(b"")
@settings(max_examples=20_000 if os.environ.get("TP_SOAK") else 300, deadline=None)
def test_any_bytes_as_a_csv_file(data: bytes) -> None:
    """Rows, or a message that says where; and what the rows hold fits into a database."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "actv_0-9.csv")
        path.write_bytes(data)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            columns = read_columns(path)
            if not {"vpp_stage", "name", "step"} <= set(columns):
                with pytest.raises(ValueError, match="line 1: no column"):
                    list(read_rows(path, ["norm", "max"]))
                return
            rows = list(read_rows(path, ["norm", "max"]))
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            for row in rows:
                assert len(row.values) == 2
                numbers = (row.vpp_stage, row.step, row.micro_step)
                database.execute("SELECT ?, ?, ?, ?", (row.name, *numbers)).fetchall()
        for line in said.getvalue().splitlines():
            assert line.startswith(f"{path}: line ")
            assert line.endswith(", passed over")


def test_rows_around_a_bad_one_are_read(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "actv_0-9.csv"
    good = b"0,w,%d,0,1.5\n"
    bad = [b"0,w,inf,0,1\n", b"0," + b"w" * 200_000 + b",1,0,1\n", b"0,w,1\n", b"0,w,1e300,0,1\n"]
    path.write_bytes(HEAD + b"".join(good % n + line for n, line in enumerate(bad)) + good % 9)
    assert [row.step for row in read_rows(path, ["norm"])] == [0, 1, 2, 3, 9]
    said = capsys.readouterr().err
    assert [f"{path}: line {n}: " in said for n in range(1, 11)] == [
        n in (3, 5, 7, 9) for n in range(1, 11)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "trend", "-o", "{out}", "{empty}"], "has no directory of a rank"),
        (["--to", "trend", "-o", "{out}", "{missing}"], "is no directory"),
        (["--to", "parquet", "-o", "{out}", "{ranks}"], "of csv files alone tensorboard and trend"),
        (["--to", "csv", "-o", "{out}", "--process_num", "0", "{ranks}"], "from 1 to 128, not 0"),
        (["--to", "trend", "-o", "{out}", "--mapping", "{bad}", "{ranks}"], "line 1, column 2"),
        (
            ["--to", "csv", "-o", "{out}", "--from", "yesterday", "{ranks}"],
            "--from (time_start) is a time like Dec03_21-34-40, not 'yesterday'",
        ),
    ],
)
def test_bad_calls(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_ranks(tmp_path / "ranks")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{no}")
    names = {
        "out": tmp_path / "out",
        "empty": tmp_path / "empty",
        "missing": tmp_path / "missing",
        "ranks": tmp_path / "ranks",
        "bad": tmp_path / "bad.json",
    }
    assert main([word.format(**names) for word in arguments]) == 1
    assert message in capsys.readouterr().err


def test_bad_arguments(tmp_path: Path) -> None:
    make_ranks(tmp_path)
    with pytest.raises(ValueError, match="format is auto or monitor, not 'dump'"):
        data2db(tmp_path / "db", tmp_path, "dump")
    with pytest.raises(ValueError, match=r"micro_step is True or False, not 2"):
        data2db(tmp_path / "db", tmp_path, micro_step=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"data_type_list is a list of actv,.*not \['loss'\]"):
        csv2tensorboard_by_step(tmp_path, data_type_list=["loss"])
    with pytest.raises(
        ValueError, match=r"--from \(time_start\) is later than --until \(time_end\)"
    ):
        csv2tensorboard_by_step(tmp_path, "Dec03_21-34-40", "Dec02_21-34-40")
    (tmp_path / "Dec03_21-34-40-rank9-1a2b3c4d").mkdir()
    with pytest.raises(FileNotFoundError, match="no csv files in"):
        data2db(tmp_path / "db", tmp_path / "Dec03_21-34-40-rank9-1a2b3c4d")
