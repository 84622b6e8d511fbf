"""`tensorprobe diff-ranks` and `tensorprobe collectives`: what the journals of all ranks tell."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from built import TOOL
from tensorprobe import Journal
from test_collectives import DONE, LATE, POLLED

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def tool(*arguments: Any) -> tuple[int, str]:
    """Its exit code and output."""
    done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


CASES = {
    "shape": (
        ["group 0:0-3: ranks differ at call 4", "rank 1: all_reduce torch.float32[6], step 0"],
        ["rank 2: all_reduce torch.float32[7], step 0", "fake_ranks.py["],
    ),
    "dtype": (
        ["group 0:0-3: ranks differ at call 4", "rank 0: all_reduce torch.float32[6]"],
        ["rank 1: all_reduce torch.float64[6]"],
    ),
    "root": (
        ["group 0:0-3: ranks differ at call 4", "rank 0: broadcast torch.float32[1], root 3"],
        ["rank 3: broadcast torch.float32[1], root 2"],
    ),
    "operation": (
        ["group 0:0-3: ranks differ at call 4", "rank 2: barrier, step 0"],
        ["rank 3: all_reduce torch.float32[6]"],
    ),
    "missing": (
        ["group 0:0-3: call 4, reduce_scatter_tensor torch.float32[8]", "rank 2 has passed it"],
        ["rank 3 has not arrived: its last call is 3, all_to_all_single"],
    ),
    "pair": (
        ["call 0 from rank 0 to rank 2, tag 0: the sides differ", "rank 0: send torch.float32[5]"],
        ["rank 2: recv torch.float32[3]"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_call_that_differs_is_named(fake_ranks: Path, name: str) -> None:
    """With what each rank called, and where."""
    code, text = tool("diff-ranks", fake_ranks / name)
    assert code == 1, text
    assert text.count("ranks differ") + text.count("sides differ") + text.count("not reached") == 1
    for part in [part for parts in CASES[name] for part in parts]:
        assert part in text


def test_ranks_that_agree(fake_ranks: Path) -> None:
    """Also where sizes may differ from rank to rank."""
    code, text = tool("diff-ranks", fake_ranks / "agree")
    assert code == 0, text
    assert text == ("4 ranks, 32 calls of groups, 2 from one to another\nall ranks agree\n")
    code, text = tool("diff-ranks", "--step", "1-", fake_ranks / "shape")
    assert code == 1
    assert "ranks differ before call 9" in text  # what came before isn't looked at, but hashed


def test_every_kind_of_call_agrees(collectives: Path) -> None:
    """Of four real ranks."""
    for name in ("every", "ddp", "fsdp2", "tp", "moe", "many", "late"):
        code, text = tool("diff-ranks", collectives / name)
        assert code == 0, f"{name}: {text}"


def test_wrong_command_lines(fake_ranks: Path) -> None:
    """Say what is wrong."""
    assert tool("diff-ranks")[0] == 2
    code, text = tool("collectives", "--step", "3-1", fake_ranks / "agree")
    assert (code, "--step takes N, N-, -N or N-M, not 3-1" in text) == (2, True)
    code, text = tool("diff-ranks", fake_ranks / "agree", fake_ranks / "agree")
    assert (code, "is a second journal of rank 0" in text) == (1, True)


def test_who_has_not_arrived_in_a_run_that_hung(tmp_path: Path) -> None:
    """Both are killed; their black boxes tell the rest."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TENSORPROBE_LOG_LEVEL": "3"}
    script = [sys.executable, str(HERE / "hanging_rank.py")]
    ranks = [
        subprocess.Popen(
            [*script, str(rank), str(tmp_path / "store"), str(tmp_path)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
        assert all(rank.poll() is None for rank in ranks), [r.communicate()[1] for r in ranks]
        time.sleep(0.05)
    for rank in ranks:
        rank.kill()
        rank.communicate()
    code, text = tool("diff-ranks", tmp_path / "hang")
    assert "2 ranks, 2 calls of groups" in text
    assert "all ranks agree so far, but the open steps of 2 are in black boxes" in text
    assert code == 1
    assert tool("recover", tmp_path / "hang")[0] == 0
    code, text = tool("diff-ranks", tmp_path / "hang")
    assert code == 1
    first, *lines = text.splitlines()
    assert first == "2 ranks, 5 calls of groups, 0 from one to another"
    assert lines[0].startswith("group 0:0-1: call 2, all_reduce torch.float32[5], step 1, at ")
    assert lines[0].endswith("was not reached by all")
    assert lines[1] == "  rank 0 waits in it"
    assert lines[2].startswith("  rank 1 has not arrived: its last call is 1, all_reduce ")
    assert "its last record is loss, step 1" in lines[2]
    assert len(lines) == 3


# ---- times ----

FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather_into_tensor": lambda n: (n - 1) / n}


def calls_of(directory: Path, rank: int) -> list[dict[str, Any]]:
    """Every call once, with its end."""
    (journal,) = directory.glob(f"*-rank{rank}-*")
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for step in Journal(journal):
        for record in step.records:
            if "sequence" in record:
                place = (record["group"], record["sequence"])
                if place not in found or record["flags"] & LATE:
                    found[place] = record
    return list(found.values())


def test_sizes_times_and_bandwidths(collectives: Path) -> None:
    """Those of three thousand calls, by NCCL's definitions."""
    code, text = tool("collectives", "--json", collectives / "many")
    assert code == 0, text
    rows = [json.loads(line) for line in text.splitlines()]
    found = {row["operation"]: row for row in rows if "operation" in row}
    everything = [call for rank in range(4) for call in calls_of(collectives / "many", rank)]
    assert found.keys() == {"all_reduce", "all_gather_into_tensor", "barrier"}
    for name, row in found.items():
        calls = [call for call in everything if call["name"] == name]
        timed = [call for call in calls if call["flags"] & DONE and not call["flags"] & POLLED]
        size = "bytes_out" if name == "all_gather_into_tensor" else "bytes_in"
        seconds = sum(call["done_ns"] for call in timed) * 1e-9
        assert (row["calls"], row["timed"], row["group"]) == (len(calls), len(timed), "0:0-3")
        assert row["bytes"] == sum(call[size] for call in calls)
        assert math.isclose(row["seconds"], seconds, rel_tol=1e-6)
        assert math.isclose(row["longest"], max(c["done_ns"] for c in timed) * 1e-9, rel_tol=1e-6)
        waiting = sum(call["waited_ns"] for call in timed) * 1e-9
        assert math.isclose(row["waiting"], waiting, rel_tol=1e-6)
        if name == "barrier":
            assert "bus_bandwidth" not in row
            continue
        speed = sum(call[size] for call in timed) / seconds
        assert math.isclose(row["algorithm_bandwidth"], speed, rel_tol=1e-6)
        assert math.isclose(row["bus_bandwidth"], speed * FACTORS[name](4), rel_tol=1e-6)


def test_clocks_and_stragglers(collectives: Path) -> None:
    """Bounds of the clocks' differences, and who came last, worked out anew."""
    code, text = tool("collectives", "--json", collectives / "many")
    assert code == 0, text
    rows = {row["rank"]: row for row in map(json.loads, text.splitlines()) if "rank" in row}
    meetings: dict[int, dict[int, tuple[float, float]]] = {}
    for rank in range(4):
        for call in calls_of(collectives / "many", rank):
            begin = call["issue_ns"]
            meetings.setdefault(call["sequence"], {})[rank] = (begin, begin + call["done_ns"])
    assert len(meetings) == 3000
    offsets, errors = [0.0], [0.0]
    for rank in range(1, 4):
        most = min(m[rank][1] - m[0][0] for m in meetings.values())
        least = max(m[rank][0] - m[0][1] for m in meetings.values())
        offsets.append((most + least) / 2)
        errors.append((most - least) / 2)
        assert math.isclose(rows[rank]["offset"], offsets[rank] * 1e-9, abs_tol=2e-9)
        assert math.isclose(rows[rank]["uncertainty"], errors[rank] * 1e-9, abs_tol=2e-9)
        assert abs(rows[rank]["offset"]) <= rows[rank]["uncertainty"]  # it is one clock
    delays, lasts, spread = [0.0] * 4, [0] * 4, 0.0
    for meeting in meetings.values():
        come = sorted((meeting[rank][0] - offsets[rank], rank) for rank in range(4))
        (before, second), (latest, last) = come[-2:]
        spread += latest - come[0][0]
        if latest - before > errors[last] + errors[second]:
            lasts[last] += 1
            delays[last] += latest - before
    for rank, row in rows.items():
        assert row["calls"] == 3000
        assert abs(row["last"] - lasts[rank]) <= 1  # one that is just at the bound
        assert math.isclose(row["score"], delays[rank] / spread, abs_tol=1e-3)
    assert 0 < sum(row["score"] for row in rows.values()) <= 1


def test_the_rule_of_stragglers(collectives: Path, tmp_path: Path) -> None:
    """The time by which a rank was last, beside the time between the first call and the last."""
    code, text = tool("collectives", "--json", collectives / "many")
    assert code == 0, text
    delays = {
        row["rank"]: row["delay"] for row in map(json.loads, text.splitlines()) if "rank" in row
    }
    calls = list(calls_of(collectives / "many", 0))
    begin = min(call["issue_ns"] for call in calls)
    seconds = (max(call["issue_ns"] + call["done_ns"] for call in calls) - begin) * 1e-9
    shares = {rank: delay / seconds for rank, delay in delays.items() if delay > 0}
    assert shares
    least = min(shares.values())
    for threshold, ranks in ((0, set(shares)), (least * 1.01, set(shares)), (0.999, set())):
        wanted = {rank for rank in ranks if shares[rank] > threshold}
        rule = {"rule_name": "CommStraggler", "args": {"threshold": threshold, "window": 256}}
        (tmp_path / "rule.json").write_text(json.dumps({"alert": {"rules": [rule]}}))
        code, text = tool("backtest", tmp_path / "rule.json", collectives / "many")
        assert code == 0, text
        found = re.findall(r"rank (\d) was waited for in ([\d.]+) % of the time", text)
        assert {int(rank) for rank, _ in found} == wanted
        for rank, percent in found:
            assert abs(float(percent) - 100 * shares[int(rank)]) <= 0.051
        assert f"CommStraggler: {len(wanted)} alerts in" in text
