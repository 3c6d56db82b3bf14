"""Tiers that come, are drained and go while queries run; SQL, HTTP and command line."""

import json
import threading
import urllib.request

import pytest

from helpers import eventually, numbers
from server import Server, terrace

ROWS = 200_000
NVM = ["--nvm-emulated", "--nvm-capacity", "32MiB"]
ARGUMENTS = ["--dram-budget", "64MiB", "--set", "tiering.interval=1h"]
ALL = "select count(*) as n, sum(k) as k, count(s) as s, max(s) as m from t"


def fill(server):
    numbers(server, ROWS, step=1, clustered=" with (cluster_by = 'k')")


@pytest.fixture
def server(tmp_path):
    """A server with an emulated NVM tier and a table of four chunks."""
    with Server(tmp_path / "data", *ARGUMENTS, *NVM) as server:
        fill(server)
        yield server


def rows(server, sql):
    return server.query(sql).to_pylist()


def names(server):
    return [row["tier"] for row in rows(server, "select tier from system.tiers")]


def refused(server, sql):
    with pytest.raises(Exception) as caught:
        server.query(sql)
    return str(caught.value)


class Readers:
    """Queries that run beside; each answer is compared with the first."""

    def __init__(self, server, count=2):
        self.server, self.expected, self.wrong, self.done = server, rows(server, ALL), [], 0
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(count)]

    def run(self):
        with self.server.connect() as connection, connection.cursor() as cursor:
            while not self.stop.is_set():
                try:
                    cursor.execute(ALL)
                    answer = cursor.fetch_arrow_table().to_pylist()
                except Exception as error:  # a failed query is as wrong as another answer
                    answer = str(error)
                if answer != self.expected:
                    self.wrong.append(answer)
                self.done += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def drained(server, tier):
    eventually(lambda: server.tiers()[tier]["state"] == "drained")


def test_a_tier_is_drained_dropped_and_another_added_while_queries_run(server):
    rows(server, "bring back t to nvm")
    assert server.tiers()["nvm"]["segments"] == 12
    with Readers(server) as readers:
        assert "drain it first" in refused(server, "alter system drop tier nvm")
        server.query("alter system drain tier nvm")
        assert server.tiers()["nvm"]["state"] in ("draining", "drained") and server.tiers()["nvm"]["budget_bytes"] == 0
        # The drain wakes an epoch of its own; readers let go of their copies as they go on.
        drained(server, "nvm")
        # The last copy may be gone before the moves of its epoch are stored.
        ask = "select * from system.moves where from_tier = 'nvm' and status = 'done' and reason = 'nvm is drained'"
        eventually(lambda: rows(server, ask))
        server.query("alter system drop tier nvm")
        assert names(server) == ["dram", "ssd"]
        server.query("alter system add tier cxl with (emulated = true, capacity = '16MiB', budget = '12MiB')")
        assert names(server) == ["dram", "cxl", "ssd"] and server.tiers()["cxl"]["budget_bytes"] == 12 << 20
        rows(server, "bring back t to cxl")
        assert server.tiers()["cxl"]["segments"] == 12
        server.query("alter system alter tier cxl set (budget = '16MiB')")
        assert server.tiers()["cxl"]["budget_bytes"] == 16 << 20
        server.query("alter system drain tier cxl")
        server.query("alter system resume tier cxl")
        assert server.tiers()["cxl"]["state"] == "active" and server.tiers()["cxl"]["budget_bytes"] == 16 << 20
        before = readers.done
        eventually(lambda: readers.done >= before + 4)
    # Prices name their tiers: records from before say the same as ever.
    rows(server, "epoch now")
    prices = [json.loads(row["p"]) for row in rows(server, "select prices_ns_per_byte as p from system.epochs order by epoch")]
    assert list(prices[0]) == ["dram", "nvm"] and list(prices[-1]) == ["dram", "cxl"], prices
    assert readers.wrong == [] and rows(server, ALL) == readers.expected


def test_http_and_the_command_line_say_the_same(server, tmp_path):
    at = ["--http-addr", server.http]
    added = server.request("POST", "/api/v1/tiers", {"name": "b", "emulated": True, "capacity": "1MiB", "slow": True})
    assert (added["name"], added["kind"], added["state"], added["budget_bytes"]) == ("b", "nvm", "active", 1 << 20), added
    assert "limited to 0.35" in added["description"], added
    out = terrace("tiers", "add", "c", "--emulated", "--capacity", "1MiB", "--budget", "512KiB", *at).stdout
    assert "c  nvm, emulated, active, budget 512 KiB" in out, out
    assert [row["name"] for row in json.loads(terrace("tiers", "list", "--json", *at).stdout)] == names(server)
    assert "budget 256 KiB" in terrace("tiers", "budget", "c", "256KiB", *at).stdout
    assert server.request("PUT", "/api/v1/tiers/b", {"draining": True})["state"] == "drained"
    assert "drained" in terrace("tiers", "drain", "c", *at).stdout
    assert "active" in terrace("tiers", "resume", "c", *at).stdout
    state = [line for line in text(server, "/metrics").splitlines() if line.startswith("terrace_tier_state")]
    assert any('tier="b"' in line and 'state="drained"' in line and line.endswith(" 1") for line in state), state
    assert server.request("DELETE", "/api/v1/tiers/b") == {"dropped": "b"}
    terrace("tiers", "drain", "c", *at)
    assert "dropped: c" in terrace("tiers", "drop", "c", *at).stdout
    assert names(server) == ["dram", "nvm", "ssd"]
    for method, path, body, words in [
        ("POST", "/api/v1/tiers", {"name": "nvm", "emulated": True, "capacity": 4096}, "409.*already exists"),
        ("POST", "/api/v1/tiers", {"name": "d", "capacity": 4096}, "400.*emulated = true"),
        ("POST", "/api/v1/tiers", {"name": "D", "emulated": True, "capacity": 4096}, "400.*cannot be the name"),
        ("POST", "/api/v1/tiers", {"name": "d", "emulated": True, "capacity": "999TiB"}, "400.*process's memory"),
        ("POST", "/api/v1/tiers", {"name": "d", "path": str(tmp_path / "no" / "pool"), "capacity": "1MiB"}, "400.*does not exist"),
        ("POST", "/api/v1/tiers", {"name": "d", "kind": "nvm", "capacity": 1}, "422"),
        ("DELETE", "/api/v1/tiers/d", None, "404.*the tiers are dram, nvm, ssd"),
        ("DELETE", "/api/v1/tiers/ssd", None, "400.*home"),
        ("DELETE", "/api/v1/tiers/dram", None, "400.*process memory"),
        ("PUT", "/api/v1/tiers/ssd", {"draining": True}, "400.*home"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            server.request(method, path, body)
    said = terrace("tiers", "drop", "nvm", *at, check=False)
    assert said.returncode == 1 and "drain it first" in said.stderr, said


def test_the_rate_of_a_device_is_set_alike_and_shown(server):
    at = ["--http-addr", server.http]

    def limits():
        return [tier["rate_limit_bytes_per_s"] for tier in server.tiers().values()]

    assert limits() == [512 << 20] * 3
    server.query("alter system alter tier nvm set (rate_limit = '100MiB', budget = '16MiB')")
    assert server.tiers()["nvm"]["budget_bytes"] == 16 << 20
    assert server.request("PUT", "/api/v1/tiers/dram", {"rate_limit": 0})["rate_limit_bytes_per_s"] is None
    assert "moves at up to 5.00 MiB/s" in terrace("tiers", "rate-limit", "ssd", "5MiB", *at).stdout
    assert limits() == [None, 100 << 20, 5 << 20]
    assert "bytes per second" in refused(server, "alter system alter tier nvm set (rate_limit = '5%')")
    for tier, rate, words in [("ssd", "5%", "400.*bytes per second"), ("tape", "5MiB", "404"), ("ssd", "much", "422")]:
        with pytest.raises(RuntimeError, match=words):
            server.request("PUT", f"/api/v1/tiers/{tier}", {"rate_limit": rate})


def test_a_healthy_server_is_ready_and_says_of_no_tier_that_it_fails(server):
    assert json.loads(text(server, "/readyz"))["status"] == "ready"
    assert all(tier["failing_since"] is tier["retry_at"] is tier["last_error"] is None for tier in server.tiers().values())
    failing = [line for line in text(server, "/metrics").splitlines() if line.startswith("terrace_tier_failing{")]
    assert len(failing) == 3 and all(line.endswith(" 0") for line in failing), failing
    assert all(tier["failing"] is None for tier in server.request("GET", "/api/v1/tiers")["items"])


def text(server, path):
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=60) as answer:
        return answer.read().decode()


def test_what_pins_need_is_not_drained(server):
    server.query("alter table t pin columns (k) to nvm")
    said = refused(server, "alter system drain tier nvm")
    assert "tier 'nvm' cannot be drained: pins need" in said and "the budget is 0" in said, said
    assert server.tiers()["nvm"]["state"] == "active"
    server.query("alter table t unpin")
    server.query("alter system drain tier nvm")
    drained(server, "nvm")
    assert "pins need" in refused(server, "alter table t pin columns (k) to nvm")
    assert "RESUME TIER nvm" in refused(server, "bring back t to nvm")


def test_a_table_that_is_not_moved_keeps_its_tier_and_a_frozen_placement_too(server):
    rows(server, "bring back t to nvm")
    server.query("alter table t set (tiering = off)")
    server.query("alter system drain tier nvm")
    server.epoch()
    assert server.tiers()["nvm"]["segments"] == 12
    assert "tables with tiering advise or off keep theirs" in refused(server, "alter system drop tier nvm")
    server.query("freeze placement")
    server.query("alter table t set (tiering = auto)")
    assert "UNFREEZE" in refused(server, "alter system drop tier nvm")
    server.query("unfreeze placement")
    drained(server, "nvm")
    server.query("alter system drop tier nvm")


def test_a_server_started_without_a_tier_it_had_loses_nothing_and_says_so(tmp_path):
    with Server(tmp_path / "data", *ARGUMENTS, *NVM) as server:
        fill(server)
        expected = rows(server, ALL)
        server.query("alter table t pin columns (k, s) to nvm")
        server.epoch()
        assert server.tiers()["nvm"]["segments"] == 8
        assert server.stop() == 0
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        assert names(server) == ["dram", "ssd"] and rows(server, ALL) == expected
        log = server.output()
        assert log.count("a tier that held segments is not configured any more") == 1, log
        assert log.count("placement rules name a tier that is not configured") == 1 and "rule 1 of public.t" in log, log
        rule, = rows(server, "select met, unmet_bytes from system.placement_rules")
        assert rule["met"] is False and rule["unmet_bytes"] > 0
        server.epoch()
        server.query("alter system add tier nvm with (emulated = true, capacity = '32MiB')")
        eventually(lambda: rows(server, "select met from system.placement_rules") == [{"met": True}])
        assert rows(server, ALL) == expected
    # What was added is not kept: neither is what lay there needed.
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        assert names(server) == ["dram", "ssd"] and rows(server, ALL) == expected
