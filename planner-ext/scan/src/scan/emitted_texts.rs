//! The form in which a scan emits texts and bytes, for rows that leave the server as such.
//!
//! The last operator of a plan is asked for a form. Where it is a scan, the threads of queries make it, from the stored form where that
//! is near: plain texts are copied ([`plain_texts`](super::plain_texts)), keys of a stored dictionary stay keys, of one dictionary for each batch.
//! Operators know views only, so all else keeps them.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, DictionaryArray, Int32Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef, UInt8Type, UInt16Type};
use datafusion::common::Result;
use terrace_ipc::{TextDictionary, flat_texts, keyed_text_type};
use terrace_tier_store::tier::codec::Dictionary;

use super::plain_texts::{plain_array, plain_type};

/// The form of texts and bytes in the batches of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EmittedTexts {
    /// Texts and bytes as views.
    #[default]
    Views,
    /// Texts and bytes as plain arrays.
    Plain,
    /// Texts as keys of dictionaries, [`keyed_text_type`]; bytes as views.
    Keys,
}

impl EmittedTexts {
    /// The schema of the output; `scanned` has views.
    pub(super) fn schema(self, scanned: Schema) -> Schema {
        let emitted = |field: &FieldRef| match self.emitted_type(field.data_type()) {
            Some(data_type) => Arc::new(field.as_ref().clone().with_data_type(data_type)),
            None => Arc::clone(field),
        };
        let fields: Vec<FieldRef> = scanned.fields().iter().map(emitted).collect();
        Schema::new_with_metadata(fields, scanned.metadata)
    }

    /// The type in place of a scanned one; `None` where it stays.
    fn emitted_type(self, scanned: &DataType) -> Option<DataType> {
        match (self, scanned) {
            (Self::Plain, _) => plain_type(scanned),
            (Self::Keys, DataType::Utf8View) => Some(keyed_text_type()),
            _ => None,
        }
    }

    /// A scanned column in this form; it is shared where it has it.
    pub(super) fn array(self, scanned: &ArrayRef) -> Result<ArrayRef> {
        match (self, scanned.data_type()) {
            (Self::Plain, _) => plain_array(scanned),
            (Self::Keys, DataType::Utf8View) => Ok(TextDictionary::new().encode(scanned)?),
            _ => Ok(Arc::clone(scanned)),
        }
    }

    /// Scanned rows in this form, which `schema` has.
    pub(super) fn batch(self, scanned: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let columns = scanned.columns().iter().map(|column| self.array(column)).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(scanned.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
    }
}

/// Stored keys with their dictionary, as [`EmittedTexts::Keys`]; `None` when `keys` is of no type of stored keys.
pub(super) fn stored_keys(dictionary: &Dictionary, keys: &ArrayRef) -> Result<Option<ArrayRef>> {
    let keys: Int32Array = match keys.data_type() {
        DataType::UInt8 => keys.as_primitive::<UInt8Type>().unary(i32::from),
        DataType::UInt16 => keys.as_primitive::<UInt16Type>().unary(i32::from),
        _ => return Ok(None),
    };
    Ok(Some(Arc::new(DictionaryArray::try_new(keys, flat_texts(dictionary.values())?)?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use arrow::array::{BinaryViewArray, Int64Array, StringViewArray, UInt8Array};
    use arrow::compute::cast;
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn views_take_the_form_and_all_else_stays() {
        let fields = [("s", DataType::Utf8View), ("b", DataType::BinaryView), ("i", DataType::Int64)];
        let note = |name: &str| HashMap::from([("note".to_owned(), name.to_owned())]);
        let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true).with_metadata(note(name)));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringViewArray::from(vec![Some("a text that is not short"), None, Some("b")])),
            Arc::new(BinaryViewArray::from_iter([None, Some(&[0xff_u8; 20][..]), Some(&[][..])])),
            Arc::new(Int64Array::from(vec![1, 2, 3])),
        ];
        let views = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        for (form, types) in [
            (EmittedTexts::Views, [DataType::Utf8View, DataType::BinaryView, DataType::Int64]),
            (EmittedTexts::Plain, [DataType::Utf8, DataType::Binary, DataType::Int64]),
            (EmittedTexts::Keys, [keyed_text_type(), DataType::BinaryView, DataType::Int64]),
        ] {
            let emitted = Arc::new(form.schema(schema.as_ref().clone()));
            for rows in [views.slice(0, 3), views.slice(1, 2), views.slice(3, 0)] {
                let batch = form.batch(&rows, &emitted).unwrap();
                assert_eq!(batch.num_rows(), rows.num_rows());
                for (found, given) in batch.columns().iter().zip(rows.columns()) {
                    assert_eq!(&cast(found, given.data_type()).unwrap(), given);
                }
            }
            let found: Vec<&DataType> = emitted.fields().iter().map(|field| field.data_type()).collect();
            assert_eq!(found, types.iter().collect::<Vec<_>>());
            assert!(
                emitted.fields().iter().all(|field| field.is_nullable() && field.metadata()["note"] == *field.name())
            );
        }
    }

    #[test]
    fn stored_keys_keep_their_values() {
        let dictionary: Dictionary = ["x", "a text that is not short"].map(str::to_owned).into_iter().collect();
        let keys: ArrayRef = Arc::new(UInt8Array::from(vec![Some(1), None, Some(0), Some(1)]));
        let emitted = stored_keys(&dictionary, &keys).unwrap().unwrap();
        assert_eq!(emitted.data_type(), &keyed_text_type());
        let texts = cast(&emitted, &DataType::Utf8View).unwrap();
        let long = Some("a text that is not short");
        assert_eq!(texts.as_string_view(), &StringViewArray::from(vec![long, None, Some("x"), long]));
        let none: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        assert!(stored_keys(&dictionary, &none).unwrap().is_none());
    }
}
