"""Frameworks that nobody has imported: nothing of them, and nothing for them, is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import importlib.abc, json, sys

names = "megatron deepspeed accelerate transformers lightning pytorch_lightning".split()
asked = []

class Watcher(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            asked.append(name)
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Watcher())
import torch
torch.set_num_threads(1)
before = set(sys.modules)
import tensorprobe

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
with tensorprobe.watch(model, optimizer, output_dir=sys.argv[1], format="api") as monitor:
    for _ in range(2):
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()
new = sorted(set(sys.modules) - before)
print(json.dumps([asked, new, len(list(tensorprobe.Journal(monitor.directory)))]))
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_nothing_of_them_is_imported(wrapped: bool, tmp_path: Path) -> None:
    code = CHILD
    if wrapped:  # in the group of one process that a launcher makes
        group = "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(),"
        code = CHILD.replace(
            "model = torch.nn.Linear(4, 3)",
            f"{group} rank=0, world_size=1)\n"
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))",
        ).replace("before = ", "import torch.distributed, torch.nn.parallel.distributed\nbefore = ")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    asked, new, steps = json.loads(done.stdout.splitlines()[-1])
    assert asked == []
    assert steps == 2
    ours = {name for name in new if name.startswith("tensorprobe._frameworks._")}
    assert not ours & {
        f"tensorprobe._frameworks._{name}"
        for name in ("megatron", "deepspeed", "accelerate", "lightning")
    }
