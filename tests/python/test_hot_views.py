"""Hot views on a real server: over Flight SQL, after a kill, from a backup, with a table that is loaded anew."""

import pytest

from helpers import numbers
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
