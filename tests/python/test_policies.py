"""Placement policies of a real server, chosen by `tiering.policy`."""

import subprocess

import pytest

from helpers import STEP, eventually, numbers
from server import BINARY, Server

ROWS = 262_144
BUDGET = 2 << 20
#: Those that choose among the forms of copies.
BY_FORM = ["one_form", "form_first", "mosaic"]
POLICIES = ["optimal", "density", "lru", "lfu", "column", "chunk", "random", "static", *BY_FORM]
ALL = "select count(*) as n, sum(k) as k, sum(cast(x as decimal(20, 6))) as x, count(s) as s from t"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data directory with a table of four chunks, clustered by `k`; a number column of a chunk has 512 KiB."""
    folder = tmp_path_factory.mktemp("policies") / "data"
    with Server(folder) as server:
        numbers(server, ROWS)
    return folder


def start(folder, policy, *settings):
    settings = ["tiering.interval=1h", f"tiering.policy={policy}", *settings]
    return Server(folder, "--dram-budget", str(BUDGET), *[part for setting in settings for part in ("--set", setting)])


def read(server, chunk, times=1):
    """Reads columns `k` and `x` of one chunk."""
    first, last = chunk * 65_536 * STEP, ((chunk + 1) * 65_536 - 1) * STEP
    for _ in range(times):
        server.query(f"select sum(x) from t where k between {first} and {last}")


def in_dram(server):
    rows = server.query("select chunk, column_name from system.segments where table_name = 't' and tier = 'dram'")
    chunks = sorted(row["chunk"] for row in server.query("select chunk from system.chunks").to_pylist())
    return {(chunks.index(row["chunk"]), row["column_name"]) for row in rows.to_pylist()}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_obeys_the_budget_and_signs_its_epochs(data, policy):
    with start(data, policy, *["tiering.form=auto"] * (policy in BY_FORM)) as server:
        answer = server.query(ALL).to_pylist()
        for chunk in (0, 3, 3):
            read(server, chunk)
            server.epoch()
            assert server.tiers()["dram"]["used_bytes"] <= BUDGET
        server.query("alter table t pin columns (s) chunks 1 to 1 to dram")
        server.epoch()
        said = server.query("select policy, gap from system.epochs order by epoch desc limit 1").to_pylist()[0]
        assert said["policy"] == policy and 0 <= said["gap"] < 1
        rules = server.query("select met from system.placement_rules").to_pylist()
        assert [rule["met"] for rule in rules] == [True]
        server.query("alter table t drop placement rules")
        assert server.query(ALL).to_pylist() == answer


def test_lru_keeps_what_was_read_last(data):
    with start(data, "lru", "tiering.merge=never") as server:
        for chunk in (1, 2, 0, 3):
            read(server, chunk)
            server.epoch()
        # Four number columns fit.
        assert in_dram(server) == {(0, "k"), (0, "x"), (3, "k"), (3, "x")}
        reasons = {row["reason"] for row in server.query(
            "select reason from system.moves where epoch = (select max(epoch) from system.moves)").to_pylist()}
        assert any("last read" in reason for reason in reasons), reasons
        assert not any("price" in reason or "saves" in reason for reason in reasons), reasons


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_caches_bring_in_what_is_read_before_the_next_epoch(tmp_path, policy):
    """By default; under the others epochs decide alone (test_merge.py). Of data that nobody has read before: under lfu one read
    does not count for much against what was read often."""
    data = tmp_path / "data"
    with Server(data) as server:
        numbers(server, ROWS)
    with start(data, policy) as server:
        epochs = "select count(*) as n from system.epochs where trigger <> 'restart'"
        before = server.query(epochs).to_pylist()
        for chunk in (1, 2):
            read(server, chunk)
            eventually(lambda: {(chunk, "k"), (chunk, "x")} <= in_dram(server))
        assert server.query(epochs).to_pylist() == before and server.tiers()["dram"]["used_bytes"] <= BUDGET


def test_static_does_not_move_what_lies(data):
    with start(data, "static") as server:
        server.epoch()
        before = in_dram(server)
        read(server, 3, times=20)
        server.epoch()
        assert in_dram(server) == before != set()


def test_an_unknown_policy_is_refused_with_the_known_ones(tmp_path):
    asked = [BINARY, "serve", "--data-dir", str(tmp_path), "--set", "tiering.policy=fifo"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert "tiering.policy" in done.stderr and "`lru`" in done.stderr, done.stderr
