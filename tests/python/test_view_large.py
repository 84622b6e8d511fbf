"""A journal that is too large to be read first is shown from its digests: what is served is true
at every zoom, and exact where single steps are asked for."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensorprobe import _core
from view_server import Server

SERIES, STEPS, MORE = 3000, 900, 30  # 2.7 million records: some 100 MB
ELEMENTS, POOL = 6, 4001
SPIKE, NAN_AT, INFINITE = (1234, 411), (1500, 702), (77, 300)  # series and step
BYTE_NAN, BYTE_POS_INF = 250, 251
API = '{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}'


class Large:
    """A run, what was recorded in it, and a server that shows it."""

    def __init__(self, folder: Path) -> None:
        self.monitor = _core.Monitor(config_json=API, output_dir=str(folder), run_id="large")
        kinds = (_core.ACTIVATION, _core.GRAD_REDUCED)
        self.keys = [
            self.monitor.key(
                f"layers.{i // 10}.part{i % 10}",
                kinds[i % 2],
                _core.ROLE_OUTPUT if i % 2 == 0 else 0,
            )
            for i in range(SERIES)
        ]
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(POOL, ELEMENTS, generator=generator, dtype=torch.float64)
        self.pool = list(1 + 0.01 * noise)
        self.max_abs = (1 + 0.01 * noise).abs().max(dim=1).values.numpy().astype(np.float32)
        draw = np.random.default_rng(6)
        self.order = draw.permutation(POOL)
        self.steps = 0
        self.values = np.zeros((STEPS + MORE, SERIES), np.float32)

    def record(self, steps: int) -> None:
        odd = torch.ones(ELEMENTS, dtype=torch.float64)
        for step in range(self.steps, self.steps + steps):
            which = self.order[(np.arange(SERIES) * 7 + step * 1009) % POOL]
            self.values[step] = self.max_abs[which]
            for (series, at), value in (
                (SPIKE, 10.0), (NAN_AT, math.nan), (INFINITE, math.inf)
            ):  # fmt: skip
                if at == step:
                    self.values[step, series] = value
            observe, pool = self.monitor.observe, self.pool
            for i, key in enumerate(self.keys):
                value = float(self.values[step, i])
                if value > 2 or math.isnan(value):
                    odd[0] = value
                    observe(key, odd)
                else:
                    observe(key, pool[which[i]])
            self.monitor.log_scalar("loss", 3 / (1 + step))
            self.monitor.step()
        self.steps += steps


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Large, Server]]:
    folder = tmp_path_factory.mktemp("large")
    run = Large(folder)
    run.record(STEPS)
    size = sum(path.stat().st_size for path in folder.rglob("*.tpj"))
    assert size > 64 << 20, "it has to be large"
    with Server(folder) as server:
        server.wait()
        yield run, server
    run.monitor.close()


def row_of(series: int) -> dict[str, Any]:
    name = f"layers.{series // 10}.part{series % 10}"
    return {"q": "grad_reduced", "row": name} if series % 2 else {"row": f"{name}.output"}


def rows_of(series: int) -> dict[str, Any]:
    """Ask for one row of the map."""
    asked = row_of(series)
    return {**asked, "rows": asked.pop("row")}


def settled(ask: Any) -> Any:
    """Ask again until single steps have been read, if they are on their way."""
    until = time.monotonic() + 60
    answer = ask()
    while (answer[0] if isinstance(answer, tuple) else answer)["coming"]:
        assert time.monotonic() < until
        time.sleep(0.05)
        answer = ask()
    return answer


def windows(step: int) -> Iterator[tuple[int, int]]:
    draw = random.Random(step)
    for span in (STEPS, 400, 90, 17, 5, 1):
        first = min(max(0, step - draw.randrange(span)), STEPS - span)
        yield first, first + span - 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 365])
def test_nothing_extreme_is_hidden_at_any_zoom(large: tuple[Large, Server], width: int) -> None:
    _, server = large
    for (series, step), byte in (
        (SPIKE, None), (NAN_AT, BYTE_NAN), (INFINITE, BYTE_POS_INF)
    ):  # fmt: skip
        for first, last in windows(step):
            for side in ({}, {"side": "all", "h": 200}):
                asked = {**(rows_of(series) if not side else row_of(series)), **side}
                asked |= {"from": first, "to": last, "w": width, "s": "max_abs"}
                asked.pop("row", None)
                for _ in range(2):  # at once, and when single steps have been read
                    head, cells = server.map(**asked)
                    column = (step - head["from"]) // head["per"]
                    lines = [name for name, *_ in head["rows"]]
                    line = 0 if not side else lines.index(f"layers.{series // 10}")
                    cell = cells[line * head["w"] + column]
                    assert cell == byte if byte else 249 >= cell >= 240
                    if head["coming"]:
                        settled(lambda asked=asked: server.map(**asked))


@pytest.mark.slow
def test_single_steps_are_exact(large: tuple[Large, Server]) -> None:
    run, server = large
    draw = random.Random(1)
    places = [SPIKE, NAN_AT, INFINITE]
    places += [(draw.randrange(SERIES), draw.randrange(STEPS)) for _ in range(10)]
    for series, step in places:
        for first, last in list(windows(step))[2:]:
            asked = {**row_of(series), "s": "max_abs", "w": 200, "from": first, "to": last}
            line = settled(lambda asked=asked: server.ask("series", **asked))
            assert line["coarse"] == 0
            values = run.values[first : last + 1, series]
            found = line["ranks"][0]["v"]
            odd = [[i, 1, 0] if np.isnan(x) else [i, 0, 1] for i, x in enumerate(values)
                   if not np.isfinite(x)]  # fmt: skip
            assert found["odd"] == odd
            for name in ("min", "max", "last"):
                assert [np.float32(x) if x is not None else None for x in found[name]] == [
                    x if np.isfinite(x) else None for x in values
                ]
        cell = server.ask("cell", **rows_of(series), s="max_abs", **{"from": step, "to": step})
        value = run.values[step, series]
        shown = {"NaN": math.nan, "+Inf": math.inf}.get(cell["value"], cell["value"])
        assert cell["step"] == step
        assert np.array_equal(np.float32(shown), value, equal_nan=True)


@pytest.mark.slow
def test_the_worst_cell_of_all_is_found(large: tuple[Large, Server]) -> None:
    _, server = large
    for rows, (series, step) in (("layers.12*", SPIKE), ("layers.150.*", NAN_AT), ("*", INFINITE)):
        asked = {**row_of(series), "rows": rows, "s": "max_abs"}
        asked.pop("row")
        limits = {"from": 5, "to": 590} if series == INFINITE[0] else {"from": 5, "to": 895}
        cell = server.ask("cell", **asked, **limits)
        assert (cell["row"], cell["step"]) == (row_of(series)["row"], step)


@pytest.mark.slow
def test_spans_hold_the_extremes_of_their_steps(large: tuple[Large, Server]) -> None:
    run, server = large
    for series in (SPIKE[0], 5, 2001):
        line = server.ask("series", **row_of(series), s="max", w=450)
        assert (line["per"], line["coarse"]) == (2, 16)
        found = line["ranks"][0]["v"]
        values = run.values[:STEPS, series]
        assert np.float32(max(found["max"])) == values.max()
        assert np.float32(min(found["min"])) == values.min()
        for i in range(line["w"]):
            here = values[2 * i : 2 * i + 2]
            around = values[max(0, 2 * i - 15) : 2 * i + 17]
            assert around.min() <= np.float32(found["min"][i]) <= here.min()
            assert here.max() <= np.float32(found["max"][i]) <= around.max()


@pytest.mark.slow
def test_what_was_logged_is_there_step_by_step(large: tuple[Large, Server]) -> None:
    _, server = large
    line = server.ask("timeline", w=STEPS)
    loss = [3 / (1 + step) for step in range(STEPS)]
    assert line["loss"]["last"] == pytest.approx(loss, rel=1e-6)  # f32 where it was read
    shares = line["health"]["grad_reduced"]["share"]
    far = [i for i, share in enumerate(shares) if share > 0]
    assert INFINITE[1] in far  # and no more than its span
    assert len(far) <= 16


@pytest.mark.slow
def test_incidents_come_from_the_digests_of_segments(large: tuple[Large, Server]) -> None:
    _, server = large
    found = server.ask("incidents")["incidents"]
    assert sorted((one["step"], one["row"]) for one in found) == sorted(
        (step, row_of(series)["row"]) for series, step in (NAN_AT, INFINITE)
    )


@pytest.mark.slow
def test_a_segment_without_a_digest_is_read(large: tuple[Large, Server], tmp_path: Path) -> None:
    run, _ = large
    directory = Path(run.monitor.directory)
    shutil.copytree(directory, tmp_path / "copy")
    segments = sorted((tmp_path / "copy/journal").iterdir())
    torn = segments[len(segments) // 3]  # as a run leaves it that was killed, and went on
    torn.write_bytes(torn.read_bytes()[:-60])
    with Server(tmp_path) as server:
        info = server.wait()
        assert info["last"] == run.steps - 1
        for series, step in (SPIKE, NAN_AT, INFINITE, (5, 200)):
            for span in (30, 3):
                first = max(0, step - span)
                asked = {"s": "max_abs", "w": 200, "from": first, "to": step + span}
                line = settled(
                    lambda asked=asked, s=series: server.ask("series", **row_of(s), **asked)
                )
                values = run.values[first : step + span + 1, series]
                found = line["ranks"][0]["v"]["last"]
                assert [x if x is None else np.float32(x) for x in found] == [
                    x if np.isfinite(x) else None for x in values
                ]
        head, cells = server.map(**rows_of(SPIKE[0]), s="max_abs", w=100)
        assert 249 >= cells[SPIKE[1] // head["per"]] >= 240
        steps = server.ask("timeline", w=STEPS)["seconds"]["last"]
        assert len(steps) == STEPS
        assert None not in steps


@pytest.mark.slow
def test_a_run_that_goes_on_is_followed(large: tuple[Large, Server]) -> None:
    run, server = large
    run.record(MORE)
    until = time.monotonic() + 60
    while server.ask("run")["last"] < STEPS + MORE - 2:  # the last one may still be written
        assert time.monotonic() < until
        time.sleep(0.05)
    first = STEPS - 50
    for series in (3, SERIES - 1):
        asked = {**row_of(series), "s": "max_abs", "w": 200, "from": first, "to": STEPS + 20}
        line = settled(lambda asked=asked: server.ask("series", **asked))
        found = line["ranks"][0]["v"]["last"]
        assert [np.float32(x) for x in found] == list(run.values[first : STEPS + 21, series])
        _, cells = server.map(**rows_of(series), s="max_abs", w=200, **{"from": first})
        assert max(cells[:71]) <= 249
