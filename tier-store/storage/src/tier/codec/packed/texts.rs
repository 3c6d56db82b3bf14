//! Packed texts, and bytes: each value by itself in FSST (Boncz, Neumann, Leis, "FSST: Fast Random Access String
//! Compression", PVLDB 13(11), 2020), with one table of up to 255 symbols of 1 to 8 bytes for the column. A code of one byte
//! stands for a symbol; code 255 is followed by a byte that no symbol stands for.
//!
//! ```text
//!   image       | header | validity | lengths of symbols | symbols | descriptors of the pages | page 0 | page 1 | ...
//!   header      | "TPX1" | rows 4 | nulls 4 | zeros 4 | image bytes 8 | zeros |                               64 bytes
//!   symbols     | length 1 | x 256, then | bytes 8 | x 256; the last one stands for nothing
//!   descriptor  | offset 8 | bytes of codes 4 | bytes of texts 4 | bits of a code length 1 | bits of a text length 1 | zeros 6 |
//!   page        | blocks of the lengths of codes | blocks of the lengths of texts | start of each block's codes 4 | codes |
//! ```
//!
//! Parts begin at multiples of 64. The lengths are packed like numbers. So the codes of a page are one piece, which is decoded
//! in one go, and those of a single row are found through the lengths of its block. Null is an empty text.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, BooleanBufferBuilder, GenericByteViewArray,
    StringViewArray, make_view,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ByteViewType, DataType};
use fsst::{Compressor, Decompressor, Symbol};
use terrace_model::Result;

use super::super::{PAGE_ROWS, corrupt};
use super::header::Header;
use super::image::Image;
use super::lanes::{BLOCK_ROWS, Lane, Lanes, bits_of, lanes_bytes, pack_lanes, with_lane};
use super::text_set::TextSet;
use super::within::append_flags;
use super::{ALIGNMENT, HEADER_BYTES, PageTable};

/// First bytes of an image.
const MAGIC: [u8; 4] = *b"TPX1";
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 24;
/// Codes of symbols; code 255 comes before a byte that no symbol stands for.
const CODES: usize = 255;
/// Places for symbols in an image.
const SYMBOLS: usize = 256;
/// Most bytes of a symbol.
const SYMBOL_BYTES: usize = 8;
/// Bytes of the table of symbols.
const TABLE_BYTES: usize = SYMBOLS + SYMBOLS * SYMBOL_BYTES;
/// Bytes behind texts with which the crate decodes eight codes at a time up to the last one.
const DECODER_SLACK: usize = 9 * SYMBOL_BYTES;
/// Most bytes of the texts of a page, as in a plain one.
const MOST_PAGE_BYTES: usize = i32::MAX as usize;
/// Codes compressed at a time, which hides the wait for the table.
const CURSORS: usize = Compressor::DEFAULT_BULK_LANES;

/// The image of a column of texts or bytes; `None` for other types, for a page of 2 GiB, and where views of nulls are not 0,
/// which would not be made again of a packed column.
pub(super) fn pack(values: &ArrayRef) -> Option<Vec<u8>> {
    match values.data_type() {
        DataType::Utf8View => pack_values(&Values::of_views(values.as_string_view())?),
        DataType::BinaryView => pack_values(&Values::of_views(values.as_binary_view())?),
        _ => None,
    }
}

/// About the bytes of the image that [`pack`] makes: the first block of each page stands for the page.
pub(super) fn estimated_bytes(values: &ArrayRef) -> Option<u64> {
    match values.data_type() {
        DataType::Utf8View => estimate(&Values::of_views(values.as_string_view())?),
        DataType::BinaryView => estimate(&Values::of_views(values.as_binary_view())?),
        _ => None,
    }
}

/// The values of a column; null is empty.
struct Values<'a> {
    texts: Vec<&'a [u8]>,
    nulls: Option<&'a NullBuffer>,
}

impl<'a> Values<'a> {
    fn of_views<T: ByteViewType>(array: &'a GenericByteViewArray<T>) -> Option<Self> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        let is_zero =
            |nulls: &NullBuffer| nulls.iter().zip(array.views()).all(|(is_valid, view)| is_valid || *view == 0);
        let texts = (0..array.len()).map(|row| AsRef::<[u8]>::as_ref(array.value(row))).collect();
        nulls.is_none_or(is_zero).then_some(Self { texts, nulls })
    }

    /// The places of the table of symbols and of the descriptors in the image, and the end of these.
    fn places(&self) -> [usize; 3] {
        let rows = self.texts.len();
        let validity = self.nulls.map_or(0, |_| rows.div_ceil(8));
        let table = (HEADER_BYTES + validity).next_multiple_of(ALIGNMENT);
        let descriptors = (table + TABLE_BYTES).next_multiple_of(ALIGNMENT);
        [table, descriptors, descriptors + rows.div_ceil(PAGE_ROWS) * DESCRIPTOR_BYTES]
    }
}

fn pack_values(values: &Values<'_>) -> Option<Vec<u8>> {
    let Values { texts, nulls } = values;
    let rows = texts.len();
    let compressor = Compressor::train(texts);
    let mut codes = Vec::new();
    let mut ends = Vec::new();
    compressor.compress_bulk_into::<CURSORS>(texts, &mut codes, &mut ends);

    let [table, descriptors, end] = values.places();
    let mut image = Vec::with_capacity(end + codes.len() + rows * 2);
    image.extend_from_slice(&MAGIC);
    for number in [rows, nulls.map_or(0, NullBuffer::null_count), 0] {
        image.extend_from_slice(&u32::try_from(number).ok()?.to_le_bytes());
    }
    image.resize(HEADER_BYTES, 0);
    if let Some(nulls) = nulls {
        image.extend_from_slice(&nulls.inner().sliced());
    }
    image.resize(table, 0);
    image.extend_from_slice(compressor.symbol_lengths());
    image.resize(table + SYMBOLS, 0);
    for symbol in compressor.symbol_table() {
        image.extend_from_slice(&symbol.to_u64().to_le_bytes());
    }
    image.resize(end, 0);
    let mut start = 0;
    for (number, texts) in texts.chunks(PAGE_ROWS).enumerate() {
        let ends = ends.get(number * PAGE_ROWS..)?.get(..texts.len())?;
        let end = ends.last().map_or(start, |end| *end as usize);
        image.resize(image.len().next_multiple_of(ALIGNMENT), 0);
        let page = write_page(texts, ends, codes.get(start..end)?, start, &mut image)?;
        let at = descriptors + number * DESCRIPTOR_BYTES;
        image.get_mut(at..at + DESCRIPTOR_BYTES)?.copy_from_slice(&page.written());
        start = end;
    }
    let bytes = (image.len() as u64).to_le_bytes();
    image.get_mut(16..24)?.copy_from_slice(&bytes);
    Some(image)
}

fn estimate(values: &Values<'_>) -> Option<u64> {
    let first_blocks = values.texts.chunks(PAGE_ROWS).flat_map(|page| page.iter().take(BLOCK_ROWS).copied());
    let sample: Vec<&[u8]> = first_blocks.collect();
    let mut codes = Vec::new();
    let mut ends = Vec::new();
    Compressor::train(&sample).compress_bulk_into::<CURSORS>(&sample, &mut codes, &mut ends);
    let mut starts = std::iter::once(0).chain(ends.iter().copied());
    let code_bits = bits_of(ends.iter().map(|end| end - starts.next().unwrap_or(0)).max().unwrap_or(0));
    let [.., mut end] = values.places();
    for (texts, starts) in values.texts.chunks(PAGE_ROWS).zip((0..).step_by(BLOCK_ROWS)) {
        let rows = texts.len();
        let in_sample = rows.min(BLOCK_ROWS);
        let bytes = |texts: &[&[u8]]| texts.iter().map(|text| text.len()).sum::<usize>();
        let (all, sampled) = (bytes(texts), bytes(texts.get(..in_sample)?));
        let place = |row: usize| row.checked_sub(1).map_or(Some(0), |last| ends.get(last).copied());
        let codes = place(starts + in_sample)? - place(starts)?;
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let share = if sampled > 0 { all as f64 / sampled as f64 } else { 1.0 };
        let page = Page {
            code_bytes: (codes as f64 * share) as u32,
            text_bytes: u32::try_from(all).ok().filter(|bytes| *bytes as usize <= MOST_PAGE_BYTES)?,
            code_bits,
            text_bits: bits_of(longest as u64),
            offset: 0,
        };
        end = end.next_multiple_of(ALIGNMENT) + page.parts(rows).into_iter().sum::<usize>();
    }
    Some(end as u64)
}

/// Appends a page: its texts, the ends of their codes in those of the column, and its own codes, which begin at `start` there.
fn write_page(texts: &[&[u8]], ends: &[u64], codes: &[u8], start: usize, image: &mut Vec<u8>) -> Option<Page> {
    let offset = image.len() as u64;
    let starts = || std::iter::once(start as u64).chain(ends.iter().copied());
    let code_lengths = || ends.iter().zip(starts()).map(|(end, start)| end - start);
    let text_lengths = || texts.iter().map(|text| text.len() as u64);
    let text_bytes = usize::try_from(text_lengths().sum::<u64>()).ok().filter(|bytes| *bytes <= MOST_PAGE_BYTES)?;
    let page = Page {
        offset,
        code_bytes: u32::try_from(codes.len()).ok()?,
        text_bytes: text_bytes as u32,
        code_bits: bits_of(code_lengths().max().unwrap_or(0)),
        text_bits: bits_of(text_lengths().max().unwrap_or(0)),
    };
    pack_lanes(code_lengths(), page.code_bits, image);
    pack_lanes(text_lengths(), page.text_bits, image);
    for block in starts().step_by(BLOCK_ROWS).take(texts.len().div_ceil(BLOCK_ROWS)) {
        image.extend_from_slice(&((block - start as u64) as u32).to_le_bytes());
    }
    image.extend_from_slice(codes);
    Some(page)
}

/// A page of texts.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    offset: u64,
    code_bytes: u32,
    text_bytes: u32,
    code_bits: u8,
    text_bits: u8,
}

impl Page {
    fn written(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let [offset, code_bytes, text_bytes] = [self.offset, self.code_bytes.into(), self.text_bytes.into()];
        bytes[..8].copy_from_slice(&offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&(code_bytes as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&(text_bytes as u32).to_le_bytes());
        bytes[16] = self.code_bits;
        bytes[17] = self.text_bits;
        bytes
    }

    fn read(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let [low, high, code_bytes, text_bytes, bits, _] = *words else { return Self::default() };
        let [low, high, code_bytes, text_bytes] = [low, high, code_bytes, text_bytes].map(u32::from_le_bytes);
        let [code_bits, text_bits, ..] = bits;
        Self { offset: u64::from(high) << 32 | u64::from(low), code_bytes, text_bytes, code_bits, text_bits }
    }

    /// Bytes of the parts of a page of `rows` rows: the lengths of codes and of texts, the starts of blocks, the codes.
    fn parts(&self, rows: usize) -> [usize; 4] {
        let starts = rows.div_ceil(BLOCK_ROWS) * size_of::<u32>();
        [lanes_bytes(rows, self.code_bits), lanes_bytes(rows, self.text_bits), starts, self.code_bytes as usize]
    }

    /// Bytes of a page of `rows` rows.
    fn bytes(&self, rows: usize) -> usize {
        self.parts(rows).into_iter().sum()
    }

    /// Its place in the image.
    fn range(&self, rows: usize) -> Option<Range<usize>> {
        let start = usize::try_from(self.offset).ok()?;
        Some(start..start.checked_add(self.bytes(rows))?)
    }
}

/// A column of texts or bytes in the packed form.
#[derive(Debug, Clone)]
pub struct PackedTexts {
    image: Image,
    data_type: DataType,
    rows: usize,
    nulls: Option<NullBuffer>,
    table: usize,
    descriptors: usize,
}

impl PackedTexts {
    /// True when an image begins as one of texts does, in whichever version.
    pub(super) fn is_image(image: &[u8]) -> bool {
        MAGIC.split_last().is_some_and(|(_, kind)| image.starts_with(kind))
    }

    /// A column of `rows` values of type `data_type` over an image. Fails with [`terrace_model::Error::Corrupt`], without the
    /// path, when the image is not one of such a column: then its pages lie inside of it, whatever else it holds.
    pub(super) fn open(image: Image, data_type: &DataType, rows: usize) -> Result<Self> {
        let Header { nulls, end: table, .. } = Header::read(&image, MAGIC, rows)?;
        if !matches!(data_type, DataType::Utf8View | DataType::BinaryView) {
            return Err(corrupt(format!("it has texts, not values of type {data_type}")));
        }
        let descriptors = (table + TABLE_BYTES).next_multiple_of(ALIGNMENT);
        if image.head().len() < descriptors + rows.div_ceil(PAGE_ROWS) * DESCRIPTOR_BYTES {
            return Err(corrupt("it ends before its pages"));
        }
        let column = Self { image, data_type: data_type.clone(), rows, nulls, table, descriptors };
        if !are_lengths(column.image.get(table..table + SYMBOLS).unwrap_or_default()) {
            return Err(corrupt("a symbol of its texts is too long"));
        }
        for number in 0..rows.div_ceil(PAGE_ROWS) {
            let page = column.page(number);
            let range = page.range(column.page_rows(number).len());
            let inside = range.is_some_and(|range| range.end <= column.image.len());
            // No code stands for more bytes than the longest symbol has.
            let most_bytes = u64::from(page.code_bytes) * SYMBOL_BYTES as u64;
            let fits = u64::from(page.text_bytes) <= most_bytes
                && page.offset.is_multiple_of(ALIGNMENT as u64)
                && page.code_bits.max(page.text_bits) <= 32;
            if !inside || !fits {
                return Err(corrupt(format!("page {number} is not one of packed texts")));
            }
        }
        Ok(column)
    }

    /// Number of rows.
    #[inline]
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    #[inline]
    pub(super) fn data_type(&self) -> &DataType {
        &self.data_type
    }

    fn page(&self, number: usize) -> Page {
        let start = self.descriptors + number * DESCRIPTOR_BYTES;
        let bytes = self.image.get(start..start + DESCRIPTOR_BYTES).and_then(|bytes| bytes.first_chunk());
        bytes.map(Page::read).unwrap_or_default()
    }

    fn pages(&self) -> impl Iterator<Item = (usize, Page)> {
        (0..self.rows.div_ceil(PAGE_ROWS)).map(|number| (self.page_rows(number).len(), self.page(number)))
    }

    /// Where its pages lie.
    pub(super) fn page_table(&self) -> PageTable {
        PageTable {
            head_bytes: (self.descriptors + self.rows.div_ceil(PAGE_ROWS) * DESCRIPTOR_BYTES) as u64,
            pages: self.pages().map(|(rows, page)| (page.offset, page.bytes(rows) as u64)).collect(),
        }
    }

    /// Bytes of the texts of each page.
    pub(super) fn text_bytes(&self) -> impl Iterator<Item = u64> {
        self.pages().map(|(_, page)| page.text_bytes.into())
    }

    /// Number of nulls.
    pub(super) fn null_count(&self) -> usize {
        self.nulls.as_ref().map_or(0, NullBuffer::null_count)
    }

    fn page_rows(&self, number: usize) -> Range<usize> {
        number * PAGE_ROWS..self.rows.min((number + 1) * PAGE_ROWS)
    }

    /// The values of a range of rows: of those that are selected, if only some are; the others are empty then.
    pub(super) fn unpack(&self, rows: Range<usize>, selected: Option<&BooleanBuffer>) -> Result<ArrayRef> {
        if rows.end > self.rows || selected.is_some_and(|selected| selected.len() != rows.len()) {
            return Err(corrupt(format!("rows {rows:?} of a column of {} rows", self.rows)));
        }
        let decoder = self.decoder()?;
        let mut views = Vec::with_capacity(rows.len());
        let mut buffers = Vec::new();
        let mut row = rows.start;
        while row < rows.end {
            let number = row / PAGE_ROWS;
            let of_page = self.page_rows(number);
            let end = of_page.end.min(rows.end);
            if self.image.lacks(self.page(number).range(of_page.len())) {
                views.resize(views.len() + end - row, 0);
                row = end;
                continue;
            }
            let selected = selected.map(|selected| selected.slice(row - rows.start, end - row));
            let page = self.page_part(number, row - of_page.start..end - of_page.start)?;
            let texts = page.decode(&decoder, selected.as_ref())?;
            page.append_views(&texts, selected.as_ref(), buffers.len() as u32, self.is_text(), &mut views)?;
            buffers.push(Buffer::from_vec(texts));
            row = end;
        }
        let nulls = self.nulls_of(&rows);
        let views = ScalarBuffer::from(views);
        if self.is_text() {
            // SAFETY: each view is of a text inside of its buffer; `append_views` has checked that texts are UTF-8.
            return Ok(Arc::new(unsafe { StringViewArray::new_unchecked(views, buffers, nulls) }));
        }
        // SAFETY: each view is of bytes inside of its buffer.
        Ok(Arc::new(unsafe { BinaryViewArray::new_unchecked(views, buffers, nulls) }))
    }

    /// For each of a range of rows, whether its text is one of `texts`; null for null. No text is decoded.
    pub(super) fn among(&self, rows: Range<usize>, texts: &TextSet) -> Result<BooleanArray> {
        if rows.end > self.rows {
            return Err(corrupt(format!("rows {rows:?} of a column of {} rows", self.rows)));
        }
        let decoder = self.decoder()?;
        let mut bits = BooleanBufferBuilder::new(rows.len());
        let mut row = rows.start;
        while row < rows.end {
            let number = row / PAGE_ROWS;
            let of_page = self.page_rows(number);
            let end = of_page.end.min(rows.end);
            let page = self.page(number);
            let longest = (1_u64 << page.text_bits) - 1;
            if !texts.has_up_to(longest) || self.image.lacks(page.range(of_page.len())) {
                bits.append_n(end - row, false);
            } else {
                let part = self.page_part(number, row - of_page.start..end - of_page.start)?;
                append_flags(&part.flags(&decoder, texts)?, &mut bits);
            }
            row = end;
        }
        Ok(BooleanArray::new(bits.finish(), self.nulls_of(&rows)))
    }

    /// The nulls of a range of rows; `None` without any.
    pub(super) fn nulls_of(&self, rows: &Range<usize>) -> Option<NullBuffer> {
        let nulls = self.nulls.as_ref()?.slice(rows.start, rows.len());
        Some(nulls).filter(|nulls| nulls.null_count() > 0)
    }

    fn decoder(&self) -> Result<Decoder> {
        Decoder::new(self.image.get(self.table..self.table + TABLE_BYTES).unwrap_or_default())
    }

    fn is_text(&self) -> bool {
        self.data_type == DataType::Utf8View
    }

    /// Codes and lengths of wanted rows of a page.
    fn page_part(&self, number: usize, wanted: Range<usize>) -> Result<PagePart<'_>> {
        let page = self.page(number);
        let rows = self.page_rows(number).len();
        let [code_lengths, text_lengths, starts, codes] = page.parts(rows);
        let page_bytes = page.range(rows).and_then(|range| self.image.get(range)).ok_or_else(outside)?;
        let (code_lengths, rest) = page_bytes.split_at_checked(code_lengths).ok_or_else(outside)?;
        let (text_lengths, rest) = rest.split_at_checked(text_lengths).ok_or_else(outside)?;
        let (starts, rest) = rest.split_at_checked(starts).ok_or_else(outside)?;
        let codes = rest.get(..codes).ok_or_else(outside)?;
        // The codes of the first row, found through the block in which it begins.
        let block = wanted.start / BLOCK_ROWS;
        let start = starts.as_chunks::<4>().0.get(block).copied().map_or(0, u32::from_le_bytes) as usize;
        let code_lengths = Lanes { bits: page.code_bits, bytes: code_lengths };
        let mut code_lengths = lengths(&code_lengths, block * BLOCK_ROWS..wanted.end)?;
        let text_lengths = lengths(&Lanes { bits: page.text_bits, bytes: text_lengths }, wanted.clone())?;
        let before =
            code_lengths.drain(..wanted.start - block * BLOCK_ROWS).map(|length| length as usize).sum::<usize>();
        let codes = codes.get(start + before..).ok_or_else(outside)?;
        Ok(PagePart { codes, code_lengths, text_lengths })
    }
}

fn outside() -> terrace_model::Error {
    corrupt("a page lies outside the packed column")
}

/// Rows of a page that follow each other.
struct PagePart<'a> {
    /// Their codes, and perhaps those of later rows.
    codes: &'a [u8],
    code_lengths: Vec<u32>,
    text_lengths: Vec<u32>,
}

impl PagePart<'_> {
    /// 1 for each row whose text is one of `texts`, else 0.
    fn flags(&self, decoder: &Decoder, texts: &TextSet) -> Result<Vec<u8>> {
        let mut flags = Vec::with_capacity(self.text_lengths.len());
        let mut start = 0_usize;
        for (codes, length) in self.code_lengths.iter().zip(&self.text_lengths) {
            let end = start + *codes as usize;
            let candidates = texts.with_length(*length as usize);
            let found = match candidates {
                [] => false,
                _ => decoder.finds(self.codes.get(start..end).ok_or_else(outside)?, candidates)?,
            };
            flags.push(found.into());
            start = end;
        }
        Ok(flags)
    }

    /// The texts of all rows, or of the selected ones, one behind the other.
    fn decode(&self, decoder: &Decoder, selected: Option<&BooleanBuffer>) -> Result<Vec<u8>> {
        let sum = |lengths: &[u32]| lengths.iter().map(|length| *length as usize).sum::<usize>();
        let mut texts = Vec::new();
        let Some(selected) = selected else {
            let codes = self.codes.get(..sum(&self.code_lengths)).ok_or_else(outside)?;
            decoder.append(codes, sum(&self.text_lengths), &mut texts)?;
            return Ok(texts);
        };
        let mut start = 0;
        let mut row = 0;
        for selected in selected.set_indices() {
            start += sum(self.code_lengths.get(row..selected).unwrap_or_default());
            let length = |lengths: &[u32]| lengths.get(selected).map_or(0, |length| *length as usize);
            let end = start + length(&self.code_lengths);
            decoder.append(self.codes.get(start..end).ok_or_else(outside)?, length(&self.text_lengths), &mut texts)?;
            (start, row) = (end, selected + 1);
        }
        Ok(texts)
    }

    /// Appends the views of texts that [`PagePart::decode`] made, in buffer number `index`; others are empty.
    fn append_views(
        &self,
        texts: &[u8],
        selected: Option<&BooleanBuffer>,
        index: u32,
        is_text: bool,
        views: &mut Vec<u128>,
    ) -> Result<()> {
        let text = match is_text && !texts.is_ascii() {
            true => Some(std::str::from_utf8(texts).map_err(|_| corrupt("a text is not UTF-8"))?),
            false => None,
        };
        let mut start = 0_usize;
        for (row, length) in self.text_lengths.iter().enumerate() {
            if selected.is_some_and(|selected| !selected.value(row)) {
                views.push(0);
                continue;
            }
            let end = start + *length as usize;
            let value = texts.get(start..end).ok_or_else(outside)?;
            if text.is_some_and(|text| !text.is_char_boundary(start)) {
                return Err(corrupt("a text begins inside of a character"));
            }
            views.push(make_view(value, index, start as u32));
            start = end;
        }
        Ok(())
    }
}

/// The table of symbols of a column.
pub(super) struct Decoder {
    symbols: [Symbol; CODES],
    lengths: [u8; CODES],
}

/// What the first of some codes stands for.
pub(super) struct NextSymbol<'a> {
    /// Its bytes, of which the first ones count.
    pub(super) bytes: [u8; SYMBOL_BYTES],
    /// How many of them count.
    pub(super) length: usize,
    /// The codes behind it.
    pub(super) rest: &'a [u8],
}

impl Decoder {
    /// Reads the table of an image, whose lengths [`PackedTexts::open`] has checked.
    fn new(table: &[u8]) -> Result<Self> {
        let (lengths, symbols) = table.split_first_chunk::<SYMBOLS>().ok_or_else(outside)?;
        let lengths = lengths.first_chunk::<CODES>().filter(|lengths| are_lengths(lengths.as_slice()));
        let (bytes, _) = symbols.as_chunks::<SYMBOL_BYTES>();
        let mut symbols = [Symbol::ZERO; CODES];
        symbols.iter_mut().zip(bytes).for_each(|(symbol, bytes)| *symbol = Symbol::from_slice(bytes));
        Ok(Self { symbols, lengths: *lengths.ok_or_else(|| corrupt("a symbol is too long"))? })
    }

    /// What the first code stands for; `None` where there is none.
    pub(super) fn next_symbol<'a>(&self, codes: &'a [u8]) -> Result<Option<NextSymbol<'a>>> {
        let Some((code, rest)) = codes.split_first() else { return Ok(None) };
        let place = usize::from(*code);
        if let (Some(symbol), Some(length)) = (self.symbols.get(place), self.lengths.get(place)) {
            return Ok(Some(NextSymbol { bytes: symbol.to_u64().to_le_bytes(), length: usize::from(*length), rest }));
        }
        let (byte, rest) = rest.split_first().ok_or_else(wrong_codes)?;
        Ok(Some(NextSymbol { bytes: u64::from(*byte).to_le_bytes(), length: 1, rest }))
    }

    /// Appends the `bytes` bytes that codes stand for.
    fn append(&self, codes: &[u8], bytes: usize, to: &mut Vec<u8>) -> Result<()> {
        // Checked before memory is allocated for them.
        if bytes > codes.len().saturating_mul(SYMBOL_BYTES) {
            return Err(wrong_codes());
        }
        to.reserve(bytes + DECODER_SLACK);
        let place = AssertUnwindSafe(to.spare_capacity_mut());
        let decompressor = Decompressor::new(&self.symbols, &self.lengths);
        // The crate panics at codes that end too early or stand for too much; it writes inside of the place nevertheless.
        let written = std::panic::catch_unwind(|| decompressor.decompress_into(codes, { place }.0));
        if written.map_err(|_| wrong_codes())? != bytes {
            return Err(wrong_codes());
        }
        let len = to.len() + bytes;
        // SAFETY: so many bytes were written behind the others.
        unsafe { to.set_len(len) };
        Ok(())
    }
}

/// The error of codes that do not stand for their text.
pub(super) fn wrong_codes() -> terrace_model::Error {
    corrupt("codes stand for another number of bytes than the lengths of their texts")
}

fn are_lengths(lengths: &[u8]) -> bool {
    lengths.iter().all(|length| usize::from(*length) <= SYMBOL_BYTES)
}

/// A range of packed lengths.
fn lengths(lanes: &Lanes<'_>, range: Range<usize>) -> Result<Vec<u32>> {
    fn append<T: Lane>(lanes: &Lanes<'_>, range: Range<usize>, to: &mut Vec<u32>) -> Result<()> {
        lanes.append(range, to, |length: T| Into::<u64>::into(length) as u32)
    }
    let mut lengths = Vec::with_capacity(range.len());
    with_lane!(lanes.bits, T => append::<T>(lanes, range, &mut lengths))?;
    Ok(lengths)
}
