//! A part of a column: the stored bytes that hold some of its rows.
//!
//! Where a row's place follows from its number (values of one width; the pages of a view column), a column need not be
//! read as a whole, unless it is compressed. What comes out has all rows of the column, but only those asked for have their
//! values: the others are zero, or empty text. Their validity is always right.

use std::ops::Range;

use arrow::buffer::Buffer;
use arrow::datatypes::DataType;

use super::{CHECKSUM_BLOCK_BYTES, ColumnLayout, PAGE_ROWS, StoredColumn};
use crate::error::Result;
use crate::table::Home;

/// What a part must leave out to be worth putting it together.
const LEAST_SAVED_BYTES: usize = 2 * CHECKSUM_BLOCK_BYTES;

/// Which stored bytes of a column are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Ascending ranges of whole checksum blocks, counted from the column's first byte.
    ranges: Vec<Range<usize>>,
    /// Pages of a view column whose rows are read.
    pages: Vec<usize>,
}

impl Part {
    /// The part of a column declared as `declared` that holds the `wanted` rows (ascending). `None` when it has to be read
    /// as a whole, or may as well be. A hole of up to `gap` bytes is read through: a request costs as much as so many bytes.
    pub fn of(home: &Home, declared: &DataType, rows: usize, wanted: &[Range<usize>], gap: usize) -> Option<Self> {
        if home.encoding.compression().is_some() {
            return None;
        }
        let (layout, stored) = (&home.layout, home.encoding.stored_type(declared));
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
        let mut pages: Vec<usize> = Vec::new();
        let mut needed = vec![span(*validity)?];
        for rows in wanted.iter().filter(|rows| !rows.is_empty()) {
            let start = usize::try_from(values.0).ok()?;
            needed.push(start + rows.start * width..start + rows.end * width);
            if views {
                let next = pages.last().map_or(0, |last| last + 1);
                pages.extend((rows.start / PAGE_ROWS).max(next)..rows.end.div_ceil(PAGE_ROWS));
            }
        }
        for page in &pages {
            needed.push(span(*data.get(*page)?)?);
        }
        let len = usize::try_from(home.len).ok()?;
        let ranges = blocks(needed, len, gap);
        let part = Self { ranges, pages };
        // The whole may be one request with its neighbours in the file.
        (part.bytes() + LEAST_SAVED_BYTES.max(gap) <= len).then_some(part)
    }

    /// False for a column of which no part can be read: compressed, or with rows that are not found by their numbers.
    pub fn is_possible(home: &Home) -> bool {
        let ColumnLayout { nodes, buffers, variadic } = &home.layout;
        let by_number = buffers.len() == 2 || variadic.len() == 1;
        home.encoding.compression().is_none() && nodes.len() == 1 && by_number
    }

    /// Ascending ranges of whole checksum blocks, counted from the column's first byte.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Bytes read.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Bytes of memory for the column that [`Part::decode`] makes.
    pub fn image_bytes(&self, home: &Home) -> usize {
        self.layout(home).1
    }

    /// Where the buffers lie in the image, and its length: values at their place, the pages read behind them.
    fn layout(&self, home: &Home) -> (ColumnLayout, usize) {
        let mut layout = home.layout.clone();
        let mut end = 0;
        for (index, (offset, len)) in layout.buffers.iter_mut().enumerate() {
            match index.checked_sub(2) {
                None => end = (*offset + *len) as usize,
                Some(page) if self.pages.binary_search(&page).is_ok() => {
                    *offset = end.next_multiple_of(64) as u64;
                    end = *offset as usize + *len as usize;
                }
                Some(_) => (*offset, *len) = (0, 0),
            }
        }
        (layout, end)
    }

    /// Copies what was read, one slice for each range, to its place in `image`, which is all zeros.
    pub fn place(&self, home: &Home, read: &[&[u8]], image: &mut [u8]) {
        for (stored, to) in self.moves(home) {
            for (range, bytes) in self.ranges.iter().zip(read) {
                let common = range.start.max(stored.start)..range.end.min(stored.end);
                if common.is_empty() {
                    continue;
                }
                let to = to + common.start - stored.start;
                let from = bytes.get(common.start - range.start..common.end - range.start);
                if let (Some(from), Some(to)) = (from, image.get_mut(to..to + common.len())) {
                    to.copy_from_slice(from);
                }
            }
        }
    }

    /// Stored bytes and where they go. A view whose page is not read may have been read beside others; it stays empty.
    fn moves(&self, home: &Home) -> Vec<(Range<usize>, usize)> {
        let (placed, _) = self.layout(home);
        let mut moves = Vec::with_capacity(2 + 2 * self.pages.len());
        for (index, (from, to)) in home.layout.buffers.iter().zip(&placed.buffers).enumerate() {
            let (from, to, len) = (from.0 as usize, to.0 as usize, to.1 as usize);
            if index != 1 || home.layout.buffers.len() == 2 {
                moves.push((from..from + len, to));
                continue;
            }
            for page in &self.pages {
                let views = page * PAGE_ROWS * 16..len.min((page + 1) * PAGE_ROWS * 16);
                moves.push((from + views.start..from + views.end, to + views.start));
            }
        }
        moves
    }

    /// The column over the image that [`Part::place`] filled.
    pub fn decode(&self, home: &Home, declared: &DataType, rows: usize, image: &Buffer) -> Result<StoredColumn> {
        StoredColumn::decode_as((&home.encoding, &self.layout(home).0), declared, rows, image)
    }
}

fn span((offset, len): (u64, u64)) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(usize::try_from(len).ok()?)?)
}

/// The whole blocks that hold the `needed` bytes of `len`, and what lies between two that are no more than `gap` apart.
fn blocks(mut needed: Vec<Range<usize>>, len: usize, gap: usize) -> Vec<Range<usize>> {
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
