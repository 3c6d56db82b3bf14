"""The examples of examples/ do what they say, on a server of their own."""

import importlib.util
import pathlib

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_quickstart(start_server, capsys):
    spec = importlib.util.spec_from_file_location("quickstart", EXAMPLES / "quickstart.py")
    quickstart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(quickstart)
    best, segments = quickstart.main(f"grpc://{start_server().flight}")
    assert best.num_rows == 3
    places = {row["column_name"]: row["tier"] for row in segments.to_pylist()}
    assert set(places) == {"day", "shop", "amount"}
    assert places["amount"] == "dram"
    assert "best shops" in capsys.readouterr().out
