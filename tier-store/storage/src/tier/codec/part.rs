//! A part of a column: the stored bytes that hold some of its rows.
//!
//! Where the offset of a row follows from its number (values of one width; the pages of a view column, or of a packed one), some
//! rows can be read without the whole column, unless it is compressed. A part decodes to a *window*: the pages of rows from the first wanted
//! row to the last. Only the wanted rows are sure to have their values: others may be zero, or empty text. The nulls of all
//! rows of a window are right.
//!
//! The texts of a page are stored in the order of its rows, so a part guesses the offsets of some of them from the page's
//! length (interpolation, as in an interpolation search): exact for texts of one length, near for most others. Their views are
//! read at the same time and show whether the guess was right; where it was wrong, all texts of the page are read.
//!
//! Of a packed column a part has the head and the pages with wanted rows, whose places the home knows; it is decoded in place.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ByteView;
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::datatypes::DataType;
use terrace_model::Result;

use super::{CHECKSUM_BLOCK_BYTES, ColumnLayout, PAGE_ROWS, PageTable, StoredColumn, corrupt};
use crate::io::{AlignedBuffer, BufferPool};
use crate::table::SegmentHome;

/// Least bytes that a part must leave out to be worth assembling it.
const LEAST_SAVED_BYTES: usize = 2 * CHECKSUM_BLOCK_BYTES;
/// A guess reads this share (one 64th) of the page's length more, before and after the offsets that texts of equal length
/// would have. Where lengths are independent and vary by half of their mean, the guess for rows in the middle of a page is
/// wrong by a 360th of the page's length (standard deviation), for others by less.
const GUESS_MARGIN_SHARE: usize = 64;

/// Choices for reading parts.
#[derive(Debug, Clone, Copy)]
pub struct PartOptions {
    /// Holes of up to this many bytes are read too, as another request costs as much as reading them.
    pub gap: usize,
    /// Guess the offsets of texts within their page.
    pub guess: bool,
}

/// The stored bytes of a column that are read for some of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Ascending ranges of whole checksum blocks, counted from the column's first byte.
    ranges: Vec<Range<usize>>,
    /// Pages of a view column that have wanted rows.
    pages: Vec<Page>,
    /// The rows of the decoded window: whole pages.
    window: Range<usize>,
    /// Bytes of a value, or of a view in a view column.
    width: usize,
    gap: usize,
    /// True for a column in the packed form, which has neither windows nor views.
    is_packed: bool,
}

/// The rows and texts that are read of a page of a view column.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    index: usize,
    /// Ascending ranges.
    rows: Vec<Range<usize>>,
    /// Range of its texts that is read, counted from the first text of the page.
    bytes: Range<usize>,
}

impl Page {
    /// Narrows the range to the likely offsets of the wanted texts, if that leaves out enough.
    fn guess(&mut self, rows: usize) {
        let of_page = page_rows(self.index, rows);
        let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) else { return };
        let len = self.bytes.len();
        let margin = self.bytes.len() / GUESS_MARGIN_SHARE;
        let offset = |row: usize| (len as u128 * (row - of_page.start) as u128 / of_page.len().max(1) as u128) as usize;
        let guess = offset(first.start).saturating_sub(margin)..(offset(last.end) + margin + 1).min(len);
        if guess.len() + LEAST_SAVED_BYTES <= len {
            self.bytes = guess;
        }
    }
}

impl Part {
    /// The part that holds the `wanted` rows (ascending) of a column of `rows` rows declared as `declared`. `None` when the
    /// column has to be read as a whole, or when a part saves too little.
    pub fn for_rows(
        home: &SegmentHome,
        declared: &DataType,
        rows: usize,
        wanted: &[Range<usize>],
        options: PartOptions,
    ) -> Option<Self> {
        if home.encoding.compression().is_some() {
            return None;
        }
        if let Some(packed) = home.encoding.packed() {
            return Self::of_pages(home, &packed.pages, rows, wanted, options.gap);
        }
        let layout = &home.layout;
        let stored = home.encoding.stored_type(declared);
        let views = matches!(stored, DataType::Utf8View | DataType::BinaryView);
        let width = match stored {
            DataType::FixedSizeBinary(width) => usize::try_from(width).ok()?,
            _ if views => 16,
            ref other => other.primitive_width()?,
        };
        let [validity, values, data @ ..] = layout.buffers.as_slice() else { return None };
        if layout.nodes.len() != 1 || data.len() != if views { rows.div_ceil(PAGE_ROWS) } else { 0 } {
            return None;
        }
        let holds = |(_, len): (u64, u64), needed: usize| len >= needed as u64;
        if !holds(*values, rows * width) || (validity.1 > 0 && !holds(*validity, rows.div_ceil(8))) {
            return None;
        }
        let wanted = || wanted.iter().filter(|rows| !rows.is_empty());
        let first = wanted().next().map_or(0, |rows| rows.start);
        let end = wanted().next_back().map_or(rows, |rows| rows.end);
        let window = first - first % PAGE_ROWS..end.next_multiple_of(PAGE_ROWS).min(rows);
        let mut pages: Vec<Page> = Vec::new();
        let mut needed = vec![buffer_range(*validity, bitmap_bytes(&window))?];
        for rows in wanted() {
            needed.push(buffer_range(*values, rows.start * width..rows.end * width)?);
            for index in (rows.start / PAGE_ROWS..rows.end.div_ceil(PAGE_ROWS)).filter(|_| views) {
                let of_page = page_rows(index, rows.end);
                let rows = rows.start.max(of_page.start)..of_page.end;
                match pages.last_mut().filter(|page| page.index == index) {
                    Some(page) => page.rows.push(rows),
                    None => pages.push(Page { index, rows: vec![rows], bytes: 0..0 }),
                }
            }
        }
        for page in &mut pages {
            let texts = *data.get(page.index)?;
            page.bytes = 0..usize::try_from(texts.1).ok()?;
            if options.guess {
                page.guess(rows);
            }
            needed.push(buffer_range(texts, page.bytes.clone())?);
        }
        let len = usize::try_from(home.len).ok()?;
        let ranges = covering_blocks(needed, len, options.gap);
        let part = Self { ranges, pages, window, width, gap: options.gap, is_packed: false };
        part.saves_enough(len).then_some(part)
    }

    /// The part that holds the head and the pages of the `wanted` rows of a packed column.
    fn of_pages(
        home: &SegmentHome,
        table: &PageTable,
        rows: usize,
        wanted: &[Range<usize>],
        gap: usize,
    ) -> Option<Self> {
        if table.pages.len() != rows.div_ceil(PAGE_ROWS) {
            return None;
        }
        let len = usize::try_from(home.len).ok()?;
        let mut needed = vec![buffer_range((0, home.len), 0..usize::try_from(table.head_bytes).ok()?)?];
        for rows in wanted.iter().filter(|rows| !rows.is_empty()) {
            for page in table.pages.get(rows.start / PAGE_ROWS..rows.end.div_ceil(PAGE_ROWS))? {
                let start = usize::try_from(page.0).ok()?;
                needed.push(start..start.checked_add(usize::try_from(page.1).ok()?).filter(|end| *end <= len)?);
            }
        }
        let ranges = covering_blocks(needed, len, gap);
        let part = Self { ranges, pages: Vec::new(), window: 0..rows, width: 0, gap, is_packed: true };
        part.saves_enough(len).then_some(part)
    }

    /// True when reading the part is cheaper than reading the column of `len` bytes. A part needs separate requests; a whole
    /// column may share one with its neighbours in the file: the part has to save at least the bytes that such a request costs.
    fn saves_enough(&self, len: usize) -> bool {
        self.bytes() + LEAST_SAVED_BYTES.max(self.gap) <= len
    }

    /// False for a column of which no part can be read: it is compressed, or the offset of a row does not follow from its
    /// number.
    pub fn is_possible(home: &SegmentHome) -> bool {
        if home.is_packed() {
            return true;
        }
        let ColumnLayout { nodes, buffers, variadic } = &home.layout;
        let by_number = buffers.len() == 2 || variadic.len() == 1;
        home.encoding.compression().is_none() && nodes.len() == 1 && by_number
    }

    /// Ascending ranges of whole checksum blocks, counted from the column's first byte.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The ranges as offsets in the file and lengths.
    pub(crate) fn windows(&self, home: &SegmentHome) -> impl Iterator<Item = (u64, usize)> {
        self.ranges.iter().map(|range| (home.offset + range.start as u64, range.len()))
    }

    /// Number of bytes that are read.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// The part that holds the same rows and all texts of their pages, if `read`, which has a buffer for each range, lacks
    /// some texts because their offsets were guessed wrong.
    pub(crate) fn with_whole_pages(&self, home: &SegmentHome, read: &[&[u8]]) -> Option<Self> {
        if self.is_packed {
            return None;
        }
        let [_, values, data @ ..] = home.layout.buffers.as_slice() else { return None };
        let view = |row: usize| {
            // Ranges are whole blocks, so none ends within a view.
            let at = values.0 as usize + row * self.width;
            let (range, bytes) = self.ranges.iter().zip(read).find(|(range, _)| range.contains(&at))?;
            Some(u128::from_le_bytes(*bytes.get(at - range.start..)?.first_chunk()?))
        };
        let lacks = |page: &Page| {
            let len = data.get(page.index).map_or(0, |(_, len)| *len as usize);
            let mut views = page.rows.iter().cloned().flatten().filter_map(view);
            page.bytes.len() < len && views.any(|view| rebased(view, &page.bytes).is_none())
        };
        if !self.pages.iter().any(lacks) {
            return None;
        }
        let mut whole = self.clone();
        let mut needed: Vec<Range<usize>> = self.ranges.clone();
        for page in &mut whole.pages {
            let (start, len) = *data.get(page.index)?;
            page.bytes = 0..usize::try_from(len).ok()?;
            needed.push(start as usize..start as usize + page.bytes.len());
        }
        whole.ranges = covering_blocks(needed, usize::try_from(home.len).ok()?, self.gap);
        Some(whole)
    }

    /// Bytes of memory that [`Part::decode`] takes beside the buffers that were read.
    pub fn image_bytes(&self, home: &SegmentHome) -> usize {
        if self.is_packed || self.in_place(home).is_some() { 0 } else { self.layout(home).1 }
    }

    /// The layout of the window inside the buffer that was read, when the part is one range that covers the window.
    fn in_place(&self, home: &SegmentHome) -> Option<ColumnLayout> {
        let ([read], [validity, values]) = (self.ranges.as_slice(), home.layout.buffers.as_slice()) else {
            return None;
        };
        let placed = |buffer: (u64, u64), bytes: Range<usize>| {
            let bytes = buffer_range(buffer, bytes)?;
            let inside = read.start <= bytes.start && bytes.end <= read.end;
            let start = bytes.start.saturating_sub(read.start);
            if bytes.is_empty() { Some((0, 0)) } else { inside.then_some((start as u64, bytes.len() as u64)) }
        };
        let of_values = self.window.start * self.width..self.window.end * self.width;
        let buffers = vec![placed(*validity, bitmap_bytes(&self.window))?, placed(*values, of_values)?];
        Some(ColumnLayout { buffers, ..home.layout.clone() })
    }

    /// The layout of the assembled image, and its length: the buffers of the window, then the texts that were read.
    fn layout(&self, home: &SegmentHome) -> (ColumnLayout, usize) {
        let mut layout = home.layout.clone();
        let mut end = 0;
        for (index, (offset, len)) in layout.buffers.iter_mut().enumerate() {
            let placed = match index {
                0 => bitmap_bytes(&self.window).len().min(*len as usize),
                1 => self.window.len() * self.width,
                _ => self.page(index - 2).map_or(0, |page| page.bytes.len()),
            };
            (*offset, *len) = (if placed == 0 { 0 } else { end as u64 }, placed as u64);
            end = (end + placed).next_multiple_of(64);
        }
        (layout, end)
    }

    fn page(&self, index: usize) -> Option<&Page> {
        self.pages.get(self.pages.binary_search_by_key(&index, |page| page.index).ok()?)
    }

    /// Copies the buffers that were read, one for each range, to their offsets in `image`, and fills the rest with zeros.
    fn assemble(&self, home: &SegmentHome, read: &[AlignedBuffer], image: &mut [MaybeUninit<u8>]) {
        let mut placed: Vec<Range<usize>> = Vec::new();
        for (stored, to) in self.copies(home) {
            for (range, bytes) in self.ranges.iter().zip(read) {
                let common = range.start.max(stored.start)..range.end.min(stored.end);
                if common.is_empty() {
                    continue;
                }
                let to = to + common.start - stored.start..to + common.end - stored.start;
                let from = bytes.as_slice().get(common.start - range.start..common.end - range.start);
                if let (Some(from), Some(target)) = (from, image.get_mut(to.clone())) {
                    target.write_copy_of_slice(from);
                    placed.push(to);
                }
            }
        }
        placed.sort_unstable_by_key(|range| range.start);
        let mut end = 0;
        let len = image.len();
        for range in placed.into_iter().chain(std::iter::once(len..len)) {
            image.get_mut(end..range.start).unwrap_or_default().fill(MaybeUninit::new(0));
            end = range.end;
        }
    }

    /// Ranges of stored bytes, each with its offset in the image. Views of other rows may have been read beside the wanted
    /// ones, but are not copied, as their texts may be missing: they stay empty.
    fn copies(&self, home: &SegmentHome) -> Vec<(Range<usize>, usize)> {
        let (placed, _) = self.layout(home);
        let mut copies = Vec::with_capacity(2 + 2 * self.pages.len());
        for (index, (stored, image)) in home.layout.buffers.iter().zip(&placed.buffers).enumerate() {
            let from = stored.0 as usize;
            let to = image.0 as usize;
            let len = image.1 as usize;
            let mut add =
                |skipped: usize, len: usize, to: usize| copies.push((from + skipped..from + skipped + len, to));
            match index {
                0 => add(bitmap_bytes(&self.window).start, len, to),
                1 if self.pages.is_empty() => add(self.window.start * self.width, len, to),
                1 => {
                    for rows in self.pages.iter().flat_map(|page| &page.rows) {
                        let to = to + (rows.start - self.window.start) * self.width;
                        add(rows.start * self.width, rows.len() * self.width, to);
                    }
                }
                _ => add(self.page(index - 2).map_or(0, |page| page.bytes.start), len, to),
            }
        }
        copies
    }

    /// Changes the offsets in the views to those of the texts in the image.
    fn rebase(&self, home: &SegmentHome, placed: &ColumnLayout, image: &mut [u8]) -> Result<()> {
        let [_, (views, _), ..] = *placed.buffers.as_slice() else { return Ok(()) };
        let is_cut = |page: &&Page| {
            home.layout.buffers.get(page.index + 2).is_some_and(|(_, len)| page.bytes.len() < *len as usize)
        };
        for page in self.pages.iter().filter(is_cut) {
            for row in page.rows.iter().cloned().flatten() {
                let at = views as usize + (row - self.window.start) * self.width;
                let view = image.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut::<16>());
                let view = view.ok_or_else(|| corrupt("a view lies outside the image"))?;
                let new = rebased(u128::from_le_bytes(*view), &page.bytes);
                let new = new.ok_or_else(|| corrupt("a value lies outside the bytes that were read for its page"))?;
                *view = new.to_le_bytes();
            }
        }
        Ok(())
    }

    /// Decodes the window of a column of `rows` rows from `read`, which has a buffer for each range: in place, or assembled
    /// in memory of `pool`.
    ///
    /// # Safety
    ///
    /// The buffers hold the bytes of `home` that were written ([`StoredColumn::decode_image`]).
    pub(crate) unsafe fn decode(
        &self,
        home: &SegmentHome,
        declared: &DataType,
        rows: usize,
        read: Vec<AlignedBuffer>,
        pool: &Arc<BufferPool>,
    ) -> Result<StoredColumn> {
        if self.is_packed {
            let pieces = self.ranges.iter().zip(read).map(|(range, bytes)| (range.start, bytes.into_arrow(None)));
            return StoredColumn::open_packed_pieces(home, declared, rows, pieces.collect());
        }
        let (layout, image) = match self.in_place(home) {
            Some(layout) => (layout, read.into_iter().next()),
            None => {
                let (layout, bytes) = self.layout(home);
                let mut image = AlignedBuffer::for_window(pool, 0, bytes)?;
                let target = image.blocks_mut().get_mut(..bytes).unwrap_or_default();
                self.assemble(home, &read, target);
                // SAFETY: `assemble` has written all of it.
                unsafe { image.set_filled(bytes) };
                self.rebase(home, &layout, image.window_mut())?;
                (layout, Some(image))
            }
        };
        let image = image.ok_or_else(|| corrupt("no bytes of the column were read"))?;
        // SAFETY: the caller promises valid bytes; rows that are not wanted are zero, or empty text.
        unsafe { self.decode_image(home, layout, declared, rows, &image.into_arrow(None)) }
    }

    /// # Safety
    ///
    /// As for [`Part::decode`].
    unsafe fn decode_image(
        &self,
        home: &SegmentHome,
        mut layout: ColumnLayout,
        declared: &DataType,
        rows: usize,
        image: &Buffer,
    ) -> Result<StoredColumn> {
        let (Some((all, nulls)), Some((start, bytes))) = (layout.nodes.first_mut(), layout.buffers.first()) else {
            return Err(corrupt("a node or a buffer is missing"));
        };
        if *all as usize != rows {
            return Err(corrupt(format!("{all} rows where {rows} were expected")));
        }
        *all = self.window.len() as u32;
        if *nulls > 0 {
            let start = *start as usize;
            let bytes = *bytes as usize;
            if bytes * 8 < self.window.len() || start + bytes > image.len() {
                return Err(corrupt(format!("the null bitmap of {} rows has {bytes} bytes", self.window.len())));
            }
            let valid = BooleanBuffer::new(image.slice_with_length(start, bytes), 0, self.window.len());
            *nulls = (self.window.len() - valid.count_set_bits()) as u32;
        }
        let window_rows = self.window.len();
        // SAFETY: the caller promises valid bytes.
        let window =
            unsafe { StoredColumn::decode_with_layout(&home.encoding, &layout, declared, window_rows, image)? };
        Ok(window.into_window(self.window.start, rows))
    }
}

/// The view with its offset counted from the start of `bytes`, a range of its page; unchanged where the view holds the text
/// itself. `None` when the text is not inside the range.
fn rebased(view: u128, bytes: &Range<usize>) -> Option<u128> {
    let view = ByteView::from(view);
    if view.length <= 12 {
        return Some(view.as_u128());
    }
    let start = view.offset as usize;
    let end = view.offset as usize + view.length as usize;
    let inside = bytes.start <= start && end <= bytes.end;
    inside.then(|| ByteView { offset: (start - bytes.start) as u32, ..view }.as_u128())
}

/// The rows of a page in a column of `rows` rows.
fn page_rows(index: usize, rows: usize) -> Range<usize> {
    index * PAGE_ROWS..rows.min((index + 1) * PAGE_ROWS)
}

/// The bytes of a bitmap that hold the bits of the rows of a window.
fn bitmap_bytes(window: &Range<usize>) -> Range<usize> {
    window.start / 8..window.end.div_ceil(8)
}

/// A range of a buffer (offset, length) as a range of the column; empty for an empty buffer.
fn buffer_range(buffer: (u64, u64), bytes: Range<usize>) -> Option<Range<usize>> {
    let offset = usize::try_from(buffer.0).ok()?;
    let len = usize::try_from(buffer.1).ok()?;
    offset.checked_add(len)?;
    Some(offset + bytes.start.min(len)..offset + bytes.end.min(len))
}

/// The ranges of whole checksum blocks that cover the `needed` bytes of a column of `len` bytes. Blocks that are no more than
/// `gap` bytes apart become one range.
fn covering_blocks(mut needed: Vec<Range<usize>>, len: usize, gap: usize) -> Vec<Range<usize>> {
    needed.retain(|range| !range.is_empty());
    needed.sort_by_key(|range| range.start);
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(needed.len());
    for range in needed {
        let start = range.start - range.start % CHECKSUM_BLOCK_BYTES;
        let end = range.end.next_multiple_of(CHECKSUM_BLOCK_BYTES).min(len);
        match ranges.last_mut() {
            Some(last) if start <= last.end + gap => last.end = last.end.max(end),
            _ => ranges.push(start..end),
        }
    }
    ranges
}
