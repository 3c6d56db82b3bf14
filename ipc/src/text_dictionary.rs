//! Texts as keys of a dictionary, for clients that ask for dictionaries.
//!
//! A [`TextDictionary`] belongs to one column of one stream of rows. Values that it has keep their keys in later rows, so that
//! the dictionary of a column with few values is sent once. One that is large beside the next rows begins anew with them: a column of
//! many values would else repeat all of those before in front of its rows. What is left out is in no row, so a dictionary has
//! at most the values of its rows and 8 bytes of others for each row, or a few kilobytes.

use std::sync::Arc;

use arrow::{
    array::{
        AnyDictionaryArray, Array, ArrayRef, AsArray, DictionaryArray, Int32Array, StringArrayType,
        StringDictionaryBuilder,
    },
    compute::{CastOptions, cast_with_options},
    datatypes::{DataType, Int32Type},
    error::ArrowError,
};

/// A dictionary with more bytes for each of the next rows begins anew with them: twice as many as their keys have.
const KEPT_ROW_BYTES: usize = 8;
/// A dictionary with no more bytes is kept for few rows, too.
const LEAST_KEPT_BYTES: usize = 4 << 10;
/// A dictionary with more bytes begins anew with any rows.
const MOST_KEPT_BYTES: usize = 64 << 10;

/// The type of [`TextDictionary::encode`]: plain texts, and keys that all readers of Arrow take, which unsigned ones are not.
pub fn keyed_text_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The values of a column so far, each with its key.
#[derive(Default)]
pub struct TextDictionary {
    /// Its rows are those of one call.
    texts: StringDictionaryBuilder<Int32Type>,
    /// The key of the next new value.
    next: i32,
    /// Bytes of the values, and of their offsets.
    bytes: usize,
}

impl TextDictionary {
    /// A dictionary without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next rows of the column as keys, of [`keyed_text_type`]; nulls are null keys. `texts` are plain, views, or keys of another
    /// dictionary, of which only values in use are taken over.
    ///
    /// # Errors
    /// When they are no texts, or more than two gigabytes.
    pub fn encode(&mut self, texts: &ArrayRef) -> Result<ArrayRef, ArrowError> {
        if self.bytes > (KEPT_ROW_BYTES * texts.len()).clamp(LEAST_KEPT_BYTES, MOST_KEPT_BYTES) {
            *self = Self::default();
        }
        let keyed = match texts.data_type() {
            DataType::Utf8View => self.append(texts.as_string_view())?,
            DataType::Utf8 => self.append(texts.as_string::<i32>())?,
            DataType::LargeUtf8 => self.append(texts.as_string::<i64>())?,
            _ => match texts.as_any_dictionary_opt() {
                Some(given) => self.append_keys(given)?,
                None => self.append(flat(texts)?.as_string::<i32>())?,
            },
        };
        Ok(Arc::new(keyed))
    }

    /// Appends a row; returns its key.
    fn append_text(&mut self, text: &str) -> Result<i32, ArrowError> {
        let bytes = self.bytes + text.len() + size_of::<i32>();
        // The builder panics where offsets have no room for a value.
        if i32::try_from(bytes).is_err() {
            return Err(ArrowError::OffsetOverflowError(bytes));
        }
        let key = self.texts.append(text)?;
        if key == self.next {
            self.next += 1;
            self.bytes = bytes;
        }
        Ok(key)
    }

    fn append<'a>(&mut self, texts: impl StringArrayType<'a>) -> Result<DictionaryArray<Int32Type>, ArrowError> {
        for text in texts.iter() {
            match text {
                Some(text) => {
                    self.append_text(text)?;
                }
                None => self.texts.append_null(),
            }
        }
        Ok(self.texts.finish_preserve_values())
    }

    fn append_keys(&mut self, given: &dyn AnyDictionaryArray) -> Result<DictionaryArray<Int32Type>, ArrowError> {
        let values = given.values();
        match values.data_type() {
            DataType::Utf8View => self.translate(given, values.as_string_view()),
            DataType::Utf8 => self.translate(given, values.as_string::<i32>()),
            DataType::LargeUtf8 => self.translate(given, values.as_string::<i64>()),
            _ => self.translate(given, flat(values)?.as_string::<i32>()),
        }
    }

    /// Keys of this dictionary in place of the keys of `given`, whose values are `texts`. Each value in use is looked up once.
    fn translate<'a>(
        &mut self,
        given: &dyn AnyDictionaryArray,
        texts: impl StringArrayType<'a>,
    ) -> Result<DictionaryArray<Int32Type>, ArrowError> {
        // A value may be null as well as a key.
        let nulls = given.logical_nulls();
        let mut known: Vec<Option<i32>> = vec![None; texts.len()];
        let mut keys = vec![0; given.len()];
        let positions = if known.is_empty() { Vec::new() } else { given.normalized_keys() };
        for (row, (key, position)) in keys.iter_mut().zip(positions).enumerate() {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            if let Some(known) = known.get_mut(position) {
                *key = match *known {
                    Some(key) => key,
                    None => *known.insert(self.append_text(texts.value(position))?),
                };
            }
        }
        // The builder's rows are the values that were looked up.
        let (_, values) = self.texts.finish_preserve_values().into_parts();
        DictionaryArray::try_new(Int32Array::try_new(keys.into(), nulls)?, values)
    }
}

fn flat(texts: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    cast_with_options(texts, &DataType::Utf8, &CastOptions { safe: false, ..CastOptions::default() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow::array::{Int8Array, LargeStringArray, RunArray, StringArray, StringViewArray, UInt16Array};
    use arrow::compute::cast;

    use super::*;

    fn texts(keyed: &ArrayRef) -> Vec<Option<String>> {
        let plain = cast(keyed, &DataType::Utf8).unwrap();
        plain.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }

    fn values(keyed: &ArrayRef) -> Vec<&str> {
        keyed.as_any_dictionary_opt().unwrap().values().as_string::<i32>().iter().flatten().collect()
    }

    #[test]
    fn texts_of_all_types_become_keys() {
        let given = vec![Some("b"), None, Some(""), Some("a text that is not short"), Some("b")];
        let plain: ArrayRef = Arc::new(StringArray::from(given.clone()));
        let runs: RunArray<Int32Type> = given.iter().copied().collect();
        let forms: [ArrayRef; 5] = [
            Arc::clone(&plain),
            Arc::new(StringViewArray::from(given.clone())),
            Arc::new(LargeStringArray::from(given.clone())),
            cast(&plain, &DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Utf8))).unwrap(),
            Arc::new(runs),
        ];
        let expected: Vec<_> = given.iter().map(|text| text.map(str::to_owned)).collect();
        let mut dictionary = TextDictionary::new();
        for form in forms {
            for (offset, rows) in [(0, 5), (1, 3), (5, 0)] {
                let keyed = dictionary.encode(&form.slice(offset, rows)).unwrap();
                assert_eq!(keyed.data_type(), &keyed_text_type());
                assert_eq!(texts(&keyed), expected[offset..offset + rows], "{}", form.data_type());
                assert_eq!(values(&keyed), ["b", "", "a text that is not short"], "each text is there once");
                keyed.to_data().validate_full().unwrap();
            }
        }
        let nothing: ArrayRef = Arc::new(StringViewArray::new_null(3));
        assert_eq!(texts(&TextDictionary::new().encode(&nothing).unwrap()), vec![None; 3]);
        let numbers: ArrayRef = Arc::new(DictionaryArray::new(Int8Array::from(vec![None, None]), plain.slice(0, 0)));
        assert_eq!(texts(&TextDictionary::new().encode(&numbers).unwrap()), vec![None; 2]);
    }

    #[test]
    fn keys_of_other_dictionaries_are_translated() {
        let given = |keys: Vec<Option<u16>>, values: Vec<Option<&str>>| -> ArrayRef {
            Arc::new(DictionaryArray::new(UInt16Array::from(keys), Arc::new(StringViewArray::from(values))))
        };
        let mut dictionary = TextDictionary::new();
        let first = given(vec![Some(2), Some(0), None, Some(2)], vec![Some("x"), Some("unused"), Some("y")]);
        let first = dictionary.encode(&first).unwrap();
        // A value may be null, and be there twice.
        let second = given(vec![Some(0), Some(1), Some(2), Some(3)], vec![Some("z"), None, Some("y"), Some("z")]);
        let second = dictionary.encode(&second).unwrap();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(texts(&first), [text("y"), text("x"), None, text("y")]);
        assert_eq!(texts(&second), [text("z"), None, text("y"), text("z")]);
        assert_eq!(values(&first), ["y", "x"]);
        assert_eq!(values(&second), ["y", "x", "z"], "keys of earlier rows stay");
    }

    #[test]
    fn a_dictionary_that_is_large_begins_anew() {
        let mut dictionary = TextDictionary::new();
        for round in 0..5 {
            let all: Vec<String> = (0..8192).map(|row| format!("text {row} of round {round}")).collect();
            let all: ArrayRef = Arc::new(StringViewArray::from_iter_values(&all));
            let keyed = dictionary.encode(&all).unwrap();
            assert_eq!(values(&keyed).len(), 8192, "round {round}");
            assert_eq!(texts(&keyed), texts(&all));
        }
    }

    #[test]
    fn few_rows_come_with_few_values_of_others() {
        let mut dictionary = TextDictionary::new();
        let rows = |from: usize, count: usize| -> ArrayRef {
            Arc::new(StringViewArray::from_iter_values((from..from + count).map(|row| format!("text {row}"))))
        };
        let mut most = 0;
        for from in (0..5000).step_by(50) {
            let keyed = dictionary.encode(&rows(from, 50)).unwrap();
            assert_eq!(texts(&keyed), texts(&rows(from, 50)));
            most = most.max(values(&keyed).len());
        }
        assert!((100..500).contains(&most), "{most} values");
    }
}
