"""Odd tables read from SSD: very wide ones, very long values, nulls only, every type; and statements that are cancelled.

The DRAM budget is nothing, so every value comes from its file.
"""

import datetime
import decimal
import random
import threading
import time
import urllib.request

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers import eventually
from server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    arguments = ["--dram-budget", "0", "--set", "memory.query=1GiB", "--set", "memory.ingest=256MiB"]
    with Server(tmp_path_factory.mktemp("shapes") / "data", *arguments) as server:
        yield server
        assert server.stop() == 0, server.output()


def ingest(server, name, table):
    # The driver sends messages of up to 16 MiB.
    rows = max(1, (8 << 20) * table.num_rows // max(1, table.nbytes))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(name, table.to_reader(max_chunksize=rows), mode="replace")
        # What stays in memory as a delta is written, too.
        cursor.execute(f"OPTIMIZE {name}")
        cursor.fetchall()


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_two_thousand_columns(server):
    rows = 20_000
    columns = {f"c{n}": pa.array([(row * n) % 1009 for row in range(rows)], pa.int32()) for n in range(0, 2000, 40)}
    columns = {f"c{n}": columns[f"c{n - n % 40}"] for n in range(2000)}
    ingest(server, "wide", pa.table(columns))
    found = server.query("SELECT sum(c1999) AS s, max(c40) AS m, count(*) AS n FROM wide").to_pylist()
    expected = {"s": pc.sum(columns["c1999"]).as_py(), "m": pc.max(columns["c40"]).as_py(), "n": rows}
    assert found == [expected]
    one = server.query("SELECT * FROM wide WHERE c40 = 999 AND c80 = 989")
    same = [row for row in range(rows) if columns["c40"][row].as_py() == 999 and columns["c80"][row].as_py() == 989]
    assert one.num_columns == 2000 and one.num_rows == len(same) > 0
    assert one.column("c1999").to_pylist() == [columns["c1999"][row].as_py() for row in same]


def test_long_values(server):
    values = [chr(97 + n % 26) * (10_000_000 + n) for n in range(24)]
    ingest(server, "long", pa.table({"n": pa.array(range(24), pa.int64()), "v": pa.array(values, pa.string())}))
    assert server.query("SELECT length(v) AS l FROM long ORDER BY n").column("l").to_pylist() == [len(v) for v in values]
    assert server.query("SELECT v FROM long WHERE n = 17").column("v").to_pylist() == [values[17]]
    assert server.query("SELECT n FROM long WHERE v LIKE 'ccc%c' ORDER BY n").column("n").to_pylist() == [2]
    # Statement memory, cold reads and the answer itself; not a multiple of the table.
    assert resident_bytes(server) < 3 << 30


def test_no_rows_and_no_values(server):
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(30, 4)), ("l", pa.list_(pa.int8()))])
    server.query("CREATE TABLE nothing (k BIGINT, s VARCHAR, d DECIMAL(30, 4))")
    assert server.query("SELECT * FROM nothing WHERE s LIKE '%a%b%'").num_rows == 0
    assert server.query("SELECT count(*) AS n, max(k) AS m FROM nothing").to_pylist() == [{"n": 0, "m": None}]
    rows = 30_000
    columns = [pa.array(range(rows), pa.int64()), *(pa.nulls(rows, field.type) for field in list(schema)[1:])]
    ingest(server, "nulls", pa.table(columns, schema=schema))
    found = server.query("SELECT * FROM nulls WHERE s IS NULL AND k = 29999").to_pylist()
    assert found == [{"k": 29_999, "s": None, "d": None, "l": None}]
    assert server.query("SELECT k FROM nulls WHERE s LIKE 'x%' OR d > 0").num_rows == 0
    found = server.query("SELECT count(*) AS n, count(s) AS s, sum(d) AS d FROM nulls WHERE k % 3 = 0").to_pylist()
    assert found == [{"n": 10_000, "s": 0, "d": None}]


def of_every_type(rows):
    """A table with columns of every type that DuckDB, Java and Python know, extremes among the values."""
    draw = random.Random(5)
    some = lambda make: [None if draw.random() < 0.1 else make() for _ in range(rows)]
    context = decimal.Context(prec=80)
    decimals = lambda precision, scale: some(
        lambda: context.scaleb(decimal.Decimal(draw.randrange(-(10**precision) + 1, 10**precision)), -scale))
    recent = lambda: datetime.date(1969, 12, 31) + datetime.timedelta(draw.randrange(40_000))
    day = lambda: draw.choice([datetime.date.min, datetime.date.max, recent()])
    struct = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.float64()))])
    text = lambda: "".join(draw.choice("abcäöü€😀") for _ in range(draw.randrange(40)))
    return pa.table({
        "k": pa.array(range(rows), pa.int64()),
        "small": pa.array(some(lambda: draw.randrange(-128, 128)), pa.int8()),
        "large": pa.array(some(lambda: draw.choice([-2**63, 2**63 - 1, draw.randrange(10)])), pa.int64()),
        "unsigned": pa.array(some(lambda: draw.choice([0, 2**64 - 1])), pa.uint64()),
        "real": pa.array(some(lambda: draw.choice([float("inf"), -0.0, 5e-324, 1.7e308, 0.1])), pa.float64()),
        "d5": pa.array(decimals(5, 2), pa.decimal128(5, 2)),
        "d18": pa.array(decimals(18, 0), pa.decimal128(18, 0)),
        "d38": pa.array(decimals(38, 10), pa.decimal128(38, 10)),
        "d76": pa.array(decimals(76, 20), pa.decimal256(76, 20)),
        "day": pa.array(some(day), pa.date32()),
        "moment": pa.array(some(lambda: draw.choice([-2**62, 2**62, draw.randrange(10**15)])), pa.timestamp("us")),
        "span": pa.array(some(lambda: draw.randrange(86_400_000_000)), pa.time64("us")),
        "flag": pa.array(some(lambda: draw.random() < 0.5), pa.bool_()),
        "bytes": pa.array(some(lambda: draw.randbytes(draw.randrange(30))), pa.binary()),
        "fixed": pa.array(some(lambda: draw.randbytes(7)), pa.binary(7)),
        "text": pa.array(some(text), pa.string()),
        "list": pa.array(some(lambda: [draw.randrange(9) for _ in range(draw.randrange(4))]), pa.list_(pa.int16())),
        "struct": pa.array(some(lambda: {"a": draw.randrange(9), "b": text(), "c": [0.5]}), struct),
        "map": pa.array(some(lambda: [(text(), 1)]), pa.map_(pa.string(), pa.int32())),
    })


def test_every_type_comes_back(server):
    rows = 30_000
    table = of_every_type(rows)
    ingest(server, "types", table)

    def of(found, expected):
        found = found.sort_by("k")
        assert found.num_rows == expected.num_rows
        for name in expected.column_names:
            pair = [found.column(name), expected.column(name)]
            if name == "moment":
                # Python has no such years.
                pair = [column.cast(pa.int64()) for column in pair]
            # Text and bytes may come as views; their values are what counts. The texts tell -0.0 from 0.0.
            assert repr(pair[0].to_pylist()) == repr(pair[1].to_pylist()), name

    of(server.query("SELECT * FROM types"), table)
    # A few rows of all columns: only parts of those are read that can be cut.
    few = [7, 8_191, 8_192, 29_999]
    of(server.query(f"SELECT * FROM types WHERE k + 0 IN ({', '.join(map(str, few))})"), table.take(few))
    dated = server.query("SELECT k FROM types WHERE day = DATE '9999-12-31' OR day < DATE '0001-01-02'")
    extremes = (datetime.date.min, datetime.date.max)
    assert dated.num_rows == sum(day in extremes for day in table.column("day").to_pylist())


def test_cancelled_statements_leave_nothing(server):
    ingest(server, "cancelled", pa.table({
        "k": pa.array(range(400_000), pa.int64()),
        "s": pa.array([f"some text that is long enough {n % 1000}" for n in range(400_000)], pa.string()),
    }))
    statements = [
        "SELECT * FROM cancelled WHERE s LIKE '%text%7%' ORDER BY s",
        "SELECT s, count(*) FROM cancelled GROUP BY s ORDER BY 2 DESC",
        "SELECT count(*) FROM cancelled a JOIN cancelled b ON a.s = b.s",
        "SELECT max(a.s) FROM cancelled a JOIN cancelled b ON a.k = b.k WHERE b.s LIKE '%9'",
        "CREATE TABLE copied AS SELECT * FROM cancelled",
    ]
    draw, stop = random.Random(11), time.monotonic() + 8

    def client(seed):
        draw = random.Random(seed)
        while time.monotonic() < stop:
            with server.connect() as connection, connection.cursor() as cursor:
                timer = threading.Timer(draw.random() * 0.3, cursor.adbc_cancel)
                timer.start()
                try:
                    cursor.execute("DROP TABLE IF EXISTS copied")
                    cursor.fetchall()
                    cursor.execute(draw.choice(statements))
                    cursor.fetchall()
                except (adbc_driver_manager.Error, OSError):
                    pass
                timer.cancel()

    clients = [threading.Thread(target=client, args=(draw.random(),)) for _ in range(4)]
    [thread.start() for thread in clients]
    [thread.join() for thread in clients]
    running = "SELECT count(*) AS n FROM system.queries WHERE state IN ('running', 'queued')"
    eventually(lambda: server.query(running).to_pylist() == [{"n": 1}], 20)
    ended = server.query("SELECT count(*) AS n FROM system.queries WHERE state = 'cancelled'").to_pylist()[0]["n"]
    assert ended > 10, "some were cancelled"
    eventually(lambda: metric(server, "terrace_io_in_flight_reads") == 0)
    eventually(lambda: metric(server, "terrace_query_memory_used_bytes") == 0)
    assert server.query("SELECT count(*) AS n, count(DISTINCT s) AS d FROM cancelled").to_pylist() == [{"n": 400_000, "d": 1000}]


@pytest.mark.deep
def test_statements_of_twenty_times_the_read_budget(tmp_path):
    """A join's build side and a sort take in far more cold bytes than may be in flight or wait. Four at a time have too
    little memory, so exchanges spill: each ends with its answer or is refused, none waits for ever."""
    arguments = ["--dram-budget", "0", "--set", "memory.io=4MiB", "--set", "memory.query=1GiB"]
    with Server(tmp_path / "data", *arguments) as server:
        rows = 3_000_000
        server.query(
            "CREATE TABLE t AS SELECT value AS k, (value * 7919) % 3000017 AS v, "
            "concat('text that is too long for its view ', value) AS s FROM generate_series(1, 3000000)"
        )
        server.query("OPTIMIZE t")
        stored = server.query("SELECT sum(stored_bytes) AS n FROM system.segments").column("n")[0].as_py()
        assert stored > 20 * (4 << 20)
        total = rows * (rows + 1) // 2

        def join():
            text = "SELECT sum(a.k) AS k, min(b.s) AS s, count(*) AS n FROM t a JOIN t b ON a.v = b.v AND a.s = b.s"
            found = server.query(text).to_pylist()
            assert found == [{"k": total, "s": "text that is too long for its view 1", "n": rows}]

        def sort():
            found = server.query("SELECT k, s FROM t ORDER BY v").column("k")
            assert pc.sum(found).as_py() == total and (found[0].as_py() * 7919) % 3000017 == 1

        join()
        sort()
        problems = []

        def together(work):
            try:
                work()
            except adbc_driver_manager.Error as error:
                problems.extend([] if "needs more memory" in str(error) else [error])
            except AssertionError as error:
                problems.append(error)

        threads = [threading.Thread(target=together, args=(work,), daemon=True) for work in (join, sort, join, sort)]
        [thread.start() for thread in threads]
        [thread.join(120) for thread in threads]
        assert not any(thread.is_alive() for thread in threads), "a statement waits for ever"
        assert problems == []
        assert server.stop() == 0, server.output()
