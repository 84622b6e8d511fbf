"""How fast `tensorprobe view` is on a large run: the first picture, maps after a click, memory.

    python bench/view.py [--build build/release] [--series 20000] [--steps 500] [--run DIRECTORY]

Records such a run first (some 40 bytes a value; into DIRECTORY, where it stays, or a temporary
one), then opens it in Chromium. Times are those of a clock, and of the server's threads on their
CPUs: the latter tell more on a machine that has other work. The limits are those of 100,000 series
and 1,000 steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

QUANTITIES = ["actv", "actv_grad", "grad_reduced", "param_origin", "exp_avg"]
STATISTICS = ["norm", "max_abs", "mean", "std", "min", "max", "zeros"]
ZOOMS = 6  # each to half of the steps


class Server:
    """Serves a run, and tells what that takes."""

    def __init__(self, command: Path, folder: Path) -> None:
        self.process = subprocess.Popen(
            [command, "view", "--port", "0", folder], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.began = time.perf_counter()
        self.url = self.process.stdout.readline().strip()

    def run(self) -> Any:
        return json.loads(urllib.request.urlopen(f"{self.url}api/run").read())

    def cpu(self) -> float:
        """Return the seconds that its threads have been on CPUs."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks.iterdir()) / 1e9

    def memory(self, what: str) -> float:
        """Return what it has in memory ("RSS"), or has had at most ("HWM"), in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return (
            next(int(x.split()[1]) for x in status.splitlines() if x.startswith(f"Vm{what}")) / 1e3
        )

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def ready(page: Page) -> float:
    """Return when the page is drawn."""
    page.wait_for_selector("html[data-state=ready]", timeout=600_000)
    return time.perf_counter()


def timed(page: Page, server: Server, act: Any) -> tuple[float, float]:
    """Return how long a click takes until the page is drawn, and the server's CPU time in it."""
    start, cpu = time.perf_counter(), server.cpu()
    act()
    page.wait_for_timeout(1)
    return ready(page) - start, server.cpu() - cpu


def tell(what: str, times: list[tuple[float, float]], limit: str) -> None:
    wall, cpu = ([1e3 * one[i] for one in times] for i in (0, 1))
    print(
        f"{what:<34} median {statistics.median(wall):4.0f} ms, slowest {max(wall):4.0f} ms of "
        f"{len(times)} (server: {statistics.median(cpu):.0f} and {max(cpu):.0f} ms){limit}"
    )


def measure(command: Path, folder: Path, steps: int) -> None:
    server = Server(command, folder)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 856})
        start = time.perf_counter()
        page.goto(server.url)
        first = ready(page) - start
        print(
            f"{'first paint':<34} {first:.2f} s, {server.cpu():.2f} s of CPU in the server; "
            f"step {server.run()['last']} of {steps - 1} (limit 1 s)"
        )
        while not server.run()["read"]:
            time.sleep(0.2)
        took = time.perf_counter() - server.began
        print(f"{'all statistics in spans':<34} {took:.1f} s, {server.cpu():.1f} s of CPU")
        start = time.perf_counter()
        page.goto(server.url)
        print(f"{'first paint, then':<34} {ready(page) - start:.2f} s (limit 1 s)")
        page.keyboard.press("2")
        page.wait_for_selector("#map")
        ready(page)
        times = []
        for quantity in QUANTITIES:
            for statistic in STATISTICS:
                page.select_option("#q", quantity)
                ready(page)
                times.append(timed(page, server, lambda s=statistic: page.select_option("#s", s)))
        tell("a map after a click", times, " (limit 300 ms)")
        times, finest = [], []
        page.select_option("#s", "norm")
        ready(page)
        page.focus("#map")
        for _ in range(ZOOMS):
            start = time.perf_counter()
            times.append(timed(page, server, lambda: page.keyboard.press("+")))
            while "being read" in page.inner_text("#foot"):
                time.sleep(0.02)
            finest.append((time.perf_counter() - start, 0.0))
            print(f"  {page.inner_text('#foot')}")
        tell("a map after zooming", times, " (limit 300 ms)")
        tell("until its single steps are there", finest, "")
        now, most = server.memory("RSS"), server.memory("HWM")
        print(f"{'server':<34} {now:.0f} MB, {most:.0f} MB at most (limit 500 MB)")
        browser.close()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--run", type=Path, help="where it is recorded, unless it is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.run or Path(temporary) / "run"
        if not folder.exists():
            begin = time.perf_counter()
            program = options.build / "tests/unit/bench_view"
            words = [program, folder, str(options.series), str(options.steps)]
            subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
            print(f"recorded in {time.perf_counter() - begin:.0f} s")
        size = sum(path.stat().st_size for path in folder.rglob("*.tpj"))
        print(f"{options.series} series, {options.steps} steps: {size / 1e9:.2f} GB")
        measure(options.build / "tools/tensorprobe", folder, options.steps)


if __name__ == "__main__":
    main()
