//! The planner: keeps heat, costs and move history of segments, and builds the inputs of plans from them.

use std::sync::{Arc, Weak};

use terrace_model::clock::Clock;
use terrace_model::{Result, TableId, TierKind};
use terrace_storage::tier::MemoryTier;

use super::active_calibration::ActiveCalibration;
use super::calibrate::Calibration;
use super::epoch::{DeviceInput, EpochPlan, Inputs, TierInput, place_cost};
use super::epoch_draft::{EpochDraft, Move};
use super::expected_reads::ExpectedReadSources;
use super::frozen::PreparedPlan;
use super::hysteresis::{BudgetsAndRules, MoveHistory};
use super::lock_order::{OrderedMutex, OrderedReadGuard, OrderedRwLock, Rank};
use super::measure::{DoneMove, Measuring, WatchedCopy};
use super::metrics::TieringMetrics;
use super::policy::{Policy, PolicyKind};
use super::pressure;
use super::solver::{Deadline, Work};
use super::survey::{ByteWeights, Origin, SurveyOptions, survey, tier_mask};
use super::tiering::{EpochRequest, TableSnapshot, TieringHost, TieringOptions};
use super::views::{ViewWeighing, weigh_views};
use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};
use crate::heat::{ViewSource, ViewUse};

/// Heat, costs and history of the segments, and the policy that decides by them.
pub(super) struct Planner {
    options: Arc<TieringOptions>,
    clock: Arc<dyn Clock>,
    policy: Box<dyn Policy>,
    heat: OrderedRwLock<Heat>,
    move_history: OrderedMutex<MoveHistory>,
    expected_reads: ExpectedReadSources,
    view_source: OrderedRwLock<Option<Weak<dyn ViewSource>>>,
    /// Prices from which the next plan starts: see [`Inputs::prices`].
    prices: OrderedMutex<Vec<f64>>,
    calibration: ActiveCalibration,
    measuring: OrderedMutex<Measuring>,
}

impl Planner {
    /// Makes a planner without heat, history and calibration.
    pub(super) fn new(options: &Arc<TieringOptions>, clock: &Arc<dyn Clock>) -> Self {
        Self {
            options: Arc::clone(options),
            clock: Arc::clone(clock),
            policy: options.policy.policy(options.seed),
            heat: OrderedRwLock::new(Rank::Heat, Heat::default()),
            move_history: OrderedMutex::new(Rank::Leaf, MoveHistory::new(options.hysteresis)),
            expected_reads: ExpectedReadSources::default(),
            view_source: OrderedRwLock::new(Rank::Leaf, None),
            prices: OrderedMutex::new(Rank::Leaf, Vec::new()),
            calibration: ActiveCalibration::new(clock),
            measuring: OrderedMutex::new(Rank::Leaf, Measuring::default()),
        }
    }

    /// The policy that decides where segments lie.
    pub(super) fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    /// Limits of effort and time for a plan that begins now.
    pub(super) fn work(&self) -> Work<'_> {
        let deadline = Deadline::after(self.clock.as_ref(), self.options.solver_deadline);
        Work { effort: self.options.effort, deadline: Some(deadline) }
    }

    /// The calibration in use.
    pub(super) fn calibration(&self) -> &ActiveCalibration {
        &self.calibration
    }

    /// The sources of expected reads.
    pub(super) fn expected_reads(&self) -> &ExpectedReadSources {
        &self.expected_reads
    }

    /// Uses a source of hot views, as long as it lives.
    pub(super) fn set_view_source(&self, source: Weak<dyn ViewSource>) {
        *self.view_source.write() = Some(source);
    }

    /// The hot views as they are now.
    fn views(&self) -> Vec<ViewUse> {
        let source = self.view_source.read().as_ref().and_then(Weak::upgrade);
        source.map_or_else(Vec::new, |source| source.views())
    }

    /// The heat as the last epoch left it, locked for reading.
    pub(super) fn read_heat(&self) -> OrderedReadGuard<'_, Heat> {
        self.heat.read()
    }

    /// Loads the saved heat of the host's tables, and the move history. Returns the number of tables whose heat is known.
    /// A blob that cannot be read is logged and left out.
    pub(super) fn restore(&self, host: &dyn TieringHost) -> Result<usize> {
        let known: std::collections::HashSet<TableId> = host.tables().into_iter().map(|table| table.id).collect();
        let blobs = host.load_heat()?;
        let mut restored = 0;
        let mut heat = self.heat.write();
        for (table, blob) in blobs.into_iter().filter(|(table, _)| known.contains(table)) {
            match heat.add_blob(table, &blob) {
                Ok(()) => restored += 1,
                Err(error) => tracing::warn!(%error, "cannot restore the saved heat of a table"),
            }
        }
        drop(heat);
        if let Some(blob) = host.load_move_history()?
            && let Err(error) = self.move_history.lock().restore(&blob)
        {
            tracing::warn!(%error, "cannot restore the history of recent moves; segments may move back at once");
        }
        Ok(restored)
    }

    /// Folds the counters into the heat.
    pub(super) fn fold_counters(&self, tables: &[TableSnapshot]) {
        let views = self.views();
        self.fold_into(&mut self.heat.write(), tables, &views);
    }

    /// For a preview: a copy of the heat into which the counters are folded as they are now.
    pub(super) fn preview_heat(&self, tables: &[TableSnapshot]) -> Heat {
        let mut heat = self.heat.read().clone();
        self.fold_into(&mut heat, tables, &self.views());
        heat
    }

    fn fold_into(&self, heat: &mut Heat, tables: &[TableSnapshot], views: &[ViewUse]) {
        heat.observe_views(views, self.options.half_life_epochs);
        let chunks = tables.iter().flat_map(|table| table.chunks.iter().map(|entry| &entry.chunk));
        heat.observe(chunks, self.options.half_life_epochs);
    }

    /// Makes the heat of the tables durable.
    pub(super) fn save_heat(&self, host: &dyn TieringHost, tables: &[TableSnapshot]) -> Result<()> {
        let heat = self.heat.read();
        let blobs = tables.iter().map(|table| (table.id, heat.to_blob(table.id))).collect();
        drop(heat);
        host.save_heat(blobs)
    }

    /// The encoded history of recent moves.
    pub(super) fn move_history_blob(&self) -> Result<Vec<u8>> {
        self.move_history.lock().to_blob()
    }

    /// Builds the inputs of a plan from all segments of the tables: with `preview_heat`, or with the kept heat. Moves
    /// to and from the tiers for whose name `is_paused` is true pause. Also returns the origin of each segment.
    pub(super) fn inputs(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        is_paused: &dyn Fn(&str) -> bool,
        preview_heat: Option<&Heat>,
    ) -> Result<(Inputs, Vec<Origin>)> {
        let calibration = self.calibration.corrected(host)?;
        let memory = host.memory_tiers();
        let budgets = memory.iter().map(|tier| Some(tier.account().limit_bytes())).chain([None]);
        let tiers = calibration.tiers.iter().zip(calibration.costs()).zip(budgets);
        let tiers: Vec<TierInput> = tiers
            .map(|((profile, cost), budget_bytes)| TierInput { name: profile.name.clone(), budget_bytes, cost })
            .collect();
        let options = SurveyOptions {
            payback_epochs: self.options.payback_epochs,
            weights: ByteWeights { rates: calibration.rates(), form: host.form() },
            paused: tier_mask(tiers.iter().map(|tier| is_paused(&tier.name))),
            form_cost: calibration.form_cost(),
        };
        // A device that is lost, or that fails at present, is left as it is.
        let device = host.device_tier().filter(|tier| tier.lost().is_none() && !is_paused(tier.name()));
        let device = device.map(|tier| DeviceInput {
            name: tier.name().to_owned(),
            budget_bytes: tier.account().limit_bytes(),
            frozen_bytes: 0,
            rates: tier.rates(self.clock.as_ref()),
        });
        // Before the lock of the heat is taken, because the view source may take a while to answer.
        let views = self.views();
        let kept_heat = preview_heat.is_none().then(|| self.heat.read());
        let heat = |key: &SegmentKey| {
            preview_heat.or(kept_heat.as_deref()).map_or_else(SegmentHeat::default, |heat| heat.get(key))
        };
        let (mut inputs, origins) = survey(host, tables, tiers, options, &heat);
        inputs.device = device;
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

    /// Adds the reads that running statements expect to the inputs and, for the policy `optimal`, the hysteresis of
    /// segments that moved a short time ago. Returns the budgets and rules that the inputs are based on.
    pub(super) fn mark(&self, inputs: &mut Inputs, epoch: u64) -> BudgetsAndRules {
        self.expected_reads.mark(inputs);
        match self.policy.kind() {
            PolicyKind::Optimal => self.move_history.lock().mark(inputs, epoch),
            _ => BudgetsAndRules::from_inputs(inputs),
        }
    }

    /// Keeps the prices of a plan: the next plan starts from them.
    pub(super) fn keep_prices(&self, plan: &EpochPlan) {
        *self.prices.lock() = plan.next_prices();
    }

    /// Uses the calibration of changed tiers from now on, once `change` has changed them.
    ///
    /// # Errors
    /// Those of `change`; nothing has changed here then.
    pub(super) fn change_tiers(
        &self,
        host: &dyn TieringHost,
        calibration: Calibration,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.calibration.change_tiers(host, calibration, change)?;
        self.prices.lock().clear();
        Ok(())
    }

    /// Measures the effect of earlier moves from the counters, now that one more epoch has passed.
    pub(super) fn measure(&self, host: &dyn TieringHost, metrics: &TieringMetrics) -> Result<()> {
        // Held across the commit: see `save_certified_gap`.
        let mut measuring = self.measuring.lock();
        let measured = measuring.advance(self.options.payback_epochs.ceil() as u32);
        if let Some(last) = measured.epochs.last() {
            metrics.record_benefit(last);
            host.update_records(&measured.epochs, &measured.moves)?;
        }
        Ok(())
    }

    /// Adds the gap that another solver certifies to the saved record of an epoch.
    ///
    /// # Errors
    /// When the record cannot be read, or not be saved.
    pub(super) fn save_certified_gap(&self, host: &dyn TieringHost, epoch: u64, gap: f64) -> Result<()> {
        // Held across the commit: the next epoch may measure the moves of this one meanwhile, and saves its record, too.
        let mut measuring = self.measuring.lock();
        measuring.certify(epoch, gap);
        let Some(mut record) = host.load_epoch(epoch)? else { return Ok(()) };
        record.certify(gap);
        host.update_records(&[record], &[])
    }

    /// Notes the moves that were carried out for the hysteresis, and starts to measure their effect.
    pub(super) fn follow_up(&self, request: &EpochRequest, draft: &EpochDraft<'_>, prepared: &PreparedPlan) {
        // Evictions under memory pressure are not recorded, so hysteresis does not keep these segments from returning.
        if request.reason != pressure::TRIGGER {
            let done = draft.moves.iter().filter(|moved| moved.is_done());
            let moved = done.map(|moved| (moved.planned.segment, moved.planned.to_place()));
            self.move_history.lock().record(&prepared.inputs, &prepared.basis, draft.epoch.id, moved);
        }
        self.watch(draft, &prepared.inputs);
    }

    /// Starts to measure the effect of the moves that were carried out.
    fn watch(&self, draft: &EpochDraft<'_>, inputs: &Inputs) {
        let home = inputs.home();
        let mut watches = Vec::new();
        for Move { planned, relocation, record } in draft.moves.iter().filter(|moved| moved.is_done()) {
            let segment = relocation.chunk.segments.get(relocation.column);
            let (Some(segment), Some(input)) = (segment, inputs.segments.get(planned.segment)) else { continue };
            let at_place = |place| place_cost(inputs, input, place);
            let (from, to) = (at_place(planned.from_place()), at_place(planned.to_place()));
            let (Some(from), Some(to)) = (from, to) else { continue };
            let copy = segment.resident.load().as_ref().map(|resident| WatchedCopy::new(resident));
            let at = copy.filter(|_| relocation.to != home);
            watches.push(DoneMove { record, segment, at, from, to });
        }
        self.measuring.lock().begin(&draft.epoch, watches.into_iter());
    }
}
