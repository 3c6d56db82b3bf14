//! What the server asks of statements when memory is short.
//!
//! The server measures the memory of the process. It makes the engine count what statements hold beyond their reservations,
//! lets them wait, and stops the largest; the engine by itself does none of this.

use super::{Engine, StatementRecord, StopOrder};
use crate::error::Error;

impl Engine {
    /// Looks at what statements hold far beyond what their operators reserve: query memory counts what they have held for a
    /// quarter of a second.
    pub fn count_unreserved(&self) {
        self.registry.count_unreserved();
    }

    /// Memory that the running statements hold: of each, what it reserves or what it allocates, whichever is more.
    pub fn held_bytes(&self) -> u64 {
        self.registry.held_bytes()
    }

    /// Statements that were told to stop and have not ended.
    pub fn stopping(&self) -> usize {
        self.registry.stopping()
    }

    /// What the statement that holds the most memory holds.
    pub fn largest_bytes(&self) -> u64 {
        self.registry.largest_bytes()
    }

    /// Stops statements, the largest first, until enough memory is about to be free. Each ends with the error that `reason`
    /// makes of its record. Returns the records.
    pub fn stop_largest(&self, order: StopOrder, reason: impl Fn(&StatementRecord) -> Error) -> Vec<StatementRecord> {
        self.registry.stop_largest(order, reason)
    }

    /// Makes statements wait before they read further rows, or lets them go on.
    pub fn set_paused(&self, is_paused: bool) {
        self.registry.set_paused(is_paused);
    }

    /// While memory is short, a statement begins only if it is a point statement or no other one executes.
    pub fn set_memory_short(&self, is_short: bool) {
        self.admission.set_memory_short(is_short);
    }
}
