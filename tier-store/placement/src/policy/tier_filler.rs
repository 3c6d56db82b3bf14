//! Fills tiers, fastest first, with segments in a given order, each in the smaller of the forms that it may have.

use terrace_model::{Result, TierId};

use super::{Decision, Problem};
use crate::solver::judge;

/// Places rows by falling score, each on its preferred tier or else on the fastest tier that has room for it. Of rows with
/// equal scores those on faster tiers come first, then those earlier in the table. A row without a score is placed last: it
/// stays where it is while room is left, else it goes to the next slower tier that has room.
pub(super) fn fill_by_score(problem: &Problem<'_>, scores: Vec<Option<f64>>) -> Result<Decision> {
    let mut filler = TierFiller::new(problem);
    let mut order: Vec<(Option<f64>, TierId, usize)> =
        problem.rows().zip(&scores).enumerate().map(|(row, (segment, score))| (*score, segment.current, row)).collect();
    order.sort_by(|a, b| {
        let a_score = a.0.unwrap_or(f64::NEG_INFINITY);
        let b_score = b.0.unwrap_or(f64::NEG_INFINITY);
        b_score.total_cmp(&a_score).then((a.1, a.2).cmp(&(b.1, b.2)))
    });
    for (score, _, row) in order {
        if score.is_some() { filler.place(row, TierId(0)) } else { filler.stay(row) }
    }
    filler.decide(scores)
}

/// Rows placed so far, and the room they leave.
pub(super) struct TierFiller<'a> {
    problem: &'a Problem<'a>,
    /// The option of each row.
    choice: Vec<u8>,
    room: Vec<f64>,
}

impl<'a> TierFiller<'a> {
    /// Starts with all rows at home.
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        let choice = vec![problem.home() as u8; problem.segments.len()];
        Self { problem, room: problem.instance.room(&choice), choice }
    }

    /// True when a tier has room for all of the rows that it may hold.
    pub(super) fn has_room<'r>(&self, tier: TierId, rows: impl Iterator<Item = &'r usize>) -> bool {
        let mut room = self.room.clone();
        for row in rows {
            if let Some(option) = self.problem.option_on(*row, tier) {
                self.problem.instance.take(&mut room, *row, option);
            }
        }
        room.iter().all(|room| *room >= 0.0)
    }

    /// The tier on which a rule prefers a row.
    fn preferred(&self, row: usize) -> Option<TierId> {
        let segment = self.problem.segments.get(row).and_then(|at| self.problem.inputs.segments.get(*at));
        segment?.constraints.preferred
    }

    /// Puts a row on the tier it is preferred on, else the first one from `fastest` on that may hold it and has room.
    pub(super) fn place(&mut self, row: usize, fastest: TierId) {
        let slower = self.problem.memory_tiers().filter(|tier| *tier >= fastest);
        let wanted = self.preferred(row).into_iter().chain(slower);
        let open = wanted.filter_map(|tier| self.problem.option_on(row, tier));
        let option = { open }.find(|option| self.problem.instance.fits(&self.room, row, *option));
        self.put(row, option.unwrap_or(self.problem.home()));
    }

    /// Puts a row on the tier it is preferred on, else leaves it where it lies, or puts it on the next slower tier that has
    /// room.
    pub(super) fn stay(&mut self, row: usize) {
        let option = self.problem.current_option(row);
        let instance = self.problem.instance;
        let is_preferred = self.preferred(row).is_some();
        if !is_preferred && instance.cost(row, option).is_finite() && instance.fits(&self.room, row, option) {
            self.put(row, option);
        } else {
            self.place(row, self.problem.places.tier(option));
        }
    }

    /// Puts a row on a tier that may hold it and has room for it; else it stays at home.
    pub(super) fn put_on(&mut self, row: usize, tier: TierId) {
        if let Some(option) = self.problem.option_on(row, tier) {
            self.put(row, option);
        }
    }

    /// Gives a row that lies at home so far an option that has room for it.
    pub(super) fn put(&mut self, row: usize, option: usize) {
        if let Some(slot) = self.choice.get_mut(row) {
            *slot = option as u8;
            self.problem.instance.take(&mut self.room, row, option);
        }
    }

    /// Makes the decision, with the bound of [`judge`].
    pub(super) fn decide(self, scores: Vec<Option<f64>>) -> Result<Decision> {
        Ok(Decision { solution: judge(self.problem.instance, self.choice, self.problem.work)?, scores })
    }
}
