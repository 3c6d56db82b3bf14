"""Credentials, cancelling, clients that go away."""

import base64
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pytest
from adbc_driver_flightsql import DatabaseOptions

from helpers import error_of, eventually, execute

# Runs until it is stopped: a product of two large ranges, with the marker as a column.
LONG = "SELECT a.value + b.value AS n, '{marker}' AS marker FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b"


def connect(uri, user=None, password=None):
    options = {"username": user, "password": password}
    return flight_sql.connect(uri, db_kwargs={k: v for k, v in options.items() if v is not None}, autocommit=True)


def test_credentials(start_server):
    server = start_server(TERRACE_USER="ada", TERRACE_PASSWORD="secret")
    with connect(f"grpc://{server.flight}", "ada", "secret") as connection, connection.cursor() as cursor:
        assert execute(cursor, "SELECT 1") == [(1,)]

    def attempt(*credentials):
        with connect(f"grpc://{server.flight}", *credentials) as connection, connection.cursor() as cursor:
            execute(cursor, "SELECT 1")

    error = error_of(lambda: attempt("ada", "wrong"))
    assert error.status_code.name == "UNAUTHENTICATED"
    assert "wrong user or password" in str(error)
    error = error_of(attempt)
    assert error.status_code.name == "UNAUTHENTICATED"
    assert "log in with user and password" in str(error)
    bearer = {DatabaseOptions.AUTHORIZATION_HEADER.value: "Bearer made-up"}

    def with_token():
        with flight_sql.connect(f"grpc://{server.flight}", db_kwargs=bearer, autocommit=True) as connection:
            execute(connection.cursor(), "SELECT 1")

    assert error_of(with_token).status_code.name == "UNAUTHENTICATED"


def test_guesses_are_slow_and_lock_nobody_out(start_server):
    server = start_server(TERRACE_USER="ada", TERRACE_PASSWORD="secret")
    answered, until = [], time.monotonic() + 4

    def guess(number):
        while time.monotonic() < until:
            try:
                with connect(f"grpc://{server.flight}", "ada", f"guess{number}") as connection, connection.cursor() as cursor:
                    execute(cursor, "SELECT 1")
            except adbc_driver_manager.Error as error:
                answered.append(str(error))

    guessing = [threading.Thread(target=guess, args=(number,)) for number in range(3)]
    [thread.start() for thread in guessing]
    [thread.join() for thread in guessing]
    # Three at once, then after 0.1, 0.2, 0.4, 0.8, 1.6 s and more: 900 a second before there were delays.
    assert 3 < metric(server, "terrace_network_failed_logins_total") < 20 and 3 < len(answered) < 20, answered
    assert "wrong user or password" in server.output() and "127.0.0.1" in server.output()
    # The HTTP port counts the same guesses.
    begin = time.monotonic()
    assert http_status(server, "ada", "wrong") in (401, 429)
    # From the same address the right password is taken after the delay, from another one at once.
    with connect(f"grpc://{server.flight.replace('127.0.0.1', 'localhost')}", "ada", "secret") as connection:
        with connection.cursor() as cursor:
            assert execute(cursor, "SELECT 1") == [(1,)]
    assert time.monotonic() - begin < 60
    assert http_status(server, "ada", "secret") == 200


def http_status(server, user, password):
    """Status of an answer of the API to these credentials."""
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    request = urllib.request.Request(f"http://{server.http}/api/v1/tiers", headers={"Authorization": f"Basic {login}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def metric(server, name):
    # Where the server has users, this is one.
    login = {"Authorization": "Basic " + base64.b64encode(b"ada:secret").decode()}
    with urllib.request.urlopen(urllib.request.Request(f"http://{server.http}/metrics", headers=login)) as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M).group(1))


def test_cancel_from_another_thread(connection, active_queries):
    marker = f"m{uuid.uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(LONG.format(marker=marker))
        reader = cursor.fetch_record_batch()
        reader.read_next_batch()
        threading.Timer(0.3, cursor.adbc_cancel).start()
        started = time.monotonic()
        with pytest.raises((adbc_driver_manager.Error, OSError)):
            while True:
                reader.read_next_batch()
        assert time.monotonic() - started < 10
    eventually(lambda: active_queries(marker) == 0)


def test_a_result_that_is_closed_early_ends_its_query(connection, active_queries):
    marker = f"m{uuid.uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(LONG.format(marker=marker))
        cursor.fetch_record_batch().read_next_batch()
        assert active_queries(marker) == 1
    eventually(lambda: active_queries(marker) == 0)


def test_a_killed_client_ends_its_query(uri, active_queries):
    marker = f"m{uuid.uuid4().hex}"
    program = (
        "import sys, time, adbc_driver_flightsql.dbapi as f\n"
        "c = f.connect(sys.argv[1], autocommit=True).cursor()\n"
        "c.execute(sys.argv[2])\n"
        "c.fetch_record_batch().read_next_batch()\n"
        "print('reading', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, uri, LONG.format(marker=marker)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline().strip() == "reading"
        assert active_queries(marker) == 1
        os.kill(client.pid, signal.SIGKILL)
    finally:
        client.kill()
        client.wait()
    eventually(lambda: active_queries(marker) == 0)


def test_a_client_killed_while_it_sends_stores_nothing(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT)")
    program = (
        "import sys, time, pyarrow as pa, adbc_driver_flightsql.dbapi as f\n"
        "def batches():\n"
        "    while True:\n"
        "        yield pa.record_batch({'id': pa.array(range(10000), pa.int64())})\n"
        "        print('sending', flush=True)\n"
        "        time.sleep(0.01)\n"
        "reader = pa.RecordBatchReader.from_batches(pa.schema([('id', pa.int64())]), batches())\n"
        "f.connect(sys.argv[1], autocommit=True).cursor().adbc_ingest(sys.argv[2], reader, mode='append')\n"
    )
    client = subprocess.Popen([sys.executable, "-c", program, uri, table], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(20):
            assert client.stdout.readline().strip() == "sending"
    finally:
        client.kill()
        client.wait()
    time.sleep(0.5)
    assert execute(cursor, f"SELECT count(*) FROM {table}") == [(0,)]


def test_many_connections_come_and_go(uri):
    for _ in range(30):
        with connect(uri) as connection, connection.cursor() as cursor:
            assert execute(cursor, "SELECT 1") == [(1,)]


def test_data_survives_a_restart_and_stopping_is_clean(start_server):
    server = start_server()
    with connect(f"grpc://{server.flight}") as connection, connection.cursor() as cursor:
        execute(cursor, "CREATE TABLE kept (id BIGINT)")
        execute(cursor, "INSERT INTO kept VALUES (1), (2)")
    server.stop()
    assert server.process.returncode == 0
    server = start_server()
    with connect(f"grpc://{server.flight}") as connection, connection.cursor() as cursor:
        assert execute(cursor, "SELECT count(*) FROM kept") == [(2,)]


def test_two_clients_with_one_user_have_sessions_of_their_own(start_server):
    server = start_server(TERRACE_USER="ada", TERRACE_PASSWORD="secret")
    basic = {DatabaseOptions.AUTHORIZATION_HEADER.value: "Basic YWRhOnNlY3JldA=="}

    def client():
        return flight_sql.connect(f"grpc://{server.flight}", db_kwargs=basic, autocommit=True)

    with client() as first, client() as second, first.cursor() as a, second.cursor() as b:
        execute(a, "CREATE TABLE t (who VARCHAR)")
        execute(a, "BEGIN")
        execute(a, "INSERT INTO t VALUES ('a')")
        execute(b, "INSERT INTO t VALUES ('b')")
        assert execute(b, "SELECT who FROM t") == [("b",)], "no row of a transaction of another client"
        execute(a, "ROLLBACK")
        assert execute(b, "SELECT who FROM t") == [("b",)], "acknowledged, and not rolled back by another client"
        execute(a, "BEGIN")
        execute(a, "INSERT INTO t VALUES ('lost')")
    with client() as third, third.cursor() as c:
        assert execute(c, "SELECT who FROM t") == [("b",)], "a session that ends rolls back"


def basic(server):
    """Sends user and password with every call and never logs in."""
    header = "Basic " + base64.b64encode(b"ada:secret").decode()
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: header}
    return flight_sql.connect(f"grpc://{server.flight}", db_kwargs=options, autocommit=True)


def logged_in(server):
    """Logs in once, for a token."""
    return connect(f"grpc://{server.flight}", "ada", "secret")


@pytest.mark.parametrize("connect_as", ["basic", "logged_in"])
def test_the_transaction_of_a_killed_client_is_rolled_back(start_server, connect_as):
    server = start_server(TERRACE_USER="ada", TERRACE_PASSWORD="secret")
    with basic(server) as connection, connection.cursor() as cursor:
        execute(cursor, "CREATE TABLE t (a BIGINT)")
        program = (
            "import sys, time, types, test_session as s\n"
            "connection = getattr(s, sys.argv[2])(types.SimpleNamespace(flight=sys.argv[1]))\n"
            "cursor = connection.cursor()\n"
            "for sql in ('BEGIN', 'INSERT INTO t VALUES (1)'):\n"
            "    cursor.execute(sql)\n"
            "    cursor.fetchall()\n"
            "print('inserted', flush=True)\n"
            "time.sleep(60)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
        client = subprocess.Popen([sys.executable, "-c", program, server.flight, connect_as], stdout=subprocess.PIPE, env=environment)
        assert client.stdout.readline() == b"inserted\n"
        client.send_signal(signal.SIGKILL)
        client.wait()
        # With a token the session lives on until it expires; its transaction holds up nobody.
        execute(cursor, "INSERT INTO t VALUES (2)")
        assert execute(cursor, "SELECT sum(a) FROM t") == [(2,)]
