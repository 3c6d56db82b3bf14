//! Validates strings of clients as UTF-8, one buffer at a time.
//!
//! Arrow validates view columns value by value. Most text is ASCII, and testing a whole buffer for ASCII runs at the
//! speed of memory. So string views are read as bytes, and only values in buffers that are not ASCII are checked one by
//! one.

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

/// Changes string views in a schema message to bytes; returns the message and the original schema. `None` for other
/// messages and for schemas without string views.
pub(crate) fn as_bytes(message: &FlightData) -> Option<(FlightData, SchemaRef)> {
    let header = root_as_message(&message.data_header).ok()?;
    if header.header_type() != MessageHeader::Schema {
        return None;
    }
    let schema = Schema::try_from(message).ok()?;
    // Writing a schema again would renumber its dictionaries.
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

/// Changes the columns that are strings in `schema` back from bytes to strings.
pub(crate) fn as_text(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| match field.data_type() {
        DataType::Utf8View => Ok(Arc::new(validated(column.as_binary_view(), field.name())?) as ArrayRef),
        _ => Ok(Arc::clone(column)),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns.collect::<Result<_, ArrowError>>()?, &options)
}

fn validated(bytes: &BinaryViewArray, column: &str) -> Result<StringViewArray, ArrowError> {
    let ascii: Vec<bool> = bytes.data_buffers().iter().map(|buffer| buffer.is_ascii()).collect();
    // Also values under nulls, because later code may read them as text.
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
        assert_eq!(validated(&good, "c").unwrap(), StringViewArray::from_iter_values(texts));
        for broken in [&b"\xff"[..], b"twelve bytes\xc3", b"in a buffer of its own: \xf0\x28\x8c\x28", b"\xe2\x82"] {
            for at in 0..texts.len() {
                let mut values = texts.map(str::as_bytes);
                values[at] = broken;
                let array = BinaryViewArray::from_iter_values(values);
                let error = validated(&array, "name").unwrap_err().to_string();
                assert!(error.contains("'name'") && error.contains(&format!("row {at}")), "{error}");
            }
        }
    }
}
