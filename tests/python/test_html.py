"""What runs, monitors and incidents show in a notebook."""

from __future__ import annotations

import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from tensorprobe import _core, _html
from tensorprobe.journal import Journal

STEPS, BROKEN = 60, 50
EVIL = '<script>alert("1")</script>&\'"><img src=x onerror=alert(2)>'
RULES = '{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}'


class Page(HTMLParser):
    """The parts of a page, which must be closed in order; nothing that could run or load."""

    def __init__(self, text: str | None) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.paths: list[dict[str, str | None]] = []
        assert text is not None
        assert len(text) < 30_000
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"div", "span", "b", "code", "svg", "path", "br"}
        names = {name for name, _ in attrs}
        assert names <= set(
            "style width height viewbox role aria-label d stroke stroke-width fill".split()
        )
        for name, value in attrs:
            assert name != "style" or "url" not in str(value)
        if tag == "path":
            self.paths.append(dict(attrs))
        elif tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def marks(page: Page) -> int:
    return sum(path.get("stroke") == _html.BROKEN for path in page.paths)


def record(folder: Path, rank: int, name: str = "fc", broken: int = BROKEN) -> None:
    monitor = _core.Monitor(config_json=RULES, output_dir=str(folder), rank=rank, run_id="r")
    key = monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT)
    for step in range(STEPS):
        monitor.observe(key, torch.full((4,), math.nan if step >= broken else 2.0))
        monitor.log_scalar("loss of " + name, math.inf if step >= broken else 10.0 * 0.8**step)
        monitor.step()
    monitor.close()


def test_a_run_and_its_incidents(tmp_path: Path) -> None:
    for rank in range(3):
        record(tmp_path, rank, broken=BROKEN + (rank != 2))
    page = Page(tensorprobe.open(tmp_path)._repr_html_())
    assert "run r ● ended" in page.text
    assert "ranks 0–2 steps 0 … 59" in page.text
    assert "loss of fc +Inf" in page.text
    assert "norm of fc.output, actv NaN" in page.text
    # The rank that began is shown, and every step that isn't finite, in both plots.
    assert "on rank 2 incidents on 3 of them" in page.text
    assert marks(page) == 2 * (STEPS - BROKEN)
    (incident,) = tensorprobe.open(tmp_path).journals[2].incidents()
    own = Page(incident._repr_html_())
    assert "critical step 50" in own.text
    assert incident.text in own.text
    assert own.text in page.text
    assert Page(tensorprobe.open(tmp_path).journals[0]._repr_html_()).text.startswith("run r")


def test_names_are_escaped(tmp_path: Path) -> None:
    record(tmp_path, 0, EVIL)
    runs = tensorprobe.open(tmp_path)
    page = Page(runs._repr_html_())
    assert EVIL in page.text
    Page(runs.journals[0].incidents()[0]._repr_html_())


def test_a_monitor(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config: dict[str, Any] = {
        "format": "csv",
        "xy_distribution": True,
        "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
    }
    monitor = tensorprobe.TrainerMon(config, output_dir=tmp_path)
    assert monitor._repr_html_() is None
    monitor.set_monitor(model, optimizer)
    assert "steps 0" in Page(monitor._repr_html_()).text
    for step in range(3):
        model(torch.full((1, 3), math.nan if step == 2 else 1.0)).sum().backward()
        optimizer.step()
        if step == 1:
            page = Page(monitor._repr_html_())
            assert "tensorprobe monitor ● watching steps 2 " in page.text
            assert "no incident" in page.text
    monitor.close()
    page = Page(monitor._repr_html_())
    assert "● closed steps 3 " in page.text
    assert "critical step 2" in page.text
    shutil.rmtree(tmp_path)
    assert "no incident" in Page(monitor._repr_html_()).text


def test_what_cannot_be_read_shows_its_plain_text(tmp_path: Path) -> None:
    record(tmp_path, 0)
    runs = tensorprobe.open(tmp_path)
    shutil.rmtree(tmp_path)
    assert runs._repr_html_() is None
    assert "no journal" in Page(tensorprobe.runs.Runs([])._repr_html_()).text


@pytest.mark.parametrize("steps", [1, 2, 50, 119, 120, 121, 5000])
def test_plots_keep_what_is_extreme(steps: int) -> None:
    values = [1.0 + 0.001 * (i % 7) for i in range(steps)]
    spike, nan = steps * 2 // 3, steps // 3
    values[spike] = 40.0
    if nan != spike:
        values[nan] = math.nan
    page = Page(_html.plot("x", list(range(100, 100 + steps)), values))
    assert marks(page) == (nan != spike)
    heights = [
        float(y)
        for path in page.paths
        if path.get("fill") == "none"
        for y in re.findall(r"[ML][\d.]+ ([\d.]+)", str(path["d"]))
    ]
    assert len(heights) <= 2 * _html.WIDTH
    assert min(heights) == (3.0 if steps > 2 else _html.HEIGHT - 3)
    assert sum(height < _html.HEIGHT / 2 for height in heights) == (steps > 2)


def test_long_journals_are_not_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, 0)
    monkeypatch.setattr(_html, "LONG", STEPS - 1)
    for method in ("incidents", "series", "alerts"):
        monkeypatch.setattr(Journal, method, None)
    page = Page(tensorprobe.open(tmp_path)._repr_html_())
    assert "steps 0 … 59" in page.text
    assert "too long to look through here" in page.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2.0714, "2.071"),
        (-0.02, "−0.02"),
        (999.949, "999.9"),
        (999.96, "1e3"),
        (65480.0, "6.548e4"),
        (1.23e-7, "1.23e-7"),
        (-1.5e-9, "−1.5e-9"),
        (math.nan, "NaN"),
        (-math.inf, "−Inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert _html.number(value) == text
