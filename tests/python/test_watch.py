"""How ``watch()`` takes its configuration."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

import tensorprobe
from built import TOOL
from tensorprobe import ConfigError, TrainerMon


def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    return net, torch.optim.Adam(net.parameters())


def written(directory: str) -> tuple[Counter[str], set[str]]:
    """How many records of each quantity there are, and the csv files' names and columns."""
    table = pa.table(tensorprobe.open(directory).series(columns=["quantity"]))
    quantities = Counter(table["quantity"].to_pylist())
    files = sorted(Path(directory).glob("*.csv"))
    return quantities, {f"{file.name} {file.read_text().split()[0]}" for file in files}


def watched(directory: Path, *args: Any, **kwargs: Any) -> tuple[Counter[str], set[str]]:
    net, optimizer = parts()
    with tensorprobe.watch(net, optimizer, *args, output_dir=directory, **kwargs) as monitor:
        train(net, optimizer)
    return written(monitor.directory)


@pytest.mark.parametrize(
    ("purpose", "quantities"),
    [
        ("gradients", {"grad_reduced", "grad_unreduced"}),
        ("nan", None),
        ("compare", None),
    ],
)
def test_a_purpose_records_the_same_under_both(
    purpose: str, quantities: set[str] | None, tmp_path: Path
) -> None:
    path = tmp_path / "monitor.json"
    done = subprocess.run([TOOL, "init", purpose], capture_output=True, text=True, check=True)
    path.write_text(done.stdout)
    net, optimizer = parts()
    monitor = TrainerMon(str(path), output_dir=tmp_path / "a")
    monitor.set_monitor(net, optimizer)
    train(net, optimizer)
    monitor.close()
    expected = written(monitor.directory)
    assert watched(tmp_path / "b", path) == expected
    if quantities is not None:
        assert set(expected[0]) == quantities
    else:
        assert len(expected[0]) == 8


def test_a_configuration_is_a_path_or_a_dict(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text('{"param_distribution": false, "ops": ["max"], "format": "csv",}')  # a slip
    fields = {"param_distribution": False, "ops": ["max"], "format": "csv"}
    expected = watched(tmp_path / "a", **fields)
    assert "grad_reduced_0-999.csv vpp_stage,name,step,max" in expected[1]
    assert "param_origin" not in expected[0]
    assert watched(tmp_path / "b", str(path)) == expected
    assert watched(tmp_path / "c", config=path) == expected
    assert watched(tmp_path / "d", fields) == expected
    assert watched(tmp_path / "e", {**fields, "ops": ["min"]}, ops=["max"]) == expected


def test_what_is_no_configuration_says_so(tmp_path: Path) -> None:
    net, optimizer = parts()
    with pytest.raises(TypeError, match="path of a JSON file or a dict, not an int"):
        tensorprobe.watch(net, optimizer, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got ops, eps beside a configuration file.*own\.json"):
        tensorprobe.watch(net, optimizer, tmp_path / "own.json", ops=["max"], eps=1)
    with pytest.raises((ConfigError, OSError), match=r"own\.json"):
        tensorprobe.watch(net, optimizer, tmp_path / "own.json")
    (tmp_path / "own.json").write_text('{\n  "opps": []}')
    with pytest.raises(ConfigError, match=r"own\.json:2:3: opps: .*ops"):
        tensorprobe.watch(net, optimizer, tmp_path / "own.json")
    assert not net[0]._forward_hooks  # type: ignore[index]
