//! The state that the threads of the loop share, and the epochs that they run.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use terrace_model::clock::Clock;
use terrace_model::{Error, Result};
use terrace_storage::io::{Priority, set_priority};

use super::controller::{Controller, Interruptible, WakeUp};
use super::epoch::{EpochPlan, Inputs};
use super::epoch_draft::{Decision, EpochDraft};
use super::epoch_steps::PlansByMode;
use super::format::bytes;
use super::merge::{LogPoint, Merger};
use super::metrics::TieringMetrics;
use super::mover::Mover;
use super::planner::Planner;
use super::record::EpochReport;
use super::tiering::{EpochRequest, INTERVAL, TieringHost, TieringOptions};

/// The parts of the loop. Each part guards its state with its own locks; [`super::lock_order`] defines their order.
pub(super) struct Shared {
    host: Weak<dyn TieringHost>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: Arc<TieringOptions>,
    pub(super) metrics: TieringMetrics,
    pub(super) planner: Planner,
    pub(super) mover: Mover,
    pub(super) controller: Controller,
    pub(super) merger: Merger,
}

impl Shared {
    /// Makes the state of a loop that is not running.
    pub(super) fn new(host: Weak<dyn TieringHost>, clock: Arc<dyn Clock>, options: TieringOptions) -> Self {
        let options = Arc::new(options);
        Self {
            host,
            metrics: TieringMetrics::default(),
            planner: Planner::new(&options, &clock),
            mover: Mover::new(&options, &clock),
            controller: Controller::new(&options),
            merger: Merger::new(options.merge),
            clock,
            options,
        }
    }

    /// The host.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when it is gone.
    pub(super) fn host(&self) -> Result<Arc<dyn TieringHost>> {
        self.host.upgrade().ok_or(Error::Cancelled)
    }

    /// Runs epochs of the loop until it is stopped.
    pub(super) fn run_loop(&self) {
        set_priority(Priority::Planning);
        loop {
            let wanted = match self.controller.wait() {
                WakeUp::Stop => return,
                WakeUp::Interval => None,
                WakeUp::Wanted(reason) => Some(reason),
            };
            if !self.controller.settings().is_running() {
                continue;
            }
            let request = EpochRequest { dry_run: false, reason: wanted.unwrap_or(INTERVAL).into(), is_paced: true };
            match self.run_epoch(&request, wanted.is_none()) {
                Ok(_) => {}
                Err(Error::Cancelled) => return,
                Err(error) => tracing::error!(%error, "an epoch failed; the next one tries again"),
            }
        }
    }

    /// See [`super::Tiering::run_epoch`]; with `fold` the counters are folded into the heat before.
    pub(super) fn run_epoch(&self, request: &EpochRequest, fold: bool) -> Result<EpochReport> {
        let background = request.is_paced && self.mover.rates(self.host()?.as_ref()).iter().any(Option::is_some);
        let mut last_epoch = match background || request.dry_run {
            true => self.controller.lock_epoch(),
            // Where cores are scarce, a background epoch takes long: it is interrupted instead of waited for.
            false => self.interrupt_and_lock(Interruptible::Background),
        };
        let host = self.host()?;
        self.mover.clear_cancel();
        if self.controller.is_stopping() {
            return Err(Error::Cancelled);
        }
        if !request.dry_run {
            self.controller.settings().check_not_frozen()?;
        }
        let under_way = self.controller.begin_epoch(background);
        let ended = self.run_epoch_locked(host.as_ref(), request, fold, &mut last_epoch);
        drop(under_way);
        drop(last_epoch);
        let report = ended.and_then(|(mut report, plans)| {
            plans.recorded().map_or(Ok(()), |plan| self.certify(host.as_ref(), plan, &mut report.epoch))?;
            Ok(report)
        });
        let failed = u64::from(report.is_err());
        self.metrics.failures.fetch_add(failed, Ordering::Relaxed);
        report
    }

    /// Runs one epoch while the caller holds the epoch mutex; `last` is the value that it guards. Also returns its plans.
    fn run_epoch_locked(
        &self,
        host: &dyn TieringHost,
        request: &EpochRequest,
        fold: bool,
        last: &mut Option<u64>,
    ) -> Result<(EpochReport, PlansByMode)> {
        let id = last.map_or_else(|| host.last_epoch(), Ok)? + 1;
        let _under_way = (!request.dry_run).then(|| self.controller.begin(id));
        let mut tables = host.tables();
        tables.sort_by_key(|table| table.id);
        let unix_us = self.clock.unix_us();
        let start_us = self.clock.now_us();
        if fold && !request.dry_run {
            self.planner.fold_counters(&tables);
            self.planner.measure(host, &self.metrics)?;
            self.planner.calibration().correct(host)?;
        }
        self.mover.drop_lost_images(host, &tables);
        let plans = self.prepare_by_mode(host, &tables, id, fold && request.dry_run)?;
        let solve_us = self.clock.now_us().saturating_sub(start_us);
        let main = plans.recorded().ok_or(Error::Cancelled)?;
        let decision = Decision { id, unix_us, solve_us };
        let mut draft = match &plans.acting {
            Some(prepared) => EpochDraft::new(decision, request, prepared, &tables),
            None => EpochDraft::without_moves(decision, request, main),
        };
        self.propose(&mut draft, &tables, plans.advising.as_ref());
        if request.dry_run {
            self.metrics.dry_runs.fetch_add(1, Ordering::Relaxed);
            return Ok((draft.into_report(), plans));
        }
        let merged = self.merge_records(host, LogPoint::Epoch(id), draft.rows());
        draft.append(merged);
        self.note_given_way(&main.inputs, &main.plan);
        // Set before saving: even if a part of the report cannot be saved, no other epoch gets the number.
        *last = Some(id);
        self.mover.carry_out(host, request, &mut draft, &self.metrics);
        if let Some(prepared) = &plans.acting {
            self.planner.follow_up(request, &draft, prepared);
        }
        let report = draft.into_report();
        self.save(host, &tables, &report)?;
        self.metrics.record_epoch(&report.epoch);
        Ok((report, plans))
    }

    /// Counts the segments whose rules the budgets do not allow, and logs a change of their bytes.
    pub(super) fn note_given_way(&self, inputs: &Inputs, plan: &EpochPlan) {
        let segments = plan.given_way.iter().filter_map(|at| inputs.segments.get(*at));
        let (segments, unmet_bytes) = segments.fold((0, 0), |(n, sum), segment| (n + 1, sum + segment.least_bytes()));
        let before = self.metrics.given_way_bytes.swap(unmet_bytes, Ordering::Relaxed);
        self.metrics.given_way_segments.store(segments, Ordering::Relaxed);
        if unmet_bytes == before {
            return;
        }
        match unmet_bytes {
            0 => tracing::info!("the budgets hold all that placement rules want in memory again"),
            _ => tracing::warn!(
                segments,
                "placement rules want {} more in memory than the budgets allow; the loop drops the latest rules first, and \
                 within a rule the newest chunks. Raise a budget or remove a pin; system.placement_rules shows unmet bytes",
                bytes(unmet_bytes)
            ),
        }
    }
}
