"""What comes into memory between epochs because a query read it: `tiering.merge`."""

import shutil
import subprocess
import time
import urllib.request

import pytest

from helpers import STEP, numbers
from server import BINARY, Server

ROWS = 262_144
CHUNK_KEYS = 65_536 * STEP
BUDGET = 2 << 20  # four number columns of a chunk
ALL = "select count(*) as n, sum(k) as k, sum(cast(x as decimal(20, 6))) as x, count(s) as s from t"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A data directory with a table of four chunks, clustered by `k`; a number column of a chunk has 512 KiB."""
    folder = tmp_path_factory.mktemp("merge") / "data"
    with Server(folder, "--dram-budget", "0") as server:
        numbers(server, ROWS)
        server.stop()
    return folder


@pytest.fixture
def data(loaded, tmp_path):
    return shutil.copytree(loaded, tmp_path / "data")


def start(folder, merge, *settings):
    arguments = [f"tiering.merge={merge}", "tiering.interval=1h", *settings]
    return Server(folder, "--dram-budget", str(BUDGET), *[part for setting in arguments for part in ("--set", setting)])


def read(server, chunk, times=1):
    """Reads columns `k` and `x` of one chunk, every row of it."""
    for _ in range(times):
        server.query(f"select sum(x) from t where k >= {chunk * CHUNK_KEYS} and k < {(chunk + 1) * CHUNK_KEYS}")


def in_dram(server):
    rows = server.query("select chunk, column_name from system.segments where table_name = 't' and tier = 'dram'")
    chunks = sorted(row["chunk"] for row in server.query("select chunk from system.chunks").to_pylist())
    return {(chunks.index(row["chunk"]), row["column_name"]) for row in rows.to_pylist()}


def both(*chunks):
    return {(chunk, column) for chunk in chunks for column in "kx"}


def eventually(check, seconds=60):
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.02)
    assert check()


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))


def settled(server, columns):
    """Waits until so many columns had their fate."""
    eventually(lambda: metric(server, "terrace_merge_columns_total") >= columns)


def test_never_is_the_default_and_leaves_all_to_epochs(data):
    with Server(data, "--dram-budget", str(BUDGET), "--set", "tiering.interval=1h") as server:
        before = in_dram(server)
        for chunk in (0, 1, 2, 3):
            read(server, chunk, times=2)
        assert in_dram(server) == before
        assert metric(server, "terrace_merge_columns_total") == 0


def test_always_is_a_cache(data):
    with start(data, "always", "tiering.policy=lru") as server:
        answer = server.query(ALL).to_pylist()
        for chunk in (0, 1, 0, 2):
            read(server, chunk)
            eventually(lambda: both(chunk) <= in_dram(server))
            assert server.tiers()["dram"]["used_bytes"] <= BUDGET
        assert both(0, 2) <= in_dram(server) and not both(1) & in_dram(server)
        read_before = metric(server, "terrace_io_reads_total")
        read(server, 2)
        assert metric(server, "terrace_io_reads_total") == read_before, "it comes from memory now"
        server.epoch()
        rows = server.query("select from_tier, to_tier, segments, bytes, reason from system.moves "
                            "where table_name = '*' order by to_tier").to_pylist()
        assert [(row["from_tier"], row["to_tier"]) for row in rows] == [("ssd", "dram"), ("dram", "ssd")]
        assert rows[0]["segments"] >= 6 and rows[0]["bytes"] >= 6 * (ROWS // 4) * 8
        assert "promoted on read" in rows[0]["reason"] and "least recently read" in rows[1]["reason"]
        server.epoch()
        again = server.query("select count(*) as n from system.moves where table_name = '*'").to_pylist()
        assert again == [{"n": 2}], "each is logged once"
        assert server.query(ALL).to_pylist() == answer


def test_what_came_after_the_last_epoch_is_in_the_log_after_a_restart(data, tmp_path):
    with start(data, "always", "tiering.policy=lru") as server:
        # After a restart an epoch comes at once; what this is about comes later.
        eventually(lambda: server.query("select * from system.epochs").num_rows > 0)
        read(server, 1)
        eventually(lambda: both(1) <= in_dram(server))
        before = server.query("select count(*) as n from system.moves where table_name = '*'").to_pylist()
        server.stop()
    with start(data, "never") as server:
        rows = server.query("select epoch, number, to_tier, segments, price_ns_per_byte, runner_up, reason, condition from "
                            "system.moves where reason like '%until the server stopped%'").to_pylist()
        assert before == [{"n": 0}] and rows, (before, rows)
        assert all(row["epoch"] == 1 and row["price_ns_per_byte"] is None and row["runner_up"] is None for row in rows)
        assert all("no price and no second tier was weighed" in row["condition"] for row in rows), rows
        assert sum(row["segments"] for row in rows if row["to_tier"] == "dram") >= 2, rows


def test_selective_takes_what_is_worth_more(data):
    # 12 segments, the best four of them.
    with start(data, "selective", "tiering.merge_top_percent=30") as server:
        read(server, 3, times=20)
        eventually(lambda: in_dram(server) == both(3))
        read(server, 2, times=4)
        eventually(lambda: in_dram(server) == both(2, 3))
        counted = metric(server, "terrace_merge_columns_total")
        read(server, 0)
        settled(server, counted + 2)
        assert in_dram(server) == both(2, 3), "one scan is worth less than four"
        read(server, 0, times=15)
        eventually(lambda: in_dram(server) == both(0, 3))


def test_rules_orders_and_modes_come_first(data):
    with start(data, "always", "tiering.policy=lru") as server:
        server.query("alter table t pin columns (s) chunks 1 to 1 to dram")
        server.query("alter table t exclude columns (x) from dram")
        server.epoch()
        pinned = in_dram(server)
        assert (1, "s") in pinned
        for chunk in (0, 1, 2, 3):
            read(server, chunk)
            eventually(lambda: (chunk, "k") in in_dram(server))
        assert (1, "s") in in_dram(server) and not {column for _, column in in_dram(server)} & {"x"}
        server.query("freeze placement")
        before = in_dram(server)
        missing = next(chunk for chunk in range(4) if (chunk, "k") not in before)
        counted = metric(server, "terrace_merge_columns_total")
        read(server, missing)
        settled(server, counted + 1)
        assert in_dram(server) == before
        server.query("unfreeze placement")
        eventually(lambda: read(server, missing) or (missing, "k") in in_dram(server))


def test_wrong_settings_are_refused(tmp_path):
    for setting, said in [("tiering.merge=often", "`selective`"), ("tiering.merge_top_percent=0", "at most 100")]:
        asked = [BINARY, "serve", "--data-dir", str(tmp_path), "--set", setting]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode != 0 and setting.split("=")[0] in done.stderr and said in done.stderr, done.stderr
