"""HTTP answers, metrics, configuration keys and system tables stay as tests/fixtures/surface.json has them."""

import json
import pathlib
import re
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "fixtures"))

from surface import SURFACE, differences, shape, surface  # noqa: E402


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The recorded surface, and that of the binary under test."""
    return json.loads(SURFACE.read_text()), json.loads(json.dumps(surface(tmp_path_factory.mktemp("surface"))))


def test_every_documented_route_is_requested(both):
    _, found = both
    document = next(answer for answer in found["answers"] if "paths" in answer)["paths"]
    requested = {re.sub("/(tables|tiers)/[a-z_]+", r"/\1/{name}", answer["request"].split("?")[0]).replace("{query}", "{id}")
                 for answer in found["answers"]}
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


def test_a_changed_field_is_noticed():
    good = shape({"items": [{"name": "a", "bytes": 1, "note": None}, {"name": "b", "bytes": 2, "note": "x"}]})
    assert differences(good, good) == []
    assert differences(good, shape({"items": []})) == []
    assert differences(good, shape({"items": [{"name": "a", "bytes": "1", "note": None}]})) == ["answer.items[].bytes: string, was number"]
    assert differences(good, shape({"items": [{"name": "a", "note": "", "size": 1}]})) == [
        "answer.items[]: bytes is gone", "answer.items[]: size is new"]
