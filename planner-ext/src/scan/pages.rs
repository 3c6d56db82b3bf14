//! The rows of a chunk that the bounds of its pages leave: the others are not read.
//!
//! Zone maps of the chunk say whether it is read, those of its pages how much of it. The store learns them from columns
//! that were read for filters (see [`terrace_tier_store::table::PageBounds`]).

use std::ops::Range;

use arrow::array::BooleanBufferBuilder;
use terrace_tier_store::table::Chunk;
use terrace_tier_store::tier::codec::PAGE_ROWS;

use super::queue::ScanSpec;

/// Whole pages, as ascending ranges of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pages(Vec<Range<usize>>);

/// How a slice and the pages meet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// All of it is in them.
    Whole,
    /// None of it is.
    Apart,
    /// These parts of it are.
    Partly(Vec<Range<usize>>),
}

impl Pages {
    /// Of a chunk, by all comparisons of the scan. `None`: all of it is left, for all that is known.
    pub(super) fn of(spec: &ScanSpec, chunk: &Chunk) -> Option<Self> {
        let rows = chunk.rows as usize;
        let known = spec.conjuncts.iter().filter_map(|conjunct| {
            let (slot, comparison) = conjunct.comparison()?;
            let bounds = chunk.columns().get(*spec.columns.get(slot)?)?.page_bounds()?;
            Some(bounds.rows(rows, |min, max| comparison.may_pass(min, max)))
        });
        let left = known.reduce(|left, known| meet(&left, &known))?;
        (left.as_slice() != std::slice::from_ref(&(0..rows))).then_some(Self(left))
    }

    /// The rows.
    pub(super) fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// True when the filters let no row of the chunk pass.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many pages.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|range| range.len().div_ceil(PAGE_ROWS)).sum()
    }

    /// What they have of a slice.
    pub(super) fn meeting(&self, slice: &Range<usize>) -> Meeting {
        let parts = meet(&self.0, std::slice::from_ref(slice));
        match parts.as_slice() {
            [] => Meeting::Apart,
            [part] if part == slice => Meeting::Whole,
            _ => Meeting::Partly(parts),
        }
    }
}

/// The rows that are in both.
fn meet(left: &[Range<usize>], right: &[Range<usize>]) -> Vec<Range<usize>> {
    let both = left.iter().flat_map(|a| right.iter().map(move |b| a.start.max(b.start)..a.end.min(b.end)));
    both.filter(|range| !range.is_empty()).collect()
}

/// Bits of a slice, set where it is in one of `parts`.
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
    fn slices_meet_pages_as_a_whole_in_part_or_not() {
        let pages = Pages(vec![0..8192, 16_384..20_000]);
        assert_eq!(pages.count(), 2);
        assert_eq!(pages.meeting(&(0..8192)), Meeting::Whole);
        assert_eq!(pages.meeting(&(8192..16_384)), Meeting::Apart);
        assert_eq!(pages.meeting(&(8000..17_000)), Meeting::Partly(vec![8000..8192, 16_384..17_000]));
        let slice = 8000..17_000;
        let mut bits = bits(&slice, &[8000..8192, 16_384..17_000]);
        let set: Vec<_> = bits.finish().set_slices().collect();
        assert_eq!(set, [(0, 192), (8384, 9000)]);
    }
}
