"""Every number that a watched training leaves behind equals brute force in float64.

Two models, four optimizers, everything on; the journal, the CSV files and the event files each show
exactly the rows that brute force found, with its values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import models
import tensorprobe
from brute import EPS, OPS, Key, Row, Watched, statistics, watched_run

EXACT = (
    "count",
    "nan",
    "pos_inf",
    "neg_inf",
    "zeros",
    "subnormal",
    "min",
    "max",
    "finite_min",
    "finite_max",
    "abs_max",
)
WITH_MICRO_STEP = ("actv", "actv_grad")

all_settings = pytest.mark.parametrize(
    "setting", models.SETTINGS, ids=lambda s: f"{s.model}-{s.optimizer}"
)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def shown(row: Row, op: str) -> float:
    """Compute the value of a column by its definition."""
    stats = row.stats
    if op == "zeros":
        return stats["zeros"] / stats["count"]
    if op == "nans":
        return stats["nan"]
    if op == "id":
        return stats["min"] if row.shape == () else math.nan
    return stats[op]


def tolerance(row: Row, op: str) -> float:
    """Say how far a shown value may be from brute force. 0: not at all.

    Values of a twin are those of another graph whose sums may be added in another order: within
    1e-6 of the gradient's norm. A mean is at most norm / sqrt(n) away, zeros are counted between
    two bounds elsewhere.
    """
    if row.twin is not None:
        return 1e-6 * row.stats["norm"] if op not in ("zeros", "nans") else math.nan
    if op == "norm":
        return 1e-12 * row.stats["norm"]
    if op == "mean":
        return 1e-12 * row.stats["sum_abs"] / row.stats["count"]
    return 0.0


def zero_bounds(twin: Tensor) -> tuple[int, int]:
    """Least and most elements below EPS when every one may be off by 1e-6 of the norm."""
    size = twin.double().abs()
    slack = 1e-6 * float(torch.linalg.vector_norm(size))
    return int((size < EPS - slack).sum()), int((size < EPS + slack).sum())


def wrong_columns(row: Row, value_of: Callable[[str], float]) -> list[str]:
    """Name the columns whose value is not brute force's."""
    wrong = []
    for op in OPS:
        if op in ("shape", "dtype"):
            continue
        found, right = value_of(op), shown(row, op)
        if row.twin is not None and op == "zeros":
            low, high = (bound / row.stats["count"] for bound in zero_bounds(row.twin))
            good = low <= found <= high
        elif row.twin is not None and op == "nans":
            good = found == right
        else:
            good = same(found, right) or abs(found - right) <= tolerance(row, op)
        if not good:
            wrong.append(f"{op}: {found!r} is not {right!r}")
    return wrong


def assert_same_keys(found: set[Key], expected: set[Key]) -> None:
    assert sorted(expected - found)[:10] == [], "rows that are missing"
    assert sorted(found - expected)[:10] == [], "rows that should not be there"


def read_csv(directory: Path) -> dict[Key, dict[str, Any]]:
    rows: dict[Key, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.csv")):
        kind = path.stem.rpartition("_")[0]
        micro_column = ["micro_step"] if kind in WITH_MICRO_STEP else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pandas 4 always reads exactly
            frame = pandas.read_csv(
                path, float_precision="round_trip", keep_default_na=False, na_values=["nan"]
            )
        assert list(frame.columns) == ["vpp_stage", "name", "step", *micro_column, *OPS]
        assert (frame["vpp_stage"] == 0).all()
        for record in frame.to_dict("records"):
            key = (kind, record["name"], record["step"], record.get("micro_step", 0))
            assert key not in rows, f"{key} is there twice"
            rows[key] = {str(column): value for column, value in record.items()}
    return rows


@all_settings
def test_csv(setting: models.Setting) -> None:
    run = watched_run(setting)
    found = read_csv(run.directory)
    assert_same_keys(set(found), set(run.expected))
    for key, row in run.expected.items():
        record = found[key]

        def value_of(op: str, record: dict[str, Any] = record) -> float:
            return float(record[op])

        assert wrong_columns(row, value_of) == [], key
        assert record["dtype"] == row.dtype, key
        assert record["shape"] == str(list(row.shape)), key


TAG_KINDS = {
    "actv": "actv",
    "actv_grad": "actv_grad",
    "grad_unreduced": "acc_grad",
    "grad_reduced": "post_grad",
    "param_origin": "param_origin",
    "param_updated": "param_updated",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
}


def tag_of(key: Key, op: str) -> str:
    kind, name, _, micro = key
    place = f":{micro}" if kind in WITH_MICRO_STEP else ""
    return f"0:{name}{place}/rank0/{TAG_KINDS[kind]}_{op}"


@all_settings
def test_event_files(setting: models.Setting) -> None:
    run = watched_run(setting)
    events = EventAccumulator(str(run.directory), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found: dict[tuple[str, int], float] = {}
    tags = set(events.Tags()["tensors"])
    of_its_own = {tag for tag in tags if tag.startswith(("tensorprobe/", "custom_scalars__"))}
    assert {"tensorprobe/tags", "tensorprobe/step_ms", "custom_scalars__config__"} <= of_its_own
    for tag in tags - of_its_own:
        for event in events.Tensors(tag):
            assert (tag, event.step) not in found
            (found[tag, event.step],) = event.tensor_proto.double_val
    ops = [op for op in OPS if op not in ("shape", "dtype")]
    expected = {
        (tag_of(key, op), key[2])
        for key, row in run.expected.items()
        for op in ops
        if op != "id" or row.shape == ()
    }
    assert sorted(expected - found.keys())[:10] == []
    assert sorted(found.keys() - expected)[:10] == []
    for key, row in run.expected.items():

        def value_of(op: str, key: Key = key) -> float:
            return found.get((tag_of(key, op), key[2]), math.nan)

        assert wrong_columns(row, value_of) == [], key


def journal_rows(directory: Path) -> dict[Key, dict[str, Any]]:
    """Every record of the journal; checks on the way that the order of execution only grows."""
    rows: dict[Key, dict[str, Any]] = {}
    for step in tensorprobe.Journal(directory):
        last = -1
        for record in step.records:
            assert record["order"] > last
            last = record["order"]
            key = (record["quantity"], record["row"], step.step, record["micro_step"])
            assert key not in rows, f"{key} is there twice"
            rows[key] = record
    return rows


def near(found: float, right: float, scale: float) -> bool:
    """Compare sums: within 1e-12 of the sum of their magnitudes."""
    return abs(found - right) <= 1e-12 * scale


def check_exact_record(key: Key, row: Row, record: dict[str, Any]) -> None:
    for name in EXACT:
        assert same(record[name], row.stats[name]), (key, name)
    assert record["sq_exp"] == 0, key
    assert near(record["sum"], row.stats["sum"], row.stats["sum_abs"]), key
    assert near(record["sum_abs"], row.stats["sum_abs"], row.stats["sum_abs"]), key
    assert near(record["sum_sq"], row.stats["sum_sq"], row.stats["sum_sq"]), key
    # The sum of squares about the mean loses what the mean is large against the spread.
    assert near(record["m2"], row.stats["m2"], row.stats["sum_sq"]), key
    assert row.values is not None
    sizes = row.values.double().abs()
    index = record["abs_max_index"]
    assert float(sizes[index]) == row.stats["abs_max"], key
    if row.contiguous:
        assert index == int(sizes.argmax()), key


def check_twin_record(key: Key, row: Row, record: dict[str, Any]) -> None:
    assert row.twin is not None
    slack = 1e-6 * row.stats["norm"]
    count = row.stats["count"]
    for name in ("count", "nan", "pos_inf", "neg_inf"):
        assert record[name] == row.stats[name], (key, name)
    for name in ("min", "max", "finite_min", "finite_max", "abs_max"):
        assert abs(record[name] - row.stats[name]) <= slack, (key, name)
    for name in ("sum", "sum_abs"):
        assert abs(record[name] - row.stats[name]) <= slack * math.sqrt(count), (key, name)
    for name in ("sum_sq", "m2"):
        assert abs(record[name] - row.stats[name]) <= 2.1 * slack * row.stats["norm"], (key, name)
    low, high = zero_bounds(row.twin)
    assert low <= record["zeros"] <= high, key
    size = row.twin.reshape(-1).double().abs()
    assert float(size[record["abs_max_index"]]) >= row.stats["abs_max"] - 2 * slack, key


@all_settings
def test_journal(setting: models.Setting) -> None:
    run = watched_run(setting)
    found = journal_rows(run.directory)
    assert_same_keys(set(found), set(run.expected))
    for key, row in run.expected.items():
        record = found[key]
        (check_exact_record if row.twin is None else check_twin_record)(key, row, record)
        assert record["dtype"] == row.dtype, key
        assert tuple(record["shape"]) == row.shape, key
        assert record["call"] == row.call, key
    assert run.counters["records"] == len(run.expected)
    assert run.counters["errors"] == 0
    assert run.counters["gaps"] == 0


@all_settings
def test_execution_order_of_the_forward(setting: models.Setting) -> None:
    """Activations stand in the journal in the order in which the modules ran."""
    run = watched_run(setting)
    found = [key for key in journal_rows(run.directory) if key[0] == "actv"]
    assert found == [key for key in run.expected if key[0] == "actv"]


def test_brute_force_knows_its_trade() -> None:
    """The reference itself, on numbers whose statistics are known by heart."""
    x = torch.tensor([3.0, -4.0, 0.0, 1e-9, math.nan, math.inf, -math.inf, 1e-40])
    stats = statistics(x)
    assert (stats["count"], stats["nan"], stats["pos_inf"], stats["neg_inf"]) == (8, 1, 1, 1)
    assert (stats["zeros"], stats["subnormal"]) == (3, 1)
    assert (stats["finite_min"], stats["finite_max"], stats["abs_max"]) == (-4, 3, math.inf)
    assert math.isnan(stats["norm"])
    assert math.isnan(stats["min"])
    assert stats["sum_sq"] == pytest.approx(25.0)
    assert statistics(torch.tensor([3.0, 4.0]))["norm"] == 5.0
    assert statistics(torch.tensor([1.0, 3.0]))["m2"] == 2.0


@pytest.mark.parametrize("op", [op for op in OPS if op not in ("shape", "dtype")])
@pytest.mark.parametrize("kind", ["actv", "actv_grad"])
def test_the_comparison_can_fail(kind: str, op: str) -> None:
    """A value that is off by a little more than it may be is found."""
    run = watched_run(models.Setting("gpt", "adamw"))
    row = run.expected[kind, "blocks.0.mlp.up.input", 0, 0]
    assert (row.twin is None) == (kind == "actv")
    assert wrong_columns(row, lambda op: shown(row, op)) == []
    slack = {"actv": 2e-12, "actv_grad": 2e-6}[kind] * row.stats["norm"]
    moved = {"zeros": 2 / row.stats["count"], "nans": 1}.get(op, slack)

    def value_of(name: str) -> float:
        right = shown(row, name)
        return (0.0 if math.isnan(right) else right + moved) if name == op else right

    wrong = wrong_columns(row, value_of)
    assert [text.split(":")[0] for text in wrong] == [op]


def test_what_the_models_cover() -> None:
    """The runs contain what is hard: second calls, several tensors a side, 0-dimensional ones."""
    run: Watched = watched_run(models.Setting("llama", "adamw"))
    names = {key[1] for key in run.expected}
    assert "shared.mlp.act.output#1" in names
    assert "shared.input_1" in names
    assert ".output_1" in names
    assert run.expected["actv", ".output_1", 0, 0].shape == ()
    assert {key[3] for key in run.expected} == {0, 1}
    kinds = {key[0] for key in run.expected}
    assert kinds == set(TAG_KINDS)
    assert ("exp_avg", "norm.weight", 0, 0) not in run.expected
    assert ("exp_avg", "norm.weight", 1, 0) in run.expected
    sgd = watched_run(models.Setting("gpt", "sgd"))
    assert "exp_avg" not in {key[0] for key in sgd.expected}
