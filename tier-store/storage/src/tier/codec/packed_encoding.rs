//! Columns that are stored in the packed form: what their numbers stand for, where their pages lie, and how their images would be
//! cut in the plain form.
//!
//! The layout of a packed home is the one of its plain image, which a copy in memory may have: all sizes in the plain form
//! follow from it. A [`PackedEntry`] is what a file records of a packed column; the rest is read from its image, so a header
//! can say nothing of a column that its bytes do not.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use terrace_model::Result;

use super::narrow::narrower_of_width;
use super::packed::ALIGNMENT;
use super::{ColumnLayout, Dictionary, Encoding, PackedColumn, PageTable, checksums, corrupt, image_bytes};
use crate::table::SegmentHome;

/// Bytes of a view.
const VIEW_BYTES: usize = 16;

/// How a column in the packed form is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PackedEncoding {
    /// Bytes of a value where values are narrower than the declared type, or of a key; else 0.
    pub width: u8,
    /// The values of the keys, where keys are stored.
    pub dictionary: Option<Dictionary>,
    /// Where the pages lie in the stored bytes.
    pub pages: PageTable,
}

impl PackedEncoding {
    /// The type of the stored values of a column declared as `declared`.
    pub(super) fn stored_type(&self, declared: &DataType) -> DataType {
        match (&self.dictionary, self.width) {
            (Some(_), 1) => DataType::UInt8,
            (Some(_), _) => DataType::UInt16,
            (None, width) => narrower_of_width(declared, width).unwrap_or_else(|| declared.clone()),
        }
    }

    /// Fails where no column declared as `declared` is stored like this.
    fn check(&self, declared: &DataType) -> Result<()> {
        let fits = match (&self.dictionary, self.width) {
            (Some(_), width) => matches!(width, 1 | 2) && *declared == DataType::Utf8View,
            (None, 0) => true,
            (None, width) => narrower_of_width(declared, width).is_some(),
        };
        match fits {
            true => Ok(()),
            false => Err(corrupt(format!("values of {} bytes do not stand for type {declared}", self.width))),
        }
    }
}

/// A packed column as its file records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PackedEntry {
    /// Position of the column.
    pub(super) column: u32,
    /// First byte of its image, from the start of the file.
    pub(super) offset: u64,
    /// Bytes of its image.
    pub(super) bytes: u64,
    /// [`PackedEncoding::width`].
    width: u8,
    /// [`PackedEncoding::dictionary`].
    dictionary: Option<Dictionary>,
    /// For each page of texts, bytes of those that are longer than a view holds.
    long_bytes: Vec<u64>,
}

impl PackedEntry {
    /// The entry of a column in its stored type, declared as `declared`, whose image of `bytes` bytes lies at `offset`.
    pub(super) fn new(position: usize, column: &ArrayRef, declared: &DataType, offset: usize, bytes: usize) -> Self {
        let stored = column.data_type();
        let width = match stored {
            DataType::Dictionary(key, _) => key.primitive_width(),
            other if other == declared => None,
            other => other.primitive_width(),
        };
        Self {
            column: position as u32,
            offset: offset as u64,
            bytes: bytes as u64,
            width: width.unwrap_or(0) as u8,
            dictionary: Dictionary::from_encoded(column),
            long_bytes: long_bytes(column).collect(),
        }
    }

    /// The home of the column, declared as `declared`, whose bytes in the file are `stored`. Nothing is trusted: fails with
    /// [`terrace_model::Error::Corrupt`] or [`terrace_model::Error::Unsupported`], without the path, when they are not those
    /// of such a column of `rows` rows.
    pub(super) fn home(&self, declared: &DataType, rows: usize, stored: &[u8]) -> Result<SegmentHome> {
        let dictionary = self.dictionary.clone();
        let encoding = PackedEncoding { width: self.width, dictionary, pages: PageTable::default() };
        encoding.check(declared)?;
        // A copy, at an aligned address.
        let column = PackedColumn::open(Buffer::from(stored), &encoding.stored_type(declared), rows)?;
        let layout = self.plain_layout(&column)?;
        let validity_bytes = layout.buffers.first().map_or(0, |(_, len)| *len);
        let encoding = PackedEncoding { pages: column.page_table(), ..encoding };
        let widened = declared.primitive_width().filter(|_| encoding.width > 0 && encoding.dictionary.is_none());
        let mut home = SegmentHome {
            offset: self.offset,
            len: stored.len() as u64,
            encoding: Encoding::Packed(Box::new(encoding)),
            wide_bytes: 0,
            packed_bytes: None,
            layout,
            checksums: checksums(stored),
        };
        home.wide_bytes = match widened {
            Some(width) => validity_bytes.next_multiple_of(ALIGNMENT as u64) + (rows * width) as u64,
            None => image_bytes(&home),
        };
        Ok(home)
    }

    /// The layout of the plain image of the column.
    fn plain_layout(&self, column: &PackedColumn) -> Result<ColumnLayout> {
        let text_bytes: Vec<u64> = column.text_bytes().map_or_else(Vec::new, Iterator::collect);
        let fits = self.long_bytes.len() == text_bytes.len()
            && self.long_bytes.iter().zip(&text_bytes).all(|(long, all)| long <= all);
        let width = value_bytes(column.data_type()).filter(|_| fits);
        let width = width.ok_or_else(|| corrupt("its pages have fewer texts than its entry says"))?;
        let rows = column.rows();
        let nulls = column.null_count();
        let fixed = fixed_bytes(rows, nulls, width);
        Ok(ColumnLayout {
            nodes: vec![(rows as u32, nulls as u32)],
            buffers: placed(fixed.into_iter().chain(self.long_bytes.iter().copied())),
            variadic: if text_bytes.is_empty() { Vec::new() } else { vec![text_bytes.len() as u32] },
        })
    }
}

/// Bytes of the plain image of a column in its stored type; `None` for a type that has no packed form.
pub(super) fn plain_bytes(column: &ArrayRef) -> Option<u64> {
    let fixed = fixed_bytes(column.len(), column.null_count(), value_bytes(column.data_type())?);
    placed(fixed.into_iter().chain(long_bytes(column))).into_iter().map(|(offset, len)| offset + len).max()
}

/// Bytes of the texts of each page that are longer than a view holds; nothing for other columns.
fn long_bytes(column: &ArrayRef) -> impl Iterator<Item = u64> {
    let is_text = matches!(column.data_type(), DataType::Utf8View | DataType::BinaryView);
    let buffers = if is_text { column.to_data().buffers().to_vec() } else { Vec::new() };
    buffers.into_iter().skip(1).map(|texts| texts.len() as u64)
}

/// Bytes of the validity and of the values.
fn fixed_bytes(rows: usize, nulls: usize, width: usize) -> [u64; 2] {
    let validity = if nulls > 0 { rows.div_ceil(8) } else { 0 };
    [validity as u64, (rows * width) as u64]
}

/// Bytes of a stored value, or of its view.
fn value_bytes(stored: &DataType) -> Option<usize> {
    match stored {
        DataType::Utf8View | DataType::BinaryView => Some(VIEW_BYTES),
        DataType::Dictionary(key, _) => key.primitive_width(),
        other => other.primitive_width(),
    }
}

/// Buffers of so many bytes, one behind the other, each at a multiple of 64.
fn placed(lens: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut end = 0_u64;
    let place = |len: u64| {
        let start = if len > 0 { end.next_multiple_of(ALIGNMENT as u64) } else { 0 };
        end = end.max(start + len);
        (start, len)
    };
    lens.map(place).collect()
}
