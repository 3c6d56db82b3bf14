//! The pages of a chunk whose bounds allow matching rows: the others are not read.
//!
//! Zone maps of the chunk decide whether it is read, zone maps of its pages how much of it. The store learns page
//! bounds from columns that were read for filters (see [`terrace_tier_store::table::PageBounds`]).

use std::ops::Range;

use arrow::array::BooleanBufferBuilder;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::codec::PAGE_ROWS;

use super::queue::ScanSpec;

/// Whole pages, as ascending ranges of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pages(Vec<Range<usize>>);

/// How much of a slice the pages contain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// All of its rows.
    Full,
    /// None of its rows.
    None,
    /// These ranges of its rows.
    Partial(Vec<Range<usize>>),
}

impl Pages {
    /// Pages of `chunk` that may have matching rows, by all comparisons and lists of the scan; `None` when no page is excluded.
    pub(super) fn for_chunk(spec: &ScanSpec, chunk: &Chunk) -> Option<Self> {
        let rows = chunk.rows as usize;
        let known = spec.conjuncts.iter().filter_map(|conjunct| {
            let slot = conjunct.bounded_slot()?;
            let bounds = chunk.columns().get(*spec.columns.get(slot)?)?.page_bounds()?;
            Some(bounds.rows(rows, |min, max| conjunct.may_pass(min, max)))
        });
        let left = known.reduce(|left, known| intersect(&left, &known))?;
        (left.as_slice() != std::slice::from_ref(&(0..rows))).then_some(Self(left))
    }

    /// The rows.
    pub(super) fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// True when no row of the chunk can pass the filters.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of pages.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|range| range.len().div_ceil(PAGE_ROWS)).sum()
    }

    /// The part of a slice that lies in the pages.
    pub(super) fn overlap(&self, slice: &Range<usize>) -> Overlap {
        let parts = intersect(&self.0, std::slice::from_ref(slice));
        match parts.as_slice() {
            [] => Overlap::None,
            [part] if part == slice => Overlap::Full,
            _ => Overlap::Partial(parts),
        }
    }
}

/// The rows that are in both lists of ranges.
fn intersect(left: &[Range<usize>], right: &[Range<usize>]) -> Vec<Range<usize>> {
    let both = left.iter().flat_map(|a| right.iter().map(move |b| a.start.max(b.start)..a.end.min(b.end)));
    both.filter(|range| !range.is_empty()).collect()
}

/// One bit for each row of a slice, set if the row is in one of `parts`.
pub(super) fn bits(slice: &Range<usize>, parts: &[Range<usize>]) -> BooleanBufferBuilder {
    let mut bits = BooleanBufferBuilder::new(slice.len());
    for part in parts {
        bits.append_n(part.start - slice.start - bits.len(), false);
        bits.append_n(part.len(), true);
    }
    bits.append_n(slice.len() - bits.len(), false);
    bits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]
    use super::*;

    #[test]
    fn a_slice_overlaps_pages_fully_partly_or_not_at_all() {
        let pages = Pages(vec![0..8192, 16_384..20_000]);
        assert_eq!(pages.count(), 2);
        assert_eq!(pages.overlap(&(0..8192)), Overlap::Full);
        assert_eq!(pages.overlap(&(8192..16_384)), Overlap::None);
        assert_eq!(pages.overlap(&(8000..17_000)), Overlap::Partial(vec![8000..8192, 16_384..17_000]));
        let slice = 8000..17_000;
        let mut bits = bits(&slice, &[8000..8192, 16_384..17_000]);
        let set: Vec<_> = bits.finish().set_slices().collect();
        assert_eq!(set, [(0, 192), (8384, 9000)]);
    }
}
