"""Real servers for tests, each in a directory of its own and on a free port.

PostgreSQL and MariaDB don't run as root; the users that Debian's packages make for them do.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql

PASSWORD = "p@ss/w:rd%"
SECRET = urllib.parse.quote(PASSWORD, safe="")


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until it is so; a test that waits longer than this fails."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "that took too long"
        time.sleep(0.02)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A key and a certificate of localhost that is signed by itself."""
    key, chain = folder / f"{name}.key", folder / f"{name}.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    words += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {chain}"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    return key, chain


class Server:
    """One process; ``restart`` kills it and starts it again, with the same data."""

    user = "root"
    last_signal = signal.SIGKILL

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"tp-{type(self).__name__.lower()}-"))
        self.options: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0 and self.user != "root":
            owner = pwd.getpwnam(self.user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self.options |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self.log = (self.folder / "log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self.make()
        self.start()

    def make(self) -> None:
        """Make what the server needs before its first start."""

    def make_own_certificate(self) -> None:
        """A certificate that belongs to the server's user."""
        self.key, self.certificate = make_certificate(self.folder, "server")
        if "user" in self.options:
            os.chown(self.key, self.options["user"], self.options["group"])

    def command(self) -> list[str | Path]:
        """The server's command line."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it takes requests."""
        raise NotImplementedError

    def run(self, *command: str | Path, **more: Any) -> None:
        """Run a program as the server's user."""
        subprocess.run(
            command, check=True, stdout=self.log, stderr=self.log, **(self.options | more)
        )

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            **self.options,
        )
        wait_for(self.answers)

    def stop(self) -> None:
        """End it with all its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, self.last_signal)
        self.process.wait()
        self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        if self.process is not None:
            self.stop()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    user = "postgres"
    programs = Path("/usr/lib/postgresql/15/bin")

    def make(self) -> None:
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = self.folder / "data"
        self.make_own_certificate()
        self.run(
            self.programs / "initdb",
            *("-D", data, "-U", "probe", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C"),
            *("--no-sync", f"--pwfile={secret}"),
        )

    def command(self) -> list[str | Path]:
        settings = {"listen_addresses": "127.0.0.1", "fsync": "off", "shared_buffers": "32MB"}
        settings |= {
            "ssl": "on",
            "ssl_cert_file": str(self.certificate),
            "ssl_key_file": str(self.key),
        }
        return [
            self.programs / "postgres",
            *("-D", self.folder / "data", "-p", str(self.port), "-k", self.folder),
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]

    def connect(self, user: str = "probe", password: str = PASSWORD) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1",
            sslmode="disable",
            port=self.port,
            user=user,
            password=password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"postgresql://probe:{SECRET}@127.0.0.1:{self.port}/postgres"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(sql).fetchall()


class MariaDB(Server):
    user = "mysql"

    def make(self) -> None:
        self.make_own_certificate()
        self.run(
            "mariadb-install-db",
            *("--no-defaults", f"--datadir={self.folder / 'data'}", "--skip-test-db"),
            "--auth-root-authentication-method=normal",
        )
        self.start()
        with self.connect("root", "", None) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE probe")
            cursor.execute("CREATE USER probe@'%%' IDENTIFIED BY %s", (PASSWORD,))
            cursor.execute("GRANT ALL ON probe.* TO probe@'%'")
        self.stop()

    def command(self) -> list[str | Path]:
        return [
            "mariadbd",
            *("--no-defaults", f"--datadir={self.folder / 'data'}", f"--port={self.port}"),
            *(f"--socket={self.folder / 'socket'}", "--bind-address=127.0.0.1"),
            *("--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M"),
            *("--skip-log-bin", f"--pid-file={self.folder / 'pid'}"),
            *(f"--ssl-cert={self.certificate}", f"--ssl-key={self.key}"),
        ]

    def connect(
        self, user: str = "probe", password: str = PASSWORD, database: str | None = "probe"
    ) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            password=password,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=5,
        )

    def answers(self) -> bool:
        try:
            self.connect("root", "", None).close()
        except pymysql.err.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"mysql+pymysql://probe:{SECRET}@127.0.0.1:{self.port}/probe"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


class VictoriaMetrics(Server):
    # It answers before points are on disk: killed, it loses those of the last seconds.
    last_signal = signal.SIGTERM

    def command(self) -> list[str | Path]:
        return [
            "victoria-metrics",
            *(f"-storageDataPath={self.folder / 'data'}", "-retentionPeriod=100y"),
            f"-httpListenAddr=127.0.0.1:{self.port}",
            "-dedup.minScrapeInterval=1ms",
        ]

    def get(self, path: str, **parameters: str) -> bytes:
        data = urllib.parse.urlencode(parameters).encode()
        with urllib.request.urlopen(f"{self.url}{path}", data, timeout=60) as answer:
            return bytes(answer.read())

    def answers(self) -> bool:
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"
