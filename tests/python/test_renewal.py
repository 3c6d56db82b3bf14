"""Results that are fetched again until they expire, through pyarrow.flight."""

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from helpers import execute
from messages import command, field

ERRORS = (pa.ArrowException, flight.FlightError)
KEEP = flight.FlightCallOptions(headers=[(b"terrace-tickets", b"keep")])


def plan(client, sql, options=KEEP):
    """The one endpoint of a query."""
    query = command("CommandStatementQuery", field(1, sql.encode()))
    [endpoint] = client.get_flight_info(query, options).endpoints
    return endpoint


def renew(client, endpoint):
    [result] = client.do_action(flight.Action("RenewFlightEndpoint", field(1, endpoint.serialize())))
    return flight.FlightEndpoint.deserialize(result.body.to_pybytes())


@pytest.fixture
def client(uri):
    with flight.connect(uri) as client:
        yield client


def test_a_result_stays_the_same_until_it_expires(client, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k BIGINT, s VARCHAR)")
    execute(cursor, f"INSERT INTO {table} SELECT value, 'text ' || value FROM generate_series(1, 100000)")
    endpoint = plan(client, f"SELECT * FROM {table} ORDER BY k")
    groups = plan(client, f"SELECT k % 7 AS g, count(*) AS n, max(s) AS s FROM {table} GROUP BY 1 ORDER BY 1")
    assert endpoint.expiration_time is not None
    reader = client.do_get(endpoint.ticket)
    reader.read_chunk()
    reader.cancel()
    whole, first = client.do_get(endpoint.ticket).read_all(), client.do_get(groups.ticket).read_all()
    assert whole["k"].to_pylist() == list(range(1, 100001))
    execute(cursor, f"DELETE FROM {table} WHERE k > 10")
    execute(cursor, f"INSERT INTO {table} VALUES (-1, 'new')")
    assert client.do_get(endpoint.ticket).read_all().equals(whole)
    assert client.do_get(groups.ticket).read_all().equals(first)
    assert execute(cursor, f"SELECT count(*) FROM {table}") == [(11,)]
    execute(cursor, f"DROP TABLE {table}")
    assert client.do_get(endpoint.ticket).read_all().equals(whole)


def test_renewal(client, uri):
    endpoint = plan(client, "SELECT 1 AS one")
    renewed = renew(client, endpoint)
    assert renewed.ticket == endpoint.ticket
    assert renewed.expiration_time.as_py() >= endpoint.expiration_time.as_py()
    assert client.do_get(renewed.ticket).read_all() == client.do_get(endpoint.ticket).read_all()
    assert "RenewFlightEndpoint" in [action.type for action in client.list_actions()]
    with flight.connect(uri) as other, pytest.raises(ERRORS, match="unknown, expired or already fetched"):
        renew(other, endpoint)


def test_tickets_without_an_expiration_time_are_fetched_once(client):
    for sql, options in [("SELECT 1", flight.FlightCallOptions()), ("SELECT now()", KEEP), ("SELECT 1 LIMIT 1", KEEP)]:
        endpoint = plan(client, sql, options)
        assert endpoint.expiration_time is None, sql
        assert client.do_get(endpoint.ticket).read_all().num_rows == 1
        with pytest.raises(ERRORS, match="already fetched"):
            client.do_get(endpoint.ticket).read_all()
        with pytest.raises(ERRORS, match="terrace-tickets: keep"):
            renew(client, plan(client, sql, options))
