"""Logins by tokens of an OpenID Connect issuer, with real clients: ADBC (its own OAuth flows, too) and curl."""

import json
import os
import re
import subprocess
import sys

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pytest
from adbc_driver_flightsql import DatabaseOptions, OAuthFlowType, OAuthTokenType

from certificates import Authority
from helpers import error_of, eventually, execute
from issuer import AUDIENCE, Issuer, Key, encoded
from server import Server, terrace
from test_users import PASSWORD, connect, curl, make_user, refusal, refused, run

ADMIN = ("admin", PASSWORD)
WHO = "SELECT current_user"


@pytest.fixture
def issuer(tmp_path):
    with Issuer(tmp_path) as issuer:
        yield issuer


def settings(issuer, **others):
    values = {"issuer": issuer.url, "audience": AUDIENCE, **others}
    return [part for key, value in values.items() for part in ("--set", f"oidc.{key}={value}")]


def serve(folder, issuer, *arguments, **others):
    make_user(folder / "data", "create", "admin")
    server = Server(folder / "data", *settings(issuer, **others), *arguments)
    # Before the issuer's tokens count, its keys must be there.
    eventually(lambda: "/keys" in issuer.asked)
    return server


def metric(server, name):
    shown = curl(server, "/metrics", "-u", ":".join(ADMIN))[1]
    return float(re.search(rf"^{name} (\S+)$", shown, re.M).group(1))


def bearer(token):
    return ("-H", f"Authorization: Bearer {token}")


def test_a_token_of_the_issuer_is_a_login_at_both_ports(tmp_path, issuer):
    with serve(tmp_path, issuer) as server:
        token = issuer.token("ann")
        assert refusal(server, WHO, token=token)[0] == "UNAUTHENTICATED", "there is no ann: nobody is made by a token"
        run(server, f"CREATE USER ann PASSWORD '{PASSWORD}'", *ADMIN)
        run(server, "GRANT CREATE ON SCHEMA public TO ann", *ADMIN)
        assert run(server, WHO, token=token) == [("ann",)]
        assert curl(server, "/api/v1/tiers", *bearer(token))[0] == 403
        run(server, "GRANT MONITOR ON SERVER TO ann", *ADMIN)
        assert curl(server, "/api/v1/tiers", *bearer(token))[0] == 200
        assert "by a token" in refusal(server, "ALTER USER ann PASSWORD 'battery staple'", token=token)[1]
        [(own, *_)] = run(server, "CREATE TOKEN job", "ann", PASSWORD)
        assert run(server, WHO, token=own) == [("ann",)], "tokens of this server count still"
        with connect(server, token=token) as connection, connection.cursor() as cursor:
            execute(cursor, "CREATE TABLE t (a BIGINT)")
            execute(cursor, "BEGIN")
            execute(cursor, "INSERT INTO t VALUES (1)")
            run(server, "ALTER TABLE t OWNER TO admin", *ADMIN)
            run(server, "DROP USER ann", *ADMIN)
            assert error_of(lambda: execute(cursor, "COMMIT")).status_code.name == "UNAUTHENTICATED"
        assert curl(server, "/api/v1/tiers", *bearer(token))[0] == 401
        assert metric(server, "terrace_oidc_key_fetches_total") >= 1
        assert metric(server, "terrace_oidc_failed_key_fetches_total") == metric(server, "terrace_oidc_outdated") == 0
        shown = str(run(server, "SELECT sql, error FROM system.queries", *ADMIN)) + server.output()
        assert token.rpartition(".")[2] not in shown and token.split(".")[1] not in shown


def test_wrong_tokens_are_refused_and_delayed(tmp_path, issuer):
    with serve(tmp_path, issuer, user_claim="preferred_username", user_prefix="sso-") as server:
        run(server, f"CREATE USER \"sso-ann\" PASSWORD '{PASSWORD}'", *ADMIN)
        right = issuer.token("7", preferred_username="ann")
        assert run(server, WHO, token=right) == [("sso-ann",)]
        stranger = Key(tmp_path, "stranger")
        stranger.name = "one"
        header, payload, signature = right.split(".")
        unsigned = encoded(json.dumps({"alg": "none", "kid": "one"}).encode())
        name = {"preferred_username": "ann"}
        wrong = [
            issuer.token("ann"),
            issuer.token("7", lifetime_s=-30, **name),
            issuer.token("7", **{**name, "aud": "grafana"}),
            issuer.token("7", **{**name, "iss": "https://login.example"}),
            issuer.token("7", **{**name, "exp": None}),
            issuer.token("7", key=stranger, **name),
            f"{unsigned}.{payload}.",
            f"{header}.{payload}.{signature[:-4]}AAAA",
        ]
        statuses = [curl(server, "/api/v1/tiers", *bearer(token))[0] for token in wrong]
        assert statuses == [401] * len(wrong)
        assert run(server, WHO, token=right) == [("sso-ann",)], "who was let in does not wait"
        assert metric(server, "terrace_network_failed_logins_total") == len(wrong)
        output = server.output()
        for reason in ("expired", "audience", "another issuer", "signature is wrong"):
            assert reason in output, output
        assert not any(token.split(".")[1] in output for token in wrong)


def test_new_keys_are_fetched_but_not_at_will(tmp_path, issuer):
    with serve(tmp_path, issuer) as server:
        run(server, f"CREATE USER ann PASSWORD '{PASSWORD}'", *ADMIN)
        before = issuer.token("ann")
        assert run(server, WHO, token=before) == [("ann",)]
        asked = issuer.asked.count("/keys")
        issuer.keys = [Key(tmp_path, "two", "ES256")]
        after = issuer.token("ann")
        eventually(lambda: not refused(server, after), timeout_s=90)
        assert issuer.asked.count("/keys") == asked + 1, "at most once in ten seconds, and once is enough"
        assert refused(server, before), "its key was taken back"
        # An issuer that is gone leaves the keys in use.
        issuer.close()
        assert run(server, WHO, token=after) == [("ann",)]


def test_what_a_token_opened_ends_with_it(tmp_path, issuer):
    with serve(tmp_path, issuer) as server:
        run(server, f"CREATE USER ann PASSWORD '{PASSWORD}'", *ADMIN)
        run(server, "GRANT CREATE ON SCHEMA public TO ann", *ADMIN)
        short = issuer.token("ann", lifetime_s=10)
        endless = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value + b.value < 0"
        state = "SELECT state FROM system.queries WHERE user_name = 'ann' AND kind = 'query' AND sql LIKE 'SELECT count%'"
        program = ("import sys, test_users, types\n"
                   "test_users.run(types.SimpleNamespace(flight=sys.argv[1]), sys.argv[2], token=sys.argv[3])\n")
        with connect(server, token=short) as connection, connection.cursor() as cursor:
            execute(cursor, "CREATE TABLE t (a BIGINT)")
            execute(cursor, "BEGIN")
            execute(cursor, "INSERT INTO t VALUES (1)")
            client = subprocess.Popen([sys.executable, "-c", program, server.flight, endless, short], stderr=subprocess.PIPE,
                                      text=True, env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)})
            eventually(lambda: ("running",) in run(server, state, *ADMIN), timeout_s=14)
            # Ten seconds, five for clocks that differ, and one to end.
            eventually(lambda: run(server, state, *ADMIN) == [("cancelled",)], timeout_s=30)
            assert client.wait(timeout=20) != 0
            assert error_of(lambda: execute(cursor, "COMMIT")).status_code.name == "UNAUTHENTICATED"
        assert run(server, "SELECT count(*) FROM t", *ADMIN) == [(0,)], "its transaction is rolled back"


def test_clients_log_in_at_the_issuer_by_themselves(tmp_path, issuer):
    ours = Authority(tmp_path, "ours")
    cert, key = ours.issue("server", "localhost", "127.0.0.1")
    # The driver shows such tokens over TLS only.
    with serve(tmp_path, issuer, "--tls-cert", cert, "--tls-key", key) as server:
        common = {
            DatabaseOptions.TLS_ROOT_CERTS.value: ours.ca.read_text(),
            DatabaseOptions.OAUTH_TOKEN_URI.value: f"{issuer.url}/token",
        }
        credentials = {
            DatabaseOptions.OAUTH_FLOW.value: OAuthFlowType.CLIENT_CREDENTIALS.value,
            DatabaseOptions.OAUTH_CLIENT_ID.value: "ann",
            DatabaseOptions.OAUTH_CLIENT_SECRET.value: issuer.SECRET,
        }
        exchange = {
            DatabaseOptions.OAUTH_FLOW.value: OAuthFlowType.TOKEN_EXCHANGE.value,
            DatabaseOptions.OAUTH_EXCHANGE_SUBJECT_TOKEN.value: issuer.SUBJECT_TOKEN,
            DatabaseOptions.OAUTH_EXCHANGE_SUBJECT_TOKEN_TYPE.value: OAuthTokenType.ACCESS_TOKEN.value,
        }

        def ask(options, sql=WHO):
            with flight_sql.connect(f"grpc+tls://{server.flight}", db_kwargs={**common, **options}, autocommit=True) as connection:
                with connection.cursor() as cursor:
                    return execute(cursor, sql)

        admin = {"username": "admin", "password": PASSWORD}
        with flight_sql.connect(f"grpc+tls://{server.flight}", autocommit=True,
                                db_kwargs={DatabaseOptions.TLS_ROOT_CERTS.value: ours.ca.read_text(), **admin}) as connection:
            with connection.cursor() as cursor:
                execute(cursor, f"CREATE USER ann PASSWORD '{PASSWORD}'")
                execute(cursor, "GRANT CREATE ON SCHEMA public TO ann")
        for flow in (credentials, exchange):
            assert ask(flow) == [("ann",)]
        wrong = {**credentials, DatabaseOptions.OAUTH_CLIENT_SECRET.value: "guess"}
        with pytest.raises(adbc_driver_manager.Error):
            ask(wrong)
        # Tokens of eleven seconds, which the driver renews ten seconds before their end: the session goes on.
        issuer.lifetime_s = 11
        with flight_sql.connect(f"grpc+tls://{server.flight}", db_kwargs={**common, **credentials}, autocommit=True) as connection:
            with connection.cursor() as cursor:
                execute(cursor, "CREATE TABLE t (a BIGINT)")
                execute(cursor, "BEGIN")
                execute(cursor, "INSERT INTO t VALUES (1)")
                given = issuer.asked.count("/token")
                eventually(lambda: execute(cursor, "SELECT count(*) FROM t") == [(1,)] and issuer.asked.count("/token") > given + 3)
                execute(cursor, "COMMIT")


def test_keys_may_come_from_a_file(tmp_path, issuer):
    make_user(tmp_path / "data", "create", "admin")
    keys = tmp_path / "keys.json"
    arguments = settings(issuer, keys_file=keys)
    common = ["serve", "--data-dir", tmp_path / "data", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", *arguments]
    stopped = terrace(*common, check=False, seconds=30)
    assert stopped.returncode == 1 and "keys.json" in stopped.stderr, stopped.stderr
    keys.write_text(json.dumps(issuer.key_set()))
    with Server(tmp_path / "data", *arguments) as server:
        assert run(server, WHO, token=issuer.token("admin")) == [("admin",)]
        assert issuer.asked == []
        issuer.keys = [Key(tmp_path, "two", "ES256")]
        keys.write_text(json.dumps(issuer.key_set()))
        eventually(lambda: not refused(server, issuer.token("admin")), timeout_s=60)
        keys.write_text("{")
        eventually(lambda: metric(server, "terrace_oidc_outdated") == 1, timeout_s=30)
        assert run(server, WHO, token=issuer.token("admin")) == [("admin",)]
        assert "cannot be fetched" in server.output()


def test_settings_that_do_not_fit_stop_the_start(tmp_path):
    common = ["serve", "--data-dir", tmp_path / "data", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]
    for values, named in (
        ({"issuer": "https://login.example"}, "oidc.audience"),
        ({"issuer": "http://login.example", "audience": "terrace"}, "oidc.issuer"),
        ({"issuer": "https://login.example", "audience": "terrace", "algorithms": "RS256,HS256"}, "HS256"),
        ({"issuer": "https://login.example", "audience": "terrace", "algorithms": "none"}, "none"),
    ):
        arguments = [part for key, value in values.items() for part in ("--set", f"oidc.{key}={value}")]
        stopped = terrace(*common, *arguments, check=False, seconds=30)
        assert stopped.returncode == 1 and named in stopped.stderr, (values, stopped.stderr)
