"""``tensorprobe selftest`` finds everything right, and what is planted."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from built import TOOL
from tensorprobe import _core, selftest


def test_everything_holds_here() -> None:
    environment = {**os.environ, "TENSORPROBE_PYTHON": sys.executable}
    done = subprocess.run(
        [TOOL, "selftest"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tensorprobe ")
    assert [line.split("ok")[0].strip() for line in lines[1:-1]] == [
        "observer is neutral",
        "kernels agree",
        "journal",
        "csv tables",
        "TensorBoard files",
    ]
    assert lines[-1] == "everything holds"


@pytest.mark.parametrize(
    ("arguments", "python", "status", "said"),
    [
        (["--help"], "none", 0, "usage: tensorprobe selftest"),
        (["a"], "none", 2, "takes no arguments"),
        ([], "/no/such/python", 1, "can't be started"),
        ([], "false", 1, ""),
    ],
)
def test_the_command(arguments: list[str], python: str, status: int, said: str) -> None:
    environment = {**os.environ, "TENSORPROBE_PYTHON": python}
    done = subprocess.run(
        [TOOL, "selftest", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == status
    assert said in done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, selftest.Series, Any]:
    _, gradients, where = selftest.train(tmp_path_factory.mktemp("run"))
    recorded, _ = selftest.read_journal(where, gradients)
    return where, recorded, gradients


def planted(path: Path, old: bytes, new: bytes, check: Any, recorded: selftest.Series) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(selftest.ProofError):
        check(str(path.parent), recorded)
    path.write_bytes(data)
    check(str(path.parent), recorded)


def test_a_wrong_number_is_found(run: tuple[str, selftest.Series, Any]) -> None:
    where, recorded, gradients = run
    (table,) = Path(where).glob("exp_avg_0-*.csv")
    number = recorded["exp_avg", "head.weight", 0, 3][0]
    planted(table, repr(number).encode(), b"1.5", selftest.check_csv, recorded)
    (events,) = Path(where).glob("events.out.*")
    packed = struct.pack("<d", number)
    planted(events, packed, struct.pack("<d", 1.5), selftest.check_events, recorded)
    lines = table.read_bytes().splitlines(keepends=True)
    planted(table, lines[5], b"", selftest.check_csv, recorded)
    gradients[2]["embed.weight"] *= 1.001
    with pytest.raises(selftest.ProofError, match="of embed"):
        selftest.read_journal(where, gradients)


def test_an_observer_that_changes_a_bit_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scalar = _core.compute_stats

    def wrong(tensor: torch.Tensor, **options: Any) -> Any:
        found = scalar(tensor, **options)
        if options["isa"] != "scalar" and tensor.dtype == torch.bfloat16 and tensor.numel() == 33:
            found["nan"] += 1
        return found

    start = tensorprobe.watch

    def meddling(*args: Any, **kwargs: Any) -> Any:
        torch.rand(1)
        return start(*args, **kwargs)

    monkeypatch.setattr(_core, "compute_stats", wrong)
    monkeypatch.setattr(tensorprobe, "watch", meddling)
    assert selftest.main([]) == 1
    printed = capsys.readouterr().out
    assert "observer is neutral     FAILED" in printed
    assert "has other bits when it is watched" in printed
    if _core.isa != "scalar":
        assert "33 elements of torch.bfloat16" in printed
