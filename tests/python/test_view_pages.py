"""The pages of ``tensorprobe view`` in a real browser, on a recording of a run that broke."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

from tensorprobe import _core
from view_browser import READY, Tab, until
from view_server import COMMAND, Server

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples/demo"))
from model import standard_library_text  # noqa: E402
from train_gpt import Options, Result, Screen, train  # noqa: E402

PAGES = ["run", "map", "series", "incidents", "communication", "compare"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A small GPT with a NaN written into one of its weights."""
    folder = tmp_path_factory.mktemp("broken")
    text, _ = standard_library_text()
    options = Options("nan", 3, 60, 2, 32, 2, 16, 4, str(folder))
    return train(options, text, Screen(quiet=True))


@pytest.fixture(scope="module")
def other(broken: Result) -> Result:
    """The same run with another fault, beside it."""
    text, _ = standard_library_text()
    options = Options("spike", 3, 60, 2, 32, 2, 16, 4, str(broken.directory.parent))
    return train(options, text, Screen(quiet=True))


@pytest.fixture(scope="module")
def server(broken: Result, other: Result) -> Iterator[Server]:
    with Server(broken.directory.parent) as one:
        one.wait(run_of(broken))
        one.wait(run_of(other))
        yield one


def run_of(result: Result) -> str:
    return result.directory.name.rpartition("-")[2]


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page(
    browser: Browser, server: Server, broken: Result, width: int, theme: str
) -> None:
    tab = Tab(browser, server, width, color_scheme=theme, locale="zh-CN" if width == 390 else "en")
    for name in PAGES:
        page = tab.go(f"r/{run_of(broken)}/{name}")
        assert page.locator("h1, canvas").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(247, 247, 245)" if theme == "light" else "rgb(17, 20, 25)")
        assert re.search(r"\{[a-z_]+\}", page.inner_text("#page")) is None
    tab.close()


@pytest.mark.slow
def test_from_the_run_to_the_first_tensor(browser: Browser, server: Server, broken: Result) -> None:
    first = broken.incidents[0]
    assert broken.fault is not None
    assert first.row == f"{broken.fault.module}.weight"
    tab = Tab(browser, server)
    page = tab.go(f"r/{run_of(broken)}/run")
    signs = page.locator("#glance [data-fine=no]")
    assert {signs.nth(i).get_attribute("data-name") for i in range(signs.count())} == {
        "incidents",
        "far",
    }
    assert page.locator("#cost canvas").count() == 3
    sentence = page.inner_text("#sentence")
    assert f"step {first.first_step}" in sentence
    assert first.row in sentence
    page.click(f"#incidents a.incident >> text={first.row}")
    page.wait_for_selector(f"article[data-row='{first.row}']")
    assert page.get_attribute("article", "data-step") == str(first.first_step)
    producer = page.locator("#path [data-part=producer]")
    assert producer.get_attribute("data-row") == first.row
    # The module that computes with it is the first victim.
    victim = page.locator("#path [data-part=victim]").first
    assert victim.get_attribute("data-row") == f"{broken.fault.module}.output"
    assert f"0x{first.bits:x}" in page.inner_text("ul.evidence")
    assert first.text.partition(";")[0] in page.inner_text("p.said")
    page.click("#onmap")
    page.wait_for_selector(f"#panel[data-row='{first.row}']")
    assert page.get_attribute("#panel", "data-step") == str(first.first_step)
    assert page.get_attribute("#panel", "data-value") == "NaN"
    page.keyboard.press("s")
    page.wait_for_selector("#lines canvas")
    page.wait_for_selector(READY)
    assert first.row in page.inner_text("h1")
    page.go_back()
    page.wait_for_selector(f"#panel[data-row='{first.row}']")
    tab.close()


@pytest.mark.slow
def test_map_by_keys_and_pointer(browser: Browser, server: Server, broken: Result) -> None:
    tab = Tab(browser, server)
    page = tab.go(f"r/{run_of(broken)}/map")
    first = broken.incidents[0].first_step
    page.keyboard.press("n")
    page.wait_for_selector(f"#panel[data-step='{first}']")
    assert page.get_attribute("#panel", "data-value") == "NaN"
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f"#panel[data-step='{first - 1}']")
    assert page.get_attribute("#panel", "data-value") != "NaN"
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("#tag").is_visible()
    before = page.get_attribute("#map", "data-from"), page.get_attribute("#map", "data-to")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    until(page, f"document.querySelector('#map').dataset.from != '{before[0]}'")
    assert "from=" in page.url
    page.keyboard.press("Escape")
    until(page, f"document.querySelector('#map').dataset.from == '{before[0]}'")
    for q, s, by in [("exp_avg", "mean", "value"), ("param_origin", "zeros", "distance")]:
        page.select_option("#q", q)
        page.wait_for_selector(READY)
        page.select_option("#s", s)
        page.click(f"#by [data-value={by}]")
        page.wait_for_selector(READY)
        assert f"q={q}" in page.url
    page.keyboard.press("v")
    page.wait_for_selector("#worst table")
    page = tab.go(f"r/{run_of(broken)}/map?cut=module-rank&step=5")
    page.locator("#step").fill("3")
    page.wait_for_selector(READY)
    until(page, "document.querySelector('#map').dataset.from == '3'")
    assert "step=3" in page.url
    tab.close()


@pytest.mark.slow
def test_search_help_language_and_theme(browser: Browser, server: Server, broken: Result) -> None:
    tab = Tab(browser, server)
    page = tab.go(f"r/{run_of(broken)}/run")
    page.keyboard.press("/")
    page.fill("#box", "1 down")
    page.wait_for_selector("#results li >> text=blocks.1.mlp.down")
    page.keyboard.press("Enter")
    page.wait_for_selector("#lines canvas")
    assert "blocks.1.mlp.down" in page.inner_text("h1")
    page.keyboard.press("?")
    page.wait_for_selector("#help table")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    page.wait_for_selector("html[lang=zh]")
    until(page, "document.querySelector('#top').innerText.includes('热力图')")
    page.keyboard.press("t")
    page.wait_for_selector("html[data-theme=dark]")
    page.keyboard.press("2")
    page.wait_for_selector("html[data-page=map]")
    page.wait_for_selector(READY)
    tab.close()


@pytest.mark.slow
def test_compare_names_what_differs_first(
    browser: Browser, server: Server, broken: Result, other: Result
) -> None:
    tab = Tab(browser, server)
    page = tab.go(f"r/{run_of(broken)}/compare?r2={run_of(other)}")
    page.wait_for_selector("#differences")
    # Both were the same training until the first fault.
    assert broken.fault is not None
    assert other.fault is not None
    step = int(page.get_attribute("#sentence", "data-step") or -1)
    assert step == min(broken.fault.step, other.fault.step)
    # A weight stands before what is computed with it.
    faults = {f"{one.module}.weight" for one in (broken.fault, other.fault) if one.step == step}
    assert page.get_attribute("#sentence", "data-row") in faults
    assert page.get_attribute("#difference", "data-first") == str(step)
    box = page.locator("#difference").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 60, box["y"] + 10)
    assert page.inner_text("#apart .readout").startswith("token.output")
    page.mouse.click(box["x"] + box["width"] - 60, box["y"] + 10)
    page.wait_for_selector("#both[data-row='token.output']")
    assert "at=token.output" in page.url
    page.keyboard.press("Escape")
    page.wait_for_selector("#both:not([data-row='token.output'])")
    tab.close()


@pytest.mark.slow
def test_series_unfolded(browser: Browser, tmp_path: Path) -> None:
    """Exponents over steps, micro steps, and of many ranks those that leave the band."""
    config = '{"format": "api", "exponents": true}'
    for rank in range(12):
        monitor = _core.Monitor(
            config_json=config, output_dir=str(tmp_path), rank=rank, run_id="many"
        )
        key = monitor.key("layer", _core.ACTIVATION, _core.ROLE_OUTPUT)
        for step in range(20):
            for micro in range(2):
                far = 3.0 if rank == 7 and step == 11 else 1.0
                tensor = torch.linspace(0.5, 2.0, 64) * far * (1 + 0.01 * rank)
                monitor.observe(key, tensor, micro)
            monitor.step()
        monitor.close()
    with Server(tmp_path) as server:
        server.wait()
        tab = Tab(browser, server)
        page = tab.go("r/many/series?k=actv/layer.output")
        page.wait_for_selector("#exponents[data-found='40'] canvas")
        assert page.get_attribute("#outliers", "data-ranks") == "7"
        assert page.locator("#keys .keyrow").count() == 2
        page.click("#exponents canvas", position={"x": 400, "y": 20})
        page.wait_for_selector("#micro[data-count='2']")
        assert "step=" in page.url
        assert page.locator("#micro tbody tr").count() == 2
        page.keyboard.press("m")
        page.wait_for_selector("#micro", state="detached")
        page.click("#y [data-value=log]")
        page.wait_for_selector(READY)
        assert "y=log" in page.url
        tab.close()


@pytest.mark.slow
def test_live(browser: Browser, tmp_path: Path) -> None:
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=str(tmp_path), run_id="on")
    key = monitor.key("layer", _core.ACTIVATION, _core.ROLE_OUTPUT)

    def step(value: float) -> None:
        monitor.observe(key, torch.full((4,), value))
        monitor.step()

    step(1.0)
    with Server(tmp_path) as server:
        tab = Tab(browser, server)
        page = tab.go("")
        for i in range(40):
            step(1.0 + i % 3)
        until(page, "document.querySelector('#state').innerText.includes('step 40')")
        page.keyboard.press("2")
        until(page, "document.querySelector('#map')?.dataset.to == '40'")
        for _ in range(5):
            step(2.0)
        until(page, "document.querySelector('#map').dataset.to == '45'")
        monitor.close()
        page.wait_for_selector("#state[data-live=stopped]")
        tab.close()


@pytest.mark.slow
def test_report(browser: Browser, broken: Result, tmp_path: Path) -> None:
    """One file holds it all: it asks nobody for anything."""
    path = tmp_path / "report.html"
    command = [str(COMMAND), "report", str(broken.directory), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}\n"
    assert path.stat().st_size < 3e6
    first = broken.incidents[0]
    problems: list[str] = []
    asked: list[str] = []
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 844})
        page.on("console", lambda said: problems.append(said.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-report=ready]")
        assert page.get_attribute("article", "data-row") == first.row
        assert page.get_attribute("article", "data-step") == str(first.first_step)
        assert page.locator("#map").count() >= 4
        assert page.locator("#lines canvas").count() >= 10
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#lang")
        until(page, "document.querySelector('#page').innerText.includes('传播路径')")
        page.close()
        assert problems == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    said = f"step {first.first_step}, rank 0: {first.text.partition(';')[0]}"
    assert said in page.inner_text(".static")
    context.close()
    wrong = [*command, "--run", "nowhere"]
    refused = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "has no run nowhere" in refused.stderr


def test_both_languages_say_the_same() -> None:
    english, chinese = (
        json.loads((ROOT / f"web/{name}.json").read_text()) for name in ("en", "zh")
    )
    assert english.keys() == chinese.keys()
    causes = ROOT / "src/record/describe.c"
    (names,) = re.findall(r"cause_names\[\] = \{(.*?)\}", causes.read_text(), re.DOTALL)
    used = {f"{way}_{name}" for name in re.findall(r'"(\w+)"', names) for way in "sc"}
    used -= {"s_unknown", "c_unknown"}
    for path in (ROOT / "web").glob("*.js"):
        used |= set(re.findall(r'words\("([a-z_A-Z]+)"', path.read_text()))
    assert used <= english.keys()
    for key, text in english.items():
        values = re.findall(r"\{([a-z_]+)\}", text)
        assert sorted(values) == sorted(re.findall(r"\{([a-z_]+)\}", chinese[key])), key
