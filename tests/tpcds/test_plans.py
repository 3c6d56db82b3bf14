"""The order of joins of TPC-H and TPC-DS, as `plans/` has them.

An order that changes fails here. Where the change is meant:

    python -m pytest tests/tpcds/test_plans.py --rewrite-plans

and read the difference. Scale, memory and threads are fixed, and all samples that estimates are made from are taken first:
a server takes them when a column is first read by a filter.
"""

import pathlib
import re
import textwrap

import pytest
from plans import order, tree
from texts import TPCDS, TPCH

PLANS = pathlib.Path(__file__).parent / "plans"
WIDTH = 118

SCAN = re.compile(r"TierScanExec: table=public\.(\w+), .*filters=\[(.*)\]")
COLUMN = re.compile(r"(\w+)@\d+")


@pytest.mark.parametrize("name", ["tpch", "tpcds"])
def test_orders(name, request):
    server, queries = request.getfixturevalue(name), {"tpch": TPCH, "tpcds": TPCDS}[name]
    take_samples(server, queries)
    found = {f"q{number:02}": orders(server, sql) for number, sql in queries.items()}
    file = PLANS / f"{name}.txt"
    if request.config.getoption("--rewrite-plans"):
        file.write_text("\n".join(f"{query}\n{text}" for query, text in found.items()))
    known = dict(entry.split("\n", 1) for entry in file.read_text().rstrip("\n").split("\n\n"))
    changed = [f"{q}\n{text}was\n{known.get(q)}" for q, text in found.items() if text.rstrip("\n") != known.get(q)]
    assert not changed, "\n".join(["other orders; --rewrite-plans if that is meant", *changed])
    assert known.keys() == found.keys()


def take_samples(server, queries):
    """Reads every column that the queries filter by."""
    tables = {}
    for sql in queries.values():
        for table, filters in SCAN.findall(server.query(f"EXPLAIN {sql}")["plan"][1].as_py()):
            tables.setdefault(table, set()).update(COLUMN.findall(filters))
    for table, columns in tables.items():
        texts = ", ".join(f"{column}::VARCHAR" for column in sorted(columns))
        if columns:
            # Nearly all rows pass: what is true for no value of a dictionary is not read at all.
            server.query(f"SELECT count(*) FROM {table} WHERE concat({texts}) <> ''")


def orders(server, sql):
    """The order as written and the one chosen, as lines."""
    with server.connect() as connection, connection.cursor() as cursor:
        trees = {}
        for word, ordered in [("written", "false"), ("chosen", "true")]:
            for setting in ["datafusion.execution.target_partitions = 2", f"terrace.join_order = {ordered}"]:
                cursor.execute(f"SET {setting}")
                cursor.fetchall()
            cursor.execute(f"EXPLAIN {sql}")
            plans = {row["plan_type"]: row["plan"] for row in cursor.fetch_arrow_table().to_pylist()}
            trees[word] = order(tree(plans["physical_plan"]))
    if trees["written"] == trees["chosen"]:
        trees = {"both": trees["chosen"]}
    wrapped = [f"{word + ':':8} {text}" for word, text in trees.items()]
    lines = [textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent=" " * 11, break_on_hyphens=False)
             for line in wrapped]
    return "".join(f"{line}\n" for line in lines)
