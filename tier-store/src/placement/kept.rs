//! Plans of some of the segments while the others stay where they are, and what becomes of them as records and moves.

use std::borrow::Cow;
use std::sync::Arc;

use super::epoch::{EpochPlan, Inputs, PlannedMove, plan_by};
use super::explain::Explainer;
use super::hold::Basis;
use super::policy::{Policy, PolicyKind};
use super::record::{EpochRecord, MoveRecord, MoveStatus, TierPrice};
use super::solver::Work;
use super::survey::Origin;
use super::tiering::TableSnapshot;
use crate::error::Result;
use crate::migrate::Relocation;
use crate::tier::TierId;

/// Takes the segments that are not `kept` out of the inputs: they stay where they are, and what they take there is no
/// longer part of the budgets. Returns these bytes by tier.
pub(super) fn set_aside(inputs: &mut Inputs, origins: &mut Vec<Origin>, kept: &[bool]) -> Vec<u64> {
    let mut held = vec![0; inputs.tiers.len()];
    let is_kept = |at: usize| kept.get(at).copied().unwrap_or(true);
    for (_, segment) in inputs.segments.iter().enumerate().filter(|(at, _)| !is_kept(*at)) {
        if let Some(sum) = held.get_mut(usize::from(segment.current.0)) {
            *sum += segment.charged_on(segment.current);
        }
    }
    for (tier, held) in inputs.tiers.iter_mut().zip(&held) {
        tier.budget_bytes = tier.budget_bytes.map(|bytes| bytes.saturating_sub(*held));
    }
    let mut at = 0;
    let mut origin = 0;
    inputs.segments.retain(|_| {
        at += 1;
        is_kept(at - 1)
    });
    origins.retain(|_| {
        origin += 1;
        is_kept(origin - 1)
    });
    held
}

/// The table that an input segment comes from.
pub(super) fn origin_table<'a>(
    tables: &'a [TableSnapshot],
    origins: &[Origin],
    at: usize,
) -> Option<&'a TableSnapshot> {
    tables.get(origins.get(at)?.0 as usize)
}

/// A plan with what it was made from.
#[derive(Debug)]
pub(super) struct Drawn {
    pub(super) inputs: Inputs,
    pub(super) origins: Vec<Origin>,
    pub(super) plan: EpochPlan,
    pub(super) policy: PolicyKind,
    /// What it stands on as users set it.
    pub(super) basis: Basis,
    /// Bytes by tier that segments take which were not weighed.
    held: Vec<u64>,
}

impl Drawn {
    pub(super) fn new(
        (inputs, origins, held, basis): (Inputs, Vec<Origin>, Vec<u64>, Basis),
        policy: &dyn Policy,
        work: Work<'_>,
    ) -> Result<Self> {
        let plan = plan_by(policy, &inputs, work)?;
        Ok(Self { inputs, origins, plan, policy: policy.kind(), basis, held })
    }

    /// A plan that no policy made.
    pub(super) fn by_hand(
        (inputs, origins, held, basis): (Inputs, Vec<Origin>, Vec<u64>, Basis),
        plan: EpochPlan,
        policy: PolicyKind,
    ) -> Self {
        Self { inputs, origins, plan, policy, basis, held }
    }

    /// Prices with budgets as users set them.
    pub(super) fn prices(&self) -> Vec<TierPrice> {
        let mut prices = self.plan.prices.clone();
        let limited = self.inputs.tiers.iter().zip(&self.held).filter(|(tier, _)| tier.budget_bytes.is_some());
        for (price, (_, held)) in prices.iter_mut().zip(limited) {
            price.budget_bytes += held;
            price.before_bytes += held;
            price.planned_bytes += held;
        }
        prices
    }

    /// Table, number of the chunk and column of an input segment, by their names.
    pub(super) fn names<'a>(
        &self,
        tables: &'a [TableSnapshot],
        at: usize,
    ) -> Option<(&'a TableSnapshot, u64, Cow<'a, str>)> {
        let (table, position, column) = *self.origins.get(at)?;
        let table = tables.get(table as usize)?;
        let chunk = &table.chunks.get(position as usize)?.chunk;
        Some((table, chunk.id.0, chunk.column_name(column as usize)))
    }

    /// The moves, to be carried out in order.
    pub(super) fn relocations(&self, tables: &[TableSnapshot]) -> Vec<Relocation> {
        let relocation = |planned: &PlannedMove| {
            let (table, position, column) = *self.origins.get(planned.segment)?;
            let chunk = Arc::clone(&tables.get(table as usize)?.chunks.get(position as usize)?.chunk);
            Some(Relocation { chunk, column: column as usize, from: planned.from, to: planned.to })
        };
        self.plan.moves.iter().filter_map(relocation).collect()
    }

    /// The moves as they are logged.
    pub(super) fn records(&self, epoch: &EpochRecord, tables: &[TableSnapshot]) -> Vec<MoveRecord> {
        let explainer = Explainer::new(&self.inputs, &self.plan);
        let tier = |id: TierId| explainer.name(id).to_owned();
        let record = |(number, planned): (usize, &PlannedMove)| {
            let (table, chunk, column) = self.names(tables, planned.segment)?;
            let explanation = explainer.explain(planned.segment)?;
            Some(MoveRecord {
                epoch: epoch.id,
                number: number as u32,
                table: table.name.clone(),
                chunk,
                column: column.into_owned(),
                from: tier(planned.from),
                to: tier(planned.to),
                segments: 1,
                bytes: planned.bytes,
                benefit_us: planned.benefit_us,
                benefit_ns_per_byte: planned.benefit_ns_per_byte,
                price_ns_per_byte: Some(explanation.price_ns_per_byte),
                runner_up: explanation.runner_up,
                runner_up_us: explanation.runner_up_us,
                // What costs say of another policy's order is no condition.
                condition: if self.policy == PolicyKind::Optimal { explanation.condition } else { String::new() },
                measured_us: None,
                measured_epochs: 0,
                reason: planned.reason.clone(),
                status: MoveStatus::Planned,
                why: None,
                unix_us: epoch.unix_us,
                took_us: 0,
            })
        };
        self.plan.moves.iter().enumerate().filter_map(record).collect()
    }
}
