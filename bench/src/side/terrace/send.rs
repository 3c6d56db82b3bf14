//! Moves of all tables to one tier, as a whole and by segment; and the read gap.

use std::time::Instant;

use terrace_tier_store::placement::tiering::EpochRequest;
use terrace_tier_store::placement::{EpochReport, MoveStatus};

use super::{Terrace, total_bytes, unplaced_home_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::ms_since;

impl Terrace {
    /// Pins all tables to a tier, and gives DRAM room for all.
    fn pin_all(&self, tier: &str) -> Result<()> {
        let store = self.engine.store();
        let total = total_bytes(store);
        // Images are padded on their tier.
        store.tiering().set_budget("dram", total + total / 10 + (64 << 20))?;
        for table in store.tables() {
            self.sql(&format!("ALTER TABLE {} PIN TO {tier}", table.name().name))?;
        }
        Ok(())
    }

    /// Runs the epoch that moves all tables to the tier that they are pinned to.
    fn move_all(&self, tier: &str) -> Result<EpochReport> {
        let store = self.engine.store();
        let total = total_bytes(store);
        let report = store.tiering().run_epoch(EpochRequest::now("benchmark"))?;
        let there = store.tier_infos().into_iter().find(|info| info.name == tier).map_or(0, |info| info.placed_bytes);
        if there < total {
            return Err(Error::failed(format!("of {total} bytes {there} are on {tier}")));
        }
        Ok(report)
    }

    /// Sends all tables to a tier; `bytes` counts the bytes read from their former tiers.
    pub(super) fn send(&self, tier: &str) -> Result<Sample> {
        let store = self.engine.store();
        let home_before = unplaced_home_bytes(store);
        self.pin_all(tier)?;
        let start = Instant::now();
        let epoch = self.move_all(tier)?.epoch;
        let home_bytes = (home_before - unplaced_home_bytes(store)).max(0.0);
        let bytes = if home_bytes > 0.0 { home_bytes } else { epoch.moved_bytes as f64 };
        Ok(Sample::new(ms_since(start))
            .with("moves", f64::from(epoch.moves_done))
            .with("move_ms", epoch.move_us as f64 / 1e3)
            .with("bytes", bytes)
            .with("image_bytes", epoch.moved_bytes as f64))
    }

    /// Sends all tables to a tier; for each segment that moved the bytes of its image and the microseconds that it took, as
    /// "bytes/TABLE/COLUMN/NUMBER" and "us/..".
    pub(super) fn send_each(&self, tier: &str) -> Result<Sample> {
        self.pin_all(tier)?;
        let start = Instant::now();
        let report = self.move_all(tier)?;
        let mut sample = Sample::new(ms_since(start));
        for moved in report.moves.iter().filter(|moved| moved.status == MoveStatus::Done) {
            let table = moved.table.rsplit('.').next().unwrap_or_default();
            let name = format!("{table}/{}/{}", moved.column, moved.number);
            sample = sample
                .with(&format!("bytes/{name}"), moved.bytes as f64)
                .with(&format!("us/{name}"), moved.took_us as f64);
        }
        Ok(sample)
    }

    /// The longest gap that is read rather than skipped.
    pub(super) fn gap(&self) -> Sample {
        Sample::default().with("bytes", self.engine.store().home().read_gap().bytes() as f64)
    }

    /// Sets the gap, independent of measurements.
    pub(super) fn fix_gap(&self, bytes: u64) -> Result<Sample> {
        self.engine.store().home().read_gap().fix(bytes);
        Ok(self.gap())
    }
}
