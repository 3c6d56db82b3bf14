"""Roles and rights, with real clients: ADBC and curl."""

import threading

import adbc_driver_manager
import pyarrow
import pytest

from helpers import error_of, eventually, execute
from server import Server
from test_users import PASSWORD, connect, curl, make_user, refusal, run

ROOT, ANN, BOB = ("root", PASSWORD), ("ann", PASSWORD), ("bob", PASSWORD)
JSON = ("-H", "Content-Type: application/json")


@pytest.fixture
def server(tmp_path):
    make_user(tmp_path / "data", "create", "root")
    with Server(tmp_path / "data") as server:
        for name in ("ann", "bob"):
            run(server, f"CREATE USER {name} PASSWORD '{PASSWORD}'", *ROOT)
        run(server, "GRANT CREATE ON DATABASE terrace TO ann", *ROOT)
        run(server, "CREATE SCHEMA shop", *ANN)
        run(server, "CREATE TABLE shop.orders AS SELECT 1 AS id, 'pear' AS what", *ANN)
        run(server, "CREATE TABLE shop.bills AS SELECT 1 AS id", *ANN)
        yield server


def status(error):
    return error.status_code.name


def denied(action):
    error = error_of(action)
    assert status(error) in ("UNAUTHORIZED", "NOT_FOUND"), error
    return str(error)


def test_a_revoke_acts_on_the_next_call(server):
    query = "SELECT what FROM shop.orders WHERE id = ?"
    run(server, "GRANT SELECT ON shop.orders TO bob", *ANN)
    with connect(server, *BOB) as connection, connection.cursor() as cursor, connection.cursor() as other:
        assert execute(cursor, query, (1,)) == [("pear",)]
        cursor.adbc_prepare(query)
        assert execute(cursor, query, (1,)) == [("pear",)]
        execute(other, "BEGIN")
        assert execute(other, "SELECT count(*) FROM shop.orders") == [(1,)]
        run(server, "REVOKE SELECT ON shop.orders FROM bob", *ANN)
        assert "shop.orders" in denied(lambda: execute(other, "SELECT count(*) FROM shop.orders"))
        execute(other, "ROLLBACK")
        denied(lambda: execute(cursor, query, (1,)))
        run(server, "GRANT USAGE ON SCHEMA shop TO bob", *ANN)
        assert "permission denied for table shop.orders" in denied(lambda: execute(cursor, query, (1,)))
        run(server, "CREATE ROLE clerks", *ROOT)
        run(server, "GRANT clerks TO bob", *ROOT)
        run(server, "GRANT SELECT, INSERT ON shop.orders TO clerks", *ANN)
        assert execute(cursor, query, (1,)) == [("pear",)], "the session goes on"
        run(server, "REVOKE clerks FROM bob", *ROOT)
        denied(lambda: execute(cursor, query, (1,)))


def test_metadata_shows_what_one_may_see(server):
    run(server, "GRANT SELECT ON shop.orders TO bob", *ANN)
    run(server, "CREATE SCHEMA hidden", *ANN)
    with connect(server, *BOB) as connection, connection.cursor() as cursor:
        [catalog] = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
        schemas = {schema["db_schema_name"]: schema["db_schema_tables"] for schema in catalog["catalog_db_schemas"]}
        assert "hidden" not in schemas
        assert [table["table_name"] for table in schemas["shop"]] == ["orders"]
        assert connection.adbc_get_table_schema("orders", db_schema_filter="shop").names == ["id", "what"]
        with pytest.raises(adbc_driver_manager.Error):
            connection.adbc_get_table_schema("bills", db_schema_filter="shop")
        shown = [row[2] for row in execute(cursor, "SHOW TABLES") if row[1] == "shop"]
        assert shown == ["orders"]
        assert execute(cursor, "SELECT table_name FROM system.tables") == [("orders",)]
        assert execute(cursor, "SELECT DISTINCT user_name FROM system.queries") == [("bob",)]
        assert execute(cursor, "SELECT name FROM system.users") == [("bob",)]
        denied(lambda: execute(cursor, "SELECT * FROM system.tiers"))
        run(server, "GRANT MONITOR ON SERVER TO bob", *ROOT)
        assert execute(cursor, "SELECT count(*) FROM system.tables") == [(2,)]
        assert len(execute(cursor, "SELECT DISTINCT user_name FROM system.queries")) > 1
        assert execute(cursor, "SELECT count(*) > 0 FROM system.tiers") == [(True,)]
    held = run(server, "SELECT grantee, object_kind, table_name, privilege, granted_by FROM system.grants WHERE grantee = 'bob' "
                       "ORDER BY privilege", *ROOT)
    assert held == [("bob", "server", None, "MONITOR", "root"), ("bob", "table", "orders", "SELECT", "ann")]


def test_rights_on_columns_and_policies_on_rows(server):
    run(server, "CREATE TABLE shop.staff AS SELECT 'bob' AS name, 10 AS pay UNION ALL SELECT 'eve', 0", *ANN)
    run(server, "GRANT SELECT (name) ON shop.staff TO bob", *ANN)
    assert run(server, "SELECT name FROM shop.staff ORDER BY name", *BOB) == [("bob",), ("eve",)]
    assert "column pay of table shop.staff" in refusal(server, "SELECT * FROM shop.staff", *BOB)[1]
    run(server, "GRANT SELECT, INSERT ON shop.staff TO bob", *ANN)
    assert "zero" in refusal(server, "SELECT sum(1 / pay) FROM shop.staff", *BOB)[1].lower()
    run(server, "CREATE POLICY own ON shop.staff USING (name = current_user)", *ANN)
    run(server, "ALTER TABLE shop.staff ENABLE ROW LEVEL SECURITY", *ANN)
    with connect(server, *BOB) as connection, connection.cursor() as cursor:
        assert execute(cursor, "SELECT name, pay FROM shop.staff") == [("bob", 10)]
        assert execute(cursor, "SELECT count(*) FROM shop.staff WHERE 1 / pay < 1") == [(1,)]
        denied(lambda: execute(cursor, "INSERT INTO shop.staff VALUES ('eve', 1)"))
        rows = pyarrow.table({"name": ["eve"], "pay": pyarrow.array([1], pyarrow.int64())})
        denied(lambda: cursor.adbc_ingest("staff", rows, mode="append", db_schema_name="shop"))
        assert "RowPolicyExec" in str(execute(cursor, "EXPLAIN SELECT name FROM shop.staff"))
    assert run(server, "SELECT count(*) FROM shop.staff", *ANN) == [(2,)]
    assert run(server, "SELECT policy_name, enabled FROM system.row_policies", *ANN) == [("own", True)]


def test_views_show_what_their_owner_may_read(server):
    run(server, "CREATE VIEW shop.fruit AS SELECT what FROM shop.orders", *ANN)
    run(server, "GRANT SELECT ON shop.fruit TO PUBLIC", *ANN)
    assert run(server, "SELECT what FROM shop.fruit", *BOB) == [("pear",)]
    assert "shop.orders" in refusal(server, "SELECT what FROM shop.orders", *BOB)[1]
    run(server, "ALTER VIEW shop.fruit OWNER TO bob", *ROOT)
    assert "cannot be planned" in refusal(server, "SELECT what FROM shop.fruit", *ANN)[1]


def test_a_view_may_be_read_with_the_rights_of_who_asks(server):
    run(server, "CREATE VIEW shop.fruit WITH (security_invoker = true) AS SELECT what FROM shop.orders", *ANN)
    run(server, "GRANT SELECT ON shop.fruit TO bob", *ANN)
    assert "cannot be planned" in refusal(server, "SELECT what FROM shop.fruit", *BOB)[1]
    run(server, "GRANT SELECT ON shop.orders TO bob", *ANN)
    assert run(server, "SELECT what FROM shop.fruit", *BOB) == [("pear",)]


def test_rows_go_in_with_the_right_to_and_not_without(server):
    rows = pyarrow.table({"id": pyarrow.array([2], pyarrow.int64()), "what": ["plum"]})
    with connect(server, *BOB) as connection, connection.cursor() as cursor:
        for mode in ("append", "create_append", "replace", "create"):
            with pytest.raises(adbc_driver_manager.Error):
                cursor.adbc_ingest("orders", rows, mode=mode, db_schema_name="shop")
        run(server, "GRANT INSERT ON shop.orders TO bob", *ANN)
        cursor.adbc_ingest("orders", rows, mode="append", db_schema_name="shop")
        execute(cursor, "INSERT INTO shop.orders VALUES (3, 'fig')")
        denied(lambda: execute(cursor, "INSERT INTO shop.orders SELECT * FROM shop.orders"))
        denied(lambda: execute(cursor, "SELECT * FROM shop.orders"))
        denied(lambda: execute(cursor, "DELETE FROM shop.orders"))
    assert run(server, "SELECT count(*) FROM shop.orders", *ANN) == [(3,)]


def test_requests_over_http_need_their_rights(server):
    login = ("-u", f"bob:{PASSWORD}")
    post = (*login, "-X", "POST", *JSON, "-d", "{}")
    assert curl(server, "/healthz")[0] == 200 and curl(server, "/metrics")[0] == 401
    assert curl(server, "/", *login)[0] == 200 and curl(server, "/api/v1/openapi.json", *login)[0] == 200
    for path in ("/metrics", "/metrics/segments", "/api/v1/tables", "/api/v1/queries", "/api/v1/history", "/api/v1/tables/shop.orders/heatmap"):
        code, text = curl(server, path, *login)
        assert code == 403 and "MONITOR ON SERVER" in text, (path, text)
    run(server, "GRANT MONITOR ON SERVER TO bob", *ROOT)
    assert curl(server, "/metrics", *login)[0] == curl(server, "/api/v1/tables", *login)[0] == 200
    code, text = curl(server, "/api/v1/epochs", *post)
    assert code == 403 and "TIERING ON SERVER" in text
    assert curl(server, "/api/v1/backup", *post)[0] == curl(server, "/api/v1/check", *post)[0] == 403
    sql = ("-d", '{"sql": "select * from shop.orders"}')
    assert curl(server, "/api/v1/explain-placement", *login, "-X", "POST", *JSON, *sql)[0] in (403, 404), "it reads the table"
    run(server, "GRANT TIERING ON SERVER TO bob", *ROOT)
    assert curl(server, "/api/v1/epochs", *post)[0] == 200
    assert curl(server, "/api/v1/check", *post)[0] == 403, "for superusers"
    assert curl(server, "/api/v1/check", "-u", f"root:{PASSWORD}", "-X", "POST", *JSON, "-d", "{}")[0] == 200


def test_a_token_does_what_its_scope_and_its_user_may(server):
    def token(scope, user=ANN):
        return run(server, f"CREATE TOKEN t{abs(hash(scope))} SCOPE {scope}", *user)[0][0]

    reading = token("(SELECT ON shop.orders)")
    for login in ({"token": reading}, {"user": "ann", "password": reading}):
        with connect(server, **login) as connection, connection.cursor() as cursor:
            assert execute(cursor, "SELECT what FROM shop.orders") == [("pear",)]
            for sql in ("SELECT id FROM shop.bills", "INSERT INTO shop.orders VALUES (2, 'fig')", "DROP TABLE shop.orders",
                        "CREATE TABLE shop.more (a BIGINT)", "GRANT SELECT ON shop.orders TO bob"):
                denied(lambda: execute(cursor, sql))
            assert [row[2] for row in execute(cursor, "SHOW TABLES") if row[1] == "shop"] == ["orders"]
    # A superuser's is none.
    watching = token("(MONITOR ON SERVER)", ROOT)
    bearer = ("-H", f"Authorization: Bearer {watching}")
    assert curl(server, "/api/v1/tables", *bearer)[0] == 200
    assert curl(server, "/api/v1/check", *bearer, "-X", "POST", *JSON, "-d", "{}")[0] == 403
    assert curl(server, "/api/v1/tables", "-H", f"Authorization: Bearer {reading}")[0] == 403
    shown = run(server, "SELECT user_name, scope FROM system.tokens ORDER BY user_name", *ROOT)
    assert shown == [("ann", "(SELECT ON table shop.orders)"), ("root", "(MONITOR ON server)")]


def test_workload_groups(server):
    endless = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value + b.value < 0"
    run(server, "CREATE ROLE clerks", *ROOT)
    run(server, "GRANT clerks TO bob", *ROOT)
    run(server, "CREATE WORKLOAD GROUP small WITH (users = 'clerks', max_running = 1, timeout = '300ms')", *ROOT)
    assert "longer than 300ms" in refusal(server, endless, *BOB)[1]
    # Who has limits does not leave them.
    assert "WORKLOAD GROUPS ON SERVER" in refusal(server, "SET workload_group = 'default'", *BOB)[1]
    alter = "ALTER WORKLOAD GROUP small SET (timeout = none, weight = 3)"
    assert "WORKLOAD GROUPS ON SERVER" in denied(lambda: run(server, alter, *BOB))
    run(server, "GRANT WORKLOAD GROUPS, MONITOR ON SERVER TO bob", *ROOT)
    run(server, alter, *BOB)
    shown = "SELECT name, users, is_configured, weight, max_running, timeout_us FROM system.workload_groups ORDER BY name"
    assert run(server, shown, *BOB) == [("default", "", True, 1, None, None), ("small", "clerks", False, 3, 1, None)]
    assert "in the configuration" in refusal(server, "DROP WORKLOAD GROUP default", *BOB)[1]
    run(server, "DROP WORKLOAD GROUP small", *BOB)
    assert run(server, shown, *BOB) == [("default", "", True, 1, None, None)]


def test_default_privileges(server):
    default = "ALTER DEFAULT PRIVILEGES IN SCHEMA shop"
    run(server, f"{default} GRANT SELECT ON TABLES TO bob", *ANN)
    run(server, "CREATE TABLE shop.later AS SELECT 7 AS id", *ANN)
    rows = pyarrow.table({"id": pyarrow.array([8], pyarrow.int64())})
    with connect(server, *ANN) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("ingested", rows, mode="create", db_schema_name="shop")
    assert run(server, "SELECT id FROM shop.later UNION ALL SELECT id FROM shop.ingested ORDER BY id", *BOB) == [(7,), (8,)]
    assert "shop.orders" in refusal(server, "SELECT id FROM shop.orders", *BOB)[1]
    shown = "SELECT maker, schema_name, grantee, privilege FROM system.default_grants"
    assert run(server, shown, *BOB) == [("ann", "shop", "bob", "SELECT")]
    run(server, f"{default} REVOKE SELECT ON TABLES FROM bob", *ANN)
    assert run(server, shown, *ROOT) == []


def test_a_revoke_ends_running_statements(server):
    run(server, "GRANT SELECT ON shop.orders TO bob", *ANN)
    endless = ("SELECT count(*) FROM shop.orders o, generate_series(1, 1000000) a, generate_series(1, 1000000) b "
               "WHERE a.value + b.value < o.id - 10")
    ended = []
    client = threading.Thread(target=lambda: ended.append(refusal(server, endless, *BOB)))
    client.start()
    state = "SELECT state FROM system.queries WHERE user_name = 'bob' AND sql LIKE 'SELECT count%'"
    eventually(lambda: ("running",) in run(server, state, *ROOT))
    run(server, "REVOKE SELECT ON shop.orders FROM bob", *ANN)
    client.join(timeout=20)
    assert ended and "its right was revoked" in ended[0][1], ended
    assert run(server, state, *ROOT) == [("cancelled",)]


#: What a superuser takes away from somebody; the time of a token ends by itself.
TAKEN = {
    "right": "REVOKE SELECT ON shop.orders FROM bob",
    "password": "ALTER USER bob PASSWORD 'battery staple'",
    "token": "DROP TOKEN job FOR bob",
    "user": "DROP USER bob",
    "time": None,
}


@pytest.mark.parametrize("what", TAKEN)
def test_planned_and_running_statements_end_with_what_let_them_in(server, what):
    run(server, "GRANT SELECT ON shop.orders TO bob", *ROOT)
    login = {"user": "bob", "password": PASSWORD}
    if what in ("token", "time"):
        valid = " VALID FOR '10s'" if what == "time" else ""
        login = {"token": run(server, f"CREATE TOKEN job{valid}", *BOB)[0][0]}
    endless = ("SELECT count(*) FROM shop.orders o, generate_series(1, 1000000) a, generate_series(1, 1000000) b "
               "WHERE a.value + b.value < o.id - 10")
    state = "SELECT state FROM system.queries WHERE user_name = 'bob' AND sql LIKE 'SELECT count%'"
    with connect(server, **login) as connection, connection.cursor() as cursor:
        planned = [cursor.adbc_execute_partitions("SELECT what FROM shop.orders")[0][0] for _ in range(2)]
        cursor.adbc_read_partition(planned[0])
        assert cursor.fetchall() == [("pear",)]
        ended = []
        client = threading.Thread(target=lambda: ended.append(refusal(server, endless, **login)))
        client.start()
        eventually(lambda: ("running",) in run(server, state, *ROOT))
        if TAKEN[what]:
            run(server, TAKEN[what], *ROOT)
        client.join(timeout=30)
        assert ended
        eventually(lambda: run(server, state, *ROOT) == [("cancelled",)])
        with pytest.raises(adbc_driver_manager.Error):
            cursor.adbc_read_partition(planned[1])
            cursor.fetchall()


def test_rights_survive_a_restart(tmp_path):
    make_user(tmp_path / "data", "create", "root")
    with Server(tmp_path / "data") as server:
        run(server, f"CREATE USER bob PASSWORD '{PASSWORD}'", *ROOT)
        run(server, "CREATE TABLE t AS SELECT 1 AS a", *ROOT)
        assert "permission denied for table t" in refusal(server, "SELECT * FROM t", *BOB)[1]
        run(server, "GRANT SELECT ON t TO bob", *ROOT)
        assert server.stop() == 0
    with Server(tmp_path / "data") as server:
        assert run(server, "SELECT * FROM t", *BOB) == [(1,)]
        assert "permission denied" in refusal(server, "DROP TABLE t", *BOB)[1]
