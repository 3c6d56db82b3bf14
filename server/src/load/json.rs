//! JSON files: objects one after the other (NDJSON), or in a list.
//!
//! The first rows decide the types of the columns. A field that they do not have is an error in a later row, as its values
//! would be lost.

use std::io::BufReader;
use std::sync::Arc;

use arrow::array::RecordBatchReader;
use arrow::datatypes::{Field, Schema};
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
        let schema = Schema::new(nullable.collect::<Vec<Field>>());
        let reader = ReaderBuilder::new(Arc::new(schema))
            .with_batch_size(BATCH_ROWS)
            .with_coerce_primitive(true)
            .with_strict_mode(true)
            .build(objects(self.input.open(self.compression)?));
        Ok(Box::new(reader.map_err(|error| Error::file(self.input.name(), explain_error(&error)))?))
    }
}

fn objects(reader: Reader) -> BufReader<Elements<Reader>> {
    BufReader::with_capacity(BUFFER_BYTES, Elements::new(reader))
}

/// A read error, with the option that may help.
pub fn explain_error(error: &ArrowError) -> String {
    let text = error.to_string();
    match text.contains("missing from schema") {
        true => format!(
            "{text}: the rows that decide the columns do not have it; let more of them decide with --infer-rows (0: all)"
        ),
        false => text,
    }
}
