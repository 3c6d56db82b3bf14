//! Measures the benefit of moves from the counters of their segments.
//!
//! A move predicts how much reading time an epoch saves. For as many epochs as it has to pay back in, the counters of its
//! segment are read: the accesses since the move at the calibrated cost of the source tier, minus the same accesses at the
//! cost of the target tier, divided by the epochs. So the prediction error shows where reads differ from what the heat
//! predicted; an error of the calibration itself is not part of it. A measurement ends when the segment moves again or
//! disappears, and with the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use terrace_model::TierIndex;
use terrace_storage::heat::PatternCounts;
use terrace_storage::table::{Resident, Segment};
use terrace_storage::tier::codec::Form;

use super::form_cost::PlaceCost;
use super::record::{EpochRecord, MoveRecord};
use crate::heat::decay::SegmentHeat;

/// Largest number of moves watched at a time.
const MOST: usize = 100_000;

/// The memory tier on which a copy lies, and its form.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WatchedCopy {
    tier: TierIndex,
    form: Form,
}

impl WatchedCopy {
    /// That of a copy.
    pub(super) fn new(copy: &Resident) -> Self {
        Self { tier: copy.tier.clone(), form: copy.column.form() }
    }
}

/// A move under measurement.
#[derive(Debug)]
struct WatchedMove {
    record: MoveRecord,
    segment: Weak<Segment>,
    /// Its copy after the move; `None`: it is at home.
    at: Option<WatchedCopy>,
    from: PlaceCost,
    to: PlaceCost,
    /// Counters of the segment at the time of the move.
    base: PatternCounts,
}

/// A move that was carried out, to be watched.
pub(super) struct DoneMove<'a> {
    pub(super) record: &'a MoveRecord,
    pub(super) segment: &'a Arc<Segment>,
    /// Its copy after the move; `None`: it is at home.
    pub(super) at: Option<WatchedCopy>,
    pub(super) from: PlaceCost,
    pub(super) to: PlaceCost,
}

/// Moves under measurement, by epoch.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    epochs: BTreeMap<u64, (EpochRecord, Vec<WatchedMove>)>,
}

/// Records with updated measurements.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) epochs: Vec<EpochRecord>,
    pub(super) moves: Vec<MoveRecord>,
}

impl Measuring {
    /// Watches the moves of an epoch from now on.
    pub(super) fn begin<'a>(&mut self, epoch: &EpochRecord, moves: impl Iterator<Item = DoneMove<'a>>) {
        let room = MOST.saturating_sub(self.epochs.values().map(|(_, moves)| moves.len()).sum());
        let watched = |done: DoneMove<'_>| WatchedMove {
            record: done.record.clone(),
            segment: Arc::downgrade(done.segment),
            at: done.at,
            from: done.from,
            to: done.to,
            base: done.segment.counters.snapshot(),
        };
        let moves: Vec<WatchedMove> = moves.take(room).map(watched).collect();
        if !moves.is_empty() {
            self.epochs.insert(epoch.id, (epoch.clone(), moves));
        }
    }

    /// Adds the gap that another solver certifies to the record of an epoch under measurement.
    pub(super) fn certify(&mut self, epoch: u64, gap: f64) {
        if let Some((record, _)) = self.epochs.get_mut(&epoch) {
            record.certify(gap);
        }
    }

    /// Updates all measurements after one more epoch. Those that have lasted `most` epochs end.
    pub(super) fn advance(&mut self, most: u32) -> Measured {
        let mut measured = Measured::default();
        self.epochs.retain(|_, (epoch, moves)| {
            for watched in moves.iter_mut() {
                watched.advance();
            }
            epoch.measured_epochs += 1;
            let now = |watched: &WatchedMove| watched.record.measured_us.unwrap_or(0.0);
            let measured_moves = || moves.iter().filter(|watched| watched.record.measured_us.is_some());
            if measured_moves().next().is_some() {
                epoch.measured_us = Some(measured_moves().map(now).sum());
                epoch.measured_moves_predicted_us =
                    Some(measured_moves().map(|watched| watched.record.benefit_us).sum());
                let off: f64 = measured_moves().map(|watched| (now(watched) - watched.record.benefit_us).abs()).sum();
                let all: f64 = measured_moves().map(|watched| watched.record.benefit_us.abs()).sum();
                epoch.prediction_error = (all > 0.0).then(|| off / all);
                measured.epochs.push(epoch.clone());
                measured.moves.extend(measured_moves().map(|watched| watched.record.clone()));
            }
            epoch.measured_epochs < most
        });
        measured
    }
}

impl WatchedMove {
    /// Updates the measurement after one more epoch, or ends it where the segment has moved on.
    fn advance(&mut self) {
        let Some(segment) = self.segment.upgrade() else { return };
        if segment.resident.load().as_ref().map(|copy| WatchedCopy::new(copy)) != self.at {
            self.segment = Weak::new();
            return;
        }
        self.record.measured_epochs += 1;
        let epochs = self.record.measured_epochs as f32;
        let now = segment.counters.snapshot();
        let mut heat = SegmentHeat::default();
        for (sum, (now, base)) in heat.accesses.iter_mut().zip(now.accesses.iter().zip(self.base.accesses)) {
            // Access counters are 32 bits wide and wrap.
            *sum = (*now as u32).wrapping_sub(base as u32) as f32 / epochs;
        }
        for (sum, (now, base)) in heat.values.iter_mut().zip(now.values.iter().zip(self.base.values)) {
            *sum = now.wrapping_sub(base) as f32 / epochs;
        }
        self.record.measured_us = Some(self.from.reads_us(&heat) - self.to.reads_us(&heat));
    }
}
