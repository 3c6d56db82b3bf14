"""Hot views that a server learns from what it is asked: proposed, made, replaced by others, and known after a kill."""

import contextlib
import time
import urllib.request

from helpers import execute
from server import Server

SCATTERED = ("create table o with (chunk_rows = 5000) as select value as id, value * 7919 % 10000 as customer, "
             "case when value * 104729 % 500 = 7 then 'open' else 'done' end as status from generate_series(0, 199999)")
CHUNKS = 40
BY_KEY = "select count(*) as n, sum(id) as ids from o where customer = ?"
KEYS = [77, 777, 1234, 4321, 9001]
OPEN = "select count(*) as n, sum(id) as ids from o where status = 'open'"
PROPOSALS = "select * from system.hot_view_proposals order by proposed_at, view_name"
VIEWS = "select * from system.hot_views order by view_name"


def settings(mode, interval="250ms"):
    values = [f"tiering.interval={interval}", "tiering.half_life=2", f"hot_views.mode={mode}", "hot_views.payback_epochs=1000",
              "hot_views.retire_after=4"]
    return [argument for value in values for argument in ("--set", value)]


@contextlib.contextmanager
def client(server):
    with server.connect() as connection, connection.cursor() as cursor:
        yield cursor


def shown(cursor, query):
    cursor.execute(query)
    return cursor.fetch_arrow_table().to_pylist()


def by_key(cursor):
    return [execute(cursor, BY_KEY, (key,)) for key in KEYS]


def ask_until(ask, condition, timeout_s=30):
    """Asks the same again and again, as clients do, until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        for _ in range(3):
            ask()
            time.sleep(0.02)


def metric(server, series):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{series} "))


def test_a_proposal_is_a_statement_that_serves_what_was_asked(tmp_path):
    with Server(tmp_path / "data", *settings("advise")) as server:
        with client(server) as cursor:
            execute(cursor, SCATTERED)
            before = by_key(cursor)
            wanted = f"customer IN ({', '.join(map(str, KEYS))})"
            ask_until(lambda: by_key(cursor), lambda: [p["predicate"] for p in shown(cursor, PROPOSALS)] == [wanted])
            found = shown(cursor, PROPOSALS)[0]
            assert (found["state"], found["table_name"], found["table_rows"]) == ("proposed", "o", 200_000)
            assert 0 < found["served_per_epoch"] <= found["scans_per_epoch"]
            assert 0 < found["saved_bytes_per_epoch"] <= found["read_bytes_per_epoch"]
            assert found["rows"] < 2000 and found["cost_bytes"] > 0 and "asked for these rows only" in found["reason"]
            assert shown(cursor, VIEWS) == [], "nothing is made in this mode"
            execute(cursor, found["statement"])
            implied = {key: shown(cursor, f"explain hot views {BY_KEY.replace('?', str(key))}")[0]["implied"] for key in (777, 5)}
            assert implied == {777: True, 5: False}
            ask_until(lambda: by_key(cursor), lambda: shown(cursor, PROPOSALS)[0]["state"] == "taken")
            assert by_key(cursor) == before
        server.kill()
    with Server(tmp_path / "data", *settings("advise")) as server:
        with client(server) as cursor:
            after = shown(cursor, PROPOSALS)
            assert [(p["view_name"], p["predicate"], p["state"]) for p in after] == [(found["view_name"], wanted, "taken")]
            assert "has its rows" in after[0]["reason"] and after[0]["saved_bytes_per_epoch"] > 0


def test_views_are_made_follow_the_statements_and_stay_over_a_restart(tmp_path):
    def states():
        return [(p["view_name"], p["state"]) for p in shown(cursor, PROPOSALS)]

    def published(name):
        return [(v["view_name"], v["state"]) for v in shown(cursor, VIEWS)] == [(name, "published")]

    with Server(tmp_path / "data", *settings("auto")) as server:
        with client(server) as cursor:
            execute(cursor, SCATTERED)
            before, before_open = by_key(cursor), execute(cursor, OPEN)
            ask_until(lambda: by_key(cursor), lambda: published("auto_o_1"))
            first = shown(cursor, VIEWS)[0]
            assert by_key(cursor) == before
            then = shown(cursor, VIEWS)[0]
            assert then["hits"] >= first["hits"] + len(KEYS)
            assert then["pruned_chunks"] >= first["pruned_chunks"] + len(KEYS) * CHUNKS * 0.8
            execute(cursor, "set terrace.hot_views = false")
            assert by_key(cursor) == before
            assert shown(cursor, VIEWS)[0]["pruned_chunks"] == then["pruned_chunks"]
            execute(cursor, "reset terrace.hot_views")
            # Others come, and ask for something else.
            ask_until(lambda: execute(cursor, OPEN), lambda: published("auto_o_2"))
            assert ("auto_o_1", "retired") in states() and ("auto_o_2", "created") in states()
            assert (execute(cursor, OPEN), by_key(cursor)) == (before_open, before)
            assert metric(server, 'terrace_hot_view_mined_total{event="created"}') >= 2
            assert metric(server, 'terrace_hot_view_mined_total{event="retired"}') >= 1
            assert metric(server, 'terrace_hot_view_mining_scans_total{outcome="noted"}') > 50
            kept, reasons = states(), [p["reason"] for p in shown(cursor, PROPOSALS)]
        server.kill()
    with Server(tmp_path / "data", *settings("auto", interval="1h")) as server:
        with client(server) as cursor:
            # An epoch between the last look and the kill may have proposed one more.
            assert states()[:len(kept)] == kept
            assert [p["reason"] for p in shown(cursor, PROPOSALS)][:len(kept)] == reasons
            assert any("saved less than 10 % of the expected bytes" in reason for reason in reasons)
            assert published("auto_o_2")
            assert metric(server, 'terrace_hot_view_proposals{state="created"}') == kept.count(("auto_o_2", "created"))
            # Bounds exclude the other chunks too, now that its rows lie apart.
            before = shown(cursor, VIEWS)[0]["hits"]
            assert execute(cursor, OPEN) == before_open
            assert shown(cursor, VIEWS)[0]["hits"] > before
