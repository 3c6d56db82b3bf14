//! The queue depth of a device, in bytes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the engine submits to the device at once, the last piece not counted: enough to keep the device busy, and few
/// enough that a scan can process the first chunk while the next are read, even on a device that completes all submitted
/// reads at the same time. Calibration measures it.
#[derive(Debug)]
pub struct Depth {
    bytes: AtomicU64,
    beside_points: AtomicU64,
}

impl Depth {
    /// Least depth, two pieces: the device reads one while the engine submits the other.
    pub const LEAST: u64 = 2 << 20;
    /// Default of [`Self::beside_points`]: measured, docs/design/io-queue.md.
    pub const BESIDE_POINTS: u64 = 256 << 10;
    /// Least of them, a piece.
    pub const LEAST_BESIDE_POINTS: u64 = 256 << 10;
    /// Greatest depth: no device needs more.
    pub const MOST: u64 = 32 << 20;

    /// The depth in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes of other reads that run while look-ups come, which read points ([`Class::Point`](super::Class::Point)) and
    /// nothing else; at most [`Self::bytes`]. A read of a page waits for them.
    #[inline]
    pub fn beside_points(&self) -> u64 {
        self.beside_points.load(Ordering::Relaxed).min(self.bytes())
    }

    /// Sets [`Self::beside_points`]; at least one piece.
    pub fn set_beside_points(&self, bytes: u64) {
        self.beside_points.store(bytes.max(Self::LEAST_BESIDE_POINTS), Ordering::Relaxed);
    }

    /// Sets the depth, clamped to the limits.
    pub fn set(&self, bytes: u64) {
        self.bytes.store(bytes.clamp(Self::LEAST, Self::MOST), Ordering::Relaxed);
    }
}

impl Default for Depth {
    /// A depth that suits most devices.
    fn default() -> Self {
        Self { bytes: AtomicU64::new(8 << 20), beside_points: AtomicU64::new(Self::BESIDE_POINTS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_points_there_is_a_piece_at_least_and_no_more_than_without() {
        let depth = Depth::default();
        assert_eq!((depth.beside_points(), depth.bytes()), (256 << 10, 8 << 20));
        depth.set_beside_points(0);
        assert_eq!(depth.beside_points(), 256 << 10);
        depth.set_beside_points(4 << 20);
        assert_eq!(depth.beside_points(), 4 << 20);
        depth.set(0);
        assert_eq!((depth.beside_points(), depth.bytes()), (Depth::LEAST, Depth::LEAST));
    }
}
