"""The user's hand on placement: explanations, modes, freeze, orders, the log of moves; SQL, HTTP and command line."""

import csv
import io
import json
import urllib.request

import pytest

from helpers import STEP, eventually, numbers
from server import Server, terrace

ROWS = 200_000
ARGUMENTS = ["--dram-budget", "64MiB", "--set", "tiering.interval=1h"]
ALL = "select count(*) as n, sum(k) as k, count(s) as s from t"


@pytest.fixture
def server(tmp_path):
    """A server with a table of four chunks, clustered by `k`."""
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        numbers(server, ROWS, clustered=" with (cluster_by = 'k')")
        yield server


def rows(server, sql):
    return server.query(sql).to_pylist()


def where(server, tier="dram"):
    """Chunk and column of the segments on a tier."""
    found = rows(server, f"select chunk, column_name from system.segments where table_name = 't' and tier = '{tier}'")
    return {(row["chunk"], row["column_name"]) for row in found}


def chunk_ids(server):
    return sorted(row["chunk"] for row in rows(server, "select chunk from system.chunks"))


def columns(server):
    """Columns of the segments in DRAM; the few rows of the last chunk fit wherever a little room is left."""
    found = rows(server, "select distinct column_name from system.segments where table_name = 't' and tier = 'dram' "
                         "and bytes > 100000")
    return {row["column_name"] for row in found}


def segments_of(server, column):
    return {(chunk, column) for chunk in chunk_ids(server)}


def refused(server, sql):
    with pytest.raises(Exception) as caught:
        server.query(sql)
    return str(caught.value)


def read(server, column, times=1):
    for _ in range(times):
        server.query(f"select sum({column}) from t where {column} >= 0")


def epoch_under_way(server):
    return server.request("GET", "/api/v1/placement")["epoch_under_way"]


def test_what_an_explanation_says_comes_true(server):
    first, *_ = chunk_ids(server)
    read(server, "x", 20)
    server.budget("dram", "1600KiB")  # the four segments of x, and hardly more
    server.epoch()
    assert columns(server) == {"x"}, where(server)
    ask = f"explain placement t columns (k) chunks {first}"
    told, = rows(server, ask)
    assert (told["table_name"], told["chunk"], told["column_name"], told["tier"]) == ("t", first, "k", "ssd"), told
    assert told["basis"] == "planned" and told["planned_tier"] == "ssd" and told["reads"] == 0, told
    assert "goes to dram when read more than" in told["why"], told
    assert told["reads_above"] > 1 and told["more_room_bytes"] is None, "no room brings what nobody reads"
    # It is read until it goes: just where the last answer said. What the disk takes for these reads is learned meanwhile.
    kept = gone = 0
    above = told["reads_above"]
    for _ in range(200):
        read(server, "k")
        now, = rows(server, ask)
        if now["planned_tier"] == "ssd":
            assert now["reads"] <= now["reads_above"], (told, now)
            kept, gone, above = kept + 1, 0, now["reads_above"]
        else:
            assert now["reads"] >= above * 0.95, (told, above, now)
            gone += 1
        if gone == 3:
            break
    assert kept >= 1 and gone == 3, (kept, gone)
    server.epoch()
    assert (first, "k") in where(server)


def test_room_that_an_explanation_asks_for_is_enough(server):
    read(server, "x", 80)
    read(server, "k", 12)
    server.budget("dram", "1600KiB")
    server.epoch()
    chunk = chunk_ids(server)[1]
    ask = f"explain placement t columns (k) chunks {chunk}"
    told, = rows(server, ask)
    assert told["planned_tier"] == "ssd", told
    budget = server.tiers()["dram"]["budget_bytes"]
    for more, planned in [(int(told["more_room_bytes"] * 0.9), "ssd"), (told["more_room_bytes"], "dram")]:
        server.budget("dram", budget + more)
        now, = rows(server, ask)
        assert now["planned_tier"] == planned, (more, told, now)


def test_explanations_in_sql_http_and_on_the_command_line_are_the_same(server):
    first, *_, last = chunk_ids(server)
    read(server, "x", 5)
    server.query(f"alter table t pin columns (s) chunks {first} to dram")
    server.epoch()
    at = ["--http-addr", server.http]
    every = rows(server, "explain placement t")
    assert len(every) == 12 and {row["tier"] for row in every} == {"dram"}
    scoped = rows(server, f"explain placement public.t columns (x, s) where k < {1_000 * STEP}")
    assert [(row["chunk"], row["column_name"]) for row in scoped] == [(first, "x"), (first, "s")]
    assert "less" in scoped[0]["condition"], scoped[0]
    assert "pinned by rule 1 of public.t" in scoped[1]["why"] and scoped[1]["condition"] == "", scoped[1]
    assert scoped[1]["rules"].startswith("rule 1 of public.t, PIN COLUMNS (s)")
    path = "/api/v1/tables/t/explain-placement"
    answer = server.request("POST", path, {"columns": ["x", "s"], "where": f"k < {1_000 * STEP}"})["items"]
    assert [item["why"] for item in answer] == [row["why"] for row in scoped]
    assert [option["tier"] for option in answer[0]["options"]] == ["dram", "ssd"]
    out = terrace("placement", "explain", "t", "--columns", "x,s", "--where", f"k < {1_000 * STEP}", *at).stdout
    assert all(row["why"] in out for row in scoped), out
    said = json.loads(terrace("placement", "explain", "t", "--columns", "x,s", "--where", f"k < {1_000 * STEP}", "--json", *at).stdout)
    assert [(item["chunk"], item["why"]) for item in said["items"]] == [(item["chunk"], item["why"]) for item in answer]
    for sql, words in [
        ("explain placement nowhere", "'nowhere' does not exist"),
        ("explain placement t columns (y)", "column 'y' of 't' does not exist"),
        ("explain placement t chunks 900", f"its chunks are {first} TO {last}"),
        ("explain placement t where x * 2 > 3", "comparisons of a column with a value"),
        ("explain placement delete from t", "a table, or a query"),
        ("explain placement select y from t", "y"),
    ]:
        assert words in refused(server, sql), (sql, refused(server, sql))
    with pytest.raises(RuntimeError, match="404"):
        server.request("POST", "/api/v1/tables/nowhere/explain-placement", {})


def test_a_segment_without_bytes_is_explained_in_a_sentence(server):
    server.query("alter table t add column added int default 7")
    server.query("alter table t pin columns (added) to dram")
    said = rows(server, "explain placement t columns (k, added)")
    chunks = [chunk for chunk in chunk_ids(server) for _ in "ka"]
    assert [row["chunk"] for row in said] == chunks and [row["column_name"] for row in said[:2]] == ["k", "added"], said
    whys = {row["why"] for row in said if row["column_name"] == "added"}
    assert len(whys) == 1 and whys.pop().startswith("lies on no tier: the column was added after this chunk was written")
    one = rows(server, f"explain placement t columns (added) chunks {chunks[0]}")
    assert [(row["tier"], row["planned_tier"], row["bytes"], row["runner_up"]) for row in one] == [("none", "none", 0, None)]
    text = terrace("placement", "explain", "t", "--columns", "added", "--http-addr", server.http).stdout
    assert text.count("added (0 B): lies on no tier") == len(chunk_ids(server)), text
    # A chunk that is written anew has it like any other column.
    server.query("update t set added = 8 where k = 0")
    server.query("optimize t")
    assert any(row["tier"] != "none" for row in rows(server, "explain placement t columns (added)"))


def test_a_query_is_explained_without_being_run(server):
    server.budget("dram", "0")
    sql = f"select sum(x) from t where k between {150_000 * STEP} and {199_990 * STEP}"
    for _ in range(20):  # so that it pays whatever calibration measured on a busy machine
        server.query(sql)
    server.epoch()
    before = rows(server, "select sum(accesses) as n from system.segments")[0]["n"]
    *parts, total = rows(server, f"explain placement {sql}")
    assert rows(server, "select sum(accesses) as n from system.segments")[0]["n"] == before
    assert {(part["column_name"], part["tier"], part["chunks"]) for part in parts} == {("k", "ssd", 2), ("x", "ssd", 2)}
    assert total["bytes"] == sum(part["bytes"] for part in parts) > 0 and total["read_us"] > 0 and total["fast_us"] > 0
    assert total["runs_per_epoch"] is None and total["more_room_bytes"] > 100_000, total
    assert "come from cold storage" in total["why"] and "no number of runs" in total["why"], total
    # The room it asks for, and one run per epoch: all of it comes.
    server.budget("dram", total["more_room_bytes"])
    for _ in range(20):
        server.query(sql)
    server.epoch()
    *parts, total = rows(server, f"explain placement {sql}")
    assert {part["tier"] for part in parts} == {"dram"} and "from memory" in total["why"], (parts, total)
    answer = server.request("POST", "/api/v1/explain-placement", {"sql": sql})
    assert answer["why"] == total["why"] and answer["cold_bytes"] == 0
    out = terrace("placement", "explain", "--query", sql, "--http-addr", server.http).stdout
    assert "public.t.x: 2 chunks on dram" in out and total["why"] in out, out
    with pytest.raises(RuntimeError, match="400.*a table, or a query"):
        server.request("POST", "/api/v1/explain-placement", {"sql": "t"})


def test_modes_hold_in_sql_http_and_on_the_command_line_and_after_a_kill(server, tmp_path):
    at = ["--http-addr", server.http]
    server.query("alter table t set (tiering = advise)")
    assert rows(server, "select tiering from system.tables where table_name = 't'") == [{"tiering": "advise"}]
    assert "tiering = 'advise'" in rows(server, "show create table t")[0]["definition"]
    lay = where(server)
    read(server, "x", 9)
    server.budget("dram", "1600KiB")
    proposed = server.epoch()
    assert (proposed["epoch"]["moves"], proposed["epoch"]["moves_done"]) == (0, 0) and where(server) == lay
    assert proposed["epoch"]["moves_proposed"] == len(proposed["moves"]) >= 6, proposed["epoch"]
    assert {move["status"] for move in proposed["moves"]} == {"proposed"}
    assert rows(server, "select distinct status from system.moves") == [{"status": "proposed"}]
    assert "tiering of public.t is advise; with tiering = auto: goes from dram to ssd" in \
        rows(server, "explain placement t columns (s)")[0]["why"]
    assert "tiering of public.t is off" in terrace("placement", "mode", "off", "--table", "t", *at).stdout
    server.kill()
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        at = ["--http-addr", server.http]
        assert rows(server, "select tiering from system.tables where table_name = 't'") == [{"tiering": "off"}]
        read(server, "x", 9)
        report = server.epoch()
        assert report["epoch"]["segments"] == 0 and where(server) == set()
        assert server.request("PUT", "/api/v1/tables/t/tiering", {"mode": "auto"}) == {"table": "public.t", "mode": "auto"}
        # The loop would sleep for an hour: a mode wakes it.
        eventually(lambda: columns(server) == {"x"})
        server.query("alter system set tiering = advise")
        assert server.request("GET", "/api/v1/placement")["mode"] == "advise"
        read(server, "k", 90)
        assert rows(server, "epoch now") and server.request("GET", "/api/v1/epochs")["items"][0]["moves_done"] == 0
        assert "tiering is off" in terrace("placement", "mode", "off", *at).stdout
        with urllib.request.urlopen(f"http://{server.http}/metrics") as metrics:
            text = metrics.read().decode()
        assert 'terrace_epoch_loop_mode{mode="off"} 1' in text and "terrace_epoch_loop_enabled 0" in text
        server.kill()
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        assert "tiering is off" in terrace("placement", "mode", "--http-addr", server.http).stdout
        server.query("alter system set tiering = auto")
        assert rows(server, ALL) == [{"n": ROWS, "k": STEP * ROWS * (ROWS - 1) // 2, "s": ROWS}]
        for sql, words in [
            ("alter table t set (tiering = maybe)", "'auto', 'advise' or 'off'"),
            ("alter system set tiering = maybe", "auto, advise or off"),
            ("alter system set other = 1", "SET tiering"),
        ]:
            assert words in refused(server, sql), (sql, refused(server, sql))
        with pytest.raises(RuntimeError, match="unknown variant"):
            server.request("PUT", "/api/v1/placement", {"mode": "maybe"})
    with Server(tmp_path / "data", *ARGUMENTS, "--set", "tiering.mode=advise") as server:
        assert server.request("GET", "/api/v1/placement")["mode"] == "advise", "what the configuration says wins"


def test_nothing_moves_while_frozen(server, tmp_path):
    at = ["--http-addr", server.http]
    lay = where(server)
    server.query("freeze placement")
    read(server, "x", 5)
    server.budget("dram", "1MiB")
    server.query("alter table t exclude columns (s) from dram")
    for ask in ["epoch now", "warm up t", "bring back t to ssd", "roll back placement to epoch 1"]:
        assert "placement is frozen" in refused(server, ask), ask
    with pytest.raises(RuntimeError, match="placement is frozen"):
        server.epoch()
    assert rows(server, "epoch dry run") and where(server) == lay
    assert rows(server, "explain placement t")[0]["why"].startswith("placement is frozen; after UNFREEZE PLACEMENT: ")
    server.kill()
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        at = ["--http-addr", server.http]
        assert "placement is frozen" in terrace("placement", "mode", *at).stdout
        assert where(server) == set(), "a restart leaves all at home, and it stays there"
        assert "frozen" not in terrace("placement", "unfreeze", *at).stdout
        read(server, "x", 5)
        server.epoch()
        assert columns(server) == {"x"}
        assert "placement is frozen" in terrace("placement", "freeze", *at).stdout
        assert server.request("PUT", "/api/v1/placement", {"frozen": False})["frozen"] is False


def test_orders_move_once_and_say_what_became_of_it(server):
    first, *_ = chunk_ids(server)
    at = ["--http-addr", server.http]
    read(server, "x", 9)
    server.budget("dram", "1600KiB")
    before = server.epoch()["epoch"]["id"]
    assert columns(server) == {"x"}
    outcome = {row["outcome"]: row for row in rows(server, f"bring back t columns (k) chunks {first} to dram")}
    assert outcome["moved to dram"]["segments"] == 1 and outcome["moved to dram"]["bytes"] > 100_000, outcome
    assert outcome["made room: moved to ssd"]["segments"] >= 1
    assert (first, "k") in where(server) and not segments_of(server, "x") <= where(server)
    log = rows(server, "select * from system.moves where epoch = (select max(epoch) from system.epochs)")
    assert any(row["reason"] == "ordered: bring public.t to dram" and row["status"] == "done" for row in log), log
    assert server.tiers()["dram"]["used_bytes"] <= 1600 << 10
    error = refused(server, "bring back t columns (s) to dram")
    assert "these segments need" in error and "the budget is 1.6 MiB" in error and "too much" in error, error
    for sql, words in [
        ("bring back t to tape", "tier 'tape' does not exist; the tiers are dram, ssd"),
        ("bring back t chunks 900 to dram", "no segment is in this scope"),
        ("bring back nowhere to dram", "'nowhere' does not exist"),
        ("roll back placement to epoch 9000", "does not exist; the store keeps those of epochs 1 to"),
    ]:
        assert words in refused(server, sql), (sql, refused(server, sql))
    outcome = terrace("placement", "roll-back", "--to-epoch", before, *at).stdout
    assert "moved to dram" in outcome and "already on" in outcome, outcome
    assert columns(server) == {"x"}
    # What came and went since does not hold it up.
    server.query(f"delete from t where k < {65_536 * STEP}")
    server.query(f"insert into t select k + {1_000_000 * STEP}, x, s from t where k < {100_000 * STEP}")
    server.query("optimize t")
    report = server.request("POST", "/api/v1/placement/roll-back", {"epoch": before})
    said = {row["what"]: row["segments"] for row in report["outcome"]}
    assert said["no longer exists: dropped, deleted or compacted since"] >= 1, said
    assert said["not moved: newer than the epoch"] >= 1, said
    assert report["epoch"]["trigger"] == f"roll back to epoch {before}"
    # A warm-up brings what was read nowhere, within the budget.
    server.query("bring t to ssd")
    assert where(server) == set()
    reads = "select sum(accesses) as n from system.segments where column_name = 's'"
    n = rows(server, reads)[0]["n"]
    report = json.loads(terrace("placement", "warm-up", "t", "--columns", "s", "--json", *at).stdout)
    assert any(row["what"] == "moved to dram" for row in report["outcome"]), report["outcome"]
    assert {column for _, column in where(server)} == {"s"} and rows(server, reads)[0]["n"] == n
    assert server.tiers()["dram"]["used_bytes"] <= 1600 << 10
    outcome = server.request("POST", "/api/v1/tables/t/bring-back", {"tier": "ssd"})["outcome"]
    assert any(row["what"] == "moved to ssd" for row in outcome) and where(server) == set()
    assert rows(server, f"warm up t columns (k) where k >= {1_000_000 * STEP}")[0]["outcome"] == "moved to dram"


def test_an_epoch_under_way_can_be_cancelled(server, tmp_path):
    """The loop's epoch after a restart copies slowly; it is ended in SQL, over HTTP and on the command line."""
    at = ["--http-addr", server.http]
    none = "no epoch is under way, so there is nothing to cancel"
    assert none in refused(server, "cancel epoch")
    with pytest.raises(RuntimeError, match="400.*" + none):
        server.request("POST", "/api/v1/epochs/cancel")
    said = terrace("placement", "cancel-epoch", *at, check=False)
    assert said.returncode == 1 and none in said.stderr, said
    assert epoch_under_way(server) is None
    read(server, "k", times=30)
    server.epoch()
    server.stop()
    words = [lambda new: rows(new, "cancel epoch"),
             lambda new: new.request("POST", "/api/v1/epochs/cancel"),
             lambda new: terrace("placement", "cancel-epoch", "--http-addr", new.http).stdout]
    for say in words:
        # A column of a chunk takes eight seconds at this rate.
        with Server(tmp_path / "data", *ARGUMENTS, "--set", "tiering.rate_limit=64KiB") as new:
            eventually(lambda: epoch_under_way(new) is not None)
            epoch = epoch_under_way(new)
            assert f"epoch {epoch} is running" in terrace("placement", "mode", "--http-addr", new.http).stdout
            say(new)
            eventually(lambda: epoch_under_way(new) is None)
            log = rows(new, f"select status, why_skipped from system.moves where epoch = {epoch}")
            assert {"status": "skipped", "why_skipped": "cancelled"} in log, log
            assert len([row for row in log if row["status"] == "done"]) <= 2, log
            assert rows(new, "select count(*) as n from t") == [{"n": ROWS}]
            new.stop()


def test_after_a_restart_the_hottest_return_first_at_the_rate_while_queries_run(server, tmp_path):
    chunks = chunk_ids(server)
    size = 65_536 * STEP
    for chunk, times in [(1, 40), (2, 10), (0, 20)]:
        for _ in range(times):
            server.query(f"select sum(k) from t where k >= {chunk * size} and k < {(chunk + 1) * size}")
    expected = rows(server, ALL)
    server.stop()
    rate = 256 << 10
    # A column of a chunk has 512 KiB: two seconds each.
    with Server(tmp_path / "data", *ARGUMENTS, "--set", f"tiering.rate_limit={rate}") as new:
        answered = 0
        while rows(new, "select count(*) as n from system.epochs") == [{"n": 0}]:
            before = epoch_under_way(new)
            assert rows(new, ALL) == expected
            answered += before is not None and epoch_under_way(new) == before
        # How many is a question of the machine's load; the epoch takes as long as its rate says.
        assert answered >= 1, "no query was answered while the epoch was under way"
        epoch = rows(new, "select epoch, trigger from system.epochs")
        moves = rows(new, "select chunk, column_name, bytes, ended, took_us, status, benefit_ns_per_byte as worth from system.moves "
                          "order by number")
        assert [row["trigger"] for row in epoch] == ["restart"] and {row["status"] for row in moves} == {"done"}, moves
        hottest = [chunks.index(row["chunk"]) for row in moves if row["column_name"] == "k" and row["bytes"] > 100_000]
        assert hottest == [1, 0, 2], moves
        assert [row["worth"] for row in moves] == sorted((row["worth"] for row in moves), reverse=True), moves
        copied = 0
        for before, row in zip(moves, moves[1:]):
            copied += before["bytes"]
            # On a busy machine the first move may end late by as long as it takes; those behind it catch up.
            passed = (row["ended"] - moves[0]["ended"]).total_seconds() + moves[0]["took_us"] / 1e6
            assert passed >= 0.95 * (copied - 2 * moves[0]["bytes"]) / rate, moves


def test_the_log_says_what_moves_brought_survives_and_is_exported(server, tmp_path):
    read(server, "x", 8)
    server.budget("dram", "1600KiB")
    server.epoch()
    server.query("bring t to ssd")
    read(server, "x", 8)
    moved = server.epoch()["epoch"]["id"]
    ask = f"select * from system.moves where epoch = {moved} and to_tier = 'dram' and column_name = 'x'"
    said = rows(server, ask)
    assert len(said) >= 3 and all(row["measured_us"] is None and row["benefit_us"] > 0 for row in said), said
    assert all(row["runner_up"] == "ssd" and row["runner_up_us"] >= 0 for row in said), said
    assert all("goes to ssd when read less than" in row["condition"] for row in said), said
    for _ in range(2):
        read(server, "x", 8)
        server.epoch()
    said = rows(server, ask)
    assert all(row["measured_epochs"] == 2 and row["measured_us"] > 0 for row in said), said
    epoch, = rows(server, f"select * from system.epochs where epoch = {moved}")
    assert epoch["measured_us"] > 0 and epoch["predicted_us"] > 0 and epoch["prediction_error"] < 1, epoch
    assert epoch["dram_price_ns_per_byte"] is not None and epoch["nvm_price_ns_per_byte"] is None, epoch
    assert json.loads(epoch["prices_ns_per_byte"]) == {"dram": epoch["dram_price_ns_per_byte"]}
    with urllib.request.urlopen(f"http://{server.http}/metrics") as metrics:
        text = metrics.read().decode()
    assert 'terrace_epoch_benefit_seconds{source="measured"}' in text and "terrace_epoch_prediction_error_ratio" in text
    server.kill()
    with Server(tmp_path / "data", *ARGUMENTS) as server:
        at = ["--http-addr", server.http]
        assert rows(server, ask) == said
        eventually(lambda: rows(server, "select epoch from system.epochs where trigger = 'restart'"))
        count = rows(server, "select count(*) as n from system.moves")[0]["n"]
        lines = [json.loads(line) for line in terrace("moves", "export", *at).stdout.splitlines()]
        assert len(lines) == count and {(line["epoch"], line["number"]) for line in lines if line["epoch"] == moved}
        terrace("moves", "export", tmp_path / "moves.csv", "--format", "csv", *at)
        table = list(csv.DictReader(io.StringIO((tmp_path / "moves.csv").read_text())))
        assert [row["reason"] for row in table] == [line["reason"] for line in lines]
        for form, read_back in [("jsonl", lambda text: [json.loads(line) for line in text.splitlines()]),
                                ("csv", lambda text: list(csv.DictReader(io.StringIO(text))))]:
            with urllib.request.urlopen(f"http://{server.http}/api/v1/moves/export?format={form}") as answer:
                exported = read_back(answer.read().decode())
            order = sorted(lines, key=lambda line: (line["epoch"], line["number"]))
            assert [row["reason"] for row in exported] == [line["reason"] for line in order]
        with pytest.raises(Exception, match="400"):
            urllib.request.urlopen(f"http://{server.http}/api/v1/moves/export?format=xml")
