"""A running server for the tests.

TERRACE_FLIGHT_URI names one that runs already (grpc://host:port). Otherwise one is started for the whole run, on free
ports with a data directory of its own; TERRACE_BIN names the binary. The server refuses variables it does not know, so
both are taken out of the environment before one starts.
"""

import os
import uuid

import adbc_driver_flightsql.dbapi as flight_sql
import pytest

from server import Server

URI = os.environ.pop("TERRACE_FLIGHT_URI", None)
os.environ.pop("TERRACE_BIN", None)


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    """Address of an open server."""
    if URI:
        yield URI
        return
    with Server(tmp_path_factory.mktemp("terrace") / "data") as server:
        yield f"grpc://{server.flight}"
        assert server.stop() == 0, server.output()


@pytest.fixture
def start_server(tmp_path):
    """Starts servers of a test's own, all on one data directory."""
    servers = []

    def start(**environment: str) -> Server:
        servers.append(Server(tmp_path / "data", env=environment))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
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
