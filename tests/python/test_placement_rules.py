"""Placement rules through SQL, HTTP and the command line of a real server."""

import json
import urllib.request

import pytest

from helpers import eventually, numbers
from server import Server, terrace

ROWS = 200_000
ALL = "select count(*) as n, sum(k) as k, count(s) as s from t"


@pytest.fixture
def server(tmp_path):
    """A server with a table of four chunks, clustered by `k`, and NVM beside DRAM."""
    arguments = ["--nvm-emulated", "--nvm-capacity", "64MiB", "--dram-budget", "64MiB", "--set", "tiering.interval=1h"]
    with Server(tmp_path / "data", *arguments) as server:
        server.arguments = arguments
        numbers(server, ROWS, step=1)
        yield server


def where(server, tier):
    """Chunk and column of the segments on a tier."""
    rows = server.query(f"select chunk, column_name from system.segments where table_name = 't' and tier = '{tier}'")
    return {(row["chunk"], row["column_name"]) for row in rows.to_pylist()}


def rules(server):
    return {row["rule"]: row for row in server.query("select * from system.placement_rules").to_pylist()}


def refused(server, sql):
    with pytest.raises(Exception) as caught:
        server.query(sql)
    return str(caught.value)


def segments(chunks, columns="kxs"):
    return {(chunk, column) for chunk in chunks for column in columns}


def chunk_ids(server):
    return sorted(row["chunk"] for row in server.query("select chunk from system.chunks").to_pylist())


def test_sql_pins_excludes_and_prefers(server):
    first, second, third, fourth = chunks = chunk_ids(server)
    answer = server.query(ALL).to_pylist()
    assert where(server, "dram") == segments(chunks)
    server.query("alter table t exclude from dram")
    # The loop would sleep for an hour: a rule wakes it.
    eventually(lambda: where(server, "dram") == set())
    server.query(f"alter table t pin columns (k, s) chunks {first} to {second} to nvm")
    server.query("alter table t pin columns (x) where k >= 150000 to dram")
    server.epoch()
    # What may not lie in DRAM may find its own way to NVM.
    assert where(server, "nvm") >= segments([first, second], "ks")
    assert where(server, "dram") == segments([third, fourth], "x"), "of the third the last rows are in scope"
    known = rules(server)
    assert [row["definition"] for row in known.values()] == [
        "EXCLUDE FROM dram",
        f"PIN COLUMNS (k, s) CHUNKS {first} TO {second} TO nvm",
        "PIN COLUMNS (x) WHERE k >= 150000 TO dram",
    ]
    assert all(row["met"] and row["unmet_bytes"] == 0 for row in known.values()), known
    assert known[1]["overruled_bytes"] == known[3]["bytes"] > 0 and known[2]["nvm_bytes"] == known[2]["bytes"]
    why = server.query("select distinct reason from system.moves where to_tier = 'nvm'").to_pylist()
    assert any("rule 2 of public.t, PIN COLUMNS (k, s)" in row["reason"] for row in why), why
    told = server.query(f"select placement_rule from system.segments where column_name in ('k', 's') and "
                        f"chunk in ({first}, {second})").to_pylist()
    assert {row["placement_rule"] for row in told} == {f"rule 2: {known[2]['definition']}"}
    created = server.query("show create table t").to_pylist()[0]["definition"]
    assert ".t EXCLUDE FROM dram;" in created, created

    server.query("alter table t rename column k to key")
    server.query("alter table t rename to u")
    assert rules(server)[3]["definition"] == "PIN COLUMNS (x) WHERE key >= 150000 TO dram"
    server.query("alter table u rename to t")
    server.query("alter table t rename column key to k")
    server.query(f"alter table t unpin columns (s, k) chunks {first} to {second}")
    server.query("alter table t drop placement rule 1")
    assert list(rules(server)) == [3]
    server.query("alter table t drop placement rules")
    assert rules(server) == {} and server.query(ALL).to_pylist() == answer


def test_rules_survive_kill_backup_and_compaction(server, tmp_path):
    first, second, *_ = chunk_ids(server)
    arguments = server.arguments
    server.query(f"alter table t pin chunks {first} to {second} to dram")
    server.query("alter table t exclude columns (s) from dram")
    server.query("alter table t unpin")
    server.query(f"alter table t pin columns (k) chunks {first} to {second} to dram")
    server.epoch()
    said = {number: row["definition"] for number, row in rules(server).items()}
    assert list(said) == [2, 3]
    server.kill()
    with Server(tmp_path / "data", *arguments) as server:
        assert {number: row["definition"] for number, row in rules(server).items()} == said
        # Every second row of the two pinned chunks goes; what is left lies in new chunks, under the same rule.
        server.query("delete from t where k % 2 = 0 and k < 131072")
        server.query("update t set x = 0 where k = 1")
        server.query("optimize t")
        new = [chunk for chunk in chunk_ids(server) if chunk not in (first, second)]
        low = server.query("select definition, segments, bytes from system.placement_rules where kind = 'pin'").to_pylist()
        assert len(low) == 1 and f"CHUNKS {first}" not in low[0]["definition"] and low[0]["segments"] >= 1, low
        pinned = {row["chunk"] for row in server.query(
            "select chunk from system.segments where placement_rule like '%PIN%'").to_pylist()}
        assert pinned and pinned <= set(new)
        server.epoch()
        assert all(row["met"] for row in rules(server).values())
        terrace("backup", tmp_path / "copy", "--http-addr", server.http)
        said = {number: row["definition"] for number, row in rules(server).items()}
        server.query("truncate table t")
        assert list(rules(server)) == [2], "what was about chunks went with them"
        server.query("drop table t")
        assert rules(server) == {}
    terrace("restore", tmp_path / "copy", "--data-dir", tmp_path / "restored")
    with Server(tmp_path / "restored", *arguments) as server:
        assert {number: row["definition"] for number, row in rules(server).items()} == said


def test_what_makes_no_sense_is_refused_with_the_reason(server):
    for sql, words in [
        ("alter table nowhere pin to dram", "'nowhere' does not exist"),
        ("alter table t pin to tape", "tier 'tape' does not exist; the tiers are dram, nvm, ssd"),
        ("alter table t pin columns (y) to dram", "column 'y' of 't' does not exist"),
        ("alter table t pin columns (k, k) to dram", "named twice"),
        ("alter table t pin chunks 900 to 901 to dram", "no chunk of 900 TO 901; its chunks are"),
        ("alter table t pin chunks 3 to 1 to dram", "ends before it begins"),
        ("alter table t pin where k % 2 = 0 to dram", "joined by AND and OR; not"),
        ("alter table t pin where random() < 0.5 to dram", "not the same"),
        ("alter table t pin where k = k or true to dram", "holds for every row"),
        ("alter table t pin dram", "TO tier"),
        ("alter table t unpin columns (k)", "has no pin of just this scope"),
        ("alter table t drop placement rule 7", "placement rule '7' does not exist"),
        ("alter table system.tiers pin to dram", "belongs to the system"),
    ]:
        assert words in refused(server, sql), (sql, refused(server, sql))
    assert server.query("alter table if exists nowhere pin to dram") is not None
    assert rules(server) == {}
    server.budget("dram", "1MiB")
    error = refused(server, "alter table t pin columns (x) to dram")
    assert "pins need 1.5 MiB of dram, the budget is 1.0 MiB" in error and "too much" in error, error
    server.budget("dram", "8MiB")
    server.query("alter table t pin columns (x) to dram")
    with pytest.raises(RuntimeError, match="400.*pins need 1.5 MiB of dram, the budget is 1.0 MiB"):
        server.budget("dram", "1MiB")
    # Data grows until the pin no longer fits: it gives way, statements go on, and the server says so.
    server.budget("dram", "2MiB")
    server.query("insert into t select k, x, s from t")
    server.query("optimize t")
    server.epoch()
    row = rules(server)[1]
    assert not row["met"] and row["unmet_bytes"] > 0 and row["met_bytes"] > 1 << 20, row
    assert server.tiers()["dram"]["used_bytes"] <= 2 << 20
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        assert f"terrace_epoch_rules_unmet_bytes {row['unmet_bytes']}" in answer.read().decode()
    assert "placement rules want" in server.output()
    assert server.query("select count(*) as n from t").to_pylist() == [{"n": 2 * ROWS}]


def test_http_and_command_line_say_the_same(server):
    first, *_, last = chunk_ids(server)
    path = "/api/v1/tables/t/placement-rules"
    made = server.request("POST", path, {"kind": "pin", "tier": "nvm", "columns": ["k"],
                                         "chunks": [{"first": first, "last": last}]})
    assert made["definition"] == f"PIN COLUMNS (k) CHUNKS {first} TO {last} TO nvm" and made["rule"] == 1
    for body, words in [
        ({"kind": "pin"}, "missing field `tier`"),
        ({"kind": "nail", "tier": "dram"}, "unknown variant"),
        ({"kind": "pin", "tier": "dram", "where": "k >"}, "WHERE k >"),
        ({"kind": "pin", "tier": "dram", "where": "k > 1 x"}, "WHERE k > 1 x"),
        ({"kind": "pin", "tier": "dram", "where": "k > 1", "chunks": []}, "not both"),
        ({"kind": "pin", "tier": "tape"}, "404.*tape"),
        ({"kind": "pin", "tier": "dram", "rows": 3}, "unknown field"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            server.request("POST", path, body)
    at = ["--http-addr", server.http]
    text = terrace("placement", "pin", "t", "--columns", "x,s", "--where", "k < 1000", "--to", "dram", *at).stdout
    assert "rule 2: PIN COLUMNS (x, s) WHERE k < 1000 TO dram" in text, text
    made = json.loads(terrace("placement", "exclude", "t", "--columns", "x", "--chunks", f"{last}", "--from", "dram",
                              "--json", *at).stdout)
    assert made["definition"] == f"EXCLUDE COLUMNS (x) CHUNKS {last} FROM dram"
    terrace("placement", "prefer", "public.t", "--columns", "s", "--on", "dram", *at)
    server.epoch()
    listed = json.loads(terrace("placement", "list", "--json", *at).stdout)
    assert listed == server.request("GET", "/api/v1/placement-rules")["items"] == server.request("GET", path)["items"]
    assert [row["rule"] for row in listed] == [1, 2, 3, 4] and all(row["met"] for row in listed[:3])
    assert where(server, "nvm") == segments(chunk_ids(server), "k")
    assert "met, " in terrace("placement", "list", "t", *at).stdout
    wrong = terrace("placement", "pin", "t", "--to", "tape", *at, check=False)
    assert wrong.returncode == 1 and "tape" in wrong.stderr, wrong.stderr
    assert terrace("placement", "drop", "t", *at, check=False).returncode == 2
    assert "rule 3" in terrace("placement", "drop", "t", "--rule", "3", *at).stdout
    # Just one of them, by its scope; the same words as in SQL.
    refused = terrace("placement", "unpin", "t", "--columns", "x", *at, check=False)
    assert refused.returncode == 1 and "has no pin of just this scope" in refused.stderr, refused.stderr
    with pytest.raises(RuntimeError, match="404.*has no pin of just this scope"):
        server.request("POST", "/api/v1/tables/t/unpin", {"columns": ["s", "x"], "where": "k < 1001"})
    with pytest.raises(RuntimeError, match="400.*not both"):
        server.request("POST", "/api/v1/tables/t/unpin", {"chunks": [{"first": 1}], "where": "k < 1001"})
    scope = {"columns": ["s", "x"], "where": "k < 1000"}
    assert server.request("POST", "/api/v1/tables/t/unpin", scope) == {"dropped": [2]}
    terrace("placement", "pin", "t", "--columns", "x", "--chunks", f"{last}", "--to", "nvm", *at)
    assert terrace("placement", "unpin", "t", "--columns", "x", "--chunks", f"{last}", *at).stdout == "dropped: rule 5\n"
    terrace("placement", "pin", "t", "--where", "k < 1000", "--to", "dram", *at)
    assert terrace("placement", "unpin", "t", "--where", "k < 1000", *at).stdout == "dropped: rule 6\n"
    terrace("placement", "pin", "t", "--columns", "x", "--to", "nvm", *at)
    assert terrace("placement", "unpin", "t", *at).stdout == "dropped: rule 1, 7\n"
    assert server.request("POST", "/api/v1/tables/t/unpin", {}) == {"dropped": []}
    assert json.loads(terrace("placement", "drop", "t", "--all", "--json", *at).stdout) == {"dropped": [4]}
    assert "no placement rules" in terrace("placement", "list", *at).stdout
    help_text = terrace("placement", "pin", "--help").stdout
    assert "--where" in help_text and "--chunks" in help_text


def forms(server):
    """Tier and form of the copies of column `k`."""
    rows = server.query("select distinct tier, form from system.segments where column_name = 'k'").to_pylist()
    return {(row["tier"], row["form"]) for row in rows}


def test_a_rule_names_the_form_of_copies(server):
    answer = server.query(ALL).to_pylist()
    assert forms(server) == {("dram", "plain")}
    server.query("alter table t pin columns (k) to dram form packed")
    eventually(lambda: forms(server) == {("dram", "packed")})
    path = "/api/v1/tables/t/placement-rules"
    made = server.request("POST", path, {"kind": "pin", "tier": "nvm", "columns": ["k"], "form": "packed"})
    assert (made["definition"], made["form"]) == ("PIN COLUMNS (k) TO nvm FORM packed", "packed")
    eventually(lambda: forms(server) == {("nvm", "packed")})
    at = ["--http-addr", server.http]
    text = terrace("placement", "pin", "t", "--columns", "k", "--to", "nvm", "--form", "plain", *at).stdout
    assert "rule 3: PIN COLUMNS (k) TO nvm FORM plain" in text, text
    eventually(lambda: forms(server) == {("nvm", "plain")})
    moves = server.query("select distinct from_tier, to_tier, from_form, to_form from system.moves where column_name = 'k'")
    assert sorted(tuple(row.values()) for row in moves.to_pylist()) == [
        ("dram", "dram", "plain", "packed"), ("dram", "nvm", "packed", "packed"), ("nvm", "nvm", "packed", "plain")]
    assert server.query(ALL).to_pylist() == answer
    listed = server.request("GET", path)["items"]
    assert [(row["form"], row["met"]) for row in listed] == [("packed", True), ("packed", True), ("plain", True)], listed
    for words, ask in [
        ("a form is plain or packed", lambda: server.query("alter table t pin to dram form flat")),
        ("400.*leave out FORM packed", lambda: server.request("POST", path, {"kind": "pin", "tier": "ssd", "form": "packed"})),
    ]:
        with pytest.raises(Exception, match=words):
            ask()
    # The forms last as long as the rules.
    server.kill()
    with Server(server.data_dir, *server.arguments) as again:
        again.epoch()
        eventually(lambda: forms(again) == {("nvm", "plain")})
        assert again.query(ALL).to_pylist() == answer
