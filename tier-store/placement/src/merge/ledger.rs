//! The ledger of merge rounds: the value of each segment in memory, and the order in which segments are evicted.
//!
//! It is built from a survey of all segments, and rebuilt when rules, modes or budgets change, after an epoch, and when it
//! is old. In between counters grow: [`Ledger::pop`] computes the current value of the lowest segment before that segment
//! is evicted. As values can only have grown, the segment that is still the lowest then is the lowest of all. Only
//! recency is coarser: segments that were read since the last check count as read at the same time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};

use terrace_model::{ChunkId, TableId, TierId, TieringMode};
use terrace_storage::table::{Chunk, Rules, Segment};
use terrace_storage::tier::reader::ReadColumn;

use super::Rank;
use super::recent::RecentHeat;
use crate::constraints::PlacementConstraints;
use crate::epoch::{Inputs, SegmentInput, benefit_us, change_of_form_us};
use crate::heat::decay::{SegmentHeat, SegmentKey};
use crate::hysteresis::Hysteresis;
use crate::place::Place;
use crate::survey::{ByteWeights, Origin, segment_input};
use crate::tiering::{TableSnapshot, TieringHost};

/// The state that a ledger was built from; a ledger with another stamp is out of date.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stamp {
    epoch: Option<u64>,
    budgets: Vec<u64>,
    tables: Vec<TableStamp>,
}

#[derive(Debug, Clone)]
struct TableStamp {
    id: TableId,
    rules: Arc<Rules>,
    mode: TieringMode,
}

impl PartialEq for TableStamp {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.mode) == (other.id, other.mode) && Arc::ptr_eq(&self.rules, &other.rules)
    }
}

impl Stamp {
    /// The current stamp.
    pub(super) fn for_tables(host: &dyn TieringHost, tables: &[TableSnapshot], epoch: Option<u64>) -> Self {
        let stamp =
            |table: &TableSnapshot| TableStamp { id: table.id, rules: Arc::clone(&table.rules), mode: table.mode };
        let tables = tables.iter().map(stamp).collect();
        let budgets = host.memory_tiers().iter().map(|tier| tier.account().limit_bytes()).collect();
        Self { epoch, budgets, tables }
    }
}

/// The last use of a segment that a round noticed.
#[derive(Debug, Clone, Copy)]
struct LastUse {
    /// Accesses at the last check.
    accesses: u64,
    /// The round that noticed the use; 0 and below: the number of epochs before the first round.
    round: i64,
}

/// The last use of each segment. Outlives ledgers.
#[derive(Debug, Default)]
pub(super) struct LastUses(HashMap<SegmentKey, LastUse>);

impl LastUses {
    /// The round of the segment's last use: `round` if it was used since the last check.
    pub(super) fn update(&mut self, key: SegmentKey, segment: &Segment, heat: &SegmentHeat, round: i64) -> i64 {
        let accesses = segment.counters.snapshot().accesses.iter().sum();
        let before = heat.idle_epochs.map_or(i64::from(i32::MIN), |epochs| -i64::from(epochs));
        let known = self.0.entry(key).or_insert(LastUse { accesses, round: before });
        if known.accesses != accesses {
            *known = LastUse { accesses, round };
        }
        known.round
    }

    /// Notes a use in this round.
    pub(super) fn note_use(&mut self, key: SegmentKey, segment: &Segment, round: i64) {
        let accesses = segment.counters.snapshot().accesses.iter().sum();
        self.0.insert(key, LastUse { accesses, round });
    }
}

/// A segment that may be evicted; ordered by value, the least is evicted first.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    value: f64,
    key: SegmentKey,
    pub(super) chunk: Weak<Chunk>,
    pub(super) column: usize,
    pub(super) constraints: PlacementConstraints,
    hysteresis: Option<Hysteresis>,
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value.total_cmp(&other.value).then(self.key.cmp(&other.key))
    }
}

/// A candidate that makes room now.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) candidate: Candidate,
    pub(super) chunk: Arc<Chunk>,
    pub(super) bytes: u64,
    pub(super) charged_bytes: u64,
    /// Benefit of its current tier, in microseconds per epoch, hysteresis included: it is weighed against the new
    /// segment's.
    pub(super) benefit_us: f64,
}

/// The sources of current values, for one round.
pub(super) struct RoundContext<'a> {
    pub(super) host: &'a dyn TieringHost,
    pub(super) recent: &'a RecentHeat,
    pub(super) round: i64,
}

/// The values of a ledger that do not come from the survey.
pub(super) struct LedgerOptions {
    pub(super) stamp: Stamp,
    pub(super) rank: Rank,
    pub(super) weights: ByteWeights,
    /// See [`super::MergeOptions::top_percent`].
    pub(super) top_percent: f64,
}

/// The value of each segment in memory; see the module documentation.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) stamp: Stamp,
    pub(super) built_us: u64,
    pub(super) took_us: u64,
    rank: Rank,
    /// The tiers and their costs; without segments.
    inputs: Inputs,
    weights: ByteWeights,
    /// The candidates of each memory tier.
    candidates: Vec<BinaryHeap<Reverse<Candidate>>>,
    /// The last chunk that was surveyed, of each table with rules: constraints of later ones are not known.
    last_surveyed: HashMap<TableId, ChunkId>,
    /// Constraints of the segments that have any.
    constraints: HashMap<SegmentKey, PlacementConstraints>,
    /// Least benefit per byte of the best segments, in nanoseconds per epoch.
    least_ns_per_byte: f64,
}

impl Ledger {
    /// Builds a ledger from a survey. Candidates are the segments that may go home and that the loop may move.
    pub(super) fn from_survey(
        mut inputs: Inputs,
        origins: &[Origin],
        tables: &[TableSnapshot],
        options: LedgerOptions,
        last_uses: &mut LastUses,
        now: &RoundContext<'_>,
    ) -> Self {
        let LedgerOptions { stamp, rank, weights, top_percent } = options;
        let segments = std::mem::take(&mut inputs.segments);
        let home = inputs.home();
        let mut ledger = Self {
            stamp,
            built_us: 0,
            took_us: 0,
            rank,
            weights,
            candidates: (0..home.0).map(|_| BinaryHeap::new()).collect(),
            last_surveyed: HashMap::new(),
            constraints: HashMap::new(),
            least_ns_per_byte: 0.0,
            inputs,
        };
        for table in tables.iter().filter(|table| !table.rules.is_empty()) {
            let last = table.chunks.iter().map(|entry| entry.chunk.id).max();
            ledger.last_surveyed.insert(table.id, last.unwrap_or(ChunkId(0)));
        }
        let mut values = Vec::with_capacity(segments.len());
        let mut seen = HashMap::new();
        for (input, origin) in segments.iter().zip(origins) {
            values.push(ledger.ns_per_byte(input, input.usual_place(TierId(0))));
            if input.constraints != PlacementConstraints::default() {
                ledger.constraints.insert(input.key, input.constraints);
            }
            let Some(table) = tables.get(origin.table as usize) else { continue };
            let Some(entry) = table.chunks.get(origin.chunk as usize) else { continue };
            let Some(segment) = entry.chunk.segments.get(origin.column as usize) else { continue };
            if input.current == home {
                continue;
            }
            if let Some(known) = last_uses.0.get(&input.key) {
                seen.insert(input.key, *known);
            }
            let free = input.constraints.allows(home) && input.constraints.preferred != Some(input.current);
            if !free || table.mode != TieringMode::Auto {
                continue;
            }
            let value = ledger.value(input, segment, input.place(), last_uses, now);
            if let Some(known) = last_uses.0.get(&input.key) {
                seen.insert(input.key, *known);
            }
            let chunk = Arc::downgrade(&entry.chunk);
            let column = origin.column as usize;
            let SegmentInput { key, constraints, hysteresis, .. } = *input;
            ledger.push(input.current, Candidate { value, key, chunk, column, constraints, hysteresis });
        }
        last_uses.0 = seen;
        ledger.least_ns_per_byte = least_of_top(values, top_percent);
        ledger
    }

    /// The constraints of a segment; `None` when they are not known yet.
    pub(super) fn constraints(&self, key: &SegmentKey) -> Option<PlacementConstraints> {
        match self.last_surveyed.get(&key.table) {
            Some(last) if key.chunk > *last => None,
            _ => Some(self.constraints.get(key).copied().unwrap_or_default()),
        }
    }

    /// Builds the input of a plan for a segment, with its current heat.
    pub(super) fn input(
        &self,
        chunk: &Chunk,
        segment: &Segment,
        constraints: PlacementConstraints,
        now: &RoundContext<'_>,
    ) -> SegmentInput {
        let heat = |_: &SegmentKey| now.recent.heat_now(chunk, segment);
        segment_input(&now.host.memory_tiers(), &heat, self.weights, chunk, segment, constraints)
    }

    /// Benefit of a place for a segment, in microseconds per epoch.
    pub(super) fn benefit_us(&self, input: &SegmentInput, place: Place) -> f64 {
        benefit_us(&self.inputs, input, place)
    }

    fn ns_per_byte(&self, input: &SegmentInput, place: Place) -> f64 {
        self.benefit_us(input, place) * 1e3 / input.charged_at(place).max(1) as f64
    }

    /// True when a segment is among the best by [`super::MergeOptions::top_percent`].
    pub(super) fn is_top(&self, input: &SegmentInput) -> bool {
        let value = self.ns_per_byte(input, input.usual_place(TierId(0)));
        value > 0.0 && value >= self.least_ns_per_byte
    }

    /// The value by which a segment at a place is ranked.
    fn value(
        &self,
        input: &SegmentInput,
        segment: &Segment,
        place: Place,
        last_uses: &mut LastUses,
        now: &RoundContext<'_>,
    ) -> f64 {
        let used = last_uses.update(input.key, segment, &input.heat, now.round);
        match self.rank {
            Rank::Recency => used as f64,
            Rank::Frequency => f64::from(input.heat.total()),
            Rank::Benefit => self.ns_per_byte(input, place) * Hysteresis::heat_factor(input.hysteresis),
        }
    }

    /// Adds a segment that was promoted to a place to the candidates of its tier.
    pub(super) fn note_promotion(
        &mut self,
        read: &ReadColumn,
        input: &SegmentInput,
        place: Place,
        last_uses: &mut LastUses,
        now: &RoundContext<'_>,
    ) {
        let ReadColumn { chunk, column, .. } = read;
        let Some(segment) = chunk.segments.get(*column) else { return };
        last_uses.note_use(input.key, segment, now.round);
        let value = self.value(input, segment, place, last_uses, now);
        let tier = place.tier;
        let chunk = Arc::downgrade(chunk);
        let pinned = !input.constraints.allows(self.inputs.home()) || input.constraints.preferred == Some(tier);
        if !pinned {
            let SegmentInput { key, constraints, .. } = *input;
            self.push(tier, Candidate { value, key, chunk, column: *column, constraints, hysteresis: None });
        }
    }

    /// Like [`Ledger::benefit_us`], less the cost of the move, spread over the epochs within which it must pay back.
    pub(super) fn net_us(&self, input: &SegmentInput, place: Place) -> f64 {
        let bytes = input.image_bytes(place.form);
        let known = self.inputs.tiers.get(usize::from(place.tier.0));
        let write_us = known.map_or(0.0, |known| known.cost.sweep_us(bytes));
        let cost = write_us + change_of_form_us(&self.inputs, input, place.form);
        self.benefit_us(input, place) - cost / self.inputs.payback_epochs.max(1e-3)
    }

    /// Adds a segment that made room to the candidates of its new tier; nothing happens for the home.
    pub(super) fn note_demotion(&mut self, tier: TierId, candidate: Candidate) {
        // The least possible value: `pop` replaces it by the current one.
        self.push(tier, Candidate { value: f64::NEG_INFINITY, hysteresis: None, ..candidate });
    }

    /// Adds a candidate.
    pub(super) fn push(&mut self, tier: TierId, candidate: Candidate) {
        if let Some(candidates) = self.candidates.get_mut(usize::from(tier.0)) {
            candidates.push(Reverse(candidate));
        }
    }

    /// Takes the candidate of a tier that makes room first.
    pub(super) fn pop(&mut self, tier: TierId, last_uses: &mut LastUses, now: &RoundContext<'_>) -> Option<Victim> {
        loop {
            let Reverse(mut candidate) = self.candidates.get_mut(usize::from(tier.0))?.pop()?;
            let Some(chunk) = candidate.chunk.upgrade() else { continue };
            let Some(segment) = chunk.segments.get(candidate.column).cloned() else { continue };
            let lies_here = segment.resident.load().as_ref().is_some_and(|resident| resident.tier.id() == tier);
            if !lies_here {
                continue;
            }
            let input = self.input(&chunk, &segment, candidate.constraints, now);
            let input = SegmentInput { hysteresis: candidate.hysteresis, ..input };
            let value = self.value(&input, &segment, input.place(), last_uses, now);
            // Its value has grown since: another candidate may be the lowest now.
            if value > candidate.value {
                candidate.value = value;
                self.push(tier, candidate);
                continue;
            }
            let benefit_us = self.benefit_us(&input, input.place()) * Hysteresis::heat_factor(candidate.hysteresis);
            let bytes = input.image_bytes(input.form);
            let charged_bytes = input.charged_at(input.place());
            return Some(Victim { candidate, chunk, bytes, charged_bytes, benefit_us });
        }
    }
}

/// The least of the greatest `percent` of the values; 0 when there are none.
fn least_of_top(mut values: Vec<f64>, percent: f64) -> f64 {
    let count = (values.len() as f64 * percent / 100.0).ceil() as usize;
    let Some(at) = values.len().checked_sub(count.max(1)) else { return 0.0 };
    let (_, value, _) = values.select_nth_unstable_by(at, f64::total_cmp);
    *value
}
