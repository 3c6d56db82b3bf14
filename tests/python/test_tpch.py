"""TPC-H at scale 0.1: all 22 answers equal DuckDB's, wherever the segments lie and while they move."""

import datetime
import decimal
import math
import pathlib
import random
import threading
import time

import duckdb
import pytest

from server import Server, terrace

QUERIES = {n: (pathlib.Path(__file__).parents[2] / f"server/src/tpch/q{n}.sql").read_text() for n in range(1, 23)}
TABLES = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"]
SEED = 20261120


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("tpch")
    terrace("load", "tpch:0.1", "--data-dir", data)
    with Server(data, "--dram-budget", "1GiB", "--nvm-emulated", "--nvm-capacity", "512MiB") as running:
        yield running


@pytest.fixture(scope="module")
def expected(server):
    return answers(server)


def answers(server):
    """DuckDB's answers over the server's tables."""
    oracle = duckdb.connect()
    for name in TABLES:
        table = server.query(f"select * from {name}")
        oracle.register(f"{name}_arrow", table)
        oracle.execute(f"create table {name} as from {name}_arrow")
    return {n: canonical(rows(oracle.execute(sql).fetchall())) for n, sql in QUERIES.items()}


def rows(found):
    return [tuple(row) for row in found]


def canonical(found):
    """Rows as a multiset: sorted by everything that is exact, floats last."""
    def plain(value):
        if isinstance(value, datetime.datetime):
            return value.date()
        return value
    plain_rows = [tuple(plain(v) for v in row) for row in found]
    return sorted(plain_rows, key=lambda row: tuple(sort_key(v) for v in row))


def sort_key(value):
    if isinstance(value, (int, float, decimal.Decimal)):
        return f"{float(value):.4e}"
    return str(value)


def equal(left, right):
    """Floats to 1e-9; DuckDB averages decimals as doubles, so a decimal may differ in its last place."""
    numbers = (int, float, decimal.Decimal)
    if isinstance(left, numbers) and isinstance(right, numbers):
        places = [-v.as_tuple().exponent for v in (left, right) if isinstance(v, decimal.Decimal)]
        if len(places) == 1 and isinstance(right, float):
            return abs(float(left) - right) <= 10.0 ** -places[0] + abs(right) * 1e-9
        left, right = float(left), float(right)
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return left == right


def check_all(server, expected, numbers=range(1, 23)):
    for number in numbers:
        table = server.query(QUERIES[number])
        found = canonical(zip(*(column.to_pylist() for column in table.columns))) if table.num_rows else []
        want = expected[number]
        assert len(found) == len(want), f"Q{number}: {len(found)} rows, DuckDB has {len(want)}"
        for mine, theirs in zip(found, want):
            assert len(mine) == len(theirs) and all(map(equal, mine, theirs)), f"Q{number}: {mine} is not {theirs}"


def place(server, dram, nvm):
    server.budget("dram", dram)
    server.budget("nvm", nvm)
    server.epoch()
    return {name: tier["placed_bytes"] for name, tier in server.tiers().items()}


def test_all_in_dram(server, expected):
    place(server, "1GiB", "512MiB")
    check_all(server, expected)  # heat for the first epoch
    placed = place(server, "1GiB", 0)
    check_all(server, expected)
    assert placed["dram"] > 10 * max(placed["ssd"], 1), placed


def test_all_in_nvm(server, expected):
    # Room first: what leaves DRAM goes there, and not to disk.
    server.budget("nvm", "512MiB")
    # On a busy machine the loop gives up some moves, and makes them in a later epoch.
    for _ in range(8):
        placed = place(server, 0, "512MiB")
        if placed["nvm"] > 10 * max(placed["ssd"], 1):
            break
    assert placed["dram"] == 0 and placed["nvm"] > 10 * max(placed["ssd"], 1), placed
    check_all(server, expected)


def test_all_on_ssd(server, expected):
    placed = place(server, 0, 0)
    assert placed["dram"] == 0 and placed["nvm"] == 0, placed
    check_all(server, expected)


def test_random_mixes(server, expected):
    draw = random.Random(SEED)
    for _ in range(3):
        budgets = draw.randrange(0, 40 << 20), draw.randrange(0, 40 << 20)
        placed = place(server, *budgets)
        assert placed["ssd"] > 0, (SEED, budgets, placed)
        check_all(server, expected)


def test_while_segments_move(server, expected):
    draw = random.Random(SEED + 1)
    stop, failures, epochs = threading.Event(), [], []

    def mover():
        while not stop.is_set():
            try:
                server.budget("dram", draw.randrange(0, 120 << 20))
                server.budget("nvm", draw.randrange(0, 60 << 20))
                epochs.append(server.epoch())
            except Exception as error:  # noqa: BLE001 - reported by the test
                failures.append(error)
                return

    thread = threading.Thread(target=mover)
    thread.start()
    try:
        check_all(server, expected)
        deadline = time.monotonic() + 120
        while len(epochs) < 4 and thread.is_alive() and time.monotonic() < deadline:
            check_all(server, expected)
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
    assert sum(epoch["epoch"]["moves_done"] for epoch in epochs) > 0, "nothing moved, nothing was tested"
    # A replaced copy counts until the last statement that read it is gone, a moment after its answer.
    deadline = time.monotonic() + 10
    while (over := over_budget(server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not over, over


def over_budget(server):
    return [tier for tier in server.tiers().values() if tier["used_bytes"] > tier["budget_bytes"]]
