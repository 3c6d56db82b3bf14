//! The access counters of all segments.

use super::Terrace;
use crate::row::Sample;

impl Terrace {
    /// For each segment the counts "accesses/TABLE/COLUMN/POSITION OF ITS CHUNK" and "bytes/.." with the same path.
    pub(super) fn heat(&self) -> Sample {
        let mut sample = Sample::default();
        for table in self.engine.store().tables() {
            let version = table.version();
            for (position, entry) in version.chunks.iter().enumerate() {
                for (field, segment) in entry.chunk.schema.fields().iter().zip(&entry.chunk.segments) {
                    let name = format!("{}/{}/{position}", table.name().name, field.name());
                    let accesses: u64 = segment.counters.snapshot().accesses.iter().sum();
                    sample = sample
                        .with(&format!("accesses/{name}"), accesses as f64)
                        .with(&format!("bytes/{name}"), segment.bytes() as f64);
                }
            }
        }
        sample
    }
}
