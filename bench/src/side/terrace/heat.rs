//! The access counters of all segments, and where the segments lie.

use super::{Terrace, total_bytes};
use crate::error::Result;
use crate::row::Sample;
use crate::side::unknown;

impl Terrace {
    /// For each segment the counts "accesses/TABLE/COLUMN/POSITION OF ITS CHUNK" and, with the same path, "bytes/..", the values
    /// that were read in order ("scanned/..") and looked up ("looked-up/.."), the number of its chunk ("chunk/..") and the
    /// position of its tier, fastest first ("tier/..").
    pub(super) fn heat(&self) -> Sample {
        let store = self.engine.store();
        let home = store.tier_infos().len().saturating_sub(1);
        let mut sample = Sample::default();
        for table in store.tables() {
            let version = table.version();
            for (position, entry) in version.chunks.iter().enumerate() {
                for (field, segment) in entry.chunk.schema.fields().iter().zip(&entry.chunk.segments) {
                    let name = format!("{}/{}/{position}", table.name().name, field.name());
                    let counts = segment.counters.snapshot();
                    let accesses: u64 = counts.accesses.iter().sum();
                    let [sequential, monotonic, random, point] = counts.values;
                    let tier = segment.resident.load().as_ref().map_or(home, |copy| usize::from(copy.tier.id().0));
                    sample = sample
                        .with(&format!("accesses/{name}"), accesses as f64)
                        .with(&format!("bytes/{name}"), segment.bytes() as f64)
                        .with(&format!("scanned/{name}"), (sequential + monotonic) as f64)
                        .with(&format!("looked-up/{name}"), (random + point) as f64)
                        .with(&format!("chunk/{name}"), entry.chunk.id.0 as f64)
                        .with(&format!("tier/{name}"), tier as f64);
                }
            }
        }
        sample
    }

    /// "TIER SHARE": sets the budget of a tier to a share of all bytes; what is too much there leaves with the next epoch.
    pub(super) fn limit(&self, what: &str) -> Result<Sample> {
        let Some((tier, share)) = what.split_once(' ') else { return Err(unknown(what)) };
        let share: f64 = share.parse().map_err(|_| unknown(what))?;
        let store = self.engine.store();
        let bytes = total_bytes(store) as f64 * share;
        store.tiering().set_budget(tier, bytes as u64)?;
        Ok(Sample::default().with("budget_bytes", bytes.floor()))
    }
}
