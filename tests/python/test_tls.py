"""TLS of both ports, with real clients: ADBC (Go), pyarrow (C++), curl, and the command line. JDBC is in tests/java."""

import re
import socket
import ssl
import subprocess
import time
import urllib.request

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow.flight
import pytest
from adbc_driver_flightsql import DatabaseOptions

from certificates import Authority
from helpers import eventually, execute
from server import Server, terrace

LOCAL = ("localhost", "127.0.0.1")


def serve(folder, certificate, *arguments, **options):
    cert, key = certificate
    return Server(folder / "data", "--tls-cert", cert, "--tls-key", key, *arguments, **options)


def adbc(server, ca, certificate=None, sql="SELECT 42"):
    """One query by ADBC over TLS."""
    options = {DatabaseOptions.TLS_ROOT_CERTS.value: ca.read_text()}
    if certificate:
        cert, key = certificate
        options[DatabaseOptions.MTLS_CERT_CHAIN.value] = cert.read_text()
        options[DatabaseOptions.MTLS_PRIVATE_KEY.value] = key.read_text()
    with flight_sql.connect(f"grpc+tls://{server.flight}", db_kwargs=options, autocommit=True) as connection:
        with connection.cursor() as cursor:
            return execute(cursor, sql)


def curl(server, path, *arguments):
    asked = subprocess.run(["curl", "-sS", "--max-time", "10", *map(str, arguments), f"https://{server.http}{path}"],
                           capture_output=True, text=True)
    return asked.returncode, asked.stdout + asked.stderr


def metric(server, ca, name):
    code, text = curl(server, "/metrics", "--cacert", ca)
    assert code == 0, text
    return float(re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M).group(1))


def test_clients_connect_by_tls_and_by_nothing_else(tmp_path):
    ours = Authority(tmp_path, "ours")
    with serve(tmp_path, ours.issue("server", *LOCAL)) as server:
        assert adbc(server, ours.ca) == [(42,)]
        code, text = curl(server, "/readyz", "--cacert", ours.ca)
        assert code == 0 and '"ready"' in text, text
        code, text = curl(server, "/readyz")
        assert code == 60, text
        options = pyarrow.flight.FlightClient(f"grpc+tls://{server.flight}", tls_root_certs=ours.ca.read_text())
        assert options.list_actions()
        place = ["--url", f"grpc+tls://{server.flight}", "--ca", ours.ca]
        rows = tmp_path / "t.csv"
        rows.write_text("id\n1\n2\n")
        assert terrace("load", rows, *place).returncode == 0
        assert terrace("sql", "--format", "csv", "select sum(id) as s from t", *place).stdout.split() == ["s", "3"]
        http = ["--http-addr", f"https://{server.http}", "--ca", ours.ca]
        assert terrace("health", *http).returncode == 0
        assert "dram" in terrace("tiers", "list", *http).stdout
        # By the environment, too.
        trusting = {"TERRACE_URL": f"grpc+tls://{server.flight}", "TERRACE_CA": str(ours.ca)}
        assert terrace("sql", "--format", "csv", "select 1 as n", env=trusting).stdout.split() == ["n", "1"]
        # Whom nobody vouches for, and whoever does not encrypt, gets an error that says what to do.
        for arguments, advice in (
            (["sql", "select 1", *place[:2]], "--ca"),
            (["sql", "select 1", "--url", f"grpc://{server.flight}"], "grpc+tls://"),
            (["health", "--http-addr", server.http], "https://"),
        ):
            refused = terrace(*arguments, check=False)
            assert refused.returncode == 1 and advice in refused.stderr, (arguments, refused.stderr)
        with pytest.raises(adbc_driver_manager.Error):
            adbc(server, Authority(tmp_path, "others").ca)
        assert "grpc+tls://" in server.output() and "https://" in server.output()
        assert server.stop() == 0


def test_old_protocols_are_not_spoken(tmp_path):
    ours = Authority(tmp_path, "ours")
    with serve(tmp_path, ours.issue("server", *LOCAL)) as server:
        host, port = server.http.split(":")
        for version in ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
            context = ssl.create_default_context(cafile=ours.ca)
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                if version == ssl.TLSVersion.TLSv1_1:
                    # The server's alert, not a refusal of this machine's own library.
                    with pytest.raises(ssl.SSLError, match="(?i)alert"):
                        context.wrap_socket(plain, server_hostname="localhost")
                else:
                    assert context.wrap_socket(plain, server_hostname="localhost").version() == version.name.replace("_", ".")


def test_clients_that_must_show_a_certificate(tmp_path):
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    friend, stranger = ours.issue("friend"), others.issue("stranger")
    with serve(tmp_path, ours.issue("server", *LOCAL), "--set", f"tls.client_ca={ours.ca}",
               "--set", "http.health_addr=127.0.0.1:0") as server:
        assert adbc(server, ours.ca, friend) == [(42,)]
        for certificate in stranger, None:
            with pytest.raises(adbc_driver_manager.Error):
                adbc(server, ours.ca, certificate)
        shown = ["--cert", friend[0], "--key", friend[1], "--cacert", ours.ca]
        assert curl(server, "/api/v1/tiers", *shown)[0] == 0
        assert curl(server, "/readyz", "--cacert", ours.ca)[0] != 0
        mine = ["--ca", ours.ca, "--cert", friend[0], "--cert-key", friend[1]]
        assert "42" in terrace("sql", "select 42", "--url", f"grpc+tls://{server.flight}", *mine).stdout
        assert terrace("health", "--http-addr", f"https://{server.http}", *mine).returncode == 0
        refused = terrace("sql", "select 42", "--url", f"grpc+tls://{server.flight}", "--ca", ours.ca, check=False)
        assert refused.returncode == 1 and "certificate" in refused.stderr.lower(), refused.stderr
        # The port for probes wants none, and says yes or no.
        for path, answer in ("/healthz", "yes\n"), ("/readyz", "yes\n"):
            with urllib.request.urlopen(f"http://{server.health}{path}") as got:
                assert got.read().decode() == answer
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"http://{server.health}/api/v1/tiers")
        assert missing.value.code == 404
        assert terrace("health", env={"TERRACE_HTTP_HEALTH_ADDR": server.health}).returncode == 0


def test_certificates_that_name_users(tmp_path):
    ours = Authority(tmp_path, "ours")
    made = terrace("user", "create", "ann", "--data-dir", tmp_path / "data", stdin="correct horse\n")
    assert "a superuser" in made.stdout
    options = ["--set", f"tls.client_ca={ours.ca}", "--set", "tls.client_users=true"]
    with serve(tmp_path, ours.issue("server", *LOCAL), *options) as server:
        ann, eve = ours.issue("ann"), ours.issue("eve")
        assert adbc(server, ours.ca, ann, "SELECT current_user") == [("ann",)]
        with pytest.raises(adbc_driver_manager.Error, match="no user of the name"):
            adbc(server, ours.ca, eve)
        for certificate, status in (ann, "200"), (eve, "401"):
            shown = ["--cert", certificate[0], "--key", certificate[1], "--cacert", ours.ca]
            assert curl(server, "/api/v1/tiers", *shown, "-o", "/dev/null", "-w", "%{http_code}") == (0, status)
        # Who shows a password is that user.
        shown = ["--cert", eve[0], "--key", eve[1], "--cacert", ours.ca, "-u", "ann:correct horse"]
        assert curl(server, "/api/v1/tiers", *shown, "-o", "/dev/null", "-w", "%{http_code}") == (0, "200")
    refused = terrace("serve", "--data-dir", tmp_path / "data", "--set", "tls.client_users=true", check=False, seconds=30)
    assert refused.returncode == 1 and "tls.client_ca" in refused.stderr, refused.stderr


def test_renewed_certificates_are_used_without_a_restart(tmp_path):
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    certificate = cert, _ = first.issue("server", *LOCAL)
    with serve(tmp_path, certificate) as server:
        expires = metric(server, first.ca, "terrace_tls_certificate_expiry_timestamp_seconds")
        assert 29 * 86_400 < expires - time.time() < 31 * 86_400
        options = {DatabaseOptions.TLS_ROOT_CERTS.value: first.ca.read_text()}
        with flight_sql.connect(f"grpc+tls://{server.flight}", db_kwargs=options, autocommit=True) as open_before:
            cert.write_text(cert.read_text()[:100])
            eventually(lambda: metric(server, first.ca, "terrace_tls_outdated") == 1)
            assert adbc(server, first.ca) == [(42,)], "the earlier certificate stays in use"
            assert "server.crt" in server.output() and "cannot be used" in server.output()
            second.issue("server", *LOCAL, days=60)
            eventually(lambda: curl(server, "/readyz", "--cacert", second.ca)[0] == 0)
            assert metric(server, second.ca, "terrace_tls_outdated") == 0
            assert metric(server, second.ca, "terrace_tls_reloads_total") >= 1
            assert metric(server, second.ca, "terrace_tls_failed_reloads_total") >= 1
            assert adbc(server, second.ca) == [(42,)]
            with pytest.raises(adbc_driver_manager.Error):
                adbc(server, first.ca)
            # Who was connected stays connected.
            with open_before.cursor() as cursor:
                assert execute(cursor, "SELECT 1") == [(1,)]


def test_renewed_authorities_of_clients_are_used_without_a_restart(tmp_path):
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    friend, stranger = ours.issue("friend"), others.issue("stranger")
    trusted, fresh = tmp_path / "clients.pem", tmp_path / "clients.new"
    trusted.write_text(ours.ca.read_text())
    with serve(tmp_path, ours.issue("server", *LOCAL), "--set", f"tls.client_ca={trusted}") as server:
        def connects(certificate):
            try:
                return adbc(server, ours.ca, certificate) == [(42,)]
            except adbc_driver_manager.Error:
                return False

        assert connects(friend) and not connects(stranger)
        fresh.write_text("no certificate")
        fresh.rename(trusted)
        eventually(lambda: "TLS files cannot be used" in server.output() and "clients.pem" in server.output())
        assert connects(friend) and not connects(stranger), "the earlier ones stay in use"
        fresh.write_text(others.ca.read_text())
        fresh.rename(trusted)
        eventually(lambda: connects(stranger))
        assert not connects(friend)


def test_settings_that_do_not_fit_stop_the_start(tmp_path):
    ours = Authority(tmp_path, "ours")
    cert, key = ours.issue("server", *LOCAL)
    _, other_key = ours.issue("other", *LOCAL)
    common = ["serve", "--data-dir", tmp_path / "data", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]
    for arguments, named in (
        (["--tls-cert", tmp_path / "nowhere.crt", "--tls-key", key], "nowhere.crt"),
        (["--tls-cert", cert, "--tls-key", other_key], "other.key"),
        (["--tls-cert", key, "--tls-key", key], "server.key"),
        (["--set", f"tls.cert={cert}"], "tls.key"),
        (["--set", f"tls.client_ca={ours.ca}"], "tls.client_ca"),
    ):
        refused = terrace(*common, *arguments, check=False, seconds=30)
        assert refused.returncode == 1 and named in refused.stderr, (arguments, refused.stderr)
    # Beyond loopback without TLS only when told, and never without a password.
    beyond = ["serve", "--data-dir", tmp_path / "data", "--flight-addr", "0.0.0.0:0", "--http-addr", "127.0.0.1:0"]
    user = {"TERRACE_USER": "ada", "TERRACE_PASSWORD": "lace"}
    refused = terrace(*beyond, env=user, check=False, seconds=30)
    assert refused.returncode == 1 and "--insecure-listen" in refused.stderr, refused.stderr
    refused = terrace(*beyond, "--insecure-listen", check=False, seconds=30)
    assert refused.returncode == 1 and "TERRACE_PASSWORD" in refused.stderr, refused.stderr
    with Server(tmp_path / "data", "--insecure-listen", env=user, flight_addr="0.0.0.0:0") as server:
        assert "grpc://0.0.0.0:" in server.output() and server.stop() == 0
    with serve(tmp_path, (cert, key), env=user, flight_addr="0.0.0.0:0") as server:
        assert "grpc+tls://0.0.0.0:" in server.output() and server.stop() == 0


def test_connections_and_what_they_leave_half_said_are_bounded(tmp_path):
    ours = Authority(tmp_path, "ours")
    limits = ["--set", "flight.max_connections=5", "--set", "tls.handshake_timeout=5s"]
    with serve(tmp_path, ours.issue("server", *LOCAL), *limits) as server:
        host, port = server.flight.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(5)]
        late = socket.create_connection((host, int(port)))
        late.settimeout(3)
        assert late.recv(1) == b"", "closed at once, before a handshake could be too late"
        # Those that never finish their handshake lose their places.
        eventually(lambda: metric(server, ours.ca, "terrace_tls_failed_handshakes_total") == 5, timeout_s=20)
        assert adbc(server, ours.ca) == [(42,)]
        assert metric(server, ours.ca, "terrace_network_refused_connections_total") == 1
        del silent
