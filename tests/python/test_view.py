"""What ``tensorprobe view`` serves is what was recorded, to those it is meant for."""

from __future__ import annotations

import http.client
import math
import random
import socket
import statistics
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorprobe
from tensorprobe import Incident, _core
from tensorprobe._causes import alerts_of, put_together
from tensorprobe.anomaly_analyse import read_journals
from view_server import COMMAND, Server, split

SEED = 0
NAN, POSITIVE, NEGATIVE, GAP, NONE = 250, 251, 252, 253, 254
RANKS, STEPS, SERIES = 3, 150, 7
API = '{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}'


def record(
    folder: Path, rank: int, values: dict[str, list[float | None]], run: str = "run"
) -> None:
    """Make a journal: a series of tensors with one element each; None: not recorded."""
    monitor = _core.Monitor(config_json=API, output_dir=str(folder), rank=rank, run_id=run)
    keys = {name: monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT) for name in values}
    tensor = torch.zeros(1, dtype=torch.float64)
    for step in range(len(next(iter(values.values())))):
        for name, key in keys.items():
            value = values[name][step]
            if value is not None:
                tensor[0] = value
                monitor.observe(key, tensor)
        monitor.step()
    monitor.close()


# ---- nothing extreme is ever hidden ----

LONG = 100_000


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("long")
    draw = random.Random(SEED)
    values: list[float | None] = [1 + 0.01 * draw.gauss(0, 1) for _ in range(LONG)]
    spike, nan = draw.sample(range(1000, LONG - 1000), 2)
    values[spike] = 10.0
    values[nan] = math.nan
    record(folder, 0, {"layer": values})
    with Server(folder) as server:
        server.wait()
        yield {"server": server, "spike": spike, "nan": nan, "values": values}


@pytest.mark.slow
@pytest.mark.parametrize("width", [7, 64, 365, 1200])
def test_a_spike_and_a_nan_show_at_every_zoom(long_run: dict[str, Any], width: int) -> None:
    server = long_run["server"]
    for what in ("spike", "nan"):
        at = long_run[what]
        for span in (LONG, 33_333, 5000, 700, 90, 8):
            first = max(0, at - span // 3)
            last = min(LONG, first + span) - 1
            head, cells = server.map(w=width, s="max_abs", **{"from": first, "to": last})
            column = (at - head["from"]) // head["per"]
            assert (head["from"], head["to"]) == (first, last)
            assert head["w"] <= width
            assert cells[column] == NAN if what == "nan" else 249 >= cells[column] >= 240
            line = server.ask(
                "series", row="layer.output", s="max_abs", w=width, **{"from": first, "to": last}
            )
            found = line["ranks"][0]["v"]
            column = (at - line["from"]) // line["per"]
            if what == "nan":
                assert [column, 1, 0] in found["odd"]
            else:
                assert found["max"][column] == 10


@pytest.mark.slow
def test_buckets_hold_the_extremes(long_run: dict[str, Any]) -> None:
    values = np.array(long_run["values"], dtype=np.float32)
    line = long_run["server"].ask("series", row="layer.output", s="max_abs", w=977)
    found = line["ranks"][0]["v"]
    for i in range(line["w"]):
        part = values[i * line["per"] : (i + 1) * line["per"]]
        part = part[np.isfinite(part)]
        assert np.float32(found["min"][i]) == part.min()
        assert np.float32(found["max"][i]) == part.max()
        assert np.float32(found["last"][i]) == part[-1]


# ---- maps and series are what was recorded ----


def draw_values(draw: random.Random) -> dict[str, list[float | None]]:
    values: dict[str, list[float | None]] = {}
    for i in range(SERIES):
        scale = 10 ** draw.uniform(-6, 6)
        row: list[float | None] = [scale * math.exp(draw.gauss(0, 0.2)) for _ in range(STEPS)]
        for _ in range(3):
            row[draw.randrange(STEPS)] = draw.choice([math.nan, math.inf, -math.inf, None, 0.0])
            row[draw.randrange(40, STEPS)] = scale * draw.choice([1e-3, 1e3])
        values[f"layers.{i // 3}.part{i % 3}"] = row
    return values


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[Any]]]:
    folder = tmp_path_factory.mktemp("small")
    draw = random.Random(SEED)
    ranks = [draw_values(draw) for _ in range(RANKS)]
    for rank, values in enumerate(ranks):
        record(folder, rank, values)
    with Server(folder) as server:
        server.wait()
        yield server, ranks


def same(served: Any, value: float | None) -> bool:
    if value is None or served is None:
        return value is None and served is None
    return bool(np.float32(served) == np.float32(value))


def test_series_are_what_was_recorded(small: tuple[Server, list[Any]]) -> None:
    server, ranks = small
    for name in ranks[0]:
        line = server.ask("series", row=f"{name}.output", s="max_abs", w=STEPS)
        for one in line["ranks"]:
            values = ranks[one["rank"]][name]
            finite = [None if v is None or not math.isfinite(v) else v for v in values]
            assert all(same(a, b) for a, b in zip(one["v"]["last"], finite, strict=True))
            odd = [
                [i, int(math.isnan(v)), int(math.isinf(v))]
                for i, v in enumerate(values)
                if v is not None and not math.isfinite(v)
            ]
            assert one["v"]["odd"] == odd


def distances(values: list[float | None]) -> list[float]:
    """How far from normal each value is, by the words of docs/view.md alone."""
    earlier: list[float] = []
    refused = 0
    found = []
    for value in values:
        if value is None or not math.isfinite(value):
            found.append(0.0)
            continue
        here = math.log2(value) if value > 0 else -149.0
        distance = math.nan
        if len(earlier) >= 16:
            median = statistics.median_low(earlier)
            mad = statistics.median_low(abs(x - median) for x in earlier)
            distance = (here - median) / max(mad, 0.05)
        found.append(0.0 if math.isnan(distance) else distance)
        if abs(distance) > 6:
            refused += 1
            if refused < 128:
                continue
            earlier = []
        refused = 0
        earlier = [*earlier, here][-32:]
    return found


def test_the_map_shows_the_worst(small: tuple[Server, list[Any]]) -> None:
    server, ranks = small
    head, cells = server.map(s="max_abs", w=50)
    assert [row[0] for row in head["rows"]] == [f"{name}.output" for name in ranks[0]]
    assert head["per"] == 3
    for r, name in enumerate(ranks[0]):
        far = [distances(values[name]) for values in ranks]
        for c in range(head["w"]):
            part = [(k, s) for k in range(RANKS) for s in range(3 * c, 3 * c + 3)]
            seen = [v for k, s in part if (v := ranks[k][name][s]) is not None]
            byte = cells[r * head["w"] + c]
            if any(math.isnan(v) for v in seen):
                assert byte == NAN
            elif any(math.isinf(v) for v in seen):
                signs = {v for v in seen if math.isinf(v)}
                assert byte in {POSITIVE if v > 0 else NEGATIVE for v in signs} | {POSITIVE}
            elif not seen:
                assert byte == NONE
            else:
                worst = max((far[k][s] for k, s in part), key=abs)
                if abs(worst) < 0.9 * head["neutral"]:
                    assert byte == 125
                elif abs(worst) > 1.1 * head["neutral"]:
                    assert (byte > 125) == (worst > 0)
                    share = (min(12, abs(worst)) - head["neutral"]) / (12 - head["neutral"])
                    colour = 124 * (head["faintest"] + (1 - head["faintest"]) * share)
                    assert abs(abs(byte - 125) - colour) < 8


def test_cuts(small: tuple[Server, list[Any]]) -> None:
    server, ranks = small
    name = "layers.1.part1"
    head, cells = server.map(cut="rank-step", s="max_abs", rows=f"{name}.output", w=STEPS)
    assert (head["w"], head["h"]) == (STEPS, RANKS)
    for rank in range(RANKS):
        for step in range(STEPS):
            value = ranks[rank][name][step]
            byte = cells[rank * STEPS + step]
            assert (byte == NAN) == (value is not None and math.isnan(value))
            assert (byte == NONE) == (value is None)
    step = 77
    head, cells = server.map(cut="module-rank", s="max_abs", step=step)
    assert (head["w"], head["h"], head["from"]) == (RANKS, SERIES, step)
    for r, row in enumerate(ranks[0]):
        for rank in range(RANKS):
            value = ranks[rank][row][step]
            assert (cells[r * RANKS + rank] == NONE) == (value is None)
    head, _ = server.map(h=3)
    assert [row[0] for row in head["rows"]] == ["layers.0", "layers.1", "layers.2"]
    head, _ = server.map(h=3, unfold="layers.1")
    assert [row[2] for row in head["rows"]] == [3, 0, 0, 0, 1]


def test_incidents_are_those_of_analyse(small: tuple[Server, list[Any]]) -> None:
    server, _ = small
    directory = Path(server.ask("runs")["runs"][0]["directory"]).parent
    found, _ = read_journals(directory)
    causes = put_together(item for item in found if isinstance(item.what, Incident))
    assert len(causes) > 3
    said = [
        [one["step"], one["rank"], one["row"], one["said"], one["ranks"], one["alerts"]]
        for one in server.ask("incidents")["incidents"]
    ]
    wanted = []
    for cause in causes:
        first = cause.first.what
        assert isinstance(first, Incident)
        alerts = len(alerts_of(cause, found))
        row = [first.first_step, cause.first.rank, first.row, first.text, cause.ranks, alerts]
        wanted.append(row)
    assert said == wanted


def test_ranks_that_differ_are_told_by_the_parameter(tmp_path: Path) -> None:
    config = '{"format": "api", "alert": {"rules": [{"rule_name": "ReplicaDrift"}]}}'
    monitor = _core.Monitor(config_json=config, output_dir=str(tmp_path), run_id="run")
    for step in range(3):
        monitor.log_scalar("replica_check.differs.h.0.weight", float(step == 2))
        monitor.step()
    monitor.close()
    with Server(tmp_path) as server:
        server.wait()
        (one,) = server.ask("incidents")["incidents"]
        assert (one["rule"], one["parameter"], one["step"]) == ("ReplicaDrift", "h.0.weight", 2)
        assert one["said"].startswith("ReplicaDrift: h.0.weight: 1 rank has other values")


def test_a_cell_in_full(small: tuple[Server, list[Any]]) -> None:
    server, ranks = small
    for name, step, rank in [("layers.0.part2", 91, 1), ("layers.2.part0", 140, 2)]:
        value = ranks[rank][name][step]
        cell = server.ask(
            "cell", rows=f"{name}.output", rank=rank, s="max_abs", **{"from": step, "to": step}
        )
        assert (cell["row"], cell["step"], cell["rank"]) == (f"{name}.output", step, rank)
        assert cell["max_abs"] == abs(value)  # all 53 bits
        assert cell["shape"] == [1]
        assert cell["dtype"] == "torch.float64"


def test_search(small: tuple[Server, list[Any]]) -> None:
    server, _ = small
    rows = [one["row"] for one in server.ask("search", t="1 part2")["results"]]
    assert rows == ["layers.1.part2.output"]
    assert server.ask("search", t="nothing like it")["results"] == []
    assert server.ask("search", t="")["total"] == SERIES


# ---- two runs ----


def test_how_far_apart(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    a: dict[str, list[float | None]] = {
        f"layers.{i}": [draw.uniform(1, 2) for _ in range(60)] for i in range(5)
    }
    b = {name: list(row) for name, row in a.items()}
    tolerance = 1e-7  # of float64
    factors = {(1, 7): 1 + 1e-5, (3, 30): 10.0, (3, 31): 1 + 3e-3, (4, 50): 0.0}
    for (i, step), factor in factors.items():
        b[f"layers.{i}"][step] = factor * (a[f"layers.{i}"][step] or 0)
    b["layers.2"][40] = math.nan
    a["layers.0"][3] = b["layers.0"][3] = math.inf
    b["layers.0"][59] = None
    record(tmp_path, 0, a, "a")
    record(tmp_path, 0, b, "b")
    with Server(tmp_path) as server:
        server.wait("a")
        server.wait("b")
        for per in (1, 3):
            content = server.read("difference", r="a", r2="b", s="norm", w=60 // per)
            head, cells = split(content)
            assert [row[0] for row in head["rows"]] == [f"layers.{i}.output" for i in range(5)]
            assert (head["compared"], head["differ"], head["first"]) == (299, 5, 7)
            for i in range(5):
                for column in range(head["w"]):
                    steps = range(column * per, (column + 1) * per)
                    pairs = [(a[f"layers.{i}"][k], b[f"layers.{i}"][k]) for k in steps]
                    byte = cells[i * head["w"] + column]
                    far = [apart(x, y) for x, y in pairs if x is not None and y is not None]
                    worst = max(far, default=math.nan) / tolerance
                    if math.isnan(worst):
                        assert byte == NONE
                    elif math.isinf(worst):
                        assert byte == NAN
                    elif worst <= 1:
                        assert byte == 125
                    else:
                        assert abs(byte - 145 - 104 * min(1, math.log10(worst) / 6)) <= 2


def apart(a: float, b: float) -> float:
    """Relative, of what a cell keeps."""
    x, y = (float(np.float32(value)) for value in (a, b))
    if x == y:
        return 0
    if not (math.isfinite(x) and math.isfinite(y)):
        return math.inf
    return abs(x - y) / max(abs(x), abs(y))


# ---- beyond statistics ----


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[Any]]]:
    """Steps of two micro steps, of tensors with zeros, whose exponents are counted."""
    folder = tmp_path_factory.mktemp("counted")
    config = '{"format": "api", "exponents": true}'
    monitor = _core.Monitor(config_json=config, output_dir=str(folder), run_id="run")
    key = monitor.key("layer", _core.ACTIVATION, _core.ROLE_OUTPUT)
    draw = np.random.default_rng(SEED)
    steps = []
    for step in range(30):
        tensors = draw.normal(0, 2.0 ** (step - 10), (2, 500)).astype(np.float32)
        tensors[:, : step * 3] = 0
        if step == 17:
            tensors[1, -1] = np.inf
        if step == 21:
            tensors[0] = np.nan  # it has no exponents at all
        for micro, tensor in enumerate(tensors):
            monitor.observe(key, torch.from_numpy(tensor), micro)
        monitor.step()
        steps.append(tensors)
    monitor.close()
    with Server(folder) as server:
        server.wait()
        yield server, steps


def test_exponents_over_steps(counted: tuple[Server, list[Any]]) -> None:
    server, steps = counted
    assert server.ask("series", row="layer.output")["exponents"] is True
    for first, last, width in ((0, 29, 10), (3, 28, 7), (17, 17, 100)):
        found = server.ask("histogram", row="layer.output", w=width, **{"from": first, "to": last})
        counts = np.array(found["counts"]).reshape(found["w"], found["bins"])
        for column in range(found["w"]):
            begin = first + column * found["per"]
            values = np.abs(np.stack(steps[begin : min(begin + found["per"], last + 1)]))
            finite = values[np.isfinite(values) & (values > 0)]
            exponents = np.frexp(finite)[1] - 1 - int(found["low"])
            wanted = np.bincount(exponents, minlength=found["bins"])
            assert (counts[column] == wanted).all()
            assert found["zeros"][column] == (values == 0).sum()
            assert found["odd"][column] == (~np.isfinite(values)).sum()
            assert found["elements"][column] == values.size


def test_micro_steps(counted: tuple[Server, list[Any]]) -> None:
    server, steps = counted
    for step in (0, 17):
        found = server.ask("micro", row="layer.output", step=step)["records"]
        assert [one["micro_step"] for one in found] == [0, 1]
        for one, tensor in zip(found, steps[step].astype(np.float64), strict=True):
            if np.isfinite(tensor).all():
                assert math.isclose(one["norm"], np.linalg.norm(tensor), rel_tol=1e-12)
                assert math.isclose(one["mean"], tensor.mean(), rel_tol=1e-9)
            else:
                assert (one["norm"], one["pos_inf"]) == ("+Inf", 1)


@pytest.mark.slow
def test_histograms_of_values(tmp_path: Path) -> None:
    model = torch.nn.Linear(40, 40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tensorprobe.watch(
        model, optimizer, format="api", ur_distribution=True, output_dir=tmp_path
    ) as monitor:
        for _ in range(13):  # the first one has no moments yet
            model(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    wanted = np.zeros((4, 30))
    for step in tensorprobe.Journal(monitor.directory):
        for record in step.records:
            if record["row"] == "weight" and record["quantity"] == "adam_update":
                wanted[(step.step - 1) // 3] += record["histogram"]["bins"]
    with Server(tmp_path) as server:
        server.wait()
        series = {"q": "adam_update", "row": "weight", "from": 1}
        assert server.ask("series", **series)["values"] is True
        found = server.ask("histogram", what="values", w=4, **series)
        assert (found["low"], found["high"], found["others"]) == (-1, 1, 0)
        assert (np.array(found["counts"]).reshape(4, 30) == wanted).all()
        assert found["elements"] == [3 * 1600] * 4


# ---- to whom ----


def status(server: Server, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_who_is_refused(small: tuple[Server, list[Any]]) -> None:
    server, _ = small
    here = f"127.0.0.1:{server.port}"
    assert status(server, "/api/run") == 200
    for host in ("localhost", "localhost:1", "127.0.0.1", "[::1]:80"):
        assert status(server, "/api/run", Host=host) == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a:b"):
        assert status(server, "/api/run", Host=host) == 403
    assert status(server, "/api/run", Sec_Fetch_Site="cross-site") == 403
    assert status(server, "/app.js", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors") == 403
    assert status(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200
    assert status(server, "/api/run", Origin="https://evil.example") == 403
    assert status(server, "/api/run", Origin=f"http://{here}") == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert status(server, "/api/run", method) == 405
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/api/../../etc/passwd",
        "/style.css/../../x",
        "/api/nothing",
        "/api/",
    ):
        assert status(server, path) == 404
    for path in ("/api/map?s=x", "/api/map?q=x", "/api/cell?s=%00"):
        assert status(server, path) == 400
    assert status(server, "/api/run?r=none") == 404
    for path in ("/api/map?w=-1&h=x&from=99999999999999999999&to=-3", "/api/series?row=%ff"):
        assert status(server, path) in (200, 404)


def test_what_the_pages_may_do(small: tuple[Server, list[Any]]) -> None:
    server, _ = small
    with urllib.request.urlopen(server.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")


def test_token(tmp_path: Path) -> None:
    record(tmp_path, 0, {"a": [1.0]})
    with Server("--token", tmp_path) as server:
        secret = server.url.partition("token=")[2]
        assert len(secret) == 32
        assert status(server, "/") == 403
        assert status(server, "/api/run") == 403
        assert status(server, f"/api/run?token={secret}") == 403
        assert status(server, "/?token=" + "0" * 32) == 403
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", f"/?token={secret}")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert status(server, "/api/run", Cookie=cookie.partition(";")[0]) == 200


# Connects so often, sends the beginnings of requests, and holds on until its input ends.
CROWD = """
import socket, sys
held = []
for i in range(int(sys.argv[2])):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
    held.append(one)
for one in held[:20]:
    try:
        one.send(b"GET /api/run HTTP/1.1\\r\\nHo")
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_many_and_slow_clients(small: tuple[Server, list[Any]]) -> None:
    """Connections without a request hold no more than their places, and those for a while."""
    server, _ = small
    proc = Path(f"/proc/{server.process.pid}")
    command = [sys.executable, "-S", "-c", CROWD, str(server.port), "625"]
    crowds = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(16)
    ]
    tried = [crowd.stdout.readline() for crowd in crowds if crowd.stdout is not None]
    assert tried == [b"625\n"] * 16  # 10,000
    assert int((proc / "statm").read_text().split()[1]) * 4096 < 200e6
    assert len(list((proc / "fd").iterdir())) < 200
    for crowd in crowds:
        crowd.communicate()
    assert status(server, "/api/run") == 200
    # Dripping doesn't help: whoever has sent no whole request by then has to go.
    drip = socket.create_connection(("127.0.0.1", server.port))
    drip.settimeout(1)
    gone = False
    for _ in range(40):
        try:
            drip.send(b"G")
            gone = drip.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            gone = True
        if gone:
            break
    assert gone
    drip.close()


def test_mistakes_are_answered(tmp_path: Path) -> None:
    def said(*arguments: str | Path) -> tuple[int, str]:
        result = subprocess.run(
            [COMMAND, "view", *arguments], capture_output=True, text=True, check=False
        )
        return result.returncode, result.stderr

    assert said() == (2, "try `tensorprobe view --help`\n")
    assert said("--port", "x", tmp_path)[0] == 2
    code, text = said(tmp_path)
    assert code == 1
    assert "holds no journal" in text
    record(tmp_path, 0, {"a": [1.0]})
    code, text = said("--address", "somewhere", tmp_path)
    assert code == 1
    assert "write 127.0.0.1" in text
    with Server(tmp_path) as server:
        code, text = said("--port", str(server.port), tmp_path)
        assert code == 1
        assert "is it taken" in text


def test_unknown_runs(small: tuple[Server, list[Any]]) -> None:
    server, _ = small
    with pytest.raises(urllib.error.HTTPError):
        server.ask("run", r="nowhere")
