# Round trips of small statements over one connection as a side: the same JSON lines as the others. argv[1]: {"url" of a Flight
# SQL server, or "postgres": where PostgreSQL is, "records", "operations"}. Answers "load", "select" and "point"; the time is
# the median of single statements.
import json
import random
import statistics
import sys
import time

spec = json.loads(sys.argv[1])
RECORDS, OPERATIONS = spec["records"], spec["operations"]
TABLE = "terrace_bench_points"
draw = random.Random(1)


class FlightSql:
    version = 0

    def __init__(self):
        import adbc_driver_flightsql.dbapi as flight_sql

        self.connection = flight_sql.connect(spec["url"], autocommit=True)
        self.prepared = self.connection.cursor()

    def load(self):
        import pyarrow

        keys = range(RECORDS)
        rows = pyarrow.table({"k": pyarrow.array(keys, pyarrow.int64()), "v": [f"value of {key}" for key in keys]})
        with self.connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {TABLE} (k BIGINT PRIMARY KEY, v VARCHAR) WITH (cluster_by = 'k')")
            cursor.adbc_ingest(TABLE, rows, mode="append")

    def select(self):
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchall()

    def point(self, key):
        # The cursor keeps its statement prepared.
        self.prepared.execute(f"SELECT k, v FROM {TABLE} WHERE k = ?", (key,))
        return self.prepared.fetchall()

    def close(self):
        self.prepared.close()
        self.connection.close()


class Postgres:
    def __init__(self):
        import psycopg

        self.connection = psycopg.connect(spec["postgres"], autocommit=True)
        self.version = self.connection.info.server_version // 10000

    def load(self):
        self.connection.execute(f"CREATE TEMPORARY TABLE {TABLE} (k BIGINT PRIMARY KEY, v VARCHAR)")
        values = f"SELECT k, 'value of ' || k FROM generate_series(0, {RECORDS - 1}) AS series(k)"
        self.connection.execute(f"INSERT INTO {TABLE} {values}")
        self.connection.execute(f"ANALYZE {TABLE}")

    def select(self):
        return self.connection.execute("SELECT 1", prepare=True).fetchall()

    def point(self, key):
        return self.connection.execute(f"SELECT k, v FROM {TABLE} WHERE k = %s", (key,), prepare=True).fetchall()

    def close(self):
        self.connection.close()


def measure(call):
    times = []
    for _ in range(OPERATIONS):
        start = time.perf_counter()
        rows = call()
        times.append((time.perf_counter() - start) * 1e3)
        assert len(rows) == 1, f"{len(rows)} rows"
    times.sort()
    return {"ms": statistics.median(times), "values": {"p99_ms": times[int(len(times) * 0.99)], "operations": len(times)}}


side = Postgres() if spec.get("postgres") else FlightSql()
print(json.dumps({"ms": 0, "values": {"version": side.version}}), flush=True)
for line in sys.stdin:
    op = json.loads(line)["op"]
    try:
        if op == "load":
            side.load()
            answer = {"ms": 0, "values": {}}
        elif op == "select":
            answer = measure(side.select)
        else:
            answer = measure(lambda: side.point(draw.randrange(RECORDS)))
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
side.close()
