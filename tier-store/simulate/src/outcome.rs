//! Runs a policy over a course, and sums up the outcome.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_model::clock::{Clock, ManualClock};
use terrace_model::{Pattern, Result};
use terrace_placement::heat::SegmentKey;
use terrace_placement::solver::Effort;
use terrace_placement::{
    EpochReport, EpochRequest, ExpectedRead, ExpectedReadSource, MergeKind, MergeOptions, MoveStatus, PolicyKind,
    Tiering, TieringHost, TieringOptions,
};
use terrace_storage::table::Chunk;

use super::course::{Course, reading_us};
use super::merging::read_one_by_one;
use super::scenario::Event;
use super::world::{COLUMNS, World};

/// Virtual time between two epochs.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);
/// Effort of the solver, enough for this small number of segments; the solver takes most of an epoch's time.
const EFFORT: Effort = Effort { evaluations: 16, nodes: 2_000 };
/// Epochs at the start that are not measured, because all segments begin at home.
const WARM_UP: usize = 10;
/// A segment that moves back within this number of epochs flips.
pub const FLIP_EPOCHS: u64 = 4;
/// A flip is earned when the heat of the segment changed by this factor in between.
pub const FLIP_FACTOR: f64 = 2.0;

/// The outcome of a run, without its first epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Epochs measured.
    pub epochs: u64,
    /// Time of all reads, in microseconds.
    pub reading_us: f64,
    /// Time of all reads if every epoch had begun with the best placement for it: no policy can do better.
    pub best_us: f64,
    /// Time of all reads under the one placement that is best for the run as a whole.
    pub fixed_us: f64,
    /// Moves carried out.
    pub moves: u64,
    /// Moves given up.
    pub skipped: u64,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Time of the moves, in microseconds.
    pub moving_us: u64,
    /// Moves that reverse an earlier one within [`FLIP_EPOCHS`].
    pub flips: u64,
    /// Flips of segments whose own heat changed by less than [`FLIP_FACTOR`] in between: the heat of others moved them.
    pub unearned_flips: u64,
    /// Segments that came into memory between epochs because they were read.
    pub promoted: u64,
    /// Segments that made room for promoted ones.
    pub made_room: u64,
}

impl Outcome {
    /// Reading time above `best_us`, as a part of it.
    pub fn regret(&self) -> f64 {
        self.reading_us / self.best_us.max(f64::MIN_POSITIVE) - 1.0
    }

    /// Reading time above that of the best fixed placement, as a part of it; below 0 where adapting pays.
    pub fn regret_to_fixed(&self) -> f64 {
        self.reading_us / self.fixed_us.max(f64::MIN_POSITIVE) - 1.0
    }
}

/// One epoch of a run, after its moves.
pub(super) struct Step<'a> {
    pub(super) epoch: u32,
    pub(super) world: &'a World,
    pub(super) tiering: &'a Tiering,
    pub(super) reading_us: f64,
    pub(super) report: &'a EpochReport,
}

/// Runs `policy` over a course. Fails when an epoch does.
pub fn run(course: &Course, policy: PolicyKind) -> Result<Outcome> {
    run_with(course, policy, MergeKind::Never, |_| {})
}

/// Like [`run`], with merging: segments that are read from home may come into memory at once. Reads are carried out one by
/// one then, in an order drawn from the seed of the course: the same for every policy.
pub fn run_merging(course: &Course, policy: PolicyKind, merge: MergeKind) -> Result<Outcome> {
    run_with(course, policy, merge, |_| {})
}

/// Like [`run_merging`], and calls `show` after every epoch.
pub(super) fn run_with(
    course: &Course,
    policy: PolicyKind,
    merge: MergeKind,
    mut show: impl FnMut(&Step<'_>),
) -> Result<Outcome> {
    let world = World::new(&course.shape)?;
    let host: Arc<dyn TieringHost> = Arc::clone(&world) as _;
    let clock: Arc<ManualClock> = Arc::clone(&world.clock);
    let merge_options = MergeOptions { kind: merge, ..MergeOptions::default() };
    let options = TieringOptions {
        policy,
        seed: course.seed,
        effort: EFFORT,
        movers: 0,
        merge: merge_options,
        ..TieringOptions::default()
    };
    let tiering = Tiering::new(Arc::downgrade(&host), clock as Arc<dyn Clock>, options);
    let scan = Arc::new(Scan { world: Arc::clone(&world), pending_chunks: Mutex::default() });
    let source: Weak<Scan> = Arc::downgrade(&scan);
    tiering.add_expected_read_source(source);
    let merges = merge != MergeKind::Never;
    if merges {
        tiering.open_offers();
    }
    let merged = || {
        let counts = &tiering.metrics().merge;
        [&counts.promoted, &counts.made_room].map(|count| count.load(Ordering::Relaxed))
    };
    let mut merged_before = [0; 2];
    let mut outcome = Outcome::default();
    let mut flips = Flips::default();
    for (epoch, reads) in (0..).zip(&course.reads) {
        for (tier, event) in course.events(epoch) {
            match event {
                Event::Lost(lost) => world.lose(tier, lost),
                Event::Fails(fails) => world.fail(tier, fails),
            }
            // Moves because a device comes or goes are no flips.
            flips = Flips::default();
        }
        let reading_us = match merges {
            true => read_one_by_one(&world, &tiering, course, epoch)?,
            false => read_all(&world, reads),
        };
        *scan.pending_chunks.lock() = course.scenario.map_or(0..0, |scenario| scenario.pending_chunks(epoch));
        let request = EpochRequest { dry_run: false, reason: "interval".into(), is_paced: true };
        let report = tiering.run_epoch(request)?;
        let (turned, unearned) = flips.note(&world, &tiering, &report);
        show(&Step { epoch, world: &world, tiering: &tiering, reading_us, report: &report });
        if (epoch as usize) < WARM_UP {
            merged_before = merged();
            continue;
        }
        let at = |times_us: &[f64]| times_us.get(epoch as usize).copied().unwrap_or(0.0);
        outcome.epochs += 1;
        outcome.reading_us += reading_us;
        outcome.best_us += at(&course.best_us);
        outcome.fixed_us += at(&course.fixed_us);
        outcome.moves += u64::from(report.epoch.moves_done);
        outcome.skipped += u64::from(report.epoch.moves_skipped);
        outcome.moved_bytes += report.epoch.moved_bytes;
        outcome.moving_us += report.epoch.move_us;
        outcome.flips += turned;
        outcome.unearned_flips += unearned;
    }
    for ((count, before), now) in
        [&mut outcome.promoted, &mut outcome.made_room].into_iter().zip(merged_before).zip(merged())
    {
        *count = now - before;
    }
    Ok(outcome)
}

/// Carries out all reads of an epoch, each from its segment's tier at the beginning. Returns the microseconds that they
/// take.
fn read_all(world: &World, reads: &[u32]) -> f64 {
    let sum_us = reading_us(world, reads, |at| world.place(at));
    reads.iter().enumerate().for_each(|(at, scans)| scan(world, at, *scans));
    world.clock.advance(INTERVAL);
    sum_us
}

/// Counts reads of a segment as scans do.
pub(super) fn scan(world: &World, at: usize, scans: u32) {
    let segment = world.segment(at).and_then(|(chunk, column)| chunk.segments.get(column));
    let Some(segment) = segment else { return };
    (0..scans).for_each(|_| segment.counters.record(Pattern::Sequential, world.rows(at).into()));
}

/// A running scan.
struct Scan {
    world: Arc<World>,
    /// Chunks that it has still to read.
    pending_chunks: Mutex<Range<usize>>,
}

impl ExpectedReadSource for Scan {
    fn report(&self, note: &mut dyn FnMut(&Chunk, usize, ExpectedRead)) {
        let chunks = self.pending_chunks.lock().clone();
        for at in chunks.start * self.world.columns()..chunks.end * self.world.columns() {
            if let Some((chunk, column)) = self.world.segment(at) {
                note(chunk, column, ExpectedRead { pattern: Pattern::Sequential, values: self.world.rows(at).into() });
            }
        }
    }
}

/// The last move of every segment.
#[derive(Default)]
struct Flips {
    /// By chunk and column.
    last: HashMap<(u64, usize), LastMove>,
}

/// The last move of a segment.
#[derive(Clone, Copy)]
struct LastMove {
    epoch: u64,
    up: bool,
    heat: f64,
}

impl Flips {
    /// Notes an epoch's moves. Returns the number of flips, and that of flips without a sufficient change of heat.
    fn note(&mut self, world: &World, tiering: &Tiering, report: &EpochReport) -> (u64, u64) {
        let mut flips = 0;
        let mut unearned = 0;
        let rank = |name: &str| super::world::TIERS.iter().position(|tier| *tier == name);
        for record in report.moves.iter().filter(|record| record.status == MoveStatus::Done) {
            let Some(column) = COLUMNS.iter().position(|name| *name == record.column) else { continue };
            let at = record.chunk as usize * world.columns() + column;
            let Some((chunk, column)) = world.segment(at) else { continue };
            let Some(segment) = chunk.segments.get(column) else { continue };
            let heat = f64::from(tiering.heat(&SegmentKey::for_segment(chunk, segment)).total());
            let up = rank(&record.to) < rank(&record.from);
            let now = LastMove { epoch: report.epoch.id, up, heat };
            let Some(before) = self.last.insert((record.chunk, column), now) else { continue };
            if before.up != up && now.epoch - before.epoch <= FLIP_EPOCHS {
                flips += 1;
                unearned += u64::from(heat.max(before.heat) < FLIP_FACTOR * heat.min(before.heat));
            }
        }
        (flips, unearned)
    }
}
