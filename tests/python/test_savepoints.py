"""Transactions and savepoints as actions of Flight, through pyarrow.flight: no driver has savepoints."""

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from helpers import execute
from messages import command, field, fields, number_field, packed

ERRORS = (pa.ArrowException, flight.FlightError)
COMMIT = RELEASE = number_field(2, 1)
ROLL_BACK = number_field(2, 2)


def act(client, name, body=b""):
    """Does an action; returns the id in its answer, if it has one."""
    results = list(client.do_action(flight.Action(name, packed(f"Action{name}Request", body))))
    return fields(fields(results[0].body.to_pybytes())[2])[1] if results else None


def run(client, sql, transaction):
    query = command("CommandStatementQuery", field(1, sql.encode()) + field(2, transaction))
    [endpoint] = client.get_flight_info(query).endpoints
    return client.do_get(endpoint.ticket).read_all()


def test_savepoints(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k BIGINT)")
    rows = f"SELECT k FROM {table} ORDER BY k"
    with flight.connect(uri) as client:
        transaction = act(client, "BeginTransaction")

        def insert(key):
            run(client, f"INSERT INTO {table} VALUES ({key})", transaction)

        def begin(name):
            return act(client, "BeginSavepoint", field(1, transaction) + field(2, name))

        insert(1)
        undone = begin(b"one")
        insert(2)
        act(client, "EndSavepoint", field(1, undone) + ROLL_BACK)
        insert(3)
        kept = begin(b"two")
        insert(4)
        act(client, "EndSavepoint", field(1, kept) + RELEASE)
        assert run(client, rows, transaction)["k"].to_pylist() == [1, 3, 4]
        assert execute(cursor, rows) == [], "nobody else sees it"
        with pytest.raises(ERRORS):
            act(client, "EndSavepoint", field(1, kept) + ROLL_BACK)
        # Another client does not end it, whatever it knows.
        with flight.connect(uri) as other:
            for name, body in ("EndTransaction", field(1, transaction) + COMMIT), ("EndSavepoint", field(1, undone) + ROLL_BACK):
                with pytest.raises(ERRORS):
                    act(other, name, body)
        act(client, "EndTransaction", field(1, transaction) + COMMIT)
        with pytest.raises(ERRORS):
            act(client, "EndTransaction", field(1, transaction) + COMMIT)
    assert execute(cursor, rows) == [(1,), (3,), (4,)]


def test_rows_of_an_ingest_go_with_their_transaction(uri, cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k BIGINT)")
    rows = pa.table({"k": pa.array([1, 2], pa.int64())})
    count = f"SELECT count(*) FROM {table}"
    with flight.connect(uri) as client:
        for end, kept in (ROLL_BACK, 0), (COMMIT, 2):
            transaction = act(client, "BeginTransaction")
            # To a table that must exist, behind the rows that it has.
            append = field(1, number_field(1, 2) + number_field(2, 2))
            ingest = command("CommandStatementIngest", append + field(2, table.encode()) + field(6, transaction))
            writer, answers = client.do_put(ingest, rows.schema)
            writer.write_table(rows)
            writer.done_writing()
            # A DoPutUpdateResult: two rows.
            assert answers.read().to_pybytes() == number_field(1, 2)
            writer.close()
            assert execute(cursor, count) == [(0,)], "nobody else sees them"
            act(client, "EndTransaction", field(1, transaction) + end)
            assert execute(cursor, count) == [(kept,)]
