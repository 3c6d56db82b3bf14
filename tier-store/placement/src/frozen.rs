//! Frozen segments: prepares a plan that leaves some segments on their tiers, and turns it into moves.

use std::borrow::Cow;
use std::sync::Arc;

use terrace_model::{Result, TierId};
use terrace_storage::migrate::{ImageChange, Relocation};

use super::epoch::{EpochPlan, Inputs, PlannedImage, PlannedMove, plan_by};
use super::epoch_draft::{ImageMove, Move};
use super::explain::Explainer;
use super::hysteresis::BudgetsAndRules;
use super::policy::{Policy, PolicyKind};
use super::record::{EpochRecord, MoveRecord, MoveStatus, TierPrice};
use super::solver::Work;
use super::survey::Origin;
use super::tiering::TableSnapshot;

/// Removes the segments that are not `movable` from the inputs: they stay where they are, and their bytes are taken off the
/// budgets. Returns these bytes by tier.
fn remove_frozen(inputs: &mut Inputs, origins: &mut Vec<Origin>, movable: &[bool]) -> Vec<u64> {
    let mut frozen_bytes = vec![0; inputs.tiers.len()];
    let is_movable = |at: usize| movable.get(at).copied().unwrap_or(true);
    for (_, segment) in inputs.segments.iter().enumerate().filter(|(at, _)| !is_movable(*at)) {
        if let Some(sum) = frozen_bytes.get_mut(usize::from(segment.current.0)) {
            *sum += segment.charged_at(segment.place());
        }
    }
    if let Some(device) = &mut inputs.device {
        let frozen = inputs.segments.iter().enumerate().filter(|(at, _)| !is_movable(*at));
        let images = frozen.filter(|(_, segment)| segment.has_image());
        device.frozen_bytes = images.map(|(_, segment)| segment.image_charged_bytes()).sum();
        device.budget_bytes = device.budget_bytes.saturating_sub(device.frozen_bytes);
    }
    for (tier, frozen) in inputs.tiers.iter_mut().zip(&frozen_bytes) {
        tier.budget_bytes = tier.budget_bytes.map(|bytes| bytes.saturating_sub(*frozen));
    }
    let mut at = 0;
    let mut origin = 0;
    inputs.segments.retain(|_| {
        at += 1;
        is_movable(at - 1)
    });
    origins.retain(|_| {
        origin += 1;
        is_movable(origin - 1)
    });
    frozen_bytes
}

/// The table that an input segment comes from.
pub(super) fn origin_table<'a>(
    tables: &'a [TableSnapshot],
    origins: &[Origin],
    at: usize,
) -> Option<&'a TableSnapshot> {
    tables.get(origins.get(at)?.table as usize)
}

/// The movable segments, to be planned, and the bytes of the frozen ones.
#[derive(Debug)]
pub(super) struct MovableInputs {
    /// The movable segments; budgets without the bytes of the frozen ones.
    pub(super) inputs: Inputs,
    /// The origin of each movable segment.
    origins: Vec<Origin>,
    /// Bytes of the frozen segments, by tier: see [`remove_frozen`].
    frozen_bytes: Vec<u64>,
    /// Budgets and rules as users set them.
    basis: BudgetsAndRules,
}

impl MovableInputs {
    /// Splits inputs into the movable segments and the bytes of the others; `movable` has an entry for each segment.
    pub(super) fn new(mut inputs: Inputs, mut origins: Vec<Origin>, basis: BudgetsAndRules, movable: &[bool]) -> Self {
        let frozen_bytes = remove_frozen(&mut inputs, &mut origins, movable);
        Self { inputs, origins, frozen_bytes, basis }
    }
}

/// A plan with the inputs that it was made from.
#[derive(Debug)]
pub(super) struct PreparedPlan {
    pub(super) inputs: Inputs,
    pub(super) origins: Vec<Origin>,
    pub(super) plan: EpochPlan,
    pub(super) policy: PolicyKind,
    /// Budgets and rules as users set them.
    pub(super) basis: BudgetsAndRules,
    /// Bytes of the frozen segments, by tier.
    frozen_bytes: Vec<u64>,
}

/// The names of one segment.
#[derive(Debug)]
pub(super) struct SegmentNames<'a> {
    pub(super) table: &'a TableSnapshot,
    /// Number of the chunk within the table.
    pub(super) chunk: u64,
    pub(super) column: Cow<'a, str>,
}

impl PreparedPlan {
    /// Plans the movable segments with a policy.
    pub(super) fn new(movable: MovableInputs, policy: &dyn Policy, work: Work<'_>) -> Result<Self> {
        let plan = plan_by(policy, &movable.inputs, work)?;
        Ok(Self::from_plan(movable, plan, policy.kind()))
    }

    /// Wraps a plan that no policy made.
    pub(super) fn from_plan(movable: MovableInputs, plan: EpochPlan, policy: PolicyKind) -> Self {
        let MovableInputs { inputs, origins, frozen_bytes, basis } = movable;
        Self { inputs, origins, plan, policy, basis, frozen_bytes }
    }

    /// The prices of the plan, with budgets as users set them and with the bytes of frozen segments.
    pub(super) fn prices(&self) -> Vec<TierPrice> {
        let mut prices = self.plan.prices.clone();
        let limited = self.inputs.tiers.iter().zip(&self.frozen_bytes).filter(|(tier, _)| tier.budget_bytes.is_some());
        for (price, (_, frozen)) in prices.iter_mut().zip(limited) {
            price.budget_bytes += frozen;
            price.before_bytes += frozen;
            price.planned_bytes += frozen;
        }
        if let (Some(device), true) = (&self.inputs.device, !self.plan.has_image.is_empty())
            && let Some(price) = prices.last_mut()
        {
            price.budget_bytes += device.frozen_bytes;
            price.before_bytes += device.frozen_bytes;
            price.planned_bytes += device.frozen_bytes;
        }
        prices
    }

    /// The table, the chunk and the column of an input segment, by their names.
    pub(super) fn names<'a>(&self, tables: &'a [TableSnapshot], at: usize) -> Option<SegmentNames<'a>> {
        let origin = self.origins.get(at)?;
        let table = tables.get(origin.table as usize)?;
        let chunk = &table.chunks.get(origin.chunk as usize)?.chunk;
        Some(SegmentNames { table, chunk: chunk.id.0, column: chunk.column_name(origin.column as usize) })
    }

    /// The moves with their rows of the log, in the order in which they are carried out.
    pub(super) fn moves<'a>(&'a self, epoch: &EpochRecord, tables: &[TableSnapshot]) -> Vec<Move<'a>> {
        let explainer = Explainer::new(&self.inputs, &self.plan);
        let found = |(number, planned): (usize, &'a PlannedMove)| {
            let relocation = self.relocation(planned, tables)?;
            let record = self.record(planned, epoch, tables, &explainer)?;
            Some(Move { planned, relocation, record: MoveRecord { number: number as u32, ..record } })
        };
        self.plan.moves.iter().enumerate().filter_map(found).collect()
    }

    /// The changes of images with their rows of the log, in the order in which they are carried out.
    pub(super) fn images(&self, epoch: &EpochRecord, tables: &[TableSnapshot]) -> Vec<ImageMove> {
        let found = |planned: &PlannedImage| {
            let origin = self.origins.get(planned.segment)?;
            let chunk = Arc::clone(&tables.get(origin.table as usize)?.chunks.get(origin.chunk as usize)?.chunk);
            let change = ImageChange { chunk, column: origin.column as usize, is_wanted: planned.is_wanted };
            Some(ImageMove { change, record: self.image_record(planned, epoch, tables)? })
        };
        let first = self.plan.moves.len() as u32;
        let numbered = (first..).zip(self.plan.images.iter().filter_map(found));
        let numbered = numbered.map(|(number, ImageMove { change, record })| (change, MoveRecord { number, ..record }));
        numbered.map(|(change, record)| ImageMove { change, record }).collect()
    }

    /// The row of the log for a change of an image, without its number: a copy from where the segment lies to the device, or from
    /// there back to where it also lies.
    fn image_record(
        &self,
        planned: &PlannedImage,
        epoch: &EpochRecord,
        tables: &[TableSnapshot],
    ) -> Option<MoveRecord> {
        let names = self.names(tables, planned.segment)?;
        let host = self.inputs.tiers.get(usize::from(planned.place.tier.0))?.name.clone();
        let device = self.inputs.device.as_ref()?.name.clone();
        let (from, to) = if planned.is_wanted { (host, device) } else { (device, host) };
        Some(MoveRecord {
            epoch: epoch.id,
            number: 0,
            table: names.table.name.clone(),
            table_id: Some(names.table.id.0),
            chunk: names.chunk,
            column: names.column.into_owned(),
            from,
            to,
            from_form: None,
            to_form: None,
            segments: 1,
            bytes: planned.bytes,
            benefit_us: planned.benefit_us,
            benefit_ns_per_byte: planned.benefit_ns_per_byte,
            price_ns_per_byte: self.plan.prices.last().map(|price| price.price_ns_per_byte),
            runner_up: None,
            runner_up_us: None,
            condition: String::new(),
            measured_us: None,
            measured_epochs: 0,
            reason: planned.reason.clone(),
            status: MoveStatus::Planned,
            why: None,
            unix_us: epoch.unix_us,
            took_us: 0,
        })
    }

    fn relocation(&self, planned: &PlannedMove, tables: &[TableSnapshot]) -> Option<Relocation> {
        let origin = self.origins.get(planned.segment)?;
        let chunk = Arc::clone(&tables.get(origin.table as usize)?.chunks.get(origin.chunk as usize)?.chunk);
        let PlannedMove { from, to, to_form: form, .. } = *planned;
        Some(Relocation { chunk, column: origin.column as usize, from, to, form })
    }

    /// The row of the log for a planned move, without its number.
    fn record(
        &self,
        planned: &PlannedMove,
        epoch: &EpochRecord,
        tables: &[TableSnapshot],
        explainer: &Explainer<'_>,
    ) -> Option<MoveRecord> {
        let tier = |id: TierId| explainer.name(id).to_owned();
        let home = self.inputs.home();
        let names = self.names(tables, planned.segment)?;
        let explanation = explainer.explain(planned.segment)?;
        Some(MoveRecord {
            epoch: epoch.id,
            number: 0,
            table: names.table.name.clone(),
            table_id: Some(names.table.id.0),
            chunk: names.chunk,
            column: names.column.into_owned(),
            from: tier(planned.from),
            to: tier(planned.to),
            from_form: (planned.from < home).then_some(planned.from_form),
            to_form: (planned.to < home).then_some(planned.to_form),
            segments: 1,
            bytes: planned.bytes,
            benefit_us: planned.benefit_us,
            benefit_ns_per_byte: planned.benefit_ns_per_byte,
            price_ns_per_byte: Some(explanation.price_ns_per_byte),
            runner_up: explanation.runner_up,
            runner_up_us: explanation.runner_up_us,
            // A condition follows from costs, and only the policy `optimal` decides by them.
            condition: if self.policy == PolicyKind::Optimal { explanation.condition } else { String::new() },
            measured_us: None,
            measured_epochs: 0,
            reason: planned.reason.clone(),
            status: MoveStatus::Planned,
            why: None,
            unix_us: epoch.unix_us,
            took_us: 0,
        })
    }
}
