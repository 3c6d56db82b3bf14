//! Moves of all tables to one tier; and the read gap.

use std::time::Instant;

use terrace_tier_store::placement::tiering::EpochRequest;

use super::{Terrace, total_bytes, unplaced_home_bytes};
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::ms_since;

impl Terrace {
    /// Pins all tables to a tier and lets one epoch move them; `bytes` counts the bytes read from their
    /// former tiers.
    pub(super) fn send(&self, tier: &str) -> Result<Sample> {
        let store = self.engine.store();
        let total = total_bytes(store);
        let home_before = unplaced_home_bytes(store);
        // Images are padded on their tier.
        store.tiering().set_budget("dram", total + total / 10 + (64 << 20))?;
        for table in store.tables() {
            self.sql(&format!("ALTER TABLE {} PIN TO {tier}", table.name().name))?;
        }
        let start = Instant::now();
        let epoch = store.tiering().run_epoch(EpochRequest::now("benchmark"))?.epoch;
        let home_bytes = (home_before - unplaced_home_bytes(store)).max(0.0);
        let there = store.tier_infos().into_iter().find(|info| info.name == tier).map_or(0, |info| info.placed_bytes);
        if there < total {
            return Err(Error::failed(format!("of {total} bytes {there} are on {tier}")));
        }
        let bytes = if home_bytes > 0.0 { home_bytes } else { epoch.moved_bytes as f64 };
        Ok(Sample::new(ms_since(start))
            .with("moves", f64::from(epoch.moves_done))
            .with("move_ms", epoch.move_us as f64 / 1e3)
            .with("bytes", bytes)
            .with("image_bytes", epoch.moved_bytes as f64))
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
