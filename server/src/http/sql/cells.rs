//! Single values of rows as JSON and as CSV.
//!
//! Numbers keep all of their digits: decimals are texts, because readers of JSON take numbers as doubles. Floats that are
//! none in JSON are the texts `NaN`, `Infinity` and `-Infinity`. Dates and times are ISO 8601, bytes hexadecimal.

use std::io::Write;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, AsArray, LargeStringArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, NullableEncoder, make_encoder};
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// How values are written.
static OPTIONS: LazyLock<EncoderOptions> =
    LazyLock::new(|| EncoderOptions::default().with_explicit_nulls(true).with_encoder_factory(Arc::new(Exact)));

/// The encoders of values that Arrow would write with less than there is of them.
#[derive(Debug)]
struct Exact;

impl EncoderFactory for Exact {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float16 => {
                let values = array.as_primitive::<Float16Type>();
                Box::new(Floats(move |row: usize| Float::Single(values.value(row).to_f32())))
            }
            DataType::Float32 => {
                let values = array.as_primitive::<Float32Type>();
                Box::new(Floats(move |row: usize| Float::Single(values.value(row))))
            }
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>();
                Box::new(Floats(move |row: usize| Float::Double(values.value(row))))
            }
            kind if kind.is_decimal() => {
                let options = FormatOptions::new().with_display_error(true);
                Box::new(Quoted(ArrayFormatter::try_new(array, &options)?))
            }
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

enum Float {
    Single(f32),
    Double(f64),
}

/// Floats; the function gives that of a row.
struct Floats<F>(F);

impl<F: Fn(usize) -> Float> Encoder for Floats<F> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        match (self.0)(row) {
            Float::Single(value) if value.is_finite() => push_json(&value, out),
            Float::Double(value) if value.is_finite() => push_json(&value, out),
            Float::Single(value) => push_json(not_finite(f64::from(value)), out),
            Float::Double(value) => push_json(not_finite(value), out),
        }
    }
}

/// The text of a float that is no number in JSON.
fn not_finite(value: f64) -> &'static str {
    match value {
        value if value.is_nan() => "NaN",
        value if value > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

/// Values whose text needs no escapes, as texts.
struct Quoted<'a>(ArrayFormatter<'a>);

impl Encoder for Quoted<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = write!(out, "\"{}\"", self.0.value(row));
    }
}

/// Writes a value as JSON; it is a text, a number, or a type of ours that serde derives.
pub(super) fn push_json<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    // Writing to memory does not fail, and neither does serializing such values.
    let _ = serde_json::to_writer(out, value);
}

/// The values of a batch as JSON.
pub(super) struct JsonCells<'a>(Vec<NullableEncoder<'a>>);

impl<'a> JsonCells<'a> {
    /// The values of `batch`.
    ///
    /// # Errors
    /// For a column of a type that has no form in JSON.
    pub(super) fn new(batch: &'a RecordBatch) -> Result<Self, ArrowError> {
        let columns = batch.schema_ref().fields().iter().zip(batch.columns());
        let encoders = columns.map(|(field, column)| make_encoder(field, column.as_ref(), &OPTIONS));
        Ok(Self(encoders.collect::<Result<Vec<_>, _>>()?))
    }

    /// Writes the values of a row; `before` writes what stands before the value of a column.
    pub(super) fn push_row(&mut self, row: usize, out: &mut Vec<u8>, before: impl Fn(usize, &mut Vec<u8>)) {
        for (column, encoder) in self.0.iter_mut().enumerate() {
            before(column, out);
            if encoder.is_null(row) {
                out.extend_from_slice(b"null");
            } else {
                encoder.encode(row, out);
            }
        }
    }
}

/// The values of a column as fields of CSV.
enum CsvColumn<'a> {
    Text(&'a StringArray),
    LargeText(&'a LargeStringArray),
    /// Lists and other nested values as JSON, all others as JSON without its quotes.
    Other(NullableEncoder<'a>),
}

/// The values of a batch as CSV.
pub(super) struct CsvCells<'a> {
    columns: Vec<CsvColumn<'a>>,
    scratch: Vec<u8>,
}

impl<'a> CsvCells<'a> {
    /// The values of `batch`, whose texts are plain.
    ///
    /// # Errors
    /// For a column of a type that has no form in CSV.
    pub(super) fn new(batch: &'a RecordBatch) -> Result<Self, ArrowError> {
        let mut columns = Vec::with_capacity(batch.num_columns());
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            columns.push(match column.data_type() {
                DataType::Utf8 => CsvColumn::Text(column.as_string()),
                DataType::LargeUtf8 => CsvColumn::LargeText(column.as_string()),
                _ => CsvColumn::Other(make_encoder(field, column.as_ref(), &OPTIONS)?),
            });
        }
        Ok(Self { columns, scratch: Vec::new() })
    }

    /// Writes a row with the end of its line.
    pub(super) fn push_row(&mut self, row: usize, out: &mut Vec<u8>) {
        let start = out.len();
        for (index, column) in self.columns.iter_mut().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match column {
                CsvColumn::Text(texts) if !texts.is_null(row) => push_csv(texts.value(row).as_bytes(), out),
                CsvColumn::LargeText(texts) if !texts.is_null(row) => push_csv(texts.value(row).as_bytes(), out),
                CsvColumn::Other(encoder) if !encoder.is_null(row) => {
                    self.scratch.clear();
                    encoder.encode(row, &mut self.scratch);
                    let quoted = self.scratch.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
                    push_csv(quoted.unwrap_or(&self.scratch), out);
                }
                _ => {}
            }
        }
        if out.len() == start {
            // Readers skip an empty line.
            out.extend_from_slice(b"\"\"");
        }
        out.push(b'\n');
    }
}

/// Writes a field of CSV. An empty text has quotes, so that it differs from null.
pub(super) fn push_csv(field: &[u8], out: &mut Vec<u8>) {
    if !field.is_empty() && !field.iter().any(|byte| matches!(byte, b'"' | b',' | b'\n' | b'\r')) {
        out.extend_from_slice(field);
        return;
    }
    out.push(b'"');
    for byte in field {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{
        ArrayRef, BinaryArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array, ListArray,
        NullArray, TimestampMicrosecondArray,
    };
    use arrow::datatypes::Int64Type;

    use super::*;

    fn rows() -> RecordBatch {
        let decimals = Decimal128Array::from(vec![1_250, -5]).with_precision_and_scale(20, 3).unwrap();
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("t", Arc::new(StringArray::from(vec![Some("a \"b\", c\n"), Some("")]))),
            ("i", Arc::new(Int64Array::from(vec![Some(i64::MAX), None]))),
            ("f", Arc::new(Float64Array::from(vec![0.1, f64::NAN]))),
            ("r", Arc::new(Float32Array::from(vec![0.1, f32::NEG_INFINITY]))),
            ("d", Arc::new(decimals)),
            ("day", Arc::new(Date32Array::from(vec![19_782, 0]))),
            ("at", Arc::new(TimestampMicrosecondArray::from(vec![1_704_196_800_000_001, 0]))),
            ("b", Arc::new(BinaryArray::from_iter_values([b"\x00\xff".as_slice(), b"".as_slice()]))),
            ("l", Arc::new(lists)),
            ("n", Arc::new(NullArray::new(2))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    fn texts(write: impl Fn(usize, &mut Vec<u8>)) -> Vec<String> {
        let text = |row| {
            let mut out = Vec::new();
            write(row, &mut out);
            String::from_utf8(out).unwrap()
        };
        (0..2).map(text).collect()
    }

    #[test]
    fn json_has_every_digit() {
        let rows = rows();
        let found = texts(|row, out| {
            let comma = |column: usize, out: &mut Vec<u8>| {
                if column > 0 {
                    out.push(b',');
                }
            };
            JsonCells::new(&rows).unwrap().push_row(row, out, comma);
        });
        let first = r#""a \"b\", c\n",9223372036854775807,0.1,0.1,"1.250","2024-02-29","2024-01-02T12:00:00.000001","00ff",[1,null],null"#;
        let second = r#""",null,"NaN","-Infinity","-0.005","1970-01-01","1970-01-01T00:00:00","",null,null"#;
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn csv_tells_empty_texts_from_nulls() {
        let rows = rows();
        let found = texts(|row, out| CsvCells::new(&rows).unwrap().push_row(row, out));
        let first = "\"a \"\"b\"\", c\n\",9223372036854775807,0.1,0.1,1.250,2024-02-29,2024-01-02T12:00:00.000001,00ff,\"[1,null]\",\n";
        let second = "\"\",,NaN,-Infinity,-0.005,1970-01-01,1970-01-01T00:00:00,\"\",,\n";
        assert_eq!(found, [first, second]);
        let nulls: ArrayRef = Arc::new(NullArray::new(2));
        let nulls = RecordBatch::try_from_iter_with_nullable([("n", nulls, true)]).unwrap();
        assert_eq!(texts(|row, out| CsvCells::new(&nulls).unwrap().push_row(row, out)), ["\"\"\n", "\"\"\n"]);
    }
}
