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

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::information_schema::InformationSchemaProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;

use super::catalog::Snapshot;
use super::{CATALOG, Entry, EntryKind, INFORMATION_SCHEMA, SYSTEM_SCHEMA};
use crate::error::Result;

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
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    let optional = |name: &str| Field::new(name, DataType::Utf8, true);
    let number = |name: &str| Field::new(name, DataType::UInt64, true);
    let mut fields = match name {
        "schemata" => {
            return Some(Arc::new(Schema::new(vec![
                text("catalog_name"),
                text("schema_name"),
                optional("schema_owner"),
                optional("default_character_set_catalog"),
                optional("default_character_set_schema"),
                optional("default_character_set_name"),
                optional("sql_path"),
            ])));
        }
        "table_constraints" | "key_column_usage" => {
            vec![text("constraint_catalog"), text("constraint_schema"), text("constraint_name")]
        }
        "columns" | "tables" | "views" => Vec::new(),
        _ => return None,
    };
    fields.extend([text("table_catalog"), text("table_schema"), text("table_name")]);
    match name {
        "tables" => fields.extend([text("table_type"), optional("table_comment")]),
        "views" => fields.push(optional("definition")),
        "table_constraints" => fields.extend([text("constraint_type"), text("enforced")]),
        "key_column_usage" => {
            fields.extend([text("column_name"), Field::new("ordinal_position", DataType::UInt64, false)])
        }
        _ => fields.extend([
            text("column_name"),
            Field::new("ordinal_position", DataType::UInt64, false),
            optional("column_default"),
            text("is_nullable"),
            text("data_type"),
            number("character_maximum_length"),
            number("character_octet_length"),
            number("numeric_precision"),
            number("numeric_precision_radix"),
            number("numeric_scale"),
            number("datetime_precision"),
            optional("interval_type"),
            optional("column_comment"),
        ]),
    }
    Some(Arc::new(Schema::new(fields)))
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
        let schema = Arc::clone(&self.schema);
        let batch = async move {
            let columns = table_columns(&snapshot, name).await?;
            Ok(RecordBatch::try_new(schema, columns)?)
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::once(batch)))
    }
}

async fn table_columns(snapshot: &Arc<Snapshot>, name: &str) -> Result<Vec<ArrayRef>> {
    Ok(match name {
        "schemata" => schemata(&snapshot.schema_names()),
        "tables" => tables(&snapshot.listed_objects()),
        "views" => views(snapshot),
        "table_constraints" => table_constraints(&with_primary_key(&snapshot.entries().await?)),
        "key_column_usage" => key_column_usage(&with_primary_key(&snapshot.entries().await?)),
        _ => columns(&snapshot.entries().await?),
    })
}

fn texts<T>(items: &[T], value: impl Fn(&T) -> String) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(items.iter().map(value)))
}

fn optional_texts<T>(items: &[T], value: impl Fn(&T) -> Option<String>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<StringArray>())
}

fn numbers<T>(items: &[T], value: impl Fn(&T) -> Option<u64>) -> ArrayRef {
    Arc::new(items.iter().map(value).collect::<UInt64Array>())
}

fn schemata(names: &[String]) -> Vec<ArrayRef> {
    let mut columns = vec![texts(names, |_| CATALOG.to_owned()), texts(names, Clone::clone)];
    columns.extend((0..5).map(|_| optional_texts(names, |_| None)));
    columns
}

/// A table, view, system or external table, without its columns.
struct ListedObject {
    schema: String,
    name: String,
    kind: EntryKind,
    comment: Option<String>,
}

fn tables(objects: &[ListedObject]) -> Vec<ArrayRef> {
    let kind = |l: &ListedObject| match l.kind {
        EntryKind::Table | EntryKind::External => "BASE TABLE",
        EntryKind::View | EntryKind::System => "VIEW",
    };
    vec![
        texts(objects, |_| CATALOG.to_owned()),
        texts(objects, |l| l.schema.clone()),
        texts(objects, |l| l.name.clone()),
        texts(objects, |l| kind(l).to_owned()),
        optional_texts(objects, |l| l.comment.clone()),
    ]
}

fn views(snapshot: &Snapshot) -> Vec<ArrayRef> {
    let views: Vec<_> = snapshot.objects().views.values().collect();
    vec![
        texts(&views, |_| CATALOG.to_owned()),
        texts(&views, |v| v.name.schema.clone()),
        texts(&views, |v| v.name.name.clone()),
        texts(&views, |v| v.sql.clone()),
    ]
}

/// Tables with a primary key.
fn with_primary_key(entries: &[Entry]) -> Vec<Entry> {
    entries.iter().filter(|entry| !entry.primary_key.is_empty()).cloned().collect()
}

fn constraint_name(entry: &Entry) -> String {
    format!("{}_pkey", entry.name)
}

fn constraint_columns<T>(items: &[T], entry: impl Fn(&T) -> &Entry) -> Vec<ArrayRef> {
    vec![
        texts(items, |_| CATALOG.to_owned()),
        texts(items, |i| entry(i).schema.clone()),
        texts(items, |i| constraint_name(entry(i))),
        texts(items, |_| CATALOG.to_owned()),
        texts(items, |i| entry(i).schema.clone()),
        texts(items, |i| entry(i).name.clone()),
    ]
}

fn table_constraints(entries: &[Entry]) -> Vec<ArrayRef> {
    let mut columns = constraint_columns(entries, |entry| entry);
    columns.push(texts(entries, |_| "PRIMARY KEY".to_owned()));
    columns.push(texts(entries, |entry| if entry.key_enforced { "YES" } else { "NO" }.to_owned()));
    columns
}

fn key_column_usage(entries: &[Entry]) -> Vec<ArrayRef> {
    let used: Vec<(&Entry, u64, &String)> = entries
        .iter()
        .flat_map(|entry| (1..).zip(&entry.primary_key).map(move |(n, column)| (entry, n, column)))
        .collect();
    let mut columns = constraint_columns(&used, |(entry, ..)| entry);
    columns.push(texts(&used, |(.., column)| (*column).clone()));
    columns.push(numbers(&used, |(_, n, _)| Some(*n)));
    columns
}

/// A column with its position in its table.
struct ColumnRow<'a> {
    entry: &'a Entry,
    position: usize,
    field: &'a Field,
}

fn columns(entries: &[Entry]) -> Vec<ArrayRef> {
    let column_rows: Vec<ColumnRow<'_>> = entries
        .iter()
        .flat_map(|entry| {
            let fields = entry.columns.fields().iter().enumerate();
            fields.map(move |(position, field)| ColumnRow { entry, position, field })
        })
        .collect();
    let all = column_rows.as_slice();
    let note = |d: &ColumnRow<'_>| d.entry.notes.get(d.position).cloned().unwrap_or_default();
    let numeric = |d: &ColumnRow<'_>| numeric(d.field.data_type());
    vec![
        texts(all, |_| CATALOG.to_owned()),
        texts(all, |d| d.entry.schema.clone()),
        texts(all, |d| d.entry.name.clone()),
        texts(all, |d| d.field.name().clone()),
        numbers(all, |d| Some(d.position as u64 + 1)),
        optional_texts(all, |d| note(d).default),
        texts(all, |d| if d.field.is_nullable() { "YES" } else { "NO" }.to_owned()),
        texts(all, |d| d.field.data_type().to_string()),
        numbers(all, |_| None),
        numbers(all, |d| octet_length(d.field.data_type())),
        numbers(all, |d| numeric(d).map(|(precision, _, _)| precision)),
        numbers(all, |d| numeric(d).map(|(_, radix, _)| radix)),
        numbers(all, |d| numeric(d).and_then(|(_, _, scale)| scale)),
        numbers(all, |_| None),
        optional_texts(all, |_| None),
        optional_texts(all, |d| note(d).comment),
    ]
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
    /// Lists all tables, views, system and external tables without planning or opening them.
    fn listed_objects(&self) -> Vec<ListedObject> {
        let mut listed_objects = Vec::new();
        let mut add = |schema: &str, name: &str, kind, comment: Option<String>| {
            listed_objects.push(ListedObject { schema: schema.to_owned(), name: name.to_owned(), kind, comment });
        };
        for table in self.tables() {
            let name = table.name();
            add(&name.schema, &name.name, EntryKind::Table, table.definition().comment.clone());
        }
        for view in self.objects().views.values() {
            add(&view.name.schema, &view.name.name, EntryKind::View, view.comment.clone());
        }
        for external in self.objects().external.values() {
            add(&external.name.schema, &external.name.name, EntryKind::External, external.comment.clone());
        }
        for schema in [SYSTEM_SCHEMA, INFORMATION_SCHEMA] {
            self.names_in(schema).iter().for_each(|name| add(schema, name, EntryKind::System, None));
        }
        listed_objects
    }
}
