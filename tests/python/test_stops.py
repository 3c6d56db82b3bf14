"""A statement stops within a second, wherever it is: when it is cancelled, when its time is over, when its client dies."""

import collections
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from helpers import error_of, eventually
from server import Server

#: Within this time the client has its error: a second, and what a machine that does much else adds.
STOPPED_S = 3.0
#: Within this time all work of a statement is over: a step of it may end first.
GONE_S = 10.0
#: How long a statement runs before it is stopped.
RUNS_S = 0.7
#: Seconds of each statement: from CANCEL to its error and to the end of its work, from its time-out to its error, from the death
#: of its client to the end of its work.
TIMES = collections.defaultdict(dict)
OVER = ("done", "failed", "cancelled")
MANY = "generate_series(1, 10000000000)"
#: Where COPY TO would write.
TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(TEMPORARY.name)
JOINED = " ".join(f"JOIN t AS t{n} ON t{n - 1}.k = t{n}.k" for n in range(1, 400))

#: Statements that would run for at least ten seconds, each in another part of the server.
STATEMENTS = {
    "wide texts": f"SELECT max(length(lpad('a' || value, 20000, 'y'))) FROM {MANY}",
    "sort of wide texts": "SELECT k, lpad(s, 20000, 'y') AS w FROM t ORDER BY md5(lpad(s, 20000, 'y')), w",
    "slow function": f"SELECT max(length(regexp_replace(repeat('aab' || value, 2000), '(a+)(b*)1', 'x', 'g'))) FROM {MANY}",
    "slow rows": f"SELECT length(regexp_replace(repeat('aab' || value, 2000), '(a+)(b*)1', 'x', 'g')) FROM {MANY}",
    "pairs": "SELECT count(*) FROM t AS a JOIN t AS b ON a.k * 7 % 1000 < b.k * 3 % 1001 AND a.s <> b.s",
    "product": "SELECT sum(a.k * b.k % 7) FROM t AS a CROSS JOIN t AS b",
    "groups": f"SELECT count(*) FROM (SELECT value, count(*) FROM {MANY} GROUP BY value)",
    "sort": f"SELECT value FROM {MANY} ORDER BY value % 1000003, value",
    "distinct": f"SELECT count(DISTINCT concat(value, 'x')), count(DISTINCT value) FROM {MANY}",
    "cube": "SELECT count(*) FROM (SELECT count(*) FROM t GROUP BY CUBE (" + ", ".join(f"k % {n}" for n in range(2, 16)) + "))",
    "window": f"SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY value % 1000003) AS r FROM {MANY})",
    "frames": "SELECT max(m) FROM (SELECT min(value % 1000) OVER (ORDER BY value ROWS BETWEEN 100000 PRECEDING AND CURRENT ROW) AS m "
              f"FROM {MANY})",
    "recursion": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 1000000000) SELECT max(n) FROM r",
    "planning": f"SELECT count(*) FROM t AS t0 {JOINED}",
    "insert": f"INSERT INTO u SELECT value, concat(value, 'x') FROM {MANY}",
    "update": f"UPDATE t SET s = (SELECT max(concat(value, 'x')) FROM {MANY})",
    "delete": "DELETE FROM t WHERE k IN (SELECT a.k * b.k FROM t AS a CROSS JOIN t AS b)",
    "create table": f"CREATE TABLE w AS SELECT value, concat(value, 'x') AS s FROM {MANY}",
    "copy": f"COPY (SELECT value, concat(value, 'x') AS s FROM {MANY}) TO '{FOLDER}/copied.parquet'",
    "copy to csv": f"COPY (SELECT value, concat(value, 'x') AS s FROM {MANY}) TO '{FOLDER}/copied.csv'",
    "merge": f"MERGE INTO t USING (SELECT value AS k, concat(value, 'x') AS s FROM {MANY}) AS n ON t.k = n.k "
             "WHEN MATCHED THEN UPDATE SET s = n.s",
    "explain": "EXPLAIN ANALYZE SELECT sum(a.k * b.k % 7) FROM t AS a CROSS JOIN t AS b",
}
CLIENT = """
import sys
import adbc_driver_flightsql.dbapi as flight_sql
with flight_sql.connect(sys.argv[1], autocommit=True) as connection, connection.cursor() as cursor:
    cursor.execute(sys.argv[2])
    cursor.fetch_arrow_table()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    # The same limits of values on each machine.
    settings = ["--set", "query.planning_timeout=10min", "--set", "memory.limit=4GiB"]
    with Server(tmp_path_factory.mktemp("data"), *settings) as server:
        server.query("CREATE TABLE t AS SELECT value AS k, 'aaabbbc' AS s FROM generate_series(1, 300000)")
        server.query("CREATE TABLE u (k BIGINT, s VARCHAR)")
        yield server


def states(server, sql):
    """Ids and states of the statements with this text, newest first."""
    rows = server.request("GET", "/api/v1/queries")["items"]
    return [(row["id"], row["state"], row["elapsed_us"]) for row in rows if row["sql"] == sql]


def running(server, sql):
    """The id of the statement with this text, once it has run for a while."""
    found = []

    def has_run():
        now = states(server, sql)
        assert not any(state in OVER for _, state, _ in now), f"ended by itself: {now}"
        found[:] = [id for id, _, elapsed_us in now if elapsed_us > RUNS_S * 1e6]
        return found

    eventually(has_run)
    return found[0]


def is_over(server, sql):
    found = states(server, sql)
    return found and all(state in OVER for _, state, _ in found)


def run(server, sql, *settings):
    with server.connect() as connection, connection.cursor() as cursor:
        for setting in settings:
            cursor.execute(setting)
            cursor.fetchall()
        begun = time.monotonic()
        error = error_of(lambda: (cursor.execute(sql), cursor.fetch_arrow_table()))
        return error, time.monotonic() - begun


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_stops_within_a_second(server, name):
    sql = f"{STATEMENTS[name]} -- {name}, cancelled"
    ended = []
    client = threading.Thread(target=lambda: ended.append((run(server, sql)[0], time.monotonic())))
    client.start()
    query = running(server, sql)
    cancelled = time.monotonic()
    server.query(f"CANCEL QUERY '{query}'")
    client.join()
    (error, at), = ended
    assert "cancelled" in str(error), error
    assert at - cancelled < STOPPED_S, f"stopped {at - cancelled:.2f} s after it was cancelled"
    # Its work is over, too.
    eventually(lambda: is_over(server, sql), timeout_s=GONE_S)
    TIMES[name].update({"CANCEL": at - cancelled, "work over": time.monotonic() - cancelled})

    sql = f"{STATEMENTS[name]} -- {name}, timed out"
    error, took = run(server, sql, f"SET statement_timeout = '{RUNS_S * 1000:.0f}ms'")
    assert "longer than" in str(error), error
    assert took < RUNS_S + STOPPED_S, f"stopped after {took:.2f} s"
    TIMES[name]["time-out"] = took - RUNS_S

    eventually(lambda: is_over(server, sql), timeout_s=GONE_S)
    assert server.query("SELECT count(*) FROM t WHERE k <= 10").to_pydict() == {"count(*)": [10]}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_whose_client_died_ends(server, name):
    sql = f"{STATEMENTS[name]} -- {name}, alone"
    client = subprocess.Popen([sys.executable, "-c", CLIENT, f"grpc://{server.flight}", sql])
    try:
        running(server, sql)
    finally:
        client.kill()
        client.wait()
    died = time.monotonic()
    eventually(lambda: is_over(server, sql), timeout_s=GONE_S)
    TIMES[name]["client died, work over"] = time.monotonic() - died
    (_, state, _), = states(server, sql)
    assert state == "cancelled", f"{state}, {time.monotonic() - died:.2f} s after its client died"


def test_most_stop_within_a_second_and_nothing_was_changed(server, capsys):
    """By those that were stopped; runs last."""
    with capsys.disabled():
        for name, times in TIMES.items():
            print(f"\n{name}: seconds until " + ", ".join(f"{what} {seconds:.2f}" for what, seconds in times.items()), end="")
    stops = [times[what] for times in TIMES.values() for what in ("CANCEL", "time-out") if what in times]
    assert sum(seconds > 1 for seconds in stops) <= len(stops) / 4, stops
    assert server.query("SELECT count(*) AS n FROM u").to_pydict() == {"n": [0]}
    assert server.query("SELECT count(*) AS n, min(s) AS s FROM t").to_pydict() == {"n": [300000], "s": ["aaabbbc"]}
    assert "does not exist" in str(error_of(lambda: server.query("SELECT * FROM w")))
    assert not list(FOLDER.iterdir())
