"""Room that is made at once: when a budget is lowered, without an epoch."""

import time

import pytest

from helpers import STEP, numbers
from server import Server

ROWS = 262_144
COLUMN = 512 << 10  # a number column of a chunk


@pytest.fixture
def server(tmp_path):
    """A table of four chunks, all number columns in DRAM; chunk 3 was read last."""
    with Server(tmp_path / "data", "--dram-budget", "64MiB", "--set", "tiering.interval=1h") as server:
        numbers(server, ROWS, texts=False)
        for chunk in range(4):
            first, last = chunk * 65_536 * STEP, (chunk + 1) * 65_536 * STEP
            server.query(f"select sum(x) from t where k >= {first} and k < {last}")
            server.epoch()
        assert in_dram(server) == 8
        yield server


def in_dram(server, name="t"):
    rows = server.query(f"select count(*) as n from system.segments where table_name = '{name}' and tier = 'dram'")
    return rows.to_pylist()[0]["n"]


def eventually(check, seconds=60):
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.02)
    assert check()


def test_a_lowered_budget_is_obeyed_at_once(server):
    answer = server.query("select count(*) as n, sum(k) as k from t").to_pylist()
    server.budget("dram", str(4 * COLUMN))
    eventually(lambda: server.tiers()["dram"]["used_bytes"] <= 4 * COLUMN)
    eventually(lambda: server.query("select * from system.epochs where trigger = 'memory pressure'").num_rows > 0)
    moves = server.query("select m.table_name, m.to_tier, m.status, m.reason from system.moves m join system.epochs e "
                         "on m.epoch = e.epoch where e.trigger = 'memory pressure'").to_pylist()
    assert len(moves) == 4 and {(m["table_name"], m["to_tier"], m["status"]) for m in moves} == {("t", "ssd", "done")}
    assert all("over its budget" in m["reason"] and "last use" in m["reason"] for m in moves), moves
    assert in_dram(server) == 4
    assert server.query("select count(*) as n, sum(k) as k from t").to_pylist() == answer


def test_a_frozen_placement_stays_and_pins_do_too(server):
    server.query("freeze placement")
    server.budget("dram", str(4 * COLUMN))
    time.sleep(0.3)
    assert in_dram(server) == 8
    server.query("unfreeze placement")
    eventually(lambda: server.tiers()["dram"]["used_bytes"] <= 4 * COLUMN)
    chunk = server.query("select min(chunk) as chunk from system.chunks").to_pylist()[0]["chunk"]
    server.query(f"alter table t pin columns (x) chunks {chunk} to {chunk} to dram")
    server.epoch()
    server.budget("dram", str(COLUMN))
    eventually(lambda: server.tiers()["dram"]["used_bytes"] <= COLUMN)
    pinned = server.query("select column_name from system.segments where table_name = 't' and tier = 'dram'").to_pylist()
    assert pinned == [{"column_name": "x"}]


def test_a_load_gets_the_room_of_what_nobody_reads_and_only_that(tmp_path):
    arguments = ["--dram-budget", str(4 * COLUMN), "--set", "tiering.interval=1h"]
    with Server(tmp_path / "data", *arguments) as server:
        numbers(server, ROWS // 4, "a", texts=False)
        numbers(server, ROWS // 4, "b", texts=False)
        assert in_dram(server, "a") + in_dram(server, "b") == 4
        server.query("select sum(k), sum(x) from a where k >= 0")
        server.epoch()
        assert in_dram(server, "a") == 2
        numbers(server, ROWS // 4, "c", texts=False)
        eventually(lambda: in_dram(server, "b") == 0)
        moves = "select table_name, reason from system.moves where reason like 'memory pressure%'"
        # A move is recorded when it has been made.
        eventually(lambda: server.query(moves).num_rows > 0)
        reasons = server.query(moves).to_pylist()
        assert {row["table_name"] for row in reasons} == {"b"} and "a load needs" in reasons[0]["reason"]
        numbers(server, ROWS // 4, "d", texts=False)
        assert (in_dram(server, "a"), in_dram(server, "d")) == (2, 2)
