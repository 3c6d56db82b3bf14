//! Membership filters of segments.
//!
//! A [`SegmentFilter`] is a binary fuse filter (Graf and Lemire, "Binary fuse filters", 2022) over the hashes of a
//! segment's values except nulls: 9 bits per distinct value. It has no false negatives, and a false positive rate of
//! 1/256. Hashes depend on the value alone (see [`super::value_hash`]), so a literal and a narrowly stored column
//! agree.
//!
//! Filters exist only for types whose values are equal if and only if their bytes are: no floats (0.0 and -0.0), no
//! intervals, no nested types. Booleans have none either, as a filter would not help.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use terrace_model::Charge;
use xorf::{BinaryFuse8, Filter};

use super::value_hash::for_each_hash;

/// Sorted hashes of the distinct values of a column or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedValues(Vec<u64>);

impl HashedValues {
    /// Hashes the values that are not null; `None` for a type that has no filters.
    pub fn from_array(values: &ArrayRef) -> Option<Self> {
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
        for_each_hash(values, &mut |hash| hashes.push(hash))?;
        hashes.sort_unstable();
        hashes.dedup();
        Some(Self(hashes))
    }

    /// Number of distinct values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True without a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when both have some value.
    pub(super) fn intersects(&self, others: &Self) -> bool {
        others.0.iter().any(|hash| self.0.binary_search(hash).is_ok())
    }
}

/// The membership filter of a segment.
pub struct SegmentFilter {
    fuse: BinaryFuse8,
    last_use_us: AtomicU64,
    _charge: Charge,
    /// Its reference counts the filter as long as it lives.
    _counted: Arc<()>,
}

impl std::fmt::Debug for SegmentFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentFilter").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// A filter that is not charged and not yet attached to a segment.
pub(super) struct NewFilter(BinaryFuse8);

impl NewFilter {
    /// Builds the filter of `values`; `None` without values, or when it cannot be built.
    pub(super) fn from_values(values: &HashedValues) -> Option<Self> {
        // Construction fails with negligible probability, as the values are distinct.
        if values.is_empty() { None } else { BinaryFuse8::try_from(values.0.as_slice()).ok().map(Self) }
    }

    /// Its size in memory.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.0)
    }

    /// Adds the memory charge; `counter` counts the filter as long as it lives.
    pub(super) fn with_charge(self, charge: Charge, counter: Arc<()>, now_us: u64) -> SegmentFilter {
        SegmentFilter { fuse: self.0, last_use_us: AtomicU64::new(now_us), _charge: charge, _counted: counter }
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

    /// Records that the filter excluded its segment.
    pub(super) fn touch(&self, now_us: u64) {
        self.last_use_us.store(now_us, Ordering::Relaxed);
    }

    /// The last time that the filter excluded its segment.
    pub(super) fn last_use_us(&self) -> u64 {
        self.last_use_us.load(Ordering::Relaxed)
    }
}

/// The filter of a segment, if it has one, and the number of reads that one might have avoided.
#[derive(Debug, Default)]
pub(crate) struct FilterSlot {
    filter: ArcSwapOption<SegmentFilter>,
    useless_reads: AtomicU32,
}

impl FilterSlot {
    /// The filter, if there is one.
    pub(super) fn get(&self) -> Guard<Option<Arc<SegmentFilter>>> {
        self.filter.load()
    }

    /// Sets or removes the filter.
    pub(super) fn set(&self, filter: Option<SegmentFilter>) {
        self.useless_reads.store(0, Ordering::Relaxed);
        self.filter.store(filter.map(Arc::new));
    }

    /// Counts a read of the segment of which no row was needed; returns the number of such reads.
    pub(super) fn count_useless_read(&self) -> u32 {
        self.useless_reads.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }
}

#[cfg(test)]
mod tests;
