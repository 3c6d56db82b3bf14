"""Hot views on a real server: over Flight SQL, after a kill, from a backup, with a table that is loaded anew."""

import urllib.request

import pytest

from helpers import eventually, numbers
from server import Server, terrace

SHOWN = "select view_name, predicate, version, problem from system.hot_views order by view_name"


def views(server):
    return [tuple(row.values()) for row in server.query(SHOWN).to_pylist()]


def implied(server, query):
    rows = server.query(f"explain hot views {query}").to_pylist()
    return {row["view_name"]: row["reason"] or row["implied"] for row in rows}


def test_hot_views_survive_kill_and_backup(tmp_path):
    with Server(tmp_path / "data") as server:
        numbers(server, 1000, step=1)
        server.query("create hot view ends as select k, x from t where k < 10 or k >= 990")
        server.query("create hot view named as select * from t where s like 'row 9%' and x is not null")
        server.query("alter hot view named refresh")
        expected = [("ends", "k < 10 or k >= 990", 1, None), ("named", "s like 'row 9%' and x is not null", 2, None)]
        assert views(server) == expected
        terrace("backup", tmp_path / "copy", "--http-addr", server.http)
        server.query("drop hot view named")
        server.kill()
    with Server(tmp_path / "data") as server:
        assert views(server) == expected[:1]
        assert implied(server, "select x from t where k in (3, 995)") == {"ends": True}
        assert implied(server, "select x from t where k = 10") == {"ends": "not proven: k < 10 OR k >= 990"}
    terrace("restore", tmp_path / "copy", "--data-dir", tmp_path / "restored")
    with Server(tmp_path / "restored") as server:
        assert views(server) == expected
        server.query("create or replace table t as select 1 as k, 'row 9' as s")
        problems = {name: problem for name, _, _, problem in views(server)}
        assert "'x'" in problems["ends"] and "x" in problems["named"]
        assert implied(server, "select k from t where k = 1") == {}


def test_queries_with_hot_views_answer_as_before(tmp_path):
    with Server(tmp_path / "data") as server:
        numbers(server, 1000, step=1)
        query = "select count(*) as n, sum(k) as k from t where k between 100 and 200 and s like 'row 1%'"
        before = server.query(query).to_pylist()
        server.query("create hot view some as select * from t where k between 50 and 300")
        assert implied(server, query) == {"some": True}
        assert server.query(query).to_pylist() == before
        with pytest.raises(Exception, match="is used by hot view 'some'"):
            server.query("alter table t rename column k to key")
        server.query("drop table t")
        assert views(server) == []


SCATTERED = ("create table o with (chunk_rows = 5000) as select value as id, value * 7919 % 10000 as customer, "
             "case when value * 104729 % 500 = 7 then 'open' else 'done' end as status from generate_series(0, 199999)")
ASKED = "select count(*) as n, sum(id) as ids from o where status = 'open' or customer in (77, 777)"


def test_a_run_puts_scattered_rows_together_while_a_server_works(tmp_path):
    def answers(server):
        with server.connect() as connection, connection.cursor() as cursor:
            found = []
            for setting in ["set terrace.hot_views = false", "reset terrace.hot_views"]:
                cursor.execute(setting)
                cursor.execute(ASKED)
                found.append(cursor.fetch_arrow_table().to_pylist())
        assert found[0] == found[1]
        return found[0][0]

    def view(server):
        return server.query("select * from system.hot_views").to_pylist()[0]

    with Server(tmp_path / "data") as server:
        server.query(SCATTERED)
        before = answers(server)
        create = "create hot view few as select * from o where status = 'open' or customer in (77, 777)"
        told = server.query(f"explain {create}").to_pylist()[0]
        assert told["chunks"] == told["chunks_some"] == told["chunks_to_rewrite"] == 40 and told["rows_read_then"] < 1000
        server.query(create)
        eventually(lambda: view(server)["state"] == "published", 60)
        known = view(server)
        assert known["unknown_chunks"] == 0 and known["hot_chunks"] <= 2 and known["rows"] == told["rows_read_then"]
        assert known["chunks"] == told["chunks_to_write"]
        assert answers(server) == before
        assert view(server)["pruned_chunks"] >= 40
        with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
            metrics = answer.read().decode()
        assert 'terrace_hot_view_runs_total{outcome="done"} 1' in metrics
        server.query("insert into o select value, 77, 'new' from generate_series(200000, 207999)")
        server.query("delete from o where id % 7 = 0")
        server.query("optimize o")
        after = answers(server)
        assert after["n"] > before["n"] and view(server)["unknown_chunks"] > 0
        server.kill()
    with Server(tmp_path / "data") as server:
        # Chunks that do not know the view are looked at after a start.
        eventually(lambda: view(server)["unknown_chunks"] == 0, 60)
        assert answers(server) == after
        server.query("alter hot view few refresh")
        known = view(server)
        assert (known["state"], known["published_version"], known["last_error"]) == ("published", 2, None)
        assert answers(server) == after
        server.query("drop hot view few")
        assert answers(server) == after
        segments = server.query("select count(*) as n from system.segments where column_name like 'hot view mark%'")
        assert segments.to_pylist() == [{"n": 0}]


def test_a_budget_bounds_the_dram_of_a_view(tmp_path):
    def dram(server):
        server.query("epoch now")
        return server.query("select budget_bytes, dram_bytes from system.hot_views").to_pylist()[0]

    def ask(server):
        for _ in range(10):
            server.query("select sum(id) from o where status = 'open' and customer < 5000")

    with Server(tmp_path / "data", "--set", "tiering.interval=1h") as server:
        server.query(SCATTERED)
        server.query("create hot view few as select * from o where status = 'open' or customer in (77, 777)")
        server.query("alter hot view few refresh")
        ask(server)
        free = dram(server)
        assert free["budget_bytes"] is None and free["dram_bytes"] > 0
        server.query("alter hot view few set (budget = '1kB')")
        assert "budget = '1000'" in server.query("show create table o").to_pylist()[0]["definition"]
        bounded = dram(server)
        assert bounded["budget_bytes"] == 1000 and bounded["dram_bytes"] <= 1000 < free["dram_bytes"]
        with pytest.raises(Exception, match="budget = '-5'"):
            server.query("alter hot view few set (budget = '-5')")
        server.kill()
    with Server(tmp_path / "data", "--set", "tiering.interval=1h") as server:
        ask(server)
        bounded = dram(server)
        assert bounded["budget_bytes"] == 1000 and bounded["dram_bytes"] <= 1000 < free["dram_bytes"]
        server.query("alter hot view few set (budget = 'none')")
        ask(server)
        assert dram(server)["dram_bytes"] > 0
