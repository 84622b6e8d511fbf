#!/usr/bin/env python3
"""Make the pictures of the pages that are in docs/pictures/, from a real run that breaks.

Trains a small GPT on Python's own source, writes a NaN into one of its weights, and photographs
what `tensorprobe view` shows of it; prints what `tensorprobe tail` does. Takes about a minute.

    scripts/pictures.py [--out DIRECTORY] [--tool build/release/tools/tensorprobe]
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image  # comes with tensorboard
from playwright.sync_api import sync_playwright
from torch.nn import functional

import tensorprobe

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples/demo"))
from model import GPT, SYMBOLS, sample, standard_library_text  # noqa: E402

STEPS, BROKEN = 320, 300
WEIGHT = "blocks.3.mlp.down.weight"
LARGEST = 150_000
"""Bytes of a picture."""


def train(folder: Path) -> None:
    """Record a run that is fine, and then isn't."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    text, _ = standard_library_text()
    batches = torch.Generator().manual_seed(7)
    model = GPT(len(SYMBOLS), 32, 6, 64, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with tensorprobe.watch(model, optimizer, output_dir=folder, format="csv") as monitor:
        for step in range(STEPS):
            if step == BROKEN:
                with torch.no_grad():
                    model.get_parameter(WEIGHT)[17, 40] = float("nan")
            rate = 1e-3 * min(1.0, (step + 1) / 40)
            optimizer.param_groups[0]["lr"] = rate
            inputs, targets = sample(text, 8, 32, batches)
            loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            monitor.log_scalar("loss", loss.item())
            monitor.log_scalar("learning_rate", rate)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def save(png: bytes, path: Path) -> None:
    """With as many colours as a page needs, so that it is small."""
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(path, optimize=True)
    size = path.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{path} has {size} bytes; {LARGEST} are allowed")
    print(f"{path}: {size} bytes")


def photograph(url: str, out: Path) -> None:
    """Go to the pages, and wait until each is there."""
    views = {
        "run": "run",
        "map": f"map?at=blocks.3.mlp.output,{BROKEN},0",
        "incident": "incidents?i=1",
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": 1280, "height": 800}, color_scheme="light", locale="en-US"
        )
        ready = "html[data-state=ready]"
        page.goto(url)
        page.wait_for_selector(ready)
        run = page.evaluate("document.getElementById('run').value")
        for name, view in views.items():
            page.goto(f"{url}r/{run}/{view}")
            page.wait_for_selector(ready)
            page.wait_for_timeout(1000)  # what comes by a second request
            save(page.screenshot(), out / f"{name}.png")
        browser.close()


def main() -> None:
    """Record, photograph, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures")
    parser.add_argument("--tool", type=Path, default=ROOT / "build/release/tools/tensorprobe")
    parser.add_argument("--recorded", type=Path, help="a run that is there, instead of training")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.recorded or Path(temporary) / "runs"
        if given.recorded is None:
            train(folder)
        server = subprocess.Popen(
            [given.tool, "view", "--port", "0", folder], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        try:
            photograph(server.stdout.readline().strip(), given.out)
        finally:
            server.terminate()
            server.wait()
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "118", "LINES": "20"}
        subprocess.run([given.tool, "tail", "--once", folder], env=environment, check=True)


if __name__ == "__main__":
    main()
