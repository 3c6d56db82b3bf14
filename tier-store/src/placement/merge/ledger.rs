//! What rounds know of the segments: what each is worth in memory, and which make room first.
//!
//! It is made from a survey of all segments, and made anew when rules, modes or budgets change, after an epoch, and when it
//! is old. In between counters grow: the value of a segment is looked up when it is about to make room, and as it can only
//! have grown, the one that is lowest after that is the lowest of all. Only recency is coarser: segments read since they
//! were looked at last are equals.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};

use super::recent::Recent;
use super::{MergeOptions, Rank};
use crate::heat::decay::{SegmentHeat, SegmentKey};
use crate::placement::duty::Duty;
use crate::placement::epoch::{Inputs, SegmentInput, benefit_us};
use crate::placement::hold::Hold;
use crate::placement::mode::TieringMode;
use crate::placement::survey::{Origin, segment_input};
use crate::placement::tiering::{TableSnapshot, TieringHost};
use crate::table::{Chunk, ChunkId, Rules, Segment, TableId};
use crate::tier::TierId;
use crate::tier::codec::Rates;

/// What a ledger stands on.
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
    pub(super) fn of(host: &dyn TieringHost, tables: &[TableSnapshot], epoch: Option<u64>) -> Self {
        let of = |table: &TableSnapshot| TableStamp { id: table.id, rules: Arc::clone(&table.rules), mode: table.mode };
        let tables = tables.iter().map(of).collect();
        let budgets = host.memory_tiers().iter().map(|tier| tier.account().limit_bytes()).collect();
        Self { epoch, budgets, tables }
    }
}

/// When a segment was used last, as far as rounds saw it.
#[derive(Debug, Clone, Copy)]
struct Use {
    accesses: u64,
    /// The round that noticed; 0 and below: so many epochs before the first round.
    at: i64,
}

/// When segments were used last. Outlives ledgers.
#[derive(Debug, Default)]
pub(super) struct Uses(HashMap<SegmentKey, Use>);

impl Uses {
    /// When the segment was used last; `round` if that was since the last look.
    pub(super) fn look(&mut self, key: SegmentKey, segment: &Segment, heat: &SegmentHeat, round: i64) -> i64 {
        let accesses = segment.counters.snapshot().accesses.iter().sum();
        let before = heat.idle_epochs.map_or(i64::from(i32::MIN), |epochs| -i64::from(epochs));
        let known = self.0.entry(key).or_insert(Use { accesses, at: before });
        if known.accesses != accesses {
            *known = Use { accesses, at: round };
        }
        known.at
    }

    /// It was read just now, whatever was known of it.
    pub(super) fn used(&mut self, key: SegmentKey, segment: &Segment, round: i64) {
        let accesses = segment.counters.snapshot().accesses.iter().sum();
        self.0.insert(key, Use { accesses, at: round });
    }
}

/// A segment that may make room, in the order in which they do.
#[derive(Debug, Clone)]
pub(super) struct Place {
    value: f64,
    key: SegmentKey,
    pub(super) chunk: Weak<Chunk>,
    pub(super) column: usize,
    pub(super) duty: Duty,
    hold: Option<Hold>,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Place {}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value.total_cmp(&other.value).then(self.key.cmp(&other.key))
    }
}

/// A segment that may make room now.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) place: Place,
    pub(super) chunk: Arc<Chunk>,
    pub(super) bytes: u64,
    pub(super) charged_bytes: u64,
    /// What it saves where it lies, in microseconds per epoch, as it is weighed against what wants its room.
    pub(super) benefit_us: f64,
}

/// What the values of segments are read from at this moment.
pub(super) struct Now<'a> {
    pub(super) host: &'a dyn TieringHost,
    pub(super) recent: &'a Recent,
    pub(super) round: i64,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) stamp: Stamp,
    pub(super) built_us: u64,
    pub(super) took_us: u64,
    rank: Rank,
    /// Tiers and their costs, no segments.
    inputs: Inputs,
    rates: Option<Rates>,
    /// By memory tier.
    places: Vec<BinaryHeap<Reverse<Place>>>,
    /// Of tables with rules: the last chunk that was surveyed, and what rules ask of segments where it is anything.
    ruled: HashMap<TableId, ChunkId>,
    duties: HashMap<SegmentKey, Duty>,
    /// What a segment must save per byte, in nanoseconds per epoch, to be among the best.
    least_ns_per_byte: f64,
}

impl Ledger {
    /// From a survey; only what may go home makes room, and only where the loop may move it.
    pub(super) fn of(
        (mut inputs, origins): (Inputs, &[Origin]),
        (stamp, tables): (Stamp, &[TableSnapshot]),
        (rank, options, rates): (Rank, &MergeOptions, Option<Rates>),
        (uses, now): (&mut Uses, &Now<'_>),
    ) -> Self {
        let segments = std::mem::take(&mut inputs.segments);
        let home = inputs.home();
        let mut ledger = Self {
            stamp,
            built_us: 0,
            took_us: 0,
            rank,
            rates,
            places: (0..home.0).map(|_| BinaryHeap::new()).collect(),
            ruled: HashMap::new(),
            duties: HashMap::new(),
            least_ns_per_byte: 0.0,
            inputs,
        };
        for table in tables.iter().filter(|table| !table.rules.is_empty()) {
            let last = table.chunks.iter().map(|entry| entry.chunk.id).max();
            ledger.ruled.insert(table.id, last.unwrap_or(ChunkId(0)));
        }
        let mut values = Vec::with_capacity(segments.len());
        let mut seen = HashMap::new();
        for (input, (table, position, column)) in segments.iter().zip(origins) {
            values.push(ledger.ns_per_byte(input, TierId(0)));
            if input.duty != Duty::default() {
                ledger.duties.insert(input.key, input.duty);
            }
            let Some(table) = tables.get(*table as usize) else { continue };
            let Some(entry) = table.chunks.get(*position as usize) else { continue };
            let Some(segment) = entry.chunk.segments.get(*column as usize) else { continue };
            if input.current == home {
                continue;
            }
            if let Some(known) = uses.0.get(&input.key) {
                seen.insert(input.key, *known);
            }
            let free = input.duty.allows(home) && input.duty.preferred != Some(input.current);
            if !free || table.mode != TieringMode::Auto {
                continue;
            }
            let value = ledger.value(input, segment, input.current, (uses, now));
            if let Some(known) = uses.0.get(&input.key) {
                seen.insert(input.key, *known);
            }
            let chunk = Arc::downgrade(&entry.chunk);
            let column = *column as usize;
            let place = Place { value, key: input.key, chunk, column, duty: input.duty, hold: input.hold };
            ledger.push(input.current, place);
        }
        uses.0 = seen;
        ledger.least_ns_per_byte = nth_greatest(values, options.top_percent);
        ledger
    }

    /// What rules ask of a segment; `None` when that is not known yet.
    pub(super) fn duty(&self, key: &SegmentKey) -> Option<Duty> {
        match self.ruled.get(&key.table) {
            Some(last) if key.chunk > *last => None,
            _ => Some(self.duties.get(key).copied().unwrap_or_default()),
        }
    }

    /// A segment as planning sees it at this moment.
    pub(super) fn input(&self, chunk: &Chunk, segment: &Segment, duty: Duty, now: &Now<'_>) -> SegmentInput {
        let heat = |_: &SegmentKey| now.recent.heat_now(chunk, segment);
        segment_input(&now.host.memory_tiers(), (&heat, self.rates), chunk, segment, duty)
    }

    /// What it saves on a memory tier, in microseconds per epoch.
    pub(super) fn benefit_us(&self, input: &SegmentInput, tier: TierId) -> f64 {
        benefit_us(&self.inputs, input, tier)
    }

    fn ns_per_byte(&self, input: &SegmentInput, tier: TierId) -> f64 {
        self.benefit_us(input, tier) * 1e3 / input.charged_on(tier).max(1) as f64
    }

    /// True when it is among the best.
    pub(super) fn is_top(&self, input: &SegmentInput) -> bool {
        let value = self.ns_per_byte(input, TierId(0));
        value > 0.0 && value >= self.least_ns_per_byte
    }

    /// What it ranks by on a tier.
    fn value(&self, input: &SegmentInput, segment: &Segment, tier: TierId, (uses, now): (&mut Uses, &Now<'_>)) -> f64 {
        let used = uses.look(input.key, segment, &input.heat, now.round);
        match self.rank {
            Rank::Recency => used as f64,
            Rank::Frequency => f64::from(input.heat.total()),
            Rank::Benefit => self.ns_per_byte(input, tier) * Hold::warmth(input.hold),
        }
    }

    /// Puts a segment that was promoted to a tier among those that may make room.
    pub(super) fn promoted(
        &mut self,
        (chunk, column): (&Arc<Chunk>, usize),
        (input, tier): (&SegmentInput, TierId),
        (uses, now): (&mut Uses, &Now<'_>),
    ) {
        let Some(segment) = chunk.segments.get(column) else { return };
        uses.used(input.key, segment, now.round);
        let value = self.value(input, segment, tier, (uses, now));
        let chunk = Arc::downgrade(chunk);
        let pinned = !input.duty.allows(self.inputs.home()) || input.duty.preferred == Some(tier);
        if !pinned {
            self.push(tier, Place { value, key: input.key, chunk, column, duty: input.duty, hold: None });
        }
    }

    /// The same on a memory tier, less what bringing it there costs per epoch until that has to have paid back.
    pub(super) fn net_us(&self, input: &SegmentInput, tier: TierId) -> f64 {
        let cost = self.inputs.tiers.get(usize::from(tier.0)).map_or(0.0, |known| known.cost.sweep_us(input.bytes));
        self.benefit_us(input, tier) - cost / self.inputs.payback_epochs.max(1e-3)
    }

    /// A segment made room; on a slower tier in memory it may do so again.
    pub(super) fn sank(&mut self, tier: TierId, place: Place) {
        // Its value there is looked up when its turn comes.
        self.push(tier, Place { value: f64::NEG_INFINITY, hold: None, ..place });
    }

    /// Puts back what need not make room.
    pub(super) fn push(&mut self, tier: TierId, place: Place) {
        if let Some(places) = self.places.get_mut(usize::from(tier.0)) {
            places.push(Reverse(place));
        }
    }

    /// The segment on a tier that makes room first.
    pub(super) fn pop(&mut self, tier: TierId, (uses, now): (&mut Uses, &Now<'_>)) -> Option<Victim> {
        loop {
            let Reverse(mut place) = self.places.get_mut(usize::from(tier.0))?.pop()?;
            let Some(chunk) = place.chunk.upgrade() else { continue };
            let Some(segment) = chunk.segments.get(place.column).cloned() else { continue };
            let lies_here = segment.resident.load().as_ref().is_some_and(|resident| resident.tier.id() == tier);
            if !lies_here {
                continue;
            }
            let input = SegmentInput { hold: place.hold, ..self.input(&chunk, &segment, place.duty, now) };
            let value = self.value(&input, &segment, tier, (uses, now));
            if value > place.value {
                place.value = value;
                self.push(tier, place);
                continue;
            }
            let benefit_us = self.benefit_us(&input, tier) * Hold::warmth(place.hold);
            let bytes = input.bytes;
            let charged_bytes = input.charged_on(tier);
            return Some(Victim { place, chunk, bytes, charged_bytes, benefit_us });
        }
    }
}

/// The least of the greatest `percent` of the values; 0 when there are none.
fn nth_greatest(mut values: Vec<f64>, percent: f64) -> f64 {
    let count = (values.len() as f64 * percent / 100.0).ceil() as usize;
    let Some(at) = values.len().checked_sub(count.max(1)) else { return 0.0 };
    let (_, value, _) = values.select_nth_unstable_by(at, f64::total_cmp);
    *value
}
