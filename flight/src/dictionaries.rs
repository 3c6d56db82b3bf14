//! Columns of texts as keys of dictionaries, for a stream whose client asked for them ([`schema`](crate::schema)).
//!
//! Each column has a dictionary that its messages share. A message whose rows have new values comes behind a dictionary that takes the
//! place of the one before. Deltas would be shorter, but Arrow's Java library takes them for whole dictionaries. A dictionary
//! of few values soon has all of them, and is not sent again; one that is large beside the rows begins anew with them
//! ([`TextDictionary`]), so what is sent is at most the texts of the rows, a few bytes for each, and some kilobytes.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayData, ArrayRef, AsArray, make_array},
    datatypes::{DataType, FieldRef, Schema, SchemaRef},
    error::ArrowError,
    record_batch::{RecordBatch, RecordBatchOptions},
};
use terrace_ipc::{TextDictionary, keyed_text_type};

use crate::schema::is_text;

/// The dictionaries of a stream of rows.
pub(crate) struct Dictionaries {
    wire: SchemaRef,
    /// One for each column of `wire` that has keys.
    columns: Vec<Option<TextDictionary>>,
}

impl Dictionaries {
    /// Dictionaries without values, of a stream with the columns of `wire`; `None` where no column has keys.
    pub(crate) fn new(wire: &SchemaRef) -> Option<Self> {
        let keyed = keyed_text_type();
        let dictionary = |field: &FieldRef| (*field.data_type() == keyed).then(TextDictionary::new);
        let columns: Vec<_> = wire.fields().iter().map(dictionary).collect();
        columns.iter().any(Option::is_some).then(|| Self { wire: Arc::clone(wire), columns })
    }

    /// The schema that `batch` has to have before [`Self::encode`]: that of the stream, with texts as they are in the batch.
    pub(crate) fn unencoded(&self, batch: &RecordBatch) -> SchemaRef {
        let unencoded = |(index, field): (usize, &FieldRef)| match (self.columns.get(index), batch.columns().get(index))
        {
            (Some(Some(_)), Some(column)) if is_text(column.data_type()) => {
                Arc::new(field.as_ref().clone().with_data_type(column.data_type().clone()))
            }
            _ => Arc::clone(field),
        };
        let fields: Vec<FieldRef> = self.wire.fields().iter().enumerate().map(unencoded).collect();
        Arc::new(Schema::new_with_metadata(fields, self.wire.metadata().clone()))
    }

    /// The next rows of the stream, texts as keys.
    ///
    /// # Errors
    /// Those of texts that are no texts.
    pub(crate) fn encode(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let columns = batch.columns().iter().zip(&mut self.columns).map(|(column, dictionary)| match dictionary {
            Some(dictionary) => dictionary.encode(column),
            None => Ok(Arc::clone(column)),
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.wire), columns, &options)
    }
}

/// Bytes of the keys of a dictionary array, and of the values that its rows need at most: `value_bytes` for all values.
pub(crate) fn keyed_bytes(data: &ArrayData, value_bytes: usize) -> usize {
    let keys = make_array(data.clone());
    let Some(keys) = keys.as_any_dictionary_opt() else { return value_bytes };
    let key_bytes = keys.keys().to_data().get_slice_memory_size().unwrap_or_default();
    let lengths: Vec<usize> = match keys.values().data_type() {
        DataType::Utf8View => keys.values().as_string_view().views().iter().map(|view| *view as u32 as usize).collect(),
        DataType::Utf8 => keys.values().as_string::<i32>().offsets().lengths().collect(),
        DataType::LargeUtf8 => keys.values().as_string::<i64>().offsets().lengths().collect(),
        _ => return key_bytes + value_bytes,
    };
    if lengths.is_empty() {
        return key_bytes;
    }
    // A row of its own value takes the value and its offset.
    let needed = |position: usize| lengths.get(position).map_or(0, |length| size_of::<i32>() + length);
    let needed: usize = keys.normalized_keys().into_iter().map(needed).sum();
    key_bytes + needed.min(value_bytes)
}
