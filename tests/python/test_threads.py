"""Several threads read a large tensor: as many as torch would use, with the values of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorprobe

CHILD = """
import sys
from pathlib import Path
import torch
import tensorprobe
from torch import nn

threads, directory = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(threads)
torch.manual_seed(7)
model = nn.ModuleDict({"large": nn.Linear(700, 600)})  # 1.6 MiB of weights
for i in range(40):  # 5 MiB, more than are read in one call
    model[f"small{i}"] = nn.Linear(200, 160 + i)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tensorprobe.watch(model, optimizer, output_dir=directory, run_id="run") as monitor:
    for _ in range(2):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, number)
        optimizer.step()
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    print(names.count("tp-helper"))
print(monitor.directory)
"""


Rows = list[tuple[str, str, float, float, float]]


def run_child(threads: int, directory: Path) -> tuple[int, Rows]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "4"}
    printed = subprocess.run(
        [sys.executable, "-c", CHILD, str(threads), str(directory)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout.splitlines()
    journal = tensorprobe.Journal(printed[1])
    rows = [
        (r["name"], r["quantity"], r["norm"], r["min"], r["std"])
        for step in journal
        for r in step.records
    ]
    return int(printed[0]), rows


def test_hooks_use_as_many_threads_as_torch(tmp_path: Path) -> None:
    (no_helper, alone), (two_helpers, shared) = (
        run_child(threads, tmp_path / str(threads)) for threads in (1, 3)
    )
    assert (no_helper, two_helpers) == (0, 2)
    assert alone == shared
    # In the order in which they came: gradient and weight of each parameter, then the new weights.
    names = [f"small{i}" for i in range(40)]
    parameters = [f"{name}.{part}" for name in ["large", *names] for part in ("weight", "bias")]
    before = ("grad_unreduced", "grad_reduced", "param_origin")
    order = [(name, quantity) for name in parameters for quantity in before]
    order += [(name, "param_updated") for name in parameters]
    assert [row[:2] for row in alone] == order * 2
    gradients = [row[3] for row in alone if row[1] == "grad_reduced"]
    assert gradients == [float(number) for number in range(len(parameters))] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.int8])
def test_values_of_several_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(20261130)
    x = (torch.randn(1_700_001, generator=generator) * 30).to(dtype)
    found = tensorprobe.compute_stats(x, 1.0, threads=4, histogram=(40, -90.0, 90.0))
    wide = x.double().numpy().astype(np.longdouble)
    assert found["count"] == len(wide)
    assert found["zeros"] == int((np.abs(wide) < 1.0).sum())
    assert (found["min"], found["max"]) == (wide.min(), wide.max())
    assert found["abs_max_index"] == int(np.abs(wide).argmax())
    error = 2e-7 if dtype == torch.bfloat16 else 1e-13
    assert abs(found["sum"] - float(wide.sum())) <= error * float(np.abs(wide).sum())
    assert found["norm"] == pytest.approx(float(np.sqrt((wide * wide).sum())), rel=error)
    assert found["std"] == pytest.approx(float(wide.std()), rel=5e-7)
    bins = torch.histc(x.float(), 40, -90.0, 90.0)
    assert found["histogram"] == [int(n) for n in bins]


@pytest.mark.parametrize("threads", [1, 3])
def test_bytes_that_are_counted_in_pairs(threads: int) -> None:
    generator = torch.Generator().manual_seed(20261130)
    x = torch.randint(-128, 128, (5_000_003,), dtype=torch.int8, generator=generator)
    x = torch.minimum(x, torch.randint(-128, 128, x.shape, dtype=torch.int8, generator=generator))
    x[:4_000_000].clamp_(-100, 100)
    for part in (x, x[1:], x[:600_001]):
        found = tensorprobe.compute_stats(part, threads=threads, histogram=(256, -128.0, 128.0))
        counts = np.bincount(part.numpy().astype(np.int64) + 128, minlength=256)
        assert found["histogram"] == counts.tolist()
        assert found["sum"] == int(part.sum())
        assert found["abs_max_index"] == int(part.int().abs().argmax())


NO_THREADS = """
import os
import resource
import tempfile
from tensorprobe import _core

resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:
    os.setuid(65534)  # root may start as many as it likes
with tempfile.TemporaryDirectory() as directory:
    try:
        _core.Monitor(output_dir=directory)
    except OSError as error:
        print(error)
"""


def test_no_thread_can_be_started() -> None:
    run = subprocess.run(
        [sys.executable, "-c", NO_THREADS], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("can't start the writer thread: ")
