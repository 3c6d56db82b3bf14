//! Carries out a plan of moves, in order, at the rates of their devices, until done or cancelled.
//!
//! Segments of one chunk are read together, even if their moves do not follow each other: see [`LOOK_AHEAD`].
//! The queue tries a move whose target is full again after the others, which may free room for it. When no move can go
//! on, it picks a demotion, or a copy that changes its form on its tier and has room for the new one in the place of the old
//! one, drops the copy and makes the new one from the home later. If there is none, it waits, for a bounded time, until readers release old copies. Every state in between is a
//! valid placement.
//! The queue gives up moves to and from a failing device without trying them, except one probe after each pause: see
//! [`super::health`]. While moves of the home pause it drops no copy, unless room is wanted at once.
//!
//! - `admission`: decides which moves may begin while devices fail

mod admission;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use terrace_model::TierId;
use terrace_model::clock::Clock;

use super::device_rate::{DeviceRates, RateLimiter};
use super::health::Health;
use super::mover::{Outcome, Relocation, try_move, try_promote};
use crate::io::{Priority, let_others_run, set_priority};
use crate::tier::reader::ReadColumn;
use crate::tier::{HomeTier, MemoryTier};
use admission::Admitted;

/// Time between two checks of a full tier.
const FULL_TIER_POLL: Duration = Duration::from_millis(2);
/// Time for which moves wait for room that was recalled from temporary data, before they break a deadlock of full tiers.
const RECALL_TIME: Duration = Duration::from_millis(500);
/// The longest sleep between two checks of the cancel flag.
const MAX_SLEEP: Duration = Duration::from_millis(50);
/// Time between two checks of the progress of a background thread.
const PROGRESS_CHECK: Duration = Duration::from_millis(250);
/// The calling thread helps the background thread when it did less than this since the last check.
const ENOUGH_PROGRESS: Progress = Progress { bytes: 4 << 20, moves: 64 };
/// Time for which the calling thread helps.
const HELP_TIME: Duration = Duration::from_millis(10);
/// Number of later moves that are searched for more segments of the same chunk.
const LOOK_AHEAD: usize = 1024;
/// Maximum of the bytes that are read together: what a device takes as one request.
const MAX_BATCH_BYTES: u64 = 1 << 20;

/// How one move of a plan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Carried out.
    Done {
        /// Duration of the copy and swap, in microseconds.
        took_us: u64,
    },
    /// Given up, for this reason.
    Skipped(String),
}

/// The threads that carry out moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveExecutor {
    /// The calling thread, one move after the other.
    Caller,
    /// One thread of low priority. While it gets no processor time, the calling thread helps for a few milliseconds now
    /// and then, so that a server that is never idle follows its workload too.
    Background,
    /// This many threads: while one copies, others read.
    Threads(usize),
}

/// Carries out plans of moves.
pub struct MoveQueue<'a> {
    /// The byte-addressable tiers in order of their ids.
    pub tiers: &'a [Arc<dyn MemoryTier>],
    /// The tier where every segment has its durable bytes.
    pub home: &'a dyn HomeTier,
    /// Tracks which devices fail; the queue reports the results of moves to it.
    pub health: &'a Health,
    /// The clock for rates and waits.
    pub clock: &'a dyn Clock,
    /// Set to stop before the next move.
    pub cancel: &'a AtomicBool,
    /// Limits of the bytes per second of each device. Meant for an executor of one thread.
    pub rates: &'a DeviceRates,
    /// Maximum wait for readers to release room while no move can go on.
    pub patience: Duration,
    /// The threads that carry out the moves.
    pub executor: MoveExecutor,
    /// Room is wanted at once: copies are dropped even while moves of the home pause, when nothing else may be
    /// readable.
    pub urgent: bool,
}

/// A move with its position in the plan.
type NumberedMove = (usize, Relocation);

/// Work done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Bytes copied.
    bytes: u64,
    /// Moves ended.
    moves: u64,
}

/// The state that the threads of an executor share.
struct QueueState<F> {
    pending: VecDeque<NumberedMove>,
    /// Threads that carry out moves now.
    busy: usize,
    /// Threads that wait for the busy ones.
    waiting: usize,
    /// Moves in a row whose target was full.
    full_in_a_row: usize,
    /// Time spent waiting for room since the last move that ended.
    waited: Duration,
    rate_limiter: RateLimiter,
    progress: Progress,
    /// Called with the position and verdict of each move.
    on_end: F,
}

impl<F> QueueState<F> {
    fn has_work(&self) -> bool {
        !self.pending.is_empty() || self.busy > 0
    }
}

impl MoveQueue<'_> {
    /// Carries out `moves`, in order except for segments that are read together. Calls `on_end` once for each, with its
    /// position and verdict. Returns when all have ended.
    pub fn run(&self, moves: &[Relocation], on_end: impl FnMut(usize, Verdict) + Send) {
        let pending = moves.iter().cloned().enumerate().collect();
        let state = Mutex::new(QueueState {
            pending,
            busy: 0,
            waiting: 0,
            full_in_a_row: 0,
            waited: Duration::ZERO,
            rate_limiter: RateLimiter::default(),
            progress: Progress::default(),
            on_end,
        });
        let changed = Condvar::new();
        let work = &|| self.work(&state, &changed);
        std::thread::scope(|scope| {
            let spawn = |background: bool| -> bool {
                let thread = std::thread::Builder::new().name("terrace-mover".into());
                let body = move || {
                    if background {
                        set_priority(Priority::Moving);
                    }
                    work();
                };
                let spawned = thread.spawn_scoped(scope, body);
                spawned.inspect_err(|error| tracing::warn!(%error, "cannot start a thread for moves")).is_ok()
            };
            // Dropping a copy takes no time, so only moves that copy are worth a thread.
            let copies = moves.iter().filter(|relocation| usize::from(relocation.to.0) < self.tiers.len()).count();
            match self.executor {
                MoveExecutor::Caller => {}
                MoveExecutor::Background => {
                    if spawn(true) {
                        self.help(&state, &changed);
                    }
                }
                MoveExecutor::Threads(count) => (0..count.min(copies)).for_each(|_| _ = spawn(false)),
            }
        });
        // The calling thread carries out the moves that are left: all of them if it is the executor or no thread was
        // started.
        work();
    }

    /// Carries out moves until none is left.
    fn work<F: FnMut(usize, Verdict)>(&self, state: &Mutex<QueueState<F>>, changed: &Condvar) {
        let mut state = state.lock();
        while state.has_work() {
            self.step(&mut state, changed);
        }
    }

    /// Waits for the background thread to end. Carries out some moves while that thread makes too little progress
    /// though the rate allows more, and gives up all that are left once the queue is cancelled.
    fn help<F: FnMut(usize, Verdict)>(&self, state: &Mutex<QueueState<F>>, changed: &Condvar) {
        let mut state = state.lock();
        let mut checked_us = self.clock.now_us();
        let mut seen = state.progress;
        while state.has_work() {
            changed.wait_for(&mut state, MAX_SLEEP);
            if self.cancel.load(Ordering::Relaxed) && !state.pending.is_empty() {
                self.step(&mut state, changed);
                continue;
            }
            let now_us = self.clock.now_us();
            if now_us < checked_us + PROGRESS_CHECK.as_micros() as u64 {
                continue;
            }
            let bytes = state.progress.bytes - seen.bytes;
            let moves = state.progress.moves - seen.moves;
            let until_us = now_us + HELP_TIME.as_micros() as u64;
            while bytes < ENOUGH_PROGRESS.bytes
                && moves < ENOUGH_PROGRESS.moves
                && !state.pending.is_empty()
                && self.next_move(&state).1 <= self.clock.now_us()
                && self.clock.now_us() < until_us
            {
                self.step(&mut state, changed);
            }
            checked_us = self.clock.now_us();
            seen = state.progress;
        }
    }

    /// Carries out the next moves, or waits for other threads.
    fn step<F: FnMut(usize, Verdict)>(&self, state: &mut MutexGuard<'_, QueueState<F>>, changed: &Condvar) {
        // Every pending move found its target full since the last one ended.
        let is_stuck = state.full_in_a_row >= state.pending.len();
        if state.pending.is_empty() || (is_stuck && state.busy > 0) {
            state.waiting += 1;
            changed.wait(state);
            state.waiting -= 1;
            return;
        }
        if is_stuck {
            self.wait_for_room(state);
            return;
        }
        let (first, start_us) = self.next_move(state);
        let batch = take_batch(&mut state.pending, first, self.home_id());
        let Some(Admitted { moves: batch, probed }) = self.admit(batch, state) else { return };
        // The moves of a batch begin together, so they wait until the devices of all of them are free.
        let starts = batch.iter().map(|(_, relocation)| state.rate_limiter.start_us(relocation, self.home_id()));
        let start_us = starts.fold(start_us, u64::max).max(self.clock.now_us());
        state.busy += 1;
        let ended = MutexGuard::unlocked(state, || self.carry_out_caught(batch, start_us));
        state.busy -= 1;
        probed.into_iter().for_each(|tier| self.health.end_probe(self.name(tier)));
        for ((number, relocation), verdict) in ended {
            match verdict {
                Some(verdict) => {
                    if relocation.to < self.home_id() && matches!(verdict, Verdict::Done { .. }) {
                        state.progress.bytes += relocation.bytes();
                        state.rate_limiter.charge(self.rates, &relocation, self.home_id(), start_us);
                    }
                    state.full_in_a_row = 0;
                    state.waited = Duration::ZERO;
                    state.progress.moves += 1;
                    (state.on_end)(number, verdict);
                }
                None => {
                    state.full_in_a_row += 1;
                    state.pending.push_back((number, relocation));
                }
            }
        }
        // Wakes the threads that wait in `step`. A helping thread checks progress by the clock instead: waking it for
        // each move would take a processor from a query each time.
        if state.waiting > 0 || !state.has_work() {
            changed.notify_all();
        }
    }

    /// Finds the first move whose devices are free, else the move whose devices are free soonest. Returns its position
    /// in the pending moves and the time at which its devices are free.
    fn next_move<F>(&self, state: &QueueState<F>) -> (usize, u64) {
        let now_us = self.clock.now_us();
        let mut soonest = (0, u64::MAX);
        for (at, (_, relocation)) in state.pending.iter().enumerate().take(LOOK_AHEAD) {
            let start_us = state.rate_limiter.start_us(relocation, self.home_id());
            if start_us < soonest.1 {
                soonest = (at, start_us);
            }
            if start_us <= now_us {
                break;
            }
        }
        soonest
    }

    /// Like [`Self::carry_out`], but turns a panic into skipped moves: the other threads of the executor would wait for
    /// this one for ever.
    fn carry_out_caught(&self, batch: Vec<NumberedMove>, start_us: u64) -> Vec<(NumberedMove, Option<Verdict>)> {
        let copy = batch.clone();
        catch_unwind(AssertUnwindSafe(|| self.carry_out(batch, start_us))).unwrap_or_else(|_| {
            let verdict = || Some(Verdict::Skipped("internal error; see the log of the server".into()));
            copy.into_iter().map(|one| (one, verdict())).collect()
        })
    }

    /// Carries out a batch of moves from `start_us` on; the verdict is `None` for a move whose target is full.
    fn carry_out(&self, batch: Vec<NumberedMove>, start_us: u64) -> Vec<(NumberedMove, Option<Verdict>)> {
        if !self.wait_until(start_us) {
            return batch.into_iter().map(|one| (one, Some(Verdict::Skipped("cancelled".into())))).collect();
        }
        let read = self.read_ahead(&batch);
        let count = batch.len() as u64;
        let read_us = self.clock.now_us().saturating_sub(start_us) / count.max(1);
        let carried = batch.into_iter().zip(read).map(|((number, relocation), read)| {
            if self.cancel.load(Ordering::Relaxed) {
                return ((number, relocation), Some(Verdict::Skipped("cancelled".into())));
            }
            let start_us = self.clock.now_us();
            let outcome = match &read {
                Some(read) => try_promote(self.tiers, &relocation, read),
                None => try_move(self.tiers, self.home, &relocation),
            };
            let_others_run();
            self.report_health(&relocation, &outcome);
            let verdict = match outcome {
                Ok(Outcome::Moved) => {
                    Some(Verdict::Done { took_us: read_us + self.clock.now_us().saturating_sub(start_us) })
                }
                Ok(Outcome::Full) if self.is_drained(relocation.to) => {
                    Some(Verdict::Skipped(format!("{} is drained", self.name(relocation.to))))
                }
                Ok(Outcome::Full) if self.is_yielding(relocation.to) => Some(Verdict::Skipped(format!(
                    "{} takes nothing while running statements need its memory",
                    self.name(relocation.to)
                ))),
                Ok(Outcome::Full) => {
                    self.recall(&relocation);
                    None
                }
                Ok(Outcome::Stale(at)) => {
                    Some(Verdict::Skipped(format!("another move put the segment on {}", self.name(at))))
                }
                Ok(Outcome::Gone) => Some(Verdict::Skipped("its table was dropped or its chunk was replaced".into())),
                Err(error) => Some(Verdict::Skipped(error.to_string())),
            };
            ((number, relocation), verdict)
        });
        carried.collect()
    }

    /// Reads the columns of a batch of several moves together; `None` for each move that has to read on its
    /// own. A failed read does not tell which column it failed at, so each move then reads on its own.
    fn read_ahead(&self, batch: &[NumberedMove]) -> Vec<Option<ReadColumn>> {
        let mut read: Vec<_> = batch.iter().map(|_| None).collect();
        let fits = |(_, relocation): &NumberedMove| {
            let cold = relocation.chunk.segments.get(relocation.column).is_some_and(|s| s.resident.load().is_none());
            let target = self.tiers.get(usize::from(relocation.to.0));
            cold && target.is_some_and(|target| target.has_room(relocation.bytes()))
        };
        let Some((_, first)) = batch.first().filter(|_| batch.len() > 1 && batch.iter().all(fits)) else { return read };
        let columns: Vec<usize> = batch.iter().map(|(_, relocation)| relocation.column).collect();
        let found = self.home.read(&first.chunk, &columns).unwrap_or_default();
        for found in found {
            if let Some(place) =
                columns.iter().position(|column| *column == found.column).and_then(|at| read.get_mut(at))
            {
                *place = Some(found);
            }
        }
        read
    }

    /// Called when no move has room: makes room, waits for readers, or gives all moves up.
    fn wait_for_room<F: FnMut(usize, Verdict)>(&self, state: &mut QueueState<F>) {
        state.full_in_a_row = 0;
        // Temporary data leave a moment after their room was recalled.
        let recalled =
            state.waited < RECALL_TIME && state.pending.iter().any(|(_, relocation)| self.is_lent(relocation));
        if !recalled && self.unblock(&mut state.pending) {
            return;
        }
        if state.waited >= self.patience {
            for (number, relocation) in std::mem::take(&mut state.pending) {
                (state.on_end)(number, Verdict::Skipped(self.full_reason(&relocation)));
            }
            return;
        }
        self.clock.sleep(FULL_TIER_POLL);
        state.waited += FULL_TIER_POLL;
    }

    /// Waits until `start_us`; false when cancelled before.
    fn wait_until(&self, start_us: u64) -> bool {
        while !self.cancel.load(Ordering::Relaxed) {
            let wait_us = start_us.saturating_sub(self.clock.now_us());
            if wait_us == 0 {
                return true;
            }
            self.clock.sleep(Duration::from_micros(wait_us).min(MAX_SLEEP));
        }
        false
    }

    /// Breaks a deadlock of full tiers: drops the copy of one demotion between memory tiers, or of one that changes its form
    /// where it lies ([`Self::has_room_instead`]), now; the move is then carried out from the home.
    fn unblock(&self, pending: &mut VecDeque<NumberedMove>) -> bool {
        let home = self.home_id();
        // The segment could not be read until the home works again.
        if self.health.failing(self.home.name()).is_some() {
            return false;
        }
        let may_drop = |r: &Relocation| r.from != home && (r.from < r.to || r.from == r.to && self.has_room_instead(r));
        let Some((_, stuck)) = pending.iter_mut().find(|(_, r)| may_drop(r)) else { return false };
        let drop_copy = Relocation { to: home, ..stuck.clone() };
        let moved = try_move(self.tiers, self.home, &drop_copy);
        // Even if that failed: the next try then starts from the home and reports the segment as stale.
        stuck.from = home;
        matches!(moved, Ok(Outcome::Moved))
    }

    /// True for a change of form on one tier that has room for the new copy in the place of the old one, or that has more than
    /// its budget since this fell, so that copies have to go before any comes.
    fn has_room_instead(&self, relocation: &Relocation) -> bool {
        let segment = relocation.chunk.segments.get(relocation.column);
        let (Some(segment), Some(tier)) = (segment, self.tiers.get(usize::from(relocation.to.0))) else { return false };
        let old_bytes = segment.resident.load().as_ref().map_or(0, |copy| copy.bytes.buffer.len());
        let (used_bytes, limit_bytes) = (tier.account().used_bytes(), tier.account().limit_bytes());
        let other_bytes = used_bytes.saturating_sub(tier.charged_bytes(old_bytes));
        used_bytes > limit_bytes || other_bytes + tier.charged_bytes(relocation.bytes() as usize) <= limit_bytes
    }

    /// The reason for giving up a move whose target stayed full.
    fn full_reason(&self, relocation: &Relocation) -> String {
        let name = self.name(relocation.to);
        let Some(tier) = self.tiers.get(usize::from(relocation.to.0)) else { return format!("{name} is full") };
        let account = tier.account();
        let home = self.home.name();
        let why = match self.health.failing(home) {
            Some(_) => format!("copies are not dropped to make room while {home} is failing"),
            None => "old copies are still being read".to_owned(),
        };
        format!(
            "{name} is full: {} of {} bytes in use, {} needed; {why}",
            account.used_bytes(),
            account.limit_bytes(),
            tier.charged_bytes(relocation.bytes() as usize)
        )
    }

    /// Whether temporary data have room on the target.
    fn is_lent(&self, relocation: &Relocation) -> bool {
        self.tiers.get(usize::from(relocation.to.0)).is_some_and(|tier| tier.account().lent_bytes() > 0)
    }

    /// Asks for the room that temporary data have on the target.
    fn recall(&self, relocation: &Relocation) {
        if let Some(tier) = self.tiers.get(usize::from(relocation.to.0)) {
            tier.account().recall(tier.charged_bytes(relocation.bytes() as usize));
        }
    }

    fn is_drained(&self, tier: TierId) -> bool {
        self.tiers.get(usize::from(tier.0)).is_some_and(|tier| tier.account().is_closed())
    }

    fn is_yielding(&self, tier: TierId) -> bool {
        self.tiers.get(usize::from(tier.0)).is_some_and(|tier| tier.account().is_yielding())
    }

    fn home_id(&self) -> TierId {
        TierId(self.tiers.len() as u8)
    }

    fn name(&self, tier: TierId) -> &str {
        self.tiers.get(usize::from(tier.0)).map_or(self.home.name(), |tier| tier.name())
    }
}

/// Takes the move at position `first`, and with it those of the next moves that promote segments of the same chunk from
/// home.
fn take_batch(pending: &mut VecDeque<NumberedMove>, first: usize, home: TierId) -> Vec<NumberedMove> {
    let mut batch: Vec<NumberedMove> = pending.remove(first).into_iter().collect();
    let Some((_, first)) = batch.first().filter(|(_, first)| first.from == home && first.to < home) else {
        return batch;
    };
    let chunk = Arc::clone(&first.chunk);
    let mut bytes = first.home_bytes();
    let mut at = 0;
    while at < pending.len().min(LOOK_AHEAD) && bytes < MAX_BATCH_BYTES {
        let fits = pending.get(at).is_some_and(|(_, other)| {
            let promoted = Arc::ptr_eq(&other.chunk, &chunk) && other.from == home && other.to < home;
            promoted && bytes + other.home_bytes() <= MAX_BATCH_BYTES
        });
        match fits.then(|| pending.remove(at)).flatten() {
            Some(other) => {
                bytes += other.1.home_bytes();
                batch.push(other);
            }
            None => at += 1,
        }
    }
    batch
}
