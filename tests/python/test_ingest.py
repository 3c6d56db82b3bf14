"""Bulk ingest through ADBC: every mode, and what must not happen."""

import datetime
import decimal
import itertools
import threading

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions

from helpers import error_of, eventually, execute

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": pa.array(["a", None, "c"])})


def count(cursor, table):
    return execute(cursor, f"SELECT count(*) FROM {table}")[0][0]


def test_create_makes_the_table_and_refuses_a_second_time(cursor, table):
    assert cursor.adbc_ingest(table, ROWS, mode="create") == 3
    assert execute(cursor, f"SELECT * FROM {table} ORDER BY id") == [(1, "a"), (2, None), (3, "c")]
    error = error_of(lambda: cursor.adbc_ingest(table, ROWS, mode="create"))
    assert error.status_code.name == "ALREADY_EXISTS"
    assert table in str(error)
    assert count(cursor, table) == 3


def test_append_needs_the_table(cursor, table):
    error = error_of(lambda: cursor.adbc_ingest(table, ROWS, mode="append"))
    assert error.status_code.name == "NOT_FOUND"
    cursor.adbc_ingest(table, ROWS, mode="create")
    assert cursor.adbc_ingest(table, ROWS, mode="append") == 3
    assert count(cursor, table) == 6


def test_replace_puts_rows_in_place_of_the_old(cursor, table):
    cursor.adbc_ingest(table, ROWS, mode="replace")
    other = pa.table({"x": pa.array([1.5, 2.5])})
    cursor.adbc_ingest(table, other, mode="replace")
    assert execute(cursor, f"SELECT x FROM {table} ORDER BY x") == [(1.5,), (2.5,)]


def test_create_append_does_what_is_needed(cursor, table):
    for expected in (3, 6):
        cursor.adbc_ingest(table, ROWS, mode="create_append")
        assert count(cursor, table) == expected


def test_a_stream_of_many_batches(cursor, table):
    batch = pa.record_batch({"id": pa.array(range(50_000), pa.int64()), "s": pa.array(["some text"] * 50_000)})
    reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(20)))
    assert cursor.adbc_ingest(table, reader, mode="create") == 1_000_000
    cursor.execute(f"SELECT count(*), sum(id), min(s) FROM {table}")
    assert cursor.fetchone() == (1_000_000, 20 * sum(range(50_000)), "some text")


def test_one_large_batch(uri, cursor, table):
    batch = pa.table({"id": pa.array(range(4_000_000), pa.int64())})
    # The driver refuses to send more than 16 MiB in one message unless told otherwise; the server does not mind.
    options = {DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(64 << 20)}
    with flight_sql.connect(uri, db_kwargs=options, autocommit=True) as large, large.cursor() as sender:
        assert sender.adbc_ingest(table, batch, mode="create") == 4_000_000
    assert count(cursor, table) == 4_000_000


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": pa.array(["not a number"]), "name": pa.array(["x"])}, "id"),
        ({"id": pa.array([1], pa.int64()), "name": pa.array(["x"]), "extra": pa.array([1])}, "extra"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_column(cursor, table, columns, named):
    cursor.adbc_ingest(table, ROWS, mode="create")
    # adbc.h: ADBC_STATUS_ALREADY_EXISTS where the table has another schema than the rows.
    for mode in ["append", "create_append"]:
        error = error_of(lambda mode=mode: cursor.adbc_ingest(table, pa.table(columns), mode=mode))
        assert error.status_code.name == "ALREADY_EXISTS"
        assert named in str(error)
    assert count(cursor, table) == 3


def test_a_value_that_does_not_fit_is_no_other_schema(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT NOT NULL)")
    nulls = pa.table({"id": pa.array([None], pa.int64())})
    error = error_of(lambda: cursor.adbc_ingest(table, nulls, mode="append"))
    assert error.status_code.name == "INVALID_ARGUMENT"


def test_columns_without_values_are_text_or_what_the_table_says(cursor, table):
    empty = pa.table({"k": pa.array([1], pa.int64()), "n": pa.nulls(1), "l": pa.array([[]], pa.list_(pa.null()))})
    cursor.adbc_ingest(table, empty, mode="create")
    cursor.adbc_ingest(table, empty, mode="append")
    filled = pa.table({"k": [2], "n": ["x"], "l": [["y"]]})
    cursor.adbc_ingest(table, filled, mode="append")
    assert execute(cursor, f"SELECT * FROM {table} ORDER BY k") == [(1, None, []), (1, None, []), (2, "x", ["y"])]


def test_metadata_and_extension_types_survive(cursor, table):
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    number = pa.field("k", pa.int64(), metadata={"unit": "metres"})
    rows = pa.table([uuids, pa.array([1], pa.int64())], schema=pa.schema([pa.field("u", pa.uuid()), number]))
    cursor.adbc_ingest(table, rows, mode="create")
    for sql in [f"SELECT * FROM {table}", f"SELECT u, k FROM {table} WHERE k = 1 ORDER BY k LIMIT 1"]:
        cursor.execute(sql)
        found = cursor.fetch_arrow_table()
        assert found.schema.field("u").type == pa.uuid() and found["u"].to_pylist() == rows["u"].to_pylist()
        assert found.schema.field("k").metadata[b"unit"] == b"metres"
    # What comes out goes in, without the words of the first table.
    cursor.adbc_ingest(f"{table}_2", found, mode="create")
    cursor.execute(f"SELECT * FROM {table}_2")
    assert cursor.fetch_arrow_table()["u"].to_pylist() == rows["u"].to_pylist()
    execute(cursor, f"DROP TABLE {table}_2")


def test_rows_of_a_reader_that_fails_are_not_stored_half(cursor, table):
    cursor.adbc_ingest(table, ROWS, mode="create")
    batch = ROWS.to_batches()[0]

    def batches():
        yield batch
        raise ValueError("the source broke")

    reader = pa.RecordBatchReader.from_batches(ROWS.schema, batches())
    with pytest.raises((adbc_driver_manager.Error, ValueError)):
        cursor.adbc_ingest(table, reader, mode="append")
    # The driver ends such a stream like a complete one, so what it sent before is all the server can know of.
    assert count(cursor, table) in (3, 6)


def test_a_server_killed_during_a_load_has_nothing_of_it(start_server):
    server = start_server()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("kept", ROWS, mode="create")
    batch = pa.record_batch({"id": pa.array(range(65_536), pa.int64()), "s": pa.array(["some text"] * 65_536)})

    def load():
        endless = pa.RecordBatchReader.from_batches(batch.schema, itertools.repeat(batch))
        with pytest.raises(adbc_driver_manager.Error):
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.adbc_ingest("lost", endless, mode="create")

    def files():
        return sorted((server.data_dir / "ssd").rglob("*.arrow*"))

    before = files()
    loading = threading.Thread(target=load)
    loading.start()
    eventually(lambda: len(files()) > len(before) + 5)
    server.kill()
    loading.join()
    server = start_server()
    assert server.query("SELECT count(*) AS n FROM kept")["n"].to_pylist() == [3]
    tables = server.query("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    assert tables["table_name"].to_pylist() == ["kept"]
    assert files() == before


def test_types_survive_the_way_in_and_out(cursor, table):
    rows = pa.table(
        {
            "i8": pa.array([-1, None], pa.int8()),
            "u32": pa.array([4_000_000_000, None], pa.uint32()),
            "f32": pa.array([1.5, None], pa.float32()),
            "d": pa.array([decimal.Decimal("12.34"), None], pa.decimal128(10, 2)),
            "b": pa.array([True, None]),
            "bin": pa.array([b"\x00\xff", None]),
            "date": pa.array([datetime.date(1, 1, 1), None]),
            "ts": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us")),
            "list": pa.array([[1, None, 3], None], pa.list_(pa.int64())),
            "struct": pa.array([{"a": 1, "b": "x"}, None]),
        }
    )
    cursor.adbc_ingest(table, rows, mode="create")
    cursor.execute(f"SELECT * FROM {table}")
    result = cursor.fetch_arrow_table()
    for name in rows.schema.names:
        assert result.column(name).to_pylist() == rows.column(name).to_pylist(), name
        assert result.schema.field(name).type == rows.schema.field(name).type, name
