"""The audit trail, with real clients: ADBC and curl."""

import json
import os
import shutil
import stat
import threading

import adbc_driver_manager
import pytest

from helpers import error_of, eventually, execute
from server import Server
from test_users import PASSWORD, connect, curl, make_user, refusal, run

ROOT, ANN, BOB = ("root", PASSWORD), ("ann", PASSWORD), ("bob", PASSWORD)
JSON = ("-H", "Content-Type: application/json")
ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value + b.value < 0"


def closed(tmp_path, **settings):
    """A server with the superuser root and the users ann, who may make schemas, and bob, whose trail is `audit/audit.log`."""
    folder = tmp_path / "audit"
    folder.mkdir()
    make_user(tmp_path / "data", "create", "root")
    env = {f"TERRACE_AUDIT_{key.upper()}": str(value) for key, value in {"file": folder / "audit.log", **settings}.items()}
    server = Server(tmp_path / "data", env=env)
    server.trail = folder / "audit.log"
    for name in ("ann", "bob"):
        run(server, f"CREATE USER {name} PASSWORD '{PASSWORD}'", *ROOT)
    run(server, "GRANT CREATE ON DATABASE terrace TO ann", *ROOT)
    return server


def events(server, path=None, **wanted):
    # The last line may be half written.
    lines = (path or server.trail).read_text().rpartition("\n")[0].splitlines()
    found = [json.loads(line) for line in lines]
    return [event for event in found if all(event.get(key) == value for key, value in wanted.items())]


def eventual(server, **wanted):
    """The last event of the file that has these values, once it is there."""
    eventually(lambda: server.trail.exists() and events(server, **wanted))
    return events(server, **wanted)[-1]


def metric(server, name):
    _, text = curl(server, "/metrics", "-u", f"root:{PASSWORD}")
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


def test_the_file_says_who_did_what(tmp_path):
    with closed(tmp_path) as server:
        assert stat.S_IMODE(os.stat(server.trail).st_mode) == 0o600
        run(server, "CREATE SCHEMA shop", *ANN)
        run(server, "CREATE TABLE shop.orders AS SELECT 1 AS id", *ANN)
        run(server, "INSERT INTO shop.orders SELECT id + 1 FROM shop.orders", *ANN)
        insert = eventual(server, action="insert")
        assert insert["user"] == "ann" and insert["address"] == "127.0.0.1" and insert["port"] == "flight", insert
        assert insert["reads"] == insert["writes"] == ["shop.orders"] and insert["outcome"] == "done", insert
        assert insert["text"].startswith("INSERT INTO shop.orders") and insert["elapsed_us"] > 0, insert
        # Log-ins.
        login = eventual(server, event="login", user="ann")
        assert login["action"] == "password" and login["outcome"] == "done" and login["session"], login
        refusal(server, "SELECT 1", "eve", "wrong horse")
        assert eventual(server, event="login", user="eve")["outcome"] == "refused"
        assert curl(server, "/api/v1/tiers", "-u", "mallory:wrong horse")[0] == 401
        refused = eventual(server, event="login", user="mallory")
        assert refused["port"] == "http" and refused["outcome"] == "refused", refused
        # Rights, users, and what was refused.
        run(server, "ALTER USER bob PASSWORD 'battery staple'", *ROOT)
        changed = eventual(server, event="access", text="ALTER USER bob PASSWORD ***")
        assert changed["user"] == "root", changed
        run(server, "GRANT USAGE ON SCHEMA shop TO bob", *ANN)
        refusal(server, "DROP TABLE shop.orders", "bob", "battery staple")
        dropped = eventual(server, outcome="refused", user="bob", event="statement")
        assert dropped["writes"] == ["shop.orders"] and dropped["error"] == "permission_denied", dropped
        # Requests.
        put = ("-X", "PUT", *JSON, "-d", '{"frozen": true}')
        assert curl(server, "/api/v1/placement", *put, "-u", f"root:{PASSWORD}")[0] == 200
        assert curl(server, "/api/v1/placement", *put, "-u", "bob:battery staple")[0] == 403
        assert eventual(server, event="http", user="root")["action"] == "PUT"
        forbidden = eventual(server, event="http", user="bob")
        assert forbidden["outcome"] == "refused" and forbidden["text"] == "/api/v1/placement", forbidden
        # What only reads is not among them, and no secret is.
        run(server, "SELECT * FROM shop.orders", *ANN)
        assert not events(server, action="query")
        for secret in (PASSWORD, "battery staple", "wrong horse"):
            assert secret not in server.trail.read_text()
        # Nor may statements name the file.
        error = error_of(lambda: run(server, f"COPY shop.orders TO '{server.trail}' OPTIONS (overwrite 'true')", *ROOT))
        assert error.status_code is not None
        numbers = [event["number"] for event in events(server)]
        assert numbers == sorted(numbers)
        assert server.stop() == 0
    with Server(tmp_path / "data", env={"TERRACE_AUDIT_FILE": str(server.trail)}) as again:
        assert again.wait_ready() and len(events(server)) >= len(numbers), "it is appended to"


def test_tokens_are_named(tmp_path):
    with closed(tmp_path) as server:
        with connect(server, *ANN) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TOKEN ci READ ONLY")
            made = cursor.fetch_arrow_table().to_pylist()[0]
        secret = made["token"]
        assert run(server, "SELECT 1", token=secret) == [(1,)]
        login = eventual(server, event="login", action="token")
        assert login["user"] == "ann" and login["text"] == "ci", login
        assert run(server, "SELECT count(*) FROM system.audit WHERE text LIKE '%CREATE TOKEN%'", *ANN) == [(1,)]
        assert secret not in server.trail.read_text()
        assert curl(server, "/api/v1/openapi.json", "-H", f"Authorization: Bearer {secret}")[0] == 200
        eventually(lambda: events(server, event="login", action="token", port="http"))


def test_the_table_shows_the_own_events_and_with_monitor_all(tmp_path):
    with closed(tmp_path) as server:
        run(server, "CREATE SCHEMA shop", *ANN)
        users = "SELECT DISTINCT user_name FROM system.audit ORDER BY user_name"
        assert run(server, users, *BOB) == [("bob",)]
        run(server, "GRANT MONITOR ON SERVER TO bob", *ROOT)
        assert run(server, users, *BOB) == [("ann",), ("bob",), ("root",)]
        made = run(server, "SELECT event, action, client_address, objects_written, outcome FROM system.audit "
                           "WHERE text = 'CREATE SCHEMA shop'", *BOB)
        assert made == [("statement", "ddl", "127.0.0.1", "shop", "done")]


def test_a_full_file_is_rotated(tmp_path):
    with closed(tmp_path, what="all", max_bytes="64KiB", keep=2) as server:
        with connect(server, *ANN) as connection, connection.cursor() as cursor:
            for number in range(300):
                execute(cursor, f"SELECT '{number:04}{'x' * 1000}'")
        old = [server.trail.with_name(f"audit.log.{number}") for number in (1, 2)]
        eventually(lambda: all(path.exists() for path in old))
        eventually(lambda: any("0299" in event.get("text", "") for event in events(server)))
        assert sorted(path.name for path in server.trail.parent.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
        assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in old)
        assert all(path.stat().st_size < 80 << 10 for path in [server.trail, *old])
        kept = [event["number"] for path in [*reversed(old), server.trail] for event in events(server, path)]
        assert kept == list(range(kept[0], kept[0] + len(kept))), "none is lost between files"


def test_a_lost_folder_raises_a_metric_and_is_written_again(tmp_path):
    with closed(tmp_path) as server:
        eventual(server, event="access")
        shutil.rmtree(server.trail.parent)
        run(server, "CREATE SCHEMA lost", *ANN)
        eventually(lambda: metric(server, "terrace_audit_failing") == 1)
        assert run(server, "SELECT 1", *ANN) == [(1,)], "the server goes on"
        server.trail.parent.mkdir()
        assert eventual(server, text="CREATE SCHEMA lost")["outcome"] == "done"
        eventually(lambda: metric(server, "terrace_audit_failing") == 0)
        assert metric(server, "terrace_audit_lost_events_total") == 0
        server.trail.rename(tmp_path / "moved")
        run(server, "CREATE SCHEMA moved", *ANN)
        assert eventual(server, text="CREATE SCHEMA moved")["outcome"] == "done"


def test_without_a_folder_the_server_does_not_start(tmp_path):
    with pytest.raises(RuntimeError, match="audit trail"):
        Server(tmp_path / "data", env={"TERRACE_AUDIT_FILE": str(tmp_path / "none" / "audit.log")})


def start_endless(server, *login):
    """Runs an endless query until it ends, and returns the thread with its error, and the id of the statement."""
    errors = []

    def query():
        try:
            run(server, ENDLESS, *login)
        except adbc_driver_manager.Error as error:
            errors.append(error)

    thread = threading.Thread(target=query)
    thread.start()
    shown = f"SELECT id FROM system.queries WHERE user_name = '{login[0]}' AND state = 'running' AND sql LIKE '%1000000) a%'"
    own = f"{shown} AND sql NOT LIKE '%system.queries%'"
    eventually(lambda: run(server, own, *ROOT))
    return thread, errors, run(server, own, *ROOT)[0][0]


def test_statements_are_ended_by_their_user_and_with_the_right_to(tmp_path):
    with closed(tmp_path) as server:
        delete = ("-X", "DELETE")
        # By HTTP: foreign ones are like unknown ones, own ones need no right.
        thread, errors, id = start_endless(server, *ANN)
        path = f"/api/v1/queries/{id}"
        assert curl(server, path, *delete)[0] == 401
        code, foreign = curl(server, path, *delete, "-u", f"bob:{PASSWORD}")
        unknown = curl(server, "/api/v1/queries/none", *delete, "-u", f"bob:{PASSWORD}")[1]
        assert code == 404 and foreign.replace(id, "none") == unknown
        assert curl(server, path, *delete, "-u", f"ann:{PASSWORD}")[0] == 204
        thread.join(60)
        assert errors and curl(server, path, *delete, "-u", f"ann:{PASSWORD}")[0] == 409
        cancelled = eventual(server, event="cancel", outcome="done")
        assert cancelled["user"] == "ann" and cancelled["statement"] == id and cancelled["port"] == "http", cancelled
        assert eventual(server, event="cancel", outcome="refused")["user"] == "bob"
        # By SQL, with the right to.
        thread, errors, id = start_endless(server, *ANN)
        assert "no statement" in refusal(server, f"CANCEL QUERY '{id}'", *BOB)[1]
        run(server, "GRANT MONITOR ON SERVER TO bob", *ROOT)
        assert "CANCEL ON SERVER" in refusal(server, f"CANCEL QUERY '{id}'", *BOB)[1]
        assert curl(server, f"/api/v1/queries/{id}", *delete, "-u", f"bob:{PASSWORD}")[0] == 403
        run(server, "GRANT CANCEL ON SERVER TO bob", *ROOT)
        run(server, f"CANCEL QUERY '{id}'", *BOB)
        thread.join(60)
        assert errors and eventual(server, event="cancel", outcome="done", user="bob")["port"] == "flight"
        thread, errors, id = start_endless(server, *ANN)
        assert curl(server, f"/api/v1/queries/{id}", *delete, "-u", f"bob:{PASSWORD}")[0] == 204
        thread.join(60)
        assert errors
