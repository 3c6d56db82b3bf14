"""Statements that change rows, and transactions, through ADBC; DuckDB says what is right."""

import threading

import adbc_driver_flightsql.dbapi as flight_sql
import duckdb
import pyarrow as pa
import pytest

import fuzz_writes
from helpers import affected, error_of, execute

ROWS = [(k, f"v{k}" if k % 4 else None, k * 10) for k in range(1, 13)]


@pytest.fixture
def both(cursor, table):
    """The same table here and in DuckDB, with a second one to look into."""
    duck = duckdb.connect()
    other = f"{table}_o"
    for name, rows in [(table, ROWS), (other, [(2, "two", 1), (3, None, 2), (None, "none", 3), (40, "forty", 4)])]:
        create = f"CREATE TABLE {name} (k INTEGER, v VARCHAR, n INTEGER)"
        values = ", ".join("(" + ", ".join("NULL" if x is None else repr(x) for x in row) + ")" for row in rows)
        for run in (duck.execute, lambda sql: execute(cursor, sql)):
            run(create)
            run(f"INSERT INTO {name} VALUES {values}")
    yield lambda sql: sql.replace("{t}", table).replace("{o}", other), duck
    execute(cursor, f"DROP TABLE IF EXISTS {other}")


@pytest.mark.parametrize("sql", [
    "DELETE FROM {t} WHERE k IN (SELECT k FROM {o})",
    "DELETE FROM {t} WHERE k NOT IN (SELECT k FROM {o})",
    "DELETE FROM {t} WHERE EXISTS (SELECT 1 FROM {o} WHERE {o}.k = {t}.k)",
    "DELETE FROM {t} WHERE NOT EXISTS (SELECT 1 FROM {o} AS i WHERE i.k = {t}.k)",
    "DELETE FROM {t} WHERE n > (SELECT avg(n) FROM {t})",
    "DELETE FROM {t} USING {o} WHERE {t}.k = {o}.k",
    "DELETE FROM {t} WHERE v IS NULL OR k = 1",
    "DELETE FROM {t}",
    "UPDATE {t} SET n = n + 1",
    "UPDATE {t} SET v = (SELECT max(v) FROM {o} WHERE {o}.k = {t}.k)",
    "UPDATE {t} SET n = (SELECT sum(n) FROM {t} AS i WHERE i.k = {t}.k + 1) WHERE k < 6",
    "UPDATE {t} SET v = {o}.v FROM {o} WHERE {t}.k = {o}.k",
    "UPDATE {t} SET k = n, n = k WHERE k % 2 = 0",
    "MERGE INTO {t} USING {o} AS s ON {t}.k = s.k WHEN MATCHED AND s.v IS NULL THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.v, s.n)",
    "MERGE INTO {t} USING {o} AS s ON {t}.k = s.k WHEN NOT MATCHED BY SOURCE AND {t}.n > 60 THEN DELETE",
    "WITH big AS (SELECT k FROM {t} WHERE n > 70) DELETE FROM {t} WHERE k IN (SELECT k FROM big)",
])
def test_changes_agree_with_duckdb(cursor, both, sql):
    named, duck = both
    expected = duck.execute(named(sql)).fetchone()[0]
    assert affected(cursor, named(sql)) == expected
    question = named("SELECT * FROM {t} ORDER BY k NULLS FIRST, n")
    assert execute(cursor, question) == duck.execute(question).fetchall()


def test_row_counts_reach_the_driver(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (a BIGINT)")
    cursor.executemany(f"INSERT INTO {table} VALUES (?)", [(n,) for n in range(10)])
    cursor.adbc_statement.set_sql_query(f"UPDATE {table} SET a = a + 1 WHERE a > 6")
    assert cursor.adbc_statement.execute_update() == 3
    cursor.executemany(f"DELETE FROM {table} WHERE a = ?", [(1,), (2,), (2,), (99,)])
    assert execute(cursor, f"SELECT count(*) FROM {table}") == [(8,)]
    assert affected(cursor, f"UPDATE {table} SET a = $1 WHERE a = $2", (70, 3)) == 1


def test_a_large_update_rewrites_every_row_once(cursor, table):
    rows = pa.table({"k": pa.array(range(300_000), pa.int64()), "s": pa.array(["some text"] * 300_000)})
    cursor.adbc_ingest(table, rows, mode="create")
    assert affected(cursor, f"UPDATE {table} SET k = k + 1, s = 'other'") == 300_000
    assert execute(cursor, f"SELECT count(*), count(DISTINCT k), sum(k), min(s) FROM {table}") == [
        (300_000, 300_000, sum(range(1, 300_001)), "other")]
    assert affected(cursor, f"DELETE FROM {table} WHERE k % 3 = 0") == 100_000
    assert execute(cursor, f"SELECT count(*), max(k) FROM {table}") == [(200_000, 299_999)]
    assert affected(cursor, f"TRUNCATE TABLE {table}") == 200_000
    assert execute(cursor, f"SELECT count(*) FROM {table}") == [(0,)]
    chunks = f"SELECT chunks, deleted_rows FROM system.tables WHERE table_name = '{table}'"
    assert execute(cursor, chunks) == [(0, 0)]


def test_transactions_of_the_driver(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k BIGINT, v VARCHAR)")
    execute(cursor, f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    count = f"SELECT count(*) FROM {table}"
    with flight_sql.connect(uri) as transaction, transaction.cursor() as inside:
        assert execute(inside, count) == [(2,)]
        execute(inside, f"DELETE FROM {table} WHERE k = 1")
        inside.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(10, "p"), (11, "q")])
        assert execute(inside, count) == [(3,)]
        assert execute(cursor, count) == [(2,)], "nobody else sees it"
        transaction.rollback()
        assert execute(inside, count) == [(2,)]
        execute(inside, f"UPDATE {table} SET v = 'mine' WHERE k = 2")
        execute(cursor, f"INSERT INTO {table} VALUES (3, 'c')")
        assert execute(inside, count) == [(2,)], "the snapshot stays"
        transaction.commit()
        assert execute(cursor, f"SELECT v FROM {table} ORDER BY k") == [("a",), ("mine",), ("c",)]
        execute(inside, f"UPDATE {table} SET v = 'late' WHERE k = 2")
        execute(cursor, f"UPDATE {table} SET v = 'first' WHERE k = 2")
        error = error_of(transaction.commit)
        assert table in str(error) and "again" in str(error)
        assert execute(cursor, f"SELECT v FROM {table} WHERE k = 2") == [("first",)]


def test_definitions_of_a_transaction_commit_by_themselves(uri, cursor, table):
    with flight_sql.connect(uri) as transaction, transaction.cursor() as inside:
        assert inside.adbc_ingest(table, pa.table({"k": [1, 2, 3]}), mode="create") == 3
        execute(inside, f"DELETE FROM {table} WHERE k = 1")
        transaction.rollback()
        execute(inside, f"ALTER TABLE {table} ADD COLUMN v VARCHAR DEFAULT 'new'")
        execute(inside, f"UPDATE {table} SET v = concat(v, '!') WHERE k = 2")
        transaction.commit()
    assert execute(cursor, f"SELECT * FROM {table} ORDER BY k") == [(1, "new"), (2, "new!"), (3, "new")]


def test_a_connection_that_goes_away_leaves_no_change(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k BIGINT)")
    with flight_sql.connect(uri) as transaction, transaction.cursor() as inside:
        execute(inside, f"INSERT INTO {table} VALUES (1)")
        error = error_of(lambda: execute(inside, f"CREATE TABLE {table}_x (k BIGINT)"))
        assert "transaction" in str(error)
    assert execute(cursor, f"SELECT count(*) FROM {table}") == [(0,)]


def test_concurrent_transfers_keep_the_total(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT, n BIGINT) WITH (chunk_rows = 5)")
    execute(cursor, f"INSERT INTO {table} SELECT value, 100 FROM generate_series(1, 20)")
    done, conflicts, wrong = [], [], []

    def transfer(worker):
        for turn in range(12):
            one, two = (worker * 7 + turn) % 20 + 1, (worker * 3 + turn * 5) % 20 + 1
            # The driver cannot go on after a commit that failed: it connects anew.
            with flight_sql.connect(uri) as connection, connection.cursor() as inside:
                execute(inside, f"UPDATE {table} SET n = n - 1 WHERE id = {one}")
                execute(inside, f"UPDATE {table} SET n = n + 1 WHERE id = {two}")
                try:
                    connection.commit()
                    done.append((one, two))
                except flight_sql.Error as error:
                    conflicts.append(str(error))

    def watch(stop):
        with flight_sql.connect(uri, autocommit=True) as connection, connection.cursor() as reader:
            while not stop.is_set():
                if (seen := execute(reader, f"SELECT count(*), sum(n) FROM {table}")) != [(20, 2000)]:
                    wrong.append(seen)

    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(stop,))
    workers = [threading.Thread(target=transfer, args=(n,)) for n in range(4)]
    for thread in [watcher, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    watcher.join()
    assert not wrong, "a reader saw half of a transfer"
    assert done and all("changed" in text for text in conflicts), conflicts
    expected = {n: 100 for n in range(1, 21)}
    for one, two in done:
        expected[one] -= 1
        expected[two] += 1
    assert dict(execute(cursor, f"SELECT id, n FROM {table}")) == expected


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_random_changes_agree_with_duckdb(tmp_path, seed):
    assert fuzz_writes.run(tmp_path / "data", seed, statements=120, seconds=90) > 0


def test_strings_with_quotes_mean_the_same_in_changes_as_in_queries(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k INT, s VARCHAR DEFAULT 'a''''b')")
    texts = ["plain", "two: '' end", "\\", "\\'", "it's", "'", "''", "\\' OR 1=1 --", "\\'' OR 1=1 --"]

    def quoted(text):
        return "'" + text.replace("'", "''") + "'"

    for key, text in enumerate(texts):
        affected(cursor, f"INSERT INTO {table} VALUES ({key}, {quoted(text)})")
    for key, text in enumerate(texts):
        assert affected(cursor, f"UPDATE {table} SET k = k + 100 WHERE s = {quoted(text)}") == 1, text
        assert affected(cursor, f"UPDATE {table} SET s = {quoted(text)} WHERE k = {key + 100}") == 1, text
        source = f"(SELECT {quoted(text)} AS s) AS d ON {table}.s = d.s AND d.s = {quoted(text)}"
        merge = f"MERGE INTO {table} USING {source} WHEN MATCHED THEN UPDATE SET s = {quoted(text)}"
        assert affected(cursor, merge) == 1, text
    assert execute(cursor, f"SELECT k, s FROM {table} ORDER BY k") == [(k + 100, t) for k, t in enumerate(texts)]
    for left, text in zip(range(len(texts) - 1, -1, -1), texts):
        execute(cursor, f"CREATE OR REPLACE VIEW {table}_view AS SELECT * FROM {table} WHERE s = {quoted(text)}")
        assert execute(cursor, f"SELECT s FROM {table}_view") == [(text,)]
        assert affected(cursor, f"DELETE FROM {table} WHERE s = {quoted(text)}") == 1, text
        assert execute(cursor, f"SELECT count(*) FROM {table}") == [(left,)], text
    affected(cursor, f"INSERT INTO {table} (k) VALUES (1)")
    assert execute(cursor, f"SELECT s FROM {table}") == [("a''b",)]
    execute(cursor, f"DROP VIEW {table}_view")
    strange = 'a""""b'
    change = f'UPDATE {table} SET k = d."{strange}" FROM (SELECT 7 AS "{strange}") AS d'
    assert affected(cursor, change) == 1
    assert execute(cursor, f"SELECT k FROM {table}") == [(7,)]
