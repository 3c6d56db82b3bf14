//! Numbers for the texts of columns, the same for all chunks that one partition of a scan reads.
//!
//! Chunks have dictionaries of their own, so equal texts have different keys in them. Grouping needs one number for each text.
//! A number is looked up once for each value of a chunk's dictionary, not for each row.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::StringViewArray;
use parking_lot::Mutex;
use terrace_tier_store::tier::codec::Dictionary;

/// Most texts of a column that get codes.
pub(crate) const MOST_TEXTS: usize = 4095;
/// Most bytes of the texts of a column.
const MOST_TEXT_BYTES: usize = 1 << 20;
/// Estimated bytes of a text beside its own: the entry of the table, and two pointers with a count.
const ENTRY_BYTES: usize = 64;

/// The code of null.
pub(super) const NULL_CODE: u16 = 0;

/// The codes that a partition of a scan shares with the operator above it.
pub(crate) type SharedCodes = Arc<Mutex<TextCodes>>;

/// The codes of the texts of some columns.
#[derive(Debug)]
pub(crate) struct TextCodes {
    columns: Vec<ColumnCodes>,
    given_up: bool,
}

/// The codes of the texts of one column: 0 for null, and from 1 on in the order in which texts were met.
#[derive(Debug, Default)]
pub(super) struct ColumnCodes {
    codes: HashMap<Arc<str>, u16>,
    texts: Vec<Arc<str>>,
    text_bytes: usize,
}

impl TextCodes {
    /// No codes yet, for so many columns.
    pub(super) fn new(columns: usize) -> Self {
        Self { columns: (0..columns).map(|_| ColumnCodes::default()).collect(), given_up: false }
    }

    /// Has the scan return texts from now on.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether the scan returns texts from now on.
    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Number of codes of a column, with that of null; all are less.
    pub(crate) fn count(&self, column: usize) -> usize {
        1 + self.columns.get(column).map_or(0, |column| column.texts.len())
    }

    /// The texts of a column by code; the first one is null.
    pub(crate) fn texts(&self, column: usize) -> StringViewArray {
        let texts = self.columns.get(column).into_iter().flat_map(|column| &column.texts);
        std::iter::once(None).chain(texts.map(|text| Some(&**text))).collect()
    }

    /// Estimated bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.columns.iter().map(|column| column.text_bytes + column.texts.len() * ENTRY_BYTES).sum()
    }

    pub(super) fn column_mut(&mut self, column: usize) -> Option<&mut ColumnCodes> {
        self.columns.get_mut(column)
    }
}

impl ColumnCodes {
    /// The code of a text; `None` when there are too many, or too long ones.
    pub(super) fn code(&mut self, text: &str) -> Option<u16> {
        if let Some(code) = self.codes.get(text) {
            return Some(*code);
        }
        let has_room = self.texts.len() < MOST_TEXTS && self.text_bytes + text.len() <= MOST_TEXT_BYTES;
        let code = u16::try_from(self.texts.len() + 1).ok().filter(|_| has_room)?;
        let text: Arc<str> = text.into();
        self.text_bytes += text.len();
        self.texts.push(Arc::clone(&text));
        self.codes.insert(text, code);
        Some(code)
    }

    /// The codes of the values of a dictionary, by key; `None` when there are too many.
    pub(super) fn codes_of_keys(&mut self, dictionary: &Dictionary) -> Option<Vec<u16>> {
        dictionary.values().iter().map(|text| self.code(text.unwrap_or_default())).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn equal_texts_of_different_dictionaries_have_one_code() {
        let mut codes = TextCodes::new(1);
        let dictionary = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Dictionary>();
        let column = codes.column_mut(0).unwrap();
        assert_eq!(column.codes_of_keys(&dictionary(&["a", "b", ""])), Some(vec![1, 2, 3]));
        assert_eq!(column.codes_of_keys(&dictionary(&["", "c", "a"])), Some(vec![3, 4, 1]));
        assert_eq!(codes.count(0), 5);
        let texts = codes.texts(0);
        assert_eq!(texts.iter().collect::<Vec<_>>(), [None, Some("a"), Some("b"), Some(""), Some("c")]);
    }

    #[test]
    fn too_many_or_too_long_texts_get_no_code() {
        let mut codes = TextCodes::new(2);
        let many = codes.column_mut(0).unwrap();
        for text in 0..MOST_TEXTS {
            assert_eq!(many.code(&text.to_string()), Some(text as u16 + 1));
        }
        assert_eq!(many.code("one more"), None);
        assert_eq!(many.code("17"), Some(18));
        let long = codes.column_mut(1).unwrap();
        assert_eq!(long.code(&"x".repeat(MOST_TEXT_BYTES)), Some(1));
        assert_eq!(long.code("y"), None);
        assert!(codes.bytes() > MOST_TEXT_BYTES);
    }
}
