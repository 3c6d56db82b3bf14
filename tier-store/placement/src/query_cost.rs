//! Query cost: the segments that a statement would read, their tiers, the reading time by the cost model, and the change
//! after which all of them would be in memory. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use terrace_model::{Result, TierId};

use super::epoch::{EpochPlan, Inputs, plan, read_bytes, reads_us};
use super::explain::Explainer;
use super::format::{bytes, figure, time};
use super::place::Place;
use super::solver::Effort;
use crate::heat::decay::SegmentHeat;

/// Segments of one column on one tier that a statement would read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadPart {
    /// Full name of the table.
    pub table: String,
    /// Name of the column.
    pub column: String,
    /// Name of the tier they lie on.
    pub tier: String,
    /// Number of chunks, one segment each.
    pub chunks: u64,
    /// Bytes that a whole read moves.
    pub bytes: u64,
    /// Expected time to read each of them once, from end to end, one after the other, in microseconds.
    pub read_us: f64,
    /// Like `read_us`, but with all of them on the fastest tier.
    pub fast_us: f64,
    /// Bytes by the name of the tier on which an epoch would place them now.
    pub planned_bytes: BTreeMap<String, u64>,
}

/// All reads of a statement and their cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueryCost {
    /// By table, column and tier.
    pub parts: Vec<ReadPart>,
    /// Bytes of all parts.
    pub bytes: u64,
    /// Bytes that lie on no memory tier.
    pub cold_bytes: u64,
    /// Expected reading time, in microseconds.
    pub read_us: f64,
    /// Like `read_us`, but with all segments on the fastest tier.
    pub fast_us: f64,
    /// False where there are too many segments to make plans for the next two figures.
    pub is_searched: bool,
    /// Runs per epoch from which on the next epoch would bring all segments into memory; null when no number does.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub runs_per_epoch: Option<f64>,
    /// Bytes that the budget of the fastest tier lacks for that, with one more run per epoch; null when no budget
    /// suffices: rules forbid it, or so few runs do not pay for the moves.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub more_room_bytes: Option<u64>,
    /// Summary in one sentence.
    pub why: String,
}

/// Segments of a store up to which about twenty plans may be made for one answer.
const SEARCHED: usize = 100_000;

/// A segment to be read.
pub(super) struct SegmentRead {
    /// Its position in [`Inputs::segments`].
    pub(super) at: usize,
    /// Full name of its table.
    pub(super) table: String,
    /// Name of its column.
    pub(super) column: String,
}

/// Estimates the cost of `reads`; `known` is a plan made from `inputs`.
pub(super) fn query_cost(
    inputs: &Inputs,
    known: &EpochPlan,
    effort: Effort,
    reads: &[SegmentRead],
) -> Result<QueryCost> {
    let explainer = Explainer::new(inputs, known);
    let home = inputs.home();
    let mut parts: BTreeMap<(&str, &str, TierId), ReadPart> = BTreeMap::new();
    for SegmentRead { at, table, column } in reads {
        let Some(segment) = inputs.segments.get(*at) else { continue };
        let part = parts.entry((table, column, segment.current)).or_insert_with(|| ReadPart {
            table: table.clone(),
            column: column.clone(),
            tier: explainer.name(segment.current).to_owned(),
            chunks: 0,
            bytes: 0,
            read_us: 0.0,
            fast_us: 0.0,
            planned_bytes: BTreeMap::new(),
        });
        let scan = SegmentHeat::full_scan(segment.rows);
        let scan_us = |place: Place| reads_us(inputs, segment, &scan, place);
        part.chunks += 1;
        part.bytes += read_bytes(inputs, segment, segment.place());
        part.read_us += scan_us(segment.place());
        let fast_us = segment.places_on(TierId(0)).map(scan_us).fold(f64::INFINITY, f64::min);
        part.fast_us += if fast_us.is_finite() { fast_us } else { scan_us(Place::plain(TierId(0))) };
        let placed = explainer.place(*at);
        let bytes = if placed.tier == home { segment.stored_bytes } else { segment.image_bytes(placed.form) };
        *part.planned_bytes.entry(explainer.name(placed.tier).to_owned()).or_default() += bytes;
    }
    let cold = |(_, _, tier): &(&str, &str, TierId)| *tier == home;
    let mut cost = QueryCost {
        bytes: parts.values().map(|part| part.bytes).sum(),
        cold_bytes: parts.iter().filter(|(key, _)| cold(key)).map(|(_, part)| part.bytes).sum(),
        read_us: parts.values().map(|part| part.read_us).sum(),
        fast_us: parts.values().map(|part| part.fast_us).sum(),
        parts: parts.into_values().collect(),
        is_searched: inputs.segments.len() <= SEARCHED,
        runs_per_epoch: None,
        more_room_bytes: None,
        why: String::new(),
    };
    if cost.cold_bytes > 0 && cost.is_searched {
        let wanted = reads.iter().map(|read| read.at).collect();
        let search = ResidencySearch { inputs: inputs.clone(), effort, wanted };
        cost.runs_per_epoch = search.fewest_runs()?;
        cost.more_room_bytes = search.least_room()?;
    }
    cost.why = sentence(&cost, explainer.name(TierId(0)));
    Ok(cost)
}

/// Summarises a query cost; `fastest` is the name of the fastest tier.
fn sentence(cost: &QueryCost, fastest: &str) -> String {
    let QueryCost { cold_bytes, read_us, fast_us, .. } = cost;
    if cost.parts.is_empty() {
        return "reads no stored segment".to_owned();
    }
    if *cold_bytes == 0 {
        return format!("reads {} from memory, in about {}", bytes(cost.bytes), time(*read_us));
    }
    let runs = match cost.runs_per_epoch {
        _ if !cost.is_searched => "there are too many segments to search for what would bring it into memory".into(),
        Some(runs) => format!("all of it comes into memory when it runs more than {} times an epoch", figure(runs)),
        None => "no number of runs brings all of it into memory".to_owned(),
    };
    let room = match cost.more_room_bytes {
        Some(0) => "; once an epoch is enough".to_owned(),
        Some(more) => format!("; once an epoch is enough with {} more of {fastest}", bytes(more)),
        None if !cost.is_searched => String::new(),
        None => "; nor does a larger budget".to_owned(),
    };
    format!(
        "{} of {} come from cold storage, about {}; with all in {fastest} it would be {}; {runs}{room}",
        bytes(*cold_bytes),
        bytes(cost.bytes),
        time(*read_us),
        time(*fast_us)
    )
}

/// Searches for the fewest runs or the least room with which all segments of a statement lie in memory.
struct ResidencySearch {
    inputs: Inputs,
    effort: Effort,
    /// Positions of the segments in [`Inputs::segments`].
    wanted: BTreeSet<usize>,
}

impl ResidencySearch {
    /// Fewest runs per epoch, within 2 %; `None` when no number suffices.
    fn fewest_runs(&self) -> Result<Option<f64>> {
        const MOST: f64 = 1e6;
        if !self.all_in_memory(MOST, 0)? {
            return Ok(None);
        }
        least(1e-2, MOST, |runs| self.all_in_memory(runs, 0)).map(Some)
    }

    /// Fewest further bytes of the fastest tier with one run per epoch, within 2 %; `None` when no budget suffices.
    fn least_room(&self) -> Result<Option<u64>> {
        if self.all_in_memory(1.0, 0)? {
            return Ok(Some(0));
        }
        let all: u64 = self.inputs.segments.iter().map(|segment| segment.charged_on(TierId(0))).sum();
        if !self.all_in_memory(1.0, all)? {
            return Ok(None);
        }
        least(4096.0, all as f64, |more| self.all_in_memory(1.0, more as u64)).map(|more| Some(more as u64))
    }

    /// True when the plan places all of them in memory with `runs` more runs per epoch and `more` further bytes of the
    /// fastest tier.
    fn all_in_memory(&self, runs: f64, more: u64) -> Result<bool> {
        let mut inputs = self.inputs.clone();
        if let Some(budget) = inputs.tiers.first_mut().and_then(|tier| tier.budget_bytes.as_mut()) {
            *budget = budget.saturating_add(more);
        }
        for at in &self.wanted {
            if let Some(segment) = inputs.segments.get_mut(*at) {
                let [accesses, ..] = &mut segment.heat.accesses;
                let [values, ..] = &mut segment.heat.values;
                *accesses += runs as f32;
                *values += runs as f32 * segment.rows as f32;
            }
        }
        let found = plan(&inputs, self.effort)?;
        let explainer = Explainer::new(&inputs, &found);
        Ok(self.wanted.iter().all(|at| explainer.placed(*at) < inputs.home()))
    }
}

/// Finds the least number for which `suffices` is true, within 2 %, between `low`, for which it may be false, and
/// `high`, for which it is true.
fn least(low: f64, high: f64, suffices: impl Fn(f64) -> Result<bool>) -> Result<f64> {
    let mut low = low;
    let mut high = high;
    while high > low * 1.02 {
        let between = (low * high).sqrt();
        if suffices(between)? { high = between } else { low = between }
    }
    Ok(high)
}
