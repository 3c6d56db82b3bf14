//! Metrics of the tiering loop, as plain atomics that any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_model::durations::{DurationSums, Durations};
use terrace_model::{MAX_TIERS, TierId, TierRows};

use super::record::EpochRecord;

/// A floating-point gauge.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The last value set; 0 before.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

/// Counts of the merger, which promotes columns that scans read from home; since the start of the process.
#[derive(Debug, Default)]
pub struct MergeMetrics {
    /// Segments promoted to memory.
    pub promoted: AtomicU64,
    /// Bytes of promoted segments.
    pub promoted_bytes: AtomicU64,
    /// Columns that were not worth a promotion, or for which there was no room.
    pub declined: AtomicU64,
    /// Columns that were dropped from the queue before the merger weighed them.
    pub forgotten: AtomicU64,
    /// Segments evicted to make room.
    pub made_room: AtomicU64,
    /// Bytes of evicted segments.
    pub made_room_bytes: AtomicU64,
}

/// Counters by source and target tier.
type Moves = [[AtomicU64; MAX_TIERS]; MAX_TIERS];

/// Counts of the loop since the start of the process, and figures of its last epoch.
#[derive(Debug, Default)]
pub struct TieringMetrics {
    /// Epochs carried out.
    pub epochs: AtomicU64,
    /// Dry runs of epochs.
    pub dry_runs: AtomicU64,
    /// Epochs that ended with an error.
    pub failures: AtomicU64,
    /// Moves that were planned and not carried out.
    pub moves_skipped: AtomicU64,
    /// Segments that the last epoch could not place as rules ask, because there was no room.
    pub given_way_segments: AtomicU64,
    /// Bytes of these segments.
    pub given_way_bytes: AtomicU64,
    /// Microseconds the last epoch took to weigh and solve.
    pub last_solve_us: AtomicU64,
    /// Microseconds the last epoch took to move.
    pub last_move_us: AtomicU64,
    /// Bytes that the last epoch moved.
    pub last_moved_bytes: AtomicU64,
    /// Time at which the last epoch was decided, in microseconds since the Unix epoch.
    pub last_unix_us: AtomicU64,
    /// Proven gap of the last plan, 0 to 1.
    pub last_gap: Gauge,
    /// Reading time before the last epoch, in microseconds per epoch.
    pub last_before_us: Gauge,
    /// Reading time that the last plan predicts, in microseconds per epoch.
    pub last_after_us: Gauge,
    /// Moves that the last epoch proposed.
    pub last_proposed: AtomicU64,
    /// Predicted saving of the moves measured last, in microseconds of reading time per epoch.
    pub last_predicted_benefit_us: Gauge,
    /// Measured saving of these moves, in microseconds of reading time per epoch.
    pub last_measured_benefit_us: Gauge,
    /// Error of the prediction, as a share of it.
    pub last_prediction_error: Gauge,
    /// Counts of the merger.
    pub merge: MergeMetrics,
    /// Number of times that pressure relief made room.
    pub reliefs: AtomicU64,
    /// Segments dropped by pressure relief.
    pub relieved_segments: AtomicU64,
    /// Bytes of these segments.
    pub relieved_bytes: AtomicU64,
    /// Images copied to a device.
    pub images_copied: AtomicU64,
    /// Bytes of these images.
    pub images_copied_bytes: AtomicU64,
    /// Images dropped from a device.
    pub images_dropped: AtomicU64,
    moves: Moves,
    moved_bytes: Moves,
    /// How long moves took, by their target.
    move_times: [Durations; MAX_TIERS],
    slots: TierRows,
}

impl TieringMetrics {
    /// Moves carried out between two tiers.
    pub fn moves(&self, from: TierId, to: TierId) -> u64 {
        self.cell(&self.moves, from, to).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Bytes of the moves carried out between two tiers.
    pub fn moved_bytes(&self, from: TierId, to: TierId) -> u64 {
        self.cell(&self.moved_bytes, from, to).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// How long the moves to a tier took that were carried out.
    pub fn move_times(&self, to: TierId) -> Option<DurationSums> {
        self.move_times.get(self.slots.row_of_tier(to)?).map(Durations::sums)
    }

    fn cell<'a>(&self, table: &'a Moves, from: TierId, to: TierId) -> Option<&'a AtomicU64> {
        table.get(self.slots.row_of_tier(from)?)?.get(self.slots.row_of_tier(to)?)
    }

    /// Adapts the counters to changed tiers: `rows` are the rows of all tiers by position; the counters of row `reset`, which
    /// belonged to a tier that is gone, restart at 0.
    pub(super) fn change_tiers(&self, rows: &[u8], reset: Option<u8>) {
        for table in reset.iter().flat_map(|_| [&self.moves, &self.moved_bytes]) {
            for (from, row) in (0_u8..).zip(table) {
                let cells = (0_u8..).zip(row).filter(|(to, _)| reset == Some(*to) || reset == Some(from));
                cells.for_each(|(_, cell)| cell.store(0, Ordering::Relaxed));
            }
        }
        let times = reset.and_then(|row| self.move_times.get(usize::from(row)));
        times.into_iter().for_each(Durations::reset);
        self.slots.set(rows);
    }

    /// Counts a move that took so long.
    pub(super) fn count_move(&self, from: TierId, to: TierId, bytes: u64, took_us: u64) {
        for (table, by) in [(&self.moves, 1), (&self.moved_bytes, bytes)] {
            if let Some(cell) = self.cell(table, from, to) {
                cell.fetch_add(by, Ordering::Relaxed);
            }
        }
        if let Some(times) = self.slots.row_of_tier(to).and_then(|row| self.move_times.get(row)) {
            times.record(took_us);
        }
    }

    /// Counts a change of an image on a device: a copy, or a drop.
    pub(super) fn count_image(&self, is_copied: bool, bytes: u64) {
        if is_copied {
            self.images_copied.fetch_add(1, Ordering::Relaxed);
            self.images_copied_bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.images_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a run of pressure relief.
    pub(super) fn count_relief(&self, epoch: &EpochRecord) {
        self.reliefs.fetch_add(1, Ordering::Relaxed);
        self.relieved_segments.fetch_add(epoch.moves_done.into(), Ordering::Relaxed);
        self.relieved_bytes.fetch_add(epoch.moved_bytes, Ordering::Relaxed);
    }

    /// Records an epoch that was carried out.
    pub(super) fn record_epoch(&self, epoch: &EpochRecord) {
        self.epochs.fetch_add(1, Ordering::Relaxed);
        self.last_solve_us.store(epoch.solve_us, Ordering::Relaxed);
        self.last_move_us.store(epoch.move_us, Ordering::Relaxed);
        self.last_moved_bytes.store(epoch.moved_bytes, Ordering::Relaxed);
        self.last_unix_us.store(epoch.unix_us, Ordering::Relaxed);
        self.last_gap.set(epoch.gap);
        self.last_before_us.set(epoch.before_us);
        self.last_after_us.set(epoch.after_us);
        self.last_proposed.store(epoch.moves_proposed.into(), Ordering::Relaxed);
    }

    /// Records the measured saving of an epoch's moves.
    pub(super) fn record_benefit(&self, epoch: &EpochRecord) {
        let (Some(measured), Some(predicted)) = (epoch.measured_us, epoch.measured_moves_predicted_us) else { return };
        self.last_measured_benefit_us.set(measured);
        self.last_predicted_benefit_us.set(predicted);
        if let Some(error) = epoch.prediction_error {
            self.last_prediction_error.set(error);
        }
    }
}
