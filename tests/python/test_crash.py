"""What was acknowledged survives `kill -9`; what was not is absent or whole."""

import pathlib
import threading
import time

import adbc_driver_manager
import pytest

from kill_test import run_kills
from server import Server
from test_load import metric

SEED = 7
KILLS = 20
FEW_KILLS = 3


def test_a_few_kills_lose_and_invent_nothing(tmp_path):
    print(run_kills(tmp_path, FEW_KILLS, SEED + 1, progress=print))


@pytest.mark.deep
def test_twenty_kills_lose_and_invent_nothing(tmp_path):
    exercised = run_kills(tmp_path, KILLS, SEED, progress=print)
    print(exercised)
    for kind in ("insert", "ingest", "load", "create", "drop", "epoch"):
        assert exercised[kind] > 0, f"{kind} was not exercised: {exercised}"


def test_what_a_killed_server_has_spilled_is_gone(tmp_path):
    options = ["--set", "memory.query=48MB", "--set", "query.spill_tier_percent=0"]
    sort = "select count(*) as n, sum(r) as r from (select row_number() over (order by s) as r from t)"
    with Server(tmp_path / "data", *options) as server:
        server.query("create table t as select concat(md5(cast(value as varchar)), value) as s from generate_series(1, 3000000)")

        def sort_until_killed():
            with pytest.raises(Exception):
                while True:
                    server.query(sort)

        sorting = threading.Thread(target=sort_until_killed)
        sorting.start()
        deadline = time.monotonic() + 60
        while metric(server, "terrace_query_spilled_bytes") < 30e6:
            assert time.monotonic() < deadline, "nothing was spilled"
        server.kill()
        sorting.join()
    assert not [path for path in (tmp_path / "data" / "spill").rglob("*") if path.is_file()]
    with Server(tmp_path / "data", *options) as server:
        assert metric(server, "terrace_query_spilled_bytes") == 0
        assert server.query(sort).to_pylist() == [{"n": 3_000_000, "r": 3_000_000 * 3_000_001 // 2}]
        assert metric(server, "terrace_query_spilled_bytes") == 0


def spilled(server):
    return metric(server, "terrace_query_spilled_bytes")


def eventually(check, seconds=60):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def spill_files(server):
    """Bytes on disk of the files without a name that the server has open in its folder for spilled rows."""
    folder, open_files = str(server.data_dir / "spill"), pathlib.Path(f"/proc/{server.process.pid}/fd")
    blocks = 0
    for path in open_files.iterdir():
        try:
            if str(path.readlink()).startswith(folder) and path.is_file():
                blocks += path.stat().st_blocks
        except FileNotFoundError:
            pass
    return 512 * blocks


def test_what_a_client_cancels_or_takes_leaves_no_spilled_rows(tmp_path):
    options = ["--set", "memory.query=48MB", "--set", "query.spill_tier_percent=0"]
    sort = "select count(*) as n, sum(r) as r from (select row_number() over (order by s) as r from t)"
    with Server(tmp_path / "data", *options) as server:
        server.query("create table t as select concat(md5(cast(value as varchar)), value) as s from generate_series(1, 1500000)")
        with server.connect() as connection, connection.cursor() as cursor:
            ended = threading.Event()

            def cancel():
                eventually(lambda: spilled(server) > 10e6)
                while not ended.wait(0.05):
                    cursor.adbc_cancel()

            cancelling = threading.Thread(target=cancel)
            cancelling.start()
            with pytest.raises((adbc_driver_manager.Error, OSError)):
                for _ in range(20):
                    cursor.execute(sort)
                    cursor.fetchall()
            ended.set()
            cancelling.join()
        eventually(lambda: spilled(server) == 0 and spill_files(server) == 0)
        assert server.query(sort).to_pylist() == [{"n": 1_500_000, "r": 1_500_000 * 1_500_001 // 2}]
        eventually(lambda: spilled(server) == 0 and spill_files(server) == 0)
        states = server.query("select state, max(spilled_bytes) as most from system.queries where sql like '%row_number%' "
                              "and spilled_bytes > 0 group by state order by state").to_pylist()
        assert {row["state"] for row in states} >= {"cancelled", "done"}, states
