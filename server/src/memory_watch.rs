//! Watches resident memory, and stops the largest statement before the kernel stops the server.
//!
//! The parts of the [`MemoryPlan`](crate::memory::MemoryPlan) bound what the server knows of. States of some aggregates,
//! results of functions, plans and freed memory that the allocator keeps belong to no part, so a thread compares resident
//! memory, and what the kernel charges to the control group besides, with the limit of the plan:
//!
//! - Query memory counts what statements have held far beyond what their operators reserve for a quarter of a second.
//! - From [`PRESSURE_PERCENT`] of the limit on, the allocator returns freed memory to the system at once, also what idle
//!   threads have kept. While statements hold [`LARGE_BYTES`] together, it returns at once what is freed: they allocate and
//!   free by hundreds of megabytes, and twice what they held was resident when freed memory was kept for reuse. Nor does the
//!   kernel provide huge pages then.
//! - From [`SHORT_PERCENT`] on, no statement begins beside others but point statements.
//! - From [`CROWDED_PERCENT`] on, while several statements hold more than query memory and a quarter of it, those are
//!   stopped that hold the most beyond their reservations: values of aggregates are copied whole into their results, and
//!   nothing stops that on the way.
//! - From a sixteenth of the limit below the next mark on, or half of what the largest statement holds if that is more, the DRAM tier yields what is missing: a copy of a segment saves
//!   time, a statement that is stopped has no answer. It takes segments again when as much again has been free for
//!   [`YIELD_TIME`]. Large messages of clients are received slowly meanwhile.
//! - From [`FREE_PERCENT`] below the limit on, but at least [`LEAST_FREE_BYTES`], and a third of what the largest statement
//!   holds, as a table of groups that grows is copied into another one, statements are stopped with an error that says so,
//!   the largest first, until those that stop hold what is missing; the others wait before they read further rows, until
//!   these have ended. Further ones follow when these have ended, or after
//!   [`PATIENCE`], and only if memory is still short. For [`YIELD_PATIENCE`] after the tier was asked for memory none is
//!   stopped in the first half of what is kept for that table, also where the tier has none to give.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_planner_ext::engine::{Engine, StatementRecord, StopOrder};
use terrace_planner_ext::{Error as StatementError, ErrorKind};

use crate::allocator;
use crate::control_group::ControlGroup;
use crate::error::{Error, Result};
use crate::units::human_bytes;

/// Share of the limit from which on no statement begins beside others.
const SHORT_PERCENT: u64 = 88;
/// It begins again once so much less is in use.
const SHORT_BAND_PERCENT: u64 = 3;
/// Share of the limit from which on statements may not hold more than query memory together.
const CROWDED_PERCENT: u64 = 75;
/// Share of the limit from which on freed memory is not kept for reuse.
const PRESSURE_PERCENT: u64 = 80;
/// What statements hold together, from which on freed memory is not kept either.
const LARGE_BYTES: u64 = 384 << 20;
/// Or this share of the limit, if that is more.
const LARGE_PERCENT: u64 = 9;
/// Share of the limit that is to stay free: for pages that the kernel charges besides (page tables, sockets), and for what
/// statements allocate until they have stopped.
const FREE_PERCENT: u64 = 6;
/// At least so much is to stay free, or a quarter of the limit if that is less.
const LEAST_FREE_BYTES: u64 = 96 << 20;
/// A statement that holds less is not stopped: it would not help.
const LEAST_BYTES: u64 = 16 << 20;
/// How long the end of a stopped statement may take before the next one is stopped.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time between two returns of freed memory.
const RETURN_EVERY: Duration = Duration::from_millis(20);
/// Time for which the watch stops no statement after it has asked the DRAM tier for memory, while there is some room.
const YIELD_PATIENCE: Duration = Duration::from_millis(200);
/// Below this part of the limit, spilled rows may lie in room that the DRAM tier has left.
const AMPLE_PERCENT: u64 = 70;
/// How long memory has to be free before the DRAM tier takes segments again.
const YIELD_TIME: Duration = Duration::from_secs(2);
/// Time between two looks at the memory of the kernel, which reads a file that it has to put together.
const KERNEL_EVERY: Duration = Duration::from_millis(100);
/// Memory that processors can fill in a microsecond; it decides how soon to look again.
const FILLED_BYTES_PER_US: u64 = 16_000;
/// Characters of a statement that the log shows.
const SHOWN_SQL: usize = 100;
/// Bounds of the time between two looks.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);

/// The thread that watches; it ends when this is dropped.
pub struct MemoryWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Figures of the watch.
#[derive(Debug)]
pub struct WatchFigures {
    limit_bytes: u64,
    resident_bytes: AtomicU64,
    stopped_statements: AtomicU64,
    short: Arc<AtomicBool>,
}

impl WatchFigures {
    /// Figures before the first look.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        let (resident_bytes, stopped_statements) = Default::default();
        Arc::new(Self { limit_bytes, resident_bytes, stopped_statements, short: Arc::default() })
    }

    /// Memory that the process may use.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Memory of the process that is not of files, as last seen.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// Whether so much is in use that the DRAM tier yields.
    pub fn short(&self) -> &Arc<AtomicBool> {
        &self.short
    }

    /// Statements stopped so far to free memory.
    pub fn stopped_statements(&self) -> u64 {
        self.stopped_statements.load(Ordering::Relaxed)
    }
}

struct Shared {
    figures: Arc<WatchFigures>,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl MemoryWatch {
    /// Starts to watch for the statements of `engine`; `group` is the control group whose limit it is.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(engine: &Arc<Engine>, limit_bytes: u64, group: Option<ControlGroup>) -> Result<Self> {
        let figures = WatchFigures::new(limit_bytes);
        let shared = Arc::new(Shared { figures, ended: Mutex::new(false), wake: Condvar::new() });
        let engine = Arc::downgrade(engine);
        let watched = Arc::clone(&shared);
        let kernel = KernelMemory { group, bytes: 0, since_look: KERNEL_EVERY };
        let thread = std::thread::Builder::new()
            .name("terrace-memory".to_owned())
            .spawn(move || watched.run(&engine, kernel))
            .map_err(|e| Error::System(format!("cannot start the thread that watches memory: {e}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Its figures.
    pub fn figures(&self) -> Arc<WatchFigures> {
        Arc::clone(&self.shared.figures)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        *self.shared.ended.lock() = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread itself may be the last to hold the engine.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, engine: &Weak<Engine>, mut kernel: KernelMemory) {
        let mut reaction = Reaction::default();
        let limit_bytes = self.figures.limit_bytes;
        let mut wait = LONGEST;
        loop {
            let resident_bytes = resident_bytes().unwrap_or(0);
            self.figures.resident_bytes.store(resident_bytes, Ordering::Relaxed);
            let resident_bytes = resident_bytes + kernel.bytes_after(wait);
            let Some(engine) = engine.upgrade() else { return };
            wait = wait_for(resident_bytes, limit_bytes);
            engine.count_unreserved();
            engine.give_tiers_room(resident_bytes < share(limit_bytes, AMPLE_PERCENT));
            let memory = Memory {
                resident_bytes,
                limit_bytes,
                held_bytes: engine.held_bytes(),
                largest_bytes: engine.largest_bytes(),
                query_bytes: engine.memory().limit_bytes() as u64,
            };
            let stopping = engine.stopping();
            let due = reaction.due(memory, stopping, wait);
            if resident_bytes >= share(limit_bytes, SHORT_PERCENT) {
                tracing::debug!(?memory, reserved = engine.memory().used_bytes(), stopping, ?due, "memory is short");
            }
            if let Some(freely) = due.use_freely {
                allocator::use_memory_freely(freely);
            }
            if due.return_freed {
                allocator::return_freed_memory();
            }
            if let Some(is_short) = due.memory_short {
                engine.set_memory_short(is_short);
            }
            if let Some(is_paused) = due.paused {
                engine.set_paused(is_paused);
            }
            self.figures.short.store(matches!(due.yielding, Some(Yielding::Bytes(_))), Ordering::Relaxed);
            match due.yielding {
                Some(Yielding::Bytes(bytes)) => engine.store().tiering().yield_memory(bytes),
                Some(Yielding::End) => engine.store().tiering().end_yielding(),
                None => {}
            }
            if let Some(order) = due.stop {
                self.stop_largest(&engine, order, resident_bytes);
            }
            drop(engine);
            let mut ended = self.ended.lock();
            if !*ended {
                self.wake.wait_for(&mut ended, wait);
            }
            if *ended {
                return;
            }
        }
    }

    fn stop_largest(&self, engine: &Engine, order: StopOrder, resident_bytes: u64) {
        let limit_bytes = self.figures.limit_bytes;
        let stopped = engine.stop_largest(order, |record| out_of_memory(record, resident_bytes, limit_bytes));
        let used = human_bytes(resident_bytes);
        let limit = human_bytes(limit_bytes);
        for record in stopped {
            self.figures.stopped_statements.fetch_add(1, Ordering::Relaxed);
            let held = human_bytes(held_bytes(&record));
            let reserved = human_bytes(record.memory.reserved);
            let sql: String = record.masked_sql().chars().take(SHOWN_SQL).collect();
            tracing::warn!(
                query = %record.id, kind = record.kind.name(), state = record.state.name(), %held, %reserved, %used, %limit, %sql,
                "memory is short: the largest statement is stopped"
            );
        }
    }
}

/// What the kernel charges to the control group beyond the pages of processes and files.
struct KernelMemory {
    group: Option<ControlGroup>,
    /// As last seen.
    bytes: u64,
    since_look: Duration,
}

impl KernelMemory {
    /// How much it is, as of a moment ago; `time` has passed since the last call.
    fn bytes_after(&mut self, time: Duration) -> u64 {
        self.since_look += time;
        if self.since_look >= KERNEL_EVERY {
            self.since_look = Duration::ZERO;
            self.bytes = self.group.as_ref().and_then(ControlGroup::kernel_bytes).unwrap_or(0);
        }
        self.bytes
    }
}

/// Memory as it is now.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// With that of the kernel.
    resident_bytes: u64,
    limit_bytes: u64,
    /// What all statements hold.
    held_bytes: u64,
    /// What the largest one holds.
    largest_bytes: u64,
    /// Query memory.
    query_bytes: u64,
}

impl Memory {
    /// What several statements hold together beyond what they may.
    fn excess_bytes(&self) -> u64 {
        let crowded = self.resident_bytes >= share(self.limit_bytes, CROWDED_PERCENT);
        let others = self.held_bytes.saturating_sub(self.largest_bytes);
        let is_alone = others < (self.query_bytes / 4).max(LEAST_BYTES);
        if !crowded || is_alone { 0 } else { self.held_bytes.saturating_sub(self.query_bytes / 4 * 5) }
    }
}

/// What the watch has done, and what is due.
#[derive(Debug, Default)]
struct Reaction {
    /// Whether freed memory goes back at once.
    returns_freed: bool,
    memory_is_short: bool,
    is_paused: bool,
    /// Time since freed memory was returned.
    since_return: Duration,
    /// Time for which stopped statements have not ended.
    waited: Duration,
    /// Time for which the DRAM tier could have taken segments again; `None` while it does not yield.
    yielded: Option<Duration>,
    /// Time for which it has been asked for memory without a break.
    asked_for: Option<Duration>,
}

/// What the DRAM tier is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Yielding {
    /// Free so many bytes, and take no more.
    Bytes(u64),
    /// Take segments again.
    End,
}

/// What is due after a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Due {
    /// Whether the allocator uses memory freely from now on, if that changes.
    use_freely: Option<bool>,
    /// Whether to return what it has kept.
    return_freed: bool,
    /// Whether memory is short from now on, if that changes.
    memory_short: Option<bool>,
    /// Whether statements wait before they read on from now on, if that changes.
    paused: Option<bool>,
    /// What the DRAM tier is to do.
    yielding: Option<Yielding>,
    /// The statements to stop.
    stop: Option<StopOrder>,
}

impl Reaction {
    /// What is due now. `since` has passed since the last call; `stopping` statements were told to stop.
    fn due(&mut self, memory: Memory, stopping: usize, since: Duration) -> Due {
        let Memory { resident_bytes, limit_bytes, held_bytes, largest_bytes, .. } = memory;
        let mut due = Due::default();
        let under_pressure = resident_bytes >= share(limit_bytes, PRESSURE_PERCENT);
        let large = LARGE_BYTES.max(share(limit_bytes, LARGE_PERCENT));
        // Down to half of it, so that a statement does not switch back and forth.
        let large = if self.returns_freed { large / 2 } else { large };
        let returns_freed = under_pressure || held_bytes >= large;
        if returns_freed != self.returns_freed {
            self.returns_freed = returns_freed;
            due.use_freely = Some(!returns_freed);
            due.return_freed = returns_freed;
        }
        self.since_return += since;
        if under_pressure && self.since_return >= RETURN_EVERY {
            self.since_return = Duration::ZERO;
            due.return_freed = true;
        }
        let short_from = if self.memory_is_short { SHORT_PERCENT - SHORT_BAND_PERCENT } else { SHORT_PERCENT };
        let is_short = resident_bytes >= share(limit_bytes, short_from);
        if is_short != self.memory_is_short {
            self.memory_is_short = is_short;
            due.memory_short = Some(is_short);
        }
        self.waited = if stopping > 0 { self.waited + since } else { Duration::ZERO };
        let stop_from = stop_from(limit_bytes, largest_bytes);
        due.yielding = self.yielding(resident_bytes, stop_from, yield_band(limit_bytes, largest_bytes), since);
        // Nobody waits where no end of a statement can be expected.
        let is_paused = resident_bytes >= stop_from && stopping > 0;
        if is_paused != self.is_paused {
            self.is_paused = is_paused;
            due.paused = Some(is_paused);
        }
        // The tier frees hundreds of megabytes within a tenth of a second, and there is some room for that long.
        let patient_to = stop_from.midpoint(self::stop_from(limit_bytes, 0));
        let is_yielding = resident_bytes < patient_to && self.asked_for.is_some_and(|time| time < YIELD_PATIENCE);
        let unreserved = resident_bytes < stop_from || is_yielding;
        let needed_bytes = match unreserved {
            true => memory.excess_bytes(),
            false => resident_bytes - stop_from + LEAST_BYTES,
        };
        if needed_bytes > 0 {
            let counts_stopping = self.waited < PATIENCE;
            if !counts_stopping {
                self.waited = Duration::ZERO;
            }
            due.stop = Some(StopOrder { needed_bytes, least_bytes: LEAST_BYTES, counts_stopping, unreserved });
        }
        due
    }

    fn yielding(&mut self, resident: u64, stop_from: u64, band: u64, since: Duration) -> Option<Yielding> {
        let yield_from = stop_from - band;
        self.asked_for = (resident >= yield_from).then(|| self.asked_for.map_or(Duration::ZERO, |time| time + since));
        if resident >= yield_from {
            self.yielded = Some(Duration::ZERO);
            return Some(Yielding::Bytes(resident - yield_from + LEAST_BYTES));
        }
        let has_room = resident < yield_from - band;
        let yielded = self.yielded.map(|time| if has_room { time + since } else { Duration::ZERO });
        self.yielded = yielded.filter(|time| *time < YIELD_TIME);
        (yielded.is_some() && self.yielded.is_none()).then_some(Yielding::End)
    }
}

fn share(bytes: u64, percent: u64) -> u64 {
    bytes / 100 * percent
}

/// Resident memory from which on statements are stopped.
fn stop_from(limit_bytes: u64, largest_bytes: u64) -> u64 {
    let to_grow = (largest_bytes / 3).min(limit_bytes / 8);
    limit_bytes - share(limit_bytes, FREE_PERCENT).max(LEAST_FREE_BYTES.min(limit_bytes / 4)).max(to_grow)
}

/// How far below that the DRAM tier yields: two tables of groups that are copied into larger ones have added a third to what
/// their statement held within a tenth of a second.
fn yield_band(limit_bytes: u64, largest_bytes: u64) -> u64 {
    (limit_bytes / 16).max((largest_bytes / 2).min(limit_bytes / 8))
}

/// Time until the next look: a part of the time in which memory can fill up.
fn wait_for(resident_bytes: u64, limit_bytes: u64) -> Duration {
    let free = limit_bytes.saturating_sub(resident_bytes);
    Duration::from_micros(free / FILLED_BYTES_PER_US).clamp(SHORTEST, LONGEST)
}

fn held_bytes(record: &StatementRecord) -> u64 {
    record.memory.allocated.max(record.memory.reserved)
}

fn out_of_memory(record: &StatementRecord, resident_bytes: u64, limit_bytes: u64) -> StatementError {
    let message = format!(
        "the server stopped the statement to stay within its memory: {} of {} were in use, and this statement held the \
         most, about {} ({} of it reserved as query memory). Let it read or group fewer rows, run fewer statements at \
         once, or raise memory.limit",
        human_bytes(resident_bytes),
        human_bytes(limit_bytes),
        human_bytes(held_bytes(record)),
        human_bytes(record.memory.reserved),
    );
    StatementError::new(ErrorKind::ResourceExhausted, message)
}

/// Memory of this process that the kernel cannot take back: anonymous and shared memory, not pages of files.
pub(crate) fn resident_bytes() -> Option<u64> {
    parse_status(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_status(status: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((kib("RssAnon:")? + kib("RssShmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMIT: u64 = 4 << 30;

    #[test]
    fn memory_of_files_does_not_count() {
        let status = "VmRSS:\t  900 kB\nRssAnon:\t     500 kB\nRssFile:\t     300 kB\nRssShmem:\t     100 kB\n";
        assert_eq!(parse_status(status), Some(600 * 1024));
        assert_eq!(parse_status("VmRSS:\t 900 kB\n"), None);
        assert!(resident_bytes().unwrap() > 1 << 20);
    }

    fn resident(percent: u64) -> Memory {
        Memory {
            resident_bytes: share(LIMIT, percent),
            limit_bytes: LIMIT,
            held_bytes: 0,
            largest_bytes: 0,
            query_bytes: LIMIT / 4,
        }
    }

    #[test]
    fn as_many_statements_are_stopped_as_hold_what_is_missing() {
        let mut reaction = Reaction::default();
        let step = Duration::from_millis(100);
        let mut due = |percent, stopping| reaction.due(resident(percent), stopping, step).stop;
        assert_eq!(due(93, 0), None);
        let order = due(95, 0).unwrap();
        assert!(
            order.counts_stopping && order.needed_bytes == share(LIMIT, 95) - stop_from(LIMIT, 0) + LEAST_BYTES,
            "{order:?}"
        );
        // What the first ones hold counts for half a second, or until they have ended.
        let counted = [1, 1, 1, 1, 1, 1].map(|stopping| due(99, stopping).unwrap().counts_stopping);
        assert_eq!(counted, [true, true, true, true, false, true]);
        assert_eq!(due(90, 0), None, "the end of the first ones was enough");
        assert_eq!(stop_from(1 << 30, 0), (1024 - 96) << 20);
        assert_eq!(stop_from(100 << 20, 0), 75 << 20);
        assert_eq!(stop_from(2 << 30, 600 << 20), (2048 - 200) << 20);
        assert_eq!(stop_from(2 << 30, 2 << 30), (2048 - 256) << 20);
    }

    #[test]
    fn several_statements_hold_little_more_than_query_memory() {
        let mut reaction = Reaction::default();
        let mut due = |percent, held_bytes, largest_bytes| {
            let memory = Memory { held_bytes, largest_bytes, ..resident(percent) };
            reaction.due(memory, 0, Duration::ZERO).stop.map(|order| (order.needed_bytes, order.unreserved))
        };
        let gib = 1 << 30;
        assert_eq!(due(80, gib, gib / 2), None);
        assert_eq!(due(80, 2 * gib, gib), Some((gib / 4 * 3, true)));
        assert_eq!(due(74, 2 * gib, gib), None, "there is room");
        assert_eq!(due(80, 2 * gib, 2 * gib), None, "one alone");
    }

    #[test]
    fn while_statements_stop_the_others_wait() {
        let mut reaction = Reaction::default();
        let mut due = |percent, stopping| reaction.due(resident(percent), stopping, Duration::ZERO).paused;
        assert_eq!(due(95, 0), None);
        assert_eq!(due(95, 1), Some(true));
        assert_eq!(due(96, 1), None);
        assert_eq!(due(96, 0), Some(false), "it has ended, which was not enough");
        assert_eq!(due(96, 2), Some(true));
        assert_eq!(due(93, 1), Some(false));
    }

    #[test]
    fn while_memory_is_short_nobody_begins() {
        let mut reaction = Reaction::default();
        let mut due = |percent| reaction.due(resident(percent), 0, Duration::ZERO).memory_short;
        assert_eq!([87, 88, 93, 85, 84, 85].map(&mut due), [None, Some(true), None, None, Some(false), None]);
    }

    #[test]
    fn the_dram_tier_yields_before_a_statement_is_stopped() {
        let mut reaction = Reaction::default();
        let mut due = |percent, seconds| {
            let due = reaction.due(resident(percent), 0, Duration::from_secs(seconds));
            (due.yielding, due.stop.is_some())
        };
        let missing = |percent| share(LIMIT, percent) - (stop_from(LIMIT, 0) - LIMIT / 16) + LEAST_BYTES;
        assert_eq!(due(87, 0), (None, false));
        assert_eq!(due(89, 0), (Some(Yielding::Bytes(missing(89))), false));
        assert_eq!(due(95, 0), (Some(Yielding::Bytes(missing(95))), true));
        assert_eq!(due(85, 3), (None, false), "an eighth is not free yet");
        assert_eq!(due(70, 1), (None, false));
        assert_eq!(due(85, 1), (None, false));
        assert_eq!(due(70, 1), (None, false), "the time begins anew");
        assert_eq!(due(70, 1), (Some(Yielding::End), false));
        assert_eq!(due(70, 9), (None, false));
        assert_eq!([0, 64 << 20, 600 << 20, 2 << 30].map(|bytes| yield_band(LIMIT, bytes) >> 20), [256, 256, 300, 512]);
    }

    #[test]
    fn a_statement_is_not_stopped_while_the_tier_frees_memory_and_there_is_room() {
        let step = Duration::from_millis(50);
        let large = Memory { largest_bytes: 900 << 20, held_bytes: 900 << 20, ..resident(0) };
        let from = stop_from(LIMIT, large.largest_bytes);
        assert!(from < stop_from(LIMIT, 0));
        let stops = |reaction: &mut Reaction, resident_bytes| {
            reaction.due(Memory { resident_bytes, ..large }, 0, step).stop.is_some()
        };
        let mut reaction = Reaction::default();
        assert!([(); 4].iter().all(|()| !stops(&mut reaction, from)), "the tier has 200 ms");
        assert!(stops(&mut reaction, from));
        // It was asked a while ago, and freed what it could.
        assert!(stops(&mut reaction, from));
        assert!(!stops(&mut reaction, LIMIT / 2));
        assert!(!stops(&mut reaction, from), "it is asked anew");
        assert!(stops(&mut reaction, from.midpoint(stop_from(LIMIT, 0))), "there is no room to wait");
    }

    #[test]
    fn freed_memory_goes_back_while_memory_is_short() {
        let mut reaction = Reaction::default();
        let mut due = |memory| reaction.due(memory, 0, RETURN_EVERY / 2);
        assert_eq!(due(resident(79)), Due::default());
        assert_eq!(due(resident(80)), Due { use_freely: Some(false), return_freed: true, ..Due::default() });
        assert_eq!(due(resident(80)), Due::default());
        assert_eq!(due(resident(80)), Due { return_freed: true, ..Due::default() });
        assert_eq!(due(resident(50)), Due { use_freely: Some(true), ..Due::default() });
    }

    #[test]
    fn freed_memory_goes_back_while_statements_hold_much() {
        let mut reaction = Reaction::default();
        let mut due = |held_bytes| reaction.due(Memory { held_bytes, ..resident(50) }, 0, RETURN_EVERY / 2);
        assert_eq!(due(LARGE_BYTES - 1), Due::default());
        assert_eq!(due(LARGE_BYTES), Due { use_freely: Some(false), return_freed: true, ..Due::default() });
        assert_eq!(due(LARGE_BYTES / 2), Due::default());
        assert_eq!(due(LARGE_BYTES / 2 - 1), Due { use_freely: Some(true), ..Due::default() });
    }

    #[test]
    fn the_fuller_memory_is_the_sooner_it_looks_again() {
        let gib = 1 << 30;
        assert_eq!(wait_for(0, 24 * gib), LONGEST);
        assert_eq!(wait_for(2 * gib, 2 * gib), SHORTEST);
        let near = wait_for(2 * gib - (200 << 20), 2 * gib);
        assert!(near > SHORTEST && near < LONGEST / 3, "{near:?}");
    }
}
