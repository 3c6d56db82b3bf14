"""Columns of texts as keys of dictionaries, for clients that ask: through ADBC and pyarrow.flight."""

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from helpers import error_of, execute
from messages import command, field

NAME = "terrace-dictionary-types"
OPTION = f"adbc.flight.sql.rpc.call_header.{NAME}"
KEYED = pa.dictionary(pa.int32(), pa.string())


@pytest.fixture
def asking(uri):
    """A cursor of a client that asks for dictionaries."""
    keep = {OPTION: "keep"}
    with flight_sql.connect(uri, db_kwargs=keep, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


@pytest.fixture
def words(cursor, table):
    """Chunks with dictionaries of their own, a column of many values, and rows that are in no chunk."""
    few = "CASE WHEN value % 7 > 0 THEN 'word ' || (value / 65536) || ' ' || (value % 5) END AS few"
    many = "CASE WHEN value >= 0 THEN 'row ' || value END AS many"
    execute(cursor, f"CREATE TABLE {table} AS SELECT value AS id, {few}, {many} FROM range(0, 150000)")
    execute(cursor, f"INSERT INTO {table} VALUES (-1, 'in no chunk', NULL), (-2, NULL, '')")
    return table


def result(cursor, sql, parameters=None):
    cursor.execute(sql, parameters)
    return cursor.fetch_arrow_table()


def by_id(rows, schema):
    """The rows as values, in the order of their ids."""
    return rows.cast(schema).sort_by("id")


def test_rows_are_those_that_are_sent_as_values(cursor, asking, words):
    for sql in [
        f"SELECT id, few, many FROM {words}",
        f"SELECT few, id FROM {words} WHERE id % 3 = 0",
        f"SELECT id, few FROM {words} WHERE few = 'word 1 2' OR id < 0",
        f"SELECT id, few || '!' AS few, many FROM {words} WHERE id < 30000",
        f"SELECT id, few FROM {words} ORDER BY id DESC LIMIT 100000",
        f"SELECT min(id) AS id, few, count(*) AS n FROM {words} GROUP BY few",
        f"SELECT id, few FROM {words} WHERE id < -5",
        f"SELECT id, few FROM {words} WHERE false",
    ]:
        plain, kept = result(cursor, sql), result(asking, sql)
        assert plain.schema.field("few").type == pa.string(), sql
        assert kept.schema.field("few").type == KEYED, sql
        assert "many" not in kept.schema.names or kept.schema.field("many").type == KEYED, sql
        assert kept.schema.field("id").type == pa.int64(), sql
        assert by_id(kept, plain.schema).equals(by_id(plain, plain.schema)), sql


def test_columns_of_few_values_have_small_dictionaries(cursor, asking, words):
    sql = f"SELECT id, few FROM {words}"
    few = result(asking, sql)["few"]
    assert few.num_chunks > 10 and few.null_count == 150_000 // 7 + 2
    # Three chunks with five values each, and the rows of none.
    assert max(len(chunk.dictionary) for chunk in few.chunks) <= 16
    values = few.unify_dictionaries().chunk(0).dictionary.to_pylist()
    assert set(values) == set(result(cursor, sql)["few"].drop_null().to_pylist())


def test_nested_texts_and_other_types_stay_values(cursor, asking, words):
    nested = "make_array(few) AS l, named_struct('a', many) AS s"
    sql = f"SELECT id, {nested}, 1.5 AS n FROM {words} WHERE id < 100"
    plain, kept = result(cursor, sql), result(asking, sql)
    assert kept.schema.equals(plain.schema)
    assert by_id(kept, plain.schema).equals(by_id(plain, plain.schema))


def test_parameters_are_values_and_results_are_keys(asking, words):
    rows = result(asking, f"SELECT id, many FROM {words} WHERE many = $1", ("row 70000",))
    assert rows.schema.field("many").type == KEYED
    assert rows.to_pydict() == {"id": [70_000], "many": ["row 70000"]}


def test_rows_go_well_with_view_types_and_compression(uri, cursor, words):
    sql = f"SELECT id, few, many FROM {words}"
    headers = {"view-types": "keep", "compression": "zstd"}
    options = {f"adbc.flight.sql.rpc.call_header.terrace-{name}": value for name, value in headers.items()}
    options[OPTION] = "keep"
    plain = result(cursor, sql)
    with flight_sql.connect(uri, db_kwargs=options, autocommit=True) as connection, connection.cursor() as both:
        kept = result(both, sql)
    assert kept.schema.field("few").type == KEYED
    assert by_id(kept, plain.schema).equals(by_id(plain, plain.schema))


def test_the_schema_is_known_before_the_rows(uri, words):
    query = command("CommandStatementQuery", field(1, f"SELECT id, few, many FROM {words}".encode()))
    options = flight.FlightCallOptions(headers=[(NAME.encode(), b"keep")])
    with flight.connect(uri) as client:
        info = client.get_flight_info(query, options)
        assert info.schema.field("few").type == KEYED
        assert client.get_schema(query, options).schema.equals(info.schema, check_metadata=True)
        reader = client.do_get(info.endpoints[0].ticket)
        assert reader.schema.equals(info.schema, check_metadata=True)
        rows = reader.read_all()
    assert rows.num_rows == 150_002
    assert rows["many"].null_count == 1


def test_another_value_of_the_header_is_refused(uri):
    def ask():
        yes = {OPTION: "yes"}
        with flight_sql.connect(uri, db_kwargs=yes, autocommit=True) as connection, connection.cursor() as cursor:
            execute(cursor, "SELECT 'a' AS a")

    assert "'yes' is not 'keep'" in str(error_of(ask))
