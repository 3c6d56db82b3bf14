"""Traces: spans of calls, statements and scans, in the trace that a client names, sent to a collector or lost."""

import json
import re
import socket
import time
import urllib.request

import pyarrow.flight as flight
import pytest

from collector import Collector
from helpers import error_of, eventually, numbers
from messages import command, field
from server import Server, terrace

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SERVER_KIND, ERROR = 2, 2


def fetch(server, sql, *headers):
    """The rows of a query, by a client whose calls have these headers."""
    options = flight.FlightCallOptions(headers=[(name.encode(), text.encode()) for name, text in headers])
    with flight.connect(f"grpc://{server.flight}") as client:
        info = client.get_flight_info(command("CommandStatementQuery", field(1, sql.encode())), options)
        return client.do_get(info.endpoints[0].ticket, options).read_all().to_pylist()


def metrics(server):
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=60) as answer:
        found = re.findall(r"^(terrace_trace_\S+) (\S+)$", answer.read().decode(), re.M)
    return {name: float(value) for name, value in found}


def traced(tmp_path, endpoint, *settings, env=None):
    """A server that sends traces."""
    given = [part for setting in (f"traces.endpoint={endpoint}", *settings) for part in ("--set", setting)]
    return Server(tmp_path / "data", *given, env=env)


def below(spans, span):
    return [child for child in spans if child.parent == span.id]


def named(spans, name):
    found = [span for span in spans if span.name == name]
    assert found, f"no '{name}' among {spans}"
    return found[-1]


def refused_port():
    """A port of this machine at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def test_a_trace_leads_from_the_client_to_the_reads_of_a_scan(tmp_path):
    with Collector() as collector, traced(tmp_path, collector.endpoint, "traces.service_name=shop") as server:
        numbers(server, 150_000)
        sql = "select count(*) as n from t where s <> 'geheim' and x >= 0"
        assert fetch(server, sql, ("traceparent", TRACEPARENT), ("tracestate", "vendor=1")) == [{"n": 150_000}]
        logged, = server.query("select id, trace_id from system.query_log where sql like 'select count(*) as n%'").to_pylist()
        assert logged["trace_id"] == TRACE
        assert server.stop() == 0
        spans = collector.spans(TRACE)
        ids = {span.id for span in spans}
        assert all(span.parent in {*ids, PARENT} for span in spans), "one tree"
        assert {span.service for span in spans} == {"shop"} and {span.state for span in spans} == {"vendor=1"}
        calls = [span for span in spans if span.parent == PARENT]
        service = "arrow.flight.protocol.FlightService"
        assert sorted(call.name for call in calls) == [f"{service}/DoGet", f"{service}/GetFlightInfo"], calls
        assert {call.kind for call in calls} == {SERVER_KIND}
        call = named(calls, f"{service}/DoGet")
        assert call.attributes["rpc.system"] == "grpc" and call.attributes["rpc.method"] == "DoGet", call
        assert call.attributes["rpc.grpc.status_code"] == 0 and call.attributes["terrace.rows"] == 1, call
        statement, = below(spans, call)
        assert statement.name == "query" and statement.attributes["db.system.name"] == "terrace", statement
        assert statement.attributes["terrace.statement.id"] == logged["id"]
        assert statement.attributes["db.query.text"] == "select count(*) as n from t where s <> ? and x >= ?"
        assert (statement.attributes["terrace.outcome"], statement.attributes["db.response.returned_rows"]) == ("done", 1)
        parts = below(spans, statement)
        assert {"plan", "wait for a slot", "execute", "scan"} <= {span.name for span in parts}, parts
        scan = named(parts, "scan")
        assert scan.attributes["db.collection.name"].endswith("t") and scan.attributes["terrace.scan.bytes"] > 0, scan
        assert scan.attributes["terrace.scan.chunks"] >= 2, scan
        reads = [event["terrace.bytes"] for name, event in scan.events if name == "segment reads"]
        assert sum(reads) == scan.attributes["terrace.scan.bytes"], scan.events
        assert statement.begin_ns <= scan.begin_ns <= scan.end_ns <= statement.end_ns + 1e9
        assert b"geheim" not in collector.bytes()


def test_a_load_has_a_span_and_its_commit_another(tmp_path):
    with Collector() as collector, traced(tmp_path, collector.endpoint) as server:
        numbers(server, 10)
        server.query("insert into t values (100, 1.5, 'geheim')")
        assert server.stop() == 0
        spans = collector.spans()
        for kind in ("ingest", "insert"):
            statement = named(spans, kind)
            assert statement.attributes["terrace.outcome"] == "done", statement
            assert {"plan", "commit"} <= {span.name for span in below(spans, statement)}, below(spans, statement)
        assert named(spans, "ingest").attributes["db.response.returned_rows"] == 10
        assert b"geheim" not in collector.bytes()


def test_requests_over_http_go_on_with_the_trace_of_their_client(tmp_path):
    with Collector() as collector, traced(tmp_path, collector.endpoint, "traces.sample_percent=0") as server:
        server.query("select 1")
        request = urllib.request.Request(f"http://{server.http}/api/v1/sql", data=json.dumps({"sql": "select 41 + 1 as n"}).encode(),
                                         headers={"Content-Type": "application/json", "traceparent": TRACEPARENT})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"42" in answer.read()
        assert server.stop() == 0
        spans = collector.spans()
        assert {span.trace for span in spans} == {TRACE}, "no other trace is recorded"
        call, = [span for span in spans if span.parent == PARENT]
        assert (call.name, call.kind) == ("POST /api/v1/sql", SERVER_KIND)
        assert call.attributes["http.response.status_code"] == 200 and call.attributes["http.route"] == "/api/v1/sql", call
        assert named(below(spans, call), "query").attributes["db.query.text"] == "select ? + ? as n"


def test_errors_have_kinds_and_no_messages(tmp_path):
    key = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=of-the-collector"}
    with Collector() as collector, traced(tmp_path, collector.endpoint, env=key) as server:
        error_of(lambda: server.query("select cast(concat('geheim', 'nis') as bigint) from (values (1)) as v (a) where a < 2"))
        assert server.stop() == 0
        failed = [span for span in collector.spans() if span.attributes.get("terrace.outcome") == "failed"]
        assert failed and all(span.status == ERROR and span.attributes["error.type"] for span in failed), failed
        assert b"geheim" not in collector.bytes()
        assert {headers.get("x-key") for headers in collector.headers()} == {"of-the-collector"}


def test_lines_of_the_log_name_the_trace(tmp_path):
    with Collector() as collector:
        with traced(tmp_path, collector.endpoint, "log.format=json", "log.slow_statement=0s") as server:
            fetch(server, "select 7 as seven", ("traceparent", TRACEPARENT))
            fetch(server, "select 8 as eight", ("traceparent", TRACEPARENT.replace("-01", "-00")))
            assert server.stop() == 0
            lines = [json.loads(line) for line in server.output().splitlines()]
        slow = {line["sql"]: line for line in lines if line["message"] == "a statement was slow"}
        assert slow["select ? as seven"]["trace_id"] == TRACE, slow
        assert "trace_id" not in slow["select ? as eight"]


def test_a_dead_collector_holds_no_statement_up(tmp_path):
    with traced(tmp_path, f"http://127.0.0.1:{refused_port()}") as server:
        for number in range(30):
            assert server.query(f"select {number} as n").to_pylist() == [{"n": number}]
        eventually(lambda: metrics(server)['terrace_trace_spans_total{outcome="failed"}'] > 0)
        found = metrics(server)
        assert found["terrace_trace_failing"] == 1 and found['terrace_trace_spans_total{outcome="sent"}'] == 0, found
        for number in range(30):
            server.query(f"select {number} as n")
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 25
        assert server.output().count("the collector of traces takes no spans") == 1, server.output()


def test_a_silent_collector_holds_no_statement_up(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with traced(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", "traces.timeout=1s") as server:
            for number in range(30):
                assert server.query(f"select {number} as n").to_pylist() == [{"n": number}]
            eventually(lambda: metrics(server)["terrace_trace_failing"] == 1)
            assert server.stop() == 0


def test_without_a_collector_there_is_nothing_of_it(tmp_path):
    with Server(tmp_path / "data") as server:
        assert fetch(server, "select 1 as n", ("traceparent", TRACEPARENT)) == [{"n": 1}]
        assert metrics(server) == {}
        assert server.query("select count(trace_id) as n from system.query_log").to_pylist() == [{"n": 0}]


@pytest.mark.parametrize(("setting", "says"), [
    ("traces.endpoint=ftp://collector:21", "traces.endpoint"),
    ("traces.sample_percent=101", "traces.sample_percent"),
    ("traces.timeout=0s", "traces.timeout"),
    ("traces.service_name=", "traces.service_name"),
    ("traces.ca=/no/such/file", "traces.ca"),
])
def test_settings_of_no_use_are_refused(tmp_path, setting, says):
    ended = terrace("serve", "--data-dir", tmp_path / "data", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
                    "--set", setting, check=False, seconds=60)
    assert ended.returncode == 1 and says in ended.stderr, ended.stderr
