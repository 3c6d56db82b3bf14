//! The rate of each device: what moves read from it and write to it per second.
//!
//! A move loads the device it reads from with the bytes that lie there, and the one it writes to with those of the image. It
//! begins when both are free again; one that finds them busy lets others go first that need other devices. A copy that is
//! only dropped loads none.

use super::mover::Relocation;
use crate::tier::{MAX_TIERS, TierId};

/// Bytes per second of each tier's device, by position, the home last; `None`, and what is left out: as fast as it goes.
pub type Rates = [Option<u64>];

/// When devices are free again.
#[derive(Debug, Default)]
pub(super) struct Pace {
    free_at_us: [u64; MAX_TIERS],
}

impl Pace {
    /// When a move may begin, as far as devices are concerned.
    pub(super) fn start_us(&self, relocation: &Relocation, home: TierId) -> u64 {
        let free_at = |(tier, _): (TierId, u64)| self.free_at_us.get(usize::from(tier.0)).copied().unwrap_or(0);
        loads(relocation, home).map(free_at).max().unwrap_or(0)
    }

    /// Takes note of a move that began at `start_us`.
    pub(super) fn charge(&mut self, rates: &Rates, relocation: &Relocation, (home, start_us): (TierId, u64)) {
        for (tier, bytes) in loads(relocation, home) {
            let at = usize::from(tier.0);
            let (Some(rate), Some(free_at_us)) = (rates.get(at).copied().flatten(), self.free_at_us.get_mut(at)) else {
                continue;
            };
            *free_at_us = start_us.max(*free_at_us) + bytes.saturating_mul(1_000_000) / rate.max(1);
        }
    }
}

/// What a move asks of devices, in bytes.
fn loads(relocation: &Relocation, home: TierId) -> impl Iterator<Item = (TierId, u64)> {
    let is_copied = relocation.to < home;
    let read_bytes = if relocation.from == home { relocation.home_bytes() } else { relocation.bytes() };
    [(relocation.from, read_bytes), (relocation.to, relocation.bytes())].into_iter().filter(move |_| is_copied)
}
