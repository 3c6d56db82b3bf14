//! The parts of an epoch between counters and moves: what is weighed, what is planned, what is proposed, and what is
//! watched afterwards.

use std::sync::Arc;

use super::epoch::{Inputs, TierInput, extent};
use super::hold::Basis;
use super::kept::{Drawn, origin_table, set_aside};
use super::measure::Watch;
use super::mode::TieringMode;
use super::picture::Picture;
use super::policy::PolicyKind;
use super::pressure;
use super::record::{EpochReport, MoveRecord, MoveStatus};
use super::survey::{Origin, mask, survey};
use super::tiering::{EpochRequest, INTERVAL, Shared, TableSnapshot, TieringHost};
use super::views::weigh;
use crate::error::{Error, Result};
use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};
use crate::migrate::Relocation;
use crate::tier::{MemoryTier, TierId, TierKind};

impl Shared {
    /// Carries out the moves of a plan, then makes durable what was decided, what heat was known, and where all lies.
    pub(super) fn finish(
        &self,
        host: &dyn TieringHost,
        request: &EpochRequest,
        (tables, drawn): (&[TableSnapshot], Option<&Drawn>),
        report: &mut EpochReport,
    ) -> Result<()> {
        let relocations = drawn.map_or_else(Vec::new, |drawn| drawn.relocations(tables));
        let start_us = self.clock.now_us();
        self.carry_out(host, request, &relocations, report);
        report.epoch.move_us = self.clock.now_us().saturating_sub(start_us);
        let done = |record: &&MoveRecord| record.status == MoveStatus::Done;
        report.epoch.predicted_us = {
            // What rounds did since the epoch before is not its own.
            let own = report.moves.iter().take(relocations.len());
            own.filter(done).map(|record| record.benefit_us).sum()
        };
        if let Some(drawn) = drawn {
            let moves = drawn.plan.moves.iter().zip(&report.moves);
            let done = moves.filter(|(_, record)| record.status == MoveStatus::Done);
            let weighed = (&drawn.inputs, &drawn.basis);
            // What had to leave in haste may come back as soon as it pays.
            if request.reason != pressure::TRIGGER {
                let moved = done.map(|(planned, _)| (planned.segment, planned.to));
                self.holds.lock().note(weighed, report.epoch.id, moved);
            }
            self.watch(report, &relocations, drawn);
        }
        self.save_heat(host, tables)?;
        let holds = self.holds.lock().to_blob()?;
        host.save_epoch(report, &holds)?;
        host.save_picture(report.epoch.id, &Picture::take(memory_names(host), tables))
    }

    /// What is carried out and what is only advised; usually there is no advice to make.
    pub(super) fn draw_by_mode(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        epoch: u64,
        preview: bool,
    ) -> Result<(Option<Drawn>, Option<Drawn>)> {
        let server = self.control.read().for_requests();
        let has = |mode: TieringMode| tables.iter().any(|table| table.mode.max(server) == mode);
        let at_most = |mode: TieringMode| move |table: &TableSnapshot| table.mode.max(server) <= mode;
        let acting = (server == TieringMode::Auto).then(|| at_most(TieringMode::Auto));
        let advising = (has(TieringMode::Advise) || acting.is_none()).then(|| at_most(TieringMode::Advise));
        let seen = self.seen_heat(tables, preview);
        let draw = |weighed: &dyn Fn(&TableSnapshot) -> bool| {
            let (mut inputs, mut origins) = self.inputs(host, tables, seen.as_ref())?;
            let weighs = |at: usize| origin_table(tables, &origins, at).is_some_and(weighed);
            let kept: Vec<bool> = (0..origins.len()).map(weighs).collect();
            let basis = self.mark(&mut inputs, epoch);
            let held = set_aside(&mut inputs, &mut origins, &kept);
            Ok::<_, Error>((inputs, origins, held, basis))
        };
        let inputs =
            (acting.map(|weighed| draw(&weighed)).transpose()?, advising.map(|weighed| draw(&weighed)).transpose()?);
        let solve = |weighed| Drawn::new(weighed, self.policy.as_ref(), self.work());
        let drawn = (inputs.0.map(solve).transpose()?, inputs.1.map(solve).transpose()?);
        if let Some(drawn) = drawn.0.as_ref().or(drawn.1.as_ref()) {
            *self.prices.lock() = drawn.plan.next_prices();
        }
        Ok(drawn)
    }

    /// Marks what running statements are about to read and, where the policy goes by costs, what should not turn back; what
    /// the inputs stand on.
    pub(super) fn mark(&self, inputs: &mut Inputs, epoch: u64) -> Basis {
        self.agendas.mark(inputs);
        match self.policy.kind() {
            PolicyKind::Optimal => self.holds.lock().mark(inputs, epoch),
            _ => Basis::of(inputs),
        }
    }

    /// Logs as proposed what is planned for tables that the loop only advises on. As nothing of it is carried out, the loop
    /// finds the same again and again: then it is counted, and logged no more.
    pub(super) fn propose(&self, report: &mut EpochReport, tables: &[TableSnapshot], advising: Option<&Drawn>) {
        let Some(drawn) = advising else { return };
        let server = self.control.read().for_requests();
        let advised = |record: &MoveRecord| {
            let table = tables.iter().find(|table| table.name == record.table);
            table.is_some_and(|table| table.mode.max(server) == TieringMode::Advise)
        };
        let proposals: Vec<MoveRecord> = drawn.records(&report.epoch, tables).into_iter().filter(advised).collect();
        report.epoch.moves_proposed = proposals.len() as u32;
        if !report.epoch.dry_run {
            let what =
                |record: &MoveRecord| (record.table.clone(), record.chunk, record.column.clone(), record.to.clone());
            let before = std::mem::replace(&mut *self.proposed.lock(), proposals.iter().map(what).collect());
            if report.epoch.trigger == INTERVAL && proposals.iter().map(what).eq(before) {
                return;
            }
        }
        for mut record in proposals {
            record.number = report.moves.len() as u32;
            record.status = MoveStatus::Proposed;
            report.moves.push(record);
        }
    }

    /// The heat as the counters have it now, without keeping it; `None`: the heat that is kept will do.
    pub(super) fn seen_heat(&self, tables: &[TableSnapshot], preview: bool) -> Option<Heat> {
        preview.then(|| {
            let mut heat = self.heat.read().clone();
            self.observe(&mut heat, tables, &self.views());
            heat
        })
    }

    /// All segments of the tables, and where each comes from.
    pub(super) fn inputs(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        seen: Option<&Heat>,
    ) -> Result<(Inputs, Vec<Origin>)> {
        let calibration = self.calibrated_now(host)?;
        let memory = host.memory_tiers();
        let budgets = memory.iter().map(|tier| Some(tier.account().limit_bytes())).chain([None]);
        let tiers = calibration.tiers.iter().zip(calibration.costs()).zip(budgets);
        let tiers: Vec<TierInput> = tiers
            .map(|((profile, cost), budget_bytes)| TierInput { name: profile.name.clone(), budget_bytes, cost })
            .collect();
        let paused = tiers.iter().map(|tier| self.health.is_paused(&tier.name, self.clock.as_ref()));
        let prices = (self.options.payback_epochs, calibration.rates(), mask(paused));
        // Asked for before heat is held: it may take a while.
        let views = self.views();
        let known = seen.is_none().then(|| self.heat.read());
        let heat = |key: &SegmentKey| seen.or(known.as_deref()).map_or_else(SegmentHeat::default, |heat| heat.get(key));
        let (mut inputs, origins) = survey(host, tables, tiers, prices, &heat);
        let is_dram = |tier: &Arc<dyn MemoryTier>| tier.kind() == TierKind::Dram;
        let views = (views.as_slice(), mask(memory.iter().map(is_dram)));
        if let Some(heat) = seen.or(known.as_deref()) {
            weigh(&mut inputs, (&origins, tables), views, (heat, self.options.half_life_epochs));
        }
        inputs.prices.clone_from(&self.prices.lock());
        Ok((inputs, origins))
    }

    /// One more epoch has passed for the moves before it: what they brought is read from the counters.
    pub(super) fn measure(&self, host: &dyn TieringHost) -> Result<()> {
        let measured = self.measuring.lock().advance(self.options.payback_epochs.ceil() as u32);
        if let Some(last) = measured.epochs.last() {
            self.metrics.note_measured(last);
            host.amend(&measured.epochs, &measured.moves)?;
        }
        Ok(())
    }

    /// Watches the moves that were carried out.
    fn watch(&self, report: &EpochReport, relocations: &[Relocation], drawn: &Drawn) {
        let inputs = &drawn.inputs;
        let home = drawn.inputs.home();
        let mut watches = Vec::new();
        for ((record, relocation), planned) in report.moves.iter().zip(relocations).zip(&drawn.plan.moves) {
            let segment = relocation.chunk.segments.get(relocation.column);
            let (Some(segment), Some(input)) = (segment, inputs.segments.get(planned.segment)) else { continue };
            let on = |id: TierId| {
                let id = usize::from(id.0);
                Some((inputs.tiers.get(id)?.cost, extent(inputs, input, id)))
            };
            let (Some(from), Some(to)) = (on(relocation.from), on(relocation.to)) else { continue };
            if record.status == MoveStatus::Done {
                let lies = segment.resident.load().as_ref().map(|resident| resident.tier.clone());
                let at = lies.filter(|_| relocation.to != home);
                watches.push(Watch { record, segment, at, from, to });
            }
        }
        self.measuring.lock().begin(&report.epoch, watches.into_iter());
    }
}

/// Names of the memory tiers, fastest first.
fn memory_names(host: &dyn TieringHost) -> Vec<String> {
    host.memory_tiers().iter().map(|tier| tier.name().to_owned()).collect()
}
