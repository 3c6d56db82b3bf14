//! Feasibility check: do the segments that rules keep in memory fit the budgets? Run before a rule is made and before a
//! budget is lowered.

use terrace_model::{Error, Result, TierId};

use super::cost::TierCost;
use super::epoch::{Inputs, SegmentInput, TierInput};
use super::form_cost::FormCost;
use super::format::bytes;
use super::reserved::reserve;
use super::survey::{ByteWeights, SurveyOptions, survey, tier_names};
use super::tiering::{TableSnapshot, TieringHost};
use crate::heat::decay::SegmentHeat;

/// The segments that rules keep in memory, and the budgets of the tiers.
#[derive(Debug, Clone)]
pub struct Feasibility {
    inputs: Inputs,
}

impl Feasibility {
    /// Collects the segments that the rules of these tables keep in memory, under the current budgets.
    pub fn for_tables(host: &dyn TieringHost, tables: &[TableSnapshot]) -> Self {
        let memory = host.memory_tiers();
        let budgets = memory.iter().map(|tier| Some(tier.account().limit_bytes())).chain([None]);
        let kinds = memory.iter().map(|tier| tier.kind()).chain([host.home().kind()]);
        let tiers = tier_names(host).into_iter().zip(budgets).zip(kinds);
        let tiers =
            tiers.map(|((name, budget_bytes), kind)| TierInput { name, budget_bytes, cost: TierCost::typical(kind) });
        let options = SurveyOptions {
            payback_epochs: 1.0,
            weights: ByteWeights { rates: None, form: host.form() },
            paused: 0,
            form_cost: FormCost::TYPICAL,
        };
        let (mut inputs, _) = survey(host, tables, tiers.collect(), options, &|_| SegmentHeat::default());
        let home = inputs.home();
        inputs.segments.retain(|segment| segment.constraints.needs_memory(home));
        Self { inputs }
    }

    /// Replaces the budget of one tier.
    pub(crate) fn with_budget(mut self, tier: &str, bytes: u64) -> Self {
        if let Some(found) = self.inputs.tiers.iter_mut().find(|known| known.name == tier) {
            found.budget_bytes = found.budget_bytes.map(|_| bytes);
        }
        self
    }

    /// Bytes that are pinned to a tier.
    pub(crate) fn pinned_to(&self, tier: TierId) -> u64 {
        let pinned = self.inputs.segments.iter().filter(|segment| segment.constraints.only() == Some(tier));
        pinned.map(|segment| segment.charged_on(tier)).sum()
    }

    /// Fails when rules need more of a tier, or of all memory tiers together, than under `now`, and more than the budgets.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the figures.
    pub fn check(&self, now: &Self) -> Result<()> {
        let home = self.inputs.home();
        for (id, tier) in (0..home.0).map(TierId).zip(&self.inputs.tiers) {
            let need = self.pinned_to(id);
            let budget = tier.budget_bytes.unwrap_or(u64::MAX);
            let worse = need > now.pinned_to(id) || budget < now.budget(id);
            if need > budget && worse {
                let too_much = bytes(need - budget);
                return Err(Error::Invalid(format!(
                    "pins need {} of {}, the budget is {}; {too_much} too much. Pin less, or remove another pin first",
                    bytes(need),
                    tier.name,
                    bytes(budget)
                )));
            }
        }
        let homeless = self.homeless_bytes();
        let before = now.homeless_bytes();
        if homeless > before {
            let budgets: u64 = self.inputs.tiers.iter().filter_map(|tier| tier.budget_bytes).sum();
            let need: u64 = self.inputs.segments.iter().map(SegmentInput::least_bytes).sum();
            return Err(Error::Invalid(format!(
                "placement rules keep {} off {}, the budgets of the other tiers are {} and have no room for {} of it",
                bytes(need),
                self.inputs.tiers.last().map_or("home", |tier| tier.name.as_str()),
                bytes(budgets),
                bytes(homeless)
            )));
        }
        Ok(())
    }

    fn budget(&self, tier: TierId) -> u64 {
        self.inputs.tiers.get(usize::from(tier.0)).and_then(|tier| tier.budget_bytes).unwrap_or(u64::MAX)
    }

    /// Bytes that rules keep in memory and that do not fit the budgets.
    pub fn homeless_bytes(&self) -> u64 {
        let given_way = reserve(&self.inputs, |_, place| f64::from(place.tier.0)).given_way;
        given_way.iter().filter_map(|at| self.inputs.segments.get(*at)).map(SegmentInput::least_bytes).sum()
    }
}
