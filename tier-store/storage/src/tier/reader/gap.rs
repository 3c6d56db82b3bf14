//! The read gap: the longest hole between two pieces of a file that one read includes, by device.
//!
//! A read includes a hole where that is cheaper than another request: a megabyte on a disk with an arm, a few pages on a
//! device that serves many requests at once, nothing on a device whose requests are free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::tier::codec::CHECKSUM_BLOCK_BYTES;

/// A group of neighbouring columns may have this many bytes on any device: about what it takes as one request.
const LEAST_GROUP_BYTES: u64 = 1 << 20;

/// Time that a busy device takes for pages and for bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadCost {
    /// Time of one more page of a column that is not next to the others, in microseconds.
    pub page_us: f64,
    /// Bytes per microsecond of whole columns.
    pub bytes_per_us: f64,
}

impl ReadCost {
    const PAGE_BYTES: f64 = CHECKSUM_BLOCK_BYTES as f64;

    /// The longest hole that costs no more than another request: the bytes of whole columns that the device reads in the time
    /// of a page, less that page. `None` when the measurements are inconsistent.
    pub fn gap_bytes(&self) -> Option<u64> {
        let gap = self.page_us * self.bytes_per_us - Self::PAGE_BYTES;
        let sound = self.page_us > 0.0 && self.bytes_per_us > 0.0 && gap.is_finite();
        sound.then_some(gap.max(0.0) as u64)
    }
}

/// The longest hole that a read includes.
#[derive(Debug)]
pub struct ReadGap {
    bytes: AtomicU64,
    fixed: AtomicBool,
}

impl ReadGap {
    /// A length that suits most devices, for a device that was not measured: a checksum block.
    pub const USUAL: u64 = 16 << 10;
    /// Upper limit: a longer measured gap is a measuring error.
    pub const MOST: u64 = 4 << 20;

    /// The length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the length for good: later measurements change nothing.
    pub fn fix(&self, bytes: u64) {
        self.bytes.store(bytes.min(Self::MOST), Ordering::Relaxed);
        self.fixed.store(true, Ordering::Relaxed);
    }

    /// True when measurements do not change the length.
    #[inline]
    pub fn is_fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed)
    }

    /// Sets the length by a measurement, unless it is fixed.
    pub fn set_measured(&self, cost: ReadCost) {
        if !self.is_fixed() {
            self.bytes.store(cost.gap_bytes().unwrap_or(Self::USUAL).min(Self::MOST), Ordering::Relaxed);
        }
    }

    /// Most bytes of a group of columns that are one read: on a slow device a request should spend two thirds of its
    /// time reading.
    pub(super) fn max_group_bytes(&self) -> u64 {
        LEAST_GROUP_BYTES.max(2 * self.bytes())
    }
}

impl Default for ReadGap {
    fn default() -> Self {
        Self { bytes: AtomicU64::new(Self::USUAL), fixed: AtomicBool::new(false) }
    }
}

#[cfg(test)]
mod tests;
