//! How far apart two pieces of a file may lie and still be one read: the block size of partial reads, by device.
//!
//! What lies between is read through where that is cheaper than another request: a megabyte on a disk with an arm, a few
//! pages on a device that serves many requests at once, nothing on one whose requests are free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::heat::Pattern;
use crate::placement::TierProfile;
use crate::tier::codec::CHECKSUM_BLOCK_BYTES;

/// Of columns side by side, what is read at once: about what a device takes as one request.
const TOGETHER_BYTES: u64 = 1 << 20;

/// What a device takes for pages and for bytes while it is kept busy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadCost {
    /// Time of one more page of a column that is apart from the others, in microseconds.
    pub page_us: f64,
    /// Bytes per microsecond of whole columns.
    pub bytes_per_us: f64,
}

impl ReadCost {
    const PAGE_BYTES: f64 = CHECKSUM_BLOCK_BYTES as f64;

    /// As the home was measured: of reads at once, those of many pages of a column to those of few. `None`: it was not.
    pub(crate) fn of(home: &TierProfile) -> Option<Self> {
        let pages = || home.points.iter().filter(|point| point.pattern == Pattern::Monotonic);
        let at_once = pages().map(|point| point.at_once).max()?;
        let busiest = || pages().filter(|point| point.at_once == at_once);
        let few = busiest().min_by_key(|p| p.places)?;
        let many = busiest().max_by_key(|p| p.places)?;
        let [sequential, ..] = home.cost.patterns;
        let page_us = (many.us - few.us) / many.places.checked_sub(few.places).filter(|more| *more > 0)? as f64;
        Some(Self { page_us, bytes_per_us: sequential.bytes_per_us })
    }

    /// The longest hole that costs no more than the request that would leave it out: what is read of whole columns in the time
    /// of a page, less that page. `None`: the measurements make no sense.
    pub fn gap_bytes(&self) -> Option<u64> {
        let gap = self.page_us * self.bytes_per_us - Self::PAGE_BYTES;
        let sound = self.page_us > 0.0 && self.bytes_per_us > 0.0 && gap.is_finite();
        sound.then_some(gap.max(0.0) as u64)
    }
}

/// The longest hole that is read through.
#[derive(Debug)]
pub struct ReadGap {
    bytes: AtomicU64,
    fixed: AtomicBool,
}

impl ReadGap {
    /// What suits most devices, while nothing is known of this one: a checksum block.
    pub const USUAL: u64 = 16 << 10;
    /// Beyond that no device is believed.
    pub const MOST: u64 = 4 << 20;

    /// The bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets them for good: what is measured later changes nothing.
    pub fn fix(&self, bytes: u64) {
        self.bytes.store(bytes.min(Self::MOST), Ordering::Relaxed);
        self.fixed.store(true, Ordering::Relaxed);
    }

    /// True when it does not go by what is measured.
    pub fn is_fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed)
    }

    /// Goes by what was measured, unless it is fixed.
    pub fn measured(&self, cost: ReadCost) {
        if !self.is_fixed() {
            self.bytes.store(cost.gap_bytes().unwrap_or(Self::USUAL).min(Self::MOST), Ordering::Relaxed);
        }
    }

    /// Most bytes of several columns that are one read: on a slow device two thirds of a request's time shall be reading.
    pub(super) fn together_bytes(&self) -> u64 {
        TOGETHER_BYTES.max(2 * self.bytes())
    }
}

impl Default for ReadGap {
    fn default() -> Self {
        Self { bytes: AtomicU64::new(Self::USUAL), fixed: AtomicBool::new(false) }
    }
}

#[cfg(test)]
mod tests;
