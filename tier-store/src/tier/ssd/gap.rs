//! How far apart two pieces of a file may lie and still be one read: the block size of partial reads, by device.
//!
//! What lies between is read through where that is cheaper than another request: a megabyte on a disk with an arm, a few
//! pages on a device that serves many requests at once, nothing on one whose requests are free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::tier::codec::CHECKSUM_BLOCK_BYTES;

/// Of columns side by side, what is read at once: about what a device takes as one request.
const TOGETHER_BYTES: u64 = 1 << 20;

/// What a device takes for a small and for a large read while it is kept busy, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadCost {
    /// Of [`Self::SMALL_BYTES`].
    pub small_us: f64,
    /// Of [`Self::LARGE_BYTES`].
    pub large_us: f64,
}

impl ReadCost {
    /// A checksum block: what a partial read has at least.
    pub const SMALL_BYTES: usize = CHECKSUM_BLOCK_BYTES;
    /// What calibration keeps a device busy with.
    pub const LARGE_BYTES: usize = 1 << 20;

    /// The longest hole that costs no more than the request that would leave it out: the line through both gives the time of
    /// a request and that of a byte. `None`: they make no sense.
    pub fn gap_bytes(&self) -> Option<u64> {
        let bytes_per_us = (Self::LARGE_BYTES - Self::SMALL_BYTES) as f64 / (self.large_us - self.small_us);
        let gap = self.small_us * bytes_per_us - Self::SMALL_BYTES as f64;
        (bytes_per_us > 0.0 && gap.is_finite()).then_some(gap.max(0.0) as u64)
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
mod tests {
    use super::*;

    /// A device that needs `request_us` for each read of those asked at once, and the time of its bytes.
    fn cost(request_us: f64, bytes_per_us: f64) -> ReadCost {
        let us = |bytes: usize| request_us + bytes as f64 / bytes_per_us;
        ReadCost { small_us: us(ReadCost::SMALL_BYTES), large_us: us(ReadCost::LARGE_BYTES) }
    }

    #[test]
    fn slow_requests_make_large_reads() {
        // An arm; a network disk of 3000 requests a second; SATA, whose bandwidth limits 16 KiB reads; NVMe.
        let devices = [(8_000.0, 150.0), (270.0, 250.0), (0.5, 520.0), (2.0, 6_000.0)];
        for (request_us, bytes_per_us) in devices {
            let gap = cost(request_us, bytes_per_us).gap_bytes().unwrap_or(u64::MAX) as f64;
            assert!((gap - request_us * bytes_per_us).abs() <= 2.0, "{request_us} {bytes_per_us}: {gap}");
        }
        // Requests that cost nothing; and no sense at all.
        assert!(cost(0.0, 500.0).gap_bytes().is_some_and(|gap| gap <= 1));
        for (small_us, large_us) in [(25.0, 25.0), (25.0, 5.0), (f64::NAN, 100.0), (f64::INFINITY, 100.0)] {
            assert_eq!(ReadCost { small_us, large_us }.gap_bytes(), None);
        }
    }

    #[test]
    fn what_is_fixed_stays() {
        let gap = ReadGap::default();
        assert_eq!((gap.bytes(), gap.together_bytes()), (16 << 10, 1 << 20));
        gap.measured(cost(1e9, 100.0));
        assert_eq!((gap.bytes(), gap.together_bytes()), (4 << 20, 8 << 20));
        gap.measured(ReadCost { small_us: 1.0, large_us: 1.0 });
        assert_eq!(gap.bytes(), ReadGap::USUAL);
        gap.fix(0);
        gap.measured(cost(1e9, 100.0));
        assert_eq!((gap.bytes(), gap.is_fixed(), gap.together_bytes()), (0, true, 1 << 20));
    }
}
