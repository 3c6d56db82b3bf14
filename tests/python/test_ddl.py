"""Definitions that change: ALTER TABLE, defaults, comments, and what is shown of them, across restarts and with files."""

import threading

import adbc_driver_manager
import pyarrow as pa
import pyarrow.ipc
import pytest

from helpers import error_of, execute


def rows(server, sql):
    return [tuple(row.values()) for row in server.query(sql).to_pylist()]


def run(server, *statements):
    with server.connect() as connection, connection.cursor() as cursor:
        for sql in statements:
            execute(cursor, sql)


def files(server):
    return {path: path.read_bytes() for path in sorted((server.data_dir / "ssd").rglob("*.arrow"))}


def test_alter_writes_no_file_and_old_files_stay_readable(start_server):
    server = start_server()
    run(server, "CREATE TABLE t WITH (chunk_rows = 1000) AS SELECT value AS a, value * 2 AS b, NULLIF('text', '') AS c "
                "FROM generate_series(1, 5000)")
    before = files(server)
    assert len(before) == 5
    run(server,
        "ALTER TABLE t ADD COLUMN d INT NOT NULL DEFAULT 40 + 2, DROP COLUMN b",
        "ALTER TABLE t RENAME COLUMN a TO key",
        "INSERT INTO t (key) VALUES (5001)")
    expected = [(5001, 12507501, 5001 * 42, 5000)]
    all_rows = "SELECT count(*), sum(key), sum(d), count(c) FROM t"
    assert rows(server, all_rows) == expected
    # Chunks whose column is a constant are pruned by it, moved without it, and counted without it.
    assert rows(server, "SELECT count(*) FROM t WHERE d <> 42") == [(0,)]
    assert rows(server, "SELECT column_name, count(*) FROM system.segments GROUP BY 1 ORDER BY 1") == [("c", 5), ("key", 5)]
    for budget in ("0", "60 KiB", "1 GiB"):
        server.budget("dram", budget)
        server.epoch()
        assert rows(server, all_rows) == expected
    assert files(server) == before
    assert server.stop() == 0
    server = start_server()
    assert rows(server, all_rows) == expected
    for path in before:
        with pa.ipc.open_file(path) as file:
            assert file.schema.names == ["a", "b", "c"]
            assert file.get_batch(0).num_rows == 1000
    run(server, "ALTER TABLE t ADD COLUMN b VARCHAR", "INSERT INTO t VALUES (5002, 'c', 1, 'b')")
    assert rows(server, "SELECT b, count(*) FROM t GROUP BY b ORDER BY b NULLS FIRST") == [(None, 5001), ("b", 1)]


def test_a_killed_server_has_the_last_alter_whole(start_server):
    server = start_server()
    run(server, "CREATE TABLE t (a BIGINT)", "INSERT INTO t VALUES (1)")
    for n in range(5):
        run(server, f"ALTER TABLE t ADD COLUMN c{n} BIGINT DEFAULT {n}", f"INSERT INTO t (a) VALUES ({n + 2})")
        server.kill()
        server = start_server()
        (row,) = rows(server, f"SELECT count(*), min(c{n}), max(c{n}), count(c{n}) FROM t")
        assert row == (n + 2, n, n, n + 2)


def test_inserts_queries_and_ingest_while_columns_come_and_go(start_server):
    server = start_server()
    run(server, "CREATE TABLE t (a BIGINT NOT NULL) WITH (chunk_rows = 500)")
    done, stored, errors = threading.Event(), [0, 0], []

    def insert():
        with server.connect() as connection, connection.cursor() as cursor:
            while not done.is_set():
                try:
                    execute(cursor, "INSERT INTO t (a) VALUES (1)")
                    stored[0] += 1
                except adbc_driver_manager.Error as error:
                    if "was changed concurrently" not in str(error):
                        errors.append(error)

    def ingest():
        batch = pa.table({"a": pa.array([2] * 700, pa.int64())})
        with server.connect() as connection, connection.cursor() as cursor:
            while not done.is_set():
                try:
                    cursor.adbc_ingest("t", batch, mode="append")
                    stored[1] += 700
                except adbc_driver_manager.Error as error:
                    if "was changed concurrently" not in str(error):
                        errors.append(error)

    def read():
        with server.connect() as connection, connection.cursor() as cursor:
            while not done.is_set():
                try:
                    cursor.execute("SELECT * FROM t")
                    for batch in cursor.fetch_record_batch():
                        for name in batch.schema.names[1:]:
                            if set(batch[name].unique().to_pylist()) - {7}:
                                errors.append(f"{name} has {batch[name].unique()}")
                except (adbc_driver_manager.Error, OSError) as error:
                    # Altered between planning and running.
                    if "prepare it again" not in str(error):
                        errors.append(error)

    threads = [threading.Thread(target=target) for target in (insert, ingest, read)]
    for thread in threads:
        thread.start()
    for n in range(25):
        run(server, f"ALTER TABLE t ADD COLUMN c{n} INT NOT NULL DEFAULT 7")
        if n % 3 == 2:
            run(server, f"ALTER TABLE t DROP COLUMN c{n - 1}")
    done.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert min(stored) > 0
    counts = [(1, stored[0]), (2, stored[1])]
    assert rows(server, "SELECT a, count(*) FROM t GROUP BY a ORDER BY a") == counts
    assert server.stop() == 0
    assert rows(start_server(), "SELECT a, count(*) FROM t GROUP BY a ORDER BY a") == counts


@pytest.mark.parametrize("sql, code, words", [
    ("ALTER TABLE {t} ADD COLUMN a INT", "ALREADY_EXISTS", "a"),
    ("ALTER TABLE {t} ADD COLUMN n INT NOT NULL", "INVALID_ARGUMENT", "DEFAULT"),
    ("ALTER TABLE {t} ADD COLUMN n INT DEFAULT 'word'", "INVALID_ARGUMENT", "column 'n'"),
    ("ALTER TABLE {t} DROP COLUMN nope", "NOT_FOUND", "nope"),
    ("ALTER TABLE {t} DROP COLUMN a", "UNKNOWN", "CASCADE"),
    ("ALTER TABLE {t} RENAME COLUMN a TO b", "ALREADY_EXISTS", "b"),
    ("ALTER TABLE {t} SET (chunk_rows = 0)", "INVALID_ARGUMENT", "chunk_rows"),
    ("ALTER TABLE {t} SET (colour = 'red')", "INVALID_ARGUMENT", "colour"),
    ("ALTER TABLE {t} ALTER COLUMN b TYPE INT", "NOT_IMPLEMENTED", "CAST"),
    ("ALTER TABLE nope ADD COLUMN a INT", "NOT_FOUND", "nope"),
    ("ALTER TABLE system.tables ADD COLUMN a INT", "UNAUTHORIZED", "system"),
    ("CREATE TABLE system.mine (a INT)", "UNAUTHORIZED", "system"),
    ("CREATE TABLE information_schema.mine (a INT)", "UNAUTHORIZED", "system"),
    ("CREATE TABLE {t} (a INT)", "ALREADY_EXISTS", "OR REPLACE"),
    ("CREATE TABLE wrong (a INT DEFAULT 'word')", "INVALID_ARGUMENT", "column 'a'"),
    ("CREATE SCHEMA public", "ALREADY_EXISTS", "public"),
    ("COMMENT ON COLUMN {t}.nope IS 'x'", "NOT_FOUND", "nope"),
])
def test_errors_say_what_is_wrong(cursor, table, sql, code, words):
    execute(cursor, f"CREATE TABLE {table} (a BIGINT PRIMARY KEY, b VARCHAR)")
    execute(cursor, f"INSERT INTO {table} VALUES (1, 'x')")
    error = error_of(lambda: execute(cursor, sql.format(t=table)))
    assert (error.status_code.name, words in str(error)) == (code, True), str(error)
    assert execute(cursor, f"SELECT * FROM {table}") == [(1, "x")]


def test_defaults_apply_to_every_way_in(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (a BIGINT, b VARCHAR NOT NULL DEFAULT 'none', c INT DEFAULT 6 * 7)")
    execute(cursor, f"INSERT INTO {table} (a) VALUES (1)")
    execute(cursor, f"INSERT INTO {table} VALUES (2, DEFAULT, NULL)")
    cursor.executemany(f"INSERT INTO {table} (a, b) VALUES (?, DEFAULT)", [(3,), (4,)])
    cursor.adbc_ingest(table, pa.table({"c": pa.array([1, None], pa.int32()), "a": [5, 6]}), mode="append")
    assert execute(cursor, f"SELECT * FROM {table} ORDER BY a") == [
        (1, "none", 42), (2, "none", None), (3, "none", 42), (4, "none", 42), (5, "none", 1), (6, "none", None)]
    defaults = f"SELECT column_name, column_default FROM information_schema.columns WHERE table_name = '{table}' ORDER BY 1"
    assert execute(cursor, defaults) == [("a", None), ("b", "'none'"), ("c", "6 * 7")]


def test_show_create_table_recreates_it_after_a_restart(start_server):
    server = start_server()
    run(server,
        "CREATE SCHEMA IF NOT EXISTS s", "CREATE SCHEMA IF NOT EXISTS s",
        "CREATE TABLE s.t (a BIGINT, b VARCHAR NOT NULL DEFAULT 'x', c DECIMAL(12, 3), PRIMARY KEY (a)) "
        "WITH (cluster_by = 'b', comment = 'orders')",
        "COMMENT ON COLUMN s.t.c IS 'price'",
        "CREATE VIEW IF NOT EXISTS v AS SELECT a FROM s.t",
        "COMMENT ON VIEW v IS 'keys'")
    assert server.stop() == 0
    server = start_server()
    ((*_, text),) = rows(server, "SHOW CREATE TABLE s.t")
    described = rows(server, "DESCRIBE s.t")
    assert described == [("a", "Int64", "NO", None, None), ("b", "Utf8View", "NO", "'x'", None),
                         ("c", "Decimal128(12, 3)", "YES", None, "price")]
    run(server, "DROP TABLE s.t CASCADE")
    assert rows(server, "SHOW TABLES FROM public") == []
    run(server, text)
    assert rows(server, "DESCRIBE s.t") == described
    assert rows(server, "SHOW CREATE TABLE s.t")[0][-1] == text
    assert rows(server, "SELECT table_name, table_comment FROM information_schema.tables WHERE table_schema = 's'") == [
        ("t", "orders")]
    with server.connect() as connection:
        schema = connection.adbc_get_table_schema("t", db_schema_filter="s")
    assert schema.field("c").metadata[b"ARROW:FLIGHT:SQL:REMARKS"] == b"price"
    run(server, "DROP SCHEMA s CASCADE", "DROP SCHEMA IF EXISTS s")
    assert ("terrace", "s") not in rows(server, "SHOW SCHEMAS")


def test_a_view_without_its_table_hides_nothing(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (a INT)")
    execute(cursor, f"CREATE OR REPLACE VIEW {table}_v AS SELECT a FROM {table}")
    execute(cursor, f"DROP TABLE {table}")
    listed = execute(cursor, f"SELECT table_name FROM information_schema.views WHERE table_name = '{table}_v'")
    assert listed == [(f"{table}_v",)]
    assert execute(cursor, "SELECT count(*) > 0 FROM information_schema.columns") == [(True,)]
    assert error_of(lambda: execute(cursor, f"DESCRIBE {table}_v")).status_code.name == "NOT_FOUND"
    execute(cursor, f"DROP VIEW {table}_v")
