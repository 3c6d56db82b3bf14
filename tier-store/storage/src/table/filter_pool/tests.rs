//! Tests when filters are built and when they are evicted.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array};
use terrace_model::ColumnId;
use terrace_model::clock::ManualClock;

use super::*;
use crate::table::SegmentHome;

struct Fixture {
    clock: Arc<ManualClock>,
    pool: FilterPool,
}

impl Fixture {
    fn new(limit_bytes: u64) -> Self {
        let clock = Arc::new(ManualClock::default());
        Self { pool: FilterPool::new(limit_bytes, Arc::<ManualClock>::clone(&clock)), clock }
    }

    /// Makes a segment of 1,000 even numbers from `first` on, with `times` useless reads.
    fn segment(&self, first: i64, times: usize) -> Arc<Segment> {
        let segment = Arc::new(Segment::new(ColumnId(0), SegmentHome::default()));
        (0..times).for_each(|_| self.read(&segment, first, first + 1));
        segment
    }

    fn read(&self, segment: &Arc<Segment>, first: i64, asked: i64) {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1000).map(|row| first + 2 * row)));
        self.pool.record_useless_read(segment, &StoredColumn::plain(values), &list(asked..=asked));
    }
}

fn list(values: std::ops::RangeInclusive<i64>) -> HashedValues {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    HashedValues::from_array(&values).unwrap()
}

#[test]
fn the_second_read_in_vain_builds_a_filter_that_denies_what_is_not_there() {
    let it = Fixture::new(1 << 20);
    let segment = it.segment(0, 1);
    assert!(it.pool.count() == 0 && !it.pool.excludes(&segment, &list(3..=3)));
    it.read(&segment, 0, 7);
    assert_eq!((it.pool.count(), it.pool.account().used_bytes()), (1, segment.filter_bytes().unwrap()));
    assert!(it.pool.excludes(&segment, &list(3..=3)));
    assert!(!it.pool.excludes(&segment, &list(3..=4)) && !it.pool.excludes(&segment, &list(4..=4)));
    assert!(!it.pool.excludes(&segment, &list(100_001..=100_900)), "of too many some pass anyway");
    drop(segment);
    assert_eq!((it.pool.count(), it.pool.account().used_bytes()), (0, 0), "it goes with its segment");
}

/// All chunks of the column have the probe value: another conjunct excluded the rows.
#[test]
fn what_would_not_have_helped_is_tried_more_and_more_rarely() {
    let it = Fixture::new(1 << 20);
    let segment = it.segment(0, 0);
    (0..7).for_each(|_| it.read(&segment, 0, 8));
    assert_eq!(it.pool.count(), 0);
    it.read(&segment, 0, 7);
    assert_eq!(it.pool.count(), 1, "the eighth is a try");
}

#[test]
fn without_a_budget_there_are_none() {
    let it = Fixture::new(0);
    let segment = it.segment(0, 64);
    assert!(it.pool.count() == 0 && segment.filter_bytes().is_none());
}

#[test]
fn a_full_pool_takes_a_new_filter_only_for_an_idle_one() {
    let size = {
        let it = Fixture::new(1 << 20);
        it.segment(0, 2).filter_bytes().unwrap()
    };
    let it = Fixture::new(3 * size + size / 2);
    let kept: Vec<_> = (0..3).map(|i| it.segment(i * 10_000, 2)).collect();
    let late = it.segment(50_000, 2);
    assert!(late.filter_bytes().is_none() && it.pool.count() == 3, "all are young");

    it.clock.advance(Duration::from_secs(61));
    assert!(it.pool.excludes(&kept[0], &list(1..=1)) && it.pool.excludes(&kept[2], &list(1..=1)));
    (0..2).for_each(|_| it.read(&late, 50_000, 1));
    assert!(late.filter_bytes().is_some() && it.pool.count() == 3);
    assert!(kept[1].filter_bytes().is_none(), "the one without use");
    assert!(it.pool.account().peak_bytes() <= it.pool.account().limit_bytes());

    it.read(&kept[1], 10_000, 1);
    it.read(&kept[1], 10_000, 1);
    assert!(kept[1].filter_bytes().is_none(), "the others are in use");
    drop((kept, late));
    let next: Vec<_> = (0..3).map(|i| it.segment(i, 2)).collect();
    assert!(next.iter().all(|segment| segment.filter_bytes().is_some()));
    assert!(it.pool.segments.lock().len() <= 3, "those that are no more leave no trace");
}
