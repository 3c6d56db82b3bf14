# YCSB as a side: the same JSON lines as the others. argv[1]: {"url" or null, "records", "operations", "threads"}.
# With a url: a Flight SQL server over ADBC; without: DuckDB in memory. Both get the same operations with the same values.
import json
import random
import string
import sys
import time
import zlib

import pyarrow

spec = json.loads(sys.argv[1])
RECORDS, OPERATIONS = spec["records"], spec["operations"]
FIELDS = [f"field{n}" for n in range(10)]
FIELD_BYTES = 100
THETA = 0.99
COLUMNS = "k BIGINT PRIMARY KEY, " + ", ".join(f"{name} VARCHAR" for name in FIELDS)
LETTERS = string.ascii_letters + string.digits
TEXT = "".join(random.Random(0).choices(LETTERS, k=1 << 20))
MIX = {  # shares of read, update, insert, scan; the rest is read-modify-write
    "a": (0.5, 0.5, 0, 0), "b": (0.95, 0.05, 0, 0), "c": (1, 0, 0, 0), "d": (0.95, 0, 0.05, 0), "e": (0, 0, 0.05, 0.95),
    "f": (0.5, 0, 0, 0),
}


class Zipf:
    """Ranks from 0, the smaller the more frequent (Gray et al., SIGMOD 1994, as YCSB has it)."""

    def __init__(self, count):
        self.count = count
        self.zeta = sum(1 / i**THETA for i in range(1, count + 1))
        zeta2 = 1 + 0.5**THETA
        self.alpha = 1 / (1 - THETA)
        self.eta = (1 - (2 / count) ** (1 - THETA)) / (1 - zeta2 / self.zeta)

    def draw(self, rng):
        u = rng.random()
        uz = u * self.zeta
        if uz < 1:
            return 0
        if uz < 1 + 0.5**THETA:
            return 1
        return min(self.count - 1, int(self.count * (self.eta * u - self.eta + 1) ** self.alpha))


def text(rng):
    at = rng.randrange(len(TEXT) - FIELD_BYTES)
    return TEXT[at : at + FIELD_BYTES]


class Terrace:
    def __init__(self):
        import adbc_driver_flightsql.dbapi as flight_sql

        self.connection = flight_sql.connect(spec["url"], autocommit=True)
        self.cursors = {}  # one per statement: each stays prepared

    def execute(self, sql, values=()):
        cursor = self.cursors.setdefault(sql, self.connection.cursor())
        cursor.execute(sql, values or None)
        return cursor

    def query(self, sql, values=()):
        return self.execute(sql, values).fetchall()

    def change(self, sql, values):
        return self.execute(sql, values).rowcount

    def close(self):
        for cursor in self.cursors.values():
            cursor.close()
        self.connection.close()

    def load(self, rows):
        self.execute(f"CREATE TABLE usertable ({COLUMNS}) WITH (cluster_by = 'k', chunk_rows = 8192)")
        with self.connection.cursor() as cursor:
            # The driver sends messages of up to 16 MiB.
            cursor.adbc_ingest("usertable", rows.to_reader(max_chunksize=8192), mode="append")


class DuckDB:
    def __init__(self):
        import duckdb

        self.connection = duckdb.connect(":memory:", config={"threads": spec["threads"]})

    def query(self, sql, values=()):
        return self.connection.execute(sql, values).fetchall()

    def change(self, sql, values):
        return self.query(sql, values)[0][0]

    def close(self):
        self.connection.close()

    def load(self, rows):
        self.connection.execute(f"CREATE TABLE usertable ({COLUMNS})")
        self.connection.register("rows", rows)
        self.connection.execute("INSERT INTO usertable SELECT * FROM rows")


class Workload:
    def __init__(self, database):
        self.database, self.inserted, self.rounds = database, RECORDS, 0
        self.zipf = Zipf(RECORDS)
        rng = random.Random(1)
        columns = {"k": pyarrow.array(range(RECORDS), pyarrow.int64())}
        database.load(pyarrow.table(columns | {name: [text(rng) for _ in range(RECORDS)] for name in FIELDS}))

    def key(self, rng, name):
        rank, latest = self.zipf.draw(rng), name == "d"
        # Frequent keys lie scattered, as YCSB has it; workload D prefers those inserted last.
        return self.inserted - 1 - rank if latest else zlib.crc32(rank.to_bytes(8, "little")) % RECORDS

    def read(self, key):
        return len(self.database.query("SELECT * FROM usertable WHERE k = ?", [key]))

    def update(self, key, rng):
        name = rng.choice(FIELDS)
        return self.database.change(f"UPDATE usertable SET {name} = ? WHERE k = ?", [text(rng), key])

    def insert(self, rng):
        values = [self.inserted, *(text(rng) for _ in FIELDS)]
        self.inserted += 1
        return self.database.change(f"INSERT INTO usertable VALUES ({', '.join('?' * len(values))})", values)

    def scan(self, key, rng):
        last = key + rng.randrange(100)
        return len(self.database.query("SELECT * FROM usertable WHERE k BETWEEN ? AND ? ORDER BY k", [key, last]))

    def run(self, name):
        self.rounds += 1
        rng = random.Random(f"{name} {self.rounds}")
        read, update, insert, scan = MIX[name]
        rows, start = 0, time.perf_counter()
        for _ in range(OPERATIONS):
            kind, key = rng.random(), self.key(rng, name)
            if kind < read:
                rows += self.read(key)
            elif kind < read + update:
                rows += self.update(key, rng)
            elif kind < read + update + insert:
                rows += self.insert(rng)
            elif kind < read + update + insert + scan:
                rows += self.scan(key, rng)
            else:
                rows += self.read(key) + self.update(key, rng)
        ms = (time.perf_counter() - start) * 1e3
        return {"ms": ms, "values": {"operations": OPERATIONS, "rows": rows}}

    def digest(self):
        """What the table holds, in numbers small enough to be exact in JSON."""
        rows = self.database.query("SELECT * FROM usertable ORDER BY k")
        digest = 0
        for row in rows:
            digest = zlib.crc32(repr(tuple(row)).encode(), digest)
        return {"ms": 0, "values": {"rows": len(rows), "digest": digest}}


def answer(line):
    print(json.dumps(line), flush=True)


try:
    workload = Workload(Terrace() if spec["url"] else DuckDB())
    answer({"ms": 0})
except Exception as error:
    answer({"error": str(error)})
    sys.exit(1)
for request in sys.stdin:
    op = json.loads(request)["op"]
    try:
        answer(workload.digest() if op == "digest" else workload.run(op))
    except Exception as error:
        answer({"error": str(error)})
workload.database.close()
