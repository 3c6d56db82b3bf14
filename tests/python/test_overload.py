"""A server with 1 GiB of memory is asked for far more: it answers, or refuses or stops what does not fit, and lives.

The limit is that of the configuration and the kernel lets the server grow beyond it, so the tests read its resident
memory from /proc while statements run.
"""

import collections
import contextlib
import threading
import time

import pyarrow
import pytest
from adbc_driver_flightsql import DatabaseOptions

from helpers import eventually
from server import Server, terrace

LIMIT_BYTES = 1 << 30
#: Within this time every statement ends, also on a machine that does much else.
SECONDS = 300
CLIENTS = 32
#: Statements that are prepared or planned, and never fetched.
UNFETCHED = 200
#: The keys of `orders` at scale 0.1 are smaller.
KEYS = 600_001
COLUMNS = ("l_orderkey, l_partkey, l_suppkey, l_linenumber, l_quantity, l_extendedprice, l_discount, l_tax, l_returnflag, "
           "l_linestatus, l_shipdate, l_commitdate, l_receiptdate, l_shipmode")
ROWS = "SELECT count(*) FROM lineitem"
POINT = "SELECT l_comment FROM lineitem WHERE l_orderkey = 4711 AND l_linenumber = 1"

#: Name, statement, and a statement with the same answer that needs next to nothing.
STATEMENTS = [
    ("long text", "SELECT length(repeat('x', 1000000000))", "SELECT 1000000000"),
    ("long list", "SELECT cardinality(range(1, 3000000000))", "SELECT 2999999999"),
    ("long texts", "SELECT max(length(lpad(l_comment, 1000000, 'y'))) FROM lineitem", "SELECT 1000000"),
    ("text that doubles",
     "WITH RECURSIVE doubled(n, s) AS (SELECT 1 AS n, CAST('x' AS VARCHAR) AS s UNION ALL "
     "SELECT n + 1, CAST(s || s AS VARCHAR) FROM doubled WHERE n < 40) SELECT max(length(s)) FROM doubled",
     f"SELECT {2**39}"),
    ("large states of groups",
     "SELECT count(p) + count(q) FROM (SELECT "
     "approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY CAST(l_extendedprice AS DOUBLE)) AS p, "
     "approx_percentile_cont(0.9) WITHIN GROUP (ORDER BY CAST(l_quantity AS DOUBLE)) AS q FROM lineitem GROUP BY l_orderkey)",
     "SELECT 2 * count(DISTINCT l_orderkey) FROM lineitem"),
    # More than the limit in one value: a gigabyte of texts.
    ("list of everything", "SELECT cardinality(array_agg(concat(l_comment, repeat(l_shipmode, 500)))) FROM lineitem", ROWS),
    ("distinct rows", "SELECT DISTINCT * FROM lineitem", ROWS),
]
LONG_STATEMENTS = [
    # 16,384 groupings of some five hundred rows.
    ("cube", f"SELECT sum(n) FROM (SELECT count(*) AS n FROM lineitem WHERE l_orderkey <= 500 GROUP BY CUBE ({COLUMNS}))",
     "SELECT 16384 * count(*) FROM lineitem WHERE l_orderkey <= 500"),
    ("join and sort", "SELECT a.l_orderkey, a.l_comment, b.l_comment FROM lineitem AS a JOIN lineitem AS b "
     "ON a.l_partkey = b.l_partkey ORDER BY a.l_comment, b.l_comment",
     "SELECT sum(n * n) FROM (SELECT count(*) AS n FROM lineitem GROUP BY l_partkey)"),
]


def by_name(statements, marks=()):
    return [pytest.param(sql, same, id=name, marks=marks) for name, sql, same in statements]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("overload")
    terrace("load", "tpch:0.1", "--data-dir", data)
    with Server(data, "--memory-limit", str(LIMIT_BYTES)) as running:
        yield running
        assert running.stop(seconds=60) == 0, running.output()


def resident_bytes(server):
    """Memory that only the end of the process gives back; 0 when it has ended."""
    try:
        with open(f"/proc/{server.process.pid}/status") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(("RssAnon:", "RssShmem:")))
    except OSError:
        return 0


@contextlib.contextmanager
def within_the_limit(server):
    """Fails when the server passes its limit or ends while the block runs, or answers no statement afterwards."""
    done, samples = threading.Event(), [resident_bytes(server)]

    def watch():
        while not done.wait(0.02):
            samples.append(resident_bytes(server))
            if samples[-1] > 4 * LIMIT_BYTES:
                server.kill()  # before the kernel looks for a process to kill

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        assert max(samples) <= LIMIT_BYTES, f"{max(samples) >> 20} MiB resident, the limit is {LIMIT_BYTES >> 20} MiB"
        assert server.process.poll() is None, server.output()
    assert server.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


#: Results of so many rows are compared by their values, larger ones by their number of rows.
FEW_ROWS = 1000


def answer(connection, sql):
    """The value, when one row answers; few rows, in any order; else their number: no more than a batch is kept. Or the error."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            rows, few = 0, []
            for batch in cursor.fetch_record_batch():
                rows += batch.num_rows
                if rows <= FEW_ROWS:
                    few += zip(*(column.to_pylist() for column in batch.columns))
            if rows == 1:
                return few[0][0]
            return sorted(few, key=repr) if rows <= FEW_ROWS else rows
    except Exception as error:  # noqa: BLE001 - the caller judges it
        return error


def refused(found):
    """True for an error that says that there is too little of something now."""
    return isinstance(found, Exception) and ("ResourceExhausted" in str(found) or "try again" in str(found))


def too_large(found):
    """True for the error of a function whose result would be larger than any value may be."""
    return isinstance(found, Exception) and "InvalidArgument" in str(found) and "would make" in str(found)


def keys(step):
    return ", ".join(map(str, range(1, KEYS, step)))


@pytest.mark.parametrize("sql, same", [*by_name(STATEMENTS), *by_name(LONG_STATEMENTS, pytest.mark.deep)])
def test_a_statement_ends_and_the_server_lives(server, sql, same):
    with server.connect() as connection:
        expected = answer(connection, same)
        assert not isinstance(expected, Exception), expected
    found = []

    def run():
        with server.connect() as connection:
            found.append(answer(connection, sql))

    with within_the_limit(server):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert found, f"no end after {SECONDS} s"
    assert found == [expected] or refused(found[0]) or too_large(found[0]), repr(found[0])[:2000]


@pytest.mark.parametrize("below, turns", [(KEYS // 8, 1), pytest.param(KEYS, 3, marks=pytest.mark.deep)])
def test_many_clients_at_once(server, below, turns):
    """Sorts, DISTINCT and lists of 600 KB from all clients at once, and a point query beside them."""
    part = f"lineitem WHERE l_orderkey < {below}"
    statements = {
        # The number depends on the place of every row.
        "sort": "SELECT sum(l_orderkey * (n % 97)) FROM (SELECT l_orderkey, "
                f"row_number() OVER (ORDER BY l_comment, l_orderkey, l_linenumber) AS n FROM {part})",
        "list": f"SELECT count(*) FROM lineitem WHERE l_orderkey IN ({keys(8)})",
        "distinct": f"SELECT count(*) FROM (SELECT DISTINCT * FROM {part})",
        "point": POINT,
    }
    assert len(statements["list"]) > 580_000
    with server.connect() as connection:
        expected = {name: answer(connection, sql) for name, sql in statements.items()}
    assert not [found for found in expected.values() if isinstance(found, Exception)], expected
    outcomes, start, done = [], threading.Barrier(CLIENTS, timeout=60), threading.Event()

    def client(number):
        with server.connect() as connection:
            start.wait()
            for turn in range(turns):
                name = ("sort", "list", "distinct")[(number + turn) % 3]
                outcomes.append((name, answer(connection, statements[name])))

    def points():
        with server.connect() as connection:
            while not done.wait(0.1):
                outcomes.append(("point", answer(connection, POINT)))

    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(CLIENTS)]
    beside = threading.Thread(target=points, daemon=True)
    with within_the_limit(server):
        [thread.start() for thread in (*clients, beside)]
        deadline = time.monotonic() + SECONDS
        [thread.join(max(0, deadline - time.monotonic())) for thread in clients]
        done.set()
        beside.join(SECONDS)
        assert not any(thread.is_alive() for thread in (*clients, beside)), f"a statement waits for more than {SECONDS} s"
    wrong = [(name, repr(found)[:500]) for name, found in outcomes if found != expected[name] and not refused(found)]
    assert wrong == []
    assert sum(name != "point" for name, _ in outcomes) == CLIENTS * turns
    # A server that refuses everything lives, too.
    answered = collections.Counter(name for name, found in outcomes if found == expected[name])
    assert set(answered) == set(statements), answered


@pytest.mark.parametrize("step", [pytest.param(400, id="10 KB"), pytest.param(20, id="200 KB", marks=pytest.mark.deep)])
@pytest.mark.parametrize("method", ["adbc_prepare", "adbc_execute_partitions"], ids=["prepared", "tickets"])
def test_statements_that_nobody_fetches(server, method, step):
    """Prepared statements, and tickets of planned ones: both wait on the server."""
    sql = f"SELECT * FROM lineitem WHERE l_orderkey IN ({keys(step)})"
    with server.connect() as connection:
        point = answer(connection, POINT)
        assert not isinstance(point, Exception), point
    accepted = 0
    with within_the_limit(server), contextlib.ExitStack() as held:
        connection = held.enter_context(server.connect())
        for number in range(UNFETCHED):
            cursor = held.enter_context(connection.cursor())
            try:
                getattr(cursor, method)(f"{sql} AND l_linenumber <> {number}")
                accepted += 1
            except Exception as error:  # noqa: BLE001
                assert refused(error), repr(error)[:2000]
        assert accepted > 0
        with server.connect() as other:
            assert answer(other, POINT) == point
    with server.connect() as connection:
        assert answer(connection, "SELECT count(*) FROM (SELECT DISTINCT * FROM lineitem)") == answer(connection, ROWS)


@pytest.mark.parametrize("clients, batch_bytes", [(6, 64 << 20), pytest.param(10, 200 << 20, marks=pytest.mark.deep)])
def test_large_batches_of_many_clients_are_stored(server, clients, batch_bytes):
    """Together they are larger than memory: each waits for its turn, and none is stopped."""
    # By default the driver itself refuses to send so much at once.
    options = {DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(2 * batch_bytes)}
    batch = pyarrow.record_batch({"n": pyarrow.array(range(batch_bytes // 8), pyarrow.int64())})
    expected = (2 * batch.num_rows, batch.num_rows * (batch.num_rows - 1))
    found = {}

    def ingest(table):
        try:
            with server.connect(db_kwargs=options) as connection, connection.cursor() as cursor:
                rows = pyarrow.RecordBatchReader.from_batches(batch.schema, [batch, batch])
                cursor.adbc_ingest(table, rows, mode="create")
                cursor.execute(f"SELECT count(*), sum(n) FROM {table}")
                found[table] = cursor.fetchone()
        except Exception as error:  # noqa: BLE001 - compared below
            found[table] = error

    threads = [threading.Thread(target=ingest, args=(f"ingested_{number}",), daemon=True) for number in range(clients)]
    try:
        with within_the_limit(server):
            [thread.start() for thread in threads]
            deadline = time.monotonic() + SECONDS
            [thread.join(max(0, deadline - time.monotonic())) for thread in threads]
            assert found == {f"ingested_{number}": expected for number in range(clients)}
    finally:
        for number in range(clients):
            server.query(f"DROP TABLE IF EXISTS ingested_{number}")


def test_cursors_that_nobody_reads_stop_nobody(server):
    """More than there are places, each of a result that does not fit into what is sent ahead."""
    stalled = "SELECT count(*) FROM system.queries WHERE state = 'stalled'"
    with within_the_limit(server), contextlib.ExitStack() as held:
        readers = []
        for _ in range(CLIENTS):
            cursor = held.enter_context(held.enter_context(server.connect()).cursor())
            cursor.execute("SELECT * FROM lineitem")
            reader = cursor.fetch_record_batch()
            readers.append((next(reader).num_rows, reader))
        with server.connect() as other:
            eventually(lambda: answer(other, stalled) == len(readers))
            part = f"lineitem WHERE l_orderkey < {KEYS // 8}"
            assert answer(other, f"SELECT count(*) FROM (SELECT DISTINCT * FROM {part})") == answer(other, f"SELECT count(*) FROM {part}")
            assert isinstance(answer(other, POINT), str)
            rows = answer(other, ROWS)
        # Those that are read after all are whole.
        for first, reader in readers[::8]:
            assert first + sum(batch.num_rows for batch in reader) == rows


def test_a_refused_statement_says_when_to_try_again(tmp_path):
    # A quarter of an hour, or until it is cancelled.
    sql = "SELECT sum(a.value * b.value % 7) FROM range(1, 1000000) AS a, range(1, 1000000) AS b"
    known = f"FROM system.queries WHERE sql = '{sql}' AND state IN ('running', 'queued')"
    errors = collections.deque()

    def run(server):
        with server.connect() as connection, connection.cursor() as cursor:
            try:
                cursor.execute(sql)
                cursor.fetchall()
            except Exception as error:  # noqa: BLE001 - the test judges it
                errors.append(error)

    def states():
        return sorted(row["state"] for row in server.query(f"SELECT state {known}").to_pylist())

    with Server(tmp_path / "data", "--set", "query.max_running=1", "--set", "query.max_queued=1") as server:
        clients = [threading.Thread(target=run, args=(server,)) for _ in range(2)]
        for client in clients:
            client.start()
        eventually(lambda: states() == ["queued", "running"])
        run(server)
        refusal = errors.pop()
        assert refused(refusal), refusal
        # An `Any` of google.rpc.RetryInfo whose delay is a second.
        details = dict(refusal.details)[b"grpc-status-details-bin"]
        assert details.endswith(b"type.googleapis.com/google.rpc.RetryInfo\x12\x04\n\x02\x08\x01"), details
        for row in server.query(f"SELECT id {known}").to_pylist():
            server.query(f"CANCEL QUERY '{row['id']}'")
        for client in clients:
            client.join()
        assert ["cancelled" in str(error) for error in errors] == [True, True], errors
