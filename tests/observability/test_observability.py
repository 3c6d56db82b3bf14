"""Metrics, dashboard, alerts: scraped from a real server by a real Prometheus after a scripted workload."""

import csv
import io
import json
import math
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
DASHBOARD = TOP / "dashboards/grafana/dashboards/terrace.json"
PROMETHEUS = TOP / "dashboards/prometheus"
TERRACE = os.environ["TERRACE_BIN"]
# The server refuses TERRACE_ variables that it does not know, such as those of the test runner.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TERRACE_")}


def get(url):
    with urllib.request.urlopen(url, timeout=20) as response:
        return response.read().decode()


def send(url, method, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def wait(what, check, seconds=60):
    """Calls `check` until it returns something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = check()
        except (OSError, ValueError):
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# A public key: the first one of RFC 7517, appendix A.1.
KEY = {"kty": "EC", "crv": "P-256", "kid": "1", "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
       "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}


class Server:
    """A server of the test's own, with three tiers and with TLS."""

    def __init__(self, folder):
        ready, tls = folder / "ready.json", folder / "tls"
        subprocess.run([TOP / "deploy/certificates.sh", tls, "localhost", "127.0.0.1"], check=True, timeout=60)
        self.ca = tls / "ca.crt"
        # For this process, and for `terrace` as a client.
        os.environ["SSL_CERT_FILE"] = CLEAN["SSL_CERT_FILE"] = str(self.ca)
        flags = ["--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--memory-limit", "2GiB"]
        flags += ["--tls-cert", tls / "server.crt", "--tls-key", tls / "server.key"]
        # Nobody logs in by it; its metrics are there.
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"keys": [KEY]}))
        for key, value in {"issuer": "https://login.example", "audience": "terrace", "keys_file": keys}.items():
            flags += ["--set", f"oidc.{key}={value}"]
        flags += ["--dram-budget", "48MiB", "--nvm-emulated", "--nvm-capacity", "64MiB", "--set", "tiering.interval=1h"]
        self.process = subprocess.Popen([TERRACE, "serve", "--data-dir", folder / "data", "--ready-file", ready, *flags], env=CLEAN)
        addresses = wait("ready file", lambda: json.loads(ready.read_text()))
        self.flight, self.http = f"grpc+tls://{addresses['flight']}", f"https://{addresses['http']}"
        wait("/readyz", lambda: get(self.http + "/readyz"))

    def sql(self, text, check=True):
        command = [TERRACE, "sql", "--url", self.flight, "--format", "csv", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=CLEAN)
        assert not check or done.returncode == 0, done.stderr
        return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("terrace"))
    yield server
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=60)


def workload(server):
    server.sql("SELECT sum(l_extendedprice * l_discount) FROM lineitem WHERE l_shipdate >= DATE '1996-01-01'")
    server.sql("SELECT count(*) FROM orders WHERE o_totalprice > 1000")
    server.sql("SELECT nothing FROM lineitem", check=False)


@pytest.fixture(scope="session")
def prometheus(server, tmp_path_factory):
    """A Prometheus that runs our configuration, with our server as the target and short intervals."""
    subprocess.run([TERRACE, "load", "tpch:0.02", "--url", server.flight], check=True, timeout=120, capture_output=True, env=CLEAN)
    workload(server)
    folder = tmp_path_factory.mktemp("prometheus")
    text = (PROMETHEUS / "prometheus.yml").read_text()
    assert '"terrace:8080"' in text and "/etc/terrace/ca.crt" in text
    text = text.replace("terrace:8080", server.http.removeprefix("https://")).replace("15s", "1s")
    text = text.replace("/etc/terrace/ca.crt", str(server.ca))
    # This server has no users, and takes any password.
    (folder / "password").write_text("any")
    text = text.replace("/run/secrets/terrace_password", str(folder / "password"))
    (folder / "prometheus.yml").write_text(text)
    (folder / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    port = free_port()
    process = subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"])
    url = f"http://127.0.0.1:{port}"
    wait("prometheus", lambda: get(url + "/-/ready"))
    wait("first scrape", lambda: query(url, 'up{job="terrace"} == 1'))
    send(server.http + "/api/v1/tiers/dram", "PUT", {"budget": "2MiB"})
    report = send(server.http + "/api/v1/epochs", "POST", {"dry_run": False})
    assert report["epoch"]["moves_done"] > 0, report["epoch"]
    for _ in range(4):
        workload(server)
        # Writes to the disk, and reads: everything that is asked for lies in memory.
        server.sql("CREATE TABLE written AS SELECT * FROM lineitem")
        server.sql("DROP TABLE written")
        assert send(server.http + "/api/v1/check", "POST", {})["findings"] == []
        time.sleep(1.2)
    time.sleep(2.5)
    yield url
    process.terminate()
    process.wait(timeout=30)


def query(url, expression):
    found = json.loads(get(f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
    assert found["status"] == "success", found
    return found["data"]["result"]


def dashboard_panels(dashboard):
    """All panels, those in folded rows included, without the rows themselves."""
    inside = [panel for row in dashboard["panels"] for panel in [row, *row.get("panels", [])]]
    return [panel for panel in inside if panel["type"] != "row"]


def dashboard_expressions():
    dashboard = json.loads(DASHBOARD.read_text())
    charts = [(p["title"], t["expr"]) for p in dashboard_panels(dashboard) for t in p.get("targets", [])]
    return charts + [(a["name"], a["expr"]) for a in dashboard["annotations"]["list"] if "expr" in a]


@pytest.mark.parametrize(("title", "expression"), dashboard_expressions())
def test_every_dashboard_expression_returns_a_sample(prometheus, title, expression):
    expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".+")
    assert "$" not in expression
    samples = query(prometheus, expression)
    assert samples, f"{title}: no sample for {expression}"
    assert any(not math.isnan(float(s["value"][1])) for s in samples), f"{title}: only NaN for {expression}"


def test_the_metrics_of_every_alert_exist(prometheus):
    rules = json.loads(get(prometheus + "/api/v1/rules"))["data"]["groups"]
    alerts = [rule for group in rules for rule in group["rules"]]
    assert len(alerts) == 21
    for alert in alerts:
        assert alert["health"] in ("ok", "unknown") and not alert.get("lastError"), alert
        names = set(re.findall(r"\bterrace_\w+|\bup\b", alert["query"]))
        assert names, alert["query"]
        for name in names:
            assert query(prometheus, name), f"{alert['name']}: no sample of {name}"


def test_tier_bytes_equal_the_system_table(prometheus, server):
    rows = server.sql("SELECT tier AS name, used_bytes, budget_bytes, placed_bytes, stored_bytes, segments FROM system.tiers")
    assert {"dram", "nvm", "ssd"} == {row["name"] for row in rows}
    time.sleep(2.5)
    for row in rows:
        for column in ("placed_bytes", "stored_bytes"):
            sample, = query(prometheus, f'terrace_tier_{column}{{tier="{row["name"]}"}}')
            assert int(row[column]) == int(float(sample["value"][1])), (row["name"], column)
        sample, = query(prometheus, f'terrace_tier_placed_segments{{tier="{row["name"]}"}}')
        assert int(row["segments"]) == int(float(sample["value"][1])), row["name"]
    dram = next(row for row in rows if row["name"] == "dram")
    sample, = query(prometheus, 'terrace_tier_budget_bytes{tier="dram"}')
    assert int(dram["budget_bytes"]) == int(float(sample["value"][1])) == 2 << 20
    sample, = query(prometheus, 'terrace_tier_used_bytes{tier="dram"}')
    assert int(float(sample["value"][1])) <= 2 << 20
    segments, = server.sql("SELECT sum(bytes) AS bytes, sum(stored_bytes) AS stored FROM system.segments")
    assert sum(int(row["placed_bytes"]) for row in rows) == int(segments["bytes"])
    assert int(next(r for r in rows if r["name"] == "ssd")["stored_bytes"]) == int(segments["stored"])


def test_errors_and_answers_are_counted_apart(prometheus, server):
    def counted():
        text = get(server.http + "/metrics")
        found = re.findall(r'statements_total\{kind="query",outcome="(\w+)"\} (\d+)', text)
        return {outcome: int(count) for outcome, count in found}

    def counted_once_more(before, outcome):
        expected = before | {outcome: before[outcome] + 1}
        wait(f"one more {outcome}", lambda: counted()[outcome] > before[outcome], 10)
        assert counted() == expected
        return expected

    before = counted()
    server.sql("SELECT 1")
    before = counted_once_more(before, "done")
    # One is refused by the planner, one fails while it runs.
    server.sql("SELECT nothing FROM lineitem", check=False)
    before = counted_once_more(before, "failed")
    server.sql("SELECT CAST(l_comment AS INT) FROM lineitem", check=False)
    counted_once_more(before, "failed")


@pytest.mark.parametrize("path", ["/metrics", "/metrics/segments", "/metrics/segments?limit=7"])
def test_promtool_finds_nothing_to_criticise(prometheus, server, path):
    text = get(server.http + path)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


def test_series_are_bounded_and_segments_say_what_is_left_out(prometheus, server):
    before = len(get(server.http + "/metrics").splitlines())
    for i in range(30):
        server.sql(f"CREATE TABLE many_{i} AS SELECT 1 AS a, 2 AS b")
    assert len(get(server.http + "/metrics").splitlines()) <= before + 5

    def samples(limit):
        text = get(f"{server.http}/metrics/segments?limit={limit}")
        values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("terrace_segment_accesses_total{")]
        left = {m[1]: float(m[2]) for m in re.finditer(r"^terrace_segment_left_out_(\w+) (\S+)$", text, re.M)}
        return values, left

    everything, nothing = samples(100000)
    assert nothing == {"series": 0, "accesses": 0} and everything == sorted(everything, reverse=True)
    few, left = samples(3)
    assert few == everything[:3]
    assert left == {"series": len(everything) - 3, "accesses": sum(everything[3:])}
    line = next(line for line in get(server.http + "/metrics/segments").splitlines() if line.startswith("terrace_segment_acc"))
    assert set(re.findall(r'(\w+)="', line)) == {"table", "column", "batch", "pattern", "tier"}


def test_configuration_and_rules_pass_promtool():
    for command in (["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_of_its_rule():
    named = lambda key, file: set(re.findall(rf"\b{key}: (\w+)", (PROMETHEUS / file).read_text()))
    alerts = named("alert", "alerts.yml")
    assert len(alerts) > 20 and alerts == named("alertname", "alerts_test.yml")


def test_grafana_reads_the_dashboard():
    from grafana_foundation_sdk.models.dashboard import Dashboard

    raw = json.loads(DASHBOARD.read_text())
    parsed = Dashboard.from_json(raw)
    assert parsed.uid == "terrace" and parsed.title == "Terrace"
    panels = dashboard_panels(raw)
    rows = [p for p in raw["panels"] if p["type"] == "row"]
    assert len(raw["panels"]) == len(parsed.panels)
    assert len({p["id"] for p in panels + rows}) == len(panels + rows)
    # Panels of a folded row are laid out when it opens.
    for shown in [raw["panels"], *(row["panels"] for row in rows)]:
        cells = [(x, y) for p in shown for g in [p["gridPos"]] for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]
        assert len(cells) == len(set(cells)), "panels overlap"
    assert all(p["description"] and p["fieldConfig"]["defaults"]["unit"] for p in panels)
    assert [row["title"] for row in rows if not row["collapsed"]] == ["Overview", "Queries"]
    assert all(bool(row["panels"]) == row["collapsed"] for row in rows)
    overview = raw["panels"][1:raw["panels"].index(rows[1])]
    assert len(overview) == 16 and all(p["type"] == "stat" and p["fieldConfig"]["defaults"]["thresholds"]["steps"] for p in overview)
    assert [a["name"] for a in raw["annotations"]["list"] if a.get("useValueForTime")] == ["Restarts", "Epochs that moved segments"]


def test_every_exported_component_is_on_the_dashboard(prometheus, server):
    exported = set(re.findall(r"^# TYPE terrace_([a-z]+)_", get(server.http + "/metrics"), re.M))
    shown = set(re.findall(r"terrace_([a-z]+)_", DASHBOARD.read_text()))
    assert exported - shown <= {"catalog"}, exported - shown


def test_refusals_are_problems_and_change_nothing(server):
    def refused(method, path, headers, body=b"{}"):
        request = urllib.request.Request(server.http + path, body, headers, method=method)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=10)
        problem = json.load(error.value)
        assert error.value.headers["Content-Type"] == "application/problem+json" and problem["detail"]
        return problem["status"]

    json_type = {"Content-Type": "application/json"}
    assert refused("POST", "/api/v1/epochs", {"Content-Type": "text/plain"}) == 415
    assert refused("POST", "/api/v1/epochs", {**json_type, "Origin": "http://evil.example"}) == 403
    assert refused("GET", "/api/v1/tiers", {"Host": "evil.example"}, None) == 421
    assert refused("PUT", "/api/v1/tiers/tape", json_type, b'{"budget": 1}') == 404
    assert refused("PUT", "/api/v1/tiers/dram", json_type, b'{"budget": "much"}') == 422
    assert refused("PUT", "/api/v1/tiers/dram", json_type, b'{"bugdet": 1}') == 422
    assert refused("PUT", "/api/v1/tiers/dram", json_type, b'{"budget": "999TiB"}') == 400
    assert refused("GET", "/api/v1/tables/none/segments", {}, None) == 404
    assert refused("GET", "/api/v1/moves?limit=0", {}, None) == 400
    assert refused("DELETE", "/api/v1/queries/none", {}, None) == 404
    assert refused("DELETE", "/api/v1/tiers", {}, None) == 405
    assert refused("GET", "/nothing", {}, None) == 404


def test_every_documented_route_answers_and_no_other_method_does(server):
    document = json.loads(get(server.http + "/api/v1/openapi.json"))
    for path, item in document["paths"].items():
        url = server.http + re.sub(r"\{\w+\}", "none", path)
        for method in ("get", "put", "post", "delete"):
            # A server that closes a connection before it has read a body resets it, and the rest of a long answer is lost.
            body = None if method == "get" else b'{"dry_run": true}'
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method.upper())
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    status, text = response.status, response.read().decode()
            except urllib.error.HTTPError as error:
                status, text = error.code, error.read().decode()
            assert (status == 405) != (method in item), f"{method} {path}: {status} {text}"
            assert "path '" not in text, f"{method} {path} is documented but not served"
