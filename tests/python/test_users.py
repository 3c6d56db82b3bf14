"""Users and tokens, with real clients: ADBC, curl, and the command line."""

import os
import subprocess
import sys

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow
import pytest
from adbc_driver_flightsql import DatabaseOptions

from helpers import error_of, eventually, execute
from server import Server, terrace

PASSWORD = "correct horse"


def connect(server, user=None, password=None, token=None):
    options = {"username": user, "password": password}
    if token:
        options[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {token}"
    options = {key: value for key, value in options.items() if value is not None}
    return flight_sql.connect(f"grpc://{server.flight}", db_kwargs=options, autocommit=True)


def run(server, sql, *login, **token):
    with connect(server, *login, **token) as connection, connection.cursor() as cursor:
        return execute(cursor, sql)


def refusal(server, sql, *login, **token):
    error = error_of(lambda: run(server, sql, *login, **token))
    return error.status_code.name, str(error)


def curl(server, path, *arguments):
    asked = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", "--max-time", "10", *arguments, f"http://{server.http}{path}"],
                           capture_output=True, text=True, check=True)
    text, _, status = asked.stdout.rpartition("\n")
    return int(status), text


def make_user(folder, *arguments, password=PASSWORD, check=True):
    command = ["user", *arguments, "--data-dir", folder]
    return terrace(*command, stdin=f"{password}\n", check=check)


def test_the_first_user_closes_the_server(tmp_path):
    with Server(tmp_path / "data") as server:
        assert "open to every user of this machine" in server.output()
        with connect(server) as anybody, anybody.cursor() as cursor:
            execute(cursor, "CREATE TABLE t (a BIGINT)")
            assert "first user must be a SUPERUSER" in refusal(server, f"CREATE USER bob PASSWORD '{PASSWORD}'")[1]
            assert curl(server, "/api/v1/tiers")[0] == 200
            execute(cursor, f"CREATE USER ann SUPERUSER PASSWORD '{PASSWORD}'")
            # Whoever came while it was open is out, at the next call.
            error = error_of(lambda: execute(cursor, "SELECT 1"))
            assert error.status_code.name == "UNAUTHENTICATED", error
        assert refusal(server, "SELECT 1")[0] == "UNAUTHENTICATED"
        assert refusal(server, "SELECT 1", "ann", "wrong horse")[0] == "UNAUTHENTICATED"
        assert run(server, "SELECT count(*) FROM t", "ann", PASSWORD) == [(0,)]
        assert curl(server, "/api/v1/tiers")[0] == 401
        assert curl(server, "/api/v1/tiers", "-u", f"ann:{PASSWORD}")[0] == 200
        assert curl(server, "/readyz")[0] == 200
        # No secret in what the server shows.
        run(server, "ALTER USER ann PASSWORD 'battery staple'", "ann", PASSWORD)
        refusal(server, "CREATE USER eve PASSWRD 'hidden horse'", "ann", "battery staple")
        shown = run(server, "SELECT sql, error FROM system.queries", "ann", "battery staple")
        status, told = curl(server, "/api/v1/queries", "-u", "ann:battery staple")
        assert status == 200 and any("CREATE USER ann SUPERUSER PASSWORD ***" in row[0] for row in shown), shown
        for text in (str(shown), told, server.output()):
            for secret in (PASSWORD, "battery staple", "hidden horse"):
                assert secret not in text
        assert server.stop() == 0
    with Server(tmp_path / "data") as server:
        assert "requires user and password, or a token" in server.output()
        assert run(server, "SELECT count(*) FROM t", "ann", "battery staple") == [(0,)]


def test_users_change_themselves_and_superusers_all(tmp_path):
    make_user(tmp_path / "data", "create", "ann")
    owner = {"TERRACE_USER": "owner", "TERRACE_PASSWORD": "of the configuration"}
    with Server(tmp_path / "data", env=owner) as server:
        ann, bob = ("ann", PASSWORD), ("bob", PASSWORD)
        run(server, f"CREATE USER bob WITH PASSWORD '{PASSWORD}'", *ann)
        listed = "SELECT name, is_superuser, is_configured FROM system.users"
        assert run(server, listed, *ann) == [("owner", True, True), ("ann", True, False), ("bob", False, False)]
        assert run(server, listed, *bob) == [("bob", False, False)]
        for sql in ("CREATE USER eve PASSWORD 'correct horse'", "DROP USER ann", "ALTER USER bob SUPERUSER",
                    "ALTER USER ann PASSWORD 'correct horse'", "CREATE TOKEN t FOR ann"):
            assert "superuser" in refusal(server, sql, *bob)[1], sql
        assert "TERRACE_USER" in refusal(server, "DROP USER owner", *ann)[1]
        assert "already exists" in refusal(server, f"CREATE USER bob PASSWORD '{PASSWORD}'", *ann)[1]
        assert "8 to 1024" in refusal(server, "CREATE USER eve PASSWORD 'short'", *ann)[1]
        run(server, "DROP USER IF EXISTS eve", *ann)
        with connect(server, *bob) as connection, connection.cursor() as cursor:
            assert execute(cursor, "SELECT current_user") == [("bob",)]
            run(server, "ALTER USER bob PASSWORD 'battery staple'", *bob)
            error = error_of(lambda: execute(cursor, "SELECT 1"))
            assert error.status_code.name == "UNAUTHENTICATED" and "log in again" in str(error), error
        bob = ("bob", "battery staple")
        run(server, "GRANT CREATE ON SCHEMA public TO bob", *ann)
        with connect(server, *bob) as connection, connection.cursor() as cursor:
            execute(cursor, "CREATE TABLE t (a BIGINT)")
            execute(cursor, "BEGIN")
            execute(cursor, "INSERT INTO t VALUES (1)")
            assert "owns table public.t" in refusal(server, "DROP USER bob", *ann)[1]
            run(server, "ALTER TABLE t OWNER TO ann", *ann)
            run(server, "DROP USER bob", *ann)
            assert error_of(lambda: execute(cursor, "COMMIT")).status_code.name == "UNAUTHENTICATED"
        assert run(server, "SELECT count(*) FROM t", *ann) == [(0,)], "its transaction is rolled back"
        assert refusal(server, "SELECT 1", *bob)[0] == "UNAUTHENTICATED"


def test_a_running_statement_ends_with_its_user(tmp_path):
    make_user(tmp_path / "data", "create", "ann")
    with Server(tmp_path / "data") as server:
        run(server, f"CREATE USER bob PASSWORD '{PASSWORD}'", "ann", PASSWORD)
        endless = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value + b.value < 0"
        state = "SELECT state FROM system.queries WHERE user_name = 'bob' AND kind = 'query' AND sql LIKE 'SELECT count%'"
        program = ("import sys, test_users, types\n"
                   "test_users.run(types.SimpleNamespace(flight=sys.argv[1]), sys.argv[2], 'bob', test_users.PASSWORD)\n")
        client = subprocess.Popen([sys.executable, "-c", program, server.flight, endless], stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)})
        eventually(lambda: ("running",) in run(server, state, "ann", PASSWORD))
        run(server, "DROP USER bob", "ann", PASSWORD)
        eventually(lambda: run(server, state, "ann", PASSWORD) == [("cancelled",)], timeout_s=10)
        assert client.wait(timeout=20) != 0


def test_tokens(tmp_path):
    make_user(tmp_path / "data", "create", "ann")
    with Server(tmp_path / "data") as server:
        ann = ("ann", PASSWORD)
        run(server, "CREATE TABLE t (a BIGINT)", *ann)
        [(token, user, name, expires)] = run(server, "CREATE TOKEN dashboard READ ONLY VALID FOR '1 day'", *ann)
        assert token.startswith("terrace_") and (user, name) == ("ann", "dashboard") and expires is not None
        assert run(server, "SELECT count(*) FROM t", token=token) == [(0,)]
        assert run(server, "SELECT count(*) FROM t", "ann", token) == [(0,)], "in place of the password"
        for sql in ("INSERT INTO t VALUES (1)", "CREATE TABLE u (a BIGINT)", "DROP TABLE t", "EPOCH NOW", "CANCEL QUERY 'q1'",
                    f"COPY t TO '{tmp_path}/t.csv'", "ALTER USER ann PASSWORD 'battery staple'"):
            assert "READ ONLY" in refusal(server, sql, token=token)[1], sql
        with connect(server, token=token) as connection, connection.cursor() as cursor:
            with pytest.raises(adbc_driver_manager.Error, match="READ ONLY"):
                cursor.adbc_ingest("t", pyarrow.table({"a": [1]}), mode="append")
        bearer = ("-H", f"Authorization: Bearer {token}")
        assert curl(server, "/api/v1/tiers", *bearer)[0] == 200
        status, text = curl(server, "/api/v1/epochs", *bearer, "-X", "POST", "-H", "Content-Type: application/json", "-d", "{}")
        assert status == 403 and "READ ONLY" in text
        [(shared, *_)] = run(server, "CREATE TOKEN job", *ann)
        run(server, "INSERT INTO t VALUES (1)", token=shared)
        for sql in ("CREATE TOKEN more", f"CREATE USER eve PASSWORD '{PASSWORD}'", "ALTER USER ann PASSWORD 'battery staple'"):
            assert "by a token" in refusal(server, sql, token=shared)[1], sql
        listed = run(server, "SELECT user_name, name, is_read_only, expires_at IS NULL FROM system.tokens", *ann)
        assert listed == [("ann", "dashboard", True, False), ("ann", "job", False, True)]
        [(short, *_)] = run(server, "CREATE TOKEN short VALID FOR '1s'", *ann)
        eventually(lambda: refused(server, short), timeout_s=10)
        with connect(server, token=shared) as connection, connection.cursor() as cursor:
            execute(cursor, "SELECT 1")
            run(server, "DROP TOKEN job", *ann)
            assert error_of(lambda: execute(cursor, "SELECT 1")).status_code.name == "UNAUTHENTICATED"
        shown = str(run(server, "SELECT sql, error FROM system.queries", *ann)) + server.output()
        assert token not in shown and shared not in shown
    files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not any(token.encode() in content or PASSWORD.encode() in content for content in files), "stored as hashes"


def refused(server, token):
    try:
        run(server, "SELECT 1", token=token)
    except adbc_driver_manager.Error:
        return True
    return False


def test_users_of_a_data_directory(tmp_path):
    data = tmp_path / "data"
    assert "a superuser" in make_user(data, "create", "ann").stdout
    assert make_user(data, "create", "bob").stdout == "user 'bob' made\n"
    assert "8 to 1024" in make_user(data, "create", "eve", password="short", check=False).stderr
    assert "already exists" in make_user(data, "create", "bob", check=False).stderr
    listed = terrace("user", "list", "--data-dir", data).stdout.splitlines()
    assert [line.split() for line in listed] == [["name", "superuser"], ["ann", "yes"], ["bob", "no"]]
    # A server with users may listen beyond loopback.
    with Server(data, "--insecure-listen", flight_addr="0.0.0.0:0") as server:
        assert run(server, "SELECT 1", "bob", PASSWORD) == [(1,)]
        in_use = make_user(data, "reset", "bob", check=False)
        assert in_use.returncode == 1 and "in use" in in_use.stderr, in_use.stderr
    assert "new password, and is a superuser" in make_user(data, "reset", "bob", password="battery staple").stdout
    with Server(data) as server:
        run(server, "DROP USER ann", "bob", "battery staple")
        assert "last superuser" in refusal(server, "DROP USER bob", "bob", "battery staple")[1]
        assert "last superuser" in refusal(server, "ALTER USER bob NOSUPERUSER", "bob", "battery staple")[1]
        # With users, files may be named below configured folders only.
        assert "files.write_roots" in refusal(server, f"COPY (SELECT 1 AS a) TO '{tmp_path}/a.csv'", "bob", "battery staple")[1]
