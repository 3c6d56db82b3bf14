//! Limits the bytes per second that moves read from and write to each device.
//!
//! A move loads the device it reads from with the bytes stored there, and the device it writes to with the bytes of the
//! image. It begins when both devices are free again; while they are busy, moves between other devices go first.
//! Dropping a copy loads no device.

use terrace_model::{MAX_TIERS, TierId};

use super::mover::Relocation;

/// Bytes per second of each tier's device, by position, the home last. `None` and missing entries mean no limit.
pub type DeviceRates = [Option<u64>];

/// Tracks when each device is free again.
#[derive(Debug, Default)]
pub(super) struct RateLimiter {
    free_at_us: [u64; MAX_TIERS],
}

impl RateLimiter {
    /// The earliest time at which the devices of a move are free.
    pub(super) fn start_us(&self, relocation: &Relocation, home: TierId) -> u64 {
        let free_at = |(tier, _): (TierId, u64)| self.free_at_us.get(usize::from(tier.0)).copied().unwrap_or(0);
        device_loads(relocation, home).map(free_at).max().unwrap_or(0)
    }

    /// Counts the bytes of a move that began at `start_us`.
    pub(super) fn charge(&mut self, rates: &DeviceRates, relocation: &Relocation, home: TierId, start_us: u64) {
        for (tier, bytes) in device_loads(relocation, home) {
            let at = usize::from(tier.0);
            let (Some(rate), Some(free_at_us)) = (rates.get(at).copied().flatten(), self.free_at_us.get_mut(at)) else {
                continue;
            };
            *free_at_us = start_us.max(*free_at_us) + bytes.saturating_mul(1_000_000) / rate.max(1);
        }
    }
}

/// The bytes that a move reads from or writes to each device.
fn device_loads(relocation: &Relocation, home: TierId) -> impl Iterator<Item = (TierId, u64)> {
    let is_copied = relocation.to < home;
    let read_bytes = if relocation.from == home { relocation.home_bytes() } else { relocation.bytes() };
    [(relocation.from, read_bytes), (relocation.to, relocation.bytes())].into_iter().filter(move |_| is_copied)
}
