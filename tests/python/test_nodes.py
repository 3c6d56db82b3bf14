"""Three nodes of one process: the answers to SSB and TPC-H are DuckDB's, and every node has its part in them."""

import random
import threading

import pytest

import test_ssb
import test_tpch
from server import Server, terrace

NODES = {"TERRACE_CLUSTER_NODES": "3", "TERRACE_CLUSTER_LEAST_ROWS": "0"}
SEED = 20261130
# At this scale only lineitem and orders have chunks for three nodes, and the queries without them stay whole.
LEAST_OF_TPCH = 12


def started(tmp_path_factory, data_set):
    data = tmp_path_factory.mktemp("nodes")
    terrace("load", data_set, "--data-dir", data)
    return Server(data, "--dram-budget", "1GiB", env=NODES)


@pytest.fixture(scope="module")
def ssb(tmp_path_factory):
    with started(tmp_path_factory, "ssb:0.1") as server:
        yield server


@pytest.fixture(scope="module")
def tpch(tmp_path_factory):
    with started(tmp_path_factory, "tpch:0.1") as server:
        yield server


def nodes_row(server, sql):
    """What EXPLAIN says of nodes."""
    plan = server.query(f"explain {sql}")
    return dict(zip(plan["plan_type"].to_pylist(), plan["plan"].to_pylist()))["nodes"]


def counts(server):
    return server.query("select node, tasks, items from system.nodes order by node").to_pylist()


def test_all_answers_of_ssb(ssb):
    expected = test_ssb.duckdb_answers(ssb)
    before = counts(ssb)
    test_ssb.check_all(ssb, expected)
    after = counts(ssb)
    assert [row["node"] for row in after] == [1, 2, 3]
    items = [now["items"] - then["items"] for now, then in zip(after, before)]
    assert min(items) * 5 >= sum(items) > 0, items
    # Each query has at least one stage with a task on every node.
    assert all(now["tasks"] - then["tasks"] >= 13 for now, then in zip(after, before)), (before, after)
    for name, sql in test_ssb.QUERIES.items():
        text = nodes_row(ssb, sql)
        assert "Stage 1" in text and "tasks=3" in text, f"query {name}: {text}"


def test_all_answers_of_tpch(tpch):
    expected = test_tpch.answers(tpch)
    test_tpch.check_all(tpch, expected)
    said = {number: nodes_row(tpch, sql) for number, sql in test_tpch.QUERIES.items()}
    whole = {number: text for number, text in said.items() if "Stage 1" not in text}
    assert len(said) - len(whole) >= LEAST_OF_TPCH, whole
    for number, text in whole.items():
        assert "one stage" in text, f"Q{number}: {text}"
    assert all(row["tasks"] >= LEAST_OF_TPCH for row in counts(tpch)), counts(tpch)


def test_many_statements_at_once(ssb):
    """Statements of several clients share the nodes, while segments move."""
    expected = test_ssb.duckdb_answers(ssb)
    failures = []

    def client(seed):
        draw = random.Random(seed)
        try:
            for _ in range(6):
                name = draw.choice(sorted(test_ssb.QUERIES))
                table = ssb.query(test_ssb.QUERIES[name])
                found = list(zip(*(column.to_pylist() for column in table.columns)))
                assert found == expected[name], name
        except Exception as error:  # noqa: BLE001 - reported by the test
            failures.append((seed, error))

    clients = [threading.Thread(target=client, args=(SEED + number,)) for number in range(4)]
    for thread in clients:
        thread.start()
    for size in ("1GiB", "8MiB", "1GiB"):
        ssb.budget("dram", size)
        ssb.epoch()
    for thread in clients:
        thread.join(timeout=300)
    assert not failures, failures


def test_a_server_without_nodes_has_none(tmp_path):
    with Server(tmp_path / "data") as server:
        assert counts(server) == []
        server.query("create table t as select value as v from generate_series(1, 100)")
        kinds = server.query("explain select sum(v) from t")["plan_type"].to_pylist()
        assert "nodes" not in kinds, kinds


def test_too_many_nodes_are_refused(tmp_path):
    refused = terrace("serve", "--data-dir", tmp_path / "data", env={"TERRACE_CLUSTER_NODES": "17"}, check=False)
    assert refused.returncode != 0 and "cluster.nodes must be from 1" in refused.stderr, refused.stderr
