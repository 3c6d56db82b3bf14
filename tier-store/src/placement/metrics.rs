//! Counts of the tiering loop, as plain atomics that any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

use super::record::EpochRecord;
use crate::tier::{MAX_TIERS, Slots, TierId};

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

/// What became of columns that were read from home, since the start of the process.
#[derive(Debug, Default)]
pub struct MergeMetrics {
    /// Segments that came into memory.
    pub promoted: AtomicU64,
    /// Their bytes.
    pub promoted_bytes: AtomicU64,
    /// Columns that were not worth it, or found no room.
    pub declined: AtomicU64,
    /// Columns that nobody had the time to look at.
    pub forgotten: AtomicU64,
    /// Segments that made room.
    pub made_room: AtomicU64,
    /// Their bytes.
    pub made_room_bytes: AtomicU64,
}

/// Counters by the tier left and the tier reached.
type Moves = [[AtomicU64; MAX_TIERS]; MAX_TIERS];

/// What the loop did since the start of the process, and figures of its last epoch.
#[derive(Debug, Default)]
pub struct TieringMetrics {
    /// Epochs carried out.
    pub epochs: AtomicU64,
    /// Previews.
    pub dry_runs: AtomicU64,
    /// Epochs that ended with an error.
    pub failures: AtomicU64,
    /// Moves given up.
    pub moves_skipped: AtomicU64,
    /// Segments that the last epoch could not place as rules ask, for want of room.
    pub given_way_segments: AtomicU64,
    /// Bytes of these.
    pub given_way_bytes: AtomicU64,
    /// Microseconds the last epoch took to weigh and solve.
    pub last_solve_us: AtomicU64,
    /// Microseconds it took to move.
    pub last_move_us: AtomicU64,
    /// Bytes it moved.
    pub last_moved_bytes: AtomicU64,
    /// When it was decided, in microseconds since the Unix epoch.
    pub last_unix_us: AtomicU64,
    /// Its proven gap, 0 to 1.
    pub last_gap: Gauge,
    /// Reading time it found, in microseconds per epoch.
    pub last_before_us: Gauge,
    /// Reading time it predicts.
    pub last_after_us: Gauge,
    /// Moves it proposed.
    pub last_proposed: AtomicU64,
    /// Reading time per epoch that the moves measured last were to save.
    pub last_predicted_benefit_us: Gauge,
    /// What they saved.
    pub last_measured_benefit_us: Gauge,
    /// By how much the prediction was off, in parts of it.
    pub last_prediction_error: Gauge,
    /// What merging did.
    pub merge: MergeMetrics,
    /// Times that room was made at once.
    pub reliefs: AtomicU64,
    /// Segments dropped then.
    pub relieved_segments: AtomicU64,
    /// Their bytes.
    pub relieved_bytes: AtomicU64,
    moves: Moves,
    moved_bytes: Moves,
    slots: Slots,
}

impl TieringMetrics {
    /// Moves carried out between two tiers.
    pub fn moves(&self, from: TierId, to: TierId) -> u64 {
        self.cell(&self.moves, from, to).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Bytes they moved.
    pub fn moved_bytes(&self, from: TierId, to: TierId) -> u64 {
        self.cell(&self.moved_bytes, from, to).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    fn cell<'a>(&self, table: &'a Moves, from: TierId, to: TierId) -> Option<&'a AtomicU64> {
        table.get(self.slots.of(from)?)?.get(self.slots.of(to)?)
    }

    /// Other tiers are there from now on: the row of each, by position; a row that begins anew is counted from 0.
    pub(super) fn rearrange(&self, rows: &[u8], anew: Option<u8>) {
        for table in anew.iter().flat_map(|_| [&self.moves, &self.moved_bytes]) {
            for (from, row) in (0_u8..).zip(table) {
                let cells = (0_u8..).zip(row).filter(|(to, _)| anew == Some(*to) || anew == Some(from));
                cells.for_each(|(_, cell)| cell.store(0, Ordering::Relaxed));
            }
        }
        self.slots.set(rows);
    }

    pub(super) fn moved(&self, from: TierId, to: TierId, bytes: u64) {
        for (table, by) in [(&self.moves, 1), (&self.moved_bytes, bytes)] {
            if let Some(cell) = self.cell(table, from, to) {
                cell.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn relieved(&self, epoch: &EpochRecord) {
        self.reliefs.fetch_add(1, Ordering::Relaxed);
        self.relieved_segments.fetch_add(epoch.moves_done.into(), Ordering::Relaxed);
        self.relieved_bytes.fetch_add(epoch.moved_bytes, Ordering::Relaxed);
    }

    pub(super) fn note(&self, epoch: &EpochRecord) {
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

    /// The measurement of an epoch's moves is complete.
    pub(super) fn note_measured(&self, epoch: &EpochRecord) {
        let (Some(measured), Some(predicted)) = (epoch.measured_us, epoch.measured_moves_predicted_us) else { return };
        self.last_measured_benefit_us.set(measured);
        self.last_predicted_benefit_us.set(predicted);
        if let Some(error) = epoch.prediction_error {
            self.last_prediction_error.set(error);
        }
    }
}
