"""Queries: values, types, parameters, large results, errors."""

import datetime
import decimal

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow as pa
import pytest

from helpers import error_of, execute


def test_values_of_the_usual_types(cursor):
    cursor.execute(
        "SELECT 1 AS i, 1.5 AS f, 'text' AS s, true AS b, DATE '2024-02-29' AS d, "
        "TIMESTAMP '2024-02-29T12:34:56.123456' AS t, CAST(12.34 AS DECIMAL(10, 2)) AS n, NULL AS z"
    )
    row = cursor.fetchone()
    assert row[0:4] == (1, 1.5, "text", True)
    assert row[4] == datetime.date(2024, 2, 29)
    assert row[5].replace(tzinfo=None) == datetime.datetime(2024, 2, 29, 12, 34, 56, 123456)
    assert row[6] == decimal.Decimal("12.34")
    assert row[7] is None


def test_rows_are_compressed_on_request(uri, cursor, table):
    sql = f"SELECT * FROM {table} ORDER BY id"
    execute(cursor, f"CREATE TABLE {table} AS SELECT value AS id, repeat('text ', 20) AS words FROM range(0, 100000)")
    cursor.execute(sql)
    plain = cursor.fetch_arrow_table()
    for compression in "lz4", "zstd":
        header = {"adbc.flight.sql.rpc.call_header.terrace-compression": compression}
        with flight_sql.connect(uri, db_kwargs=header, autocommit=True) as connection, connection.cursor() as compressed:
            compressed.execute(sql)
            assert compressed.fetch_arrow_table() == plain
    header = {"adbc.flight.sql.rpc.call_header.terrace-compression": "gzip"}
    with flight_sql.connect(uri, db_kwargs=header, autocommit=True) as connection, connection.cursor() as refused:
        error = error_of(lambda: (refused.execute(sql), refused.fetch_arrow_table()))
        assert "none of lz4, zstd, none" in str(error)


def test_views_of_texts_are_sent_as_they_are_on_request(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} AS SELECT value AS id, 'a text of number ' || value AS words FROM range(0, 20000)")
    sql = f"SELECT * FROM {table} ORDER BY id"
    cursor.execute(sql)
    plain = cursor.fetch_arrow_table()
    header = {"adbc.flight.sql.rpc.call_header.terrace-view-types": "keep"}
    with flight_sql.connect(uri, db_kwargs=header, autocommit=True) as connection, connection.cursor() as keeping:
        keeping.execute(sql)
        kept = keeping.fetch_arrow_table()
    assert (plain.schema.field("words").type, kept.schema.field("words").type) == (pa.string(), pa.string_view())
    assert kept.to_pydict() == plain.to_pydict()


def test_what_there_is_not_is_refused_by_name(uri):
    with flight_sql.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        for sql, words in [
            ("CREATE TEMPORARY TABLE for_now (a BIGINT)", "Temporary tables not supported"),
            ("CREATE TEMPORARY VIEW for_now AS SELECT 1 AS a", "temporary views are not supported"),
            ("CREATE DATABASE other", "there is one catalog"),
            ("SELECT * FROM other.public.for_now", "other"),
            # The driver sends bytes as a plan of Substrait.
            (b"\x0a\x00", "Substrait plans are not supported"),
        ]:
            assert words in str(error_of(lambda sql=sql: execute(cursor, sql))), sql


def test_a_timestamp_without_zone_stays_without(cursor):
    cursor.execute("SELECT CAST('2024-01-01T00:00:00' AS TIMESTAMP) AS t")
    assert cursor.fetch_arrow_table().schema.field("t").type.tz is None


def test_strings_are_plain_and_columns_are_described(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT NOT NULL, name VARCHAR)")
    execute(cursor, f"INSERT INTO {table} VALUES (1, 'a string longer than twelve bytes'), (2, NULL)")
    cursor.execute(f"SELECT id, name FROM {table} ORDER BY id")
    result = cursor.fetch_arrow_table()
    assert result.schema.field("name").type == pa.string()
    assert result.schema.field("id").metadata[b"ARROW:FLIGHT:SQL:TYPE_NAME"] == b"BIGINT"
    assert result.column("name").to_pylist() == ["a string longer than twelve bytes", None]


def test_an_empty_result_has_a_schema(cursor):
    cursor.execute("SELECT 1 AS a, 'x' AS b WHERE false")
    result = cursor.fetch_arrow_table()
    assert result.num_rows == 0
    assert result.schema.names == ["a", "b"]


def test_parameters(cursor):
    cursor.execute("SELECT CAST($1 AS BIGINT) + 1 AS n, CAST($2 AS VARCHAR) AS s", (41, "forty-two"))
    assert cursor.fetchone() == (42, "forty-two")
    cursor.execute("SELECT CAST($1 AS BIGINT) + 1 AS n, CAST($2 AS VARCHAR) AS s", (None, None))
    assert cursor.fetchone() == (None, None)


def test_parameters_in_a_filter(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT, name VARCHAR)")
    execute(cursor, f"INSERT INTO {table} VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    cursor.execute(f"SELECT name FROM {table} WHERE id = $1", (2,))
    assert cursor.fetchall() == [("two",)]
    cursor.execute(f"SELECT id FROM {table} WHERE name > $1 ORDER BY id", ("p",))
    assert cursor.fetchall() == [(2,), (3,)]


def test_one_insert_per_row_of_parameters(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT, name VARCHAR)")
    cursor.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(1, "a"), (2, None), (3, "c")])
    assert cursor.rowcount == 3
    cursor.execute(f"SELECT * FROM {table} ORDER BY id")
    assert cursor.fetchall() == [(1, "a"), (2, None), (3, "c")]


def test_a_change_sent_as_a_query_happens_exactly_once(cursor, table):
    execute(cursor, f"CREATE TABLE {table} AS SELECT 1 AS id")
    cursor.execute(f"INSERT INTO {table} VALUES (2), (3)")  # the answer is never read
    cursor.execute(f"SELECT count(*) FROM {table}")
    assert cursor.fetchone() == (3,)


def test_a_change_sent_as_an_update_reports_its_rows(connection, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT)")
    with adbc_driver_manager.AdbcStatement(connection.adbc_connection) as statement:
        statement.set_sql_query(f"INSERT INTO {table} VALUES (1), (2)")
        assert statement.execute_update() == 2


def test_the_schema_of_a_query_is_known_without_running_it(cursor, table):
    schema = cursor.adbc_execute_schema("SELECT 1 AS a, 'x' AS b")
    assert schema.names == ["a", "b"]
    execute(cursor, f"CREATE TABLE {table} (id BIGINT)")
    error = error_of(lambda: cursor.adbc_execute_schema(f"INSERT INTO {table} VALUES (1)"))
    assert error.status_code.name == "NOT_IMPLEMENTED", "an update has no result schema"
    cursor.execute(f"SELECT count(*) FROM {table}")
    assert cursor.fetchone() == (0,)


def test_a_large_result_arrives_whole(cursor):
    rows = 3_000_000
    cursor.execute(f"SELECT value AS n, concat('row number ', value) AS s FROM generate_series(1, {rows})")
    result = cursor.fetch_arrow_table()
    assert result.num_rows == rows
    assert pa.compute.sum(result.column("n")).as_py() == rows * (rows + 1) // 2
    assert max(batch.nbytes for batch in result.to_batches()) < 4 << 20


def test_wide_rows_arrive(cursor):
    cursor.execute("SELECT repeat('x', 3000000) AS wide FROM generate_series(1, 20)")
    assert [len(value) for (value,) in cursor.fetchall()] == [3_000_000] * 20


@pytest.mark.parametrize(
    ("sql", "status", "text"),
    [
        ("SELEC 1", "INVALID_ARGUMENT", "SELEC"),
        ("SELECT no_such_column FROM system.tiers", "INVALID_ARGUMENT", "no_such_column"),
        ("SELECT * FROM no_such_table", "NOT_FOUND", "no_such_table"),
        ("SELECT no_such_function(1)", "INVALID_ARGUMENT", "no_such_function"),
        (" ", "INVALID_ARGUMENT", "empty"),
    ],
)
def test_errors_say_what_is_wrong(cursor, sql, status, text):
    error = error_of(lambda: execute(cursor, sql))
    assert error.status_code.name == status
    assert text in str(error)
    assert "Error {" not in str(error) and "DataFusionError" not in str(error), "no debug dump"
    cursor.execute("SELECT 1")
    assert cursor.fetchone() == (1,), "the connection goes on"


def test_an_error_while_running_reaches_the_client(cursor):
    error = error_of(lambda: execute(cursor, "SELECT 1 / (value - value) FROM generate_series(1, 10)"))
    assert "zero" in str(error).lower()


def test_a_connection_sees_its_own_changes(connection, table):
    with connection.cursor() as one, connection.cursor() as two:
        for expected in range(1, 6):
            execute(one, f"CREATE TABLE IF NOT EXISTS {table} (id BIGINT)")
            execute(one, f"INSERT INTO {table} VALUES ({expected})")
            two.execute(f"SELECT count(*) FROM {table}")
            assert two.fetchone() == (expected,)
