//! The merge distance of partial reads, by the device: measured beside a calibration, and kept with it.

use serde::{Deserialize, Serialize};

use super::core::{Core, json, parse};
use crate::catalog::{Commit, Space};
use crate::error::{Error, Result};
use crate::migrate::HomeTier;
use crate::placement::Calibration;
use crate::tier::ssd::{ReadCost, small_reads};

const KEY: &[u8] = b"small_reads";

/// What was measured.
#[derive(Serialize, Deserialize)]
struct SmallReads {
    /// The calibration that it belongs to.
    unix_us: u64,
    /// Time of one of many small reads.
    us: f64,
}

impl Core {
    /// Sets the distance by the calibration in use; a device that cannot be measured keeps the usual one.
    pub(super) fn use_read_gap(&self, calibration: &Calibration) {
        let busy = calibration.tiers.last().and_then(|home| home.busy);
        let Some(busy) = busy.filter(|_| !self.ssd.read_gap().is_fixed()) else { return };
        match self.small_reads_us(calibration.unix_us) {
            Ok(small_us) => {
                let large_us = ReadCost::LARGE_BYTES as f64 / busy.bytes_per_us;
                self.ssd.read_gap().measured(ReadCost { small_us, large_us });
            }
            Err(error) => tracing::warn!(%error, "small reads could not be measured; partial reads use 16 KiB"),
        }
    }

    /// As kept with that calibration, or measured now.
    fn small_reads_us(&self, unix_us: u64) -> Result<f64> {
        let kept = self.catalog.get(Space::Meta, KEY)?.map(|bytes| parse::<SmallReads>(&bytes)).transpose();
        if let Ok(Some(kept)) = kept
            && kept.unix_us == unix_us
        {
            return Ok(kept.us);
        }
        let probe = self.ssd.probe().ok_or_else(|| Error::Unsupported("measuring the home tier".into()))?;
        let us = small_reads::measure(&probe, self.clock.as_ref())?;
        let mut commit = Commit::default();
        commit.put(Space::Meta, KEY.to_vec(), json(&SmallReads { unix_us, us })?);
        self.catalog.commit(commit)?;
        Ok(us)
    }
}

#[cfg(test)]
mod tests;
