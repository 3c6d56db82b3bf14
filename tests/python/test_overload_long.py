"""Ten times the clients that are admitted, in a control group of 2 GiB, with the default configuration.

160 clients run statements that need far more memory than there is, ingest, keep results that nobody reads, and go away in
the middle, for some minutes. The server may refuse or stop a statement with an error that says so; it may not be killed,
answer wrongly, or keep anything. TERRACE_TEST_MINUTES says for how long (60 for an hour), TERRACE_TEST_ONLY=sort,cube
names the kinds of statements to run.

docs/design/memory-watch.md ("Evidence") says what was seen in an hour.
"""

import collections
import contextlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time

import pyarrow
import pytest
from adbc_driver_flightsql import DatabaseOptions

import control_group
from server import Server, terrace
from test_overload import COLUMNS, LONG_STATEMENTS, POINT, ROWS, STATEMENTS, answer, resident_bytes

LIMIT_BYTES = 2 << 30
ADMITTED = 16
CLIENTS = 10 * ADMITTED
MINUTES = float(os.environ.get("TERRACE_TEST_MINUTES", "5"))
ONLY = os.environ.get("TERRACE_TEST_ONLY")
#: After the clients were told to stop, the longest time until the last one has its answer: sixteen statements that take a minute
#: or two alone share the processors, and as many may wait.
LAST_ANSWER_SECONDS = 900
BATCH_BYTES = 200 << 20
#: Clients that ingest at once: the driver holds several copies of what it sends.
INGESTS = 10
#: By default the driver itself refuses to send so much at once.
LARGE_MESSAGES = {DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(2 * BATCH_BYTES)}
#: States of statements that have not ended.
ACTIVE = ("planning", "queued", "running", "stalled")

SORT = ("SELECT sum(l_orderkey * (n % 97)) FROM (SELECT l_orderkey, row_number() OVER (ORDER BY l_comment, l_orderkey, "
        "l_linenumber) AS n FROM lineitem)")
IN_LIST = f"SELECT count(*) FROM lineitem WHERE l_orderkey IN ({', '.join(map(str, range(1, 600_000, 8)))})"
TPCH_18 = ("SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) FROM customer, orders, lineitem "
           "WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300) "
           "AND c_custkey = o_custkey AND o_orderkey = l_orderkey "
           "GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate LIMIT 100")
TPCH_9 = ("SELECT nation, o_year, sum(amount) AS profit FROM (SELECT n_name AS nation, extract(year FROM o_orderdate) AS o_year, "
          "l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount FROM part, supplier, lineitem, partsupp, "
          "orders, nation WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND "
          "p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%') "
          "GROUP BY nation, o_year")
#: Name, statement, a statement with the same answer. Where there is none, its own answer before the load counts.
QUERIES = [
    *STATEMENTS, *LONG_STATEMENTS, ("sort", SORT, None), ("in list", IN_LIST, None), ("q18", TPCH_18, None), ("q9", TPCH_9, None),
    ("columns", f"SELECT count(*) FROM (SELECT DISTINCT {COLUMNS} FROM lineitem)", None),
]
#: Kinds of work, and how often each is drawn.
WEIGHTS = {**{name: 3 for name, _, _ in QUERIES}, "point": 30, "ingest": 2, "prepared": 2, "tickets": 2, "slow reader": 3,
           "unread": 2, "gone in the middle": 3, "idle": 2}
#: A process that reads one batch and dies.
DIES = """
import os, sys
import adbc_driver_flightsql.dbapi as flight_sql
cursor = flight_sql.connect(sys.argv[1]).cursor()
cursor.execute("SELECT * FROM lineitem ORDER BY l_comment")
next(iter(cursor.fetch_record_batch()))
os._exit(7)
"""


def is_clear(error):
    """True for an error that says what there is too little of, or that a value would be too large."""
    text = str(error)
    return any(word in text for word in ("ResourceExhausted", "try again", "DeadlineExceeded")) or (
        "InvalidArgument" in text and "would make" in text)


#: Why a statement was refused: its wait in the queue was too long or the queue full; the server stopped it to stay within its
#: memory; sessions kept too many planned and prepared statements; query memory did not suffice or one of its values would be too large.
CAUSES = ("waited", "stopped", "kept", "too large", "other")


def cause(error):
    """Which of the causes it is."""
    text = str(error)
    if "stopped the statement" in text:
        return "stopped"
    if "the server is busy" in text or "the statement waited" in text:
        return "waited"
    if "all sessions together hold" in text or "the session holds" in text:
        return "kept"
    return "too large" if "would make" in text or "memory" in text else "other"


class Load:
    """The clients, and what became of their statements."""

    def __init__(self, server, expected):
        self.server, self.expected = server, expected
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.seconds = collections.defaultdict(list)
        self.outcomes = collections.defaultdict(collections.Counter)
        self.wrong = []
        #: An error of each kind that has none of the usual causes.
        self.others = {}
        self.tables = itertools.count()
        # Shared: the driver keeps the rows of an ingest that was refused.
        self.ingests = threading.BoundedSemaphore(INGESTS)
        self.batch = pyarrow.record_batch({"n": pyarrow.array(range(BATCH_BYTES // 8), pyarrow.int64())})

    def record(self, name, outcome, since, detail=None):
        with self.lock:
            self.outcomes[name][outcome] += 1
            if outcome == "right":
                self.seconds[name].append(time.monotonic() - since)
            if outcome == "other":
                self.others[name] = str(detail)[:300]
            if outcome == "wrong":
                self.wrong.append((name, repr(detail)[:500]))

    def judge(self, name, found, expected, since):
        if isinstance(found, Exception):
            self.record(name, cause(found) if is_clear(found) else "wrong", since, found)
        else:
            self.record(name, "right" if found == expected else "wrong", since, (found, expected))

    def client(self, number):
        draw = random.Random(number)
        names = [name for name in WEIGHTS if not ONLY or name in ONLY.split(",")]
        while not self.stop.is_set():
            name = draw.choices(names, [WEIGHTS[name] for name in names])[0]
            since = time.monotonic()
            try:
                self.run(name, draw, since)
            except Exception as error:  # noqa: BLE001 - each error of a client is judged
                self.judge(name, error, None, since)
                self.stop.wait(draw.random())

    def run(self, name, draw, since):
        sql = {query: sql for query, sql, _ in QUERIES}.get(name, POINT)
        with self.server.connect(db_kwargs=LARGE_MESSAGES) as connection:
            if name in self.expected:
                return self.judge(name, answer(connection, sql), self.expected[name], since)
            with connection.cursor() as cursor:
                getattr(self, name.replace(" ", "_"))(cursor, draw)
        self.record(name, "right", since)

    def ingest(self, cursor, draw):
        """All rows of two large batches, or none."""
        table = f"ingested_{next(self.tables)}"
        rows = pyarrow.RecordBatchReader.from_batches(self.batch.schema, [self.batch, self.batch])
        count = self.batch.num_rows
        try:
            with self.ingests:
                cursor.adbc_ingest(table, rows, mode="create")
            cursor.execute(f"SELECT count(*), sum(n) FROM {table}")
            found = cursor.fetchone()
            assert found == (2 * count, count * (count - 1)), found
        finally:
            self.drop(table)

    def drop(self, table):
        """Waits for a turn as long as it takes: disk space is not what this test is about."""
        for _ in range(300):
            try:
                with self.server.connect() as connection, connection.cursor() as cursor:
                    return cursor.execute(f"DROP TABLE IF EXISTS {table}")
            except Exception as error:  # noqa: BLE001
                assert is_clear(error), error
                time.sleep(1)
        raise AssertionError(f"{table} cannot be dropped")

    def prepared(self, cursor, draw):
        for number in range(20):
            cursor.adbc_prepare(f"SELECT * FROM lineitem WHERE l_orderkey IN ({', '.join(map(str, range(number, 100_000, 8)))})")

    def tickets(self, cursor, draw):
        for number in range(20):
            cursor.adbc_execute_partitions(
                f"SELECT * FROM lineitem WHERE l_orderkey IN ({', '.join(map(str, range(number, 100_000, 8)))})")

    def slow_reader(self, cursor, draw):
        cursor.execute("SELECT * FROM lineitem")
        for number, batch in enumerate(cursor.fetch_record_batch()):
            assert batch.num_rows > 0
            if number == 20 or self.stop.wait(0.2):
                return

    def unread(self, cursor, draw):
        """Takes one batch of a large result, and no more."""
        cursor.execute("SELECT * FROM lineitem")
        assert next(iter(cursor.fetch_record_batch())).num_rows > 0
        self.stop.wait(20)

    def gone_in_the_middle(self, cursor, draw):
        arguments = [sys.executable, "-c", DIES, f"grpc://{self.server.flight}"]
        died = subprocess.run(arguments, capture_output=True, text=True, timeout=LAST_ANSWER_SECONDS)
        if died.returncode != 7:
            raise RuntimeError(died.stderr)

    def idle(self, cursor, draw):
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
        self.stop.wait(5)

    def table(self):
        lines = [f"{'':<22}{'right':>8}{'wrong':>7}{'median':>10}{'p99':>10}  refused:" + "".join(f"{name:>10}" for name in CAUSES)]
        for name in sorted(self.outcomes):
            times = sorted(self.seconds[name]) or [float("nan")]
            median, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
            counts = self.outcomes[name]
            refused = "".join(f"{counts[name]:>10}" for name in CAUSES)
            lines.append(f"{name:<22}{counts['right']:>8}{counts['wrong']:>7}{median:>8.2f} s{p99:>8.2f} s{'':>10}{refused}")
        return "\n".join([*lines, *(f"other, {name}: {error}" for name, error in sorted(self.others.items()))])


@pytest.mark.deep
def test_ten_times_the_clients_that_are_admitted(tmp_path, capsys):
    data = tmp_path / "data"
    terrace("load", "tpch:1", "--data-dir", data)
    with control_group.memory_group(LIMIT_BYTES) as group:
        if group is None:
            pytest.skip("a memory control group takes root and /sys/fs/cgroup")
        with Server(data, group=group) as server:
            with server.connect() as connection:
                expected = {name: answer(connection, same or sql) for name, sql, same in QUERIES}
                expected["point"] = answer(connection, POINT)
                rows = answer(connection, ROWS)
            unclear = {name: found for name, found in expected.items() if isinstance(found, Exception)}
            assert not unclear, unclear
            load, peak = Load(server, expected), 0
            clients = [threading.Thread(target=load.client, args=(number,), daemon=True) for number in range(CLIENTS)]
            [thread.start() for thread in clients]
            deadline = time.monotonic() + MINUTES * 60
            while time.monotonic() < deadline and server.process.poll() is None:
                peak = max(peak, resident_bytes(server))
                time.sleep(0.1)
            load.stop.set()
            deadline = time.monotonic() + LAST_ANSWER_SECONDS
            [thread.join(max(0, deadline - time.monotonic())) for thread in clients]
            with capsys.disabled():
                print(f"\n{CLIENTS} clients, {MINUTES:g} minutes, at most {peak >> 20} MiB resident of {LIMIT_BYTES >> 20}\n{load.table()}")
            (tmp_path / "server.log").write_text(server.output())
            assert server.process.poll() is None and group.killed() == 0, server.output()[-5000:]
            assert load.wrong == []
            if any(thread.is_alive() for thread in clients):
                records = server.query("SELECT * FROM system.queries").to_pylist()
                late = [row for row in records if row["state"] in ACTIVE]
                raise AssertionError(f"no answer for {LAST_ANSWER_SECONDS} s: {late}")
            if not ONLY:
                never = [name for name in WEIGHTS if not load.outcomes[name]]
                assert never == [], "too little time for each kind of statement"
                heavy = {name: load.outcomes[name]["right"] for name in load.expected if name != "point"}
                assert MINUTES < 20 or sum(heavy.values()) > 0, "no statement that needs much memory was answered"
                points = load.outcomes["point"]
                assert sum(points[name] for name in CAUSES) <= points["right"] / 50, "point statements have slots of their own"
            # Nothing is left of it.
            with server.connect() as connection:
                assert answer(connection, ROWS) == rows
                with contextlib.suppress(TimeoutError):
                    wait_until(lambda: running(connection) == 1, 30)
                assert running(connection) == 1, server.query("SELECT * FROM system.queries WHERE state IN ('queued', 'running', 'stalled')")
                reserved = "SELECT sum(reserved_bytes) + sum(queued) FROM system.workload_groups"
                assert answer(connection, reserved) == 0
            assert server.stop(seconds=60) == 0, server.output()
    found = terrace("check", "--data-dir", data, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def running(connection):
    return answer(connection, f"SELECT count(*) FROM system.queries WHERE state IN {ACTIVE}")


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.2)
