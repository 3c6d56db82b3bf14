# DuckDB as a side: the same JSON lines as the others. argv[1]: {"threads", "tables": {name: file}, "queries": {op: sql},
# "folder": where its own file is kept, or null for in memory, "large": true when answers have many rows}. A request "check .."
# answers with the numbers of its one row.
import json
import os
import sys
import time

import duckdb

spec = json.loads(sys.argv[1])
CONFIG = {"threads": spec["threads"]}


def loaded(database):
    connection = duckdb.connect(database, config=CONFIG)
    connection.execute("SET enable_progress_bar = false")
    for table, file in spec["tables"].items():
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{file}')")
    return connection


def on_file(folder):
    database = f"{folder}/duckdb-{duckdb.__version__}.db"
    if not os.path.exists(database):
        partial = f"{database}.{os.getpid()}.tmp"
        loaded(partial).close()
        os.rename(partial, database)
    return duckdb.connect(database, read_only=True, config=CONFIG)


def as_table(relation):
    return relation.to_arrow_table().num_rows


def in_batches(relation):
    return sum(batch.num_rows for batch in relation.to_arrow_reader())


# The way to the rows of an answer, by request.
ways = {}


def fetch(op, sql):
    if spec.get("large") and op not in ways:
        # Large answers are read in the faster way, which the first run finds out after one without a measurement.
        in_batches(connection.sql(sql))
        times = {}
        for way in (as_table, in_batches):
            start = time.perf_counter()
            way(connection.sql(sql))
            times[way] = time.perf_counter() - start
        ways[op] = min(times, key=times.get)
    return ways.get(op, as_table)(connection.sql(sql))


connection = on_file(spec["folder"]) if spec["folder"] else loaded(":memory:")
# It would go to stdout, among the answers.
connection.execute("SET enable_progress_bar = false")
version = float(".".join(duckdb.__version__.split(".")[:2]))
print(json.dumps({"ms": 0, "values": {"version": version}}), flush=True)

for line in sys.stdin:
    op = json.loads(line)["op"]
    try:
        start, cpu = time.perf_counter(), time.process_time()
        if op.startswith("check "):
            relation = connection.sql(spec["queries"][op])
            numbers = {name: float(value) for name, value in zip(relation.columns, relation.fetchone())}
        else:
            numbers = {"rows": fetch(op, spec["queries"][op])}
        ms, cpu_ms = (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3
        answer = {"ms": ms, "values": numbers | {"cpu_ms": cpu_ms}}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
