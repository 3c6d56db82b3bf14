//! What hot views weigh: they pin nothing.
//!
//! Three things, all of them for the plan alone; [`SegmentInput::heat`] is what was counted, and stays.
//!
//! 1. *Expected accesses.* A segment of a view's column, in a chunk that has rows of the view, is expected to be read at least
//!    as often as scans of the view read that column ([`crate::heat::views`]), not more often than the larger of both: these scans
//!    are counted by the segment too, once it is there. So a chunk that was just written counts from its first epoch on. What
//!    it lacks of that fades with the half-life of heat, as its own counters get to know better: a view of a month does not
//!    keep in memory the weeks that nobody asks for.
//! 2. *Preference.* At equal benefit per byte such segments go first: their reads weigh [`PREFERENCE`] more.
//! 3. *Budgets.* Of the segments of a view with a budget those stay candidates for DRAM that fit in it together, by falling benefit per
//!    byte; what lies there keeps its place against what is not [`HYSTERESIS`] times as good. The others are kept off DRAM in this plan,
//!    and a segment of several views must fit in each of them. What must lie there by rules of users does, and takes its part first.

use std::collections::HashMap;

use super::duty::TierMask;
use super::epoch::{Inputs, SegmentInput, expected_us};
use super::survey::Origin;
use super::tiering::TableSnapshot;
use super::words::bytes;
use crate::heat::ViewUse;
use crate::heat::decay::{Heat, SegmentHeat, decay};
use crate::table::{ColumnId, Marked};
use crate::tier::TierId;

/// How much more the reads of a view's columns weigh than others.
pub(super) const PREFERENCE: f64 = 0.01;
/// By what factor a segment must be better per byte to take the place of one in a view's budget.
const HYSTERESIS: f64 = 1.1;

/// A hot view as the plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewInput {
    /// Schema and name.
    pub name: String,
    /// What its segments may take of DRAM together.
    pub budget_bytes: Option<u64>,
    /// By how much what must lie there by rules is more than that.
    pub missed_bytes: u64,
}

/// What hot views make of one segment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ViewPart {
    /// Accesses that are expected beside those of its heat.
    pub more: SegmentHeat,
    /// The view with most scans that read it, by position in [`Inputs::views`].
    pub of: Option<u32>,
    /// The view whose budget keeps it off DRAM, likewise; it would have fitted without.
    pub over: Option<u32>,
    /// A view whose budget is missed because this must lie in DRAM, likewise.
    pub forced: Option<u32>,
}

impl SegmentInput {
    /// Accesses that are expected: those of its heat, and those of scans of hot views beyond them.
    pub(super) fn expected(&self) -> SegmentHeat {
        let mut heat = self.heat;
        let add = |(sum, more): (&mut f32, f32)| *sum += more;
        heat.accesses.iter_mut().zip(self.view.more.accesses).for_each(add);
        heat.values.iter_mut().zip(self.view.more.values).for_each(add);
        heat
    }
}

impl Inputs {
    /// The name of a hot view, or of what its budget is.
    fn view(&self, at: Option<u32>) -> Option<&ViewInput> {
        at.and_then(|at| self.views.get(at as usize))
    }

    /// What the views have to do with where a segment lies, in words; each part begins with "; ".
    pub(super) fn view_words(&self, segment: &SegmentInput) -> String {
        let mut words = String::new();
        let more = segment.view.more.total();
        if let Some(view) = self.view(segment.view.of).filter(|_| more > 0.0) {
            let reads = super::words::figure(segment.expected().total().into());
            words +=
                &format!("; scans of hot view {} are expected to read it, {reads} times per epoch in all", view.name);
        }
        if let Some(ViewInput { name, budget_bytes: Some(budget), .. }) = self.view(segment.view.over) {
            words +=
                &format!("; the budget of hot view {name}, {} of DRAM, goes to others of its segments", bytes(*budget));
        }
        if let Some(ViewInput { name, missed_bytes, .. }) = self.view(segment.view.forced) {
            words += &format!("; rules keep {} more in DRAM than the budget of hot view {name}", bytes(*missed_bytes));
        }
        words
    }

    /// What has to change for a segment that a view's budget keeps off DRAM to go there.
    pub(super) fn view_condition(&self, segment: &SegmentInput) -> Option<String> {
        let view = self.view(segment.view.over)?;
        Some(format!("may go to DRAM when the budget of hot view {} is larger", view.name))
    }

    /// As if there were no views, but for their budgets.
    pub(super) fn forget_view_scans(&mut self) {
        for segment in &mut self.segments {
            (segment.view.more, segment.view.of) = (SegmentHeat::default(), None);
        }
    }
}

/// Segments, by position, of each view.
type Members = Vec<Vec<usize>>;

/// Notes in the inputs what the views weigh, and keeps off `dram` what their budgets have no room for.
pub(super) fn weigh(
    inputs: &mut Inputs,
    (origins, tables): (&[Origin], &[TableSnapshot]),
    (views, dram): (&[ViewUse], TierMask),
    (heat, half_life_epochs): (&Heat, f64),
) {
    if views.is_empty() {
        return;
    }
    let named =
        |view: &ViewUse| ViewInput { name: view.name.clone(), budget_bytes: view.budget_bytes, missed_bytes: 0 };
    inputs.views = views.iter().map(named).collect();
    let members = members(origins, tables, views);
    for ((at, view), members) in (0..).zip(views).zip(&members) {
        expect(&mut inputs.segments, (at, view), members, (heat, half_life_epochs));
    }
    keep_budgets(inputs, &members, dram);
}

fn members(origins: &[Origin], tables: &[TableSnapshot], views: &[ViewUse]) -> Members {
    let mut members: Members = vec![Vec::new(); views.len()];
    let mut of_chunk: (Option<(u32, u32)>, Vec<usize>) = (None, Vec::new());
    for (at, (table, position, column)) in origins.iter().enumerate() {
        let Some(snapshot) = tables.get(*table as usize) else { continue };
        let Some(chunk) = snapshot.chunks.get(*position as usize).map(|entry| &entry.chunk) else { continue };
        if of_chunk.0 != Some((*table, *position)) {
            let has_rows = |view: &ViewUse| {
                view.table == snapshot.id && matches!(chunk.marked(view.mark), Marked::Some | Marked::All)
            };
            let with_rows = views.iter().enumerate().filter(|(_, view)| has_rows(view)).map(|(number, _)| number);
            of_chunk = (Some((*table, *position)), with_rows.collect());
        }
        let Some(column) = chunk.segments.get(*column as usize).map(|segment| segment.column) else { continue };
        for number in &of_chunk.1 {
            let is_own = views.get(*number).is_some_and(|view| view.columns.binary_search(&column).is_ok());
            if let Some(list) = members.get_mut(*number).filter(|_| is_own) {
                list.push(at);
            }
        }
    }
    members
}

/// Notes what scans of one view are expected to read of its segments.
fn expect(
    segments: &mut [SegmentInput],
    (number, view): (u32, &ViewUse),
    members: &[usize],
    (heat, half_life_epochs): (&Heat, f64),
) {
    let mut usual: HashMap<ColumnId, SegmentHeat> = HashMap::new();
    for segment in members.iter().filter_map(|at| segments.get(*at)) {
        let sum = usual.entry(segment.key.column).or_default();
        let add = |(sum, more): (&mut f32, f32)| *sum += more;
        sum.accesses.iter_mut().zip(segment.heat.accesses).for_each(add);
        sum.values.iter_mut().zip(segment.heat.values).for_each(add);
    }
    let decay = decay(half_life_epochs);
    for at in members {
        let Some(segment) = segments.get_mut(*at) else { continue };
        let reads = heat.views().reads(&view.name, segment.key.column);
        if reads <= 0.0 {
            continue;
        }
        segment.view.of.get_or_insert(number);
        let epochs = heat.epochs(&segment.key).min(heat.views().epochs(&view.name)).saturating_sub(1);
        let unknown = decay.powi(epochs.min(1_000) as i32);
        let more = (reads - segment.heat.total()) * unknown;
        if more <= segment.view.more.total() {
            continue;
        }
        // Read as its other reads are, or as those of the column elsewhere in the view.
        let like = match segment.heat.total() > 0.0 {
            true => segment.heat,
            false => usual.get(&segment.key.column).copied().unwrap_or_default(),
        };
        let profile = match like.total() {
            total if total > 0.0 => like.times(more / total),
            _ => whole(segment.rows).times(more),
        };
        segment.view.more = SegmentHeat { idle_epochs: None, ..profile };
        segment.view.of = Some(number);
    }
}

/// One sequential scan of everything.
fn whole(rows: u32) -> SegmentHeat {
    SegmentHeat { accesses: [1.0, 0.0, 0.0, 0.0], values: [rows as f32, 0.0, 0.0, 0.0], idle_epochs: None }
}

/// Keeps off `dram` what does not fit in the budgets of its views.
fn keep_budgets(inputs: &mut Inputs, members: &[Vec<usize>], dram: TierMask) {
    let Some(fastest) = (dram != 0).then(|| TierId(dram.trailing_zeros() as u8)) else { return };
    let mut left: Vec<Option<u64>> = inputs.views.iter().map(|view| view.budget_bytes).collect();
    let mut of: HashMap<usize, Vec<u32>> = HashMap::new();
    for (number, list) in
        (0_u32..).zip(members).filter(|(number, _)| left.get(*number as usize).is_some_and(Option::is_some))
    {
        list.iter().for_each(|at| of.entry(*at).or_default().push(number));
    }
    let (mut forced, order): (Vec<usize>, Vec<usize>) = of
        .keys()
        .copied()
        .partition(|at| inputs.segments.get(*at).is_some_and(|segment| segment.duty.allowed & !dram == 0));
    forced.sort_unstable();
    for at in forced {
        let Some(segment) = inputs.segments.get_mut(at) else { continue };
        let charged = segment.charged_on(fastest);
        for number in of.get(&at).into_iter().flatten() {
            let (Some(view), Some(Some(left))) =
                (inputs.views.get_mut(*number as usize), left.get_mut(*number as usize))
            else {
                continue;
            };
            let missed = charged.saturating_sub(*left);
            *left = left.saturating_sub(charged);
            view.missed_bytes += missed;
            if missed > 0 {
                segment.view.forced = Some(*number);
            }
        }
    }
    let worth = |at: &usize| {
        let Some(segment) = inputs.segments.get(*at) else { return 0.0 };
        let saves_us = expected_us(inputs, segment, inputs.home()) - expected_us(inputs, segment, fastest);
        let lies_there = dram.checked_shr(segment.current.0.into()).unwrap_or(0) & 1 == 1;
        let kept = if lies_there { HYSTERESIS } else { 1.0 };
        saves_us * kept / segment.charged_on(fastest).max(1) as f64
    };
    let mut ranked: Vec<(f64, usize)> = order.into_iter().map(|at| (worth(&at), at)).collect();
    ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (worth, at) in ranked {
        let (Some(segment), Some(numbers)) = (inputs.segments.get_mut(at), of.get(&at)) else { continue };
        let charged = segment.charged_on(fastest);
        let lacks = |number: &&u32| left.get(**number as usize).copied().flatten().is_some_and(|left| charged > left);
        if let Some(number) = numbers.iter().find(lacks) {
            // What gains nothing by it stays off DRAM in any case.
            let lies_there = dram.checked_shr(segment.current.0.into()).unwrap_or(0) & 1 == 1;
            segment.view.over = (worth > 0.0 || lies_there).then_some(*number);
            segment.duty = segment.duty.off(dram);
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
