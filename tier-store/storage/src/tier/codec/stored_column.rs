//! Columns of chunks as a tier stores them, and as scans take them.
//!
//! A scan takes slices in the declared type. Numbers are widened slice by slice, while the slice is in the processor's
//! cache; so are keys replaced by the texts of their dictionary, and packed numbers unpacked.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer};
use arrow::compute::{concat, is_null};
use arrow::datatypes::DataType;
use terrace_model::Result;

use super::compact::paged;
use super::convert::convert;
use super::packed::{NumberFilter, NumberSet, PackedColumn, TextSet, has_filled_nulls, pack, packed_bytes};
use super::{
    ColumnLayout, Dictionary, Encoding, Form, corrupt, decode_column, decode_copy, decode_written, decompressed,
    image_bytes, slice_column,
};
use crate::table::SegmentHome;

/// A column of a chunk in memory, perhaps in a narrower type than declared, perhaps packed, perhaps a window of its rows.
#[derive(Debug, Clone)]
pub struct StoredColumn {
    stored: Stored,
    rows: usize,
    meaning: Meaning,
}

/// What a column has of its rows.
#[derive(Debug, Clone)]
enum Stored {
    /// The rows from `first` on, in a window of the column.
    Window { array: ArrayRef, first: usize },
    /// All rows, packed, or the rows of some pages.
    Packed(PackedColumn),
}

/// How the stored values relate to those of the column.
#[derive(Debug, Clone)]
enum Meaning {
    /// They are the values, in the declared type.
    Declared,
    /// They are the values, in a narrower type than this declared one.
    Narrow(DataType),
    /// They are keys into this dictionary.
    Keys(Dictionary),
}

impl StoredColumn {
    /// A column in its declared type.
    pub fn plain(array: ArrayRef) -> Self {
        Self::all_rows(array, Meaning::Declared)
    }

    fn all_rows(array: ArrayRef, meaning: Meaning) -> Self {
        Self { rows: array.len(), stored: Stored::Window { array, first: 0 }, meaning }
    }

    /// Turns the column into a window of a column of `rows` rows, from row `first` on.
    pub(super) fn into_window(self, first: usize, rows: usize) -> Self {
        let stored = match self.stored {
            Stored::Window { array, .. } => Stored::Window { array, first },
            packed @ Stored::Packed(_) => packed,
        };
        Self { stored, rows, ..self }
    }

    /// Decodes the column whose stored bytes are `stored`. Nothing is trusted: all that Arrow promises is checked, of a packed
    /// column when it is unpacked.
    pub fn decode(home: &SegmentHome, declared: &DataType, rows: usize, stored: &Buffer) -> Result<Self> {
        if home.is_packed() {
            let column = Self::open_packed(home, declared, rows, stored)?;
            if let Meaning::Keys(dictionary) = &column.meaning {
                dictionary.check_keys(&column.stored_slice(0, rows)?)?;
            }
            return Ok(column);
        }
        Self::decode_plain(home, declared, rows, &decompressed(home, stored.clone(), &Arc::default())?)
    }

    /// Decodes the column whose bytes were decompressed by [`decompressed`]: in the form of its home.
    ///
    /// # Safety
    ///
    /// The bytes are those of a valid column that was written at `home`: they were just written, or their checksums were
    /// compared with the home's, which were taken when the column was written or checked ([`StoredColumn::decode`]).
    pub unsafe fn decode_image(home: &SegmentHome, declared: &DataType, rows: usize, bytes: &Buffer) -> Result<Self> {
        if home.is_packed() {
            return Self::open_packed(home, declared, rows, bytes);
        }
        // SAFETY: the caller promises valid bytes.
        unsafe { Self::decode_with_layout(&home.encoding, &home.layout, declared, rows, bytes) }
    }

    /// Like [`StoredColumn::decode_image`], but for bytes whose buffers have another layout than in the file.
    ///
    /// # Safety
    ///
    /// As for [`StoredColumn::decode_image`].
    pub(super) unsafe fn decode_with_layout(
        encoding: &Encoding,
        layout: &ColumnLayout,
        declared: &DataType,
        rows: usize,
        stored: &Buffer,
    ) -> Result<Self> {
        // SAFETY: the caller promises valid bytes.
        let array = unsafe { decode_written(&encoding.stored_type(declared), rows, layout, stored)? };
        Self::from_checked_array(array, encoding, declared)
    }

    /// Like [`StoredColumn::decode_image`], but for an image in the plain form, and offsets and views are not checked a second time.
    ///
    /// # Safety
    ///
    /// `copy` has the bytes of a plain image that was decoded, with the layout of `home`.
    pub(crate) unsafe fn decode_copied(
        home: &SegmentHome,
        declared: &DataType,
        rows: usize,
        copy: &Buffer,
    ) -> Result<Self> {
        // SAFETY: the caller promises a copy of a decoded image.
        let array = unsafe { decode_copy(&home.encoding.stored_type(declared), rows, &home.layout, copy)? };
        Ok(Self::from_array(array, &home.encoding, declared))
    }

    /// Builds the column after checking that every key has a value in the dictionary.
    fn from_checked_array(array: ArrayRef, encoding: &Encoding, declared: &DataType) -> Result<Self> {
        encoding.dictionary().map_or(Ok(()), |dictionary| dictionary.check_keys(&array))?;
        Ok(Self::from_array(array, encoding, declared))
    }

    fn from_array(array: ArrayRef, encoding: &Encoding, declared: &DataType) -> Self {
        let meaning = Meaning::of_type(array.data_type(), encoding, declared);
        Self::all_rows(array, meaning)
    }

    /// The image of the column in the packed form; `None` where it has none ([`pack`]), or is a window.
    pub fn packed_image(&self) -> Option<Vec<u8>> {
        match &self.stored {
            Stored::Window { array, .. } if array.len() == self.rows => pack(array),
            _ => None,
        }
    }

    /// The column over its image in the packed form. Fails with [`terrace_model::Error::Corrupt`], without the path, when the
    /// image is not one of the column at `home`.
    pub fn open_packed(home: &SegmentHome, declared: &DataType, rows: usize, image: &Buffer) -> Result<Self> {
        let packed = PackedColumn::open(image.clone(), &home.encoding.stored_type(declared), rows)?;
        Self::over_packed(home, declared, packed)
    }

    /// Like [`StoredColumn::open_packed`], but over pieces of the bytes of a packed home, each with its offset in them: rows of
    /// pages that are not among these are zero, or empty texts.
    pub(super) fn open_packed_pieces(
        home: &SegmentHome,
        declared: &DataType,
        rows: usize,
        pieces: Vec<(usize, Buffer)>,
    ) -> Result<Self> {
        let len = usize::try_from(home.len).map_err(|_| corrupt("it is larger than memory"))?;
        let packed = PackedColumn::open_pieces(pieces, len, &home.encoding.stored_type(declared), rows)?;
        // Which pieces were read follows from the home. Pages elsewhere would be taken for pages that nobody wanted.
        match home.encoding.packed() {
            Some(encoding) if encoding.pages == packed.page_table() => Self::over_packed(home, declared, packed),
            _ => Err(corrupt("its pages lie elsewhere than the catalog says")),
        }
    }

    fn over_packed(home: &SegmentHome, declared: &DataType, packed: PackedColumn) -> Result<Self> {
        if let Some(dictionary) = home.encoding.dictionary() {
            packed.bounds().into_iter().flatten().flatten().try_for_each(|(_, most)| dictionary.check_key(most))?;
        }
        let meaning = Meaning::of_type(packed.data_type(), &home.encoding, declared);
        Ok(Self { rows: packed.rows(), stored: Stored::Packed(packed), meaning })
    }

    /// The form of its image.
    pub fn form(&self) -> Form {
        match self.stored {
            Stored::Window { .. } => Form::Plain,
            Stored::Packed(_) => Form::Packed,
        }
    }

    /// The image of the column in the plain form, with the layout of `home`. Values under nulls are arbitrary.
    pub fn plain_image(&self, home: &SegmentHome) -> Result<Vec<u8>> {
        let other = || corrupt("its layout is not one of a packed column");
        let array = paged(&self.stored_slice(0, self.rows)?)?.to_data();
        let bits = array.nulls().map(|nulls| nulls.inner().sliced()).unwrap_or_default();
        let buffers = std::iter::once(&bits).chain(array.buffers());
        if home.layout.buffers.len() != 1 + array.buffers().len() {
            return Err(other());
        }
        let mut image = vec![0; usize::try_from(image_bytes(home)).map_err(|_| other())?];
        for ((at, len), bytes) in home.layout.buffers.iter().zip(buffers) {
            let place = image.get_mut(*at as usize..).and_then(|image| image.get_mut(..bytes.len()));
            place.filter(|_| bytes.len() as u64 <= *len).ok_or_else(other)?.copy_from_slice(bytes);
        }
        Ok(image)
    }

    /// The column over an image that [`StoredColumn::plain_image`] made.
    pub fn decode_plain(home: &SegmentHome, declared: &DataType, rows: usize, image: &Buffer) -> Result<Self> {
        let array = decode_column(&home.encoding.stored_type(declared), rows, &home.layout, image)?;
        Self::from_checked_array(array, &home.encoding, declared)
    }

    /// The least and the greatest value of each page of a packed column of numbers, as [`PackedColumn::bounds`].
    pub fn packed_bounds(&self) -> Option<impl Iterator<Item = Option<(i128, i128)>>> {
        match (&self.stored, &self.meaning) {
            (_, Meaning::Keys(_)) | (Stored::Window { .. }, _) => None,
            (Stored::Packed(packed), _) => packed.bounds(),
        }
    }

    /// For each of rows `offset .. offset + len` of a packed column of numbers, whether its value is in a range, as
    /// [`PackedColumn::within`]; `None` for other columns.
    pub fn packed_within(&self, offset: usize, len: usize, values: &RangeInclusive<i128>) -> Option<BooleanArray> {
        match (&self.stored, &self.meaning) {
            (_, Meaning::Keys(_)) | (Stored::Window { .. }, _) => None,
            (Stored::Packed(packed), _) => packed.within(offset..offset + len, values)?.ok(),
        }
    }

    /// For each of rows `offset .. offset + len` of a packed column of numbers, whether its value is one of some, null for null;
    /// `None` for other columns. Of a column that is stored as keys of a dictionary, the values are the keys.
    pub fn packed_among(&self, offset: usize, len: usize, values: &NumberSet) -> Option<BooleanArray> {
        self.packed()?.among_numbers(offset..offset + len, values)?.ok()
    }

    /// For each of rows `offset .. offset + len` of a column of texts or bytes that are packed one by one, whether it is one of
    /// some, null for null; `None` for other columns.
    pub fn packed_among_texts(&self, offset: usize, len: usize, texts: &TextSet) -> Option<BooleanArray> {
        self.packed()?.among_texts(offset..offset + len, texts)?.ok()
    }

    /// For each of rows `offset .. offset + len` of a packed column of signed integers or days, whether its value passes a filter,
    /// null for null; `None` for other columns.
    pub fn packed_filtered<F: NumberFilter>(&self, offset: usize, len: usize, filter: &F) -> Option<BooleanArray> {
        match &self.meaning {
            Meaning::Keys(_) => None,
            _ => self.packed()?.filtered(offset..offset + len, filter)?.ok(),
        }
    }

    /// For each of rows `offset .. offset + len`, whether it is null, without unpacking or widening a value. `None` when there
    /// are no such rows.
    pub fn is_null(&self, offset: usize, len: usize) -> Option<BooleanArray> {
        match &self.stored {
            Stored::Packed(packed) if offset.checked_add(len)? <= self.rows => {
                let valid = packed.nulls_of(&(offset..offset + len));
                Some(match valid {
                    Some(valid) => BooleanArray::new(!valid.inner(), None),
                    None => BooleanArray::new(BooleanBuffer::new_unset(len), None),
                })
            }
            Stored::Packed(_) => None,
            Stored::Window { .. } => is_null(&self.stored_slice(offset, len).ok()?).ok(),
        }
    }

    /// The dictionary of a column that is stored as keys.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        match &self.meaning {
            Meaning::Keys(dictionary) => Some(dictionary),
            _ => None,
        }
    }

    /// True for texts or bytes that are packed one by one: unpacking some of them is cheaper than unpacking all.
    pub fn has_packed_texts(&self) -> bool {
        matches!(self.stored, Stored::Packed(PackedColumn::Texts(_)))
    }

    fn packed(&self) -> Option<&PackedColumn> {
        match &self.stored {
            Stored::Packed(packed) => Some(packed),
            Stored::Window { .. } => None,
        }
    }

    /// Rows of the column, those outside of a window included.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// All rows in their declared type.
    #[inline]
    pub fn widened(&self) -> Result<ArrayRef> {
        self.slice(0, self.rows())
    }

    /// The dictionary of a column that is stored as keys, and the keys of rows `offset .. offset + len`, of type UInt8 or
    /// UInt16.
    pub fn keys(&self, offset: usize, len: usize) -> Option<(&Dictionary, ArrayRef)> {
        match &self.meaning {
            Meaning::Keys(dictionary) => Some((dictionary, self.stored_slice(offset, len).ok()?)),
            _ => None,
        }
    }

    /// Rows `offset .. offset + len` of a column that is stored as keys, as plain texts; `None` for other columns, and where they are too
    /// many bytes for an array.
    pub fn texts_of_keys(&self, offset: usize, len: usize) -> Option<ArrayRef> {
        let (dictionary, keys) = self.keys(offset, len)?;
        dictionary.texts_of_keys(&keys)
    }

    /// Rows `offset .. offset + len` as they are stored, perhaps in a narrower type than declared. `None` for a column that
    /// is stored as keys.
    pub fn stored_values(&self, offset: usize, len: usize) -> Option<ArrayRef> {
        match &self.meaning {
            Meaning::Declared | Meaning::Narrow(_) => self.stored_slice(offset, len).ok(),
            Meaning::Keys(_) => None,
        }
    }

    fn stored_slice(&self, offset: usize, len: usize) -> Result<ArrayRef> {
        let (array, first) = match &self.stored {
            Stored::Packed(packed) => return packed.unpack(offset..offset + len),
            Stored::Window { array, first } => (array, *first),
        };
        match offset.checked_sub(first).filter(|start| start + len <= array.len()) {
            Some(0) if len == array.len() => Ok(Arc::clone(array)),
            Some(start) => Ok(slice_column(array, start, len)),
            None => slice_beyond_window(array, first, offset..offset + len),
        }
    }

    /// Like [`StoredColumn::slice`], but only rows that are selected have to be right: others may be empty texts.
    pub fn slice_selected(&self, offset: usize, selected: &BooleanBuffer) -> Result<ArrayRef> {
        match (&self.stored, &self.meaning) {
            (Stored::Packed(packed), Meaning::Declared) => {
                packed.unpack_selected(offset..offset + selected.len(), selected)
            }
            _ => self.slice(offset, selected.len()),
        }
    }

    /// Rows `offset .. offset + len` in their declared type; copied only where they are stored in another one, or packed.
    pub fn slice(&self, offset: usize, len: usize) -> Result<ArrayRef> {
        if let (Stored::Packed(packed), Meaning::Narrow(declared)) = (&self.stored, &self.meaning) {
            return packed.unpack_as(offset..offset + len, declared);
        }
        let slice = self.stored_slice(offset, len)?;
        let wide = match &self.meaning {
            Meaning::Declared => return Ok(slice),
            Meaning::Narrow(declared) => convert(&slice, declared),
            Meaning::Keys(dictionary) => dictionary.values_of_keys(&slice),
        };
        wide.ok_or_else(|| corrupt(format!("values of type {} cannot be widened", slice.data_type())))
    }
}

impl Meaning {
    fn of_type(stored: &DataType, encoding: &Encoding, declared: &DataType) -> Self {
        match encoding.dictionary() {
            Some(dictionary) => Self::Keys(dictionary.clone()),
            None if stored == declared => Self::Declared,
            None => Self::Narrow(declared.clone()),
        }
    }
}

/// The rows of a range that is not inside the window of a column, whose rows from `first` on are in `array`. Rows outside of
/// the window were not requested: they are zero or empty.
fn slice_beyond_window(array: &ArrayRef, first: usize, range: Range<usize>) -> Result<ArrayRef> {
    let window = first..first + array.len();
    let inside = range.start.clamp(window.start, window.end)..range.end.clamp(window.start, window.end);
    let before = range.start.min(window.start)..range.end.min(window.start);
    let after = range.start.max(window.end)..range.end.max(window.end);
    let [before, after] = [before, after].map(|rows| zeros(array.data_type(), rows.len()));
    Ok(concat(&[&before?, &array.slice(inside.start - first, inside.len()), &after?])?)
}

/// An array of zeros, or of empty texts, of a type whose values have one width.
fn zeros(data_type: &DataType, rows: usize) -> Result<ArrayRef> {
    let width = match data_type {
        DataType::Utf8View | DataType::BinaryView => Some(16),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        other => other.primitive_width(),
    };
    let width = width.ok_or_else(|| corrupt(format!("type {data_type} cannot be read in part")))?;
    let values = MutableBuffer::from_len_zeroed(rows * width).into();
    Ok(make_array(ArrayData::builder(data_type.clone()).len(rows).add_buffer(values).build()?))
}

/// The stored bytes of a column in its file; `None` when the file ends before them.
pub fn stored_bytes<'a>(home: &SegmentHome, file: &'a [u8]) -> Option<&'a [u8]> {
    file.get(usize::try_from(home.offset).ok()?..usize::try_from(home.offset.checked_add(home.len)?).ok()?)
}

/// The bytes that a column of a file takes in the packed form; `None` where it has none, or where its values under nulls are
/// others than those of a packed column, of which the file could not be made again. Nothing is trusted.
pub fn packed_bytes_of_file(home: &SegmentHome, declared: &DataType, rows: usize, file: &[u8]) -> Result<Option<u64>> {
    match decode_of_file(home, declared, rows, file)?.stored {
        Stored::Packed(_) => Ok(Some(home.len)),
        Stored::Window { array, .. } if has_filled_nulls(&array) => Ok(packed_bytes(&array)),
        _ => Ok(None),
    }
}

/// Decodes a column of a file to its declared type, from a copy of its bytes. Nothing is trusted, so the values are valid
/// for that type whatever program wrote the file.
pub fn decode_stored(home: &SegmentHome, declared: &DataType, rows: usize, file: &[u8]) -> Result<ArrayRef> {
    decode_of_file(home, declared, rows, file)?.widened()
}

fn decode_of_file(home: &SegmentHome, declared: &DataType, rows: usize, file: &[u8]) -> Result<StoredColumn> {
    let stored = stored_bytes(home, file).ok_or_else(|| corrupt("the file ends before a column"))?;
    StoredColumn::decode(home, declared, rows, &Buffer::from(stored))
}
