//! How much is given to a device at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes given to the device at once, the last piece not counted: enough to keep it busy, and few enough that a scan can
/// work on the first chunk while the next are read, also where a device answers all it was given at once. Calibration
/// finds it.
#[derive(Debug)]
pub struct Depth(AtomicU64);

impl Depth {
    /// Two pieces: one is read while another is given.
    pub const LEAST: u64 = 2 << 20;
    /// As deep as any device needs.
    pub const MOST: u64 = 32 << 20;

    /// The bytes.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets them, within its bounds.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes.clamp(Self::LEAST, Self::MOST), Ordering::Relaxed);
    }
}

impl Default for Depth {
    /// What suits most devices.
    fn default() -> Self {
        Self(AtomicU64::new(8 << 20))
    }
}
