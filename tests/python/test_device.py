"""The memory of a device as a place for second copies; the processor stands for the device."""

import urllib.request

import pytest

from server import Server

ARGUMENTS = ["--dram-budget", "32MiB", "--set", "tiering.interval=1h"]
DEVICE = ["--set", "tiers.hbm.emulated=true", "--set", "tiers.hbm.capacity=64MiB"]
ROWS = """select value as k, cast(value % 50 as decimal(15, 2)) as quantity, cast(value as double) as real,
          case value % 3 when 0 then 'MAIL' when 1 then 'SHIP' end as mode from generate_series(1, 40000)"""
SUMS = "select mode, count(*) as n, sum(k) as k, avg(quantity) as quantity from t where k > 700 group by mode order by mode"


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data", *ARGUMENTS, *DEVICE) as server:
        server.query(f"create table t with (chunk_rows = 10000) as {ROWS}")
        yield server


def rows(server, sql):
    return server.query(sql).to_pylist()


def on_device(server):
    """Columns that have a second copy there."""
    found = rows(server, "select distinct column_name from system.segments where table_name = 't' and hbm_bytes is not null")
    return {row["column_name"] for row in found}


def answer(server, gpu, sql):
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"set terrace.gpu = {gpu}")
        cursor.execute(sql)
        return cursor.fetch_arrow_table().to_pylist()


def metrics(server):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        return answer.read().decode()


def test_second_copies_are_made_used_and_dropped(server):
    tier = server.tiers()["hbm"]
    assert tier["emulated"] and tier["kind"] == "hbm" and tier["stored_bytes"] == 0, tier
    expected = answer(server, "off", SUMS)
    counted = rows(server, "select column_name, max(kernel) as kernel from system.segments where table_name = 't' group by 1")
    assert {row["column_name"] for row in counted if row["kernel"] > 0} == {"k", "quantity", "mode"}, counted
    server.query("alter table t pin columns (k, quantity, mode) to hbm")
    server.epoch()
    assert on_device(server) == {"k", "quantity", "mode"}
    assert server.tiers()["hbm"]["stored_bytes"] > 0
    for gpu in ["force", "auto", "off"]:
        assert answer(server, gpu, SUMS) == expected, gpu
    plan = str(answer(server, "force", f"explain {SUMS}"))
    assert "KernelExec: device=hbm (emulated), gpu=force" in plan and "chosen: device" in plan, plan
    assert "KernelExec" not in str(answer(server, "off", f"explain {SUMS}"))
    moves = rows(server, "select * from system.moves where table_name = 't' and to_tier = 'hbm'")
    # PIN asks for an epoch itself, which may have been first.
    assert [row["status"] for row in moves].count("done") == 12, moves
    assert all(row["status"] in ("done", "skipped") and "rule 1" in row["reason"] for row in moves), moves
    assert 'terrace_migrate_moves_total{from="*",to="hbm"}' in metrics(server)
    told, *_ = rows(server, "explain placement t columns (k)")
    assert "has and keeps a second copy on hbm" in told["why"], told
    # Deleted rows send their chunk to processors.
    server.query("delete from t where k between 30000 and 30010")
    assert answer(server, "force", SUMS) == answer(server, "off", SUMS) != expected
    server.budget("hbm", 0)
    server.epoch()
    assert on_device(server) == set() and server.tiers()["hbm"]["stored_bytes"] == 0


def test_copies_come_back_after_a_restart(tmp_path):
    with Server(tmp_path / "data", *ARGUMENTS, *DEVICE) as server:
        server.query(f"create table t with (chunk_rows = 10000) as {ROWS}")
        server.query("alter table t pin columns (k) to hbm")
        server.epoch()
        assert on_device(server) == {"k"}
        server.kill()
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        assert "hbm" not in server.tiers() and on_device(server) == set()
        server.epoch()
        assert answer(server, "force", "select sum(k) as k from t") == [{"k": 40000 * 40001 // 2}]
        assert "KernelExec" not in str(answer(server, "force", f"explain {SUMS}"))
        assert server.stop() == 0
    with Server(tmp_path / "data", *ARGUMENTS, *DEVICE) as server:
        server.epoch()
        assert on_device(server) == {"k"}


def test_a_gpu_that_is_not_there_is_left_out(tmp_path):
    with Server(tmp_path / "data", *ARGUMENTS, "--set", "tiers.hbm.device=97") as server:
        assert "hbm" not in server.tiers()
        assert rows(server, "select 1 as one") == [{"one": 1}]
        assert "hbm" in server.output()
