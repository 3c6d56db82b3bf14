"""Enforced primary keys, through ADBC."""

import threading

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa
import pytest

from helpers import affected, error_of, execute

ON = "WITH (enforce_primary_key = 'true')"


def refused(action, words):
    """`action` must end with the error of a duplicate key that says `words`."""
    error = error_of(action)
    assert error.status_code.name == "ALREADY_EXISTS", error
    assert "duplicate key in table" in str(error) and words in str(error), error


def ids(cursor, table):
    return [row[0] for row in execute(cursor, f"SELECT id FROM {table} ORDER BY id")]


@pytest.fixture
def keyed(cursor, table):
    """A table with an enforced key, of small chunks, and the keys 0 to 99."""
    execute(cursor, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, v VARCHAR) "
                    "WITH (enforce_primary_key = 'true', chunk_rows = 20)")
    execute(cursor, f"INSERT INTO {table} SELECT value, 'v' || value FROM generate_series(0, 99)")
    return table


def test_duplicates_are_refused_wherever_the_other_one_is(cursor, keyed):
    refused(lambda: execute(cursor, f"INSERT INTO {keyed} VALUES (200, 'a'), (201, 'b'), (200, 'c')"),
            "(id) = (200) is given twice")
    refused(lambda: execute(cursor, f"INSERT INTO {keyed} VALUES (200, 'a'), (17, 'b')"), "(id) = (17) exists already")
    execute(cursor, f"INSERT INTO {keyed} VALUES (300, 'in the delta')")
    refused(lambda: execute(cursor, f"INSERT INTO {keyed} VALUES (300, 'b')"), "(id) = (300) exists already")
    cursor.executemany(f"INSERT INTO {keyed} VALUES (?, ?)", [(301, "a"), (302, "b")])
    refused(lambda: cursor.executemany(f"INSERT INTO {keyed} VALUES (?, ?)", [(303, "a"), (302, "b")]), "(302)")
    execute(cursor, f"OPTIMIZE {keyed}")
    refused(lambda: execute(cursor, f"INSERT INTO {keyed} VALUES (302, 'b')"), "(id) = (302) exists already")
    assert error_of(lambda: execute(cursor, f"INSERT INTO {keyed} (v) VALUES ('b')")).status_code.name == "INVALID_ARGUMENT"
    assert ids(cursor, keyed) == [*range(100), 300, 301, 302]


def test_changes_count_their_own_deletions(cursor, keyed):
    assert affected(cursor, f"UPDATE {keyed} SET id = id + 1") == 100
    refused(lambda: execute(cursor, f"UPDATE {keyed} SET id = id + 1 WHERE id < 50"), "(id) = (50) exists already")
    assert affected(cursor, f"UPDATE {keyed} SET id = 101 - id") == 100
    refused(lambda: execute(cursor, f"UPDATE {keyed} SET id = 7"), "(id) = (7) is given twice")
    assert affected(cursor, f"DELETE FROM {keyed} WHERE id > 50") == 50
    assert affected(cursor, f"INSERT INTO {keyed} SELECT value, 'again' FROM generate_series(51, 100)") == 50
    merge = (f"MERGE INTO {keyed} AS t USING (SELECT value AS id FROM generate_series(91, 110)) AS s ON t.id = s.id "
             "WHEN MATCHED THEN UPDATE SET v = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged')")
    assert affected(cursor, merge) == 20
    refused(lambda: execute(cursor, merge.replace("t.id = s.id", "t.id = s.id + 5")), "(id) = (106)")
    assert ids(cursor, keyed) == list(range(1, 111))


def test_bulk_ingest_is_all_or_nothing(cursor, keyed):
    rows = lambda keys: pa.table({"id": pa.array(keys, pa.int64()), "v": ["x"] * len(keys)})
    refused(lambda: cursor.adbc_ingest(keyed, rows([*range(1_000, 3_000), 55]), mode="append"), "(55) exists already")
    refused(lambda: cursor.adbc_ingest(keyed, rows([*range(1_000, 3_000), 2_000]), mode="append"), "(2000) is given twice")
    assert ids(cursor, keyed) == list(range(100))
    assert cursor.adbc_ingest(keyed, rows(list(range(3_000, 1_000, -1))), mode="append") == 2_000
    assert ids(cursor, keyed) == [*range(100), *range(1_001, 3_001)]
    new = f"{keyed}_n"
    error = error_of(lambda: execute(cursor, f"CREATE TABLE {new} (id INT) {ON}"))
    assert "has no primary key" in str(error)
    refused(lambda: execute(cursor, f"CREATE TABLE {new} (id INT PRIMARY KEY) {ON} AS VALUES (1), (2), (1)"), "(1)")
    assert "does not exist" in str(error_of(lambda: execute(cursor, f"SELECT * FROM {new}")))


def test_strings_and_several_columns(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (tenant VARCHAR, day DATE, n INT, PRIMARY KEY (tenant, day)) {ON}")
    long = "x" * 100
    execute(cursor, f"INSERT INTO {table} VALUES ('a', '2026-01-01', 1), ('a', '2026-01-02', 2), ('{long}1', '2026-01-01', 3)")
    execute(cursor, f"OPTIMIZE {table}")
    execute(cursor, f"INSERT INTO {table} VALUES ('b', '2026-01-01', 1), ('{long}2', '2026-01-01', 1), ('', '2026-01-01', 1)")
    for key, shown in [(("a", "2026-01-02"), "(a, 2026-01-02)"), ((long + "1", "2026-01-01"), long + "1"), (("", "2026-01-01"), "(, 2026")]:
        refused(lambda: execute(cursor, f"INSERT INTO {table} VALUES ($1, $2::date, 9)", key), "(tenant, day) = ")
        refused(lambda: execute(cursor, f"INSERT INTO {table} VALUES ('{key[0]}', '{key[1]}', 9)"), shown)
    assert execute(cursor, f"SELECT count(*) FROM {table}") == [(6,)]


def test_transactions_and_two_connections(uri, cursor, keyed):
    with flight_sql.connect(uri, autocommit=False) as one, flight_sql.connect(uri, autocommit=False) as two:
        with one.cursor() as first, two.cursor() as second:
            execute(first, f"DELETE FROM {keyed} WHERE id = 5")
            refused(lambda: execute(first, f"INSERT INTO {keyed} VALUES (6, 'x')"), "(6)")
            execute(first, f"INSERT INTO {keyed} VALUES (5, 'new'), (500, 'one')")
            execute(second, f"INSERT INTO {keyed} VALUES (500, 'two')")
            one.commit()
            refused(two.commit, "(id) = (500) exists already")
    assert execute(cursor, f"SELECT v FROM {keyed} WHERE id IN (5, 500) ORDER BY id") == [("new",), ("one",)]


def test_racing_connections_add_each_key_once(uri, cursor, keyed):
    added, failures = [], []

    def work(worker):
        try:
            with flight_sql.connect(uri, autocommit=True) as connection, connection.cursor() as mine:
                for key in range(1_000, 1_060):
                    try:
                        execute(mine, f"INSERT INTO {keyed} VALUES ({key}, 'w{worker}')")
                        added.append(key)
                    except Exception as error:
                        assert "duplicate key" in str(error), error
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [worker.start() for worker in workers]
    for _ in range(10):
        execute(cursor, f"OPTIMIZE {keyed}")
    [worker.join() for worker in workers]
    assert not failures and sorted(added) == list(range(1_000, 1_060))
    assert ids(cursor, keyed) == [*range(100), *range(1_000, 1_060)]


def test_the_setting_is_checked_and_shown(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    shown = f"SELECT enforced FROM information_schema.table_constraints WHERE table_name = '{table}'"
    execute(cursor, f"INSERT INTO {table} VALUES (1, 1), (2, 2), (1, 3)")
    enforce = f"ALTER TABLE {table} SET (enforce_primary_key = true)"
    refused(lambda: execute(cursor, enforce), "(id) = (1) occurs more than once")
    assert execute(cursor, shown) == [("NO",)]
    execute(cursor, f"DELETE FROM {table} WHERE v = 3")
    execute(cursor, enforce)
    assert execute(cursor, shown) == [("YES",)]
    definition = execute(cursor, f"SHOW CREATE TABLE {table}")[0][3]
    assert "PRIMARY KEY" in definition and "enforce_primary_key = 'true'" in definition
    refused(lambda: execute(cursor, f"INSERT INTO {table} VALUES (2, 9)"), "(2)")
    assert "primary key" in str(error_of(lambda: execute(cursor, f"ALTER TABLE {table} DROP COLUMN id")))
    execute(cursor, f"ALTER TABLE {table} RENAME COLUMN id TO k")
    refused(lambda: execute(cursor, f"INSERT INTO {table} VALUES (2, 9)"), "(k) = (2)")
    execute(cursor, f"ALTER TABLE {table} DROP COLUMN k CASCADE")
    assert execute(cursor, shown) == []


def test_keys_are_enforced_after_a_kill_and_a_restart(start_server):
    server = start_server()
    server.query(f"CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR) {ON}")
    server.query("INSERT INTO t SELECT value, 'x' FROM generate_series(1, 100000)")
    server.query("INSERT INTO t VALUES (200000, 'delta')")
    server.kill()
    server = start_server()
    for key in (77_777, 200_000):
        refused(lambda: server.query(f"INSERT INTO t VALUES ({key}, 'y')"), f"({key}) exists already")
    server.query("INSERT INTO t VALUES (100001, 'y')")
    assert server.stop() == 0
    server = start_server()
    refused(lambda: server.query("INSERT INTO t VALUES (100001, 'y')"), "(100001) exists already")
    assert server.query("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 100_002}]
