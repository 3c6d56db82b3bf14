"""The query log: statements that have ended, in files that outlive the server."""

import contextlib
import os
import re
import shutil
import stat
import urllib.request

from helpers import error_of, eventually, execute
from server import Server


def logged(server, pattern, columns="*"):
    """Statements of the log whose text is like a pattern, the last one first."""
    return server.query(f"select {columns} from system.query_log where sql like '{pattern}'").to_pylist()


def metrics(server):
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=60) as answer:
        found = re.findall(r"^terrace_query_log_(\w+) (\S+)$", answer.read().decode(), re.M)
    return {name: float(value) for name, value in found}


def files(server):
    return sorted((server.data_dir / "query_log").iterdir())


def text(server):
    """What the files have; one may be rotated or removed meanwhile."""
    found = []
    for path in files(server):
        with contextlib.suppress(FileNotFoundError):
            found.append(path.read_text())
    return "".join(found)


def test_statements_outlive_a_kill(tmp_path):
    with Server(tmp_path / "data") as server:
        server.query("create table t as select 1 as a")
        server.query("select a from t where a = 1")
        error_of(lambda: server.query("select b from t"))
        before, = logged(server, "select a from t%")
        assert (before["kind"], before["state"], before["rows"], before["error"]) == ("query", "done", 1, None), before
        assert before["elapsed_us"] > 0 and before["started"] <= before["ended"] and before["client_address"] == "127.0.0.1", before
        failed, = logged(server, "select b from t%")
        assert failed["state"] == "failed" and failed["error_kind"] == "invalid_argument" and "b" in failed["error"], failed
        path, = files(server)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        server.kill()
    # As if the machine had stopped while a line was written.
    with open(path, "ab") as log:
        log.write(b'{"id":"q1","sql":"select a from t wh')
    with Server(tmp_path / "data") as server:
        assert logged(server, "select a from t%") == [before]
        assert server.query("select count(*) as n from system.queries where sql like 'select a from t%'").to_pylist() == [{"n": 0}]
        server.query("select a + 1 from t")
        texts = [row["sql"] for row in logged(server, "%from t%", "sql") if "system." not in row["sql"]]
        assert texts[:2] == ["select a + 1 from t", "select b from t"], texts
        assert server.stop() == 0
    # What ends just before the stop is written, too.
    assert "select a + 1 from t" in path.read_text()


def test_it_keeps_to_its_bytes(tmp_path):
    with Server(tmp_path / "data", "--set", "query_log.max_bytes=1MiB") as server:
        with server.connect() as connection, connection.cursor() as cursor:
            for number in range(1200):
                execute(cursor, f"select '{number:04}{'x' * 1000}'")
        kept = [int(row["sql"][8:12]) for row in logged(server, "select ''0%") + logged(server, "select ''1%")]
        kept = sorted(kept)
        assert kept == list(range(kept[0], 1200)) and 200 < len(kept) < 1200, (kept[0], len(kept))
        sizes = [path.stat().st_size for path in files(server)]
        assert len(sizes) <= 16 and sum(sizes) <= 1 << 20, sizes
        counted = metrics(server)
        assert counted["statements_total"] >= 1200 and counted["lost_statements_total"] == counted["failing"] == 0, counted


def test_it_keeps_to_its_time(tmp_path):
    with Server(tmp_path / "data", "--set", "query_log.keep_for=2s") as server:
        server.query("select 17")
        assert len(logged(server, "select 17")) == 1
        eventually(lambda: not logged(server, "select 17"))
        server.query("select 18")
        assert len(logged(server, "select 18")) == 1
        # Its file goes once all in it is older.
        eventually(lambda: server.query("select 19").num_rows == 1 and "select 17" not in text(server))


def test_a_lost_folder_raises_a_metric_and_is_written_again(tmp_path):
    with Server(tmp_path / "data") as server:
        server.query("select 17")
        folder = server.data_dir / "query_log"
        eventually(lambda: files(server))
        shutil.rmtree(folder)
        server.query("select 18")
        eventually(lambda: metrics(server)["failing"] == 1)
        assert server.query("select 19 as n").to_pylist() == [{"n": 19}], "the server goes on"
        folder.mkdir()
        eventually(lambda: metrics(server)["failing"] == 0)
        assert len(logged(server, "select 18")) == 1 and metrics(server)["lost_statements_total"] == 0
        assert server.stop() == 0


def test_values_may_be_masked_and_brief_statements_left_out(tmp_path):
    with Server(tmp_path / "data", "--set", "query_log.values=mask") as server:
        server.query("select 'geheim' as a")
        error_of(lambda: server.query("select cast('geheim' as int)"))
        assert [row["sql"] for row in logged(server, "select ? as a")] == ["select ? as a"]
        failed = next(row for row in logged(server, "select cast%") if row["state"] == "failed")
        assert failed["error_kind"] and failed["error"] is None and failed["sql"] == "select cast(? as int)", failed
        assert server.stop() == 0 and "geheim" not in text(server)
    with Server(tmp_path / "data", "--set", "query_log.least_duration=1h") as server:
        server.query("select 17")
        error_of(lambda: server.query("select nothing"))
        assert logged(server, "select 17") == [] and len(logged(server, "select nothing")) == 1


def test_there_may_be_none(tmp_path):
    with Server(tmp_path / "data", "--set", "query_log.max_bytes=0") as server:
        server.query("select 17")
        assert logged(server, "%") == [] and metrics(server) == {}
        assert not (server.data_dir / "query_log").exists()
