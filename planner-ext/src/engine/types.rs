//! Types of columns as tables store them, and casts of rows to the columns of a table.
//!
//! Strings and binaries are stored as views and dictionaries hydrated, at any depth, so that a table does not depend on
//! how its first client encoded rows. A column of type Null, whose first values are all null, is stored as text.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float32Type, Float64Type, Schema, SchemaRef};
use arrow::util::display::{FormatOptions, array_value_to_string};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{ArrayElemTypeDef, DataType as SqlType};
use terrace_error::ROW_COLUMN;
use terrace_scan::safe_cast::is_safe_cast;
use terrace_sql::rewrite::SOURCE_MARK;

use crate::error::{Error, Result};

/// Most bytes of metadata that clients may give to the columns of a table; each of its files repeats them.
const METADATA_BYTES: usize = 1 << 20;

/// Deepest nesting of the text of a type, and of arrays in arrays; Arrow's parser and the planner recurse once for each.
const MOST_TYPE_DEPTH: usize = 64;

/// Plans `ARROW('type')`, for types without a name in SQL, and SQL types that the planner does not know.
#[derive(Debug)]
pub(super) struct ArrowTypes;

impl TypePlanner for ArrowTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>, DataFusionError> {
        let (name, arguments) = match sql_type {
            SqlType::Custom(name, arguments) => (name, arguments),
            // The length is ignored, like that of VARCHAR.
            SqlType::Varbinary(_) | SqlType::Blob(_) => {
                return Ok(Some(Arc::new(Field::new("", DataType::Binary, true))));
            }
            other => return check_arrays(other).map(|()| None).map_err(DataFusionError::from),
        };
        if !name.to_string().eq_ignore_ascii_case("arrow") {
            return Ok(None);
        }
        let [text] = arguments.as_slice() else {
            return Err(Error::invalid("write ARROW('type'), such as ARROW('Timestamp(us, \"UTC\")')").into());
        };
        let text = text.trim_matches('\'').replace("''", "'");
        check_type_text(&text)?;
        let data_type: DataType =
            text.parse().map_err(|e| Error::invalid(format!("'{text}' is not an Arrow type: {e}")))?;
        check_type(&data_type)?;
        Ok(Some(Arc::new(Field::new("", data_type, true))))
    }
}

/// Refuses the text of a type that is nested too deeply to be parsed.
pub(super) fn check_type_text(text: &str) -> Result<()> {
    let mut depth = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MOST_TYPE_DEPTH {
            return Err(Error::invalid(format!("a type is nested more than {MOST_TYPE_DEPTH} levels deep")));
        }
    }
    Ok(())
}

/// Refuses arrays in arrays that are nested too deeply to be planned.
fn check_arrays(sql_type: &SqlType) -> Result<()> {
    let mut inner = sql_type;
    for _ in 0..MOST_TYPE_DEPTH {
        match inner {
            SqlType::Array(
                ArrayElemTypeDef::AngleBracket(item)
                | ArrayElemTypeDef::SquareBracket(item, _)
                | ArrayElemTypeDef::Parenthesis(item),
            ) => inner = item.as_ref(),
            _ => return Ok(()),
        }
    }
    Err(Error::invalid(format!("a type is nested more than {MOST_TYPE_DEPTH} levels deep")))
}

/// Refuses types of which no values can be made.
pub(super) fn check_type(data_type: &DataType) -> Result<()> {
    terrace_ipc::check_type(data_type).map_err(|error| Error::invalid(error.to_string()))
}

/// The type in which a column is stored.
pub(crate) fn stored_type(data_type: &DataType) -> DataType {
    let field = |f: &FieldRef| -> FieldRef { Arc::new(stored_field(f)) };
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Null => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, value) => stored_type(value),
        DataType::RunEndEncoded(_, values) => stored_type(values.data_type()),
        DataType::List(f) => DataType::List(field(f)),
        DataType::LargeList(f) => DataType::LargeList(field(f)),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(field(f), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect::<Fields>()),
        other => other.clone(),
    }
}

fn stored_field(field: &Field) -> Field {
    let nullable = field.is_nullable() || field.data_type() == &DataType::Null;
    Field::new(field.name(), stored_type(field.data_type()), nullable).with_metadata(stored_metadata(field.metadata()))
}

/// The metadata of a column that are stored: those of clients, such as the name of an extension type. Metadata that a
/// server adds to results, and keys of Terrace, are dropped.
fn stored_metadata(metadata: &HashMap<String, String>) -> HashMap<String, String> {
    let is_reserved =
        |key: &str| ["ARROW:FLIGHT:SQL:", "XDBC_", "terrace."].iter().any(|prefix| key.starts_with(prefix));
    metadata.iter().filter(|(key, _)| !is_reserved(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Refuses names that no column may have.
pub(super) fn check_column_name(name: &str) -> Result<()> {
    if [ROW_COLUMN, SOURCE_MARK].contains(&name) {
        return Err(Error::invalid(format!("'{name}' cannot name a column; the server uses this name itself")));
    }
    if name.is_empty() {
        return Err(Error::invalid("a column of a table needs a name"));
    }
    Ok(())
}

/// Columns of a new table for rows of `schema`. Key columns do not take nulls.
pub(crate) fn stored_schema(schema: &Schema, primary_key: &[String]) -> Result<SchemaRef> {
    let mut fields = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        check_column_name(field.name())?;
        let named = |error: Error| Error::invalid(format!("column '{}': {}", field.name(), error.message()));
        check_type(field.data_type()).map_err(named)?;
        let stored = stored_field(field);
        let nullable = stored.is_nullable() && !primary_key.contains(stored.name());
        fields.push(stored.with_nullable(nullable));
    }
    if fields.is_empty() {
        return Err(Error::invalid("a table needs at least one column"));
    }
    let schema = Schema::new(fields);
    let metadata = schema.flattened_fields().into_iter().flat_map(|field| field.metadata());
    let bytes: usize = metadata.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > METADATA_BYTES {
        return Err(Error::invalid(format!(
            "the columns have {bytes} bytes of metadata, {METADATA_BYTES} are the limit; leave some out"
        )));
    }
    Ok(Arc::new(schema))
}

/// Converts incoming rows to the columns of a table: by name, with casts that lose nothing.
#[derive(Debug, Clone)]
pub(crate) struct RowAdapter {
    target: SchemaRef,
    /// Position of the incoming column for each column of the table; `None`: all null.
    sources: Vec<Option<usize>>,
}

impl RowAdapter {
    /// Matches `incoming` to the columns of `table`. The error names all mismatches.
    pub(crate) fn new(table: &str, incoming: &Schema, target: &SchemaRef) -> Result<Self> {
        let mut problems = Vec::new();
        let mut sources = Vec::with_capacity(target.fields().len());
        for target_field in target.fields() {
            let found = matching(incoming, target_field.name());
            match found {
                Some((index, incoming_field)) => {
                    if !is_safe_cast(incoming_field.data_type(), target_field.data_type()) {
                        problems.push(format!(
                            "column '{}' is {}, the rows have {}",
                            target_field.name(),
                            target_field.data_type(),
                            incoming_field.data_type()
                        ));
                    }
                    sources.push(Some(index));
                }
                None => {
                    if !target_field.is_nullable() {
                        problems.push(format!(
                            "column '{}' ({}) is NOT NULL and missing",
                            target_field.name(),
                            target_field.data_type()
                        ));
                    }
                    sources.push(None);
                }
            }
        }
        for (index, incoming_field) in incoming.fields().iter().enumerate() {
            if !sources.contains(&Some(index)) {
                problems.push(format!("the table has no column '{}'", incoming_field.name()));
            }
        }
        if problems.is_empty() {
            return Ok(Self { target: Arc::clone(target), sources });
        }
        Err(Error::invalid(format!("rows do not fit table '{table}': {}", problems.join("; "))))
    }

    /// Whether it makes columns of rows with the columns `incoming`: of another type, or null.
    pub(crate) fn converts(&self, incoming: &Schema) -> bool {
        let same = |source: &Option<usize>, field: &FieldRef| {
            source.is_some_and(|index| incoming.field(index).data_type() == field.data_type())
        };
        !self.sources.iter().zip(self.target.fields()).all(|(source, field)| same(source, field))
    }

    /// Converts a batch. Values out of range are errors, never nulls.
    pub(crate) fn adapt(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.sources.len());
        for (field, source) in self.target.fields().iter().zip(&self.sources) {
            let column = match source.and_then(|i| batch.columns().get(i)) {
                Some(array) => cast_column(array, field)?,
                None => arrow::array::new_null_array(field.data_type(), batch.num_rows()),
            };
            columns.push(column);
        }
        with_columns(&self.target, columns, batch.num_rows())
    }
}

/// Assembles rows of a table; the error names a NOT NULL column with a null.
pub(crate) fn with_columns(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    for (field, column) in schema.fields().iter().zip(&columns) {
        if !field.is_nullable() && column.logical_null_count() > 0 {
            return Err(Error::invalid(format!("column '{}' is NOT NULL and a row has no value there", field.name())));
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

fn cast_column(array: &ArrayRef, field: &Field) -> Result<ArrayRef> {
    exact_cast(array, field.data_type())
        .map_err(|e| Error::invalid(format!("column '{}': {}", field.name(), e.message())))
}

/// Casts values to another type. Text is parsed and floats are rounded to floats; numbers and times may lose nothing.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind) with the first value that does not fit.
pub(super) fn exact_cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let from = array.data_type();
    if from == to {
        return Ok(Arc::clone(array));
    }
    let options = CastOptions { safe: false, format_options: FormatOptions::default() };
    let cast = cast_with_options(array, to, &options)?;
    if !may_lose(from, to) {
        return Ok(cast);
    }
    let back = cast_with_options(&cast, from, &options)?;
    let unchanged = not_distinct(&without_negative_zero(array), &back)?;
    match unchanged.iter().position(|unchanged| unchanged == Some(false)) {
        None => Ok(cast),
        Some(row) => {
            let shown = array_value_to_string(array, row)?;
            Err(Error::invalid(format!("{shown} cannot be stored as {to} without loss")))
        }
    }
}

/// Whether a cast of numbers or times may change a value.
fn may_lose(from: &DataType, to: &DataType) -> bool {
    let is_number_or_time = |kind: &DataType| kind.is_numeric() || kind.is_temporal();
    is_number_or_time(from)
        && is_number_or_time(to)
        && !to.is_floating()
        && (!is_safe_cast(from, to) || is_coarser_time(from, to))
}

fn is_coarser_time(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    match (from, to) {
        (Timestamp(a, _), Timestamp(b, _)) | (Duration(a), Duration(b)) => a > b,
        (Time32(a) | Time64(a), Time32(b) | Time64(b)) => a > b,
        _ => false,
    }
}

/// Replaces -0.0 by 0.0, as integers and decimals have one zero.
fn without_negative_zero(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float32 => Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(|value| value + 0.0)),
        DataType::Float64 => Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(|value| value + 0.0)),
        _ => Arc::clone(array),
    }
}

/// The incoming column for a table's column `name`, with its position.
pub(crate) fn matching<'a>(incoming: &'a Schema, name: &str) -> Option<(usize, &'a Field)> {
    incoming.column_with_name(name).or_else(|| match_ignoring_case(incoming, name))
}

/// The column whose name differs only in case, if there is exactly one.
fn match_ignoring_case<'a>(schema: &'a Schema, name: &str) -> Option<(usize, &'a Field)> {
    let mut matches = schema.fields().iter().enumerate().filter(|(_, f)| f.name().eq_ignore_ascii_case(name));
    let (index, field) = matches.next()?;
    matches.next().is_none().then_some((index, field.as_ref()))
}
