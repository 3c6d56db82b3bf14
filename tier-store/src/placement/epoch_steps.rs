//! The steps of an epoch beside its moves: it surveys the segments, plans, proposes moves where tiering only advises,
//! watches the effect of moves, and saves the report.

use std::sync::Arc;

use super::epoch::{Inputs, TierInput, extent};
use super::epoch_draft::{EpochDraft, Move};
use super::frozen::{MovableInputs, PreparedPlan, origin_table, remove_frozen};
use super::hysteresis::BudgetsAndRules;
use super::measure::{DoneMove, PricedExtent};
use super::mode::TieringMode;
use super::policy::PolicyKind;
use super::pressure;
use super::record::{EpochReport, MoveRecord, MoveStatus};
use super::snapshot::PlacementSnapshot;
use super::survey::{Origin, SurveyOptions, survey, tier_mask};
use super::tiering::{EpochRequest, INTERVAL, Shared, TableSnapshot, TieringHost};
use super::views::{ViewWeighing, weigh_views};
use crate::error::{Error, Result};
use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};
use crate::tier::{MemoryTier, TierId, TierKind};

/// The plans of one epoch, by what happens to their moves.
#[derive(Debug)]
pub(super) struct PlansByMode {
    /// The plan whose moves are carried out; `None` unless the mode of the server is `auto`.
    pub(super) acting: Option<PreparedPlan>,
    /// The plan whose moves are proposed for tables that the loop only advises on; usually `None`.
    pub(super) advising: Option<PreparedPlan>,
}

/// A proposed move, to tell repeated proposals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProposedMove {
    table: String,
    chunk: u64,
    column: String,
    to: String,
}

impl ProposedMove {
    fn from_record(record: &MoveRecord) -> Self {
        let MoveRecord { table, chunk, column, to, .. } = record;
        Self { table: table.clone(), chunk: *chunk, column: column.clone(), to: to.clone() }
    }
}

impl Shared {
    /// Notes the moves that were carried out for the hysteresis, and starts to measure their effect.
    pub(super) fn follow_up(&self, request: &EpochRequest, draft: &EpochDraft<'_>, prepared: &PreparedPlan) {
        // Evictions under memory pressure are not recorded, so hysteresis does not keep these segments from returning.
        if request.reason != pressure::TRIGGER {
            let done = draft.moves.iter().filter(|moved| moved.is_done());
            let moved = done.map(|moved| (moved.planned.segment, moved.planned.to));
            self.move_history.lock().record(&prepared.inputs, &prepared.basis, draft.epoch.id, moved);
        }
        self.watch(draft, &prepared.inputs);
    }

    /// Saves the report of an epoch, the heat and the placement snapshot.
    pub(super) fn save(&self, host: &dyn TieringHost, tables: &[TableSnapshot], report: &EpochReport) -> Result<()> {
        self.save_heat(host, tables)?;
        let move_history = self.move_history.lock().to_blob()?;
        host.save_epoch(report, &move_history)?;
        host.save_placement_snapshot(report.epoch.id, &PlacementSnapshot::capture(memory_names(host), tables))
    }

    /// Makes the plan that is carried out and, where tables are in mode `advise`, the plan that is only proposed.
    pub(super) fn prepare_by_mode(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        epoch: u64,
        preview: bool,
    ) -> Result<PlansByMode> {
        let server = self.control.read().for_requests();
        let has = |mode: TieringMode| tables.iter().any(|table| table.mode.max(server) == mode);
        let at_most = |mode: TieringMode| move |table: &TableSnapshot| table.mode.max(server) <= mode;
        let acting = (server == TieringMode::Auto).then(|| at_most(TieringMode::Auto));
        let advising = (has(TieringMode::Advise) || acting.is_none()).then(|| at_most(TieringMode::Advise));
        let preview_heat = self.preview_heat(tables, preview);
        let collect = |weighed: &dyn Fn(&TableSnapshot) -> bool| {
            let (mut inputs, mut origins) = self.inputs(host, tables, preview_heat.as_ref())?;
            let weighs = |at: usize| origin_table(tables, &origins, at).is_some_and(weighed);
            let movable: Vec<bool> = (0..origins.len()).map(weighs).collect();
            let basis = self.mark(&mut inputs, epoch);
            let frozen_bytes = remove_frozen(&mut inputs, &mut origins, &movable);
            Ok::<_, Error>(MovableInputs { inputs, origins, frozen_bytes, basis })
        };
        let acting = acting.map(|weighed| collect(&weighed)).transpose()?;
        let advising = advising.map(|weighed| collect(&weighed)).transpose()?;
        let solve = |movable| PreparedPlan::new(movable, self.policy.as_ref(), self.work());
        let acting = acting.map(solve).transpose()?;
        let advising = advising.map(solve).transpose()?;
        if let Some(main) = acting.as_ref().or(advising.as_ref()) {
            *self.prices.lock() = main.plan.next_prices();
        }
        Ok(PlansByMode { acting, advising })
    }

    /// Adds the reads that running statements expect to the inputs and, for the policy `optimal`, the hysteresis of
    /// segments that moved a short time ago. Returns the budgets and rules that the inputs are based on.
    pub(super) fn mark(&self, inputs: &mut Inputs, epoch: u64) -> BudgetsAndRules {
        self.expected_reads.mark(inputs);
        match self.policy.kind() {
            PolicyKind::Optimal => self.move_history.lock().mark(inputs, epoch),
            _ => BudgetsAndRules::from_inputs(inputs),
        }
    }

    /// Adds the moves that are planned for tables in mode `advise` to the draft, with status `proposed`. As nobody carries
    /// them out, each epoch of the loop plans the same moves again: repeated proposals are counted, but not logged.
    pub(super) fn propose(
        &self,
        draft: &mut EpochDraft<'_>,
        tables: &[TableSnapshot],
        advising: Option<&PreparedPlan>,
    ) {
        let Some(prepared) = advising else { return };
        let server = self.control.read().for_requests();
        let advised = |record: &MoveRecord| {
            let table = tables.iter().find(|table| table.name == record.table);
            table.is_some_and(|table| table.mode.max(server) == TieringMode::Advise)
        };
        let planned = prepared.moves(&draft.epoch, tables).into_iter().map(|planned| planned.record);
        let proposals: Vec<MoveRecord> = planned.filter(advised).collect();
        draft.epoch.moves_proposed = proposals.len() as u32;
        if !draft.epoch.dry_run {
            let proposed: Vec<ProposedMove> = proposals.iter().map(ProposedMove::from_record).collect();
            let before = std::mem::replace(&mut *self.proposed.lock(), proposed.clone());
            if draft.epoch.trigger == INTERVAL && proposed == before {
                return;
            }
        }
        let first = draft.rows() as u32;
        let numbered = (first..).zip(proposals);
        draft.append(numbered.map(|(number, record)| MoveRecord { number, status: MoveStatus::Proposed, ..record }));
    }

    /// For a preview: a copy of the heat into which the counters are folded as they are now. `None`: the kept heat is up
    /// to date.
    pub(super) fn preview_heat(&self, tables: &[TableSnapshot], preview: bool) -> Option<Heat> {
        preview.then(|| {
            let mut heat = self.heat.read().clone();
            self.observe(&mut heat, tables, &self.views());
            heat
        })
    }

    /// Builds the inputs of a plan from all segments of the tables. Also returns the origin of each segment.
    pub(super) fn inputs(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        preview_heat: Option<&Heat>,
    ) -> Result<(Inputs, Vec<Origin>)> {
        let calibration = self.calibrated_now(host)?;
        let memory = host.memory_tiers();
        let budgets = memory.iter().map(|tier| Some(tier.account().limit_bytes())).chain([None]);
        let tiers = calibration.tiers.iter().zip(calibration.costs()).zip(budgets);
        let tiers: Vec<TierInput> = tiers
            .map(|((profile, cost), budget_bytes)| TierInput { name: profile.name.clone(), budget_bytes, cost })
            .collect();
        let paused = tiers.iter().map(|tier| self.health.is_paused(&tier.name, self.clock.as_ref()));
        let options = SurveyOptions {
            payback_epochs: self.options.payback_epochs,
            rates: calibration.rates(),
            paused: tier_mask(paused),
        };
        // Before the lock of the heat is taken, because the view source may take a while to answer.
        let views = self.views();
        let kept_heat = preview_heat.is_none().then(|| self.heat.read());
        let heat = |key: &SegmentKey| {
            preview_heat.or(kept_heat.as_deref()).map_or_else(SegmentHeat::default, |heat| heat.get(key))
        };
        let (mut inputs, origins) = survey(host, tables, tiers, options, &heat);
        let is_dram = |tier: &Arc<dyn MemoryTier>| tier.kind() == TierKind::Dram;
        let dram = tier_mask(memory.iter().map(is_dram));
        if let Some(heat) = preview_heat.or(kept_heat.as_deref()) {
            let half_life_epochs = self.options.half_life_epochs;
            let weighing = ViewWeighing { views: &views, dram, heat, half_life_epochs };
            weigh_views(&mut inputs, &origins, tables, &weighing);
        }
        inputs.prices.clone_from(&self.prices.lock());
        Ok((inputs, origins))
    }

    /// Measures the effect of earlier moves from the counters, now that one more epoch has passed.
    pub(super) fn measure(&self, host: &dyn TieringHost) -> Result<()> {
        let measured = self.measuring.lock().advance(self.options.payback_epochs.ceil() as u32);
        if let Some(last) = measured.epochs.last() {
            self.metrics.record_benefit(last);
            host.update_records(&measured.epochs, &measured.moves)?;
        }
        Ok(())
    }

    /// Starts to measure the effect of the moves that were carried out.
    fn watch(&self, draft: &EpochDraft<'_>, inputs: &Inputs) {
        let home = inputs.home();
        let mut watches = Vec::new();
        for Move { planned, relocation, record } in draft.moves.iter().filter(|moved| moved.is_done()) {
            let segment = relocation.chunk.segments.get(relocation.column);
            let (Some(segment), Some(input)) = (segment, inputs.segments.get(planned.segment)) else { continue };
            let on = |id: TierId| {
                let id = usize::from(id.0);
                Some(PricedExtent { cost: inputs.tiers.get(id)?.cost, extent: extent(inputs, input, id) })
            };
            let (Some(from), Some(to)) = (on(relocation.from), on(relocation.to)) else { continue };
            let resident_tier = segment.resident.load().as_ref().map(|resident| resident.tier.clone());
            let at = resident_tier.filter(|_| relocation.to != home);
            watches.push(DoneMove { record, segment, at, from, to });
        }
        self.measuring.lock().begin(&draft.epoch, watches.into_iter());
    }
}

/// Names of the memory tiers, fastest first.
fn memory_names(host: &dyn TieringHost) -> Vec<String> {
    host.memory_tiers().iter().map(|tier| tier.name().to_owned()).collect()
}
