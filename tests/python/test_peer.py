"""Our csv files beside those that an ancestor, msprobe 26.2.0, wrote for the same trainings.

fixtures/msprobe-26.2.0 holds its files as they are; scripts/peer_fixtures.py made them. What
differs on purpose stands here, row by row, and docs/migration.md says why.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tensorprobe
from peer_cases import CASES, InPlace, Net, Tokens, Twice

FIXTURES = Path(__file__).parent / "fixtures" / "msprobe-26.2.0"
TEXTS = ["shape", "dtype"]  # the ancestor appends these two columns to those that are asked for
INDEX = ["vpp_stage", "name", "step", "micro_step"]

# It numbers the tensors of a side anew in the backward, where a None and a number count and what
# was given by keyword doesn't. Here a tensor has one number.
NUMBERS = {"layers.0.input_0": "layers.0.input", "layers.1.input": "layers.1.input_0"}
# What was given by keyword has that name.
KEYWORDS = {"layers.1.input_1": "layers.1.input_mask"}
# The tensor is used inside of its module, too: here all of its gradient is shown, there what came
# from outside of the module.
WHOLE = "layers.0.output_0"
# Of two calls it keeps the later one: the second in the forward, the first in the backward.
CALLS = {"shared.input": "shared.input#1", "shared.output": "shared.output#1"}
# Without a gradient in the second step; it repeats that of the first one.
STALE = "sometimes"
# It looks at inputs after the forward, when an activation in place has changed them.
CHANGED, BEFORE = "1.input", "0.output"
# A dict, in which it sees nothing; and a module whose input takes part but gets no gradient, for
# which its backward hook never runs.
MISSED = {"actv": ("middle.output",), "actv_grad": ("middle.output", ".output")}


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Every file by its name; a row is found by what names it."""
    tables = {}
    for path in folder.glob("*.csv"):
        table = pd.read_csv(path)
        tables[path.name] = table.set_index([name for name in INDEX if name in table])
        assert tables[path.name].index.is_unique
    return tables


def watched(name: str, folder: Path) -> dict[str, pd.DataFrame]:
    case = CASES[name]
    model, optimizer = case.make()
    monitor = tensorprobe.TrainerMon(
        case.full_config(), params_have_main_grad=False, output_dir=folder
    )
    monitor.set_monitor(
        case.watched_part(model),
        optimizer,
        grad_acc_steps=case.micro_steps,
        start_iteration=case.start_iteration,
    )
    case.train(model, optimizer)
    monitor.close()
    return read(Path(monitor.directory))


def named(table: pd.DataFrame, *names: str) -> pd.Series[bool]:
    """Which rows have one of these names, or lie below it."""
    rows = table.index.get_level_values("name")
    found = [any(row == name or row.startswith(name + ".") for name in names) for row in rows]
    return pd.Series(found, index=table.index)


def without_known_differences(
    name: str, file: str, own: pd.DataFrame, theirs: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Take out what differs on purpose, after a look that it does."""
    case = CASES[name]
    theirs = theirs[[op for op in theirs if op not in TEXTS or op in case.full_config()["ops"]]]
    kind = file.rpartition("_")[0]
    second_step = theirs.index.get_level_values("step") == 1
    if kind == "actv_grad":
        empty = theirs.isna().all(axis="columns")  # rows of what has no gradient
        assert empty.any() == (case.model in (Net, Tokens))
        theirs = theirs[~empty]
    if case.model is Net and kind == "actv":
        theirs = theirs.rename(index=KEYWORDS, level="name")
    if case.model is Net and kind == "actv_grad":
        theirs = theirs.rename(index=NUMBERS, level="name")
        whole = named(theirs, WHOLE)
        if whole.any():
            assert (own.loc[whole.index[whole], "norm"] > theirs.loc[whole, "norm"]).all()
            theirs, own = theirs[~whole], own.drop(whole.index[whole])
    if case.model is Twice and kind in ("actv", "actv_grad"):
        calls = named(own, *CALLS.values())
        assert calls.sum() == len(CALLS)
        if kind == "actv":
            theirs = theirs.rename(index=CALLS, level="name")
            own = own[~named(own, *CALLS)]
        else:
            own = own[~calls]
    if case.model is Twice and kind in ("actv_grad", "grad_reduced", "grad_unreduced"):
        stale = named(theirs, STALE) & second_step
        assert stale.any() == second_step.any()
        theirs = theirs[~stale]
    if case.model is InPlace and kind == "actv":
        changed, before = named(own, CHANGED), named(own, BEFORE)
        assert list(own.loc[changed, "norm"]) == list(own.loc[before, "norm"])
        assert (theirs.loc[named(theirs, CHANGED), "norm"].values < own.loc[changed, "norm"]).all()
        own, theirs = own[~changed], theirs[~named(theirs, CHANGED)]
    if "dtype" in theirs and (theirs["dtype"] == "torch.float16").any():
        # In that type 1e-8 is zero, and no magnitude below it.
        half = theirs["dtype"] == "torch.float16"
        assert (theirs.loc[half, "zeros"] == 0).all()
        assert kind != "actv_grad" or (own.loc[theirs.index[half], "zeros"] == 0.125).all()
        theirs = theirs.assign(zeros=theirs["zeros"].where(~half, own["zeros"]))
    if case.model is Tokens and kind in ("actv", "actv_grad"):
        missed = named(own, *MISSED[kind])
        assert missed.sum() == len(MISSED[kind]) * case.micro_steps
        own = own[~missed]
    return own, theirs


@pytest.mark.parametrize("name", CASES)
def test_every_cell(name: str, tmp_path: Path) -> None:
    expected, found = read(FIXTURES / name), watched(name, tmp_path)
    if name == "direction":  # before the first step there is no moment; it writes 1
        assert (expected.pop("other_0-0.csv")["mean"] == 1).all()
    assert sorted(found) == sorted(expected)
    for file, table in expected.items():
        own, theirs = without_known_differences(name, file, found[file], table)
        assert list(own) == list(theirs)
        assert set(own.index) == set(theirs.index)
        own = own.loc[theirs.index]
        for op in theirs:
            if op in TEXTS:
                assert list(own[op]) == list(theirs[op])
            else:
                # Other machines round otherwise, and normalizations make more of that.
                size = np.maximum(theirs[op].abs(), theirs["norm"]) if "norm" in theirs else 1.0
                difference = (own[op] - theirs[op]).abs()
                assert (difference <= 1e-9 * size + 1e-16).all(), (file, op)
