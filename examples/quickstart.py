"""Load rows, query them, pin a column, and ask why a segment lies where it lies.

Needs a running server (`terrace serve`) and two packages: pip install adbc-driver-flightsql pyarrow

    python examples/quickstart.py [grpc://127.0.0.1:31337]
"""

import sys

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa

ROWS = 200_000


def sales():
    """A year of sales as an Arrow table."""
    return pa.table({
        "day": pa.array([row * 365 // ROWS for row in range(ROWS)], pa.int32()),
        "shop": pa.array([row % 97 for row in range(ROWS)], pa.int32()),
        "amount": pa.array([(row * 7919) % 10_000 / 100 for row in range(ROWS)], pa.float64()),
    })


def main(uri):
    with flight_sql.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        def ask(sql):
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

        # Load. A table made first says how its rows are ordered; scans skip chunks by that order.
        ask("CREATE OR REPLACE TABLE sales (day INT, shop INT, amount DOUBLE) WITH (cluster_by = 'day')")
        cursor.adbc_ingest("sales", sales(), mode="append")

        # Query.
        best = ask("SELECT shop, sum(amount) AS total FROM sales WHERE day >= 300 GROUP BY shop ORDER BY total DESC LIMIT 3")
        print("best shops:", best.to_pylist())

        # Pin: this column has to lie in DRAM, whatever the tiering loop finds. An epoch carries it out at once.
        ask("ALTER TABLE sales PIN COLUMNS (amount) TO dram")
        ask("EPOCH NOW")

        # Explain: a row per segment, with its tier and the reason.
        for row in ask("EXPLAIN PLACEMENT sales COLUMNS (amount)").to_pylist():
            print(row)

        segments = ask("SELECT column_name, tier, sum(bytes) AS bytes FROM system.segments "
                       "WHERE table_name = 'sales' GROUP BY 1, 2 ORDER BY 1, 2")
        print("where the segments lie:", segments.to_pylist())
        return best, segments


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "grpc://127.0.0.1:31337")
