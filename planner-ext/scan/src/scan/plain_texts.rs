//! Texts and bytes as plain arrays instead of views.
//!
//! A scan that is asked for them ([`EmittedTexts::Plain`](super::emitted_texts::EmittedTexts::Plain)) copies texts from where they are stored, or
//! from their dictionary, and makes no views that somebody else would read once and drop.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::DataType;
use datafusion::common::Result;
use terrace_ipc::{flat_bytes, flat_texts};

/// The plain type in place of views; `None` for other types.
pub(super) fn plain_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        _ => None,
    }
}

/// The column as a plain array; it is shared where it is one.
pub(super) fn plain_array(column: &ArrayRef) -> Result<ArrayRef> {
    Ok(match column.data_type() {
        DataType::Utf8View => flat_texts(column.as_string_view())?,
        DataType::BinaryView => flat_bytes(column.as_binary_view())?,
        _ => Arc::clone(column),
    })
}
