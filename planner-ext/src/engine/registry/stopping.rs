//! Stops statements to free memory, and when they may not read any more what they read; counts what stopped ones hold until their
//! tasks have ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_access::Principal;

use super::{Reading, Registry, RunningStatement, StatementRecord};
use crate::engine::memory::StatementMemory;
use crate::error::Error;

/// How long the tasks of a stopped statement may take to end.
const ENDING_US: u64 = 1_000_000;
/// What they hold meanwhile counts if it is as much.
const ENDING_BYTES: u64 = 16 << 20;

/// A statement that was stopped, and whose tasks may not have ended.
#[derive(Debug)]
pub(super) struct Ending {
    since_us: u64,
    memory: Arc<StatementMemory>,
}

/// How many statements to stop to free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOrder {
    /// What the stopped statements are to hold together.
    pub needed_bytes: u64,
    /// Statements that hold less are not stopped.
    pub least_bytes: u64,
    /// Whether those count that were told to stop before and have not ended.
    pub counts_stopping: bool,
    /// Whether statements are stopped in the order of what they hold beyond their reservations, and that alone counts;
    /// else of all that they hold.
    pub unreserved: bool,
}

impl Registry {
    /// Counts what the running statements have held beyond what their operators reserve for some time.
    pub(in crate::engine) fn count_unreserved(&self) {
        let now_us = self.clock.now_us();
        let statements: Vec<_> = self.running.lock().values().cloned().collect();
        statements.iter().for_each(|statement| statement.memory.count_unreserved(now_us));
    }

    /// Memory that the running statements hold.
    pub(in crate::engine) fn held_bytes(&self) -> u64 {
        self.running.lock().values().map(|statement| statement.memory.held_bytes()).sum()
    }

    /// Statements that were told to stop and have not ended, or hold much memory still.
    pub(in crate::engine) fn stopping(&self) -> usize {
        let stopping = self.running.lock().values().filter(|statement| statement.interrupt.is_stopping()).count();
        stopping + self.ending_bytes().len()
    }

    /// What the work of each stopped statement holds that has ended lately, if that is much.
    fn ending_bytes(&self) -> Vec<u64> {
        let now_us = self.clock.now_us();
        let mut ending = self.ending.lock();
        ending.retain(|ending| {
            now_us.saturating_sub(ending.since_us) < ENDING_US && ending.memory.heap().bytes() >= ENDING_BYTES
        });
        ending.iter().map(|ending| ending.memory.heap().bytes()).collect()
    }

    /// Makes statements wait before they read further rows, or lets them go on.
    pub(in crate::engine) fn set_paused(&self, is_paused: bool) {
        self.pause.set(is_paused);
    }

    /// What the statement that holds the most memory holds.
    pub(in crate::engine) fn largest_bytes(&self) -> u64 {
        self.running.lock().values().map(|statement| statement.memory.held_bytes()).max().unwrap_or(0)
    }

    /// Stops statements, the largest first, until those that stop hold `needed_bytes`. Leaves out those that commit or hold
    /// less than `least_bytes`. Each ends with the error that `reason` makes of its record.
    pub(in crate::engine) fn stop_largest(
        &self,
        order: StopOrder,
        reason: impl Fn(&StatementRecord) -> Error,
    ) -> Vec<StatementRecord> {
        let statements: Vec<_> = self.running.lock().values().cloned().collect();
        let mut freed_bytes: u64 = self.ending_bytes().into_iter().sum();
        let mut going_on = Vec::new();
        for statement in statements {
            let memory = &statement.memory;
            let held_bytes = if order.unreserved { memory.unreserved_bytes() } else { memory.held_bytes() };
            if statement.interrupt.is_stopping() {
                freed_bytes = freed_bytes.saturating_add(held_bytes);
            } else if statement.interrupt.may_stop() && held_bytes >= order.least_bytes {
                going_on.push((held_bytes, statement));
            }
        }
        if !order.counts_stopping {
            freed_bytes = 0;
        }
        going_on.sort_by_key(|(held_bytes, _)| std::cmp::Reverse(*held_bytes));
        let mut stopped = Vec::new();
        for (held_bytes, statement) in going_on {
            if freed_bytes >= order.needed_bytes {
                break;
            }
            let record = statement.record(self.clock.now_us());
            statement.interrupt.stop(reason(&record));
            freed_bytes = freed_bytes.saturating_add(held_bytes);
            stopped.push(record);
        }
        stopped
    }

    /// Stops the statements that `may_read` says may not read what they read, with the error `reason`. Leaves out those that commit.
    /// Returns how many were told to stop.
    pub(in crate::engine) fn stop_unless(
        &self,
        may_read: impl Fn(&Principal, &BTreeSet<Reading>) -> bool,
        reason: &Error,
    ) -> usize {
        let statements: Vec<_> = self.running.lock().values().cloned().collect();
        let mut stopped = 0;
        for statement in statements.into_iter().filter(|statement| statement.interrupt.may_stop()) {
            let readings = Arc::clone(&statement.readings.lock());
            if !may_read(&statement.principal, &readings) {
                statement.interrupt.stop(reason.clone());
                stopped += 1;
            }
        }
        stopped
    }

    /// Counts what the tasks of a statement hold that was stopped and ends now.
    pub(super) fn record_ending(&self, statement: &RunningStatement) {
        if statement.interrupt.is_stopping() {
            let ending = Ending { since_us: self.clock.now_us(), memory: Arc::clone(&statement.memory) };
            self.ending.lock().push(ending);
        }
    }
}
