"""The last hours of the server, as `/api/v1/history` gives them to the cockpit."""

import time

import pytest

from helpers import eventually
from server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("history") / "data", "--dram-budget", "16MiB", "--nvm-emulated", "--nvm-capacity", "16MiB") as server:
        yield server


def history(server, parameters=""):
    return server.request("GET", f"/api/v1/history{parameters}")


def test_a_server_begins_with_a_sample_of_its_tiers(server):
    # The first sample is taken when the server starts to serve.
    eventually(lambda: history(server)["points"])
    found = history(server)
    assert found["interval_us"] == 15_000_000 and found["most_samples"] == 1_440
    first = found["points"][0]
    assert abs(first["unix_us"] / 1e6 - time.time()) < 120
    assert [(tier["name"], tier["budget_bytes"]) for tier in first["tiers"]] == [("dram", 16 << 20), ("nvm", 16 << 20), ("ssd", None)]
    assert first["span_us"] == 0 and first["p50_us"] is None and first["running"] == first["moves"] == 0


def test_a_request_says_how_far_back_and_how_fine(server):
    eventually(lambda: history(server)["points"])
    assert len(history(server, "?last=1h&points=2")["points"]) in (1, 2)
    assert history(server, "?last=0s")["points"] == []
    with pytest.raises(RuntimeError, match="400 .*unknown query parameter 'state'; there are: limit, offset"):
        server.request("GET", "/api/v1/queries?state=failed")
    for parameters, why in (("?points=1", "between 2 and 1440"), ("?points=1441", "between 2 and 1440"), ("?last=long", "duration"), ("?width=2", "width")):
        with pytest.raises(RuntimeError, match=f"400 .*{why}"):
            history(server, parameters)
