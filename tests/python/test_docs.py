"""What the documents say about each other, and about names that code can be asked for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import torch

import tensorprobe
from built import TOOL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {anchor(line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def links(page: Path) -> list[tuple[Path, str]]:
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [link.partition("#") for link in found if "://" not in link]
    return [(page.parent / path if path else page, part) for path, _, part in local]


def test_links_lead_somewhere() -> None:
    count = 0
    for page in PAGES:
        for path, part in links(page):
            assert path.exists(), f"{page.name}: {path}"
            assert not part or part in anchors(path), f"{page.name}: {path.name}#{part}"
            count += 1
    assert count > 30


def test_the_readme_links_every_page() -> None:
    linked = {path.resolve() for path, _ in links(ROOT / "README.md")}
    assert set(PAGES[1:]) <= linked


def test_every_counter_is_documented(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    monitor = tensorprobe.watch(net, format="api", output_dir=tmp_path)
    monitor.close()
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    table = text.partition("`counters()`, a dict:")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(monitor.counters())


def test_every_subcommand_is_in_the_readme() -> None:
    done = subprocess.run([TOOL, "--help"], capture_output=True, text=True, check=True)
    commands = re.findall(r"^  ([a-z]+)  ", done.stdout, re.MULTILINE)
    assert len(commands) >= 6
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in commands if f"tensorprobe {name}" not in text] == []
