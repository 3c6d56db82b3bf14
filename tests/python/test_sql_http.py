"""Statements over HTTP: formats, parameters, rights, ends, with a real server, urllib and curl."""

import csv
import datetime
import decimal
import http.client
import io
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pyarrow
import pytest

from helpers import eventually, numbers
from server import Server
from test_overload import resident_bytes
from test_users import PASSWORD, curl, make_user, run

D = decimal.Decimal
SQL = "/api/v1/sql"
#: Rows without an end, and a count that comes after all of them.
ROWS = "SELECT a.value AS a, b.value AS b FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b"
COUNT = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value + b.value < 0"
#: A statement for a quarter of an hour that is no point statement.
BUSY = "SELECT sum(a.value * b.value % 7) FROM range(1, 1000000) AS a, range(1, 1000000) AS b"

KINDS = pyarrow.table({
    "k": pyarrow.array([1, 2], pyarrow.int64()),
    "t": ['a, "b"\n', ""],
    "d": pyarrow.array([D("1.25"), None], pyarrow.decimal128(10, 2)),
    "f": [math.nan, -math.inf],
    "day": [datetime.date(2024, 2, 29), None],
    "at": pyarrow.array([datetime.datetime(2024, 1, 2, 12, 0, 0, 500000), None], pyarrow.timestamp("us")),
    "b": pyarrow.array([b"\x00\xff", None], pyarrow.binary()),
    "yes": [True, None],
    "l": pyarrow.array([[1, None], None], pyarrow.list_(pyarrow.int64())),
    "s": pyarrow.array([{"x": 1, "y": "z"}, None], pyarrow.struct([("x", pyarrow.int64()), ("y", pyarrow.string())])),
})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("sql_http") / "data") as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("kinds", KINDS, mode="create")
        server.query("create table numbers (i int, d decimal(10, 2), day date, t varchar)")
        server.query("insert into numbers values (1, 1.25, date '2024-01-01', 'one'), (2, 2.50, date '2024-01-02', 'two'), (3, 3.75, date '2024-01-03', NULL)")
        yield server
        assert server.stop() == 0, server.output()


def ask(server, body, **headers):
    """Status, headers and bytes of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(f"http://{server.http}{SQL}", data=data, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers, answer.read()


def answer(server, sql, parameters=None, **more):
    """The answer to a statement in JSON."""
    status, _, content = ask(server, {"sql": sql, "parameters": parameters, **more})
    assert status == 200, content
    return json.loads(content)


def refused(server, body, **headers):
    status, headers, content = ask(server, body, **headers)
    assert headers.get_content_type() == "application/problem+json", content
    problem = json.loads(content)
    assert problem["status"] == status
    return status, problem["detail"]


def begin(server, body):
    """A connection on which a request was sent."""
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("POST", SQL, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def states(server, marker):
    """States of the statements whose text contains a comment."""
    found = server.query(f"select state from system.queries where sql like '%/* {marker} */%' and sql not like '%system.queries%'")
    return found["state"].to_pylist()


def test_json_has_every_kind_of_value(server):
    status, headers, content = ask(server, {"sql": "SELECT * FROM kinds ORDER BY k"})
    found = json.loads(content)
    assert (status, headers.get_content_type()) == (200, "application/json")
    assert [column["name"] for column in found["columns"]] == KINDS.schema.names
    assert [column["type"] for column in found["columns"]] == [
        "BIGINT", "VARCHAR", "DECIMAL(10, 2)", "DOUBLE", "DATE", "TIMESTAMP(6)", "VARBINARY", "BOOLEAN", "ARRAY", "STRUCT"]
    assert found["rows"] == [
        [1, 'a, "b"\n', "1.25", "NaN", "2024-02-29", "2024-01-02T12:00:00.500", "00ff", True, [1, None], {"x": 1, "y": "z"}],
        [2, "", None, "-Infinity", None, None, None, None, None, None]]
    assert (found["row_count"], found["truncated"], found["affected_rows"]) == (2, False, None)
    assert found["statement"] == headers["terrace-statement"] and found["elapsed_us"] > 0
    assert server.query(f"select rows from system.queries where id = '{found['statement']}'")["rows"].to_pylist() == [2]
    assert answer(server, "SELECT 9223372036854775807 AS a, -0.5e300 AS b")["rows"] == [[9223372036854775807, -0.5e300]]
    assert answer(server, "SELECT * FROM kinds WHERE false")["rows"] == []


def test_csv_tells_empty_texts_from_nulls(server):
    for asked in {"format": "csv"}, {"accept": "text/csv"}:
        accept = asked.pop("accept", None)
        status, headers, content = ask(server, {"sql": "SELECT * FROM kinds ORDER BY k", **asked}, **({"Accept": accept} if accept else {}))
        assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
        text = content.decode()
        assert list(csv.reader(io.StringIO(text, newline=""))) == [
            KINDS.schema.names,
            ["1", 'a, "b"\n', "1.25", "NaN", "2024-02-29", "2024-01-02T12:00:00.500", "00ff", "true", "[1,null]", '{"x":1,"y":"z"}'],
            ["2", "", "", "-Infinity", "", "", "", "", "", ""]]
        assert text.endswith('\n2,"",,-Infinity,,,,,,\n')
    assert ask(server, {"sql": "SELECT NULL AS n", "format": "csv"})[2] == b'n\n""\n'


def test_ndjson_has_an_object_per_line(server):
    status, headers, content = ask(server, {"sql": "SELECT k, f, l FROM kinds ORDER BY k"}, Accept="text/html;q=0.1, application/x-ndjson")
    assert (status, headers.get_content_type()) == (200, "application/x-ndjson")
    assert [json.loads(line) for line in content.splitlines()] == [
        {"k": 1, "f": "NaN", "l": [1, None]}, {"k": 2, "f": "-Infinity", "l": None}]
    assert ask(server, {"sql": "SELECT * FROM kinds WHERE false", "format": "ndjson"})[2] == b""
    status, detail = refused(server, {"sql": "SELECT 1 AS a, 2 AS a", "format": "ndjson"})
    assert status == 400 and "'a'" in detail, detail
    assert answer(server, "SELECT 1 AS a, 2 AS a")["rows"] == [[1, 2]]


def test_arrow_is_as_over_flight(server):
    sql = "SELECT * FROM kinds ORDER BY k"
    status, headers, content = ask(server, {"sql": sql}, Accept="application/vnd.apache.arrow.stream")
    assert (status, headers.get_content_type()) == (200, "application/vnd.apache.arrow.stream")
    found, flight = pyarrow.ipc.open_stream(content).read_all(), server.query(sql)
    assert found.schema.equals(flight.schema, check_metadata=False)
    for name in KINDS.schema.names:
        if name != "f":
            assert found[name].to_pylist() == flight[name].to_pylist() == KINDS[name].to_pylist(), name
    assert math.isnan(found["f"][0].as_py()) and found["f"][1].as_py() == -math.inf
    empty = ask(server, {"sql": "SELECT * FROM kinds WHERE false", "format": "arrow"})[2]
    assert pyarrow.ipc.open_stream(empty).read_all().num_rows == 0


def test_parameters_are_typed_as_json_writes_them(server):
    for sql, parameters, wanted in [
        ("SELECT ?, ?, ?, ?, ?, ?", [1, 1.5, "x", True, None, 2**64 - 1], [[1, 1.5, "x", True, None, 2**64 - 1]]),
        ("SELECT 7 / $1", [2], [[3]]),
        ("SELECT 7 / $1", [2.0], [[3.5]]),
        ("SELECT i FROM numbers WHERE i > $least AND i < $most", {"least": 1, "most": 3}, [[2]]),
        ("SELECT i FROM numbers WHERE i > $least AND i < $most", [1, 3], [[2]]),
        ("SELECT i FROM numbers WHERE d = ?", [2.5], [[2]]),
        ("SELECT i FROM numbers WHERE i = ?", [2.5], []),
        ("SELECT i FROM numbers WHERE day = $day", {"day": "2024-01-02"}, [[2]]),
        ("SELECT i FROM numbers WHERE t = $2 OR i = $1 ORDER BY i", {"1": 3, "2": "one"}, [[1], [3]]),
        ("SELECT i FROM numbers ORDER BY i LIMIT ?", [1], [[1]]),
    ]:
        assert answer(server, sql, parameters)["rows"] == wanted, sql
    for sql, parameters, words in [
        ("SELECT $a", {"b": 1}, "$a has no value"),
        ("SELECT $a", {"a": 1, "b": 2}, "no parameter $b"),
        ("SELECT ?", [], "takes 1 parameters"),
        ("SELECT ?", [1, 2], "takes 1 parameters"),
        ("SELECT ?", [[1]], "is a list"),
        ("SELECT ?", 7, "a list or an object"),
        ("SELECT ? + $a", [1], "not both"),
    ]:
        status, detail = refused(server, {"sql": sql, "parameters": parameters})
        assert status == 400 and words in detail, (sql, detail)


def test_changes_answer_with_a_count(server):
    assert answer(server, "CREATE TABLE made (k BIGINT, d DECIMAL(10, 2), day DATE, t VARCHAR)")["affected_rows"] == 0
    insert = "INSERT INTO made VALUES ($k, $d, $day, $t)"
    found = answer(server, insert, {"k": 1, "d": 7.5, "day": "2026-01-02", "t": None})
    assert (found["affected_rows"], found["row_count"], found["columns"], found["rows"]) == (1, 0, [], [])
    assert answer(server, "SELECT * FROM made")["rows"] == [[1, "7.50", "2026-01-02", None]]
    status, detail = refused(server, {"sql": insert, "parameters": {"k": 1.5, "d": 1, "day": None, "t": ""}})
    assert status == 400 and "'k'" in detail, detail
    for form, wanted in ("csv", b"rows_affected\n1\n"), ("ndjson", b'{"rows_affected":1}\n'):
        assert ask(server, {"sql": "UPDATE made SET k = k + 1", "format": form})[2] == wanted
    assert answer(server, "DELETE FROM made WHERE k = ?", [3])["affected_rows"] == 1
    answer(server, "DROP TABLE made")


def test_refusals_say_what_to_do(server):
    for body, status, words in [
        ({"sql": "SELECT 1; SELECT 2"}, 400, "has 2"),
        ({"sql": " ; "}, 400, "empty"),
        ({"sql": "BEGIN"}, 400, "commits by itself"),
        ({"sql": "COMMIT"}, 400, "Flight SQL"),
        ({"sql": "SET datafusion.execution.batch_size = 100"}, 400, "options end"),
        ({"sql": "PREPARE p AS SELECT 1"}, 400, "prepared statements end"),
        ({"sql": "SELECT (1\n  FROM numbers"}, 400, "Line: 2"),
        ({"sql": "SELECT nothing FROM numbers"}, 400, "'nothing'"),
        ({"sql": "SELECT * FROM nowhere"}, 404, "'nowhere' does not exist"),
        ({"sql": "SELECT 1", "format": "xml"}, 400, "json, csv, ndjson, arrow"),
        ({"sql": "SELECT 1", "timeout": "soon"}, 422, "not a duration"),
        ({"sql": "SELECT 1", "limit": 3}, 422, "limit"),
        ({"statement": "SELECT 1"}, 422, "statement"),
        (b"SELECT 1", 400, "JSON"),
        ({"sql": f"SELECT '{'x' * (1 << 20)}'"}, 413, "length limit"),
    ]:
        found, detail = refused(server, body)
        assert found == status and words in detail, (body, found, detail)
    assert answer(server, "SELECT 1; -- one is enough")["rows"] == [[1]]
    assert len(answer(server, f"SELECT '{'x' * 500_000}'")["rows"][0][0]) == 500_000
    status, detail = refused(server, {"sql": "SELECT 1"}, Accept="image/png")
    assert status == 406 and "text/csv" in detail, detail
    status, detail = refused(server, {"sql": "SELECT 1"}, Content_Type="text/plain")
    assert status == 415 and "application/json" in detail, detail
    status, detail = refused(server, {"sql": "SELECT 1"}, Origin="http://evil.example")
    assert status == 403 and "evil.example" in detail, detail
    assert ask(server, {"sql": "SELECT 1"}, Origin=f"http://{server.http}")[0] == 200


def test_the_number_of_rows_and_the_time_may_be_limited(server):
    for most, wanted, truncated in [(0, [], True), (2, [[1], [2]], True), (3, [[1], [2], [3]], False), (9, [[1], [2], [3]], False)]:
        found = answer(server, "SELECT i FROM numbers ORDER BY i", max_rows=most)
        assert (found["rows"], found["row_count"], found["truncated"]) == (wanted, len(wanted), truncated), most
    text = ask(server, {"sql": ROWS, "format": "csv", "max_rows": 100_000})[2].decode()
    assert text.count("\n") == 100_001
    status, detail = refused(server, {"sql": COUNT, "timeout": "300ms"})
    assert status == 504 and "300" in detail, detail


def test_a_client_that_goes_away_ends_its_statement(server):
    before = begin(server, {"sql": f"/* no rows */ {COUNT}"})
    eventually(lambda: states(server, "no rows") == ["running"])
    before.close()
    eventually(lambda: states(server, "no rows") == ["cancelled"])
    connection = begin(server, {"sql": f"/* some rows */ {ROWS}", "format": "csv"})
    response = connection.getresponse()
    assert response.readline() == b"a,b\n" and response.readline().count(b",") == 1
    assert states(server, "some rows") in (["running"], ["stalled"], ["queued"])
    response.close()
    connection.close()
    eventually(lambda: states(server, "some rows") == ["cancelled"])


def test_an_error_behind_the_first_rows_is_no_end(server):
    def cut(form):
        connection = begin(server, {"sql": ROWS, "format": form})
        response = connection.getresponse()
        first = response.read(1_000)
        delete = urllib.request.Request(f"http://{server.http}/api/v1/queries/{response.headers['terrace-statement']}", method="DELETE")
        with urllib.request.urlopen(delete, timeout=60) as deleted:
            assert deleted.status == 204
        try:
            return first + response.read(), True
        except http.client.IncompleteRead as error:
            return first + error.partial, False
        finally:
            connection.close()

    content, is_whole = cut("json")
    found = json.loads(content)
    assert is_whole and found["error"]["status"] == 409 and "cancelled" in found["error"]["detail"], found["error"]
    assert found["row_count"] == len(found["rows"]) > 0
    content, is_whole = cut("ndjson")
    *rows, last = content.splitlines()
    assert is_whole and json.loads(last)["error"]["status"] == 409, last
    assert set(json.loads(rows[-1])) == {"a", "b"}
    for form in "csv", "arrow":
        content, is_whole = cut(form)
        assert not is_whole and len(content) >= 1_000, form


def test_large_answers_need_no_memory(server):
    """150 MB of text, and the memory that this takes beside what a short answer takes."""
    ask(server, {"sql": ROWS, "format": "csv", "max_rows": 10_000})
    before = resident_bytes(server)
    connection = begin(server, {"sql": ROWS, "format": "ndjson"})
    response = connection.getresponse()
    read, most = 0, 0
    while read < 150_000_000:
        read += len(response.read(1 << 20))
        most = max(most, resident_bytes(server))
    response.close()
    connection.close()
    assert most - before < 75_000_000, (before, most)


def test_a_whole_table_is_the_same_in_each_format(server):
    numbers(server, 200_000, "many")
    sql = "SELECT k, x, s FROM many ORDER BY k"
    wanted = server.query(sql).to_pydict()
    found = answer(server, sql)
    assert found["row_count"] == 200_000
    assert [list(column) for column in zip(*found["rows"])] == list(wanted.values())
    lines = [json.loads(line) for line in ask(server, {"sql": sql, "format": "ndjson"})[2].splitlines()]
    assert {name: [line[name] for line in lines] for name in wanted} == wanted
    rows = list(csv.reader(io.StringIO(ask(server, {"sql": sql, "format": "csv"})[2].decode(), newline="")))
    assert rows[0] == ["k", "x", "s"]
    assert [[int(k), float(x), s] for k, x, s in rows[1:]] == [list(row) for row in zip(*wanted.values())]
    assert pyarrow.ipc.open_stream(ask(server, {"sql": sql, "format": "arrow"})[2]).read_all().to_pydict() == wanted


def test_a_client_that_reads_nothing_ends_its_statement(tmp_path):
    with Server(tmp_path / "data", "--set", "query.stall_timeout=1s") as server:
        connection = begin(server, {"sql": f"/* unread */ {ROWS}", "format": "csv"})
        eventually(lambda: states(server, "unread") == ["cancelled"])
        with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=60) as metrics:
            stalled = re.search(r"^terrace_flight_stalled_total (\S+)$", metrics.read().decode(), re.MULTILINE)
        assert float(stalled.group(1)) == 1
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            connection.getresponse().read()
        connection.close()


def test_a_busy_server_says_when_to_try_again(tmp_path):
    with Server(tmp_path / "data", "--set", "query.max_running=1", "--set", "query.max_queued=1") as server:
        clients = [begin(server, {"sql": f"/* busy */ {BUSY}"}) for _ in range(2)]
        eventually(lambda: sorted(states(server, "busy")) == ["queued", "running"])
        status, headers, content = ask(server, {"sql": BUSY})
        assert status == 503 and int(headers["Retry-After"]) >= 1, content
        for client in clients:
            client.close()
        eventually(lambda: states(server, "busy") == ["cancelled", "cancelled"])


def test_statements_need_their_rights(tmp_path):
    make_user(tmp_path / "data", "create", "root")
    root, ann = ("root", PASSWORD), ("ann", PASSWORD)
    with Server(tmp_path / "data", env={"TERRACE_AUDIT_WHAT": "all"}) as server:

        def said(login, sql, *more):
            content = ("-H", "Content-Type: application/json", "-d", json.dumps({"sql": sql}))
            asked = ("-u", ":".join(login)) if login else ()
            return curl(server, SQL, *content, *asked, *more)

        run(server, f"CREATE USER ann PASSWORD '{PASSWORD}'", *root)
        run(server, "CREATE TABLE shops AS SELECT * FROM (VALUES (1, 'ann', 10), (2, 'bob', 20)) AS v (k, who, amount)", *root)
        assert said(None, "SELECT 1")[0] == 401
        assert said(("ann", "wrong horse"), "SELECT 1")[0] == 401
        assert said(ann, "SELECT 1")[0] == 200
        # Without any right, it is as if the table were not there.
        status, detail = said(ann, "SELECT * FROM shops")
        assert status in (403, 404), detail
        # Some columns, and some rows of them.
        run(server, "GRANT SELECT (k, who) ON shops TO ann", *root)
        run(server, "CREATE POLICY own ON shops FOR SELECT TO ann USING (who = current_user)", *root)
        run(server, "ALTER TABLE shops ENABLE ROW LEVEL SECURITY", *root)
        status, content = said(ann, "SELECT k, who FROM shops")
        assert status == 200 and json.loads(content)["rows"] == [[1, "ann"]], content
        assert said(ann, "SELECT amount FROM shops")[0] in (400, 403)
        assert said(ann, "DELETE FROM shops")[0] == 403
        assert said(ann, "CREATE USER eve PASSWORD 'correct horse'")[0] == 403
        assert json.loads(said(root, "SELECT count(*) FROM shops")[1])["rows"] == [[2]]
        # A token for reading only.
        [(token, *_)] = run(server, "CREATE TOKEN reading READ ONLY", *root)
        bearer = ("-H", f"Authorization: Bearer {token}")
        assert said(None, "SELECT count(*) FROM shops", *bearer)[0] == 200
        status, detail = said(None, "DELETE FROM shops", *bearer)
        assert status == 403 and "READ ONLY" in detail, detail
        assert curl(server, "/api/v1/epochs", "-X", "POST", "-H", "Content-Type: application/json", "-d", "{}", *bearer)[0] == 403
        # What they did is in the audit trail: statements, and with `all` the calls that brought them.
        shown = "SELECT user_name, port, outcome FROM system.audit WHERE event = 'statement' AND text = 'DELETE FROM shops'"
        assert sorted(run(server, shown, *root)) == [("ann", "http", "refused"), ("root", "http", "refused")]
        shown = "SELECT count(*) FROM system.audit WHERE event = 'http' AND text = '/api/v1/sql' AND outcome = 'done'"
        assert run(server, shown, *root) == [(4,)]


def test_the_examples_of_the_guide_work(tmp_path):
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = guide.partition("\n## SQL over HTTP\n")[2].partition("\n## ")[0]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL).group(1)
    shown = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL).group(1))
    examples = [example for example in re.split(r"\n?^# .*\n", commands, flags=re.MULTILINE) if example.strip()]
    assert len(examples) == 4 and all("curl" in example for example in examples), examples
    # The Python of the tests.
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    with Server(tmp_path / "data") as server:
        server.query("create table sales (day date, shop varchar, amount decimal(10, 2))")
        server.query("insert into sales values ('2026-01-01', 'Bern', 20), ('2026-01-01', 'Basel', 12.5), ('2026-01-01', 'Bern', 10)")

        def run_example(example):
            done = subprocess.run(["bash", "-ec", example.replace("localhost:8080", server.http)], cwd=tmp_path, capture_output=True,
                                  text=True, timeout=60, env={**os.environ, "NO_PROXY": "*", "PATH": path})
            assert done.returncode == 0, done.stderr
            return done.stdout

        found = json.loads(run_example(examples[0]))
        timeless = lambda said: {key: value for key, value in said.items() if key not in ("elapsed_us", "statement")}
        assert timeless(found) == timeless(shown)
        run_example(examples[1])
        assert (tmp_path / "sales.csv").read_text() == "day,shop,amount\n2026-01-01,Bern,20.00\n"
        assert json.loads(run_example(examples[2]))["affected_rows"] == 1
        assert run_example(examples[3]).strip() == "4"


def test_many_requests_leave_no_sessions(server):
    """Each request has a session, which ends with it."""
    errors = []

    def work():
        try:
            for n in range(25):
                assert answer(server, "SELECT $n AS n", {"n": n})["rows"] == [[n]]
        except Exception as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert errors == []
    known = "from system.queries where sql = 'SELECT $n AS n'"
    sessions = server.query(f'select "session" {known}')["session"].to_pylist()
    assert len(sessions) == len(set(sessions)) == 100
    eventually(lambda: server.query(f"select distinct state {known}")["state"].to_pylist() == ["done"])
