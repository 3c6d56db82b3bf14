//! The segments that a statement has counted: however often a statement reads a segment, it counts one access.
//!
//! A scan that is executed again, another scan of the same table, or rows fetched batch by batch read a segment again.
//! The first read of a statement counts the access, with the pattern of that read; later reads only add their values.
//! So the heat of a segment says how many statements need it, and its values how much of it they look at.
//!
//! The map has one byte for each segment of a table version, in pages that are allocated with their first segment.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use terrace_tier_store::heat::Pattern;
use terrace_tier_store::table::{Segment, TableVersion};

/// Segments per page.
const PAGE: usize = 1024;

/// Segments of one table version that one statement has counted.
#[derive(Debug)]
pub(super) struct CountedSegments {
    /// Weak, so that a statement that is over keeps no resident copies in memory.
    version: Weak<TableVersion>,
    columns: usize,
    pages: Box<[OnceLock<Box<Page>>]>,
}

/// For each segment 0, or one more than the pattern of its access.
#[derive(Debug)]
struct Page([AtomicU8; PAGE]);

impl CountedSegments {
    /// A map in which nothing is counted yet.
    pub(super) fn new(version: &Arc<TableVersion>, columns: usize) -> Self {
        let segments = version.chunks.len() * columns;
        let pages = (0..segments.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        Self { version: Arc::downgrade(version), columns, pages }
    }

    /// True when this is the map of `version`.
    pub(super) fn is_for(&self, version: &Arc<TableVersion>) -> bool {
        std::ptr::eq(self.version.as_ptr(), Arc::as_ptr(version))
    }

    /// Counts a read of `values` values of `segment`; `item` is the position of its chunk in this version, `column` its
    /// position in the table. True for the first read of the statement.
    pub(super) fn count(&self, item: u32, column: usize, segment: &Segment, pattern: Pattern, values: u64) -> bool {
        let before = self.mark(item as usize * self.columns + column, pattern);
        match before {
            None => segment.counters.record(pattern, values),
            Some(first) => segment.counters.record_more(first, values),
        }
        before.is_none()
    }

    /// Marks the segment at this place as counted; returns the pattern that it was counted with before, if it was.
    fn mark(&self, at: usize, pattern: Pattern) -> Option<Pattern> {
        let page = self.pages.get(at / PAGE)?.get_or_init(|| Box::new(Page([const { AtomicU8::new(0) }; PAGE])));
        let mark = page.0.get(at % PAGE)?;
        let before = mark.compare_exchange(0, pattern as u8 + 1, Ordering::Relaxed, Ordering::Relaxed).err()?;
        Pattern::ALL.get(usize::from(before) - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_tier_store::table::{ColumnId, SegmentHome};

    use super::*;
    use crate::scan::tests::{Fixture, Rng};

    #[test]
    fn one_statement_counts_a_segment_once_and_all_that_it_read_of_it() {
        let fixture = Fixture::new(&mut Rng(1), 100, 10, 0);
        let columns = fixture.table.schema().fields().len();
        let counted = CountedSegments::new(&fixture.version, columns);
        assert!(counted.is_for(&fixture.version));
        assert!(!counted.is_for(&Arc::new(TableVersion::clone(&fixture.version))));
        let segments: Vec<Segment> =
            (0..10 * columns).map(|_| Segment::new(ColumnId(0), SegmentHome::default())).collect();
        let count = |pattern: Pattern, values: u64| {
            for (at, segment) in segments.iter().enumerate() {
                counted.count((at / columns) as u32, at % columns, segment, pattern, values);
            }
        };
        count(Pattern::Monotonic, 7);
        count(Pattern::Sequential, 10);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| count(Pattern::Point, 1))));
        });
        for segment in &segments {
            let counts = segment.counters.snapshot();
            assert_eq!((counts.accesses, counts.values), ([0, 1, 0, 0], [0, 21, 0, 0]));
        }
    }
}
