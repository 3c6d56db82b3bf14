"""What accesses cost on each tier: measured at the first start, shown, asked for anew, kept, and corrected by scans."""

import json
import urllib.request

import pytest

from helpers import numbers
from server import Server, terrace

ARGUMENTS = ("--nvm-emulated", "--nvm-capacity", "64MiB", "--set", "tiering.interval=1h")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("calibration") / "data"


@pytest.fixture
def server(data):
    with Server(data, "--dram-budget", "64MiB", *ARGUMENTS) as server:
        yield server


def known(server):
    return server.request("GET", "/api/v1/calibration")


def test_all_tiers_are_measured_by_pattern_size_and_number_at_once(server):
    found = known(server)
    assert [tier["name"] for tier in found["tiers"]] == ["dram", "nvm", "ssd"]
    assert all(tier["measured"] and tier["device"] for tier in found["tiers"]) and "core" in found["machine"]
    for tier in found["tiers"]:
        points = tier["points"]
        assert {point["pattern"] for point in points} == {"sequential", "monotonic", "random", "point"}
        assert len({point["bytes"] for point in points if point["pattern"] == "sequential"}) >= 3
        assert len({point["selectivity"] for point in points if point["pattern"] == "monotonic"}) == 3
        assert all(point["us"] > 0 and point["places"] > 0 for point in points)
    assert max(point["at_once"] for point in found["tiers"][-1]["points"]) == 16
    # A page of 16 KiB is the least that is read of a file.
    assert found["used"][-1]["granule_bytes"] == 16384 and found["used"][0]["granule_bytes"] == 64


def test_sql_shows_the_same_and_measures_anew(server):
    before = known(server)
    rows = server.query("select tier, pattern, selectivity, us from system.calibration")
    assert rows.num_rows == sum(len(tier["points"]) for tier in before["tiers"])
    costs = server.query("select tier, pattern, latency_us, place_bytes, measured, note from system.tier_costs").to_pylist()
    assert len(costs) == 12 and all(cost["measured"] and cost["note"] == "" for cost in costs)
    server.query("alter system calibrate tiers")
    assert known(server)["unix_us"] > before["unix_us"]


def test_a_restart_measures_nothing(server, data):
    before = known(server)
    server.stop()
    with Server(data, "--dram-budget", "64MiB", *ARGUMENTS) as again:
        assert known(again)["unix_us"] == before["unix_us"]
    # Other tiers are something else.
    with Server(data, "--dram-budget", "64MiB") as fewer:
        assert known(fewer)["unix_us"] > before["unix_us"] and len(known(fewer)["tiers"]) == 2


def test_the_command_line_measures_and_shows(server):
    before = known(server)["unix_us"]
    shown = terrace("calibrate", "--show", "--http-addr", server.http).stdout
    assert "ssd (ssd), measured" in shown and "monotonic" in shown and "MB/s" in shown
    assert known(server)["unix_us"] == before
    measured = json.loads(terrace("calibrate", "--json", "--http-addr", server.http).stdout)
    assert measured["unix_us"] > before and known(server)["unix_us"] == measured["unix_us"]


def test_a_tier_without_room_keeps_what_was_measured_and_says_so(server):
    before = known(server)["tiers"][0]
    server.request("PUT", "/api/v1/tiers/dram", {"budget": 0})
    server.query("alter system calibrate tiers")
    dram = known(server)["tiers"][0]
    assert dram["measured"] and dram["points"] == before["points"] and "measured earlier" in dram["note"]
    notes = server.query("select distinct note from system.tier_costs where tier = 'dram'")
    assert "measured earlier" in notes["note"][0].as_py()


def test_cold_scans_correct_the_disk_slowly(tmp_path):
    with Server(tmp_path / "data", "--dram-budget", "0", "--set", "tiering.interval=1h") as server:
        numbers(server, 400_000, texts=False)
        assert known(server)["correction"]["bytes"] == 0
        for _ in range(10):
            server.query("select sum(x), max(k) from t")
        server.request("POST", "/api/v1/epochs", {})
        corrected = known(server)["correction"]
        assert corrected["bytes"] > 1 << 20, corrected
        assert 0.5 < corrected["device_times"] < 1.5 and 0.8 < corrected["waited_share"] < 1.5, corrected
        with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
            metrics = answer.read().decode()
        assert f"terrace_home_device_ratio {corrected['device_times']}" in metrics
        assert 'terrace_tier_measured{tier="ssd",kind="ssd"} 1' in metrics
