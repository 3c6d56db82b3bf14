//! Metadata commands: catalogs, schemas, tables, keys, types, server information.
//!
//! A command has one schema, which is known in advance, and one batch, which is made when it is fetched. Its ticket is
//! the command itself: it names filters, never SQL.

use std::sync::{Arc, LazyLock};

use arrow::{
    array::{ArrayRef, Int32Array, RecordBatch, StringArray, new_empty_array},
    datatypes::{DataType, Field, Schema, SchemaRef},
    error::ArrowError,
};
use arrow_flight::sql::{
    Command, CommandGetCatalogs, CommandGetDbSchemas, CommandGetPrimaryKeys, CommandGetTableTypes, CommandGetTables,
    metadata::SqlInfoDataBuilder,
};
use tonic::Status;

use crate::{
    engine::TableKind,
    error,
    schema::table_schema,
    service::{Call, Core},
    sql_info::sql_info,
    types::XDBC_TYPES,
};

/// The name of tables in information_schema. Clients such as Grafana filter by this name too.
const SQL_TABLE: &str = "BASE TABLE";

static PRIMARY_KEYS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("catalog_name", DataType::Utf8, true),
        Field::new("db_schema_name", DataType::Utf8, true),
        Field::new("table_name", DataType::Utf8, false),
        Field::new("column_name", DataType::Utf8, false),
        Field::new("key_name", DataType::Utf8, true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
});

/// Exported keys, imported keys and the cross reference share this.
static FOREIGN_KEYS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    Arc::new(Schema::new(vec![
        text("pk_catalog_name", true),
        text("pk_db_schema_name", true),
        text("pk_table_name", false),
        text("pk_column_name", false),
        text("fk_catalog_name", true),
        text("fk_db_schema_name", true),
        text("fk_table_name", false),
        text("fk_column_name", false),
        Field::new("key_sequence", DataType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
});

/// Schema of the answer to a metadata command; `None` for other commands.
pub(crate) fn schema(command: &Command) -> Result<Option<SchemaRef>, Status> {
    Ok(Some(match command {
        Command::CommandGetCatalogs(c) => (*c).into_builder().schema(),
        Command::CommandGetDbSchemas(c) => c.clone().into_builder().schema(),
        Command::CommandGetTables(c) => c.clone().into_builder().schema(),
        Command::CommandGetTableTypes(c) => (*c).into_builder().schema(),
        Command::CommandGetSqlInfo(_) => Arc::new(SqlInfoDataBuilder::schema().clone()),
        Command::CommandGetXdbcTypeInfo(_) => xdbc(None)?.schema(),
        Command::CommandGetPrimaryKeys(_) => PRIMARY_KEYS.clone(),
        Command::CommandGetExportedKeys(_)
        | Command::CommandGetImportedKeys(_)
        | Command::CommandGetCrossReference(_) => FOREIGN_KEYS.clone(),
        _ => return Ok(None),
    }))
}

/// The answer to a metadata command.
pub(crate) async fn batch(core: &Core, call: &Call, command: Command) -> Result<RecordBatch, Status> {
    match command {
        Command::CommandGetCatalogs(c) => catalogs(core, call, c).await,
        Command::CommandGetDbSchemas(c) => schemas(core, call, c).await,
        Command::CommandGetTables(c) => tables(core, call, c).await,
        Command::CommandGetTableTypes(c) => table_types(c),
        Command::CommandGetSqlInfo(c) => {
            sql_info(core.engine.as_ref(), &core.options, &c.info).map_err(error::encoding)
        }
        Command::CommandGetXdbcTypeInfo(c) => xdbc(c.data_type),
        Command::CommandGetPrimaryKeys(c) => primary_keys(core, call, c).await,
        Command::CommandGetExportedKeys(_)
        | Command::CommandGetImportedKeys(_)
        | Command::CommandGetCrossReference(_) => empty(&FOREIGN_KEYS),
        other => Err(Status::invalid_argument(format!("{} is not a metadata command", other.type_url()))),
    }
}

async fn catalogs(core: &Core, call: &Call, command: CommandGetCatalogs) -> Result<RecordBatch, Status> {
    let mut builder = command.into_builder();
    for name in core.engine.catalogs(&call.session.id)? {
        builder.append(name);
    }
    builder.build().map_err(flight)
}

async fn schemas(core: &Core, call: &Call, command: CommandGetDbSchemas) -> Result<RecordBatch, Status> {
    let mut builder = command.into_builder();
    for (catalog, schema) in core.engine.schemas(&call.session.id)? {
        builder.append(catalog, schema);
    }
    builder.build().map_err(flight)
}

async fn tables(core: &Core, call: &Call, mut command: CommandGetTables) -> Result<RecordBatch, Status> {
    for kind in command.table_types.iter_mut().filter(|kind| *kind == SQL_TABLE) {
        TableKind::BaseTable.name().clone_into(kind);
    }
    let mut builder = command.into_builder();
    for entry in core.engine.tables(&call.session.id).await? {
        let columns = table_schema(&entry, call.types);
        builder.append(&entry.catalog, &entry.schema, &entry.name, entry.kind.name(), &columns).map_err(flight)?;
    }
    builder.build().map_err(flight)
}

fn table_types(command: CommandGetTableTypes) -> Result<RecordBatch, Status> {
    let mut builder = command.into_builder();
    for kind in [TableKind::BaseTable, TableKind::SystemTable, TableKind::View] {
        builder.append(kind.name());
    }
    builder.build().map_err(flight)
}

fn xdbc(data_type: Option<i32>) -> Result<RecordBatch, Status> {
    let types = XDBC_TYPES.as_ref().ok_or_else(|| Status::internal("cannot build the table of types"))?;
    types.record_batch(data_type).map_err(flight)
}

/// A column of a primary key; the answer is ordered by the fields in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct KeyColumn {
    catalog: String,
    schema: String,
    table: String,
    column: String,
    sequence: i32,
}

async fn primary_keys(core: &Core, call: &Call, command: CommandGetPrimaryKeys) -> Result<RecordBatch, Status> {
    let tables = core.engine.tables(&call.session.id).await?;
    let mut rows = Vec::new();
    for entry in tables {
        let matches = entry.name == command.table
            && command.catalog.as_ref().is_none_or(|catalog| *catalog == entry.catalog)
            && command.db_schema.as_ref().is_none_or(|schema| *schema == entry.schema);
        if matches {
            for (sequence, column) in (1..).zip(entry.primary_key) {
                rows.push(KeyColumn {
                    catalog: entry.catalog.clone(),
                    schema: entry.schema.clone(),
                    table: entry.name.clone(),
                    column,
                    sequence,
                });
            }
        }
    }
    rows.sort();
    let text =
        |get: fn(&KeyColumn) -> &String| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(get))) };
    let columns = vec![
        text(|row| &row.catalog),
        text(|row| &row.schema),
        text(|row| &row.table),
        text(|row| &row.column),
        Arc::new(StringArray::new_null(rows.len())) as ArrayRef,
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.sequence))),
    ];
    RecordBatch::try_new(PRIMARY_KEYS.clone(), columns).map_err(error::encoding)
}

fn empty(schema: &SchemaRef) -> Result<RecordBatch, Status> {
    let columns = schema.fields().iter().map(|field| new_empty_array(field.data_type())).collect();
    RecordBatch::try_new(schema.clone(), columns).map_err(error::encoding)
}

fn flight(error: arrow_flight::error::FlightError) -> Status {
    error::encoding(ArrowError::ExternalError(Box::new(error)))
}
