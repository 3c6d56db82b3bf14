"""Aggregations by the keys of dictionaries give what pyarrow's give, also after rows changed, and when groups are too many."""

import datetime
import decimal

import pyarrow
import pytest

from server import Server

ROWS = 60_000


def rows(first, count, states=12):
    numbers = range(first, first + count)
    return pyarrow.table({
        "k": pyarrow.array(numbers, pyarrow.int64()),
        "flag": pyarrow.array([None if n % 13 == 0 else "ARN"[n % 3] for n in numbers], pyarrow.string()),
        "state": pyarrow.array([f"state with a long name {n * 7 % states}" for n in numbers], pyarrow.string()),
        "price": pyarrow.array([None if n % 7 == 0 else decimal.Decimal(n % 9973) / 100 for n in numbers], pyarrow.decimal128(15, 2)),
        "day": pyarrow.array([datetime.date(2024, 1, 1) + datetime.timedelta(n % 400) for n in numbers], pyarrow.date32()),
    })


def expected(table, keys):
    aggregates = [("k", "count"), ("k", "sum"), ("price", "count"), ("price", "sum"), ("day", "min"), ("day", "max")]
    grouped = table.group_by(keys).aggregate(aggregates).select(keys + [f"{column}_{name}" for column, name in aggregates])
    return sorted(map(str, (tuple(row.values()) for row in grouped.to_pylist())))


def found(server, keys):
    columns = ", ".join(keys)
    sql = f"SELECT {columns}, count(*), sum(k), count(price), sum(price), min(day), max(day) FROM t GROUP BY {columns}"
    plan = str(server.query(f"EXPLAIN ANALYZE {sql}").to_pydict())
    return sorted(map(str, (tuple(row.values()) for row in server.query(sql).to_pylist()))), plan


@pytest.mark.parametrize("file_format", ["arrow", "packed"])
def test_groups_by_keys_are_those_of_texts(tmp_path, file_format):
    table = rows(0, ROWS)
    with Server(tmp_path) as server:
        server.query(
            "CREATE TABLE t (k BIGINT NOT NULL, flag VARCHAR, state VARCHAR, price DECIMAL(15, 2), day DATE) "
            f"WITH (format = '{file_format}', chunk_rows = 1000)"
        )
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("t", table, mode="append")
        for keys in (["flag"], ["flag", "state"], ["state", "day"], ["k"]):
            answer, plan = found(server, keys)
            assert answer == expected(table, keys)
            assert "accumulators=" not in plan, plan  # none of them has DataFusion's
            assert ("KeyedAggregateExec" in plan) == ("handed_over=0" in plan) == (keys != ["k"]), plan
        hosted = str(server.query("EXPLAIN SELECT flag, count(*), var(k) FROM t GROUP BY flag").to_pydict())
        assert "accumulators=[var(" in hosted, hosted
        # Rows of the delta have texts, and some of other chunks are gone.
        more = rows(ROWS, 500, states=15)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("t", more, mode="append")
        server.query("DELETE FROM t WHERE k % 10 = 3")
        table = pyarrow.concat_tables([table, more])
        table = table.filter(pyarrow.array([k % 10 != 3 for k in table["k"].to_pylist()]))
        for keys in (["flag"], ["flag", "state"]):
            answer, plan = found(server, keys)
            assert answer == expected(table, keys)
            assert "KeyedAggregateExec" in plan, plan
