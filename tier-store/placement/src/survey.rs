//! The survey: all segments of a store as inputs of a plan, each with its tier, its heat and the constraints of rules.

use std::sync::Arc;

use terrace_model::{ColumnId, MAX_TIERS, TierId};
use terrace_storage::table::{Chunk, ChunkEntry, Rules, Segment, SegmentHome, TableStatistics};
use terrace_storage::tier::MemoryTier;
use terrace_storage::tier::codec::{Form, FormChoice, Part, Rates, decompressed_bytes};
use terrace_storage::tier::hbm::image_bytes;

use super::constraints::{PlacementConstraints, ScopeChunk, Scopes, TierMask, bit};
use super::epoch::{ImageInput, ImageRule, Inputs, PackedImage, SegmentInput, TierInput};
use super::form_cost::{FormCost, PackedValues};
use super::form_tiers::FormTiers;
use super::tiering::{TableSnapshot, TieringHost};
use super::views::ViewInfluence;
use crate::heat::decay::{SegmentHeat, SegmentKey};

/// Looks up the heat of a segment.
pub(crate) type HeatLookup<'a> = &'a dyn Fn(&SegmentKey) -> SegmentHeat;

/// Where an input segment comes from, by positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Position of the table among the surveyed ones.
    pub(super) table: u32,
    /// Position of the chunk in the table's version.
    pub(super) chunk: u32,
    /// Position of the column in the chunk.
    pub(super) column: u32,
}

/// Parameters of a survey that hold for all segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct SurveyOptions {
    /// Epochs within which a move must pay back.
    pub(super) payback_epochs: f64,
    /// How the bytes of segments are weighed.
    pub(super) weights: ByteWeights,
    /// Tiers to and from which moves pause.
    pub(super) paused: TierMask,
    /// What packing and unpacking cost.
    pub(super) form_cost: FormCost,
}

/// How the bytes of segments are weighed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ByteWeights {
    /// Rates of the home device and of decompression; `None`: compressed columns are weighed by their stored bytes alone.
    pub(super) rates: Option<Rates>,
    /// The forms of copies in memory, where no rule names one.
    pub(super) form: FormChoice,
}

/// Names of the tiers, fastest first, the home last.
pub fn tier_names(host: &dyn TieringHost) -> Vec<String> {
    let memory = host.memory_tiers();
    memory.iter().map(|tier| tier.name()).chain([host.home().name()]).map(str::to_owned).collect()
}

/// Names of all tiers, that of a device included, for messages: fastest first, the home last.
pub fn all_tier_names(host: &dyn TieringHost) -> Vec<String> {
    let device = host.device_tier().map(|device| device.name().to_owned());
    device.into_iter().chain(tier_names(host)).collect()
}

/// The rules of a table, each with the chunks of a version that are in its scope.
pub fn scopes<'a>(
    rules: &'a Rules,
    tiers: &[String],
    chunks: &[ChunkEntry],
    statistics: &TableStatistics,
) -> Scopes<'a> {
    let chunks = if rules.is_empty() { &[] } else { chunks };
    let chunks = chunks.iter().map(|entry| &entry.chunk);
    let chunks: Vec<ScopeChunk<'_>> =
        chunks.map(|chunk| ScopeChunk { ids: std::slice::from_ref(&chunk.id), rows: chunk.rows }).collect();
    Scopes::new(rules, tiers, &chunks, &|column| statistics.bounds_by_id(column))
}

/// The name of a column, as the chunks of its table know it.
pub(crate) fn column_name(chunks: &[ChunkEntry], column: ColumnId) -> String {
    let named = |entry: &ChunkEntry| {
        let at = entry.chunk.columns().iter().position(|segment| segment.column == column)?;
        Some(entry.chunk.column_name(at).into_owned())
    };
    chunks.first().and_then(named).unwrap_or_else(|| format!("column {}", column.0))
}

/// Builds the inputs of a plan from all segments of the tables. Also returns the origin of each segment.
pub(super) fn survey(
    host: &dyn TieringHost,
    tables: &[TableSnapshot],
    tiers: Vec<TierInput>,
    options: SurveyOptions,
    heat: HeatLookup<'_>,
) -> (Inputs, Vec<Origin>) {
    let memory = host.memory_tiers();
    let names = tier_names(host);
    let ranks = RuleRanks::for_tables(tables);
    let closed = closed_tiers(&memory);
    let device = host.device_tier();
    let home = TierId(memory.len() as u8);
    let mut segments = Vec::new();
    let mut origins = Vec::new();
    for (table, snapshot) in tables.iter().enumerate() {
        let scopes = scopes(&snapshot.rules, &names, &snapshot.chunks, &snapshot.statistics);
        let has_rules = !snapshot.rules.is_empty();
        for (position, entry) in snapshot.chunks.iter().enumerate() {
            for (column, segment) in entry.chunk.segments.iter().enumerate() {
                if segment.constant.is_some() {
                    continue;
                }
                let has_packed = has_rules && segment.packed_bytes().is_some();
                let constraints = scopes.constraints(position, segment.column, has_packed);
                let constraints = constraints.renumbered(|rule| ranks.rank(table, rule)).without(closed);
                origins.push(Origin { table: table as u32, chunk: position as u32, column: column as u32 });
                let mut input = segment_input(&memory, heat, options.weights, &entry.chunk, segment, constraints);
                input.constraints = input.constraints.during_pause(options.paused, input.current, home);
                // A change of form is a write, which a paused or drained tier does not take: until it does, the present form
                // counts as allowed, so that a copy whose form a rule forbids is not dropped for it.
                if (options.paused | closed) & bit(input.current) != 0 {
                    let place = input.place();
                    input.forms.keep(place);
                }
                if let Some(device) = &device {
                    let rule = scopes.rule_about(device.name(), position, segment.column);
                    let rule = rule.map(|(kind, rule)| ImageRule { kind, rule: ranks.rank(table, rule) });
                    input.image = image_input(&entry.chunk, column, rule);
                }
                segments.push(input);
            }
        }
    }
    let inputs = Inputs {
        tiers,
        segments,
        payback_epochs: options.payback_epochs,
        rules: ranks.texts,
        prices: Vec::new(),
        views: Vec::new(),
        form_cost: options.form_cost,
        device: None,
    };
    (inputs, origins)
}

/// Memory tiers that accept no further segments because they are drained.
fn closed_tiers(memory: &[Arc<dyn MemoryTier>]) -> TierMask {
    tier_mask(memory.iter().map(|tier| tier.account().is_closed()))
}

/// Builds a mask from one flag per tier, fastest tier first.
pub(super) fn tier_mask(flags: impl Iterator<Item = bool>) -> TierMask {
    let chosen = flags.enumerate().filter(|(_, chosen)| *chosen);
    chosen.fold(0, |mask, (id, _)| mask | 1_u8.checked_shl(id as u32).unwrap_or(0))
}

/// The rules of all tables in the order in which they were made.
struct RuleRanks {
    /// Rank of each rule, by table and by position among the rules of the table.
    by_table: Vec<Vec<u32>>,
    /// Description of each rule, by rank.
    texts: Vec<String>,
}

impl RuleRanks {
    fn for_tables(tables: &[TableSnapshot]) -> Self {
        let mut made = Vec::new();
        let mut by_table: Vec<Vec<u32>> = tables.iter().map(|table| vec![0; table.rules.iter().len()]).collect();
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
            if let Some(slot) = by_table.get_mut(table).and_then(|table| table.get_mut(position)) {
                *slot = rank;
            }
            texts.push(text);
        }
        Self { by_table, texts }
    }

    fn rank(&self, table: usize, position: u32) -> u32 {
        self.by_table.get(table).and_then(|table| table.get(position as usize)).copied().unwrap_or(u32::MAX)
    }
}

/// Builds the input of a plan for one segment.
pub(super) fn segment_input(
    memory: &[Arc<dyn MemoryTier>],
    heat: HeatLookup<'_>,
    weights: ByteWeights,
    chunk: &Chunk,
    segment: &Segment,
    constraints: PlacementConstraints,
) -> SegmentInput {
    let key = SegmentKey::for_segment(chunk, segment);
    let home = TierId(memory.len() as u8);
    let bytes = segment.bytes_in(Form::Plain);
    let resident = segment.resident.load();
    let copy = resident.as_ref();
    let form = copy.map_or(Form::Plain, |copy| copy.column.form());
    // A packed copy is larger or smaller than it was estimated to be.
    let packed_bytes = || match copy {
        Some(copy) if form == Form::Packed => Some(copy.bytes.buffer.len() as u64),
        _ => segment.packed_bytes(),
    };
    // Where neither setting nor rules know the packed form, a plan need not, either.
    let is_known = weights.form != FormChoice::Plain || form == Form::Packed || names_form(&constraints);
    let values = || packed_values(&segment.home, chunk.rows, bytes);
    let packed = is_known
        .then(packed_bytes)
        .flatten()
        .map(|bytes| Box::new(PackedImage { bytes, charged_bytes: charged_bytes(memory, bytes), values: values() }));
    SegmentInput {
        key,
        rows: chunk.rows,
        bytes,
        form,
        forms: packed.as_ref().map_or(FormTiers::PLAIN, |_| FormTiers::new(weights.form, &constraints, memory.len())),
        packed,
        stored_bytes: segment.home.len,
        home_bytes: home_bytes(&segment.home, weights.rates),
        whole_at_home: !Part::is_possible(&segment.home),
        packed_at_home: segment.home.is_packed().then(values),
        charged_bytes: charged_bytes(memory, bytes),
        current: copy.map_or(home, |copy| copy.tier.id()),
        heat: heat(&key),
        constraints,
        hysteresis: None,
        expected_reads: SegmentHeat::default(),
        view: ViewInfluence::default(),
        image: None,
    }
}

/// The image that a segment may have on the device, under the latest rule about it; `None` for a column that has none.
fn image_input(chunk: &Chunk, column: usize, rule: Option<ImageRule>) -> Option<Box<ImageInput>> {
    let segment = chunk.segments.get(column)?;
    let there = segment.image.load();
    let charged_bytes = match there.as_ref() {
        Some(image) => image.charged_bytes(),
        None => image_bytes(&segment.home, chunk.data_type(column)?, chunk.rows)?,
    };
    Some(Box::new(ImageInput { charged_bytes, is_there: there.is_some(), rule }))
}

/// Bytes that an image is charged on each memory tier; 0 beyond them.
fn charged_bytes(memory: &[Arc<dyn MemoryTier>], bytes: u64) -> [u64; MAX_TIERS] {
    let mut charged_bytes = [0; MAX_TIERS];
    for (slot, tier) in charged_bytes.iter_mut().zip(memory) {
        *slot = tier.charged_bytes(bytes as usize);
    }
    charged_bytes
}

/// True where a rule leaves a segment one form on some tier, or prefers one.
fn names_form(constraints: &PlacementConstraints) -> bool {
    constraints.form.is_some() || constraints.preferred_form.is_some()
}

/// The values of the packed form of a segment, whose plain image has so many bytes.
fn packed_values(home: &SegmentHome, rows: u32, plain_bytes: u64) -> PackedValues {
    // Of all columns that have a packed form, only those of texts have views.
    match home.layout.variadic.is_empty() {
        true => PackedValues::Numbers { is_narrow: home.wide_bytes > plain_bytes },
        false => PackedValues::Texts { bytes: plain_bytes.saturating_sub(u64::from(rows) * size_of::<u128>() as u64) },
    }
}

/// Cost of a read from home, in bytes of the home device: the stored bytes and, for a compressed column, the bytes that the
/// device could read in the time of the decompression.
fn home_bytes(home: &SegmentHome, rates: Option<Rates>) -> u64 {
    let Some((rates, compression)) = rates.zip(home.encoding.compression()) else { return home.len };
    let decompression_us = decompressed_bytes(home) as f64 / rates.decompression.rate_of(compression);
    home.len + (decompression_us * rates.device) as u64
}
