//! Samples of columns, from which planners estimate the selectivity of predicates.
//!
//! A sample has a few rows of every n-th chunk. They are copied when a planner first needs them while the segment is
//! resident, or when a scan first reads the segment from disk, and kept from then on, so that estimates, and with them
//! plans, do not depend on the placement. A column has at most [`SAMPLED_CHUNKS`] times [`SAMPLE_ROWS`] sampled rows.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use parking_lot::Mutex;
use terrace_model::{ChunkId, ColumnId, Error, Result};

use super::{Chunk, TableVersion};
use crate::catalog::records::{decode_batches, encode_batches};
use crate::tier::codec::{self, StoredColumn};

/// Maximum number of sampled chunks of a table.
const SAMPLED_CHUNKS: usize = 16;
/// Rows of a sample, taken from the middle of the chunk.
pub const SAMPLE_ROWS: usize = 1024;

/// The samples of a table.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<HashMap<(ChunkId, ColumnId), ArrayRef>>);

impl Samples {
    /// The sample of a segment; `None` when there is none and the segment is not resident.
    pub(crate) fn get(&self, chunk: &Chunk, column: usize) -> Option<ArrayRef> {
        let segment = chunk.segments.get(column)?;
        if let Some(constant) = &segment.constant {
            return constant.array(SAMPLE_ROWS.min(chunk.rows as usize)).ok();
        }
        if let Some(sample) = self.0.lock().get(&(chunk.id, segment.column)) {
            return Some(sample.clone());
        }
        let resident = segment.resident.load_full()?;
        self.take(chunk.id, segment.column, &resident.column)
    }

    /// Takes the sample of a segment from its values unless there is one already.
    pub(crate) fn offer(&self, chunk: &Chunk, column: usize, values: &StoredColumn) {
        let Some(segment) = chunk.segments.get(column) else { return };
        let known = self.0.lock().contains_key(&(chunk.id, segment.column));
        if !known {
            self.take(chunk.id, segment.column, values);
        }
    }

    /// Removes the samples of a dropped chunk.
    pub(crate) fn forget(&self, chunk: ChunkId) {
        self.0.lock().retain(|(known, _), _| *known != chunk);
    }

    fn take(&self, chunk: ChunkId, column: ColumnId, values: &StoredColumn) -> Option<ArrayRef> {
        let rows = SAMPLE_ROWS.min(values.rows());
        let sample = deep_copy(values.slice((values.rows() - rows) / 2, rows).ok()?).ok()?;
        self.0.lock().insert((chunk, column), sample.clone());
        Some(sample)
    }
}

/// Copies an array without sharing its buffers: a sample must not keep the charge of the tier it was taken from.
fn deep_copy(array: ArrayRef) -> Result<ArrayRef> {
    let schema = Arc::new(Schema::new(vec![Field::new("sample", array.data_type().clone(), true)]));
    let compact = codec::normalize(&RecordBatch::try_new(Arc::clone(&schema), vec![array])?)?;
    let (_, batches) = decode_batches(&encode_batches(&schema, &[compact])?)?;
    let column = batches.first().map(|batch| Arc::clone(batch.column(0)));
    column.ok_or_else(|| Error::Invalid("a sample has no rows".into()))
}

impl TableVersion {
    /// Positions of the sampled chunks, evenly spread.
    pub fn sampled_chunks(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.chunks.len()).step_by(self.sample_step())
    }

    /// True when the chunk at this position is sampled.
    pub fn is_sampled(&self, position: usize) -> bool {
        position.is_multiple_of(self.sample_step())
    }

    fn sample_step(&self) -> usize {
        self.chunks.len().div_ceil(SAMPLED_CHUNKS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use terrace_model::{Account, TierId};

    use super::*;
    use crate::tier::MemoryTier;
    use crate::tier::dram::DramTier;
    use arrow::array::Int64Array;

    #[test]
    fn a_sample_does_not_hold_the_tier_it_was_taken_from() {
        let account = Account::new("dram", 1 << 20);
        let bytes = DramTier::new(TierId(0), Arc::clone(&account)).store(&[7; 800]).unwrap();
        let array: ArrayRef = Arc::new(Int64Array::new(bytes.buffer.clone().into(), None));
        let sample = deep_copy(Arc::clone(&array)).unwrap();
        assert_eq!(&sample, &array);
        drop((array, bytes));
        assert_eq!(account.used_bytes(), 0);
    }
}
