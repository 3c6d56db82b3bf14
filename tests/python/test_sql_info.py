"""What CommandGetSqlInfo says against what the server does."""

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow.flight as flight
import pytest

from helpers import error_of, execute
from messages import command
from server import Server
from test_users import PASSWORD, make_user, run

# Numbers of the entries.
DDL_SCHEMA, IDENTIFIER_CASE, QUOTE, SELECTABLE, NULL_ORDERING = 501, 503, 504, 506, 507
FUNCTIONS = [509, 510, 511, 512]
SEARCH_ESCAPE, EXTRA_CHARACTERS, NULL_PLUS_NULL, FOR_UPDATE, SUBQUERIES = 513, 514, 516, 536, 538
MOST_STATEMENTS, ISOLATION, TRANSACTIONS, ISOLATION_LEVELS, DDL_COMMITS, DDL_IGNORED = 558, 562, 563, 564, 565, 566


def entries(address, *login):
    """All entries by number."""
    with flight.connect(address) as client:
        options = flight.FlightCallOptions(headers=[client.authenticate_basic_token(*login)] if login else [])
        [endpoint] = client.get_flight_info(command("CommandGetSqlInfo"), options).endpoints
        table = client.do_get(endpoint.ticket, options).read_all()
    return dict(zip(table.column(0).to_pylist(), table.column(1).to_pylist()))


@pytest.fixture(scope="module")
def info(uri):
    return entries(uri)


@pytest.fixture
def rows(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (k BIGINT, s VARCHAR)")
    execute(cursor, f"INSERT INTO {table} VALUES (1, 'a'), (2, NULL), (NULL, 'c')")
    return table


# Entry, bit or value that it has, and a statement that works if it does.
CLAIMS = [
    (500, True, "CREATE DATABASE for_sql_info"),
    (515, True, "SELECT k AS a FROM {t}"),
    (518, True, "SELECT x.k FROM {t} AS x"),
    (520, True, "SELECT k FROM {t} ORDER BY k + 1"),
    (521, True, "SELECT s FROM {t} ORDER BY k"),
    (522, 1 << 0, "SELECT s FROM {t} GROUP BY k, s"),
    (522, 1 << 1, "SELECT count(*) FROM {t} GROUP BY k"),
    (523, True, "SELECT k FROM {t} WHERE s LIKE 'a!_' ESCAPE '!'"),
    (527, True, "CREATE TABLE for_sql_info (k BIGINT REFERENCES {t} (k))"),
    (528, 2, "SELECT a.k FROM {t} a FULL JOIN {t} b ON a.k = b.k"),
    (FOR_UPDATE, True, "SELECT k FROM {t} FOR UPDATE"),
    (SUBQUERIES, 1 << 0, "SELECT k FROM {t} WHERE k = (SELECT max(k) FROM {t})"),
    (SUBQUERIES, 1 << 1, "SELECT k FROM {t} WHERE EXISTS (SELECT 1 FROM {t})"),
    (SUBQUERIES, 1 << 2, "SELECT k FROM {t} WHERE k IN (SELECT k FROM {t})"),
    (SUBQUERIES, 1 << 3, "SELECT k FROM {t} WHERE k < ANY (SELECT k FROM {t})"),
    (537, True, "CALL for_sql_info()"),
    (539, True, "SELECT k FROM {t} a WHERE EXISTS (SELECT 1 FROM {t} b WHERE b.k > a.k)"),
    (540, 1 << 0, "SELECT k FROM {t} UNION SELECT k FROM {t}"),
    (540, 1 << 1, "SELECT k FROM {t} UNION ALL SELECT k FROM {t}"),
]


@pytest.mark.parametrize("entry, claim, sql", CLAIMS)
def test_what_it_says_works_does_and_other_things_do_not(info, cursor, rows, entry, claim, sql):
    says = info[entry] if claim is True else bool(info[entry] & claim)
    try:
        execute(cursor, sql.format(t=rows))
        works = True
    except adbc_driver_manager.Error:
        works = False
    assert works == says, sql


def test_schemas_are_made_and_dropped(info, cursor):
    assert info[DDL_SCHEMA]
    execute(cursor, "CREATE SCHEMA for_sql_info")
    execute(cursor, "DROP SCHEMA for_sql_info")


def test_names(info, cursor):
    assert (info[IDENTIFIER_CASE], info[QUOTE]) == (3, '"')
    for sql, name in [("SELECT 1 AS AbC", "abc"), ('SELECT 1 AS "AbC"', "AbC")]:
        execute(cursor, sql)
        assert cursor.description[0][0] == name
    for character in info[EXTRA_CHARACTERS]:
        assert execute(cursor, f"SELECT 1 AS a{character}b") == [(1,)]


def test_nulls_and_names_of_tables(info, cursor, rows):
    assert info[NULL_PLUS_NULL]
    assert execute(cursor, f"SELECT s || 'x' FROM {rows} WHERE s IS NULL") == [(None,)]
    assert not info[519], "an alias may be the name of a table"
    assert execute(cursor, f"SELECT count({rows}.k) FROM {rows} AS {rows}") == [(2,)]


def test_transactions(info, uri, cursor, rows):
    assert info[TRANSACTIONS] and (info[ISOLATION], info[ISOLATION_LEVELS]) == (3, 1 << 3), "repeatable read"
    assert info[DDL_COMMITS] and not info[DDL_IGNORED]
    count = f"SELECT count(*) FROM {rows}"
    with flight_sql.connect(uri) as connection, connection.cursor() as other:
        assert execute(other, count) == [(3,)]
        execute(cursor, f"INSERT INTO {rows} VALUES (4, 'd')")
        assert execute(other, count) == [(3,)], "the transaction reads one snapshot"
        connection.rollback()
        execute(other, f"CREATE TABLE {rows}_kept (k BIGINT)")
        connection.rollback()
    assert execute(cursor, f"SELECT count(*) FROM {rows}_kept") == [(0,)]
    execute(cursor, f"DROP TABLE {rows}_kept")


def test_statements_are_bounded_and_tables_are_selectable_where_all_may_read(info, tmp_path):
    assert (info[MOST_STATEMENTS], info[SELECTABLE]) == (1_000, True)
    make_user(tmp_path / "data", "create", "root")
    with Server(tmp_path / "data") as server:
        run(server, f"CREATE USER ann PASSWORD '{PASSWORD}'", "root", PASSWORD)
        run(server, "CREATE TABLE t (k BIGINT)", "root", PASSWORD)
        run(server, "GRANT INSERT ON t TO ann", "root", PASSWORD)
        assert not entries(f"grpc://{server.flight}", "ann", PASSWORD)[SELECTABLE]


def test_order_of_nulls_and_patterns(info, cursor, rows):
    assert info[NULL_ORDERING] == 0, "as if they were the largest values"
    assert execute(cursor, f"SELECT k FROM {rows} ORDER BY k")[-1] == (None,)
    assert execute(cursor, f"SELECT k FROM {rows} ORDER BY k DESC")[0] == (None,)
    escape = info[SEARCH_ESCAPE]
    assert execute(cursor, f"SELECT 'a_' LIKE 'a{escape}_', 'ab' LIKE 'a{escape}_'") == [(True, False)]


@pytest.mark.parametrize("entry", FUNCTIONS)
def test_functions_exist(info, cursor, entry):
    unknown = str(error_of(lambda: execute(cursor, "SELECT no_such_function()")))
    before = unknown[:unknown.index("no_such_function")]
    assert info[entry]
    for name in info[entry]:
        try:
            # As Arrow: Python has no time of nanoseconds.
            cursor.execute(f"SELECT {name}()").fetch_arrow_table()
        except adbc_driver_manager.Error as error:
            # Most want arguments.
            assert f"{before}{name}" not in str(error), name


def test_limits_of_time_are_those_of_the_server(info, start_server):
    assert info[101] == 600_000
    server = start_server(TERRACE_QUERY_TIMEOUT="90s", TERRACE_QUERY_IDLE_TRANSACTION_TIMEOUT="2m")
    answered = entries(f"grpc://{server.flight}")
    assert (answered[100], answered[101]) == (90_000, 120_000)
