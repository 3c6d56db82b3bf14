//! The packed form of a column in memory: numbers in as few bits as their page needs, texts by a table of symbols.
//!
//! A page of numbers is 8,192 rows. It has a base, the least value of its rows that are not null, and a stride that divides the
//! distance of all its values from the base. Of each row it stores the number of strides above the base: in the FastLanes
//! layout (Afroozeh and Boncz, "The FastLanes Compression Layout", PVLDB 16(9), 2023, section 3) in blocks of 1,024 rows,
//! or, where neighbours are often equal, as runs. So a slice and a page decode by themselves, a single row too unless its page
//! has runs, and the bounds of a page are known without its rows.
//!
//! ```text
//!   image       | header | validity | descriptors of the pages | page 0 | page 1 | ...   each at a multiple of 64
//!   header      | "TPK1" | rows 4 | nulls 4 | bytes of a value 4 | image bytes 8 | zeros |                     64 bytes
//!   descriptor  | base 16 | stride 8 | most strides 8 | offset 8 | runs 2 | bits 1 | length bits 1 | empty 1 | .. |    48 bytes
//!   page        | block of numbers | block of numbers | ... |                               1,024 numbers of `bits` bits
//!   with runs   | blocks of the runs' numbers | blocks of the runs' lengths of `length bits` bits |
//! ```
//!
//! Numbers are little-endian. An empty page has nulls only. A page whose values are equal has 0 bits, and no bytes.
//!
//! Texts and bytes are compressed one by one, with a table of symbols for each column (`texts`).
//!
//! - `header`: headers of images
//! - `image`: images, whole or in pieces
//! - `lanes`: blocks of 1,024 numbers
//! - `number_set`: some numbers, and which of them a page may have
//! - `pack`: columns of numbers to images
//! - `page`: descriptors of pages of numbers
//! - `text_set`: some texts, found among packed ones
//! - `texts`: columns of texts
//! - `unpack`: images to columns of numbers
//! - `within`: tests packed numbers

mod header;
mod image;
mod lanes;
mod number_set;
mod pack;
mod page;
mod text_set;
mod texts;
mod unpack;
mod within;

use std::ops::{Range, RangeInclusive};

use arrow::array::{ArrayRef, BooleanArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::DataType;
use terrace_model::Result;

use image::Image;
pub use number_set::NumberSet;
pub use pack::{has_filled_nulls, with_filled_nulls};
pub use text_set::TextSet;
pub use texts::PackedTexts;
pub use unpack::PackedNumbers;
pub use within::NumberFilter;

/// First bytes of an image of numbers.
const MAGIC: [u8; 4] = *b"TPK1";
/// Bytes of the header.
const HEADER_BYTES: usize = 64;
/// Alignment of the parts of an image.
pub(super) const ALIGNMENT: usize = 64;
/// Where the packed form saves less than this share, unpacking costs more than the bytes are worth.
const LEAST_SAVED_SHARE: f64 = 0.1;

/// The image of a column in the packed form; `None` where it has none: see `docs/design/packed.md` for the types.
pub fn pack(values: &ArrayRef) -> Option<Vec<u8>> {
    pack::pack(values).or_else(|| texts::pack(values))
}

/// Bytes of the image that [`pack`] makes; an estimate for texts, which take longer to compress than to measure.
pub fn packed_bytes(values: &ArrayRef) -> Option<u64> {
    pack::packed_bytes(values).or_else(|| texts::estimated_bytes(values))
}

/// True when the packed form of a column is enough smaller than its plain one.
pub fn is_worth_packing(packed_bytes: u64, plain_bytes: u64) -> bool {
    packed_bytes as f64 <= plain_bytes as f64 * (1.0 - LEAST_SAVED_SHARE)
}

/// Where the pages of an image lie, so that some of them can be read of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct PageTable {
    /// Bytes before the first page: header, validity, symbols, descriptors.
    pub head_bytes: u64,
    /// (offset in the image, bytes) of each page.
    pub pages: Vec<(u64, u64)>,
}

/// A column in the packed form.
#[derive(Debug, Clone)]
pub enum PackedColumn {
    /// Numbers, or keys of a dictionary.
    Numbers(PackedNumbers),
    /// Texts or bytes.
    Texts(PackedTexts),
}

impl PackedColumn {
    /// A column of `rows` values of type `data_type` over an image. Fails with [`terrace_model::Error::Corrupt`], without the
    /// path, when the image is not one of such a column: then its pages lie inside of it, whatever else it holds.
    /// An image that a later version of Terrace made fails with [`terrace_model::Error::Unsupported`].
    pub fn open(image: Buffer, data_type: &DataType, rows: usize) -> Result<Self> {
        Self::over(Image::whole(image), data_type, rows)
    }

    /// Like [`PackedColumn::open`], but over pieces of an image of `len` bytes, each with its offset, ascending: its head, and
    /// pages. Rows of other pages are zero, or empty texts; their nulls are right.
    pub fn open_pieces(pieces: Vec<(usize, Buffer)>, len: usize, data_type: &DataType, rows: usize) -> Result<Self> {
        Self::over(Image::pieces(pieces, len)?, data_type, rows)
    }

    fn over(image: Image, data_type: &DataType, rows: usize) -> Result<Self> {
        match PackedTexts::is_image(image.head()) {
            true => PackedTexts::open(image, data_type, rows).map(Self::Texts),
            false => PackedNumbers::open(image, data_type, rows).map(Self::Numbers),
        }
    }

    /// Where its pages lie.
    pub fn page_table(&self) -> PageTable {
        match self {
            Self::Numbers(numbers) => numbers.page_table(),
            Self::Texts(texts) => texts.page_table(),
        }
    }

    /// Number of nulls.
    pub fn null_count(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.null_count(),
            Self::Texts(texts) => texts.null_count(),
        }
    }

    /// Bytes of the texts of each page; `None` for numbers.
    pub fn text_bytes(&self) -> Option<impl Iterator<Item = u64>> {
        match self {
            Self::Numbers(_) => None,
            Self::Texts(texts) => Some(texts.text_bytes()),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.rows(),
            Self::Texts(texts) => texts.rows(),
        }
    }

    /// The type of the values.
    pub fn data_type(&self) -> &DataType {
        match self {
            Self::Numbers(numbers) => numbers.data_type(),
            Self::Texts(texts) => texts.data_type(),
        }
    }

    /// The values of a range of rows.
    pub fn unpack(&self, rows: Range<usize>) -> Result<ArrayRef> {
        match self {
            Self::Numbers(numbers) => numbers.unpack(rows),
            Self::Texts(texts) => texts.unpack(rows, None),
        }
    }

    /// Like [`PackedColumn::unpack`], but only selected rows have to be right: others may be empty texts.
    pub fn unpack_selected(&self, rows: Range<usize>, selected: &BooleanBuffer) -> Result<ArrayRef> {
        match self {
            Self::Numbers(numbers) => numbers.unpack(rows),
            Self::Texts(texts) => texts.unpack(rows, Some(selected)),
        }
    }

    /// The values of a range of rows of numbers, in a type of at least as many bytes and the same unit and scale.
    pub fn unpack_as(&self, rows: Range<usize>, to: &DataType) -> Result<ArrayRef> {
        match self {
            Self::Numbers(numbers) => numbers.unpack_as(rows, to),
            Self::Texts(texts) => texts.unpack(rows, None),
        }
    }

    /// The least and the greatest value of each page of numbers, as [`PackedNumbers::bounds`]; `None` for texts.
    pub fn bounds(&self) -> Option<impl Iterator<Item = Option<(i128, i128)>>> {
        match self {
            Self::Numbers(numbers) => Some(numbers.bounds()),
            Self::Texts(_) => None,
        }
    }

    /// For each of a range of rows of numbers, whether its value is in a range, as [`PackedNumbers::within`]; `None` for texts.
    pub fn within(&self, rows: Range<usize>, values: &RangeInclusive<i128>) -> Option<Result<BooleanArray>> {
        match self {
            Self::Numbers(numbers) => Some(numbers.within(rows, values)),
            Self::Texts(_) => None,
        }
    }

    /// For each of a range of rows of numbers, whether its value is one of some, as [`PackedNumbers::among`]; `None` for texts.
    pub fn among_numbers(&self, rows: Range<usize>, values: &NumberSet) -> Option<Result<BooleanArray>> {
        match self {
            Self::Numbers(numbers) => Some(numbers.among(rows, values)),
            Self::Texts(_) => None,
        }
    }

    /// For each of a range of rows of texts or bytes, whether it is one of some, null for null; `None` for numbers.
    pub fn among_texts(&self, rows: Range<usize>, texts: &TextSet) -> Option<Result<BooleanArray>> {
        match self {
            Self::Numbers(_) => None,
            Self::Texts(column) => Some(column.among(rows, texts)),
        }
    }

    /// For each of a range of rows of numbers, whether its value passes a filter, as [`PackedNumbers::filtered`]; `None` for
    /// texts.
    pub fn filtered<F: NumberFilter>(&self, rows: Range<usize>, filter: &F) -> Option<Result<BooleanArray>> {
        match self {
            Self::Numbers(numbers) => numbers.filtered(rows, filter),
            Self::Texts(_) => None,
        }
    }

    /// The nulls of a range of rows, which lie inside of the column; `None` without any.
    pub fn nulls_of(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        match self {
            Self::Numbers(numbers) => numbers.nulls_of(rows),
            Self::Texts(texts) => texts.nulls_of(rows),
        }
    }
}

#[cfg(test)]
mod tests;
