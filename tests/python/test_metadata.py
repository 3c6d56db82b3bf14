"""Metadata as drivers ask for it."""

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_manager import AdbcConnection

from helpers import error_of, execute
from messages import command, field


@pytest.fixture
def orders(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(15, 2))")
    execute(cursor, f"COMMENT ON COLUMN {table}.id IS 'the key'")
    return table


def test_objects_down_to_columns(connection, orders):
    objects = connection.adbc_get_objects(depth="all", table_name_filter=orders).read_all().to_pylist()
    tables = [
        (catalog["catalog_name"], schema["db_schema_name"], table)
        for catalog in objects
        for schema in catalog["catalog_db_schemas"] or []
        for table in schema["db_schema_tables"] or []
    ]
    assert len(tables) == 1
    catalog, schema, table = tables[0]
    assert catalog and schema
    assert (table["table_name"], table["table_type"]) == (orders, "TABLE")
    columns = {column["column_name"]: column for column in table["table_columns"]}
    assert list(columns) == ["id", "name", "price"]
    assert columns["id"]["xdbc_type_name"] == "BIGINT"
    assert columns["price"]["xdbc_type_name"] == "DECIMAL"
    # The driver does not hand these on yet (1.13); the fields of the table have them.
    fields = {field.name: field.metadata for field in connection.adbc_get_table_schema(orders)}
    assert (fields["id"][b"XDBC_NULLABLE"], fields["id"][b"XDBC_IS_NULLABLE"]) == (b"0", b"NO")
    assert (fields["name"][b"XDBC_NULLABLE"], fields["name"][b"XDBC_IS_NULLABLE"]) == (b"1", b"YES")
    assert (fields["price"][b"XDBC_COLUMN_SIZE"], fields["price"][b"XDBC_DECIMAL_DIGITS"]) == (b"15", b"2")
    assert fields["id"][b"REMARKS"] == b"the key"


def test_table_filters(connection, orders):
    def names(**filters):
        objects = connection.adbc_get_objects(depth="tables", **filters).read_all().to_pylist()
        return [
            table["table_name"]
            for catalog in objects
            for schema in catalog["catalog_db_schemas"] or []
            for table in schema["db_schema_tables"] or []
        ]

    assert names(table_name_filter=orders[:-1] + "_") == [orders]
    assert orders in names(table_types_filter=["TABLE"])
    assert orders in names(table_types_filter=["BASE TABLE"])
    assert orders not in names(table_types_filter=["VIEW"])
    assert orders not in names(db_schema_filter="system")
    assert "tiers" in names(db_schema_filter="system")


def test_filters_of_catalogs_and_columns(connection, orders):
    def columns(**filters):
        objects = connection.adbc_get_objects(depth="all", table_name_filter=orders, **filters).read_all().to_pylist()
        return [
            column["column_name"]
            for catalog in objects
            for schema in catalog["catalog_db_schemas"] or []
            for table in schema["db_schema_tables"] or []
            for column in table["table_columns"] or []
        ]

    assert columns(catalog_filter="terrace") == columns(db_schema_filter="publ_c") == ["id", "name", "price"]
    assert columns(catalog_filter="other") == columns(db_schema_filter="publi") == []
    assert columns(column_name_filter="%r%") == ["price"]


def test_filters_as_the_protocol_has_them(uri, cursor, table):
    def answer(name, *fields):
        with flight.connect(uri) as client:
            [endpoint] = client.get_flight_info(command(name, b"".join(fields))).endpoints
            return client.do_get(endpoint.ticket).read_all()

    def tables(*fields):
        return answer("CommandGetTables", *fields)["table_name"].to_pylist()

    def schemas(*fields):
        return answer("CommandGetDbSchemas", *fields)["db_schema_name"].to_pylist()

    def key(*fields):
        return answer("CommandGetPrimaryKeys", *fields)["column_name"].to_pylist()

    execute(cursor, f"CREATE TABLE {table} (k BIGINT PRIMARY KEY)")
    name = field(3, table.encode())
    catalog, schema = field(1, b"terrace"), field(2, b"public")
    assert tables(catalog, schema, name, field(4, b"VIEW"), field(4, b"TABLE")) == [table]
    assert tables(field(3, table.replace("_", "\\_").encode())) == [table], "an escaped character stands for itself"
    # The empty name is for what has no catalog, and a catalog is no pattern.
    for other in [field(1, b""), field(1, b"terr%"), field(2, b""), field(2, b"PUBLIC"), field(4, b"VIEW")]:
        assert tables(other, name) == []
    assert tables(field(3, table.replace("_", "\\%").encode())) == []
    assert schemas(field(2, b"publ_c")) == ["public"] and schemas(field(1, b"")) == []
    assert "system" in schemas(catalog, field(2, b"%"))
    assert key(catalog, schema, name) == key(name) == ["k"]
    for other in [field(1, b""), field(2, b""), field(2, b"publ_c")]:
        assert key(other, name) == []


def test_the_schema_of_a_table(connection, orders):
    schema = connection.adbc_get_table_schema(orders)
    assert schema.names == ["id", "name", "price"]
    assert schema.field("id").type == pa.int64()
    assert not schema.field("id").nullable
    assert schema.field("name").type == pa.string()
    error = error_of(lambda: connection.adbc_get_table_schema("no_such_table"))
    assert error.status_code.name == "NOT_FOUND"


def test_table_types(connection):
    assert {"TABLE", "VIEW"} <= set(connection.adbc_get_table_types())


def test_driver_information(connection):
    info = connection.adbc_get_info()
    assert "terrace" in info["vendor_name"].lower()
    assert info["vendor_version"]
    # ADBC's driver is the one that Go programs use: what these tests show holds for Go.
    assert info["driver_name"].endswith("Go")


def test_what_is_missing_is_not_found(connection, cursor):
    for names in [{"table_name": "no_such_table"}, {"table_name": "t", "db_schema_filter": "no_such_schema"}]:
        assert error_of(lambda names=names: connection.adbc_get_table_schema(**names)).status_code.name == "NOT_FOUND"
    rows = pa.table({"k": [1]})
    for mode in ["create", "append", "replace", "create_append"]:
        error = error_of(
            lambda mode=mode: cursor.adbc_ingest("t", rows, mode=mode, db_schema_name="no_such_schema")
        )
        assert error.status_code.name == "NOT_FOUND" and "no_such_schema" in str(error), str(error)
    for sql in ["SELECT * FROM no_such_schema.t", "CREATE TABLE no_such_schema.t (k INT)", "DROP SCHEMA no_such_schema"]:
        assert error_of(lambda sql=sql: execute(cursor, sql)).status_code.name == "NOT_FOUND"


def test_options_of_the_session_keep_their_types(connection):
    name = "adbc.flight.sql.session.option.datafusion.execution.batch_size"
    options = connection.adbc_connection
    options.set_options(**{name: 4096})
    assert options.get_option_int(name) == 4096
    options.set_options(**{name: "2048"})
    assert options.get_option(name) == "2048"
    flag = "adbc.flight.sql.session.optionbool.datafusion.optimizer.enable_topk_aggregation"
    options.set_options(**{flag: "false"})
    assert options.get_option(flag) == "false"
    # SQL sets it: its value has the type of the option.
    with connection.cursor() as cursor:
        execute(cursor, "SET datafusion.execution.batch_size = 1024")
    assert options.get_option_int(name) == 1024
    for wrong in [{name: "many"}, {flag: "perhaps"}, {name: 4.5}, {name + "s": 1}]:
        assert error_of(lambda wrong=wrong: options.set_options(**wrong)) is not None
    text = "adbc.flight.sql.session.option.datafusion.format.null"
    assert error_of(lambda: options.set_options(**{text: 4})) is not None
    connection.adbc_current_db_schema = "public"
    assert connection.adbc_current_db_schema == "public"


def test_the_session_is_used_for_options(connection):
    assert isinstance(connection.adbc_connection, AdbcConnection)
    connection.adbc_current_catalog  # noqa: B018: must not fail
