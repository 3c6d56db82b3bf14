//! Fills tiers, fastest first, with segments in a given order.

use terrace_model::{Result, TierId};

use super::{Decision, Problem};
use crate::solver::judge;

/// Places rows by falling score, each on its preferred tier or else on the fastest tier that has room for it. Of rows with
/// equal scores those on faster tiers come first, then those earlier in the table. A row without a score is placed last: it
/// stays on its tier while room is left, else it goes to the next slower tier that has room.
pub(super) fn fill_by_score(problem: &Problem<'_>, scores: Vec<Option<f64>>) -> Result<Decision> {
    let mut filler = TierFiller::new(problem);
    let mut order: Vec<(Option<f64>, TierId, usize)> =
        problem.rows().zip(&scores).enumerate().map(|(row, (segment, score))| (*score, segment.current, row)).collect();
    order.sort_by(|a, b| {
        let a_score = a.0.unwrap_or(f64::NEG_INFINITY);
        let b_score = b.0.unwrap_or(f64::NEG_INFINITY);
        b_score.total_cmp(&a_score).then((a.1, a.2).cmp(&(b.1, b.2)))
    });
    for (score, current, row) in order {
        filler.place(row, if score.is_some() { 0 } else { usize::from(current.0) });
    }
    filler.decide(scores)
}

/// Rows placed so far, and the room they leave.
pub(super) struct TierFiller<'a> {
    problem: &'a Problem<'a>,
    /// The option of each row: that of its tier.
    choice: Vec<u8>,
    room: Vec<f64>,
}

impl<'a> TierFiller<'a> {
    /// Starts with all rows at home.
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        let choice = vec![problem.home() as u8; problem.segments.len()];
        Self { problem, room: problem.instance.room(&choice), choice }
    }

    /// True when a tier has room for all of the rows.
    pub(super) fn has_room<'r>(&self, tier: usize, rows: impl Iterator<Item = &'r usize>) -> bool {
        let mut room = self.room.clone();
        rows.for_each(|row| self.problem.instance.take(&mut room, *row, tier));
        room.iter().all(|room| *room >= 0.0)
    }

    /// Puts a row on the tier it is preferred on, else the first one from `fastest` on that may hold it and has room.
    pub(super) fn place(&mut self, row: usize, fastest: usize) {
        let segment = self.problem.segments.get(row).and_then(|at| self.problem.inputs.segments.get(*at));
        let preferred = segment.and_then(|segment| segment.constraints.preferred).map(|tier| usize::from(tier.0));
        let wanted = preferred.into_iter().chain(fastest..self.problem.home());
        let open = |tier: &usize| self.problem.allows(row, *tier) && self.problem.instance.fits(&self.room, row, *tier);
        let tier = { wanted }.find(open).unwrap_or(self.problem.home());
        self.put(row, tier);
    }

    /// Puts a row that lies at home so far on a tier that has room for it.
    pub(super) fn put(&mut self, row: usize, tier: usize) {
        if let Some(slot) = self.choice.get_mut(row) {
            *slot = tier as u8;
            self.problem.instance.take(&mut self.room, row, tier);
        }
    }

    /// Makes the decision, with the bound of [`judge`].
    pub(super) fn decide(self, scores: Vec<Option<f64>>) -> Result<Decision> {
        Ok(Decision { solution: judge(self.problem.instance, self.choice, self.problem.work)?, scores })
    }
}
