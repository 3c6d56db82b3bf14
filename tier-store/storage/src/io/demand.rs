//! Counts the reads of statements, and the time that the device is busy with them.

use parking_lot::Mutex;
use terrace_model::clock::{Clock, SystemClock};

/// Reads of statements since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadSums {
    /// Reads of up to [`ReadSums::SMALL_BYTES`].
    pub small_reads: u64,
    /// Reads of more bytes.
    pub large_reads: u64,
    /// Bytes of all reads.
    pub bytes: u64,
    /// Time in which at least one read was under way, in microseconds.
    pub busy_us: u64,
}

impl ReadSums {
    /// A read of more bytes is a large one.
    pub const SMALL_BYTES: u64 = 64 << 10;

    /// The difference to earlier sums.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            small_reads: self.small_reads.saturating_sub(before.small_reads),
            large_reads: self.large_reads.saturating_sub(before.large_reads),
            bytes: self.bytes.saturating_sub(before.bytes),
            busy_us: self.busy_us.saturating_sub(before.busy_us),
        }
    }
}

/// The reads of statements: those under way, and the sums since the start.
#[derive(Debug, Default)]
pub struct Demand {
    clock: SystemClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: u64,
    since_us: u64,
    sums: ReadSums,
}

impl Demand {
    /// Counts a read that was submitted.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        if state.under_way == 0 {
            state.since_us = self.clock.now_us();
        }
        state.under_way += 1;
    }

    /// Counts the end of a read: with its number of bytes, or `None` when it was withdrawn or failed.
    pub(super) fn end(&self, bytes: Option<usize>) {
        let mut state = self.state.lock();
        state.under_way = state.under_way.saturating_sub(1);
        if state.under_way == 0 {
            state.sums.busy_us += self.clock.now_us().saturating_sub(state.since_us);
        }
        let Some(bytes) = bytes.map(|bytes| bytes as u64) else { return };
        let sums = &mut state.sums;
        sums.bytes += bytes;
        match bytes > ReadSums::SMALL_BYTES {
            true => sums.large_reads += 1,
            false => sums.small_reads += 1,
        }
    }

    /// The sums so far.
    pub fn sums(&self) -> ReadSums {
        self.state.lock().sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_busy_from_the_first_read_to_the_last_answer() {
        let demand = Demand::default();
        let clock = SystemClock::default();
        let start_us = clock.now_us();
        demand.begin();
        demand.begin();
        demand.end(Some(4096));
        assert_eq!(demand.sums().busy_us, 0, "one is under way");
        clock.sleep(std::time::Duration::from_millis(2));
        demand.end(None);
        let sums = demand.sums();
        assert!(sums.busy_us >= 2000 && sums.busy_us <= clock.now_us() - start_us, "{sums:?}");
        clock.sleep(std::time::Duration::from_millis(2));
        demand.begin();
        demand.end(Some(1 << 20));
        let later = demand.sums();
        assert_eq!((later.small_reads, later.large_reads, later.bytes), (1, 1, 4096 + (1 << 20)));
        assert_eq!(later.since(&sums).bytes, 1 << 20);
    }
}
