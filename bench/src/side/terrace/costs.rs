//! The costs of accesses that the store has measured on its tiers.

use terrace_tier_store::heat::Pattern;

use super::Terrace;
use crate::error::{Error, Result};
use crate::row::Sample;

impl Terrace {
    /// For each tier "NAME/PATTERN/us", the latency of an access in microseconds, and "NAME/PATTERN/mb_per_s" afterwards.
    pub(super) fn costs(&self) -> Result<Sample> {
        let calibration = self.engine.store().tiering().calibration();
        let calibration = calibration.ok_or_else(|| Error::failed("the tiers are not measured yet"))?;
        let mut sample = Sample::default();
        for tier in &calibration.tiers {
            if !tier.measured {
                let why = tier.note.as_deref().unwrap_or("no reason is known");
                return Err(Error::failed(format!("tier '{}' could not be measured: {why}", tier.name)));
            }
            for (pattern, cost) in Pattern::ALL.iter().zip(tier.cost.patterns) {
                let name = format!("{}/{}", tier.name, pattern.name());
                sample = sample.with(&format!("{name}/us"), cost.latency_us);
                sample = sample.with(&format!("{name}/mb_per_s"), cost.bytes_per_us);
            }
        }
        Ok(sample)
    }
}
