"""Random INSERT, UPDATE, DELETE, MERGE and transactions on two tables, every answer compared with DuckDB.

    python tests/python/fuzz_writes.py --seconds 3600 --seed 7

Segments move between the statements (budgets change, epochs run), hot views come, are refreshed and go, deltas are sealed because chunks are small, and the
server is stopped, killed and started again. A difference ends the run with the seed and the statements that led to it.
"""

import argparse
import random
import re
import tempfile
import time

import duckdb

from helpers import affected, execute
from server import Server

COLUMNS = "k INTEGER, x INTEGER, s VARCHAR"


class Difference(AssertionError):
    """Terrace and DuckDB do not agree."""


class Workload:
    """A seeded stream of statements that both systems understand and whose effect is not ambiguous."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        #: Conditions of hot views that there are, or were not long ago.
        self.viewed = {"a": [], "b": []}

    def number(self):
        return "NULL" if self.draw.random() < 0.1 else str(self.draw.randrange(60))

    def text(self):
        return "NULL" if self.draw.random() < 0.2 else f"'s{self.draw.randrange(20)}'"

    def tables(self):
        return self.draw.sample(["a", "b"], 2)

    def condition(self, t, o):
        n, m = self.draw.randrange(60), self.draw.randrange(20)
        return self.draw.choice([
            f"{t}.k < {n}", f"{t}.x BETWEEN {n} AND {n + 15}", f"{t}.s IS NULL", f"{t}.s = 's{m}'", f"{t}.k % 7 = {n % 7}",
            f"{t}.k IN (SELECT k FROM {o} WHERE x < {n})", f"{t}.k NOT IN (SELECT k FROM {o} WHERE x < {m})",
            f"{t}.x NOT IN (SELECT x FROM {o} WHERE x IS NOT NULL AND k > {n})",
            f"EXISTS (SELECT 1 FROM {o} WHERE {o}.k = {t}.k AND {o}.x > {n})",
            f"NOT EXISTS (SELECT 1 FROM {o} WHERE {o}.s = {t}.s)",
            f"{t}.x = (SELECT max(x) FROM {t})", f"{t}.k > (SELECT avg(k) FROM {o})",
            f"{t}.k IN (SELECT k FROM {t} GROUP BY k HAVING count(*) > 2)",
        ])

    def source(self, o):
        """One row for each key, and some for no key of the other table."""
        keys = f"SELECT k, max(x) AS x, max(s) AS s FROM {o} WHERE k IS NOT NULL GROUP BY k"
        return f"({keys} UNION ALL SELECT {100 + self.draw.randrange(5)}, 1, 'new') AS d"

    def insert(self):
        t, o = self.tables()
        kind = self.draw.random()
        if kind < 0.5:
            rows = ", ".join(f"({self.number()}, {self.number()}, {self.text()})" for _ in range(self.draw.randrange(1, 30)))
            return f"INSERT INTO {t} VALUES {rows}"
        if kind < 0.8:
            return f"INSERT INTO {t} (x, k) SELECT k, x FROM {o} WHERE {self.condition(o, t)} AND k % 3 = {self.draw.randrange(3)}"
        last = self.draw.randrange(50, 400)
        return (f"INSERT INTO {t} SELECT CAST(v % 60 AS INTEGER), CAST(v % 13 AS INTEGER), concat('g', CAST(v % 9 AS VARCHAR)) "
                f"FROM generate_series(1, {last}) AS g (v)")

    def delete(self):
        t, o = self.tables()
        kind = self.draw.random()
        if kind < 0.03:
            return f"DELETE FROM {t}"
        if kind < 0.2:
            return f"DELETE FROM {t} USING {o} WHERE {t}.k = {o}.k AND {o}.x < {self.draw.randrange(30)}"
        return f"DELETE FROM {t} WHERE {self.condition(t, o)} AND {t}.x % 3 <> {self.draw.randrange(3)}"

    def update(self):
        t, o = self.tables()
        if self.draw.random() < 0.3:
            return (f"UPDATE {t} SET x = d.x, s = d.s FROM {self.source(o)} "
                    f"WHERE {t}.k = d.k AND {t}.x > {self.draw.randrange(30)}")
        value = self.draw.choice([
            "x = (x * 3 + 1) % 60", "s = NULL", "k = x, x = k", f"s = 'u{self.draw.randrange(9)}', x = NULL",
            f"s = (SELECT max(s) FROM {o} WHERE {o}.k = {t}.k)", f"x = (SELECT count(*) FROM {o}) % 60",
            f"x = CASE WHEN {t}.s IS NULL THEN 1 ELSE {t}.x END",
        ])
        return f"UPDATE {t} SET {value} WHERE {self.condition(t, o)}"

    def merge(self):
        t, o = self.tables()
        n, clauses = self.draw.randrange(60), []
        if self.draw.random() < 0.6:
            clauses.append(f"WHEN MATCHED AND d.x < {n} THEN UPDATE SET x = d.x, s = concat(d.s, '!')")
        if self.draw.random() < 0.5:
            clauses.append(f"WHEN MATCHED AND {t}.x > {n} THEN DELETE")
        if self.draw.random() < 0.6:
            clauses.append("WHEN NOT MATCHED AND d.x IS NOT NULL THEN INSERT (k, s, x) VALUES (d.k % 60, d.s, d.x)")
        if self.draw.random() < 0.3:
            clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {t}.k > {n} THEN DELETE")
        if self.draw.random() < 0.2:
            clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {t}.s IS NULL THEN UPDATE SET s = 'alone'")
        clauses = clauses or ["WHEN MATCHED THEN DELETE"]
        return f"MERGE INTO {t} USING {self.source(o)} ON {t}.k = d.k {' '.join(clauses)}"

    def rule(self):
        """A placement rule, or one less; it changes no row."""
        t, _ = self.tables()
        tier, n = self.draw.choice(["dram", "ssd"]), self.draw.randrange(60)
        scope = self.draw.choice(["", "COLUMNS (k) ", "COLUMNS (x, s) "]) + self.draw.choice([
            "", f"WHERE k < {n} ", f"WHERE x BETWEEN {n} AND {n + 9} OR s IS NULL ", f"CHUNKS {n % 5} TO {n} ",
        ])
        return f"ALTER TABLE {t} " + self.draw.choice([
            f"PIN {scope}TO {tier}", f"PIN {scope}TO dram", f"EXCLUDE {scope}FROM {tier}", f"PREFER {scope}ON {tier}",
            "UNPIN", "DROP PLACEMENT RULES",
        ])

    def plain(self, n, m):
        """A condition on single rows; those of queries and of hot views often imply each other."""
        return self.draw.choice([
            f"k < {n}", f"k <= {n % 10}", f"x BETWEEN {n} AND {n + 15}", f"x = {n}", f"s = 's{m}'", f"s IN ('s{m}', 's3', 'u1')",
            "s IS NULL", f"k % 7 = {n % 7}", f"x > {n} AND s IS NOT NULL", f"k = {n % 5} OR s = 's{m}'", f"s LIKE 's1%' AND k > {m}",
            f"NOT (k BETWEEN 3 AND {n})", f"k IN ({m}, {m + 1}, {n}) OR x IS NULL",
        ])

    def asked(self):
        t, o = self.tables()
        plain = self.plain(self.draw.randrange(60), self.draw.randrange(20))
        condition = self.draw.choice([plain, *self.viewed[t]])
        if self.draw.random() < 0.5:
            condition = f"({condition}) AND ({self.plain(self.draw.randrange(60), self.draw.randrange(20))})"
        join = f" JOIN {o} AS other ON other.k = {t}.k AND other.k < {self.draw.randrange(9)}" if self.draw.random() < 0.2 else ""
        condition = re.sub(r"\b([kxs])\b(?!')", rf"{t}.\1", condition)
        return f"SELECT count(*), sum({t}.k), sum({t}.x), count({t}.s) FROM {t}{join} WHERE {condition}"

    def view(self):
        """A statement on hot views; it changes no row."""
        t, _ = self.tables()
        columns = self.draw.choice(["*", "*", "k, x, s", "k, s"])
        condition = self.plain(self.draw.randrange(60), self.draw.randrange(20))
        name = f"{t}{self.draw.randrange(3)}"
        self.viewed[t] = [*self.viewed[t][-3:], condition]
        return self.draw.choice([
            f"CREATE OR REPLACE HOT VIEW {name} AS SELECT {columns} FROM {t} WHERE {condition}",
            f"ALTER HOT VIEW IF EXISTS {name} REFRESH", f"ALTER HOT VIEW IF EXISTS {name} REFRESH",
            f"ALTER HOT VIEW IF EXISTS {name} REFRESH", f"DROP HOT VIEW IF EXISTS {name}",
        ])

    def change(self):
        kinds = [self.insert, self.delete, self.update, self.merge]
        return self.draw.choices(kinds, weights=[4, 2, 3, 2])[0]()


class Pair:
    """A server and DuckDB that are told the same."""

    def __init__(self, data_dir, seed):
        self.workload, self.data_dir, self.seed = Workload(seed), data_dir, seed
        self.draw = random.Random(seed + 1)
        self.log, self.statements = [], 0
        self.duck = duckdb.connect()
        self.open()
        rows = self.draw.choice([7, 40, 300])
        for name in ["a", "b"]:
            self.duck.execute(f"CREATE TABLE {name} ({COLUMNS})")
            execute(self.cursor, f"CREATE TABLE {name} ({COLUMNS}) WITH (chunk_rows = {rows})")

    def open(self):
        self.server = Server(self.data_dir)
        self.connection = self.server.connect()
        self.cursor = self.connection.cursor()

    def close(self):
        self.cursor.close()
        self.connection.close()
        if self.server.stop() != 0:
            raise Difference(f"the server ended badly:\n{self.server.output()}")

    def reopen(self):
        if self.draw.random() < 0.5:
            self.cursor.close()
            self.connection.close()
            self.server.kill()
        else:
            self.close()
        self.open()

    def fail(self, what):
        raise Difference(f"{what}\nseed {self.seed}; the last statements:\n" + ";\n".join(self.log[-40:]))

    def change(self):
        """One statement for both; the numbers of rows affected must agree."""
        sql = self.workload.change()
        self.log.append(sql)
        self.statements += 1
        expected = self.duck.execute(sql).fetchone()[0]
        try:
            found = affected(self.cursor, sql)
        except Exception as error:  # noqa: BLE001 - whatever it is, DuckDB could do it
            self.fail(f"{error}")
        if found != expected:
            self.fail(f"{found} rows affected, DuckDB says {expected}")

    def compare(self):
        for name in ["a", "b"]:
            question = f"SELECT k, x, s FROM {name} ORDER BY k NULLS FIRST, x NULLS FIRST, s NULLS FIRST"
            expected, found = self.duck.execute(question).fetchall(), execute(self.cursor, question)
            if found != expected:
                extra, missing = set(found) - set(expected), set(expected) - set(found)
                self.fail(f"{name}: {len(found)} rows, DuckDB has {len(expected)}; extra {extra}, missing {missing}")
            count = execute(self.cursor, f"SELECT count(*), count(x), min(k), max(k) FROM {name}")
            if count != self.duck.execute(f"SELECT count(*), count(x), min(k), max(k) FROM {name}").fetchall():
                self.fail(f"{name}: the counts differ: {count}")
        for question in [self.workload.asked() for _ in range(3)]:
            expected, found = self.duck.execute(question).fetchall(), execute(self.cursor, question)
            if found != expected:
                self.fail(f"{question}: {found}, DuckDB says {expected}")

    def transaction(self):
        for system in (self.duck.execute, lambda sql: execute(self.cursor, sql)):
            system("BEGIN")
        self.log.append("BEGIN")
        for _ in range(self.draw.randrange(1, 6)):
            self.change()
            self.compare()
        end = self.draw.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        self.log.append(end)
        self.duck.execute(end)
        execute(self.cursor, end)

    def place(self):
        """Another placement of the same rows: rules, a budget, an epoch."""
        for sql in [self.workload.rule() for _ in range(self.draw.randrange(3))]:
            self.log.append(sql)
            try:
                execute(self.cursor, sql)
            except Exception as error:  # noqa: BLE001 - what cannot be is refused with these words
                if not re.search("too much|do not hold|no chunk of", str(error)):
                    self.fail(f"{error}")
        try:
            self.server.budget("dram", self.draw.choice(["64KiB", "1MiB", "64MiB"]))
        except RuntimeError as error:
            if not re.search("too much|do not hold", str(error)):
                self.fail(f"{error}")
        if self.draw.random() < 0.3:
            execute(self.cursor, f"OPTIMIZE {self.draw.choice(['a', 'b'])}")
        self.server.epoch()

    def views(self):
        for sql in [self.workload.view() for _ in range(self.draw.randrange(1, 4))]:
            self.log.append(sql)
            execute(self.cursor, sql)

    def step(self):
        kind = self.draw.random()
        if kind < 0.12:
            self.transaction()
        elif kind < 0.2:
            self.place()
        elif kind < 0.3:
            self.views()
        elif kind < 0.31:
            self.log.append("-- restart")
            self.reopen()
        else:
            self.change()
        self.compare()


def run(data_dir, seed, statements=None, seconds=None):
    """Runs until one of the limits; returns the statements done."""
    pair, end = Pair(data_dir, seed), time.monotonic() + (seconds or 1e9)
    while pair.statements < (statements or 10**12) and time.monotonic() < end:
        pair.step()
    pair.close()
    return pair.statements


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=None, help="of the first round; each round takes the next one")
    arguments.add_argument("--round", type=int, default=400, help="statements on one pair of tables")
    options = arguments.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    end, total = time.monotonic() + options.seconds, 0
    while (left := end - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory() as folder:
            total += run(folder, seed, options.round, left)
        print(f"seed {seed}: no difference; {total} statements so far", flush=True)
        seed += 1


if __name__ == "__main__":
    main()
