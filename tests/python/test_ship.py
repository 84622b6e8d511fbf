"""`tensorprobe ship` against real servers: everything arrives once, whoever is killed when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from built import TOOL
from servers import (
    PASSWORD,
    SECRET,
    MariaDB,
    Postgres,
    Server,
    VictoriaMetrics,
    free_port,
    make_certificate,
    wait_for,
)
from shipping import RANKS, SERIES, SOAK, STEPS, environment, ship, write, written

pytestmark = pytest.mark.slow

ODD_NAME = "a \"b\", 'c' \\ d=e\nf\t🔥"
Table = dict[str, np.ndarray[Any, Any]]


def expected(ranks: int = RANKS, series: int = SERIES, steps: int = STEPS) -> Table:
    """What tests/unit/write_journals.c writes, by its formulas; ordered by rank, step, series."""
    rank, step, number = (a.ravel() for a in np.mgrid[:ranks, :steps, :series])
    x = 1 + (number * 7919 + step * 104729 + rank * 1299709) % 1000003 / 1024
    nan = (number + step) % 97 == 0
    inf = (number + 2 * step) % 101 == 0
    count = 100 + number % 7
    top = np.where(inf, np.inf, x)
    return {
        "rank": rank,
        "step": step,
        "position": number,
        "count": count,
        "nan": nan.astype(int),
        "pos_inf": inf.astype(int),
        "neg_inf": np.zeros_like(count),
        "zeros": step,
        "subnormal": rank,
        "norm": np.where(nan, np.nan, top),
        "min": np.where(nan, np.nan, -x),
        "max": np.where(nan, np.nan, top),
        "mean": np.where(nan, np.nan, np.where(inf, np.inf, x * count / count)),
        "std": x,
        "finite_min": -x,
        "finite_max": x,
        "abs_max": top,
        "abs_max_index": np.where(number % 5 == 0, np.nan, number),
        "sum_abs": 2 * x,
    }


def name_of(number: int) -> str:
    return ODD_NAME if number == 0 else f"layers.{number}.weight"


NAMES = (
    "SELECT rank, series, tp_series.name, row_name, quantity, role, vpp_stage, slot, call_index,"
    " micro_step, global_name, argument FROM tp_series JOIN tp_run USING (run)"
    " WHERE run_id = '{}' ORDER BY rank, series"
)


def check_names(server: Postgres | MariaDB, run: str) -> None:
    rows = server.rows(NAMES.format(run))
    quantities = ("actv", "grad_reduced", "param_origin")
    wanted = []
    for rank in range(RANKS):
        for i in range(SERIES):
            slot = i % 4 - 1
            row = name_of(i) + (".output" if i % 3 == 0 else "") + (f"_{slot}" if slot >= 0 else "")
            role = "output" if i % 3 == 0 else ""
            micro = i % 2 if i % 3 == 0 else None
            wanted.append(
                (
                    rank,
                    i,
                    name_of(i),
                    row,
                    quantities[i % 3],
                    role,
                    i % 2,
                    slot if slot >= 0 else None,
                    0,
                    micro,
                    None,
                    None,
                )
            )
    assert rows == wanted


def check_values(server: Postgres | MariaDB, run: str, wanted: Table, has_nan: bool) -> None:
    columns = ", ".join(name for name in wanted if name != "rank")
    sql = f"SELECT rank, {columns} FROM tp_value JOIN tp_run USING (run) WHERE run_id = '{run}'"
    rows = server.rows(sql + " ORDER BY rank, attempt, step, position")
    assert len(rows) == len(wanted["rank"])
    found = np.array(rows, dtype=np.float64)  # NULL becomes NaN
    for i, name in enumerate(wanted):
        column = wanted[name].astype(np.float64)
        if not has_nan:
            column = np.where(np.isfinite(column), column, np.nan)
        np.testing.assert_array_equal(found[:, i], column, err_msg=name)


def check_steps_and_alerts(server: Postgres | MariaDB, run: str) -> None:
    where = f"FROM {{}} JOIN tp_run USING (run) WHERE run_id = '{run}' ORDER BY rank, step"
    steps = server.rows(
        "SELECT rank, attempt, step, pp_stage, micro_steps, skipped, wall_ns, duration_ns, hook_ns,"
        " errors, records " + where.format("tp_step")
    )
    assert steps == [
        (
            rank,
            0,
            step,
            rank or None,
            2,
            0,
            1700000000000000000 + step * 500000000 + rank,
            2000,
            77,
            0,
            SERIES,
        )
        for rank in range(RANKS)
        for step in range(STEPS)
    ]
    alerts = server.rows(
        "SELECT rank, step, series, position, rule, op, value, samples, message "
        + where.format("tp_alert")
    )
    alert = (7, 5, 5, "AnomalyNan", "nans", 1.0, 0, "1 value is NaN")
    assert alerts == [(1, *alert), (2, *alert)]
    incidents = server.rows(
        "SELECT rank, step, series, number, state, severity, rule, first_step, alerts, message "
        + where.format("tp_incident")
    )
    assert [row[:9] for row in incidents] == [
        (rank, 7, 5, 1, "begins", "critical", "AnomalyNan", 7, 4) for rank in (1, 2)
    ]
    assert all("AnomalyNan: first in layers.5.weight_0" in row[9] for row in incidents)


def kill_and_restart(server: Server, folder: Path, run: str, delivered: Any) -> None:
    """Deliver a run while it is written, with a killed ship and a killed server on the way."""
    url = server.url  # type: ignore[attr-defined]
    options = ["--to", "$DB_URL", "--follow", "--patience", "60", "--run", run]
    line = [str(TOOL), "ship", *options, str(folder)]
    writer = write(folder, run, pause_ms=400 if SOAK else 100)
    wait_for(lambda: any(folder.glob("*/journal/*")))
    process = subprocess.Popen(line, env=environment(DB_URL=url))
    try:
        wait_for(lambda: delivered() > 0)
        process.kill()
        process.wait()
        before = delivered()
        process = subprocess.Popen(line, env=environment(DB_URL=url))
        wait_for(lambda: delivered() > before)
        server.stop()
        time.sleep(0.5)
        server.start()
        assert writer.wait() == 0
        assert process.wait(timeout=600) == 0
    finally:
        process.kill()
        writer.kill()


@pytest.mark.parametrize("which", ["postgres", "mariadb"])
def test_everything_arrives_in_a_database(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Postgres | MariaDB = request.getfixturevalue(which)

    def delivered() -> int:
        try:
            return int(server.rows("SELECT count(*) FROM tp_step")[0][0])
        except Exception:
            return 0

    kill_and_restart(server, tmp_path / "runs", "aaaa0001", delivered)
    check_values(server, "aaaa0001", expected(), has_nan=which == "postgres")
    check_names(server, "aaaa0001")
    check_steps_and_alerts(server, "aaaa0001")
    again = ship("--to", "$DB_URL", tmp_path / "runs", DB_URL=server.url)
    assert again.stdout == f"{tmp_path / 'runs'}: 0 steps of 4 journals delivered\n"


def test_everything_arrives_by_line_protocol(tmp_path: Path, metrics: VictoriaMetrics) -> None:
    def delivered() -> int:
        cursors = (tmp_path / "runs").glob("*/ship/line-*.cursor")
        return sum(path.stat().st_mtime_ns for path in cursors)

    kill_and_restart(metrics, tmp_path / "runs", "aaaa0002", delivered)
    wanted = expected()
    metrics.get("/internal/force_flush")
    shape = (RANKS, STEPS, SERIES)
    for field in ("norm", "min", "max", "mean", "std", "sum_abs", "nan", "pos_inf", "step"):
        found = np.full(shape, np.nan)
        lines = metrics.get(
            "/api/v1/export", **{"match[]": f'tensorprobe_{field}{{run="aaaa0002"}}'}
        )
        for line in lines.splitlines():
            series = json.loads(line)
            tags = series["metric"]
            assert tags["attempt"] == "0"
            name = tags["name"]
            number = int(name.split(".")[1]) if name.startswith("layers") else 0
            assert name == (
                name_of(number) if number else ODD_NAME.replace("\\", "/").replace("\n", " ")
            )
            steps = (np.array(series["timestamps"]) - 1_700_000_000_000) // 500
            assert len(set(steps)) == len(steps)
            found[int(tags["rank"]), steps, number] = series["values"]
        column = wanted[field].reshape(shape).astype(np.float64)
        np.testing.assert_array_equal(found, np.where(np.isfinite(column), column, np.nan), field)


def test_targets_intervals_and_rollups(tmp_path: Path, postgres: Postgres) -> None:
    """Delivered in pieces, so that spans of steps are cut: the same as at once."""
    config = tmp_path / "monitor.json"
    config.write_text(
        '{"wg_distribution": true, "database": {"url": "$DB_URL", "targets": ["layers.3",'
        ' "layers.1?.*"], "step_interval": 3, "rollup_steps": 7}}'
    )
    size = {"ranks": 2, "series": 60, "steps": 40}
    writer = write(tmp_path / "runs", "aaaa0003", **size, pause_ms=25)
    wait_for(lambda: len(list((tmp_path / "runs").glob("*/journal/0*"))) == 2)
    while writer.poll() is None:
        ship("--config", config, tmp_path / "runs", DB_URL=postgres.url)
    ship("--config", config, tmp_path / "runs", DB_URL=postgres.url)
    assert writer.returncode == 0
    where = "JOIN tp_run USING (run) WHERE run_id = 'aaaa0003'"
    chosen = [3, *range(10, 20)]
    wanted = expected(**size)
    mask = np.isin(wanted["position"], chosen) & (wanted["step"] % 3 == 0)
    check_values(
        postgres, "aaaa0003", {name: column[mask] for name, column in wanted.items()}, has_nan=True
    )
    rows = postgres.rows(
        "SELECT rank, first_step, name_number, last_step, records, nan, inf, norm_min, norm_max,"
        " norm_last, finite_min, finite_max FROM (SELECT *, CASE WHEN tp_series.name LIKE 'layers%'"
        " THEN split_part(tp_series.name, '.', 2)::int ELSE 0 END AS name_number FROM tp_rollup"
        f" JOIN tp_series USING (run, series) {where.replace('USING (run)', 'USING (run)')}) AS r"
        " ORDER BY rank, first_step, name_number"
    )
    cube = {name: column.reshape(2, 40, 60) for name, column in wanted.items()}
    brute = []
    for rank in range(2):
        for first in range(0, 40, 7):
            last = min(first + 6, 39)
            for number in range(60):
                norm = cube["norm"][rank, first : last + 1, number]
                finite = norm[np.isfinite(norm)]
                nan = cube["nan"][rank, first : last + 1, number] > 0
                inf = (cube["pos_inf"][rank, first : last + 1, number] > 0) & ~nan
                span = slice(first, last + 1)
                brute.append(
                    (
                        rank,
                        first,
                        number,
                        last,
                        last + 1 - first,
                        nan.sum(),
                        inf.sum(),
                        finite.min(),
                        finite.max(),
                        norm[-1],
                        cube["finite_min"][rank, span, number].min(),
                        cube["finite_max"][rank, span, number].max(),
                    )
                )
    np.testing.assert_array_equal(np.array(rows, dtype=float), np.array(brute, dtype=float))


def test_two_at_once_deliver_once(tmp_path: Path, postgres: Postgres) -> None:
    written(tmp_path / "runs", "aaaa0004", ranks=3, series=50, steps=30)
    line = [str(TOOL), "ship", "--to", "$DB_URL", str(tmp_path / "runs")]
    both = [subprocess.Popen(line, env=environment(DB_URL=postgres.url)) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    check_values(postgres, "aaaa0004", expected(3, 50, 30), has_nan=True)
    # The command that writes files knows this way, too.
    line[1] = "export"
    done = subprocess.run(
        line, env=environment(DB_URL=postgres.url), capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith(": 0 steps of 3 journals delivered\n")


@pytest.mark.parametrize("which", ["postgres", "mariadb"])
def test_a_wrong_password_is_said_once(
    which: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Postgres | MariaDB = request.getfixturevalue(which)
    written(tmp_path / "runs", "aaaa0005", ranks=1, series=5, steps=3)
    wrong = server.url.replace(SECRET, "wrong-secret")
    done = ship("--to", "$DB_URL", tmp_path / "runs", status=1, DB_URL=wrong)
    assert done.stderr.count("probe") > 0
    assert done.stderr.count("warning") == 1
    assert "wrong-secret" not in done.stderr
    # From the environment within the URL, and from a file.
    url = server.url.replace(SECRET, "$DB_PASSWORD")
    done = ship("--to", url, tmp_path / "runs", DB_PASSWORD=PASSWORD)
    assert "3 steps of 1 journal" in done.stdout
    (tmp_path / "secret").write_text(server.url + "\n")
    ship("--to", f"file:{tmp_path / 'secret'}", tmp_path / "runs")


@pytest.mark.parametrize("which", ["postgres", "mariadb"])
def test_tls_to_databases(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server: Postgres | MariaDB = request.getfixturevalue(which)
    written(tmp_path / "runs", "aaaa0009", ranks=1, series=5, steps=3)
    _, stranger = make_certificate(tmp_path, "stranger")
    url = server.url.replace("127.0.0.1", "localhost")
    trust = "?sslmode=verify-full&sslrootcert={}" if which == "postgres" else "?ssl_ca={}"
    wrong = ship(
        "--to", "$U", tmp_path / "runs", "--patience", "0", status=1, U=url + trust.format(stranger)
    )
    assert "certificate" in wrong.stderr
    done = ship("--to", "$U", tmp_path / "runs", U=url + trust.format(server.certificate))
    assert "3 steps of 1 journal delivered" in done.stdout


def test_what_cannot_be_delivered_is_said(tmp_path: Path, postgres: Postgres) -> None:
    runs = tmp_path / "runs"
    written(runs, "aaaa0006", ranks=2, series=5, steps=3)
    assert "no such file" in ship("--to", "$U", "/nowhere", status=1, U=postgres.url).stderr.lower()
    assert "sqlite" in ship("--to", "sqlite:///x", runs, status=1).stderr
    assert "U is not set" in ship("--to", "$U", runs, status=1).stderr
    assert "is no URL" in ship("--to", "oracle://x", runs, status=1).stderr
    closed = "postgresql://probe:hunter2@127.0.0.1:1/x"
    done = ship("--to", closed, "--patience", "1", runs, status=1)
    assert done.stderr.count("Connection refused") == 2  # once as a warning, once as the end
    assert "hunter2" not in done.stderr
    done = ship("--to", "$U", "--ranks", "1-1", "--run", "aaaa0006", runs, U=postgres.url)
    assert "3 steps of 1 journal delivered" in done.stdout
    ship("--to", "$U", "--ranks", "2-1", runs, status=2)
    assert "where to? --to URL" in ship(runs, status=2).stderr
    assert "which directory?" in ship("--to", "$U", status=2).stderr
    assert "one directory at a time" in ship("--to", "$U", runs, runs, status=2).stderr


def test_names_and_rights_of_others_tables(tmp_path: Path, postgres: Postgres) -> None:
    """Who may not make tables fills those that are there; who has none is told, and not robbed."""
    written(tmp_path / "runs", "aaaa0007", ranks=1, series=5, steps=3)
    ship("--to", "$U", "--run", "none", tmp_path / "runs", U=postgres.url)
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE poor LOGIN PASSWORD 'poor'")
        connection.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO poor")
    poor = postgres.url.replace(f"probe:{SECRET}", "poor:poor")
    assert "3 steps" in ship("--to", "$U", tmp_path / "runs", U=poor).stdout
    with postgres.connect() as connection:
        connection.execute("REVOKE INSERT ON tp_value FROM poor")
    written(tmp_path / "more", "aaaa0008", ranks=1, series=5, steps=3)
    assert "permission denied" in ship("--to", "$U", tmp_path / "more", status=1, U=poor).stderr
    assert postgres.rows(
        "SELECT count(*) FROM tp_step JOIN tp_run USING (run) WHERE run_id = 'aaaa0008'"
    ) == [(0,)]


TRAINING = """
    import sys, time, torch, tensorprobe
    folder, url, steps = sys.argv[1:]
    config = {"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]}}
    if url:
        config["database"] = {"url": url}
        config["alert"]["inform"] = {"connection_str": url}
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with tensorprobe.watch(model, optimizer, output_dir=folder, **config) as monitor:
        for step in range(int(steps)):
            x = torch.randn(3, 4)
            if step == 5:
                x[0, 0] = float("nan")
            model(x).nan_to_num().mean().backward()
            if step == 5:
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
            print(step, flush=True)
            time.sleep(0.01)
    state = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
    print(monitor.counters()["gaps"], state, torch.get_rng_state().sum().item(), flush=True)
"""


def train(folder: Path, url: str, steps: int, **more: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", textwrap.dedent(TRAINING), str(folder), url, str(steps)]
    more |= {"TENSORPROBE_COMMAND": str(TOOL), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(line, env=environment(**more), stdout=pipe, stderr=pipe, text=True)


def ships_of(folder: Path) -> list[Path]:
    """The processes that deliver what is in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"ship" in words and str(folder).encode() in words:
            found.append(process)
    return found


def test_a_training_starts_it_and_may_be_killed(tmp_path: Path, postgres: Postgres) -> None:
    """Without a server for a while, and without the training at the end."""
    folder = tmp_path / "runs"
    postgres.stop()
    try:
        training = train(folder, "$DB_URL", 100_000, DB_URL=postgres.url)
        assert training.stdout is not None
        while training.stdout.readline() != "30\n":
            pass
        (process,) = ships_of(folder)
        status = (process / "status").read_text()
        assert f"PPid:\t{training.pid}\n" not in status
        assert SECRET not in (process / "cmdline").read_text()
        assert os.getsid(int(process.name)) != os.getsid(training.pid)
        training.kill()
        # Both ends are this test's alone: the process beside the training has none of them.
        training.communicate(timeout=20)
        assert ships_of(folder) == [process]
    finally:
        postgres.start()
    wait_for(lambda: not ships_of(folder))
    log = (folder / "ship.log").read_text()
    warnings = [line for line in log.splitlines() if "warning" in line]
    assert 1 <= len(warnings) <= 2, log  # of the values, and perhaps of the messages
    assert PASSWORD not in log
    assert SECRET not in log
    (directory,) = folder.glob("*rank0*")
    run = directory.name.rpartition("-")[2]
    where = f"FROM tp_value JOIN tp_run USING (run) WHERE run_id = '{run}'"
    steps = postgres.rows(
        "SELECT count(*), max(step), sum(records) FROM tp_step JOIN tp_run USING (run)"
        f" WHERE run_id = '{run}'"
    )[0]
    assert steps[0] == steps[1] + 1 >= 30
    assert postgres.rows(f"SELECT count(*) {where}") == [(steps[2],)]
    messages = postgres.rows(f"SELECT rule, step, message FROM tp_message WHERE job_id = '{run}'")
    assert [row[:2] for row in messages] == [("AnomalyNan", 5)]


def test_it_changes_nothing_and_ends_by_itself(tmp_path: Path, postgres: Postgres) -> None:
    gone = f"postgresql://probe:x@127.0.0.1:{free_port()}/x"
    urls = {"plain": "", "shipped": postgres.url, "lonely": gone}
    runs = [train(tmp_path / name, "$U" if url else "", 20, U=url) for name, url in urls.items()]
    plain, shipped, lonely = (run.communicate(timeout=90)[0] for run in runs)
    assert plain.splitlines()[-1].startswith("0 [")
    assert shipped == plain
    assert lonely == plain
    wait_for(lambda: not ships_of(tmp_path / "shipped"))
    log = (tmp_path / "shipped/ship.log").read_text()
    assert log == f"{tmp_path / 'shipped'}: 20 steps of 1 journal delivered, 1 message sent\n"
    # The other one waits for its server, until it is told to end.
    (process,) = ships_of(tmp_path / "lonely")
    os.kill(int(process.name), signal.SIGTERM)
    wait_for(lambda: not ships_of(tmp_path / "lonely"))
    done = ship("--to", "$U", tmp_path / "lonely", U=postgres.url)
    assert "20 steps of 1 journal delivered" in done.stdout


def test_a_node_has_one(tmp_path: Path, postgres: Postgres) -> None:
    """Four ranks on two nodes: two processes, each for its own ranks."""
    folder = tmp_path / "runs"
    ranks = [
        train(
            folder,
            "$U",
            15,
            U=postgres.url,
            RANK=str(rank),
            WORLD_SIZE="4",
            LOCAL_RANK=str(rank % 2),
            LOCAL_WORLD_SIZE="2",
            TORCHELASTIC_RUN_ID="none",
            MASTER_ADDR="localhost",
            MASTER_PORT="1",
        )
        for rank in range(4)
    ]
    said = [process.communicate(timeout=90)[1] for process in ranks]
    assert ["delivers beside the training" in text for text in said] == [True, False, True, False]
    wait_for(lambda: not ships_of(folder))
    log = sorted((folder / "ship.log").read_text().splitlines())
    assert [line.partition(": ")[2].partition(",")[0] for line in log] == [
        "30 steps of 2 journals delivered"
    ] * 2
    run = next(folder.glob("*rank0*")).name.rpartition("-")[2]
    assert postgres.rows(
        "SELECT rank, count(*) FROM tp_step JOIN tp_run USING (run)"
        f" WHERE run_id = '{run}' GROUP BY rank ORDER BY rank"
    ) == [(rank, 15) for rank in range(4)]


def test_what_can_not_work_is_said_by_the_training(tmp_path: Path) -> None:
    out, err = train(tmp_path / "runs", "$NOT_SET", 3).communicate(timeout=60)
    assert out.splitlines()[-1].startswith("0 [")
    assert "NOT_SET is not set" in err
    assert "nothing is delivered" in err


def test_the_second_of_two_waits_for_the_first(tmp_path: Path, postgres: Postgres) -> None:
    """As when a training goes on from a checkpoint while its first process still delivers."""
    folder = tmp_path / "runs"
    writer = write(folder, "aaaa0010", ranks=2, series=5, steps=20, pause_ms=50)
    wait_for(lambda: len(list(folder.glob("*/journal/0*"))) == 2)
    options = ("--to", "$U", "--run", "aaaa0010", "--ranks", "0-1", "--expect", "2")
    log = folder / "ship.log"
    for _ in range(2):
        ship(*options, "--detach", log, folder, U=postgres.url)
    assert writer.wait() == 0
    wait_for(lambda: not ships_of(folder))
    assert log.read_text().splitlines() == [
        f"{folder}: {steps} steps of 2 journals delivered" for steps in (40, 0)
    ]
