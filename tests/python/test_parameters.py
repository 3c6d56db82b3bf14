"""Bound values through ADBC: they are values, not texts cut to the type of a column."""

import datetime
import decimal

import pyarrow as pa
import pytest

from helpers import affected, error_of, execute

D = decimal.Decimal


@pytest.fixture
def numbers(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (i INT, d DECIMAL(10, 2), a DATE, t TIMESTAMP(3))")
    execute(
        cursor,
        f"INSERT INTO {table} VALUES (1, 1.25, DATE '2024-01-01', '2024-01-01T00:00:00'), "
        "(2, 2.50, DATE '2024-01-02', '2024-01-02T12:00:00'), (3, 3.75, DATE '2024-01-03', '2024-01-03T00:00:00')",
    )
    return table


def bound(cursor, sql, *values):
    """The rows of a query with one row of parameters."""
    row = pa.record_batch({str(at): value if isinstance(value, pa.Array) else pa.array([value])
                           for at, value in enumerate(values)})
    cursor.execute(sql, row)
    table = cursor.fetch_arrow_table()
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("condition", "value", "wanted"),
    [
        ("i = ?", 2.5, []),
        ("i = ?", 2.0, [2]),
        ("NOT (i = ?)", 2.5, [1, 2, 3]),
        ("i < ?", 2.5, [1, 2]),
        ("i IN (?, 3)", 2.5, [3]),
        ("i BETWEEN 1 AND ?", 2.5, [1, 2]),
        ("i = ?", 3_000_000_000, []),
        ("i = ?", D("2.000"), [2]),
        ("i * ? = 3", 1.5, [2]),
        ("d = ?", D("2.500001"), []),
        ("d > ?", D("2.499"), [2, 3]),
        ("a = ?", datetime.datetime(2024, 1, 2, 12), []),
        ("a = ?", datetime.datetime(2024, 1, 2), [2]),
        ("t > ?", datetime.date(2024, 1, 2), [2, 3]),
        ("t = ?", pa.array([1_704_196_800_000_000], pa.timestamp("us")), [2]),
        ("t = ?", pa.array([1_704_196_800_000_001], pa.timestamp("us")), []),
        ("t = ?", pa.array([1_704_196_800_000_000_000], pa.timestamp("ns")), [2]),
        ("t = ?", pa.array([1_704_196_800], pa.timestamp("s")), [2]),
    ],
)
def test_comparisons_with_columns(cursor, numbers, condition, value, wanted):
    rows = bound(cursor, f"SELECT i FROM {numbers} WHERE {condition} ORDER BY i", value)
    assert [i for (i,) in rows] == wanted


def test_elsewhere_the_type_that_is_bound_counts(cursor, numbers):
    assert bound(cursor, "SELECT 7 / ?", 2.0) == [(3.5,)]
    assert bound(cursor, "SELECT 7 / ?", 2) == [(3,)]
    assert bound(cursor, f"SELECT i * ? FROM {numbers} WHERE i = 1", 1.5) == [(1.5,)]
    for value in [1, 2.5, "x", D("2.50"), True, None, b"\x00\xff", datetime.date(2024, 2, 29)]:
        assert bound(cursor, "SELECT ?", value) == [(value,)]
    assert bound(cursor, f"SELECT i FROM {numbers} ORDER BY i LIMIT ?", 2) == [(1,), (2,)]
    assert bound(cursor, f"SELECT i FROM {numbers} WHERE ? IS NULL OR i = ?", 1, 2) == [(2,)]
    assert bound(cursor, "SELECT $1 + $1", D("2.50")) == [(D("5.00"),)]
    assert bound(cursor, "SELECT $2 || $1", "b", "a") == [("ab",)]


def test_what_is_stored_fits_or_is_refused(cursor, numbers):
    for sql, value, column in [
        (f"INSERT INTO {numbers} (i) VALUES (?)", 2.5, "'i'"),
        (f"INSERT INTO {numbers} (d) VALUES (?)", D("2.500001"), "'d'"),
        (f"INSERT INTO {numbers} (t) VALUES (?)", pa.array([1_704_196_800_000_001], pa.timestamp("us")), "'t'"),
        (f"UPDATE {numbers} SET i = ?", 2.5, "'i'"),
    ]:
        error = error_of(lambda sql=sql, value=value: bound(cursor, sql, value))
        assert error.status_code.name == "INVALID_ARGUMENT" and column in str(error), str(error)
    assert affected(cursor, f"UPDATE {numbers} SET i = i * ? WHERE i = 2", (1.5,)) == 1
    assert [i for (i,) in execute(cursor, f"SELECT i FROM {numbers} ORDER BY i")] == [1, 3, 3]


def test_times_of_any_unit_are_stored_whole(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k INT, s TIMESTAMP(0), n TIMESTAMP(9), t TIME)")
    moment = 1_704_196_800  # 2024-01-02T12:00:00
    for k, (unit, factor) in enumerate([("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]):
        value = pa.array([moment * factor], pa.timestamp(unit))
        time = pa.array([3_600 * factor], pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))
        row = pa.record_batch([pa.array([k]), value, value, time], names=["0", "1", "2", "3"])
        cursor.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", row)
    rows = execute(cursor, f"SELECT s, CAST(n AS TIMESTAMP(0)), CAST(t AS VARCHAR) FROM {table} ORDER BY k")
    assert rows == [(datetime.datetime(2024, 1, 2, 12), datetime.datetime(2024, 1, 2, 12), "01:00:00")] * 4


def test_what_prepare_announces_is_replaced_by_what_is_bound(cursor):
    cursor.adbc_prepare("SELECT 7 / ? AS x")
    for value, wanted in [(2, pa.int64()), (2.0, pa.float64())]:
        cursor.execute("SELECT 7 / ? AS x", (value,))
        table = cursor.fetch_arrow_table()
        assert table.schema.field("x").type == wanted and table.num_rows == 1
