"""`alert.inform`: one message where something begins, by each way there is."""

from __future__ import annotations

import contextlib
import email
import http.server
import json
import math
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from servers import PASSWORD, MariaDB, Postgres, free_port, make_certificate
from shipping import ship, written
from tensorprobe import _core

pytestmark = pytest.mark.slow

TEXT = "step 7, rank 1: AnomalyNan: first in layers.5.weight_0 (param_origin): 1 value is NaN"


def configuration(folder: Path, **inform: Any) -> Path:
    path = folder / "monitor.json"
    path.write_text(json.dumps({"wg_distribution": True, "alert": {"inform": inform}}))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, in which ranks 1 and 2 find the same NaN in step 7; and one without."""
    for run in ("bbbb0001", "bbbb0002"):
        written(tmp_path / "runs", run, ranks=3, series=10, steps=9)
    written(tmp_path / "runs", "bbbb0003", ranks=3, series=10, steps=5)
    return tmp_path / "runs"


def sends(config: Path, runs: Path, count: int, **more: Any) -> None:
    """Send what there is, and nothing when asked again."""
    said = f", {count} messages sent" if count > 1 else ", 1 message sent" if count else ""
    done = ship("--config", config, runs, **more)
    assert done.stdout.endswith(f"0 steps of 9 journals delivered{said}\n")
    again = ship("--config", config, runs, **more)
    assert again.stdout.endswith("0 steps of 9 journals delivered\n")


def check_json(data: bytes) -> None:
    found = json.loads(data)
    assert sorted(m["job_id"] for m in found["messages"]) == ["bbbb0001", "bbbb0002"]
    for message in found["messages"]:
        assert message["message"].startswith(TEXT)
        assert f"{message['job_id']}: {message['message']}" in found["text"].split("\n")
        rest = {key: value for key, value in message.items() if key not in ("job_id", "message")}
        assert rest == {
            "rule": "AnomalyNan",
            "step": 7,
            "rank": 1,
            "ranks": 2,
            "wall_ns": 1_700_000_003_500_000_001,
        }


def test_a_program(tmp_path: Path, runs: Path) -> None:
    program = tmp_path / "pro gram"
    program.write_text('#!/bin/sh\n[ "$1" = \'a b;$(c)\' ] || exit 3\ncat >>"$2"\n')
    program.chmod(0o755)
    out = tmp_path / "out"
    command = [str(program), "a b;$(c)", str(out)]
    sends(configuration(tmp_path, recipient="command", command=command), runs, 2)
    check_json(out.read_bytes())


def test_a_program_that_fails(tmp_path: Path, runs: Path) -> None:
    """It is called again until it works, and told of nothing twice."""
    out = tmp_path / "out"
    command = ["/bin/sh", "-c", f"[ -e {out}.1 ] || {{ touch {out}.1; exit 5; }}; cat >>{out}"]
    config = configuration(tmp_path, recipient="command", command=command)
    done = ship("--config", config, runs)
    assert "/bin/sh ended with 5" in done.stderr
    check_json(out.read_bytes())
    config = configuration(tmp_path, recipient="command", command=["/no/such/program"])
    written(tmp_path / "more", "bbbb0004", ranks=2, series=10, steps=9)
    done = ship("--config", config, "--patience", "1", tmp_path / "more", status=1)
    assert done.stderr.count("can't start /no/such/program") == 2


@pytest.mark.parametrize("which", ["postgres", "mariadb", "sqlite"])
def test_a_database(which: str, tmp_path: Path, runs: Path, request: pytest.FixtureRequest) -> None:
    where = "WHERE job_id LIKE 'bbbb%' ORDER BY job_id"
    ours = f"SELECT job_id, message, rule, step, wall_ns FROM tp_message {where}"
    ancestors = f"SELECT job_id, message, create_time FROM exception_message {where}"
    if which == "sqlite":
        url = f"sqlite:///{tmp_path / 'messages.db'}"
    else:
        server: Postgres | MariaDB = request.getfixturevalue(which)
        url = server.url
    sends(configuration(tmp_path, connection_str="$INFORM_URL"), runs, 2, INFORM_URL=url)
    if which == "sqlite":
        with contextlib.closing(sqlite3.connect(tmp_path / "messages.db")) as connection:
            found = connection.execute(ours).fetchall()
            theirs = connection.execute(ancestors).fetchall()
    else:
        found, theirs = server.rows(ours), server.rows(ancestors)
    assert [row[0] for row in found] == ["bbbb0001", "bbbb0002"]
    for row, their in zip(found, theirs, strict=True):
        assert row[1].startswith(TEXT)
        assert row[2:] == ("AnomalyNan", 7, 1_700_000_003_500_000_001)
        assert their[:2] == (row[0], row[1][:255])
        # 2023-11-14 22:13:23 UTC, in the server's time zone.
        assert str(their[2])[14:19] == "13:23"


class Hook(http.server.BaseHTTPRequestHandler):
    """Refuses the first request, takes the others."""

    taken: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, body))
        self.send_response(204 if len(self.taken) > 1 else 500)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def test_a_webhook(tmp_path: Path, runs: Path) -> None:
    Hook.taken = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        secret = "/hooks/T0K3N?x=%41"
        url = f"http://127.0.0.1:{server.server_port}{secret}"
        config = configuration(tmp_path, recipient="webhook", url="$HOOK")
        done = ship("--config", config, runs, HOOK=url)
        server.shutdown()
    assert "the server answers 500" in done.stderr
    assert "T0K3N" not in done.stderr + done.stdout
    assert [path for path, _ in Hook.taken] == [secret, secret]
    check_json(Hook.taken[1][1])


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"), "mail")


class Mails:
    """Keeps what comes."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, list[str], bytes]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.taken.append((envelope.mail_from, envelope.rcpt_tos, envelope.original_content))
        return "250 OK"


@pytest.fixture
def mails(certificate: tuple[Path, Path]) -> Iterator[tuple[Mails, int]]:
    """A mail server that takes nothing without STARTTLS and the right password."""

    def authenticate(
        server: Any, session: Any, envelope: Any, mechanism: str, data: Any
    ) -> AuthResult:
        right = (data.login, data.password) == (b"probe", PASSWORD.encode())
        return AuthResult(success=right, handled=False)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    taken = Mails()
    port = free_port()
    server = Controller(
        taken,
        hostname="127.0.0.1",
        port=port,
        tls_context=context,
        require_starttls=True,
        authenticator=authenticate,
        auth_required=True,
    )
    server.start()
    yield taken, port
    server.stop()


def test_a_mail(
    tmp_path: Path, runs: Path, mails: tuple[Mails, int], certificate: tuple[Path, Path]
) -> None:
    taken, port = mails
    inform = {
        "recipient": "email",
        "send_email_address": "probe@example.org",
        "receive_email_address": "me@example.org",
        "send_email_username": "probe",
        "send_email_password": "$MAIL_PASSWORD",
        "smtp_server": "localhost",
        "smtp_port": str(port),
    }
    config = configuration(tmp_path, **inform)
    trusted: dict[str, Any] = {"SSL_CERT_FILE": str(certificate[1])}
    # A certificate that nobody vouches for, and a wrong password: nothing is sent, and told once.
    done = ship("--config", config, "--patience", "1", runs, status=1, MAIL_PASSWORD=PASSWORD)
    assert "certificate" in done.stderr
    done = ship(
        "--config", config, "--patience", "0", runs, status=1, MAIL_PASSWORD="wr0ng", **trusted
    )
    assert done.stderr.count("warning") == 1
    assert "Login denied" in done.stderr
    assert "wr0ng" not in done.stderr
    assert taken.taken == []
    sends(config, runs, 2, MAIL_PASSWORD=PASSWORD, **trusted)
    (sender, receivers, content), *more = taken.taken
    assert not more
    assert (sender, receivers) == ("probe@example.org", ["me@example.org"])
    mail = email.message_from_bytes(content)
    assert mail["From"] == "<probe@example.org>"
    assert mail["To"] == "<me@example.org>"
    assert mail["Subject"] == "Exception Detected in Your Program (AnomalyNan, step 7)"
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    lines = body.decode().splitlines()
    assert lines[:2] == ["2 exceptions were detected in your program:", ""]
    assert [line[:10] for line in lines[2:]] == ["bbbb0001: ", "bbbb0002: "]
    assert all(line[10:].startswith(TEXT) for line in lines[2:])


def test_a_mail_without_tls_is_not_sent(tmp_path: Path, runs: Path) -> None:
    taken = Mails()
    server = Controller(taken, hostname="127.0.0.1", port=free_port())
    server.start()
    config = configuration(
        tmp_path,
        recipient="email",
        send_email_address="a@b",
        receive_email_address="c@d",
        smtp_server="127.0.0.1",
        smtp_port=server.port,
    )
    done = ship("--config", config, "--patience", "0", runs, status=1)
    server.stop()
    assert "STARTTLS" in done.stderr
    assert taken.taken == []


def test_addresses_can_not_forge_headers(tmp_path: Path, runs: Path) -> None:
    config = configuration(
        tmp_path,
        recipient="email",
        send_email_address="a@b\r\nBcc: x@y",
        receive_email_address="c@d",
        smtp_server="localhost",
    )
    assert "without spaces" in ship("--config", config, runs, status=1).stderr


def test_a_journal_that_is_kept_small(tmp_path: Path) -> None:
    """The steps where the last message was sent are gone: the next alert is told nevertheless."""
    out = tmp_path / "out"
    config = configuration(tmp_path, recipient="command", command=["/bin/sh", "-c", f"cat >{out}"])
    monitor = _core.Monitor(
        config_json='{"format": "api", "alert": {"rules": [{"rule_name": "AnomalyNan"}]},'
        '"journal": {"segment_bytes": 8000, "keep_bytes": 20000}}',
        output_dir=str(tmp_path / "runs"),
    )
    keys = [monitor.key(f"w{i}", _core.GRAD_REDUCED) for i in range(5)]
    values = torch.randn(1001, 5, 3, generator=torch.Generator().manual_seed(1))
    values[3, 0], values[1000, 4] = math.nan, math.nan
    for step, rows in enumerate(values):
        for key, row in zip(keys, rows, strict=True):
            monitor.observe(key, row)
        monitor.step()
        if step == 10:
            done = ship("--config", config, tmp_path / "runs")
            assert done.stdout.endswith("1 message sent\n")
            assert "step 3, rank 0: AnomalyNan: first in w0" in out.read_text()
    segments = Path(monitor.directory, "journal")
    monitor.close()
    assert not (segments / "000000.tpj").exists()
    done = ship("--config", config, tmp_path / "runs")
    assert done.stdout.endswith("1 message sent\n")
    (message,) = json.loads(out.read_text())["messages"]
    assert message["message"].startswith("step 1000, rank 0: AnomalyNan: first in w4")
