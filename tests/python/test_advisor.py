"""The advisor: what other budgets would bring; HTTP and command line."""

import json

import pytest

from helpers import numbers
from server import Server, terrace

ROWS = 200_000
PRICES = {"tiers.dram.price_per_gb": 4.0, "tiers.nvm.price_per_gb": 2.0, "tiers.ssd.price_per_gb": 0.1}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a table of two columns that are read and one that nobody reads."""
    settings = [word for key, price in PRICES.items() for word in ("--set", f"{key}={price}")]
    arguments = ["--dram-budget", "64MiB", "--nvm-emulated", "--nvm-capacity", "64MiB", "--set", "tiering.interval=1h"]
    with Server(tmp_path_factory.mktemp("advisor") / "data", *arguments, *settings) as server:
        numbers(server, ROWS, step=1, clustered=" with (cluster_by = 'k')")
        yield server


def advice(server, question=""):
    return server.request("GET", f"/api/v1/advisor{question}")


def told(server, *arguments):
    return terrace("advise", "--http-addr", server.http, *arguments).stdout


def test_without_queries_only_reading_is_predicted_and_everything_is_unread(server):
    found = advice(server, "?last=0s")
    assert found["statements"] == 0 and found["measured_us"] is None and found["now"]["mean_us"] is None
    assert any("no finished query" in note for note in found["notes"])


def test_queries_make_a_curve(server):
    for _ in range(5):
        server.query("select sum(x) from t where x >= 0")
    for _ in range(2):
        server.query("select count(*) from t where k % 7 = 3")
    moves = server.request("GET", "/api/v1/moves")["items"]
    found = advice(server, "?points=9&at=33.3%25,100%25&more=1MiB")
    assert found["tier"] == "dram" and found["statements"] == 7
    curve = found["curve"]
    assert len(curve) == 9 and curve[0]["budget_bytes"] == 0 and curve[-1]["budget_bytes"] == found["total_bytes"]
    for less, more in zip(curve, curve[1:]):
        assert less["budget_bytes"] < more["budget_bytes"]
        assert less["read_us"] >= more["read_us"] and less["mean_us"] >= more["mean_us"]
    assert curve[0]["read_us"] > curve[-1]["read_us"]
    assert [point["share"] for point in found["asked"]] == pytest.approx([0.333, 1.0], abs=1e-3)
    assert found["now"]["budget_bytes"] == 64 << 20
    assert found["more"]["point"]["budget_bytes"] == 65 << 20
    # Everything lies in DRAM as it is, and did while the queries ran: nothing is left to gain.
    assert found["now"]["slowdown"] == pytest.approx(1.0) and found["more"]["saved_us"] == 0
    assert found["now"]["mean_us"] == pytest.approx(found["measured_us"])
    assert [(unread["table"], unread["column"]) for unread in found["never_read"]] == [("public.t", "s")]
    assert found["never_read"][0]["memory_bytes"] > 0
    assert "hold everything" in found["why"]
    # It asks and changes nothing.
    assert server.request("GET", "/api/v1/moves")["items"] == moves


def test_a_goal_has_its_cheapest_budgets(server):
    server.query("select sum(x) from t where x >= 0")
    all_in_dram = advice(server, "?goal=1&points=11")["cheapest"]
    assert dict(all_in_dram["budgets"]).keys() == {"dram", "nvm"} and all_in_dram["slowdown"] == pytest.approx(1.0)
    anything = advice(server, "?goal=1000000&points=11")["cheapest"]
    assert dict(anything["budgets"]) == {"dram": 0, "nvm": 0}
    assert 0 < anything["cost"] < all_in_dram["cost"]
    # Prices of the question win over those of the configuration.
    free = advice(server, "?goal=1&points=11&prices=dram:0,nvm:0,ssd:0")["cheapest"]
    assert free["cost"] == 0
    assert advice(server, "?goal=1us")["cheapest"] is None


def test_a_budget_below_the_pins_says_so(server):
    server.query("alter table t pin columns (s) to dram")
    try:
        found = advice(server)
        pinned = found["pinned_bytes"]
        assert 0 < pinned < found["total_bytes"]
        for point in found["curve"]:
            assert (point["unmet_bytes"] > 0) == (point["budget_bytes"] < pinned), point
        assert "rules need" in told(server)
    finally:
        server.query("alter table t unpin")


def test_the_command_line_shows_the_same(server):
    server.query("select sum(x) from t where x >= 0")
    text = told(server, "--points", "5", "--more", "1MiB", "--goal", "1.5")
    lines = text.splitlines()
    assert "queries" in lines[0] and "dram budget" in lines[1] and "reading/epoch" in lines[1]
    assert len({len(line) for line in lines[1:2]}) == 1
    assert any("  now" in line for line in lines) and any("  more" in line for line in lines)
    assert "for the goal: " in text and "never read:" in text and "public.t.s" in text
    found = json.loads(told(server, "--points", "5", "--json"))
    assert len(found["curve"]) == 5 and found["tier"] == "dram"


@pytest.mark.parametrize("question, says", [
    ("?points=1", "2 to 201 points"),
    ("?at=30", "percentages such as"),
    ("?more=5%25", "number of bytes"),
    ("?goal=fast", "is not a goal"),
    ("?goal=0.5", "below 1"),
    ("?prices=tape:1", "no tier 'tape'"),
    ("?prices=dram:1", "nvm has no price"),
    ("?budget=1", "unknown query parameter"),
])
def test_questions_without_answer_are_refused(server, question, says):
    with pytest.raises(RuntimeError) as caught:
        advice(server, question)
    assert " 400 " in str(caught.value) and says in str(caught.value)


def test_prices_are_shown_with_their_tiers(server):
    items = server.request("GET", "/api/v1/tiers")["items"]
    assert {f"tiers.{tier['name']}.price_per_gb": tier["price_per_gb"] for tier in items} == PRICES
    lines = terrace("tiers", "list", "--http-addr", server.http).stdout.splitlines()
    assert [line.split(", ")[-1] for line in lines if not line.startswith(" ")] == ["4 per GB", "2 per GB", "0.1 per GB"]


def test_a_price_that_is_none_is_refused():
    done = terrace("config", "print", "--set", "tiers.dram.price_per_gb=-1", check=False)
    assert done.returncode != 0 and "price_per_gb" in done.stderr
