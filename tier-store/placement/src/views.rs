//! The influence of hot views on a plan: they change expected reads, weights and budgets, but pin no segments.
//!
//! Hot views act in three ways, all of them on the plan alone; [`SegmentInput::heat`] keeps the counted accesses.
//!
//! 1. *Expected accesses.* A segment of a view's column, in a chunk that has rows of the view, is expected to be read
//!    at least as often as scans of the view read that column ([`crate::heat::views`]), not more often than the larger
//!    of both: these scans are counted by the segment too, once it is there. So the chunk's expected reads are known
//!    from its first epoch on. The difference to the counted reads fades with the half-life of heat, because its own
//!    counters become more reliable: a view of a month does not keep in memory the weeks that nobody reads.
//! 2. *Preference.* At equal benefit per byte such segments go first: their reads weigh [`PREFERENCE`] more.
//! 3. *Budgets.* Of the segments of a view with a budget, those that fit in it together, by falling benefit per byte, stay
//!    candidates for DRAM; a segment in DRAM keeps its place unless another one is [`HYSTERESIS`] times as good. This
//!    plan keeps the others off DRAM, and a segment of several views must fit in each of them. Segments that rules of
//!    users put into DRAM take their part of the budget first.

use std::collections::HashMap;

use terrace_model::{ColumnId, TierId};
use terrace_storage::table::Marked;

use super::constraints::TierMask;
use super::epoch::{Inputs, SegmentInput, expected_us};
use super::format::bytes;
use super::place::Place;
use super::survey::Origin;
use super::tiering::TableSnapshot;
use crate::heat::ViewUse;
use crate::heat::decay::{Heat, SegmentHeat, decay};

/// Extra weight of the reads of a view's columns, as a part of their time.
pub(super) const PREFERENCE: f64 = 0.01;
/// Factor by which a segment must be better per byte to take the place of another in a view's budget.
const HYSTERESIS: f64 = 1.1;

/// A hot view as the plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewInput {
    /// Schema and name.
    pub name: String,
    /// Bytes of DRAM that its segments may take together; `None`: no limit.
    pub budget_bytes: Option<u64>,
    /// Bytes by which segments that rules put into DRAM exceed the budget.
    pub missed_bytes: u64,
}

/// The influence of hot views on one segment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ViewInfluence {
    /// Expected accesses in addition to those of its heat.
    pub extra_reads: SegmentHeat,
    /// Position in [`Inputs::views`] of the view with most scans that read it.
    pub read_by: Option<u32>,
    /// Position of the view whose budget keeps it off DRAM; it would have fitted without.
    pub kept_off_by: Option<u32>,
    /// Position of a view whose budget is exceeded because rules put this segment into DRAM.
    pub over_budget_of: Option<u32>,
}

impl SegmentInput {
    /// Expected accesses: those of its heat, and the extra reads by scans of hot views.
    pub(super) fn heat_with_views(&self) -> SegmentHeat {
        let mut heat = self.heat;
        add_reads(&mut heat, &self.view.extra_reads);
        heat
    }
}

/// Adds accesses and values to `sum`.
fn add_reads(sum: &mut SegmentHeat, reads: &SegmentHeat) {
    let add = |(sum, more): (&mut f32, f32)| *sum += more;
    sum.accesses.iter_mut().zip(reads.accesses).for_each(add);
    sum.values.iter_mut().zip(reads.values).for_each(add);
}

impl Inputs {
    /// The hot view at a position.
    fn view(&self, at: Option<u32>) -> Option<&ViewInput> {
        at.and_then(|at| self.views.get(at as usize))
    }

    /// Describes how views influence the placement of a segment; each part begins with "; ".
    pub(super) fn view_text(&self, segment: &SegmentInput) -> String {
        let mut text = String::new();
        let more = segment.view.extra_reads.total();
        if let Some(view) = self.view(segment.view.read_by).filter(|_| more > 0.0) {
            let reads = super::format::figure(segment.heat_with_views().total().into());
            text +=
                &format!("; scans of hot view {} are expected to read it, {reads} times per epoch in all", view.name);
        }
        if let Some(ViewInput { name, budget_bytes: Some(budget), .. }) = self.view(segment.view.kept_off_by) {
            text +=
                &format!("; the budget of hot view {name}, {} of DRAM, goes to others of its segments", bytes(*budget));
        }
        if let Some(ViewInput { name, missed_bytes, .. }) = self.view(segment.view.over_budget_of) {
            text += &format!("; rules keep {} more in DRAM than the budget of hot view {name}", bytes(*missed_bytes));
        }
        text
    }

    /// The condition under which a segment that a view's budget keeps off DRAM may go there.
    pub(super) fn view_condition(&self, segment: &SegmentInput) -> Option<String> {
        let view = self.view(segment.view.kept_off_by)?;
        Some(format!("may go to DRAM when the budget of hot view {} is larger", view.name))
    }

    /// Removes the expected reads of views; their budgets remain.
    pub(super) fn forget_view_scans(&mut self) {
        for segment in &mut self.segments {
            (segment.view.extra_reads, segment.view.read_by) = (SegmentHeat::default(), None);
        }
    }
}

/// Positions of the segments of each view.
type Members = Vec<Vec<usize>>;

/// The hot views and the heat by which they are weighed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ViewWeighing<'a> {
    pub(super) views: &'a [ViewUse],
    /// The tiers to which budgets of views apply.
    pub(super) dram: TierMask,
    pub(super) heat: &'a Heat,
    /// Epochs after which an access counts half.
    pub(super) half_life_epochs: f64,
}

/// Adds the influence of the views to the inputs: expected reads, and budgets that keep segments off DRAM.
pub(super) fn weigh_views(
    inputs: &mut Inputs,
    origins: &[Origin],
    tables: &[TableSnapshot],
    weighing: &ViewWeighing<'_>,
) {
    let views = weighing.views;
    if views.is_empty() {
        return;
    }
    let named =
        |view: &ViewUse| ViewInput { name: view.name.clone(), budget_bytes: view.budget_bytes, missed_bytes: 0 };
    inputs.views = views.iter().map(named).collect();
    let members = members(origins, tables, views);
    for ((number, view), members) in (0..).zip(views).zip(&members) {
        add_expected_reads(&mut inputs.segments, number, view, members, weighing);
    }
    keep_budgets(inputs, &members, weighing.dram);
}

/// Finds the segments of each view: its columns, in chunks that have rows of it.
fn members(origins: &[Origin], tables: &[TableSnapshot], views: &[ViewUse]) -> Members {
    let mut members: Members = vec![Vec::new(); views.len()];
    // Segments of one chunk follow each other, so its views are looked up once.
    let mut last_chunk: Option<(u32, u32)> = None;
    let mut views_of_chunk: Vec<usize> = Vec::new();
    for (at, origin) in origins.iter().enumerate() {
        let Some(snapshot) = tables.get(origin.table as usize) else { continue };
        let Some(chunk) = snapshot.chunks.get(origin.chunk as usize).map(|entry| &entry.chunk) else { continue };
        if last_chunk != Some((origin.table, origin.chunk)) {
            let has_rows = |view: &ViewUse| {
                view.table == snapshot.id && matches!(chunk.marked(view.mark), Marked::Some | Marked::All)
            };
            let with_rows = views.iter().enumerate().filter(|(_, view)| has_rows(view)).map(|(number, _)| number);
            last_chunk = Some((origin.table, origin.chunk));
            views_of_chunk = with_rows.collect();
        }
        let Some(column) = chunk.segments.get(origin.column as usize).map(|segment| segment.column) else { continue };
        for number in &views_of_chunk {
            let is_own = views.get(*number).is_some_and(|view| view.columns.binary_search(&column).is_ok());
            if let Some(list) = members.get_mut(*number).filter(|_| is_own) {
                list.push(at);
            }
        }
    }
    members
}

/// Adds the reads that scans of one view are expected to make of its segments.
fn add_expected_reads(
    segments: &mut [SegmentInput],
    number: u32,
    view: &ViewUse,
    members: &[usize],
    weighing: &ViewWeighing<'_>,
) {
    let ViewWeighing { heat, half_life_epochs, .. } = *weighing;
    // Heat of each column, summed over the segments of the view.
    let mut column_heat: HashMap<ColumnId, SegmentHeat> = HashMap::new();
    for segment in members.iter().filter_map(|at| segments.get(*at)) {
        add_reads(column_heat.entry(segment.key.column).or_default(), &segment.heat);
    }
    let decay = decay(half_life_epochs);
    for at in members {
        let Some(segment) = segments.get_mut(*at) else { continue };
        let reads = heat.views().reads(&view.name, segment.key.column);
        if reads <= 0.0 {
            continue;
        }
        segment.view.read_by.get_or_insert(number);
        let epochs = heat.epochs(&segment.key).min(heat.views().epochs(&view.name)).saturating_sub(1);
        // The longer the segment and the view are observed, the less the view's reads say beyond the segment's own
        // counters.
        let uncertainty = decay.powi(epochs.min(1_000) as i32);
        let more = (reads - segment.heat.total()) * uncertainty;
        if more <= segment.view.extra_reads.total() {
            continue;
        }
        // The extra reads have the patterns of the segment's own reads, or else of the column's reads elsewhere in the
        // view.
        let like = match segment.heat.total() > 0.0 {
            true => segment.heat,
            false => column_heat.get(&segment.key.column).copied().unwrap_or_default(),
        };
        let profile = match like.total() {
            total if total > 0.0 => like.times(more / total),
            _ => SegmentHeat::full_scan(segment.rows).times(more),
        };
        segment.view.extra_reads = SegmentHeat { idle_epochs: None, ..profile };
        segment.view.read_by = Some(number);
    }
}

/// Keeps segments off `dram` that do not fit in the budgets of their views, in the larger of the forms that they may have.
fn keep_budgets(inputs: &mut Inputs, members: &[Vec<usize>], dram: TierMask) {
    let Some(fastest) = (dram != 0).then(|| TierId(dram.trailing_zeros() as u8)) else { return };
    let mut left: Vec<Option<u64>> = inputs.views.iter().map(|view| view.budget_bytes).collect();
    // Views with a budget, by position of the segment.
    let mut views_of: HashMap<usize, Vec<u32>> = HashMap::new();
    for (number, list) in
        (0_u32..).zip(members).filter(|(number, _)| left.get(*number as usize).is_some_and(Option::is_some))
    {
        list.iter().for_each(|at| views_of.entry(*at).or_default().push(number));
    }
    let (mut forced, order): (Vec<usize>, Vec<usize>) = views_of
        .keys()
        .copied()
        .partition(|at| inputs.segments.get(*at).is_some_and(|segment| segment.constraints.allowed & !dram == 0));
    forced.sort_unstable();
    for at in forced {
        let Some(segment) = inputs.segments.get_mut(at) else { continue };
        let charged = segment.most_charged_on(fastest);
        for number in views_of.get(&at).into_iter().flatten() {
            let (Some(view), Some(Some(left))) =
                (inputs.views.get_mut(*number as usize), left.get_mut(*number as usize))
            else {
                continue;
            };
            let missed = charged.saturating_sub(*left);
            *left = left.saturating_sub(charged);
            view.missed_bytes += missed;
            if missed > 0 {
                segment.view.over_budget_of = Some(*number);
            }
        }
    }
    let worth = |at: &usize| {
        let Some(segment) = inputs.segments.get(*at) else { return 0.0 };
        let us = |place: Place| expected_us(inputs, segment, place);
        let saves_us = us(Place::plain(inputs.home())) - us(segment.usual_place(fastest));
        let lies_there = dram.checked_shr(segment.current.0.into()).unwrap_or(0) & 1 == 1;
        let factor = if lies_there { HYSTERESIS } else { 1.0 };
        saves_us * factor / segment.most_charged_on(fastest).max(1) as f64
    };
    let mut ranked: Vec<(f64, usize)> = order.into_iter().map(|at| (worth(&at), at)).collect();
    ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (worth, at) in ranked {
        let (Some(segment), Some(numbers)) = (inputs.segments.get_mut(at), views_of.get(&at)) else { continue };
        let charged = segment.most_charged_on(fastest);
        let lacks = |number: &&u32| left.get(**number as usize).copied().flatten().is_some_and(|left| charged > left);
        if let Some(number) = numbers.iter().find(lacks) {
            // A segment that gains nothing in DRAM would stay off it in any case: the budget is not the reason.
            let lies_there = dram.checked_shr(segment.current.0.into()).unwrap_or(0) & 1 == 1;
            segment.view.kept_off_by = (worth > 0.0 || lies_there).then_some(*number);
            segment.constraints = segment.constraints.avoiding(dram);
            continue;
        }
        for number in numbers {
            if let Some(Some(left)) = left.get_mut(*number as usize) {
                *left -= charged;
            }
        }
    }
}

#[cfg(test)]
mod tests;
