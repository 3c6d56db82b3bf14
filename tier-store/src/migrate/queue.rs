//! A plan of moves, carried out in order, at the rates of their devices, until done or cancelled.
//!
//! What comes from one chunk is read together, also where it is not next: see [`LOOK_AHEAD`].
//! A move whose target is full is tried again after the others, which may free room for it. When no move can go on, a
//! demotion in the way drops its copy and takes it from the home later; failing that the queue waits, for a bounded
//! time, until readers let go of old copies. Every state in between is a valid placement.
//! Moves to and from a device that fails are given up without being tried, but for one after each pause: see
//! [`super::health`]. While those of the home pause no copy is dropped, unless room is wanted at once.

mod admission;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::health::Health;
use super::mover::{HomeTier, Outcome, Relocation, try_move, try_promote};
use super::pace::{Pace, Rates};
use crate::clock::Clock;
use crate::io::{Priority, give_way, let_others_run};
use crate::tier::ssd::ReadColumn;
use crate::tier::{MemoryTier, TierId};

/// Between two looks at a full tier.
const POLL: Duration = Duration::from_millis(2);
/// The longest sleep between two looks at the cancel flag.
const NAP: Duration = Duration::from_millis(50);
/// How often a crew that leaves the processor to others is looked after.
const WATCH: Duration = Duration::from_millis(250);
/// It needs no help when it moved so many bytes, or so many segments, since the last look.
const ENOUGH: (u64, u64) = (4 << 20, 64);
/// The help it gets otherwise.
const HELP: Duration = Duration::from_millis(10);
/// How many later moves are looked through for more of the same chunk.
const LOOK_AHEAD: usize = 1024;
/// Bytes that are read at once: what a device takes as one request.
const TOGETHER_BYTES: u64 = 1 << 20;

/// How one move of a plan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Carried out within so many microseconds.
    Done {
        /// Time of the copy and swap.
        took_us: u64,
    },
    /// Given up, and why.
    Skipped(String),
}

/// Who carries out moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crew {
    /// The calling thread: in order, one after the other.
    Caller,
    /// One thread that leaves the processor to others, where they want it. The calling one helps, a few milliseconds now
    /// and then, when it gets nowhere, so that also a server that is never idle follows its workload.
    Background,
    /// So many threads: while one copies, others read.
    Threads(usize),
}

/// What a plan of moves is carried out with.
pub struct MoveQueue<'a> {
    /// Byte-addressable tiers in order of their ids.
    pub tiers: &'a [Arc<dyn MemoryTier>],
    /// Where every segment has its durable bytes.
    pub home: &'a dyn HomeTier,
    /// Which devices fail; told what moves find.
    pub health: &'a Health,
    /// Time for rate and patience.
    pub clock: &'a dyn Clock,
    /// Set to stop before the next move.
    pub cancel: &'a AtomicBool,
    /// What devices read and write per second at most. Meant for a crew of one.
    pub rates: &'a Rates,
    /// How long to wait for readers to release room while nothing else can go on.
    pub patience: Duration,
    /// Who does it.
    pub crew: Crew,
    /// Room is wanted at once: copies are dropped though moves of the home pause, and they may be all that can be read.
    pub urgent: bool,
}

type Numbered = (usize, Relocation);

/// What the threads of a crew share.
struct Shift<F> {
    pending: VecDeque<Numbered>,
    /// Threads that carry out moves now.
    busy: usize,
    /// Threads that wait for what those do.
    waiting: usize,
    /// Moves in a row whose target was full.
    full: usize,
    waited: Duration,
    pace: Pace,
    /// Bytes copied so far, and moves ended.
    progress: (u64, u64),
    ended: F,
}

impl<F> Shift<F> {
    fn goes_on(&self) -> bool {
        !self.pending.is_empty() || self.busy > 0
    }
}

impl MoveQueue<'_> {
    /// Carries out `moves`, begun in order but for neighbours on disk; tells `ended` the position and verdict of each, once.
    /// Returns when all have ended.
    pub fn run(&self, moves: &[Relocation], ended: impl FnMut(usize, Verdict) + Send) {
        let pending = moves.iter().cloned().enumerate().collect();
        let waited = Duration::ZERO;
        let pace = Pace::default();
        let progress = (0, 0);
        let shift = Shift { pending, busy: 0, waiting: 0, full: 0, waited, pace, progress, ended };
        let shift = Mutex::new(shift);
        let changed = Condvar::new();
        let work = &|| self.work(&shift, &changed);
        std::thread::scope(|scope| {
            let spawn = |background: bool| -> bool {
                let thread = std::thread::Builder::new().name("terrace-mover".into());
                let body = move || {
                    if background {
                        give_way(Priority::Moving);
                    }
                    work();
                };
                let spawned = thread.spawn_scoped(scope, body);
                spawned.inspect_err(|error| tracing::warn!(%error, "no thread for moves")).is_ok()
            };
            // What is only dropped is done at once.
            let copies = moves.iter().filter(|relocation| usize::from(relocation.to.0) < self.tiers.len()).count();
            match self.crew {
                Crew::Caller => {}
                Crew::Background => {
                    if spawn(true) {
                        self.help(&shift, &changed);
                    }
                }
                Crew::Threads(count) => (0..count.min(copies)).for_each(|_| _ = spawn(false)),
            }
        });
        // All of them, or what is left where no thread could be had.
        work();
    }

    fn work<F: FnMut(usize, Verdict)>(&self, shift: &Mutex<Shift<F>>, changed: &Condvar) {
        let mut shift = shift.lock();
        while shift.goes_on() {
            self.step(&mut shift, changed);
        }
    }

    /// Waits for the end of another thread's work, and does some of it where that gets nowhere though the rate allows, or all
    /// that is left to give up once that is wanted.
    fn help<F: FnMut(usize, Verdict)>(&self, shift: &Mutex<Shift<F>>, changed: &Condvar) {
        let mut shift = shift.lock();
        let mut looked_us = self.clock.now_us();
        let mut seen = shift.progress;
        while shift.goes_on() {
            changed.wait_for(&mut shift, NAP);
            if self.cancel.load(Ordering::Relaxed) && !shift.pending.is_empty() {
                self.step(&mut shift, changed);
                continue;
            }
            let now_us = self.clock.now_us();
            if now_us < looked_us + WATCH.as_micros() as u64 {
                continue;
            }
            let bytes = shift.progress.0 - seen.0;
            let moves = shift.progress.1 - seen.1;
            let until_us = now_us + HELP.as_micros() as u64;
            while bytes < ENOUGH.0
                && moves < ENOUGH.1
                && !shift.pending.is_empty()
                && self.next(&shift).1 <= self.clock.now_us()
                && self.clock.now_us() < until_us
            {
                self.step(&mut shift, changed);
            }
            (looked_us, seen) = (self.clock.now_us(), shift.progress);
        }
    }

    /// Carries out what is next, or waits for others to.
    fn step<F: FnMut(usize, Verdict)>(&self, shift: &mut MutexGuard<'_, Shift<F>>, changed: &Condvar) {
        if shift.pending.is_empty() || (shift.full >= shift.pending.len() && shift.busy > 0) {
            shift.waiting += 1;
            changed.wait(shift);
            shift.waiting -= 1;
            return;
        }
        if shift.full >= shift.pending.len() {
            self.wait_for_room(shift);
            return;
        }
        let (first, start_us) = self.next(shift);
        let batch = batch(&mut shift.pending, first, self.home_id());
        let Some((batch, tries)) = self.admit(batch, shift) else { return };
        // What is read at once waits for all of its targets.
        let starts = batch.iter().map(|(_, relocation)| shift.pace.start_us(relocation, self.home_id()));
        let start_us = starts.fold(start_us, u64::max).max(self.clock.now_us());
        shift.busy += 1;
        let ended = MutexGuard::unlocked(shift, || self.carry_safely(batch, start_us));
        shift.busy -= 1;
        tries.into_iter().for_each(|tier| self.health.end(self.name(tier)));
        for ((number, relocation), verdict) in ended {
            match verdict {
                Some(verdict) => {
                    if relocation.to < self.home_id() && matches!(verdict, Verdict::Done { .. }) {
                        shift.progress.0 += relocation.bytes();
                        shift.pace.charge(self.rates, &relocation, (self.home_id(), start_us));
                    }
                    (shift.full, shift.waited) = (0, Duration::ZERO);
                    shift.progress.1 += 1;
                    (shift.ended)(number, verdict);
                }
                None => {
                    shift.full += 1;
                    shift.pending.push_back((number, relocation));
                }
            }
        }
        // Who helps looks by the clock: waking it for each move would take a processor from a query each time.
        if shift.waiting > 0 || !shift.goes_on() {
            changed.notify_all();
        }
    }

    /// The first move whose devices are free, else the one whose devices are soonest, and when that is.
    fn next<F>(&self, shift: &Shift<F>) -> (usize, u64) {
        let now_us = self.clock.now_us();
        let mut soonest = (0, u64::MAX);
        for (at, (_, relocation)) in shift.pending.iter().enumerate().take(LOOK_AHEAD) {
            let start_us = shift.pace.start_us(relocation, self.home_id());
            if start_us < soonest.1 {
                soonest = (at, start_us);
            }
            if start_us <= now_us {
                break;
            }
        }
        soonest
    }

    /// As [`Self::carry`]; a defect in one move leaves the crew whole, which waits for all of its members.
    fn carry_safely(&self, batch: Vec<Numbered>, start_us: u64) -> Vec<(Numbered, Option<Verdict>)> {
        let names = batch.clone();
        catch_unwind(AssertUnwindSafe(|| self.carry(batch, start_us))).unwrap_or_else(|_| {
            let verdict = || Some(Verdict::Skipped("an internal error; the server's log has it".into()));
            names.into_iter().map(|one| (one, verdict())).collect()
        })
    }

    /// Carries out some moves, from `start_us` on; `None` for those whose target is full.
    fn carry(&self, batch: Vec<Numbered>, start_us: u64) -> Vec<(Numbered, Option<Verdict>)> {
        if !self.pace(start_us) {
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
            self.note(&relocation, &outcome);
            let verdict = match outcome {
                Ok(Outcome::Moved) => {
                    Some(Verdict::Done { took_us: read_us + self.clock.now_us().saturating_sub(start_us) })
                }
                Ok(Outcome::Full) if self.is_drained(relocation.to) => {
                    Some(Verdict::Skipped(format!("{} is drained", self.name(relocation.to))))
                }
                Ok(Outcome::Full) => None,
                Ok(Outcome::Stale(at)) => {
                    Some(Verdict::Skipped(format!("the segment went to {} meanwhile", self.name(at))))
                }
                Ok(Outcome::Gone) => Some(Verdict::Skipped("its table was dropped, or its chunk replaced".into())),
                Err(error) => Some(Verdict::Skipped(error.to_string())),
            };
            ((number, relocation), verdict)
        });
        carried.collect()
    }

    /// What is read at once for several moves of a chunk; `None` for what each reads for itself, if anything. A read that
    /// fails says nothing of its other columns, so then each tries by itself.
    fn read_ahead(&self, batch: &[Numbered]) -> Vec<Option<ReadColumn>> {
        let mut read: Vec<_> = batch.iter().map(|_| None).collect();
        let fits = |(_, relocation): &Numbered| {
            let cold = relocation.chunk.segments.get(relocation.column).is_some_and(|s| s.resident.load().is_none());
            let target = self.tiers.get(usize::from(relocation.to.0));
            cold && target.is_some_and(|target| target.has_room(relocation.bytes()))
        };
        let (Some((_, first)), true) = (batch.first(), batch.len() > 1 && batch.iter().all(fits)) else { return read };
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

    /// When nothing fits: makes room, waits for readers, or gives up.
    fn wait_for_room<F: FnMut(usize, Verdict)>(&self, shift: &mut Shift<F>) {
        shift.full = 0;
        if self.unblock(&mut shift.pending) {
            return;
        }
        if shift.waited >= self.patience {
            for (number, relocation) in std::mem::take(&mut shift.pending) {
                (shift.ended)(number, Verdict::Skipped(self.full(&relocation)));
            }
            return;
        }
        self.clock.sleep(POLL);
        shift.waited += POLL;
    }

    /// Waits until the rate allows the next copy; false when cancelled.
    fn pace(&self, free_at_us: u64) -> bool {
        while !self.cancel.load(Ordering::Relaxed) {
            let wait_us = free_at_us.saturating_sub(self.clock.now_us());
            if wait_us == 0 {
                return true;
            }
            self.clock.sleep(Duration::from_micros(wait_us).min(NAP));
        }
        false
    }

    /// Takes one demotion between full tiers off its tier: its copy is dropped now and made again from the home.
    fn unblock(&self, pending: &mut VecDeque<Numbered>) -> bool {
        let home = self.home_id();
        // What lies there could not be read until it works again.
        if self.health.failing(self.home.name()).is_some() {
            return false;
        }
        let Some((_, stuck)) = pending.iter_mut().find(|(_, r)| r.from < r.to && r.from != home) else { return false };
        let drop_copy = Relocation { to: home, ..stuck.clone() };
        let moved = try_move(self.tiers, self.home, &drop_copy);
        // Whatever came of it, the next try starts from the home and reports a stale one.
        stuck.from = home;
        matches!(moved, Ok(Outcome::Moved))
    }

    fn full(&self, relocation: &Relocation) -> String {
        let name = self.name(relocation.to);
        let Some(tier) = self.tiers.get(usize::from(relocation.to.0)) else { return format!("{name} is full") };
        let account = tier.account();
        let home = self.home.name();
        let why = match self.health.failing(home) {
            Some(_) => format!("no copy is dropped to make room while {home} is failing"),
            None => "old copies are still being read".to_owned(),
        };
        format!(
            "{name} is full: {} of {} bytes in use, {} needed; {why}",
            account.used_bytes(),
            account.limit_bytes(),
            tier.charged_bytes(relocation.bytes() as usize)
        )
    }

    fn is_drained(&self, tier: TierId) -> bool {
        self.tiers.get(usize::from(tier.0)).is_some_and(|tier| tier.account().is_closed())
    }

    fn home_id(&self) -> TierId {
        TierId(self.tiers.len() as u8)
    }

    fn name(&self, tier: TierId) -> &str {
        self.tiers.get(usize::from(tier.0)).map_or(self.home.name(), |tier| tier.name())
    }
}

/// The move at a position, and what else of its chunk is to come from home soon.
fn batch(pending: &mut VecDeque<Numbered>, first: usize, home: TierId) -> Vec<Numbered> {
    let mut batch: Vec<Numbered> = pending.remove(first).into_iter().collect();
    let Some((_, first)) = batch.first().filter(|(_, first)| first.from == home && first.to < home) else {
        return batch;
    };
    let chunk = Arc::clone(&first.chunk);
    let mut bytes = first.home_bytes();
    let mut at = 0;
    while at < pending.len().min(LOOK_AHEAD) && bytes < TOGETHER_BYTES {
        let fits = pending.get(at).is_some_and(|(_, other)| {
            let promoted = Arc::ptr_eq(&other.chunk, &chunk) && other.from == home && other.to < home;
            promoted && bytes + other.home_bytes() <= TOGETHER_BYTES
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
