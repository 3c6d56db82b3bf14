//! Seeded faults of the host device: a full memory, launches that fail, a device that stops answering.

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How often an operation of the host device fails, as shares from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FaultRates {
    /// Of allocations: no memory.
    pub out_of_memory: f64,
    /// Of launches: the kernel does not run. Half of them say so; after the others the device is lost, as a GPU is after a
    /// kernel that failed.
    pub launch: f64,
    /// Of all operations: from here on the device is lost.
    pub lost: f64,
}

/// Draws faults from a seed: the same calls in the same order fail at the same places.
#[derive(Debug)]
pub struct Faults {
    rates: FaultRates,
    rng: Mutex<StdRng>,
}

impl Faults {
    /// Faults at these rates.
    pub fn new(seed: u64, rates: FaultRates) -> Self {
        Self { rates, rng: Mutex::new(StdRng::seed_from_u64(seed)) }
    }

    fn draw(&self, rate: f64) -> bool {
        rate > 0.0 && self.rng.lock().random_bool(rate.min(1.0))
    }

    /// True when the allocation at hand finds no memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.draw(self.rates.out_of_memory)
    }

    /// `Some(true)` when the launch at hand fails at once, `Some(false)` when the device is lost after it.
    pub(crate) fn failed_launch(&self) -> Option<bool> {
        self.draw(self.rates.launch).then(|| self.draw(0.5))
    }

    /// True when the device is lost from here on.
    pub(crate) fn is_lost(&self) -> bool {
        self.draw(self.rates.lost)
    }
}
