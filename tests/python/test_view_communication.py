"""The page about collectives: the numbers of ``tensorprobe collectives`` and ``diff-ranks``."""

from __future__ import annotations

import json
import math
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from built import TOOL
from test_collectives import DONE, LATE, RANKS, journal
from view_browser import READY, Tab
from view_server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(collectives: Path) -> Iterator[Server]:
    with Server(collectives / "many") as one:
        one.wait()
        yield one


@pytest.fixture(scope="module")
def told(collectives: Path) -> list[dict[str, Any]]:
    """What the command says."""
    command = [str(TOOL), "collectives", "--json", str(collectives / "many")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_numbers_are_those_of_the_command(server: Server, told: list[dict[str, Any]]) -> None:
    found = server.ask("communication")
    rows = [row for row in told if "operation" in row]
    assert len(found["rows"]) == len(rows) >= 3
    for row, wanted in zip(found["rows"], rows, strict=True):
        assert (row["op"], row["group"]) == (wanted["operation"], wanted["group"])
        for ours, theirs in (
            ("calls", "calls"),
            ("bytes", "bytes"),
            ("timed", "timed"),
            ("seconds", "seconds"),
            ("longest", "longest"),
            ("waiting", "waiting"),
        ):
            assert math.isclose(row[ours], wanted[theirs], rel_tol=1e-6), (row["op"], ours)
    assert found["agree"] is True
    ranks = {row["rank"]: row for row in told if "rank" in row}
    for one in found["ranks"]:
        wanted = ranks[one["rank"]]
        for name in ("offset", "uncertainty", "calls", "last", "delay", "score"):
            assert math.isclose(one[name], wanted[name], rel_tol=1e-6, abs_tol=1e-9), name


def arrivals(
    collectives: Path, told: list[dict[str, Any]]
) -> dict[tuple[str, int], list[tuple[float, int, int]]]:
    """When each rank came to each call that nobody leaves before all have come, and its step."""
    offsets = {row["rank"]: row["offset"] for row in told if "rank" in row}
    found = defaultdict(list)
    for rank in RANKS:
        issued: dict[tuple[str, int], int] = {}  # in which step; it may have ended in the next
        for step in journal(collectives, "many", rank):
            for call in step.records:
                if "sequence" not in call:
                    continue
                key = call["group"], call["sequence"]
                issued.setdefault(key, step.step)
                if call["flags"] & DONE:
                    at = call["issue_ns"] * 1e-9 - offsets[rank]
                    found[key].append((at, rank, issued[key]))
    return found


def test_who_waits_for_whom(collectives: Path, server: Server, told: list[dict[str, Any]]) -> None:
    steps = server.ask("run")["last"] + 1
    found = server.ask("communication", w=steps)
    assert (found["per"], found["w"]) == (1, steps)
    waited = {rank: [0.0] * steps for rank in RANKS}
    for calls in arrivals(collectives, told).values():
        latest = max(at for at, _, _ in calls)
        for at, rank, step in calls:
            waited[rank][step] += latest - at
    for one in found["ranks"]:
        for ours, wanted in zip(one["waited"], waited[one["rank"]], strict=True):
            assert math.isclose(ours, wanted, rel_tol=1e-3, abs_tol=1e-4)
        assert math.isclose(sum(one["behind"]), one["delay"], rel_tol=1e-3)


def test_lanes(collectives: Path, server: Server) -> None:
    found = server.ask("communication", step=2)["lanes"]
    assert min(lane["at"] for lane in found) == 0
    for rank in RANKS:
        (step,) = [one for one in journal(collectives, "many", rank) if one.step == 2]
        # What was issued before is told where it was issued.
        calls = [r for r in step.records if "sequence" in r and not r["flags"] & LATE]
        own = [lane for lane in found if lane["rank"] == rank]
        assert sorted((lane["group"], lane["n"]) for lane in own) == sorted(
            (call["group"], call["sequence"]) for call in calls
        )
    assert len(found) > 1000


def test_page(browser: Browser, server: Server) -> None:
    tab = Tab(browser, server)
    run = server.ask("runs")["runs"][0]["id"]
    page = tab.go(f"r/{run}/run")
    page.keyboard.press("5")
    page.wait_for_selector("#collectives")
    page.wait_for_selector(READY)
    rows = page.locator("#collectives tbody tr")
    assert rows.count() == len(server.ask("communication")["rows"])
    assert page.locator("#stragglers tbody tr").count() == len(RANKS)
    box = page.locator("#behind canvas").bounding_box()
    assert box is not None
    x = box["x"] + 66 + (box["width"] - 70) * 0.45
    page.mouse.move(x, box["y"] + 10)
    assert "rank 0 · step 2 · " in page.inner_text("#behind .readout")
    page.mouse.click(x, box["y"] + 10)
    page.wait_for_selector("#lanes[data-step='2']")
    page.wait_for_selector(READY)
    assert "step=2" in page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#lanes[data-step='3']")
    page.keyboard.press("Escape")
    page.wait_for_selector("#lanes", state="detached")
    tab.close()


def test_ranks_that_part(browser: Browser, fake_ranks: Path) -> None:
    command = [str(TOOL), "diff-ranks", str(fake_ranks / "shape")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    with Server(fake_ranks / "shape") as server:
        server.wait()
        found = server.ask("communication")
        assert found["agree"] is False
        assert len(found["disagreement"]) > 200
        assert found["disagreement"] in said
        tab = Tab(browser, server, 390)
        page = tab.go(f"r/{server.ask('runs')['runs'][0]['id']}/communication")
        assert "rank 2: all_reduce torch.float32[7]" in page.inner_text("#disagreement")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        tab.close()
