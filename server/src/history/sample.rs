//! One sample: what there was at a time, and what happened since the sample before.

use std::sync::atomic::Ordering;

use serde::Serialize;
use terrace_planner_ext::engine::{Engine, Outcome, StatementKind};
use terrace_tier_store::Store;
use terrace_tier_store::tier::{Account, TierId};
use utoipa::ToSchema;

use crate::memory_watch::WatchFigures;

/// The use of a tier at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct TierUse {
    /// Its name.
    pub name: String,
    /// Bytes that count against its budget.
    pub used_bytes: u64,
    /// Its budget; `null`: no limit.
    #[schema(required)]
    pub budget_bytes: Option<u64>,
}

impl TierUse {
    fn new(name: &str, account: &Account) -> Self {
        let budget_bytes = Some(account.limit_bytes()).filter(|limit| *limit < u64::MAX);
        Self { name: name.to_owned(), used_bytes: account.used_bytes(), budget_bytes }
    }
}

/// What there is at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The time, in microseconds since the Unix epoch.
    pub(super) unix_us: u64,
    /// The tiers, fastest first.
    pub(super) tiers: Vec<TierUse>,
    /// Statements that have an execution slot.
    pub(super) running: u64,
    /// Statements that wait for one.
    pub(super) queued: u64,
    /// Query memory in use.
    pub(super) query_memory_bytes: u64,
    /// Memory of the process.
    pub(super) resident_bytes: u64,
}

/// What has happened, since the start of the process or since another sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Statements that ended, by [`Outcome::ALL`].
    pub(super) ended: [u64; Outcome::ALL.len()],
    /// Queries that ended by their duration, as of [`terrace_tier_store::durations::DurationSums`].
    pub(super) durations: Vec<u64>,
    /// Moves of segments.
    pub(super) moves: u64,
    /// Their bytes.
    pub(super) moved_bytes: u64,
    /// Bytes read from the disk.
    pub(super) read_bytes: u64,
    /// Bytes written to the disk.
    pub(super) written_bytes: u64,
}

impl Totals {
    fn read(engine: &Engine) -> Self {
        let counters = engine.counters();
        let ended = |outcome| StatementKind::ALL.into_iter().map(|kind| counters.ended(kind, outcome)).sum::<u64>();
        let store = engine.store();
        let stats = store.io().stats();
        let (moves, moved_bytes) = moves(store);
        Self {
            ended: Outcome::ALL.map(ended),
            durations: counters.durations(StatementKind::Query).map_or_else(Vec::new, |sums| sums.counts),
            moves,
            moved_bytes,
            read_bytes: stats.read_bytes.load(Ordering::Relaxed),
            written_bytes: stats.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// What happened since `earlier`; nothing of a counter that began again.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let durations = self.durations.iter().enumerate();
        let durations =
            durations.map(|(at, count)| count.saturating_sub(earlier.durations.get(at).copied().unwrap_or(0)));
        let mut ended = self.ended;
        ended.iter_mut().zip(earlier.ended).for_each(|(count, before)| *count = count.saturating_sub(before));
        Self {
            ended,
            durations: durations.collect(),
            moves: self.moves.saturating_sub(earlier.moves),
            moved_bytes: self.moved_bytes.saturating_sub(earlier.moved_bytes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }

    /// Adds what happened in another time.
    pub(super) fn add(&mut self, other: &Self) {
        if self.durations.len() < other.durations.len() {
            self.durations.resize(other.durations.len(), 0);
        }
        self.durations.iter_mut().zip(&other.durations).for_each(|(sum, count)| *sum += count);
        self.ended.iter_mut().zip(other.ended).for_each(|(sum, count)| *sum += count);
        self.moves += other.moves;
        self.moved_bytes += other.moved_bytes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// Moves between all tiers since the start, and their bytes.
fn moves(store: &Store) -> (u64, u64) {
    let metrics = store.tiering().metrics();
    let home = u8::try_from(store.memory_tiers().len()).unwrap_or(u8::MAX);
    let pairs = (0..=home).flat_map(|from| (0..=home).map(move |to| (TierId(from), TierId(to))));
    pairs.fold((0, 0), |(moves, bytes), (from, to)| {
        (moves + metrics.moves(from, to), bytes + metrics.moved_bytes(from, to))
    })
}

/// The counters of the components at a time.
#[derive(Debug)]
pub(super) struct Reading {
    /// The time, by the clock.
    pub(super) now_us: u64,
    /// What there is.
    pub(super) state: State,
    /// What happened since the start.
    pub(super) totals: Totals,
}

impl Reading {
    /// Reads the counters now.
    pub(super) fn take(engine: &Engine, memory: &WatchFigures) -> Self {
        let clock = &engine.options().clock;
        let store = engine.store();
        let memory_tiers = store.memory_tiers();
        let mut tiers: Vec<TierUse> =
            memory_tiers.iter().map(|tier| TierUse::new(tier.name(), tier.account())).collect();
        tiers.push(TierUse::new(store.home().name(), store.home().account()));
        let running: usize = engine.workload_groups().iter().map(|group| group.running).sum();
        let state = State {
            unix_us: clock.unix_us(),
            tiers,
            running: running as u64,
            queued: engine.queued() as u64,
            query_memory_bytes: engine.memory().used_bytes() as u64,
            resident_bytes: memory.resident_bytes(),
        };
        Self { now_us: clock.now_us(), state, totals: Totals::read(engine) }
    }
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    /// Time since the sample before, in microseconds; 0 for the first one.
    pub(super) span_us: u64,
    /// What there was at its end.
    pub(super) state: State,
    /// What happened since the sample before.
    pub(super) done: Totals,
}
