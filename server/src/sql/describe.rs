//! `\d`, `\dt`, `\dv`, `\l`: what there is on the server.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Int64Type};

use super::name::TableName;
use super::shell::Shell;
use super::type_name::type_name;
use crate::client::{Listed, TableFilter};
use crate::error::{Error, Result};
use crate::terminal::errln;

/// Rows and bytes of the server's tables.
const SIZES: &str = "SELECT table_schema, table_name, rows, file_bytes, delta_bytes FROM system.tables";
/// The comment of a column in a listing.
const REMARKS: &str = "ARROW:FLIGHT:SQL:REMARKS";
const SYSTEM_TABLE: &str = "system table";

/// What to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// Tables and views.
    All,
    /// Tables.
    Tables,
    /// Views.
    Views,
}

impl Kinds {
    /// Whether it has an entry. Tables of the server are listed where a schema was named.
    fn has(self, listed: &Listed, is_schema_named: bool) -> bool {
        match listed.kind.as_str() {
            "view" => self != Self::Tables,
            SYSTEM_TABLE => is_schema_named && self != Self::Views,
            _ => self != Self::Views,
        }
    }
}

/// Lists tables and views whose name is like `pattern`: `*` stands for any text, `?` for one character.
pub fn list(shell: &mut Shell, pattern: &str, kinds: Kinds) -> Result<()> {
    let pattern = pattern.to_lowercase();
    let (schema, name) = match pattern.split_once('.') {
        Some((schema, name)) => (Some(schema.to_owned()), name),
        None => (None, pattern.as_str()),
    };
    let is_schema_named = schema.as_ref().is_some_and(|schema| !schema.starts_with('*'));
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    let filter = TableFilter { schema, name, with_columns: false };
    let mut found = shell.runtime.block_on(shell.client.tables(&filter))?;
    found.retain(|listed| kinds.has(listed, is_schema_named));
    if found.is_empty() {
        let what = if kinds == Kinds::Views { "views" } else { "tables" };
        let like = if pattern.is_empty() { String::new() } else { format!(" like {pattern}") };
        errln!("no {what}{like}");
        return Ok(());
    }
    let sizes = if kinds == Kinds::Tables { sizes(shell) } else { None };
    let rows = listing(&found, sizes.as_ref())?;
    shell.show(&rows)
}

/// Rows and bytes of a table.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rows: i64,
    bytes: i64,
}

/// The sizes of all tables by schema and name; nothing where the server does not tell them.
fn sizes(shell: &mut Shell) -> Option<HashMap<String, Sizes>> {
    let batches = shell.runtime.block_on(shell.client.query(SIZES)).ok()?;
    let mut sizes = HashMap::new();
    for batch in &batches {
        let columns = [DataType::Utf8, DataType::Utf8, DataType::Int64, DataType::Int64, DataType::Int64];
        let columns = batch.columns().iter().zip(columns).map(|(column, wanted)| cast(column, &wanted));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>().ok()?;
        let [schemas, names, rows, files, deltas] = columns.as_slice() else { return None };
        for row in 0..batch.num_rows() {
            let bytes = count(files, row)?.saturating_add(count(deltas, row)?);
            let name = full_name(text(schemas, row)?, text(names, row)?);
            sizes.insert(name, Sizes { rows: count(rows, row)?, bytes });
        }
    }
    Some(sizes)
}

fn text(column: &ArrayRef, row: usize) -> Option<&str> {
    column.as_string_opt::<i32>().map(|texts| texts.value(row))
}

fn count(column: &ArrayRef, row: usize) -> Option<i64> {
    column.as_primitive_opt::<Int64Type>().map(|counts| counts.value(row))
}

fn full_name(schema: &str, name: &str) -> String {
    format!("{schema}.{name}")
}

fn listing(found: &[Listed], sizes: Option<&HashMap<String, Sizes>>) -> Result<RecordBatch> {
    let texts =
        |get: fn(&Listed) -> &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(found.iter().map(get))) };
    let mut columns = vec![
        ("schema", texts(|listed| listed.schema.as_str()), false),
        ("name", texts(|listed| listed.name.as_str()), false),
        ("kind", texts(|listed| listed.kind.as_str()), false),
    ];
    if let Some(sizes) = sizes {
        let size = |listed: &Listed| sizes.get(&full_name(&listed.schema, &listed.name));
        let rows: Int64Array = found.iter().map(|listed| Some(size(listed)?.rows)).collect();
        let bytes: Int64Array = found.iter().map(|listed| Some(size(listed)?.bytes)).collect();
        columns.push(("rows", Arc::new(rows) as ArrayRef, true));
        columns.push(("bytes", Arc::new(bytes) as ArrayRef, true));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Shows the columns of a table or view.
pub fn table(shell: &mut Shell, name: &str) -> Result<()> {
    let wanted = TableName::parse(name)?;
    let filter = TableFilter { schema: wanted.schema.clone(), name: Some(wanted.name.clone()), with_columns: true };
    let mut found = shell.runtime.block_on(shell.client.tables(&filter))?;
    found.retain(|listed| listed.name == wanted.name);
    if found.is_empty() {
        return Err(Error::Usage(format!("there is no table or view '{}'; \\dt lists the tables", wanted.plain())));
    }
    for listed in &found {
        let key = shell.runtime.block_on(shell.client.primary_key(&listed.schema, &listed.name))?;
        if found.len() > 1 {
            errln!("{} {}:", listed.kind, full_name(&listed.schema, &listed.name));
        }
        let rows = columns(listed, &key)?;
        shell.show(&rows)?;
    }
    Ok(())
}

fn columns(listed: &Listed, key: &[String]) -> Result<RecordBatch> {
    let fields = listed.columns.iter().flat_map(|schema| schema.fields());
    let fields: Vec<_> = fields.collect();
    let names = StringArray::from_iter_values(fields.iter().map(|field| field.name()));
    let types = StringArray::from_iter_values(fields.iter().map(|field| type_name(field.data_type())));
    let nullable = fields.iter().map(|field| if field.is_nullable() { "yes" } else { "no" });
    let nullable = StringArray::from_iter_values(nullable);
    let place = |name: &String| key.iter().position(|each| each == name).and_then(|at| i64::try_from(at + 1).ok());
    let keys: Int64Array = fields.iter().map(|field| place(field.name())).collect();
    let comments: StringArray = fields.iter().map(|field| field.metadata().get(REMARKS)).collect();
    let mut columns = vec![
        ("column", Arc::new(names) as ArrayRef, false),
        ("type", Arc::new(types) as ArrayRef, false),
        ("nullable", Arc::new(nullable) as ArrayRef, false),
    ];
    // Columns without a value say nothing.
    if !key.is_empty() {
        columns.push(("key", Arc::new(keys) as ArrayRef, true));
    }
    if comments.null_count() < comments.len() {
        columns.push(("comment", Arc::new(comments) as ArrayRef, true));
    }
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Lists catalogs and schemas.
pub fn schemas(shell: &mut Shell) -> Result<()> {
    let batches = shell.runtime.block_on(shell.client.schemas())?;
    let Some(first) = batches.first() else { return Ok(()) };
    let all = concat_batches(&first.schema(), &batches)?;
    let names = ["catalog_name", "db_schema_name"].map(|name| all.column_by_name(name).cloned());
    let [Some(catalogs), Some(schemas)] = names else {
        return Err(Error::Server {
            code: "Unknown".to_owned(),
            message: "the list of schemas has no names".to_owned(),
        });
    };
    let rows = RecordBatch::try_from_iter_with_nullable([("catalog", catalogs, true), ("schema", schemas, true)])?;
    shell.show(&rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::datatypes::{Field, Schema};

    use super::*;

    fn listed(kind: &str) -> Listed {
        let comment = HashMap::from([(REMARKS.to_owned(), "the key".to_owned())]);
        let fields = vec![
            Field::new("id", DataType::Int64, false).with_metadata(comment),
            Field::new("name", DataType::Utf8, true),
        ];
        Listed {
            catalog: "terrace".to_owned(),
            schema: "public".to_owned(),
            name: "t".to_owned(),
            kind: kind.to_owned(),
            columns: Some(Schema::new(fields)),
        }
    }

    #[test]
    fn tables_of_the_server_are_listed_where_their_schema_is_named() {
        let has = |kinds: Kinds, kind: &str, named| kinds.has(&listed(kind), named);
        assert!(has(Kinds::All, "table", false) && has(Kinds::All, "view", false));
        assert!(!has(Kinds::All, SYSTEM_TABLE, false) && has(Kinds::Tables, SYSTEM_TABLE, true));
        assert!(!has(Kinds::Tables, "view", true) && has(Kinds::Views, "view", false));
        assert!(!has(Kinds::Views, "table", false) && !has(Kinds::Views, SYSTEM_TABLE, true));
    }

    #[test]
    fn columns_have_types_of_sql_and_their_place_in_the_key() {
        let rows = columns(&listed("table"), &["id".to_owned()]).unwrap();
        let text = |column: usize, row| rows.column(column).as_string::<i32>().value(row).to_owned();
        assert_eq!((text(1, 0), text(1, 1), text(2, 0)), ("BIGINT".into(), "VARCHAR".into(), "no".into()));
        assert_eq!(rows.column(3).as_primitive::<Int64Type>().value(0), 1);
        assert_eq!((text(4, 0), rows.column(4).is_null(1)), ("the key".into(), true));
        assert_eq!(columns(&listed("view"), &[]).unwrap().num_columns(), 4);
    }

    #[test]
    fn sizes_are_those_of_the_table() {
        let sizes = HashMap::from([("public.t".to_owned(), Sizes { rows: 7, bytes: 512 })]);
        let rows = listing(&[listed("table")], Some(&sizes)).unwrap();
        assert_eq!(rows.column(3).as_primitive::<Int64Type>().value(0), 7);
        assert_eq!(listing(&[listed("view")], None).unwrap().num_columns(), 3);
    }
}
