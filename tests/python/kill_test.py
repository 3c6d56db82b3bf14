"""Kills a real server (`kill -9`) at random points and compares everything it has afterwards with what it acknowledged.

Several writers, each with tables of its own, work against one server: insert, bulk ingest, create, replace and drop
tables, alter, update, delete, transactions, compaction; meanwhile epochs move segments under changing budgets. Each
writer has a model of its tables. The one operation that was under way when the server died may be there whole or not
at all; everything acknowledged is there, and nothing else is. Operations that this server does not know are left out,
and the summary says which were exercised.

    python tests/python/kill_test.py --kills 200 --seed 7

The seed fixes what is drawn, not when the server dies: a failure is seen again by running the same seed some times.
"""

import argparse
import collections
import pathlib
import random
import sys
import tempfile
import threading
import time

import pyarrow

from server import Server

WRITERS = 3
TABLES = 3
MOST_ROWS = 120_000
SIZES = [1, 7, 100, 2_000, 20_000]
BUDGETS = ["0", "1MiB", "8MiB", "64MiB"]

# Statements that a server may not know, each on a table `probe (k bigint, v bigint)` that has one row.
OPTIONAL = {
    "update": "update probe set v = v + 1 where k = 1",
    "delete": "delete from probe where k = 2",
    "truncate": "truncate table probe",
    "compact": "optimize probe",
    "alter": "alter table probe add column extra bigint default 5",
    "transaction": None,
}


class Lost(AssertionError):
    """Something acknowledged is not there, or something is there that nobody wrote."""


def value(key):
    return key * 3 + 1


def rows(keys):
    return pyarrow.table({"k": pyarrow.array(keys, pyarrow.int64()),
                          "v": pyarrow.array([value(k) for k in keys], pyarrow.int64())})


def probe(server):
    """Which of the optional operations the server knows."""
    known = set()
    with server.connect() as connection, connection.cursor() as cursor:
        for name, sql in OPTIONAL.items():
            try:
                cursor.execute("create or replace table probe as select 1::bigint as k, 2::bigint as v")
                cursor.fetchall()
                if sql is None:
                    with server.connect(autocommit=False) as other, other.cursor() as inside:
                        inside.execute("insert into probe values (2, 2)")
                        inside.fetchall()
                        other.rollback()
                else:
                    cursor.execute(sql)
                    cursor.fetchall()
                known.add(name)
            except Exception:  # noqa: BLE001 - any refusal means: not there
                pass
        cursor.execute("drop table probe")
        cursor.fetchall()
    return known


class Writer(threading.Thread):
    """Works on tables of its own until the server is gone."""

    def __init__(self, number, draw, known):
        super().__init__(daemon=True)
        self.number, self.draw, self.known = number, draw, known
        self.state = {}  # table -> {key: value}
        self.possible = [self.state]
        self.next_key = 1
        self.exercised = collections.Counter()

    def again(self):
        """The same model, for the next server."""
        successor = Writer(self.number, self.draw, self.known)
        successor.state, successor.next_key, successor.exercised = self.state, self.next_key, self.exercised
        successor.possible = self.possible
        return successor

    def attach(self, server, killed):
        self.server, self.killed, self.failure = server, killed, None

    def run(self):
        try:
            with self.server.connect() as connection, connection.cursor() as cursor:
                while not self.killed.is_set():
                    self.step(connection, cursor)
        except Exception as error:  # noqa: BLE001 - the server was killed, or it refused what it should not
            if not self.killed.is_set():
                time.sleep(0.5)
            if not self.killed.is_set():
                self.failure = error

    def keys(self, count):
        first = self.next_key
        self.next_key += count + self.draw.randrange(3)
        return range(first, first + count)

    def step(self, connection, cursor):
        name = f"w{self.number}_{self.draw.randrange(TABLES)}"
        after = {table: dict(content) for table, content in self.state.items()}
        if name not in self.state or self.draw.random() < 0.04:
            kind, work = self.define(name, after, connection, cursor)
        else:
            kind, work = self.change(name, after, connection, cursor)
        self.possible = [self.state, after]
        work()
        self.state, self.possible = after, [after]
        self.exercised[kind] += 1

    def define(self, name, after, connection, cursor):
        """A table appears, with or without rows, or is replaced."""
        keys = self.keys(self.draw.choice(SIZES))
        options = self.draw.choice(["", " with (chunk_rows = '64')", " with (chunk_rows = '5000')"])
        kind = self.draw.choice(["create", "load", "create as"])
        after[name] = {} if kind == "create" else {k: value(k) for k in keys}
        if kind == "load":
            return kind, lambda: cursor.adbc_ingest(name, rows(keys), mode="replace")
        if kind == "create":
            return kind, lambda: run(cursor, f"create or replace table {name} (k bigint, v bigint){options}")
        select = f"select k, k * 3 + 1 as v from (select unnest(generate_series({keys[0]}, {keys[-1]})) as k)"
        return kind, lambda: run(cursor, f"create or replace table {name}{options} as {select}")

    def change(self, name, after, connection, cursor):
        content = after[name]
        kinds = ["insert"] * 4 + ["ingest"] * 3 + ["drop", "insert select"] + sorted(self.known - {"transaction"})
        kinds += ["transaction"] * (2 if "transaction" in self.known else 0)
        kind = self.draw.choice(kinds)
        if len(content) > MOST_ROWS:
            kind = "drop"
        low = self.draw.randrange(self.next_key)
        high = low + self.draw.choice([1, 50, 3_000, 10**9])
        hit = [k for k in content if low <= k < high]
        if kind == "drop":
            del after[name]
            return kind, lambda: run(cursor, f"drop table {name}")
        if kind == "insert":
            keys = self.keys(self.draw.choice([1, 1, 5, 40]))
            content.update((k, value(k)) for k in keys)
            return kind, lambda: run(cursor, insert(name, keys))
        if kind == "insert select":
            keys = self.keys(self.draw.choice(SIZES))
            content.update((k, value(k)) for k in keys)
            select = f"select k, k * 3 + 1 from (select unnest(generate_series({keys[0]}, {keys[-1]})) as k)"
            return kind, lambda: run(cursor, f"insert into {name} (k, v) {select}")
        if kind == "ingest":
            keys = self.keys(self.draw.choice(SIZES))
            content.update((k, value(k)) for k in keys)
            return kind, lambda: cursor.adbc_ingest(name, rows(keys), mode="append")
        if kind == "delete":
            for k in hit:
                del content[k]
            return kind, lambda: run(cursor, f"delete from {name} where k >= {low} and k < {high}")
        if kind == "update":
            content.update((k, content[k] + 7) for k in hit)
            return kind, lambda: run(cursor, f"update {name} set v = v + 7 where k >= {low} and k < {high}")
        if kind == "truncate":
            content.clear()
            return kind, lambda: run(cursor, f"truncate table {name}")
        if kind == "compact":
            return kind, lambda: run(cursor, f"optimize {name}")
        if kind == "alter":
            return kind, lambda: (run(cursor, f"alter table {name} add column if not exists extra bigint default 5"),
                                  run(cursor, f"alter table {name} drop column if exists extra"))
        return self.transaction(name, after)

    def transaction(self, name, after):
        """Rows for two tables, together or not at all."""
        other = self.draw.choice(sorted(after))
        work, before = [], {table: dict(content) for table, content in after.items()}
        for table in (name, other):
            keys = self.keys(self.draw.choice([1, 10]))
            after[table].update((k, value(k)) for k in keys)
            work.append(insert(table, keys))
            if "delete" in self.known and after[table]:
                doomed = self.draw.choice(list(after[table]))
                del after[table][doomed]
                work.append(f"delete from {table} where k = {doomed}")
        keep = self.draw.random() < 0.8
        if not keep:
            after.clear()
            after.update(before)

        def together():
            with self.server.connect(autocommit=False) as connection, connection.cursor() as cursor:
                for sql in work:
                    run(cursor, sql)
                connection.commit() if keep else connection.rollback()

        return "transaction", together

    def check(self, server):
        """Compares what the server has with what it may have, and takes that up."""
        names = server.query("select table_name from information_schema.tables where table_schema = 'public' "
                             f"and left(table_name, 3) = 'w{self.number}_'")["table_name"].to_pylist()
        found = {}
        for name in names:
            if "alter" in self.known:
                # It may have died between the two steps of that operation.
                server.query(f"alter table {name} drop column if exists extra")
            table = server.query(f"select k, v from {name}")
            found[name] = dict(zip(table["k"].to_pylist(), table["v"].to_pylist()))
            count = server.query(f"select count(*) as n from {name}")["n"][0].as_py()
            if not len(found[name]) == table.num_rows == count:
                raise Lost(f"{name}: {table.num_rows} rows, {len(found[name])} keys, count(*) says {count}")
        if found not in self.possible:
            raise Lost(f"writer {self.number}: " + "; or ".join(difference(found, state) for state in self.possible))
        self.state, self.possible = found, [found]


def run(cursor, sql):
    cursor.execute(sql)
    cursor.fetchall()


def insert(name, keys):
    return f"insert into {name} (k, v) values " + ", ".join(f"({k}, {value(k)})" for k in keys)


def difference(found, expected):
    """In a few words."""
    parts = [f"tables {sorted(found)} instead of {sorted(expected)}"] if found.keys() != expected.keys() else []
    for name in found.keys() & expected.keys():
        missing, extra = expected[name].keys() - found[name].keys(), found[name].keys() - expected[name].keys()
        changed = [k for k in found[name].keys() & expected[name].keys() if found[name][k] != expected[name][k]]
        for what, some in (("missing", missing), ("extra", extra), ("changed", changed)):
            if some:
                parts.append(f"{name}: {len(some)} {what}, as {sorted(some)[:5]}")
    return ", ".join(parts) or "equal"


class Mover(threading.Thread):
    """Changes budgets and asks for epochs, so that segments move all the time."""

    def __init__(self, server, killed, draw, exercised):
        super().__init__(daemon=True)
        self.server, self.killed, self.draw, self.exercised = server, killed, draw, exercised

    def run(self):
        while not self.killed.is_set():
            try:
                self.server.budget("dram", self.draw.choice(BUDGETS))
                self.server.epoch()
                self.exercised["epoch"] += 1
            except Exception:  # noqa: BLE001 - the server was killed
                return


def run_kills(data_dir, kills, seed, progress=lambda text: None):
    """Kills the server `kills` times; returns how often each operation was acknowledged. Raises [`Lost`]."""
    draw = random.Random(seed)
    exercised = collections.Counter()
    with Server(data_dir) as server:
        known = probe(server)
        stopped = server.stop()
        assert stopped == 0, server.output()
    progress(f"seed {seed}; not known to this server: {', '.join(sorted(set(OPTIONAL) - known)) or 'nothing'}")
    writers = [Writer(n, random.Random(f"{seed}/{n}"), known) for n in range(WRITERS)]
    for number in range(kills + 1):
        with Server(data_dir) as server:
            for writer in writers:
                writer.check(server)
            if number == kills:
                break
            killed = threading.Event()
            writers = [writer.again() for writer in writers]
            mover = Mover(server, killed, draw, exercised)
            for writer in writers:
                writer.attach(server, killed)
            for thread in [*writers, mover]:
                thread.start()
            time.sleep(draw.uniform(0.02, 1.2))
            killed.set()
            server.kill()
            for thread in [*writers, mover]:
                thread.join()
            for writer in writers:
                if writer.failure:
                    raise Lost(f"writer {writer.number} was refused: {writer.failure}\n{server.output()[-2000:]}")
        if (number + 1) % 10 == 0:
            progress(f"{number + 1} kills, {sum(len(t) for w in writers for t in w.state.values())} rows")
    for writer in writers:
        exercised.update(writer.exercised)
    return exercised


def main():
    arguments = argparse.ArgumentParser(description="Kills a server and compares what is left with what it acknowledged.")
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=random.randrange(2**31))
    arguments.add_argument("--data-dir", type=pathlib.Path, help="default: a new folder, removed afterwards")
    chosen = arguments.parse_args()
    # Drivers complain about connections whose server died while they are thrown away.
    sys.unraisablehook = lambda _: None
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            progress = lambda text: print(text, flush=True)  # noqa: E731
            exercised = run_kills(chosen.data_dir or folder, chosen.kills, chosen.seed, progress)
        except Lost as lost:
            print(f"FAIL (seed {chosen.seed}): {lost}")
            return 1
    done = ", ".join(f"{kind} {count}" for kind, count in sorted(exercised.items()))
    print(f"PASS: {chosen.kills} kills with seed {chosen.seed} in {time.monotonic() - started:.0f} s; acknowledged: {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
