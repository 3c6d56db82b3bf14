"""The first rows of each group by row_number() are those of a sort, also with a parameter and after rows changed."""

import random

import pyarrow

from server import Server

ROWS = 60_000


def rows(seed):
    draw = random.Random(seed)
    return pyarrow.table({
        "k": pyarrow.array(range(ROWS), pyarrow.int64()),
        "g": pyarrow.array([draw.choice([None, *range(300)]) for _ in range(ROWS)], pyarrow.int32()),
        "s": pyarrow.array([f"text {draw.randrange(40)}" for _ in range(ROWS)], pyarrow.string()),
        "x": pyarrow.array([draw.choice([None, float("nan"), 0.0, draw.random() * 1e3]) for _ in range(ROWS)], pyarrow.float64()),
    })


def expected(table, keys, most):
    """By x descending, NULL and NaN first, then by k."""
    groups = {}
    for row in table.to_pylist():
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for group in groups.values():
        found += sorted(group, key=order)[:most]
    return sorted(row["k"] for row in found)


def order(row):
    x = row["x"]
    if x is None:
        return (0, 0.0, row["k"])
    if x != x:
        return (1, 0.0, row["k"])
    return (2, -x, row["k"])


def query(keys, bound):
    return (f"SELECT k FROM (SELECT k, row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY x DESC NULLS FIRST, k) AS n FROM t) "
            f"WHERE n <= {bound}")


def keys_of(result):
    return sorted(result.column("k").to_pylist())


def test_first_rows_are_those_of_a_sort(tmp_path):
    table = rows(1)
    with Server(tmp_path) as server:
        server.query("CREATE TABLE t (k BIGINT NOT NULL, g INT, s VARCHAR, x DOUBLE) WITH (chunk_rows = 2000)")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("t", table, mode="append")
        for keys in (["g"], ["s"], ["s", "g"]):
            for most in (1, 2, 7):
                assert keys_of(server.query(query(keys, most))) == expected(table, keys, most), (keys, most)
        plan = str(server.query(f"EXPLAIN ANALYZE {query(['g'], 2)}").to_pydict())
        assert "FirstRowsPerGroupExec: rows=2" in plan and "handed_over=0" in plan and "dropped=" in plan, plan
        # Each group has one row.
        plan = str(server.query(f"EXPLAIN {query(['k'], 2)}").to_pydict())
        assert "FirstRowsPerGroupExec" not in plan, plan
        server.query("DELETE FROM t WHERE k % 10 = 3")
        table = table.filter(pyarrow.array([k % 10 != 3 for k in range(ROWS)]))
        assert keys_of(server.query(query(["g"], 3))) == expected(table, ["g"], 3)
        with server.connect() as connection, connection.cursor() as cursor:
            for most in (1, 4):
                cursor.execute(query(["g"], "?"), [most])
                assert keys_of(cursor.fetch_arrow_table()) == expected(table, ["g"], most)
