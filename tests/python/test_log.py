"""The log of a server: text for people, JSON for collectors."""

import json

from helpers import error_of, eventually
from server import Server, terrace

JSON = ("--set", "log.format=json")


def lines(server):
    """The lines of a log of JSON, each of which has to be an object."""
    found = [json.loads(line) for line in server.output().splitlines()]
    assert all({"timestamp", "level", "target", "message"} <= line.keys() for line in found), found
    return found


def with_message(found, message):
    return [line for line in found if message in line["message"]]


def test_the_log_begins_with_what_starts(tmp_path):
    with Server(tmp_path / "data") as server:
        assert server.stop() == 0
        log = [line for line in server.output().splitlines() if "Terrace serves" in line]
        assert len(log) == 1 and server.flight in log[0] and str(tmp_path / "data") in log[0] and "dram" in log[0], log
        assert "Connect:" in server.output(), "the summary for people"


def test_each_line_of_json_is_an_object_and_there_is_nothing_else(tmp_path):
    with Server(tmp_path / "data", *JSON, "--set", "log=debug") as server:
        server.query("select 1")
        assert server.stop() == 0
        found = lines(server)
        start, = with_message(found, "Terrace serves")
        assert start["level"] == "INFO" and start["flight"] == f"grpc://{server.flight}" and start["http"] == f"http://{server.http}"
        assert start["data_dir"] == str(tmp_path / "data") and "dram" in start["tiers"] and start["version"], start
        session = with_message(found, "a session began")[-1]
        assert session["level"] == "DEBUG" and session["session"] and session["address"] == "127.0.0.1", session
        stop, = with_message(found, "refuses new work")
        assert "SIGTERM" in stop["message"] and with_message(found, "stopped")


def test_an_error_that_ends_a_server_is_a_line_of_json(tmp_path):
    with Server(tmp_path / "data"):
        second = terrace("serve", "--data-dir", tmp_path / "data", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", *JSON,
                         check=False, seconds=60)
        assert second.returncode == 1 and second.stdout == ""
        found = [json.loads(line) for line in second.stderr.splitlines()]
        assert found[-1]["level"] == "ERROR" and found[-1]["error"], found
    wrong = terrace("serve", "--data-dir", tmp_path / "other", "--set", "log.level=terrace=loud", check=False)
    assert wrong.returncode == 1 and "log.level" in wrong.stderr


def test_lines_about_a_statement_name_it_its_session_and_its_user(tmp_path):
    with Server(tmp_path / "data", *JSON, "--set", "log.level=info,terrace_planner_ext=trace") as server:
        server.query("select * from system.tiers")
        run, = server.query("select id, session, user_name from system.queries where sql = 'select * from system.tiers'").to_pylist()
        line = next(line for line in with_message(lines(server), "reading a system table") if line["table"] == "tiers")
        assert (line["statement"], line["session"], line["user"]) == (run["id"], run["session"], run["user_name"]), line


def slow(server):
    return with_message(lines(server), "a statement was slow")


def test_slow_statements_are_logged_with_their_figures_and_without_their_values(tmp_path):
    with Server(tmp_path / "data", *JSON, "--set", "log.slow_statement=0s") as server:
        server.query("create table t as select value as a, 'geheim' as b from generate_series(1, 100000)")
        server.query("select count(*) from t -- geheim\n where b = 'geheim' and a > 17")
        shown = "select count(*) from t where b = ? and a > ?"
        eventually(lambda: any(line["sql"] == shown for line in slow(server)))
        line, = (line for line in slow(server) if line["sql"] == shown)
        assert (line["level"], line["kind"], line["outcome"], line["rows"]) == ("WARN", "query", "done", 1), line
        assert line["elapsed_us"] > 0 and line["queued_us"] >= 0 and "dram=" in line["tier_bytes"] and "error" not in line, line
        run, = server.query("select id, session, user_name from system.queries where sql like 'select count(*) from t -- %'").to_pylist()
        assert (line["statement"], line["session"], line["user"]) == (run["id"], run["session"], run["user_name"]), line
        error_of(lambda: server.query("select nothing from t where b = 'geheim'"))
        eventually(lambda: any(line["outcome"] == "failed" for line in slow(server)))
        failed = next(line for line in slow(server) if line["outcome"] == "failed")
        assert failed["error"] == "invalid_argument" and failed["sql"] == "select nothing from t where b = ?", failed
        assert server.stop() == 0 and "geheim" not in server.output()
    with Server(tmp_path / "data", *JSON, "--set", "log.slow_statement=1h") as server:
        server.query("select count(*) from t")
        assert server.stop() == 0 and slow(server) == []
