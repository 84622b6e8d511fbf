"""The quick ways into torch are in use, and where one is missing the slow way gives the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tensorprobe import _core, _layout

TRAIN = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

{before}
import tensorprobe
from tensorprobe import _core


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.table = nn.Embedding(5, 6, dtype=torch.bfloat16)

    def forward(self, x, rows):
        x = checkpoint(self.first, x, use_reentrant=False) + self.table(rows).float()
        return self.second(x.t().contiguous().t()).sum()


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
config = {{"format": "api", "all_xy": True}}
with tensorprobe.watch(model, optimizer, output_dir=sys.argv[1], config=config) as session:
    for _ in range(2):
        model(torch.randn(4, 6), torch.tensor([0, 3, 1, 2])).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(torch.randn(4, 6), torch.tensor([0, 3, 1, 2]))
journal = tensorprobe.Journal(session.directory)
rows = [
    [step.step, str({{name: value for name, value in record.items() if name != "time_ns"}})]
    for step in journal
    for record in step.records
]
import json
print(json.dumps([_core.shortcuts(), rows]))
"""

# What is asked of Python is a function that Python can't be told the address of.
NO_CALLS = "torch._C._current_graph_task_id = lambda ask=torch._C._current_graph_task_id: ask()"

# A torch that keeps strides where the places say that sizes are.
WRONG_PLACES = """
from tensorprobe import _layout
find = _layout.find
def swapped():
    places, keys, tensors = find()
    places = list(places)
    places[4], places[5] = places[5], places[4]
    return tuple(places), keys, tensors
_layout.find = swapped
"""


def train(tmp_path: Path, before: str) -> tuple[dict[str, bool], list[list[object]]]:
    script = TRAIN.format(before=before)
    command = [sys.executable, "-c", script, str(tmp_path)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    shortcuts, rows = json.loads(out.splitlines()[-1])
    return shortcuts, rows


def test_all_shortcuts_are_found() -> None:
    found = _core.shortcuts()
    has_table = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")  # from PyTorch 2.10 on
    assert found == {**dict.fromkeys(found, True), "layout": has_table}


def test_what_is_missing_is_asked_of_python(tmp_path: Path) -> None:
    quick, rows = train(tmp_path / "quick", "")
    assert len(rows) > 60
    assert quick == _core.shortcuts()
    no_calls, same = train(tmp_path / "slow", NO_CALLS)
    assert same == rows
    assert not any(no_calls[name] for name in ("grad_enabled", "graph_task", "function_modes"))
    misplaced, same = train(tmp_path / "misplaced", WRONG_PLACES)
    assert same == rows
    assert misplaced == {**quick, "layout": False}


def test_places_are_refused_when_they_are_not_the_only_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tensors being alike, their properties are anywhere."""
    alike = [torch.zeros(3, 2) for _ in range(3)]
    monkeypatch.setattr(_layout, "_probes", lambda: alike)
    assert _layout.find() is None
