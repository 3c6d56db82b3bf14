"""The OpenAPI document as a contract: schemathesis makes requests of it, valid and invalid ones, and checks each answer.

Its checks are those of answers: no 5xx, a documented status, content type, headers and schema. The checks of requests that ought to
be refused are left out: fields and parameters that the document lacks are refused by the tests of the routes.
"""

import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from server import Server

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance")
#: These write files, or take memory, where the request says: invented values would leave them on the machine of the test.
LEFT_OUT = {("post", "/api/v1/backup"), ("post", "/api/v1/tiers")}
EXAMPLES = 40 if os.environ.get("TERRACE_TEST_DEPTH") == "deep" else 4


def schemathesis(folder, location, server):
    """Runs schemathesis as a program, without what it would leave in the current folder."""
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    command = [program, "run", location, "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing",
               "--max-examples", str(EXAMPLES), "--seed", os.environ.get("TERRACE_TEST_DRAW", "1"), "--continue-on-failure",
               "--generation-database", "none", "--request-timeout", "30", "--warnings", "off", "--no-color",
               "--url", f"http://{server.http}"]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=500, cwd=folder)


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data", "--dram-budget", "32MB", "--nvm-emulated", "--nvm-capacity", "32MB") as server:
        server.query("create table numbers (k bigint, v double)")
        server.query("insert into numbers select value, value * 0.5 from generate_series(1, 1000)")
        server.query("optimize numbers")
        yield server


def test_answers_to_invented_requests_are_as_the_document_says(tmp_path, server):
    document = server.request("GET", "/api/v1/openapi.json")
    for method, path in sorted(LEFT_OUT):
        assert method in document["paths"][path], f"{method} {path} is not there any more"
        del document["paths"][path][method]
    written = tmp_path / "openapi.json"
    written.write_text(json.dumps(document))
    ended = schemathesis(tmp_path, written, server)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr
    assert server.process.poll() is None and server.query("select count(*) n from numbers").num_rows == 1


def test_a_name_that_is_no_text_is_a_problem(server):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server.http}/api/v1/tables/%FF/heatmap", timeout=30)
    assert refused.value.code == 400 and refused.value.headers.get_content_type() == "application/problem+json"
    assert "UTF-8" in json.load(refused.value)["detail"]


def test_an_answer_that_the_document_does_not_have_is_noticed(tmp_path, server):
    answers = {"200": {"description": "", "content": {"application/json": {"schema": {"type": "array"}}}}}
    document = {"openapi": "3.1.0", "info": {"title": "wrong", "version": "1"},
                "paths": {"/api/v1/server": {"get": {"responses": answers}}}}
    written = tmp_path / "openapi.json"
    written.write_text(json.dumps(document))
    ended = schemathesis(tmp_path, written, server)
    assert ended.returncode == 1 and "/api/v1/server" in ended.stdout, ended.stdout
