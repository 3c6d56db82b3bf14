//! Schema `information_schema`: the catalog in the tables of the SQL standard.
//!
//! These tables list a view that can no longer be planned without its columns, where DataFusion's would fail as a whole,
//! and they have keys, defaults and comments. The tables of settings and functions are DataFusion's own. Rows are computed
//! when they are read, because computing them may plan a view over the same table.
//!
//! Upstream: <https://github.com/apache/datafusion/issues/8916> (Epic: Implement remaining t `information_schema`
//! tables), open, lists the missing tables; no issue found on views that cannot be planned (`make_columns` in
//! datafusion-catalog/src/information_schema.rs). Can go when the test
//! `what_is_declared_is_shown_and_recreates_itself` and `test_a_view_without_its_table_hides_nothing`
//! (tests/python/test_ddl.py) pass without it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;

use super::catalog::{Object, Snapshot};
use super::{CATALOG, ColumnNotes, Entry, EntryKind, INFORMATION_SCHEMA, SYSTEM_SCHEMA};
use crate::error::Result;
use crate::system::ColumnList;

/// Names of all tables.
pub(super) const NAMES: [&str; 9] = [
    "columns",
    "df_settings",
    "key_column_usage",
    "parameters",
    "routines",
    "schemata",
    "table_constraints",
    "tables",
    "views",
];

/// The table of that name; its rows are computed when it is read.
pub(super) async fn table(snapshot: &Arc<Snapshot>, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    let Some(name) = NAMES.into_iter().find(|known| *known == name) else { return Ok(None) };
    let Some(schema) = own_schema(name) else { return datafusion_table(snapshot, name).await };
    let rows = InformationRows { snapshot: Arc::clone(snapshot), name, schema: Arc::clone(&schema) };
    Ok(Some(Arc::new(StreamingTable::try_new(schema, vec![Arc::new(rows)])?)))
}

/// Columns of a table; none for a name that is not among [`NAMES`].
pub(super) async fn schema(snapshot: &Arc<Snapshot>, name: &str) -> Result<SchemaRef> {
    if let Some(schema) = own_schema(name) {
        return Ok(schema);
    }
    Ok(datafusion_table(snapshot, name).await?.map_or_else(|| Arc::new(Schema::empty()), |table| table.schema()))
}

/// DataFusion's table.
async fn datafusion_table(snapshot: &Arc<Snapshot>, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    let state = snapshot.state();
    let provider = InformationSchemaProvider::new(Arc::clone(state.catalog_list()))
        .with_table_functions(state.table_functions().clone());
    Ok(provider.table(name).await?)
}

fn own_schema(name: &str) -> Option<SchemaRef> {
    Some(match name {
        "columns" => columns().schema(),
        "key_column_usage" => key_column_usage().schema(),
        "schemata" => schemata().schema(),
        "table_constraints" => table_constraints().schema(),
        "tables" => tables().schema(),
        "views" => views().schema(),
        _ => return None,
    })
}

/// The single partition of a table, which computes its rows when it is read.
#[derive(Debug)]
struct InformationRows {
    snapshot: Arc<Snapshot>,
    name: &'static str,
    schema: SchemaRef,
}

impl PartitionStream for InformationRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let snapshot = Arc::clone(&self.snapshot);
        let name = self.name;
        let batch = async move { Ok(rows(&snapshot, name).await?) };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::once(batch)))
    }
}

async fn rows(snapshot: &Arc<Snapshot>, name: &str) -> Result<RecordBatch> {
    match name {
        "schemata" => schemata().batch(&snapshot.schema_names()),
        "tables" => tables().batch(&snapshot.listed_objects()),
        "views" => {
            let shown = snapshot.objects().views.values().filter(|view| snapshot.lists(&view.name));
            views().batch(&shown.collect::<Vec<_>>())
        }
        "table_constraints" => {
            let mut keys = key_rows(&snapshot.entries().await?);
            keys.retain(|key| key.position == 1);
            table_constraints().batch(&keys)
        }
        "key_column_usage" => {
            let keys = key_rows(&snapshot.entries().await?);
            key_column_usage().batch(&keys)
        }
        _ => {
            let entries = snapshot.entries().await?;
            columns().batch(&column_rows(&entries))
        }
    }
}

fn schemata() -> ColumnList<String> {
    ColumnList::<String>::new()
        .utf8("catalog_name", |_| CATALOG.to_owned())
        .utf8("schema_name", Clone::clone)
        .optional_utf8("schema_owner", |_| None)
        .optional_utf8("default_character_set_catalog", |_| None)
        .optional_utf8("default_character_set_schema", |_| None)
        .optional_utf8("default_character_set_name", |_| None)
        .optional_utf8("sql_path", |_| None)
}

/// A table, view, system or external table, without its columns.
struct ListedObject {
    schema: String,
    name: String,
    kind: EntryKind,
    comment: Option<String>,
}

fn tables() -> ColumnList<ListedObject> {
    let kind = |kind: &EntryKind| match kind {
        EntryKind::Table | EntryKind::External => "BASE TABLE",
        EntryKind::View | EntryKind::System => "VIEW",
    };
    ColumnList::<ListedObject>::new()
        .utf8("table_catalog", |_| CATALOG.to_owned())
        .utf8("table_schema", |l| l.schema.clone())
        .utf8("table_name", |l| l.name.clone())
        .utf8("table_type", move |l| kind(&l.kind).to_owned())
        .optional_utf8("table_comment", |l| l.comment.clone())
}

fn views<'a>() -> ColumnList<&'a Object> {
    ColumnList::<&Object>::new()
        .utf8("table_catalog", |_| CATALOG.to_owned())
        .utf8("table_schema", |v| v.name.schema.clone())
        .utf8("table_name", |v| v.name.name.clone())
        .optional_utf8("definition", |v| Some(v.sql.clone()))
}

/// A column of a primary key.
struct KeyRow {
    schema: String,
    table: String,
    enforced: bool,
    column: String,
    /// From 1.
    position: u64,
}

fn key_rows(entries: &[Entry]) -> Vec<KeyRow> {
    let rows = entries.iter().flat_map(|entry| {
        (1..).zip(&entry.primary_key).map(|(position, column)| KeyRow {
            schema: entry.schema.clone(),
            table: entry.name.clone(),
            enforced: entry.key_enforced,
            column: column.clone(),
            position,
        })
    });
    rows.collect()
}

/// The columns that both tables about keys begin with.
fn key_columns() -> ColumnList<KeyRow> {
    ColumnList::<KeyRow>::new()
        .utf8("constraint_catalog", |_| CATALOG.to_owned())
        .utf8("constraint_schema", |key| key.schema.clone())
        .utf8("constraint_name", |key| format!("{}_pkey", key.table))
        .utf8("table_catalog", |_| CATALOG.to_owned())
        .utf8("table_schema", |key| key.schema.clone())
        .utf8("table_name", |key| key.table.clone())
}

/// One row per key, made of its first column.
fn table_constraints() -> ColumnList<KeyRow> {
    key_columns().utf8("constraint_type", |_| "PRIMARY KEY".to_owned()).utf8("enforced", |key| yes_or_no(key.enforced))
}

fn key_column_usage() -> ColumnList<KeyRow> {
    key_columns().utf8("column_name", |key| key.column.clone()).count("ordinal_position", |key| key.position)
}

fn yes_or_no(value: bool) -> String {
    if value { "YES" } else { "NO" }.to_owned()
}

/// A column with its position in its table.
struct ColumnRow<'a> {
    entry: &'a Entry,
    position: usize,
    field: &'a Field,
}

impl ColumnRow<'_> {
    fn notes(&self) -> ColumnNotes {
        self.entry.notes.get(self.position).cloned().unwrap_or_default()
    }
}

fn column_rows(entries: &[Entry]) -> Vec<ColumnRow<'_>> {
    let rows = entries.iter().flat_map(|entry| {
        let fields = entry.columns.fields().iter().enumerate();
        fields.map(move |(position, field)| ColumnRow { entry, position, field })
    });
    rows.collect()
}

fn columns<'a>() -> ColumnList<ColumnRow<'a>> {
    ColumnList::<ColumnRow<'a>>::new()
        .utf8("table_catalog", |_| CATALOG.to_owned())
        .utf8("table_schema", |c| c.entry.schema.clone())
        .utf8("table_name", |c| c.entry.name.clone())
        .utf8("column_name", |c| c.field.name().clone())
        .count("ordinal_position", |c| c.position as u64 + 1)
        .optional_utf8("column_default", |c| c.notes().default)
        .utf8("is_nullable", |c| yes_or_no(c.field.is_nullable()))
        .utf8("data_type", |c| c.field.data_type().to_string())
        .optional_count("character_maximum_length", |_| None)
        .optional_count("character_octet_length", |c| octet_length(c.field.data_type()))
        .optional_count("numeric_precision", |c| numeric(c.field.data_type()).map(|(precision, _, _)| precision))
        .optional_count("numeric_precision_radix", |c| numeric(c.field.data_type()).map(|(_, radix, _)| radix))
        .optional_count("numeric_scale", |c| numeric(c.field.data_type()).and_then(|(_, _, scale)| scale))
        .optional_count("datetime_precision", |_| None)
        .optional_utf8("interval_type", |_| None)
        .optional_utf8("column_comment", |c| c.notes().comment)
}

/// Greatest length of a value in bytes.
fn octet_length(data_type: &DataType) -> Option<u64> {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::Utf8View | DataType::BinaryView => Some(i32::MAX as u64),
        DataType::LargeUtf8 | DataType::LargeBinary => Some(i64::MAX as u64),
        _ => None,
    }
}

/// Precision, its radix, and scale of a number.
fn numeric(data_type: &DataType) -> Option<(u64, u64, Option<u64>)> {
    match data_type {
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => Some((u64::from(*p), 10, u64::try_from(*s).ok())),
        // Digits of the mantissa.
        DataType::Float16 => Some((11, 2, None)),
        DataType::Float32 => Some((24, 2, None)),
        DataType::Float64 => Some((53, 2, None)),
        integer if integer.is_integer() => integer.primitive_width().map(|bytes| (bytes as u64 * 8, 2, Some(0))),
        _ => None,
    }
}

impl Snapshot {
    /// Lists the tables, views, system and external tables that one may see, without planning or opening them.
    fn listed_objects(&self) -> Vec<ListedObject> {
        let mut listed_objects = Vec::new();
        let mut add = |schema: &str, name: &str, kind, comment: Option<String>| {
            listed_objects.push(ListedObject { schema: schema.to_owned(), name: name.to_owned(), kind, comment });
        };
        for table in self.tables().iter().filter(|table| self.lists(table.name())) {
            let name = table.name();
            add(&name.schema, &name.name, EntryKind::Table, table.definition().comment.clone());
        }
        for view in self.objects().views.values().filter(|view| self.lists(&view.name)) {
            add(&view.name.schema, &view.name.name, EntryKind::View, view.comment.clone());
        }
        for external in self.objects().external.values().filter(|external| self.lists(&external.name)) {
            add(&external.name.schema, &external.name.name, EntryKind::External, external.comment.clone());
        }
        for schema in [SYSTEM_SCHEMA, INFORMATION_SCHEMA] {
            self.names_in(schema).iter().for_each(|name| add(schema, name, EntryKind::System, None));
        }
        listed_objects
    }
}
