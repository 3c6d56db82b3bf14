//! Samples of columns, for planners that want to know how many rows a predicate keeps.
//!
//! A few rows of every n-th chunk, copied when a planner first asks while the segment is resident and kept from then
//! on: estimates, and with them plans, stay the same when the segment moves to a slower tier. At most
//! [`SAMPLED_CHUNKS`] times [`SAMPLE_ROWS`] rows of a column are held.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use parking_lot::Mutex;

use super::{Chunk, ChunkId, TableVersion};
use crate::tier::codec;

/// Most chunks of a table that are sampled.
const SAMPLED_CHUNKS: usize = 16;
/// Rows of a sample; from the middle of the chunk.
pub const SAMPLE_ROWS: usize = 1024;

/// The samples of a table.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<HashMap<(ChunkId, usize), ArrayRef>>);

impl Samples {
    /// The sample of a segment; `None` when it was never resident when asked for.
    pub(crate) fn get(&self, chunk: &Chunk, column: usize) -> Option<ArrayRef> {
        if let Some(sample) = self.0.lock().get(&(chunk.id, column)) {
            return Some(sample.clone());
        }
        let resident = chunk.segments.get(column)?.resident.load_full()?;
        let rows = SAMPLE_ROWS.min(resident.array.len());
        let middle = resident.array.slice((resident.array.len() - rows) / 2, rows);
        let schema = Schema::new(vec![Field::new("sample", middle.data_type().clone(), true)]);
        let copied = RecordBatch::try_new(schema.into(), vec![middle]).and_then(|b| b.project(&[0])).ok()?;
        let sample = codec::normalize(&copied).ok()?.columns().first()?.clone();
        self.0.lock().insert((chunk.id, column), sample.clone());
        Some(sample)
    }
}

impl TableVersion {
    /// Positions of the chunks that are sampled, evenly spread.
    pub fn sampled_chunks(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.chunks.len()).step_by(self.chunks.len().div_ceil(SAMPLED_CHUNKS).max(1))
    }
}
