"""How fast `tensorprobe view` is on a large run: the first picture, maps after a click, memory.

    python bench/view.py [--series 100000] [--steps 1000] [--command tensorprobe]

Records such a run into a temporary directory first (36 bytes a value), then opens it in Chromium.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright

from tensorprobe import _core

MODULES = ["ln1", "attn.qkv", "attn.out", "ln2", "mlp.up", "mlp.act", "mlp.down"]
QUANTITIES = {
    "actv": _core.ACTIVATION,
    "actv_grad": _core.ACTIVATION_GRAD,
    "grad_reduced": _core.GRAD_REDUCED,
    "param_origin": _core.PARAM_ORIGIN,
    "exp_avg": _core.EXP_AVG,
}
STATISTICS = ["norm", "max_abs", "mean", "zeros"]


def record(folder: str, series: int, steps: int) -> None:
    """Write a run of so many series; the values don't matter, their number does."""
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=folder, run_id="large")
    names = [f"layers.{i // len(MODULES)}.{MODULES[i % len(MODULES)]}" for i in range(series)]
    keys = []
    for i in range(series):
        quantity = list(QUANTITIES.values())[i * len(QUANTITIES) // series]
        of_activations = quantity in (_core.ACTIVATION, _core.ACTIVATION_GRAD)
        role = _core.ROLE_OUTPUT if of_activations else _core.ROLE_NONE
        keys.append(monitor.key(names[i % (series // len(QUANTITIES) + 1)], quantity, role))
    tensors = [torch.randn(4) for _ in range(97)]
    observe = monitor.observe
    for step in range(steps):
        for i, key in enumerate(keys):
            observe(key, tensors[(i + step) % 97])
        monitor.step()
    monitor.close()


def memory(process: int) -> float:
    """Return what a process has in memory, in MB."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 1e6


def ready(page: Page) -> float:
    """Return when the page is drawn."""
    page.wait_for_selector("html[data-state=ready]", timeout=600_000)
    return time.perf_counter()


def measure(command: Path, folder: str) -> None:
    server = subprocess.Popen(
        [command, "view", "--port", "0", folder], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    began = time.perf_counter()
    url = server.stdout.readline().strip()
    print(f"address after {time.perf_counter() - began:.2f} s")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 856})
        start = time.perf_counter()
        page.goto(url)
        print(f"first paint, while the journal is read: {ready(page) - start:.2f} s")
        while b'"read":true' not in urllib.request.urlopen(f"{url}api/run").read():
            time.sleep(0.2)
        print(f"read after {time.perf_counter() - began:.1f} s, {memory(server.pid):.0f} MB")
        start = time.perf_counter()
        page.goto(url)
        print(f"first paint: {ready(page) - start:.2f} s")
        page.keyboard.press("2")
        page.wait_for_selector("#map")
        ready(page)
        times = []
        for quantity in QUANTITIES:
            for statistic in STATISTICS:
                page.select_option("#q", quantity)
                ready(page)
                start = time.perf_counter()
                page.select_option("#s", statistic)
                page.wait_for_timeout(1)
                times.append(ready(page) - start)
        print(
            f"a map after a click: median {1e3 * statistics.median(times):.0f} ms, "
            f"slowest {1e3 * max(times):.0f} ms of {len(times)}"
        )
        print(f"server: {memory(server.pid):.0f} MB")
        browser.close()
    server.terminate()
    server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--command", type=Path, default=Path("build/release/tools/tensorprobe"))
    parser.add_argument("--run", help="a run that is there already")
    options = parser.parse_args()
    if options.run:
        measure(options.command, options.run)
        return
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        record(folder, options.series, options.steps)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.tpj"))
        print(
            f"{options.series} series, {options.steps} steps: {size / 1e9:.2f} GB, "
            f"recorded in {time.perf_counter() - begin:.0f} s"
        )
        measure(options.command, folder)


if __name__ == "__main__":
    main()
