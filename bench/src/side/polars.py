# Polars on Parquet files as a side: the same JSON lines as the others. argv[1]: {"threads", "tables": {name: file},
# "queries": {op: sql}}. Its streaming engine, which needs less memory than the one that it takes by itself.
import json
import os
import sys
import time

spec = json.loads(sys.argv[1])
os.environ["POLARS_MAX_THREADS"] = str(spec["threads"])
import polars  # noqa: E402  reads the variable

context = polars.SQLContext({table: polars.scan_parquet(file) for table, file in spec["tables"].items()})
version = float(".".join(polars.__version__.split(".")[:2]))
print(json.dumps({"ms": 0, "values": {"version": version}}), flush=True)

for line in sys.stdin:
    op = json.loads(line)["op"]
    try:
        start, cpu = time.perf_counter(), time.process_time()
        rows = context.execute(spec["queries"][op].rstrip().rstrip(";")).collect(engine="streaming").height
        ms, cpu_ms = (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3
        answer = {"ms": ms, "values": {"rows": rows, "cpu_ms": cpu_ms}}
    # A panic of its Rust code is no Exception.
    except BaseException as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
