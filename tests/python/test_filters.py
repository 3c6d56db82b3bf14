"""Membership filters: values that are asked for again and again keep chunks from being read."""

import re
import urllib.request

import pyarrow as pa
import pytest

from server import Server

ROWS, CHUNKS = 40_000, 40


def load(server):
    # In any order, so that the bounds of every chunk hold all of them; each number is there once.
    numbers = pa.array([n * 7919 % ROWS for n in range(ROWS)], pa.int64())
    table = pa.table({"k": numbers, "s": pa.array([f"text {n.as_py()}" for n in numbers]), "x": pa.array(range(ROWS))})
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (k BIGINT, s VARCHAR, x BIGINT) WITH (chunk_rows = 1000)")
        cursor.fetchall()
        cursor.adbc_ingest("t", table, mode="append")
        cursor.execute("OPTIMIZE t")
        cursor.fetchall()
    assert server.query("SELECT count(*) AS n FROM system.chunks").to_pylist() == [{"n": CHUNKS}]


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M)[1])


def analyzed(server, sql):
    """Chunks that were read, and those that filters excluded."""
    text = str(server.query(f"EXPLAIN ANALYZE {sql}").to_pydict())
    return tuple(int(re.search(rf"{name}=(\d+)", text)[1]) for name in ("chunks_cold", "chunks_pruned_membership"))


def began_anew(server, sql):
    """Whether a run of the statement was no point statement after all, and read its chunks twice."""
    text = sql.replace("'", "''")
    return server.query(f"SELECT sum(restarts) AS n FROM system.queries WHERE sql = '{text}'").to_pylist()[0]["n"] > 0


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data", "--dram-budget", "0", "--set", "memory.filters=8MiB", "--set", "tiering.enabled=false") as server:
        load(server)
        yield server
        assert server.stop() == 0, server.output()


def test_a_value_of_an_unclustered_column_costs_a_chunk_the_third_time(server):
    for column, value in [("k", 4711), ("s", "'text 815'")]:
        sql = f"SELECT x FROM t WHERE {column} = {value}"
        reads = [analyzed(server, sql) for _ in range(3)]
        assert reads[0] == reads[1] == (CHUNKS, 0) or began_anew(server, f"EXPLAIN ANALYZE {sql}"), reads
        assert reads[2][0] <= 3 and sum(reads[2]) == CHUNKS, reads
    # A filter answers for every value, not only for the one it was built for.
    cold, excluded = analyzed(server, "SELECT x FROM t WHERE k IN (39999, 7, 20000)")
    assert cold <= 8 and cold + excluded == CHUNKS
    assert server.query("SELECT count(*) AS n FROM t WHERE k IN (39999, 7, 20000)").to_pylist() == [{"n": 3}]
    assert metric(server, "terrace_filter_segments") >= 2 * CHUNKS - 2
    assert 0 < metric(server, "terrace_filter_used_bytes") <= metric(server, "terrace_filter_budget_bytes") == 8 << 20
    assert metric(server, "terrace_filter_pruned_chunks_total") >= 2 * (CHUNKS - 3)
    shown = server.query("SELECT column_name, sum(filter_bytes) AS bytes FROM system.segments GROUP BY 1 ORDER BY 1").to_pylist()
    assert [row["bytes"] is not None for row in shown] == [True, True, False], shown
    assert sum(row["bytes"] or 0 for row in shown) == metric(server, "terrace_filter_used_bytes")


def test_parameters_of_prepared_statements_are_values(server):
    with server.connect() as connection, connection.cursor() as cursor:
        sql, pruned = "SELECT x, k FROM t WHERE k = ?", []
        for k in [4711, 4712, 4713, 4714]:
            cursor.execute(sql, (k,))
            assert [row[1] for row in cursor.fetchall()] == [k]
            pruned.append(metric(server, "terrace_filter_pruned_chunks_total"))
    # Each has another chunk, so some get their second read in vain later.
    assert (pruned[1] == 0 or began_anew(server, sql)) and pruned[2] >= CHUNKS - 5 and pruned[3] >= 2 * (CHUNKS - 5), pruned


def test_a_join_with_few_keys_reads_few_chunks(server):
    server.query("CREATE TABLE few AS SELECT CAST(column1 AS BIGINT) AS k FROM (VALUES (4711), (815))")
    sql = "SELECT count(*) AS n FROM few JOIN t ON few.k = t.k"
    for _ in range(2):
        assert server.query(sql).to_pylist() == [{"n": 2}]
    assert metric(server, "terrace_filter_pruned_chunks_total") == 0
    assert server.query(sql).to_pylist() == [{"n": 2}]
    assert metric(server, "terrace_filter_pruned_chunks_total") >= CHUNKS - 5


def test_filters_go_with_their_chunks_and_with_the_server(tmp_path):
    arguments = [tmp_path / "data", "--dram-budget", "0", "--set", "tiering.enabled=false", "--set"]
    sql = "SELECT x FROM t WHERE k = 4711"
    with Server(*arguments, "memory.filters=8MiB") as server:
        load(server)
        for _ in range(2):
            server.query(sql)
        assert metric(server, "terrace_filter_segments") >= CHUNKS - 1
        server.query("DELETE FROM t WHERE k < 39000")
        server.query("OPTIMIZE t")
        assert server.query("SELECT count(*) AS n FROM t WHERE k = 39999").to_pylist() == [{"n": 1}]
        assert metric(server, "terrace_filter_segments") <= 2
        assert server.stop() == 0, server.output()
    with Server(*arguments, "memory.filters=0") as server:
        for _ in range(4):
            server.query(sql)
        assert metric(server, "terrace_filter_segments") == 0 == metric(server, "terrace_filter_budget_bytes")
        assert server.stop() == 0, server.output()
