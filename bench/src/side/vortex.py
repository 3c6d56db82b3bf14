# Bytes of Vortex's default compression in memory, of the rows that a server has, as a side: the same JSON lines as the others.
# argv[1]: {"url" of a Flight SQL server}. Answers "compress": bytes of all columns, each in parts of 65,536 rows, in the order
# in which the server returns them.
import json
import sys
import time

import adbc_driver_flightsql.dbapi as flight_sql
import importlib.metadata
import pyarrow
import vortex

spec = json.loads(sys.argv[1])
CHUNK_ROWS = 65_536
COLUMNS = (
    "SELECT table_schema, table_name, column_name, sum(bytes), sum(coalesce(packed_bytes, bytes)) FROM system.segments "
    "GROUP BY 1, 2, 3 ORDER BY 1, 2, min(position)"
)


def plain(column):
    """The column without views and dictionaries, which Vortex's Python does not take."""
    kind = column.type
    if pyarrow.types.is_string_view(kind) or pyarrow.types.is_dictionary(kind):
        return column.cast(pyarrow.string())
    return column.cast(pyarrow.binary()) if pyarrow.types.is_binary_view(kind) else column


def compressed_bytes(column):
    total = 0
    for start in range(0, len(column), CHUNK_ROWS):
        part = pyarrow.concat_arrays(column.slice(start, CHUNK_ROWS).chunks)
        total += vortex.compress(vortex.array(part)).nbytes
    return total


def compress():
    start = time.perf_counter()
    sums = {"plain_bytes": 0, "packed_bytes": 0, "vortex_bytes": 0}
    with flight_sql.connect(spec["url"], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(COLUMNS)
        for schema, table, column, plain_bytes, packed_bytes in cursor.fetchall():
            cursor.execute(f'SELECT "{column}" FROM "{schema}"."{table}"')
            values = plain(cursor.fetch_arrow_table().column(0))
            sums["plain_bytes"] += int(plain_bytes)
            sums["packed_bytes"] += int(packed_bytes)
            sums["vortex_bytes"] += compressed_bytes(values)
    return {"ms": (time.perf_counter() - start) * 1e3, "values": sums}


major, minor, *_ = importlib.metadata.version("vortex-data").split(".")
print(json.dumps({"ms": 0, "values": {"version": float(f"{major}.{minor}")}}), flush=True)
for line in sys.stdin:
    try:
        answer = compress() if json.loads(line)["op"] == "compress" else {"error": "unknown"}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
