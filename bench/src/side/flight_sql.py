# A Flight SQL server over ADBC as a side: the same JSON lines as the others. argv[1]: {"url", "queries": {op: sql}}
import json
import sys
import time

import adbc_driver_flightsql.dbapi as flight_sql

spec = json.loads(sys.argv[1])
connection = flight_sql.connect(spec["url"], autocommit=True)
print(json.dumps({"ms": 0, "values": {}}), flush=True)

for line in sys.stdin:
    op = json.loads(line)["op"]
    try:
        start, cpu = time.perf_counter(), time.process_time()
        with connection.cursor() as cursor:
            rows = cursor.execute(spec["queries"][op]).fetch_arrow_table().num_rows
            # To the end of the result. The end of a cursor collects the garbage of the driver, which is written in Go.
            ms, cpu_ms = (time.perf_counter() - start) * 1e3, (time.process_time() - cpu) * 1e3
        answer = {"ms": ms, "values": {"rows": rows, "cpu_ms": cpu_ms}}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
connection.close()
