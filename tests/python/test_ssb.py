"""The Star Schema Benchmark at scale 0.1: all 13 answers equal DuckDB's, in DRAM, on SSD and at random places.

At this scale every query selects rows, the most selective one (3.4) a single line of 600,572.
"""

import pathlib
import random

import duckdb
import pytest

from server import Server, terrace
from test_tpch import place

FOLDER = pathlib.Path(__file__).parents[2] / "server/src/ssb"
QUERIES = {path.stem.removeprefix("q"): path.read_text() for path in sorted(FOLDER.glob("q*.sql"))}
ROWS = {"customer": 3_000, "date": 2_557, "lineorder": 600_572, "part": 20_000, "supplier": 200}
SEED = 20261121


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("ssb")
    terrace("load", "ssb:0.1", "--data-dir", data)
    with Server(data, "--dram-budget", "1GiB", "--nvm-emulated", "--nvm-capacity", "256MiB") as running:
        yield running


@pytest.fixture(scope="module")
def expected(server):
    return duckdb_answers(server)


def duckdb_answers(server):
    """DuckDB's answers over the server's tables."""
    oracle = duckdb.connect()
    for name, count in ROWS.items():
        table = server.query(f"select * from {name}")
        assert table.num_rows == count, name
        oracle.register(f"{name}_arrow", table)
        oracle.execute(f"create table {name} as from {name}_arrow")
    answers = {name: oracle.execute(sql).fetchall() for name, sql in QUERIES.items()}
    # A sum over no rows is a row, too.
    assert len(answers) == 13 and all(rows and rows[0][0] is not None for rows in answers.values()), answers
    return answers


def check_all(server, expected):
    """All answers, row by row: each query orders by all of its groups or by a sum that differs between them."""
    for name, sql in QUERIES.items():
        table = server.query(sql)
        found = list(zip(*(column.to_pylist() for column in table.columns)))
        assert found == expected[name], f"query {name}"


def test_all_in_dram(server, expected):
    place(server, "1GiB", 0)
    check_all(server, expected)
    # On a busy machine the loop gives up some moves, and makes them in a later epoch.
    placed = place(server, "1GiB", 0)
    assert placed["dram"] > 10 * max(placed["ssd"], 1), placed
    check_all(server, expected)


def test_all_on_ssd(server, expected):
    placed = place(server, 0, 0)
    assert placed["dram"] == 0 and placed["nvm"] == 0, placed
    check_all(server, expected)


def test_at_random_places(server, expected):
    draw = random.Random(SEED)
    for _ in range(2):
        budgets = draw.randrange(1 << 20, 6 << 20), draw.randrange(0, 2 << 20)
        placed = place(server, *budgets)
        assert placed["ssd"] > 0, (SEED, budgets, placed)
        check_all(server, expected)


def test_a_load_into_a_server_goes_on_where_it_ended(tmp_path):
    with Server(tmp_path / "data") as server:
        options = ["ssb:0.01", "--resume", "--part-rows", "7000", "--url", f"grpc://{server.flight}"]
        terrace("load", *options)
        sums = "select count(*) as n, sum(lo_revenue) as x, count(distinct lo_orderdate) as d from lineorder"
        before = server.query(sums)
        server.query("drop table lineorder")
        again = terrace("load", *options)
        assert again.stderr.count("is complete") == 4, again.stderr
        assert server.query(sums) == before
        tables = server.query("select table_name, cluster_by from system.tables where table_schema = 'public'")
        found = dict(zip(tables["table_name"].to_pylist(), tables["cluster_by"].to_pylist()))
        assert set(found) == set(ROWS) and found["lineorder"] == "lo_orderdate", found
        refused = terrace("load", "ssb:0.01", "--table", "t", "--url", f"grpc://{server.flight}", check=False)
        assert refused.returncode != 0 and "5 tables" in refused.stderr, refused.stderr
