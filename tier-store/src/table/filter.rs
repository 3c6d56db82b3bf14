//! Membership filters: may a segment hold a value?
//!
//! A [`SegmentFilter`] is a binary fuse filter (Graf and Lemire, "Binary fuse filters", 2022) over the hashes of a segment's
//! values, null not counted: 9 bits per distinct value. It denies no value of the segment and lets one of 256 others pass.
//! Hashes depend on the value alone (see [`super::value_hash`]), so a literal and a narrowly stored column agree.
//!
//! Only types whose values are equal when, and only when, their bytes are: no floats (0.0 and -0.0), no intervals, nothing
//! nested; no booleans, which a filter is of no use for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use xorf::{BinaryFuse8, Filter};

use super::value_hash::each_hash;
use crate::tier::Charge;

/// The distinct values of a column or a list, by their hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedValues(Vec<u64>);

impl HashedValues {
    /// The values that are not null; `None` for a type that has no filters.
    pub fn of(values: &ArrayRef) -> Option<Self> {
        let data_type = values.data_type();
        let numbers = data_type.is_primitive() && !data_type.is_floating();
        let texts = matches!(
            data_type,
            DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
        );
        if !(numbers || texts) || matches!(data_type, DataType::Interval(_)) {
            return None;
        }
        let mut hashes = Vec::with_capacity(values.len());
        each_hash(values, &mut |hash| hashes.push(hash))?;
        hashes.sort_unstable();
        hashes.dedup();
        Some(Self(hashes))
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True without a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when some value is in both.
    pub(super) fn meets(&self, others: &Self) -> bool {
        others.0.iter().any(|hash| self.0.binary_search(hash).is_ok())
    }
}

/// What a segment's values are among.
pub struct SegmentFilter {
    fuse: BinaryFuse8,
    last_use_us: AtomicU64,
    _charge: Charge,
    /// Counts those that live.
    _alive: Arc<()>,
}

impl std::fmt::Debug for SegmentFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentFilter").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// A filter on its way to its segment.
pub(super) struct NewFilter(BinaryFuse8);

impl NewFilter {
    /// The filter of `values`; `None` where none can be made, or none is needed: of no values.
    pub(super) fn of(values: &HashedValues) -> Option<Self> {
        // The values are distinct, so this fails with a probability that is no matter.
        if values.is_empty() { None } else { BinaryFuse8::try_from(values.0.as_slice()).ok().map(Self) }
    }

    /// Its size in memory.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.0)
    }

    /// The filter, paid for.
    pub(super) fn charged(self, charge: Charge, alive: Arc<()>, now_us: u64) -> SegmentFilter {
        SegmentFilter { fuse: self.0, last_use_us: AtomicU64::new(now_us), _charge: charge, _alive: alive }
    }
}

fn bytes_of(fuse: &BinaryFuse8) -> u64 {
    (size_of::<SegmentFilter>() + fuse.len()) as u64
}

impl SegmentFilter {
    /// Its size in memory.
    pub fn bytes(&self) -> u64 {
        bytes_of(&self.fuse)
    }

    /// False when none of `values` is in the segment.
    pub(super) fn may_contain(&self, values: &HashedValues) -> bool {
        values.0.iter().any(|hash| self.fuse.contains(hash))
    }

    /// Notes that it was of use.
    pub(super) fn touch(&self, now_us: u64) {
        self.last_use_us.store(now_us, Ordering::Relaxed);
    }

    /// When it was last of use.
    pub(super) fn last_use_us(&self) -> u64 {
        self.last_use_us.load(Ordering::Relaxed)
    }
}

/// The filter of a segment, if it has one, and how often one would have been of use.
#[derive(Debug, Default)]
pub(crate) struct FilterSlot {
    filter: ArcSwapOption<SegmentFilter>,
    vain_reads: AtomicU32,
}

impl FilterSlot {
    /// The filter.
    pub(super) fn get(&self) -> Guard<Option<Arc<SegmentFilter>>> {
        self.filter.load()
    }

    /// Puts a filter in its place, or none.
    pub(super) fn set(&self, filter: Option<SegmentFilter>) {
        self.vain_reads.store(0, Ordering::Relaxed);
        self.filter.store(filter.map(Arc::new));
    }

    /// Notes that the segment was read and no row of it wanted; how often that was.
    pub(super) fn read_in_vain(&self) -> u32 {
        self.vain_reads.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }
}

#[cfg(test)]
mod tests;
