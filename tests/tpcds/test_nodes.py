"""TPC-DS on three nodes of one process: the answers are DuckDB's, and nodes execute parts of most queries."""

import pytest
from conftest import MEMORY
from server import Server, terrace
from test_answers import QUERIES, check, expected  # noqa: F401 - a fixture
from texts import TPCDS, without_limit

NODES = {"TERRACE_CLUSTER_NODES": "3", "TERRACE_CLUSTER_LEAST_ROWS": "0"}
# At scale 0.1 many tables have one chunk, and what reads only those stays whole.
LEAST = 50
# Their plans would lose something on the way, were they sent operator by operator and compared by all that they show: keys that are
# constant (4, 11, 31, 74, 78), casts below unions (5, 14, 71, 76, 77), levels beyond those of a message (64).
SENT = [4, 5, 11, 14, 31, 64, 71, 74, 76, 77, 78]
# Why a query may stay whole. Any other reason, such as an operator that cannot be sent or would arrive as another one, is an error.
REASONS = ("its plan has one stage", "a subquery in it may have more than one row")


@pytest.fixture(scope="module")
def nodes(parquet, tmp_path_factory):
    data = tmp_path_factory.mktemp("nodes")
    terrace("load", *sorted(parquet.glob("*.parquet")), "--data-dir", data)
    with Server(data, *MEMORY, env=NODES) as server:
        yield server


def counts(server):
    return server.query("select tasks, items from system.nodes order by node").to_pylist()


@pytest.mark.parametrize("number", QUERIES)
def test_answer_on_nodes(nodes, expected, number):  # noqa: F811 - the fixture
    want = expected(number)
    before = sum(count["tasks"] for count in counts(nodes))
    check(nodes.query(without_limit(TPCDS[number])), want, number, want.num_rows)
    if number in SENT:
        assert sum(count["tasks"] for count in counts(nodes)) > before, "it was executed as a whole"


def test_most_queries_are_executed_by_nodes(nodes):
    whole = {}
    for number, sql in TPCDS.items():
        plan = nodes.query(f"EXPLAIN {sql}")
        said = dict(zip(plan["plan_type"].to_pylist(), plan["plan"].to_pylist()))["nodes"]
        if "Stage 1" not in said:
            whole[number] = said
    assert len(TPCDS) - len(whole) >= LEAST, whole
    unexpected = {number: said for number, said in whole.items() if not any(reason in said for reason in REASONS)}
    assert not unexpected, unexpected


def test_each_node_has_its_part(nodes):
    before = counts(nodes)
    sums = nodes.query("select ss_store_sk, sum(ss_quantity) from store_sales group by ss_store_sk")
    assert sums.num_rows > 1
    after = counts(nodes)
    items = [now["items"] - then["items"] for now, then in zip(after, before)]
    assert len(items) == 3 and min(items) * 5 >= sum(items) > 0, items
