"""A journal that is kept small: who says what is gone, and what is still there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import parquet

import tensorprobe
from built import TOOL
from tensorprobe import _core
from tensorprobe.export import export

# Deprecated in pandas 3, whose default it has become; older ones need it.
pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument")
STEPS, SERIES, KEPT = 1000, 5, 40_000


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(TOOL), *arguments]
    environment = {**os.environ, "TENSORPROBE_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_old_steps_go_and_everybody_says_so(tmp_path: Path, capsys: Any) -> None:
    values = np.random.default_rng(5).standard_normal((STEPS, SERIES, 7))
    monitor = _core.Monitor(
        config_json='{"format": "csv", "step_count_per_record": 10000, "ops": ["max"],'
        f'"journal": {{"segment_bytes": 8000, "keep_bytes": {KEPT}}}}}',
        output_dir=str(tmp_path),
        watch=True,
    )
    keys = [monitor.key(f"w{i}", _core.GRAD_REDUCED) for i in range(SERIES)]
    for step in values:
        for key, row in zip(keys, step, strict=True):
            monitor.observe(key, torch.from_numpy(row))
        monitor.step()
    directory = monitor.directory
    monitor.close()
    size = sum(path.stat().st_size for path in Path(directory, "journal").iterdir())
    assert size < 2 * KEPT + 20_000  # twice, while the cursor of csv is behind
    runs = tensorprobe.open(directory)
    (row,) = pd.DataFrame.from_arrow(runs.runs()).to_dict("records")  # type: ignore[attr-defined]
    assert row["removed"] > STEPS // 4
    assert row["removed"] + row["steps"] == STEPS
    assert row["first_step"] == row["removed"]
    assert row["last_step"] == STEPS - 1
    # The pyramid knows all of them.
    overview = pd.DataFrame.from_arrow(runs.overview("w2"))  # type: ignore[attr-defined]
    assert overview["count"].sum() == STEPS
    norms = np.linalg.norm(values[:, 2], axis=1)
    for one in overview.itertuples():
        span = norms[one.first_step : one.last_step + 1]
        assert np.isclose(one.norm_min, span.min(), rtol=1e-14)
        assert np.isclose(one.norm_max, span.max(), rtol=1e-14)
    shown = run_tool("show", directory)
    assert f"removed  {row['removed']} steps (0 to {row['removed'] - 1})" in shown.stdout
    # Files are made before anything goes, and can't be made from what is left.
    (table,) = Path(directory).glob("grad_reduced_*.csv")
    found = pd.read_csv(table, float_precision="round_trip")["max"].to_numpy()
    np.testing.assert_array_equal(found, values.max(axis=2).reshape(-1))
    # What is made of the rest says what it lacks.
    lacks = f"{row['removed']} steps up to step {row['removed'] - 1} have been removed"
    made = run_tool("export", "--to", "sqlite", "-o", str(tmp_path / "out"), directory)
    assert lacks in made.stderr
    (path,) = export(directory, tmp_path / "out", "parquet")
    assert f"{row['removed']} steps before step {row['removed']} have" in capsys.readouterr().err
    assert parquet.read_metadata(path).num_rows == row["steps"] * SERIES
    again = run_tool("recover", "--rebuild", "csv", directory)
    assert again.returncode != 0
    assert "first segment is gone, or has lost its steps" in again.stderr
