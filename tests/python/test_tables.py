"""Tables of ``tensorprobe.open`` against the independent reader, in four consumers."""

from __future__ import annotations

import gc
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import tensorprobe
from journal_reader import ALERTS, BATCH, read_journal, record_fields
from tensorprobe import _core

STEPS = 12
KEYS = [
    ("blocks.0.mlp", _core.ACTIVATION, _core.ROLE_INPUT, 0, -1),
    ("blocks.0.mlp", _core.ACTIVATION, _core.ROLE_OUTPUT, 0, 0),
    ("blocks.0.mlp", _core.ACTIVATION, _core.ROLE_OUTPUT, 1, 1),
    ("blocks.1.mlp", _core.ACTIVATION_GRAD, _core.ROLE_OUTPUT, 0, -1),
    ("", _core.ACTIVATION, _core.ROLE_OUTPUT, 0, -1),
    ("层.weight", _core.GRAD_REDUCED, _core.ROLE_NONE, 0, -1),
    ("odd[1]*name", _core.EXP_AVG, _core.ROLE_NONE, 0, -1),
]
QUANTITIES = "actv actv_grad grad_unreduced grad_reduced param_origin param_updated exp_avg".split()
ROLES = ("", "input", "output")
DTYPES = (None, "torch.float64", "torch.float32", "torch.float16", "torch.bfloat16")


def tensor_of(step: int, key: int) -> torch.Tensor:
    dtype = (torch.float32, torch.float64, torch.bfloat16)[key % 3]
    generator = torch.Generator().manual_seed(100 * step + key)
    tensor = torch.randn((2, key + 1)[: key % 3], generator=generator, dtype=torch.float64)
    if step == 5 and key < 3:
        tensor = tensor * math.nan
    if step == 6 and key == 3:
        tensor = torch.empty(0)
    return tensor.to(dtype)


def record(folder: Path, rank: int, run: str, keys: int = len(KEYS)) -> Path:
    monitor = _core.Monitor(
        config_json='{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}',
        output_dir=str(folder),
        rank=rank,
        run_id=run,
    )
    for step in range(STEPS):
        for k, (name, quantity, role, vpp, slot) in enumerate(KEYS[: min(keys, step + 3)]):
            key = monitor.key(name, quantity, role, vpp, slot)
            monitor.observe(key, tensor_of(step, k), step % 2)
        monitor.step()
    directory = Path(monitor.directory)
    monitor.close()
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with three ranks of one run, and below it a rank of another."""
    path = tmp_path_factory.mktemp("output")
    for rank in (0, 2, 10):
        record(path, rank, "first")
    record(path / "more", 0, "second", keys=2)
    return path


def expected(folder: Path, kind: int) -> Iterator[dict[str, Any]]:
    """Yield what the independent reader finds: the records of all journals in the table's words."""
    for item, definitions in (
        pair
        for journal in sorted(folder.rglob("journal"), key=lambda path: rank_of(path.parent))
        for pair in read_journal(journal.parent)
    ):
        for stored in item.records if item.type == kind else ():
            fields = record_fields(stored)
            if fields["kind"] not in (1, 2):
                continue
            key = definitions.keys[fields["key"]]
            side = ROLES[key["role"]]
            row = f"{key['name']}.{side}" if side else key["name"]
            yield fields | {
                "run": item.run["run_id"],
                "rank": item.run["rank"],
                "attempt": item.run["attempt"],
                "step": item.step,
                "name": key["name"],
                "row": row if key["slot"] < 0 else f"{row}_{key['slot']}",
                "quantity": QUANTITIES[key["quantity"] - 1],
                "role": side,
                "slot": key["slot"],
                "vpp_stage": key["vpp_stage"],
                "shape": list(definitions.shapes.get(fields["shape"], ())),
            }


def rank_of(directory: Path) -> tuple[str, int]:
    """Natural order: folders' names begin with their time, which the tests can't choose."""
    match = re.search(r"rank(\d+)", directory.name)
    assert match is not None
    return (str(directory.parent), int(match[1]))


def same(found: Any, right: Any) -> bool:
    """Floats are compared by their bits."""
    if isinstance(right, float):
        return struct.pack("<d", found) == struct.pack("<d", right)
    return bool(found == right)


def read(table: tensorprobe.Table) -> list[dict[str, Any]]:
    arrow = pa.table(table)
    arrow.validate(full=True)
    rows: list[dict[str, Any]] = arrow.to_pylist()
    return rows


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["run"], row["rank"], row["step"], row["order"]))


def test_series_hold_every_field_of_every_record(folder: Path) -> None:
    rows = sorted_rows(read(tensorprobe.open(folder).series()))
    right = sorted_rows(list(expected(folder, BATCH)))
    assert len(rows) == len(right) == 3 * (3 + 4 + 5 + 6 + 7 * 8) + 2 * 12
    for row, fields in zip(rows, right, strict=True):
        for name in row.keys() & fields.keys() - {"dtype", "abs_max_index"}:
            assert same(row[name], fields[name]), name
        assert row["dtype"] == DTYPES[fields["dtype"]]
        assert row["abs_max_index"] % 2**64 == fields["abs_max_index"]
        assert row["partial"] is False
        missing = set(fields) - set(row)
        assert missing == {"state", "key", "kind", "flags", "arena"}
        assert set(row) - set(fields) == {"norm", "mean", "std", "partial"}


def test_computed_statistics_are_those_of_the_tensors(folder: Path) -> None:
    for row in read(tensorprobe.open(folder).series(rank=2)):
        key = next(
            k
            for k, (name, quantity, _, vpp, slot) in enumerate(KEYS)
            if (name, QUANTITIES[quantity - 1], vpp, slot)
            == (row["name"], row["quantity"], row["vpp_stage"], row["slot"])
            and ROLES[KEYS[k][2]] == row["role"]
        )
        tensor = tensor_of(row["step"], key).double()
        assert row["shape"] == list(tensor.shape)
        assert row["nan"] == int(tensor.isnan().sum())
        if tensor.numel() > 0:
            finite = tensor[tensor.isfinite()].numpy()
            std = finite.std() if finite.size else math.nan
            # 16-bit types are summed in float32 at first.
            rtol = 1e-6 if row["dtype"] == "torch.bfloat16" else 1e-12
            right = (tensor.norm().item(), tensor.mean().item(), std)
            found = (row["norm"], row["mean"], row["std"])
            np.testing.assert_allclose(found, right, rtol=rtol, atol=1e-12)


def test_alerts_are_those_of_the_journal(folder: Path) -> None:
    table = tensorprobe.open(folder).alerts()
    rows = sorted_rows(read(table))
    right = sorted_rows(list(expected(folder, ALERTS)))
    assert len(rows) == len(right) == 3 * 3 + 2
    for row, fields in zip(rows, right, strict=True):
        assert (row.pop("rule"), row.pop("op")) == ("AnomalyNan", "nans")
        for name, value in row.items():
            assert same(value, fields[name]), name


def test_runs_keys_and_steps(folder: Path) -> None:
    runs = tensorprobe.open(folder)
    assert runs.names == ["first", "second"]
    assert runs.ranks == [0, 2, 10]
    assert len(runs.of("second").journals) == 1
    with pytest.raises(KeyError, match="first, second"):
        runs.of("third")
    table = read(runs.runs())
    assert [(row["run"], row["rank"]) for row in table if row["run"] == "first"] == [
        ("first", 0),
        ("first", 2),
        ("first", 10),
    ]
    for row in table:
        assert (row["steps"], row["first_step"], row["last_step"]) == (STEPS, 0, STEPS - 1)
        assert (row["attempts"], row["closed"]) == (1, True)
        start = next(item.run["start"] for item, _ in read_journal(Path(row["directory"])))
        assert row["opened"].value == start
    keys = read(runs.keys())
    assert len(keys) == 3 * len(KEYS) + 2
    for row, (name, quantity, role, vpp, slot) in zip(keys, KEYS, strict=False):
        assert row["name"] == row["global_name"] == name
        assert (row["vpp_stage"], row["slot"]) == (vpp, slot)
        assert (row["quantity"], row["role"]) == (QUANTITIES[quantity - 1], ROLES[role])
    steps = read(runs.steps(rank=10))
    items = read_journal(Path(runs.journals[2].directory))
    headers = [item.header for item, _ in items if item.type == BATCH]
    for row, header in zip(steps, headers, strict=True):
        assert row["time"].value == header["wall_ns"]
        assert row.pop("left_out") == " ".join(
            name for number, name in enumerate(QUANTITIES, 1) if header["left_out"] >> number & 1
        )
        for name in row.keys() & header.keys():
            assert row[name] == header[name], name


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ({"name": "blocks.0.mlp"}, {0, 1, 2}),
        ({"name": "blocks.*"}, {0, 1, 2, 3}),
        ({"name": "blocks.[1-9].*"}, {3}),
        ({"name": "*.output_?"}, {1, 2}),
        ({"name": ["blocks.0.mlp.input", "层*"]}, {0, 5}),
        ({"name": "odd[1]*name"}, {6}),
        ({"name": ""}, {4}),
        ({"name": "nobody"}, set()),
        ({"quantity": "actv"}, {0, 1, 2, 4}),
        ({"quantity": ["exp_avg", "grad_reduced"]}, {5, 6}),
        ({"role": "output", "quantity": "actv"}, {1, 2, 4}),
        ({"role": ""}, {5, 6}),
        ({"slot": -1, "role": "output"}, {3, 4}),
    ],
)
def test_filters_choose_keys(folder: Path, words: dict[str, Any], keys: set[int]) -> None:
    runs = tensorprobe.open(folder)
    right = {(KEYS[k][0], QUANTITIES[KEYS[k][1] - 1], ROLES[KEYS[k][2]], KEYS[k][4]) for k in keys}
    for table in (runs.keys(**words, rank=0), runs.series(**words, rank=0)):
        found = read(table)
        assert {(r["name"], r["quantity"], r["role"], r["slot"]) for r in found} == right


@pytest.mark.parametrize(
    ("steps", "right"),
    [
        (7, [7]),
        (range(4, 9), [4, 5, 6, 7, 8]),
        (slice(9, None), [9, 10, 11]),
        (slice(None, 2), [0, 1]),
        (range(5, 5), []),
        (99, []),
    ],
)
def test_filters_choose_steps(folder: Path, steps: int | range | slice, right: list[int]) -> None:
    runs = tensorprobe.open(folder)
    found = [row["step"] for row in read(runs.of("first").steps(steps=steps, rank=[0, 10]))]
    assert found == right * 2
    series = read(runs.of("first").series("blocks.0.mlp.input", steps=steps, rank=2))
    assert [row["step"] for row in series] == right
    alerts = read(runs.of("first").alerts(steps=steps, rank=2))
    assert {row["step"] for row in alerts} == {5} & set(right)


def test_filters_choose_places_in_a_step(folder: Path) -> None:
    runs = tensorprobe.open(folder)
    odd = read(runs.series("blocks.0.mlp.input", rank=2, micro_step=1))
    assert [row["step"] for row in odd] == [1, 3, 5, 7, 9, 11]
    assert read(runs.series(call=1)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"columns": ["nrom"]}, "no such column: 'nrom'; there are run, rank, "),
        ({"quantity": "gradient"}, "no such quantity: 'gradient'; write one of actv, actv_grad, "),
        ({"role": "side"}, "no such role: 'side'; write one of input, output"),
        ({"steps": range(0, 10, 2)}, "steps must follow one another"),
        ({"steps": -1}, "steps count from 0"),
    ],
)
def test_words_that_mean_nothing_are_errors(
    folder: Path, words: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tensorprobe.open(folder).series(**words)


def test_four_consumers_see_the_same(folder: Path) -> None:
    columns = ["run", "step", "row", "quantity", "shape", "nan", "norm", "max", "partial"]
    series = tensorprobe.open(folder).series(columns=columns)
    assert series.columns == columns
    right = pa.table(series).to_pylist()
    assert any(math.isnan(row["norm"]) for row in right)
    pandas = pd.DataFrame.from_arrow(series)  # type: ignore[attr-defined]
    assert isinstance(pandas["row"].dtype, pd.CategoricalDtype)
    for column in columns[:-1]:
        values = [[int(n) for n in v] if column == "shape" else v for v in pandas[column]]
        assert [repr(v) for v in values] == [repr(row[column]) for row in right], column
    polars = pl.DataFrame(series)
    assert polars.schema["nan"] == pl.Int64
    assert repr(polars.rows()) == repr([tuple(row.values()) for row in right])
    duck = duckdb.from_arrow(series).fetchall()
    assert repr(duck) == repr([tuple(row.values()) for row in right])
    counted = duckdb.execute("SELECT count(*) FROM series WHERE isnan(norm)").fetchall()
    assert counted == [(sum(math.isnan(row["norm"]) for row in right),)]


def test_large_journals_come_in_batches(tmp_path: Path) -> None:
    """Of a step that is larger than a batch, with new names in every step."""
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=str(tmp_path))
    tensor = torch.ones(1)
    steps, count = 3, 40_000
    for step in range(steps):
        for i in range(count):
            name = f"layer{i // 4 + step}" if i % 4 else f"new{step}_{i}"
            monitor.observe(monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT), tensor)
        monitor.step()
    monitor.close()
    runs = tensorprobe.open(tmp_path)
    stream = pa.RecordBatchReader.from_stream(runs.series(columns=["step", "name"]))
    batches = list(stream)
    assert [batch.num_rows for batch in batches] == [65_536, 54_464]
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    right = [
        (step, f"layer{i // 4 + step}" if i % 4 else f"new{step}_{i}")
        for step in range(steps)
        for i in range(count)
    ]
    assert rows == right
    assert pl.DataFrame(runs.series(columns=["step", "name"])).rows() == right
    assert duckdb.from_arrow(runs.series(columns=["step", "name"])).fetchall() == right


def test_columns_outlive_everything_they_came_from(folder: Path) -> None:
    runs = tensorprobe.open(folder)
    column = pa.table(runs.series(columns=["step", "row", "shape"]))["row"]
    stream = pa.RecordBatchReader.from_stream(runs.series())
    batch = stream.read_next_batch()
    del stream, runs
    gc.collect()
    assert len(set(column.to_pylist())) == len({key[:3] + key[4:] for key in KEYS})
    assert batch.column("name").dictionary.to_pylist()[0] == "blocks.0.mlp"
    capsule = tensorprobe.open(folder).series().__arrow_c_stream__()
    schema = tensorprobe.open(folder).series().__arrow_c_schema__()
    del capsule, schema  # that nobody took: a sanitizer would see what stays
    gc.collect()


def test_a_damaged_place_is_passed_over_and_counted(tmp_path: Path) -> None:
    directory = record(tmp_path, 0, "run")
    path = directory / "journal" / "000000.tpj"
    data = bytearray(path.read_bytes())
    frames = [m.start() for m in re.finditer(rb"TPF\x01\x02", data)]  # batches
    data[frames[4] + 60] ^= 0xFF
    path.write_bytes(data)
    runs = tensorprobe.open(directory)
    series = runs.series("blocks.0.mlp.input")
    assert [row["step"] for row in read(series)] == [s for s in range(STEPS) if s != 4]
    assert series.damaged == 1
    # A step that isn't wanted isn't looked at.
    other = runs.series("blocks.0.mlp.input", steps=slice(6, None))
    assert len(read(other)) == STEPS - 6
    assert other.damaged == 0


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no journal, nor does a directory below it"):
        tensorprobe.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="no/such"):
        tensorprobe.open("no/such")
    directory = record(tmp_path, 0, "run")
    table = tensorprobe.open(tmp_path).series()
    for path in (directory / "journal").iterdir():
        path.unlink()
    with pytest.raises(OSError, match="holds no journal"):
        pa.table(table)


def test_a_growing_journal_is_read_up_to_its_end(tmp_path: Path) -> None:
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=str(tmp_path))
    key = monitor.key("a", _core.ACTIVATION, _core.ROLE_OUTPUT)

    def steps(count: int) -> None:
        for _ in range(count):
            monitor.observe(key, torch.ones(3))
            monitor.step()

    steps(3)  # the end of a step waits until the one before it is in the journal
    table = tensorprobe.open(tmp_path).series()
    assert [row["step"] for row in read(table)][:2] == [0, 1]
    steps(3)
    assert [row["step"] for row in read(table)][:5] == [0, 1, 2, 3, 4]
    monitor.close()
    assert [row["step"] for row in read(table)] == [0, 1, 2, 3, 4, 5]


def test_examples_of_the_page_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text()
    section = page[page.index("## Reading a run") :]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    record(tmp_path, 0, "run")
    names: dict[str, Any] = {"directory": tmp_path}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["rows"] == 3 + 4 + 5 + 6 + 7 * 8
    assert len(names["norms"]) == 2 * STEPS  # of both slots
    assert names["first"].step == 5
