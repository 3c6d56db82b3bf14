//! Strings of clients, checked a buffer at a time.
//!
//! Arrow checks view columns value by value. Most text is ASCII, and that a whole buffer is shows at the speed of memory;
//! so string views are read as bytes, and only values in other buffers are looked at one by one.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, AsArray, BinaryViewArray, RecordBatch, RecordBatchOptions, StringViewArray},
    datatypes::{DataType, Field, Schema, SchemaRef},
    error::ArrowError,
};
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::{MessageHeader, root_as_message, writer::IpcWriteOptions};

/// Bits that no byte of ASCII has, in the part of a view that holds a short value.
const NOT_ASCII: u128 = 0x8080_8080_8080_8080_8080_8080 << 32;

/// A message in which string views are announced as bytes, with the schema as it was; `None` for other messages, and
/// where there are no string views.
pub(crate) fn as_bytes(message: &FlightData) -> Option<(FlightData, SchemaRef)> {
    let header = root_as_message(&message.data_header).ok()?;
    if header.header_type() != MessageHeader::Schema {
        return None;
    }
    let schema = Schema::try_from(message).ok()?;
    // A schema that is written anew numbers its dictionaries anew.
    let dictionaries = |field: &&Field| matches!(field.data_type(), DataType::Dictionary(..));
    if !schema.fields().iter().any(|field| field.data_type() == &DataType::Utf8View)
        || schema.flattened_fields().iter().any(dictionaries)
    {
        return None;
    }
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Utf8View => Arc::new(field.as_ref().clone().with_data_type(DataType::BinaryView)),
        _ => Arc::clone(field),
    });
    let bytes = Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone());
    let changed: FlightData = SchemaAsIpc::new(&bytes, &IpcWriteOptions::default()).into();
    Some((FlightData { data_header: changed.data_header, ..message.clone() }, Arc::new(schema)))
}

/// The rows with the columns that `schema` says are strings.
pub(crate) fn as_text(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| match field.data_type() {
        DataType::Utf8View => Ok(Arc::new(checked(column.as_binary_view(), field.name())?) as ArrayRef),
        _ => Ok(Arc::clone(column)),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns.collect::<Result<_, ArrowError>>()?, &options)
}

fn checked(bytes: &BinaryViewArray, column: &str) -> Result<StringViewArray, ArrowError> {
    let ascii: Vec<bool> = bytes.data_buffers().iter().map(|buffer| buffer.is_ascii()).collect();
    // Nulls too: nobody may find broken text under them.
    for (row, view) in bytes.views().iter().enumerate() {
        let is_ascii = match *view as u32 {
            0..=12 => view & NOT_ASCII == 0,
            _ => ascii.get((view >> 64) as u32 as usize).copied().unwrap_or(false),
        };
        if !is_ascii && std::str::from_utf8(bytes.value(row)).is_err() {
            return Err(ArrowError::InvalidArgumentError(format!("column '{column}', row {row}: not valid UTF-8")));
        }
    }
    // SAFETY: all values, those under nulls included, were found to be ASCII or checked one by one.
    Ok(unsafe { bytes.clone().to_string_view_unchecked() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_value_is_checked_where_it_lies() {
        let texts = [
            "",
            "short",
            "exactly 12 b",
            "thirteen byte",
            "Grüße",
            "Grüße aus München",
            "plain ascii, longer than that",
        ];
        let good = BinaryViewArray::from_iter_values(texts.map(str::as_bytes));
        assert_eq!(checked(&good, "c").unwrap(), StringViewArray::from_iter_values(texts));
        for broken in [&b"\xff"[..], b"twelve bytes\xc3", b"in a buffer of its own: \xf0\x28\x8c\x28", b"\xe2\x82"] {
            for at in 0..texts.len() {
                let mut values = texts.map(str::as_bytes);
                values[at] = broken;
                let array = BinaryViewArray::from_iter_values(values);
                let error = checked(&array, "name").unwrap_err().to_string();
                assert!(error.contains("'name'") && error.contains(&format!("row {at}")), "{error}");
            }
        }
    }
}
