"""HTTP answers, metrics, configuration keys and system tables stay as tests/fixtures/surface.json has them, and the OpenAPI document
describes the answers."""

import json
import pathlib
import re
import sys

import jsonschema
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "fixtures"))

from surface import SURFACE, differences, shape, surface  # noqa: E402


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The surface of the binary under test, and its answers in full."""
    seen = []
    return json.loads(json.dumps(surface(tmp_path_factory.mktemp("surface"), seen))), seen


@pytest.fixture(scope="module")
def both(measured):
    """The recorded surface, and that of the binary under test."""
    return json.loads(SURFACE.read_text()), measured[0]


def template(path):
    """The path as the document has it."""
    named = re.sub("/(tables|tiers)/[a-z_]+", r"/\1/{name}", path.split("?")[0])
    named = re.sub("/cockpit/[a-z.]+", "/cockpit/{module}", named)
    return re.sub("/queries/({query}|none)", "/queries/{id}", named)


def closed(document, schema):
    """The schema with its references resolved, whose objects have no fields but the declared ones."""
    if isinstance(schema, list):
        return [closed(document, inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return closed(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    schema = {key: closed(document, inner) for key, inner in schema.items()}
    for part in schema.pop("allOf", []):
        schema["properties"] = schema.get("properties", {}) | part.get("properties", {})
        schema["required"] = schema.get("required", []) + part.get("required", [])
    if isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    return schema


def contradictions(document, method, path, status, kind, content):
    """Lists what an answer has otherwise than the document says."""
    problem = {"default": {"$ref": "#/components/responses/Problem"}}
    operation = document["paths"].get(template(path), {}).get(method.lower(), {"responses": problem})
    response = operation["responses"].get(str(status), operation["responses"]["default"])
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    if kind not in response.get("content", {}):
        return [f"{kind} is not documented"]
    if kind not in ("application/json", "application/problem+json"):
        return []
    schema = closed(document, response["content"][kind]["schema"])
    wrong = jsonschema.Draft202012Validator(schema).iter_errors(json.loads(content))
    return [f"{error.json_path}: {error.message[:200]}" for error in wrong]


def test_answers_are_as_the_document_describes_them(measured):
    _, seen = measured
    document = json.loads(next(content for _, path, *_, content in seen if path == "/api/v1/openapi.json"))
    found = {f"{method} {path} {status}": contradictions(document, method, path, status, kind, content)
             for method, path, status, kind, content in seen if path != "/api/v1/openapi.json"}
    assert {request: wrong for request, wrong in found.items() if wrong} == {}


def test_every_documented_route_is_requested(both):
    _, found = both
    document = next(answer for answer in found["answers"] if "paths" in answer)["paths"]
    requested = {template(answer["request"]) for answer in found["answers"]}
    routes = {f"{method.upper()} {path}" for path, methods in document.items() for method in methods}
    assert routes <= requested, routes - requested


def test_http_answers_keep_status_type_and_fields(both):
    good, found = both
    assert [answer["request"] for answer in found["answers"]] == [answer["request"] for answer in good["answers"]]
    for before, now in zip(good["answers"], found["answers"]):
        fixed = lambda answer: {key: value for key, value in answer.items() if key != "body"}
        assert fixed(now) == fixed(before), before["request"]
        assert differences(before.get("body"), now.get("body")) == [], before["request"]


def test_system_tables_keep_their_columns(both):
    good, found = both
    assert found["system"] == good["system"]


def test_configuration_keeps_its_keys_and_defaults(both):
    good, found = both
    assert found["configuration"] == good["configuration"]


def test_a_field_that_the_document_lacks_is_noticed():
    item = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    more = {"type": "object", "required": ["bytes"], "properties": {"bytes": {"type": ["integer", "null"]}}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Item"}, more]}
    document = {"components": {"schemas": {"Item": item}}, "paths": {"/": {"get": {"responses": {
        "200": {"content": {"application/json": {"schema": schema}}}, "default": None}}}}}
    wrong = lambda answer: contradictions(document, "GET", "/", 200, "application/json", json.dumps(answer))
    assert wrong({"name": "a", "bytes": 1}) == wrong({"name": "a", "bytes": None}) == []
    for answer in ({"name": "a"}, {"bytes": 1}, {"name": 1, "bytes": 1}, {"name": "a", "bytes": "1"}, {"name": "a", "bytes": 1, "size": 1}):
        assert len(wrong(answer)) == 1, answer
    assert contradictions(document, "GET", "/", 200, "text/plain", "a") == ["text/plain is not documented"]


def test_a_changed_field_is_noticed():
    good = shape({"items": [{"name": "a", "bytes": 1, "note": None}, {"name": "b", "bytes": 2, "note": "x"}]})
    assert differences(good, good) == []
    assert differences(good, shape({"items": []})) == []
    assert differences(good, shape({"items": [{"name": "a", "bytes": "1", "note": None}]})) == ["answer.items[].bytes: string, was number"]
    assert differences(good, shape({"items": [{"name": "a", "note": "", "size": 1}]})) == [
        "answer.items[]: bytes is gone", "answer.items[]: size is new"]
