//! What moves brought: counted, not believed.
//!
//! A move predicts how much reading time an epoch saves. For so many epochs as it had to pay back in, the counters of its
//! segment are read: the accesses since the move, at the calibrated cost of the tier it left, minus the same at that of
//! the tier it lies on, divided by the epochs. So a prediction errs where reads turn out otherwise than the heat said; an
//! error of the calibration itself is not in it. A segment that moves again, or goes, ends its measurement; so does the
//! end of the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::cost::{Extent, TierCost};
use super::record::{EpochRecord, MoveRecord};
use crate::heat::PatternCounts;
use crate::heat::decay::SegmentHeat;
use crate::table::Segment;
use crate::tier::Seat;

/// Moves watched at a time; those of the newest epochs.
const MOST: usize = 100_000;

/// A move that was carried out, and the counters when it was.
#[derive(Debug)]
struct Watched {
    record: MoveRecord,
    segment: Weak<Segment>,
    at: Option<Seat>,
    /// Cost and segment where it was, and where it is.
    from: (TierCost, Extent),
    to: (TierCost, Extent),
    base: PatternCounts,
}

/// A move to watch.
pub(super) struct Watch<'a> {
    pub(super) record: &'a MoveRecord,
    pub(super) segment: &'a Arc<Segment>,
    /// The memory tier it lies on now; `None`: the home.
    pub(super) at: Option<Seat>,
    pub(super) from: (TierCost, Extent),
    pub(super) to: (TierCost, Extent),
}

/// Moves under measurement, by epoch.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    epochs: BTreeMap<u64, (EpochRecord, Vec<Watched>)>,
}

/// Records that say more now.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) epochs: Vec<EpochRecord>,
    pub(super) moves: Vec<MoveRecord>,
}

impl Measuring {
    /// Watches the moves of an epoch from now on.
    pub(super) fn begin<'a>(&mut self, epoch: &EpochRecord, moves: impl Iterator<Item = Watch<'a>>) {
        let room = MOST.saturating_sub(self.epochs.values().map(|(_, moves)| moves.len()).sum());
        let watched = |watch: Watch<'_>| Watched {
            record: watch.record.clone(),
            segment: Arc::downgrade(watch.segment),
            at: watch.at,
            from: watch.from,
            to: watch.to,
            base: watch.segment.counters.snapshot(),
        };
        let moves: Vec<Watched> = moves.take(room).map(watched).collect();
        if !moves.is_empty() {
            self.epochs.insert(epoch.id, (epoch.clone(), moves));
        }
    }

    /// One more epoch has passed: what the moves brought so far. Those watched for `most` epochs are done.
    pub(super) fn advance(&mut self, most: u32) -> Measured {
        let mut measured = Measured::default();
        self.epochs.retain(|_, (epoch, moves)| {
            for watched in moves.iter_mut() {
                watched.advance();
            }
            epoch.measured_epochs += 1;
            let now = |watched: &Watched| watched.record.measured_us.unwrap_or(0.0);
            let seen = || moves.iter().filter(|watched| watched.record.measured_us.is_some());
            if seen().next().is_some() {
                epoch.measured_us = Some(seen().map(now).sum());
                epoch.measured_moves_predicted_us = Some(seen().map(|watched| watched.record.benefit_us).sum());
                let off: f64 = seen().map(|watched| (now(watched) - watched.record.benefit_us).abs()).sum();
                let all: f64 = seen().map(|watched| watched.record.benefit_us.abs()).sum();
                epoch.prediction_error = (all > 0.0).then(|| off / all);
                measured.epochs.push(epoch.clone());
                measured.moves.extend(seen().map(|watched| watched.record.clone()));
            }
            epoch.measured_epochs < most
        });
        measured
    }
}

impl Watched {
    fn advance(&mut self) {
        let Some(segment) = self.segment.upgrade() else { return };
        if segment.resident.load().as_ref().map(|resident| &resident.tier) != self.at.as_ref() {
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
        let cost = |(cost, extent): &(TierCost, Extent)| cost.expected_us(&heat, *extent);
        self.record.measured_us = Some(cost(&self.from) - cost(&self.to));
    }
}
