"""Runs the processes of ranks/, and looks at what all of them together have found."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow

import tensorprobe

RANKS = Path(__file__).parent / "ranks"
Results = dict[str, list[dict[str, Any]]]


def run(script: str, ranks: int, layouts: list[str], out: Path) -> Results:
    """One process group for all of these layouts. By layout: what each rank has found."""
    package = Path(tensorprobe.__file__).parents[1]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "TENSORPROBE_LOG_LEVEL": "2",
        "TORCHELASTIC_RUN_ID": "layouts",  # one run of all ranks
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",  # the ranks meet in a file
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(ranks),  # else DeepSpeed asks numactl
    }
    out.mkdir()
    processes = []
    for rank in range(ranks):
        with (out / f"log.{rank}").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, RANKS / script, out, *layouts],
                    env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    for process in processes:
        process.wait()
    return {
        layout: [
            json.loads(path.read_text()) if path.exists() else {"problems": [_tail(out, rank)]}
            for rank, path in ((rank, out / f"{layout}.{rank}.json") for rank in range(ranks))
        ]
        for layout in layouts
    }


def run_example(script: str, out: Path) -> str:
    """Run a script of examples/frameworks in two ranks, as the pages say; what it prints."""
    tests = Path(__file__).parent
    path = [str(RANKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    run = subprocess.run(
        [*command, str(tests.parents[1] / "examples" / "frameworks" / f"{script}.py")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "TENSORPROBE_OUTPUT_DIR": str(out),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


def _tail(out: Path, rank: int) -> str:
    return "it has died: " + (out / f"log.{rank}").read_text()[-3000:]


def check(found: list[dict[str, Any]], tolerance: float = 1e-4, absent: str = "") -> None:
    """Every rank is right about what it has, and all together have everything, once.

    absent: a quantity that isn't recorded.
    """
    for rank, one in enumerate(found):
        assert not one["problems"], f"rank {rank}: " + "\n".join(one["problems"][:10])
        assert one["checked"] > 0
    known_places = {place for one in found for place in one["seen"]}
    seen = {place for one in found for place, records in one["seen"].items() if records}
    missing = {place for place in known_places - seen if place.split(" ")[0] != absent}
    assert not missing, sorted(missing)[:10]
    parts = _parts(found)
    for place, known in parts.items():
        _assert_whole(place, known)
    for step, norm in found[0]["norms"].items():
        total = sum(
            square
            for (quantity, _, at), known in parts.items()
            if quantity == "grad_reduced" and at == int(step)
            for square, _ in known.values()
        )
        assert math.isclose(math.sqrt(total), norm, rel_tol=tolerance), (step, total**0.5, norm)


def check_merged(folder: Path, found: list[dict[str, Any]]) -> None:
    """What is put together from the journals has the norms that all parts have together."""
    table = pyarrow.table(tensorprobe.open(folder).merged())
    rows = {(row["quantity"], row["name"], row["step"]): row for row in table.to_pylist()}
    for place, known in _parts(found).items():
        if place[0] == "mg_direction":
            continue  # one number for each part
        expected = math.sqrt(sum(square for square, _ in known.values()))
        assert rows[place]["missing"] == 0
        assert math.isclose(rows[place]["norm"], expected, rel_tol=1e-9, abs_tol=1e-30), place


def _parts(found: list[dict[str, Any]]) -> dict[Any, dict[Any, tuple[float, Any]]]:
    """By quantity, global name and step: which parts there are, and the squares in them."""
    parts: dict[Any, dict[Any, tuple[float, Any]]] = defaultdict(dict)
    for rank, one in enumerate(found):
        for place, records in one["seen"].items():
            quantity, _, step = place.split(" ")
            for _, _, numel, square, name, span in records:
                kind, ranges, copies, copy = span
                if quantity == "grad_unreduced":
                    continue  # each rank has another one
                known = parts[quantity, name, int(step)]
                where = (tuple(map(tuple, ranges)), copy)
                assert where not in known, f"{place} is there twice, the second time in {rank}"
                known[where] = (square / copies, (kind, copies, numel))
    return parts


def _assert_whole(place: Any, known: dict[Any, Any]) -> None:
    """The parts of the ranks make up the parameter, each as often as it says."""
    counts: dict[Any, int] = defaultdict(int)
    for ranges, _ in known:
        counts[ranges] += 1
    copies = {copies for _, (_, copies, _) in known.values()}
    assert set(counts.values()) == copies, (place, known)
    if () in counts:
        assert len(counts) == 1, (place, known)
        return
    full = math.prod(whole for _, _, whole in next(iter(counts)))
    sizes = [math.prod(length for _, length, _ in ranges) for ranges in counts]
    assert sum(sizes) == full, (place, known)
    if all(len(ranges) == 1 for ranges in counts):  # one after the other
        ends = sorted((start, start + length) for ((start, length, _),) in counts)
        assert [0, *(end for _, end in ends)][:-1] == [start for start, _ in ends], (place, ends)
