//! All segments of a store as planning sees them: where they lie, how hot they are, what rules ask of them.

use std::sync::Arc;

use super::duty::{Duty, ScopeChunk, Scopes, TierMask};
use super::epoch::{Inputs, MAX_TIERS, SegmentInput, TierInput};
use super::tiering::{TableSnapshot, TieringHost};
use super::views::ViewPart;
use crate::heat::decay::{SegmentHeat, SegmentKey};
use crate::table::{Chunk, ChunkEntry, ColumnId, Home, Rules, Segment, TableStatistics};
use crate::tier::codec::{Part, Rates, unpacked_bytes};
use crate::tier::{MemoryTier, TierId};

/// The heat of a segment.
pub(crate) type HeatOf<'a> = &'a dyn Fn(&SegmentKey) -> SegmentHeat;

/// Where an input segment comes from: table, position of the chunk, column.
pub(super) type Origin = (u32, u32, u32);

/// Names of the tiers, fastest first, the home last.
pub(crate) fn tier_names(host: &dyn TieringHost) -> Vec<String> {
    let memory = host.memory_tiers();
    memory.iter().map(|tier| tier.name()).chain([host.home().name()]).map(str::to_owned).collect()
}

/// The rules of a table with what is in their scope, among the chunks of a version.
pub(crate) fn scopes<'a>(
    rules: &'a Rules,
    tiers: &[String],
    chunks: &[ChunkEntry],
    statistics: &TableStatistics,
) -> Scopes<'a> {
    let chunks = if rules.is_empty() { &[] } else { chunks };
    let chunks = chunks.iter().map(|entry| &entry.chunk);
    let chunks: Vec<ScopeChunk<'_>> =
        chunks.map(|chunk| ScopeChunk { ids: std::slice::from_ref(&chunk.id), rows: chunk.rows }).collect();
    Scopes::of(rules, tiers, &chunks, &|column| statistics.of_id(column))
}

/// The name of a column, as its chunks have it.
pub(crate) fn column_name(chunks: &[ChunkEntry], column: ColumnId) -> String {
    let named = |entry: &ChunkEntry| {
        let at = entry.chunk.columns().iter().position(|segment| segment.column == column)?;
        Some(entry.chunk.column_name(at).into_owned())
    };
    chunks.first().and_then(named).unwrap_or_else(|| format!("column {}", column.0))
}

/// What to plan with, and where each of its segments comes from.
pub(super) fn survey(
    host: &dyn TieringHost,
    tables: &[TableSnapshot],
    tiers: Vec<TierInput>,
    (payback_epochs, rates, paused): (f64, Option<Rates>, TierMask),
    heat: HeatOf<'_>,
) -> (Inputs, Vec<Origin>) {
    let memory = host.memory_tiers();
    let names = tier_names(host);
    let ranks = Ranks::of(tables);
    let closed = closed_tiers(&memory);
    let home = TierId(memory.len() as u8);
    let mut segments = Vec::new();
    let mut origins = Vec::new();
    for (table, snapshot) in tables.iter().enumerate() {
        let scopes = scopes(&snapshot.rules, &names, &snapshot.chunks, &snapshot.statistics);
        for (position, entry) in snapshot.chunks.iter().enumerate() {
            for (column, segment) in entry.chunk.segments.iter().enumerate() {
                if segment.constant.is_some() {
                    continue;
                }
                let duty = scopes.duty(position, segment.column).renumbered(|rule| ranks.rank(table, rule));
                let duty = duty.without(closed);
                origins.push((table as u32, position as u32, column as u32));
                let mut input = segment_input(&memory, (heat, rates), &entry.chunk, segment, duty);
                input.duty = input.duty.during_pause(paused, input.current, home);
                segments.push(input);
            }
        }
    }
    (Inputs { tiers, segments, payback_epochs, rules: ranks.texts, prices: Vec::new(), views: Vec::new() }, origins)
}

/// Tiers that take nothing more.
fn closed_tiers(memory: &[Arc<dyn MemoryTier>]) -> TierMask {
    mask(memory.iter().map(|tier| tier.account().is_closed()))
}

/// Those of the tiers, fastest first.
pub(super) fn mask(tiers: impl Iterator<Item = bool>) -> TierMask {
    let chosen = tiers.enumerate().filter(|(_, chosen)| *chosen);
    chosen.fold(0, |mask, (id, _)| mask | 1_u8.checked_shl(id as u32).unwrap_or(0))
}

/// The rules of all tables in the order in which they were made.
struct Ranks {
    /// By table and position there.
    of: Vec<Vec<u32>>,
    texts: Vec<String>,
}

impl Ranks {
    fn of(tables: &[TableSnapshot]) -> Self {
        let mut made = Vec::new();
        let mut of: Vec<Vec<u32>> = tables.iter().map(|table| vec![0; table.rules.iter().len()]).collect();
        for (table, snapshot) in tables.iter().enumerate() {
            for (position, rule) in snapshot.rules.iter().enumerate() {
                let sql = rule.sql(&|column| column_name(&snapshot.chunks, column));
                let text = format!("rule {} of {}, {sql}", rule.number, snapshot.name);
                made.push((rule.made_unix_us, snapshot.id, rule.number, table, position, text));
            }
        }
        made.sort_unstable();
        let mut texts = Vec::with_capacity(made.len());
        for (rank, (.., table, position, text)) in (0..).zip(made) {
            if let Some(slot) = of.get_mut(table).and_then(|table| table.get_mut(position)) {
                *slot = rank;
            }
            texts.push(text);
        }
        Self { of, texts }
    }

    fn rank(&self, table: usize, position: u32) -> u32 {
        self.of.get(table).and_then(|table| table.get(position as usize)).copied().unwrap_or(u32::MAX)
    }
}

/// A segment as planning sees it.
pub(super) fn segment_input(
    memory: &[Arc<dyn MemoryTier>],
    (heat, rates): (HeatOf<'_>, Option<Rates>),
    chunk: &Chunk,
    segment: &Segment,
    duty: Duty,
) -> SegmentInput {
    let key = SegmentKey::of(chunk, segment);
    let home = TierId(memory.len() as u8);
    let mut charged_bytes = [0; MAX_TIERS];
    for (slot, tier) in charged_bytes.iter_mut().zip(memory) {
        *slot = tier.charged_bytes(segment.bytes() as usize);
    }
    SegmentInput {
        key,
        rows: chunk.rows,
        bytes: segment.bytes(),
        home_bytes: home_bytes(&segment.home, rates),
        whole_at_home: !Part::is_possible(&segment.home),
        charged_bytes,
        current: segment.resident.load().as_ref().map_or(home, |resident| resident.tier.id()),
        heat: heat(&key),
        duty,
        hold: None,
        ahead: SegmentHeat::default(),
        view: ViewPart::default(),
    }
}

/// What a read from home costs, in bytes of its device: those stored, and as many as it would read while a compressed
/// column is decompressed.
fn home_bytes(home: &Home, rates: Option<Rates>) -> u64 {
    let Some((rates, compression)) = rates.zip(home.encoding.compression()) else { return home.len };
    let unpack_us = unpacked_bytes(home) as f64 / rates.decompression.of(compression);
    home.len + (unpack_us * rates.device) as u64
}
