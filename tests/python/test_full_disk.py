"""A full disk stops nothing: the training ends as it would have, one warning is given, what could
not be written is a gap, and writing goes on when there is room again."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tensorprobe
from full_disk_child import FULL_FROM, FULL_UNTIL, SMALL, STEPS

# A file system of our own takes the right to mount one, which a container may not have. Without, no
# file may grow for a while: the kernel refuses the same writes with another number.
MOUNT = [
    "unshare",
    "-rm",
    "sh",
    "-c",
    f'mount -t tmpfs -o size={SMALL // 4} none "$1" && shift && "$@"',
]
MAY_MOUNT = (
    shutil.which("unshare") is not None
    and subprocess.run([*MOUNT, "sh", "/mnt", "true"], capture_output=True, check=False).returncode
    == 0
)
WAYS = ["limit", *(["disk"] if MAY_MOUNT or os.environ.get("TP_SOAK") else [])]


def train(out: Path, how: str) -> tuple[dict[str, Any], str]:
    """Run it; what it printed, and its warnings. What is in a file system of its own is copied."""
    command = [sys.executable, str(Path(__file__).parent / "full_disk_child.py")]
    if how == "disk":
        disk = out / "disk"
        disk.mkdir()
        line = ["sh", "-c", '"$@" && cp -r "$DISK"/. "$OUT"', "sh", *command, str(disk), how]
        line = [*MOUNT, "sh", str(disk), *line]
    else:
        disk = out
        line = [*command, str(out), how]
    environment = {**os.environ, "DISK": str(disk), "OUT": str(out), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    if "directory" in result:
        result["directory"] = out / Path(result["directory"]).relative_to(disk)
    return result, done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What becomes of the model when nobody watches."""
    result, _ = train(tmp_path_factory.mktemp("plain"), "never")
    return str(result["digest"])


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_the_training_goes_on(how: str, plain: str, tmp_path: Path) -> None:
    result, said = train(tmp_path, how)
    assert result["digest"] == plain
    warnings = [line for line in said.splitlines() if "warning" in line]
    # Where no file may grow, neither may a black box.
    warnings = [line for line in warnings if "black box" not in line or how == "disk"]
    assert len(warnings) == 1, said
    assert "the journal can't be written" in warnings[0] or "output is behind" in warnings[0]
    runs = tensorprobe.open(result["directory"])
    steps = pa.table(runs.steps()).to_pydict()
    lost = {step for step, gap in zip(steps["step"], steps["gap"], strict=True) if gap}
    assert len(lost) == result["gaps"] > 0
    assert lost <= set(range(FULL_FROM - 1, FULL_UNTIL + 1))
    # Each step is there, or said to be lost.
    assert steps["step"] == list(range(STEPS))
    whole = sorted(set(range(STEPS)) - lost)
    values = pa.table(runs.series(quantity="grad_reduced")).to_pandas()
    assert list(dict.fromkeys(values["step"])) == whole
    frames = [pd.read_csv(path) for path in result["directory"].glob("grad_reduced_*.csv")]
    table = pd.concat(frames).sort_values(["step", "name"])
    assert list(table["step"]) == [step for step in whole for _ in range(4)]
    values = values.astype({"row": str}).sort_values(["step", "row"])
    assert list(table["name"]) == list(values["row"])
    np.testing.assert_allclose(table["norm"], values["norm"], atol=1e-6)  # csv has 6 decimals
    with closing(sqlite3.connect(result["directory"] / "values.sqlite")) as database:
        stored = [step for (step,) in database.execute("SELECT step FROM step ORDER BY id")]
    assert stored == whole
    events = EventAccumulator(str(result["directory"]), size_guidance={"tensors": 0})
    events.Reload()
    tag = "0:0.weight/rank0/post_grad_norm"
    assert [event.step for event in events.Tensors(tag)] == whole
