//! The bytes of an image that are in memory: all of them, or its head and some of its pages, as a file was read for them.
//!
//! A page lies in one piece, whichever pages were read. Pages that are missing have no values: readers see zeros and empty
//! texts in their rows, as in the rows of a plain column that were not read.

use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::Buffer;
use terrace_model::Result;

use super::super::corrupt;
use super::ALIGNMENT;

/// The bytes of an image, or those of some of its pages.
#[derive(Debug, Clone)]
pub(super) struct Image {
    /// From the first byte on: all bytes, or those of the head at least.
    first: Buffer,
    /// The pieces behind it, each with its offset in the image, ascending; `None` where all bytes are there.
    others: Option<Arc<[(usize, Buffer)]>>,
    /// Bytes of the complete image.
    len: usize,
}

impl Image {
    /// A complete image.
    pub(super) fn whole(bytes: Buffer) -> Self {
        Self { len: bytes.len(), first: bytes, others: None }
    }

    /// Some pieces of an image of `len` bytes, each with its offset, ascending. Fails with [`terrace_model::Error::Corrupt`],
    /// without the path, when its first bytes are not among them, or when a piece is not aligned.
    pub(super) fn pieces(pieces: Vec<(usize, Buffer)>, len: usize) -> Result<Self> {
        let is_aligned = |(offset, bytes): &(usize, Buffer)| {
            offset.is_multiple_of(ALIGNMENT) && (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT)
        };
        if !pieces.iter().all(is_aligned) {
            return Err(corrupt("a piece of the packed column lies at an odd address"));
        }
        let mut pieces = pieces.into_iter();
        match pieces.next() {
            Some((0, first)) => Ok(Self { first, others: Some(pieces.collect()), len }),
            _ => Err(corrupt("the head of the packed column was not read")),
        }
    }

    /// Bytes of the complete image.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The piece that begins with the head.
    pub(super) fn head(&self) -> &Buffer {
        &self.first
    }

    /// The bytes of a range; `None` when they are not in memory, or outside of the image.
    #[inline]
    pub(super) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        if let Some(bytes) = self.first.get(range.clone()) {
            return Some(bytes);
        }
        let others = self.others.as_deref()?;
        let (start, bytes) = others.get(others.partition_point(|(start, _)| *start <= range.start).checked_sub(1)?)?;
        bytes.get(range.start - start..range.end.checked_sub(*start)?)
    }

    /// True when a page at this place was not read.
    #[inline]
    pub(super) fn lacks(&self, page: Option<Range<usize>>) -> bool {
        self.others.is_some() && page.is_some_and(|page| self.get(page).is_none())
    }
}
