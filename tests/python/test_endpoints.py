"""Results with several endpoints, fetched over several connections: pyarrow.flight, and the partitions of ADBC."""

from concurrent.futures import ThreadPoolExecutor

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from helpers import eventually, execute
from messages import command, field

ERRORS = (pa.ArrowException, flight.FlightError)
ROWS = 300_000
HEADER = {"adbc.flight.sql.rpc.call_header.terrace-endpoints": "4"}


def plan(client, sql, *headers):
    """The information of a query."""
    query = command("CommandStatementQuery", field(1, sql.encode()))
    return client.get_flight_info(query, flight.FlightCallOptions(headers=list(headers)))


def plan_for_four(client, sql, *headers):
    return plan(client, sql, (b"terrace-endpoints", b"4"), *headers)


def fetch(uri, endpoint):
    """The rows of an endpoint, over a connection of its own."""
    with flight.connect(uri) as client:
        return client.do_get(endpoint.ticket).read_all()


def read(uri, partition):
    """The rows of a partition, over a connection of its own."""
    with flight_sql.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.adbc_read_partition(partition)
        return cursor.fetch_arrow_table()


def keys(*tables):
    return sorted(key for table in tables for key in table["k"].to_pylist())


@pytest.fixture
def client(uri):
    with flight.connect(uri) as client:
        yield client


@pytest.fixture
def rows(cursor, table):
    execute(cursor, f"CREATE TABLE {table} AS SELECT value AS k, 'text ' || value AS s FROM generate_series(1, {ROWS})")
    return table


def test_endpoints_are_fetched_over_connections_of_their_own(uri, client, cursor, rows):
    sql = f"SELECT k, s FROM {rows}"
    info = plan_for_four(client, sql)
    assert (len(info.endpoints), info.ordered) == (4, False)
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda endpoint: fetch(uri, endpoint), info.endpoints))
    assert keys(*tables) == list(range(1, ROWS + 1))
    assert all(table.schema == info.schema for table in tables)
    assert execute(cursor, "SELECT count(*) FROM system.queries WHERE sql = $1", (sql,)) == [(1,)], "one execution"
    with pytest.raises(ERRORS, match="already fetched"):
        fetch(uri, info.endpoints[0])


def test_all_endpoints_have_rows_of_one_snapshot(uri, client, cursor, rows):
    info = plan_for_four(client, f"SELECT k, s FROM {rows}")
    reader = client.do_get(info.endpoints[3].ticket)
    first = reader.read_chunk().data
    execute(cursor, f"DELETE FROM {rows}")
    tables = [fetch(uri, endpoint) for endpoint in info.endpoints[:3]]
    assert keys(pa.Table.from_batches([first]), reader.read_all(), *tables) == list(range(1, ROWS + 1))


def test_partitions_of_adbc(uri, rows):
    with flight_sql.connect(uri, db_kwargs=HEADER, autocommit=True) as connection, connection.cursor() as cursor:
        partitions, schema = cursor.adbc_execute_partitions(f"SELECT k, s FROM {rows} WHERE k > $1", (10,))
        assert (len(partitions), schema.names) == (4, ["k", "s"])
        with ThreadPoolExecutor(4) as pool:
            tables = list(pool.map(lambda partition: read(uri, partition), partitions))
        assert keys(*tables) == list(range(11, ROWS + 1))
        # One query that the driver reads as a whole, endpoint by endpoint.
        cursor.execute(f"SELECT k, s FROM {rows}")
        assert keys(cursor.fetch_arrow_table()) == list(range(1, ROWS + 1))


def test_partitions_in_a_transaction_have_its_changes(uri, rows):
    with flight_sql.connect(uri, db_kwargs=HEADER) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {rows} VALUES (0, 'not committed')")
        partitions, _ = cursor.adbc_execute_partitions(f"SELECT k FROM {rows}")
        assert keys(*(read(uri, partition) for partition in partitions)) == list(range(ROWS + 1))
        connection.rollback()


def test_closing_an_endpoint_early_ends_the_query(uri, client, cursor, rows):
    sql = f"SELECT a.k FROM {rows} a CROSS JOIN {rows} b"
    info = plan_for_four(client, sql)
    reader = client.do_get(info.endpoints[0].ticket)
    reader.read_chunk()
    reader.cancel()
    for endpoint in info.endpoints[1:]:
        with pytest.raises(ERRORS, match="closed before its end"):
            fetch(uri, endpoint)
    running = "SELECT count(*) FROM system.queries WHERE sql = $1 AND state IN ('queued', 'running', 'stalled')"
    eventually(lambda: execute(cursor, running, (sql,)) == [(0,)])


def test_results_with_an_order_or_an_expiration_time_have_one_endpoint(client, rows):
    ordered = plan_for_four(client, f"SELECT s FROM {rows} ORDER BY k LIMIT 3")
    assert (len(ordered.endpoints), ordered.ordered) == (1, True)
    kept = plan_for_four(client, f"SELECT k FROM {rows}", (b"terrace-tickets", b"keep"))
    assert len(kept.endpoints) == 1 and kept.endpoints[0].expiration_time is not None
    assert len(plan(client, f"SELECT k FROM {rows}").endpoints) == 1
    with pytest.raises(ERRORS, match="terrace-endpoints"):
        plan(client, "SELECT 1", (b"terrace-endpoints", b"none"))
