"""A running server for the tests.

TERRACE_FLIGHT_URI names one that runs already (grpc://host:port). Otherwise TERRACE_BIN names the binary, and one server
is started for the whole run on free ports with a data directory of its own.
"""

import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight_sql
import pytest


class Server:
    """A `terrace serve` process."""

    def __init__(self, directory: Path, environment: dict[str, str] | None = None):
        self.ready_file = directory / "ready.json"
        self.log = directory / "server.log"
        self.ready_file.unlink(missing_ok=True)
        command = [
            os.environ["TERRACE_BIN"],
            "serve",
            "--data-dir", str(directory / "data"),
            "--flight-addr", "127.0.0.1:0",
            "--http-addr", "127.0.0.1:0",
            "--ready-file", str(self.ready_file),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
            )
        addresses = self._wait_until_ready()
        self.uri = f"grpc://{addresses['flight']}"
        self.http = f"http://{addresses['http']}"

    def _wait_until_ready(self, timeout_s: float = 60) -> dict[str, str]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                return json.loads(self.ready_file.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"the server was not ready in {timeout_s} s:\n{self.log.read_text()}")

    def stop(self) -> int:
        """Asks the server to stop as an operator would; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    """Address of an open server."""
    if given := os.environ.get("TERRACE_FLIGHT_URI"):
        yield given
        return
    if "TERRACE_BIN" not in os.environ:
        pytest.skip("set TERRACE_BIN or TERRACE_FLIGHT_URI")
    server = Server(tmp_path_factory.mktemp("terrace"))
    yield server.uri
    assert server.stop() == 0, server.log.read_text()


@pytest.fixture
def start_server(tmp_path):
    """Starts servers of a test's own; needs TERRACE_BIN."""
    if "TERRACE_BIN" not in os.environ:
        pytest.skip("set TERRACE_BIN")
    servers = []

    def start(**environment: str) -> Server:
        servers.append(Server(tmp_path, environment))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def connection(uri):
    """An ADBC connection."""
    with flight_sql.connect(uri, autocommit=True) as connection:
        yield connection


@pytest.fixture
def cursor(connection):
    """A cursor of an ADBC connection."""
    with connection.cursor() as cursor:
        yield cursor


@pytest.fixture
def table(cursor):
    """A name no other test uses; the table is dropped afterwards."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    yield name
    cursor.execute(f"DROP TABLE IF EXISTS {name}")
    cursor.fetchall()


@pytest.fixture(scope="session")
def active_queries(uri):
    """Counts the running statements whose text contains a marker."""

    def count(marker: str) -> int:
        # The marker is cut in two so that this statement does not count itself.
        half = len(marker) // 2
        with flight_sql.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM system.queries WHERE state = 'running' "
                f"AND strpos(sql, concat('{marker[:half]}', '{marker[half:]}')) > 0"
            )
            return cursor.fetchone()[0]

    return count
