//! The steps of an epoch that concern several parts of the loop: it collects inputs, plans by mode, proposes moves where
//! tiering only advises, and saves the report.

use terrace_model::{Error, Result, TieringMode};
use terrace_storage::tier::codec::Form;

use super::epoch::{Inputs, certified_bound_us};
use super::epoch_draft::EpochDraft;
use super::frozen::{MovableInputs, PreparedPlan, origin_table};
use super::record::{EpochRecord, EpochReport, MoveRecord, MoveStatus};
use super::shared::Shared;
use super::snapshot::PlacementSnapshot;
use super::solver::gap;
use super::survey::Origin;
use super::tiering::{INTERVAL, TableSnapshot, TieringHost};
use crate::heat::decay::Heat;

/// The plans of one epoch, by what happens to their moves.
#[derive(Debug)]
pub(super) struct PlansByMode {
    /// The plan whose moves are carried out; `None` unless the mode of the server is `auto`.
    pub(super) acting: Option<PreparedPlan>,
    /// The plan whose moves are proposed for tables that the loop only advises on; usually `None`.
    pub(super) advising: Option<PreparedPlan>,
}

impl PlansByMode {
    /// The plan whose figures are recorded.
    pub(super) fn recorded(&self) -> Option<&PreparedPlan> {
        self.acting.as_ref().or(self.advising.as_ref())
    }
}

/// A proposed move, to tell repeated proposals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProposedMove {
    table: String,
    chunk: u64,
    column: String,
    to: String,
    to_form: Option<Form>,
}

impl ProposedMove {
    fn from_record(record: &MoveRecord) -> Self {
        let MoveRecord { table, chunk, column, to, to_form, .. } = record;
        Self { table: table.clone(), chunk: *chunk, column: column.clone(), to: to.clone(), to_form: *to_form }
    }
}

impl Shared {
    /// Saves the report of an epoch, the heat and the placement snapshot.
    pub(super) fn save(&self, host: &dyn TieringHost, tables: &[TableSnapshot], report: &EpochReport) -> Result<()> {
        self.planner.save_heat(host, tables)?;
        host.save_epoch(report, &self.planner.move_history_blob()?)?;
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
        let server = self.controller.settings().for_requests();
        let has = |mode: TieringMode| tables.iter().any(|table| table.mode.max(server) == mode);
        let at_most = |mode: TieringMode| move |table: &TableSnapshot| table.mode.max(server) <= mode;
        let acting = (server == TieringMode::Auto).then(|| at_most(TieringMode::Auto));
        let advising = (has(TieringMode::Advise) || acting.is_none()).then(|| at_most(TieringMode::Advise));
        let preview_heat = preview.then(|| self.planner.preview_heat(tables));
        let collect = |weighed: &dyn Fn(&TableSnapshot) -> bool| {
            let (mut inputs, origins) = self.inputs(host, tables, preview_heat.as_ref())?;
            let weighs = |at: usize| origin_table(tables, &origins, at).is_some_and(weighed);
            let movable: Vec<bool> = (0..origins.len()).map(weighs).collect();
            let basis = self.planner.mark(&mut inputs, epoch);
            Ok::<_, Error>(MovableInputs::new(inputs, origins, basis, &movable))
        };
        let acting = acting.map(|weighed| collect(&weighed)).transpose()?;
        let advising = advising.map(|weighed| collect(&weighed)).transpose()?;
        let solve = |movable| PreparedPlan::new(movable, self.planner.policy(), self.planner.work());
        let plans = PlansByMode { acting: acting.map(solve).transpose()?, advising: advising.map(solve).transpose()? };
        if let Some(main) = plans.recorded() {
            self.planner.keep_prices(&main.plan);
        }
        Ok(plans)
    }

    /// Lets another solver bound the plan of an epoch that has ended, and adds the gap by its bound to the record and, but for
    /// a dry run, to the saved one. The caller holds no lock, so neither moves nor another epoch wait for it.
    pub(super) fn certify(
        &self,
        host: &dyn TieringHost,
        prepared: &PreparedPlan,
        record: &mut EpochRecord,
    ) -> Result<()> {
        if self.controller.is_stopping() {
            return Ok(());
        }
        let Some(bound_us) = certified_bound_us(&prepared.inputs, &prepared.plan) else { return Ok(()) };
        let gap = gap(prepared.plan.objective_us, bound_us);
        record.certify(gap);
        // A store that began to close meanwhile does not wait for this thread, so nothing is written any more.
        if record.dry_run || self.controller.is_stopping() {
            return Ok(());
        }
        self.planner.save_certified_gap(host, record.id, gap)
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
        let server = self.controller.settings().for_requests();
        let advised = |record: &MoveRecord| {
            let table = tables.iter().find(|table| table.name == record.table);
            table.is_some_and(|table| table.mode.max(server) == TieringMode::Advise)
        };
        let planned = prepared.moves(&draft.epoch, tables).into_iter().map(|planned| planned.record);
        let proposals: Vec<MoveRecord> = planned.filter(advised).collect();
        draft.epoch.moves_proposed = proposals.len() as u32;
        if !draft.epoch.dry_run {
            let proposed: Vec<ProposedMove> = proposals.iter().map(ProposedMove::from_record).collect();
            let before = self.controller.replace_proposals(proposed.clone());
            if draft.epoch.trigger == INTERVAL && proposed == before {
                return;
            }
        }
        let first = draft.rows() as u32;
        let numbered = (first..).zip(proposals);
        draft.append(numbered.map(|(number, record)| MoveRecord { number, status: MoveStatus::Proposed, ..record }));
    }

    /// Builds the inputs of a plan from all segments of the tables, with `preview_heat` or with the kept heat. Moves to and
    /// from failing devices pause. Also returns the origin of each segment.
    pub(super) fn inputs(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        preview_heat: Option<&Heat>,
    ) -> Result<(Inputs, Vec<Origin>)> {
        self.planner.inputs(host, tables, &|tier| self.mover.is_paused(tier), preview_heat)
    }
}

/// Names of the memory tiers, fastest first.
fn memory_names(host: &dyn TieringHost) -> Vec<String> {
    host.memory_tiers().iter().map(|tier| tier.name().to_owned()).collect()
}
