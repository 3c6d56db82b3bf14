"""Random statements, answered by Terrace and by DuckDB over the same rows; a seed repeats a run.

The rows are made of values at which systems differ: -0.0, NaN, infinities, NULL, decimals of two scales, dates beside times.
Statements mix types in unions, CASE and COALESCE, join and group by floats, bind parameters, and change rows in between.
Rows are compared as multisets: numbers by value, 0.0 as -0.0, sums of floats within 1e-9. What the two define differently is
not asked: integer division, averages of decimals, EXCEPT and INTERSECT of integers and floats (Terrace gives the left side's
values in its type), the order of the two zeros, and that of NULLs where nothing says it.
"""

import collections
import datetime as dt
import decimal
import math
import os
import random

import adbc_driver_manager
import duckdb
import pytest

from helpers import affected

ROWS = 300
STATEMENTS = 250
SHOWN = int(os.environ.get("DIFFERENCES_SHOWN", "5"))

#: Column to its type and the values that it takes (beside NULL).
COLUMNS = {
    "i": ("INT", [-7, -1, 0, 1, 2, 3, 2**31 - 1, -(2**31)]),
    "b": ("BIGINT", [-3, 0, 1, 2, 5, 3_000_000_000, 2**53 + 1]),
    "f": ("DOUBLE", [-0.0, 0.0, math.nan, math.inf, -math.inf, 1.5, 2.0, -2.5, 1e300]),
    "g": ("DOUBLE", [-0.0, 0.0, math.nan, 2.0, 3.25, -1.0]),
    "d": ("DECIMAL(10, 2)", [decimal.Decimal(text) for text in ("0.00", "-1.25", "2.00", "2.50", "99999999.99")]),
    "e": ("DECIMAL(20, 6)", [decimal.Decimal(text) for text in ("0.000000", "2.500000", "2.500001", "-1.250000", "12345678901234.5")]),
    "t": ("TIMESTAMP", [dt.datetime(2024, 2, 29, 23, 59, 59, 999_999), dt.datetime(2024, 3, 1), dt.datetime(1969, 12, 31, 12)]),
    "a": ("DATE", [dt.date(2024, 3, 1), dt.date(2024, 2, 29), dt.date(1970, 1, 1), dt.date(1969, 12, 31)]),
    "s": ("VARCHAR", ["", "a", "b", "ab", "ä", "1", "%"]),
    "o": ("BOOLEAN", [True, False]),
}

#: Columns whose values compare with each other without a cast that somebody must choose.
KINDS = {"number": "ibdefg", "float": "fg", "exact": "ibde", "time": "ta", "text": "s", "flag": "o"}


def rows(rng):
    """Rows with a key; one value in six is NULL."""
    def value(name):
        return None if rng.random() < 1 / 6 else rng.choice(COLUMNS[name][1])

    return [(key, *(value(name) for name in COLUMNS)) for key in range(ROWS)]


def literal(value):
    """The value as both dialects write it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, decimal.Decimal):
        return f"CAST('{value}' AS DECIMAL(20, 6))"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    if isinstance(value, dt.date):
        return f"DATE '{value}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


class Statements:
    """Statements by a seeded generator; each comes with its parameters."""

    def __init__(self, rng):
        self.rng, self.parameters = rng, []

    def column(self, kind, table="x"):
        return f"{table}.{self.rng.choice(KINDS[kind])}"

    def constant(self, kind):
        """A literal, or a parameter: then in the order of the text."""
        value = self.rng.choice(COLUMNS[self.rng.choice(KINDS[kind])][1])
        if self.rng.random() < 0.3:
            self.parameters.append(value)
            return "?"
        return literal(value)

    def operand(self, kind, table="x"):
        pick = self.rng.random()
        if pick < 0.7:
            return self.column(kind, table)
        if pick < 0.8 and kind == "float":
            return f"-{self.column(kind, table)}"
        if pick < 0.9:
            return f"coalesce({self.column(kind, table)}, {self.column(kind, table)})"
        return f"CASE WHEN {self.predicate(0, table)} THEN {self.column(kind, table)} ELSE {self.column(kind, table)} END"

    def predicate(self, depth=2, table="x"):
        if depth and self.rng.random() < 0.5:
            joint = self.rng.choice(["AND", "OR"])
            return f"{self.part(self.predicate(depth - 1, table))} {joint} {self.part(self.predicate(depth - 1, table))}"
        kind = self.rng.choice(["number", "number", "float", "exact", "time", "text"])
        form = self.rng.randrange(8)
        if form == 0:
            return f"{self.column(self.rng.choice(list(KINDS)), table)} IS {self.rng.choice(['', 'NOT '])}NULL"
        left = self.column(kind, table)
        if form == 1:
            return f"{left} {self.rng.choice(['', 'NOT '])}IN ({self.constant(kind)}, {self.constant(kind)})"
        if form == 2:
            return f"{left} BETWEEN {self.constant(kind)} AND {self.constant(kind)}"
        if form == 3:
            return f"{left} IS {self.rng.choice(['', 'NOT '])}DISTINCT FROM {self.column(kind, table)}"
        right = self.constant(kind) if form < 6 else self.column(kind, table)
        return f"{left} {self.rng.choice(['=', '<>', '<', '<=', '>', '>='])} {right}"

    def part(self, predicate):
        """Sometimes without parentheses, so that precedence decides."""
        return f"({predicate})" if " OR " in predicate or self.rng.random() < 0.5 else predicate

    def query(self):
        self.parameters = []
        form = self.rng.choice(["filter", "group", "union", "join", "member", "order"])
        return getattr(self, form)()

    def filter(self):
        kind = self.rng.choice(["number", "float", "time", "text"])
        return f"SELECT x.k, {self.operand(kind)} AS v FROM r x WHERE {self.predicate()}"

    def group(self):
        key = self.column(self.rng.choice(["float", "exact", "time", "text", "flag"]))
        kind = self.rng.choice(["float", "exact", "time", "text"])
        value = self.column(kind)
        return (f"SELECT {key}, count(*), count({value}), count(DISTINCT {value}), min({value}), max({value}) "
                f"FROM r x WHERE {self.predicate(1)} GROUP BY {key}")

    def union(self):
        every = self.rng.choice(["UNION ALL", "UNION", "UNION ALL", "EXCEPT", "INTERSECT"])
        kind = self.rng.choice(["number", "exact", "time"] if "UNION" in every else ["exact", "time"])
        left = f"SELECT {self.operand(kind)} AS v FROM r x WHERE {self.predicate(1)}"
        return f"{left} {every} SELECT {self.operand(kind)} FROM r x WHERE {self.predicate(1)}"

    def join(self):
        kind = self.rng.choice(["number", "float", "exact", "time", "text"])
        how = self.rng.choice(["JOIN", "LEFT JOIN", "FULL JOIN"])
        left, right = self.column(kind, "x"), self.column(kind, "y")
        return (f"SELECT count(*), count(x.k), count(y.k), sum(x.k), sum(y.k) FROM (SELECT * FROM r x WHERE {self.predicate(1)}) x "
                f"{how} (SELECT * FROM q x WHERE {self.predicate(1)}) y ON {left} = {right}")

    def member(self):
        kind = self.rng.choice(["number", "float", "exact", "time", "text"])
        how = self.rng.choice(["IN", "NOT IN"])
        return (f"SELECT x.k FROM r x WHERE {self.column(kind)} {how} "
                f"(SELECT {self.column(kind, 'y')} FROM q y WHERE {self.predicate(1, 'y')})")

    def order(self):
        value = self.column(self.rng.choice(["exact", "time"]))
        down = self.rng.choice(["ASC NULLS FIRST", "DESC NULLS LAST"])
        return f"SELECT {value}, x.k FROM r x WHERE {self.predicate(1)} ORDER BY {value} {down}, x.k LIMIT {self.rng.randrange(1, 40)}"

    def change(self):
        """A statement that changes rows; keys of changed rows stay, so that both sides do the same."""
        self.parameters = []
        name = self.rng.choice("ifgs")
        if self.rng.random() < 0.3:
            return f"DELETE FROM r WHERE {self.predicate(1, 'r')} AND k % 5 = {self.rng.randrange(5)}"
        value = self.rng.choice(COLUMNS[name][1])
        if self.rng.random() < 0.5:
            self.parameters.append(value)
            shown = "?"
        else:
            shown = literal(value)
        return f"UPDATE r SET {name} = {shown} WHERE {self.predicate(1, 'r')} AND k % 3 = {self.rng.randrange(3)}"


def plain(value):
    """A value that compares and hashes alike on both sides."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return float(f"{value:.12g}") + 0.0 if math.isfinite(value) else value
    if isinstance(value, (int, decimal.Decimal)):
        return float(f"{float(value):.12g}") + 0.0 if abs(value) < 2**40 else int(value) if value == int(value) else float(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    return value


def multiset(answer):
    return collections.Counter(tuple(plain(value) for value in row) for row in answer)


class Sides:
    """The same tables in Terrace and in DuckDB."""

    def __init__(self, cursor, seed):
        self.cursor, self.duck, self.differences = cursor, duckdb.connect(), []
        rng = random.Random(seed)
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        for table in "rq":
            self.terrace(f"DROP TABLE IF EXISTS {table}")
            self.terrace(f"CREATE TABLE {table} (k BIGINT, {columns}) WITH (chunk_rows = 64)")
            self.duck.execute(f"CREATE TABLE {table} (k BIGINT, {columns})")
            for row in rows(rng):
                self.duck.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            self.load(table)

    def load(self, table):
        """Makes Terrace's rows those of DuckDB; after a difference too, so that it is counted once."""
        self.terrace(f"TRUNCATE {table}")
        self.cursor.adbc_ingest(table, self.duck.sql(f"SELECT * FROM {table} ORDER BY k").to_arrow_table(), mode="append")
        self.terrace(f"OPTIMIZE {table}")

    def terrace(self, sql, parameters=None):
        self.cursor.execute(sql, parameters or None)
        return self.cursor.fetchall()

    def check(self, sql, parameters):
        expected = multiset(self.duck.execute(sql, parameters).fetchall())
        try:
            actual = multiset(self.terrace(sql, parameters))
        except adbc_driver_manager.Error as error:
            self.note(sql, parameters, f"Terrace refuses it: {error}")
            return False
        if actual != expected:
            more, less = list((actual - expected).items())[:4], list((expected - actual).items())[:4]
            self.note(sql, parameters, f"only Terrace: {more}\nonly DuckDB: {less}")
        return actual == expected

    def change(self, sql, parameters):
        expected = self.duck.execute(sql, parameters).fetchall()[0][0]
        try:
            actual = affected(self.cursor, sql, parameters or None)
        except adbc_driver_manager.Error as error:
            actual = error
        if actual != expected:
            self.note(sql, parameters, f"Terrace changes rows: {actual}, DuckDB: {expected}")
        if not self.check("SELECT * FROM r", []):
            self.load("r")

    def note(self, sql, parameters, what):
        self.differences.append(f"{sql}\nparameters {parameters}\n{what}")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 4))])
def test_random_statements_answer_as_duckdb(cursor, seed):
    sides = Sides(cursor, seed)
    statements = Statements(random.Random(1000 + seed))
    for number in range(STATEMENTS):
        sql = statements.change() if number % 25 == 24 else statements.query()
        (sides.change if number % 25 == 24 else sides.check)(sql, statements.parameters)
    shown = "\n\n".join(sides.differences[:SHOWN])
    assert not sides.differences, f"{len(sides.differences)} of {STATEMENTS} statements differ with seed {seed}:\n{shown}"
