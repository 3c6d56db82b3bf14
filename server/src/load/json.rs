//! JSON files: objects one after the other (NDJSON), or in a list.
//!
//! The first rows decide the types of the columns. A field that they do not have is an error in a later row, as its values
//! would be lost. Integers are read as text first: the reader of integers cuts fractions off.

use std::io::BufReader;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, RecordBatchReader};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;

use super::compression::Compression;
use super::elements::Elements;
use super::input::{Input, Reader};
use super::shape::Shape;
use crate::error::{Error, Result};

/// Rows of a batch.
const BATCH_ROWS: usize = 8_192;
/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// What an error says of a value that is no integer.
const NO_INTEGER: &str = "has a value that is no integer of its type";

/// A JSON file.
pub struct JsonFile<'a> {
    /// Its bytes.
    pub input: &'a Input,
    /// Compression of the file.
    pub compression: Option<Compression>,
}

impl JsonFile<'_> {
    /// Its columns, with the types that its first `rows` rows show, and Null where these rows have no value.
    ///
    /// # Errors
    /// For a file that cannot be read, and for rows that no columns can hold.
    pub fn columns(&self, rows: usize) -> Result<Schema> {
        let failed = |why: String| Error::file(self.input.name(), why);
        let sample = self.input.sample(self.compression)?;
        let mut all = Shape::Null;
        let values = serde_json::Deserializer::from_reader(objects(sample.reader)).into_iter::<Shape>();
        for (row, value) in values.take(rows).enumerate() {
            let value = match value {
                // The sample ends within a row.
                Err(error) if sample.is_cut && (error.is_eof() || error.is_io()) => break,
                value => value.map_err(|error| failed(error.to_string()))?,
            };
            if !matches!(value, Shape::Object(_)) {
                return Err(failed(format!("row {} is {value}, and no object", row + 1)));
            }
            all.merge(value).map_err(|why| failed(format!("row {}: {why}", row + 1)))?;
        }
        all.schema().map_err(failed)
    }

    /// Opens a reader of its rows with the columns of `wanted`; those that a row does not have are null.
    ///
    /// # Errors
    /// For a file that cannot be read, and for types that JSON cannot be read as.
    pub fn open(&self, wanted: &Schema) -> Result<Box<dyn RecordBatchReader + Send>> {
        let nullable = wanted.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Arc::new(Schema::new(nullable.collect::<Vec<Field>>()));
        let texts =
            schema.fields().iter().map(|field| field.as_ref().clone().with_data_type(read_type(field.data_type())));
        let reader = ReaderBuilder::new(Arc::new(Schema::new(texts.collect::<Vec<Field>>())))
            .with_batch_size(BATCH_ROWS)
            .with_coerce_primitive(true)
            .with_strict_mode(true)
            .build(objects(self.input.open(self.compression)?));
        let texts = reader.map_err(|error| Error::file(self.input.name(), explain_error(&error)))?;
        Ok(Box::new(Rows { texts, schema }))
    }
}

/// The rows of a reader whose integers are texts, with integers.
struct Rows<R> {
    texts: R,
    schema: SchemaRef,
}

impl<R: RecordBatchReader> Iterator for Rows<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let texts = self.texts.next()?;
        Some(texts.and_then(|texts| with_integers(&texts, &self.schema)))
    }
}

impl<R: RecordBatchReader> RecordBatchReader for Rows<R> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// The type as which values of a column are read: text in place of integers, also within lists and objects.
fn read_type(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(field.as_ref().clone().with_data_type(read_type(field.data_type())));
    match data_type {
        integer if integer.is_integer() => DataType::Utf8,
        DataType::List(item) => DataType::List(inner(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        other => other.clone(),
    }
}

fn with_integers(texts: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = texts.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        let failed = |e: ArrowError| ArrowError::JsonError(format!("column '{}' {NO_INTEGER}: {e}", field.name()));
        cast_with_options(column, field.data_type(), &options).map_err(failed)
    });
    let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(texts.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

fn objects(reader: Reader) -> BufReader<Elements<Reader>> {
    BufReader::with_capacity(BUFFER_BYTES, Elements::new(reader))
}

/// A read error, with the option that may help.
pub fn explain_error(error: &ArrowError) -> String {
    let text = error.to_string();
    match text.contains("missing from schema") || text.contains(NO_INTEGER) {
        true => format!(
            "{text}: the rows that decide the columns do not show it; let more of them decide with --infer-rows (0: all)"
        ),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::util::display::array_value_to_string;

    use super::*;

    /// The rows of a file whose first row decides the types of the columns.
    fn read(text: &str) -> std::result::Result<RecordBatch, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, text).unwrap();
        let input = Input::File(path);
        let file = JsonFile { input: &input, compression: None };
        let mut rows = file.open(&file.columns(1).unwrap()).unwrap();
        rows.next().unwrap().map_err(|error| explain_error(&error))
    }

    #[test]
    fn integers_are_read_as_they_are_or_not_at_all() {
        let first = "{\"a\": 1, \"o\": {\"l\": [2]}}\n";
        let rows = read(&format!("{first}{{\"a\": 9223372036854775807, \"o\": {{\"l\": [-3]}}}}\n{{}}")).unwrap();
        assert_eq!(rows.column(0).data_type(), &DataType::Int64);
        let shown = |column: usize, row| array_value_to_string(rows.column(column), row).unwrap();
        assert_eq!((shown(0, 1), shown(1, 1)), ("9223372036854775807".to_owned(), "{l: [-3]}".to_owned()));
        assert_eq!((shown(0, 2), shown(1, 2)), (String::new(), String::new()));
        for late in ["{\"a\": 2.5}", "{\"a\": 9223372036854775808}", "{\"a\": true}", "{\"o\": {\"l\": [2.5]}}"] {
            let refused = read(&format!("{first}{late}")).unwrap_err();
            assert!(refused.contains(NO_INTEGER) && refused.contains("--infer-rows"), "{late}: {refused}");
        }
    }
}
