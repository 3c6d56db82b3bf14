"""Metadata as drivers ask for it."""

import pyarrow as pa
import pytest
from adbc_driver_manager import AdbcConnection

from helpers import error_of, execute


@pytest.fixture
def orders(cursor, table):
    execute(cursor, f"CREATE TABLE {table} (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(15, 2))")
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
    assert (table["table_name"], table["table_type"]) == (orders, "BASE TABLE")
    columns = {column["column_name"]: column for column in table["table_columns"]}
    assert list(columns) == ["id", "name", "price"]
    assert columns["id"]["xdbc_type_name"] == "BIGINT"
    assert columns["price"]["xdbc_type_name"] == "DECIMAL"


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
    assert orders in names(table_types_filter=["BASE TABLE"])
    assert orders not in names(table_types_filter=["VIEW"])
    assert orders not in names(db_schema_filter="system")
    assert "tiers" in names(db_schema_filter="system")


def test_the_schema_of_a_table(connection, orders):
    schema = connection.adbc_get_table_schema(orders)
    assert schema.names == ["id", "name", "price"]
    assert schema.field("id").type == pa.int64()
    assert not schema.field("id").nullable
    assert schema.field("name").type == pa.string()
    error = error_of(lambda: connection.adbc_get_table_schema("no_such_table"))
    assert error.status_code.name == "NOT_FOUND"


def test_table_types(connection):
    assert {"BASE TABLE", "VIEW"} <= set(connection.adbc_get_table_types())


def test_driver_information(connection):
    info = connection.adbc_get_info()
    assert "terrace" in info["vendor_name"].lower()
    assert info["vendor_version"]


def test_the_session_is_used_for_options(connection):
    assert isinstance(connection.adbc_connection, AdbcConnection)
    connection.adbc_current_catalog  # noqa: B018: must not fail
