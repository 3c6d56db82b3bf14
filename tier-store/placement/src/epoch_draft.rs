//! The draft of an epoch's report: its moves while they are planned, carried out and measured.

use terrace_storage::migrate::{ImageChange, Relocation};

use super::epoch::PlannedMove;
use super::frozen::PreparedPlan;
use super::record::{EpochRecord, EpochReport, MoveRecord, MoveStatus};
use super::tiering::{EpochRequest, TableSnapshot};

/// One move of an epoch, from its plan to its row of the log.
#[derive(Debug)]
pub(super) struct Move<'a> {
    /// The move as the plan has it.
    pub(super) planned: &'a PlannedMove,
    /// The segment and the tiers between which it moves.
    pub(super) relocation: Relocation,
    /// Its row of the log: with status `planned` until it ends.
    pub(super) record: MoveRecord,
}

impl Move<'_> {
    /// True once the move was carried out.
    pub(super) fn is_done(&self) -> bool {
        self.record.status == MoveStatus::Done
    }
}

/// One change of an image on a device, from its plan to its row of the log.
#[derive(Debug)]
pub(super) struct ImageMove {
    /// The change.
    pub(super) change: ImageChange,
    /// Its row of the log: with status `planned` until it ends.
    pub(super) record: MoveRecord,
}

/// When an epoch was decided, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decision {
    /// Number of the epoch.
    pub(super) id: u64,
    /// Time of the decision, in microseconds since the Unix epoch.
    pub(super) unix_us: u64,
    /// Time to weigh and solve, in microseconds.
    pub(super) solve_us: u64,
}

/// An epoch that has not been saved yet.
#[derive(Debug)]
pub(super) struct EpochDraft<'a> {
    /// The record of the epoch.
    pub(super) epoch: EpochRecord,
    /// The moves of the plan, in the order in which they are carried out.
    pub(super) moves: Vec<Move<'a>>,
    /// The changes of images, which are carried out before the moves.
    pub(super) images: Vec<ImageMove>,
    /// Rows of the log after those of the moves: proposals, and sums of the merge rounds since the previous epoch. This
    /// epoch neither carries them out nor predicts their benefit.
    further: Vec<MoveRecord>,
}

impl<'a> EpochDraft<'a> {
    /// Makes the draft of an epoch that carries out all moves of a plan.
    pub(super) fn new(
        decision: Decision,
        request: &EpochRequest,
        prepared: &'a PreparedPlan,
        tables: &[TableSnapshot],
    ) -> Self {
        let epoch = epoch_record(decision, request, prepared);
        let moves = prepared.moves(&epoch, tables);
        let images = prepared.images(&epoch, tables);
        Self { epoch, moves, images, further: Vec::new() }
    }

    /// Makes the draft of an epoch whose plan is only advice: nothing moves.
    pub(super) fn without_moves(decision: Decision, request: &EpochRequest, prepared: &PreparedPlan) -> Self {
        let epoch = EpochRecord { moves: 0, ..epoch_record(decision, request, prepared) };
        Self { epoch, moves: Vec::new(), images: Vec::new(), further: Vec::new() }
    }

    /// Number of rows of the log so far: the number of the next row.
    pub(super) fn rows(&self) -> usize {
        self.moves.len() + self.images.len() + self.further.len()
    }

    /// Adds rows of the log after those there are.
    pub(super) fn append(&mut self, records: impl IntoIterator<Item = MoveRecord>) {
        self.further.extend(records);
    }

    /// The report of the epoch, with the moves as they are now.
    pub(super) fn into_report(self) -> EpochReport {
        let moves = self.moves.into_iter().map(|moved| moved.record);
        let images = self.images.into_iter().map(|image| image.record);
        let moves = moves.chain(images).chain(self.further);
        EpochReport { epoch: self.epoch, moves: moves.collect() }
    }
}

/// The record of an epoch of which nothing was carried out yet.
fn epoch_record(decision: Decision, request: &EpochRequest, prepared: &PreparedPlan) -> EpochRecord {
    let Decision { id, unix_us, solve_us } = decision;
    let inputs = &prepared.inputs;
    let plan = &prepared.plan;
    EpochRecord {
        id,
        unix_us,
        trigger: request.reason.clone(),
        dry_run: request.dry_run,
        segments: inputs.segments.len() as u64,
        moves: (plan.moves.len() + plan.images.len()) as u32,
        moves_done: 0,
        moves_skipped: 0,
        moves_proposed: 0,
        planned_bytes: {
            let images = plan.images.iter().map(|planned| planned.bytes);
            plan.moves.iter().map(|planned| planned.bytes).chain(images).sum()
        },
        moved_bytes: 0,
        before_us: plan.before_us,
        after_us: plan.after_us,
        objective_us: plan.objective_us,
        bound_us: plan.bound_us,
        gap: plan.gap,
        certified_by: None,
        certified_gap: None,
        solver: plan.method.name().into(),
        policy: prepared.policy.name().into(),
        solve_us,
        move_us: 0,
        prices: prepared.prices(),
        predicted_us: 0.0,
        measured_us: None,
        measured_moves_predicted_us: None,
        prediction_error: None,
        measured_epochs: 0,
    }
}
