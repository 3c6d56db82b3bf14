//! Collects the rows of a build side while their memory can be reserved.
//!
//! Reserved is what DataFusion's join holds at its peak: the batches, their concatenation (made while the batches live),
//! the hash table (joins/hash_join/exec.rs `collect_left_input`) with its chains, and the bitmap of matched rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::utils::memory::{RecordBatchMemoryCounter, estimate_memory_size};
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use super::Limits;
use super::memory::BuildMemory;
use crate::compact::{compact, rows_bytes};

/// Bytes per row beside the hash table: the chain of rows of equal hash, and the bit of the bitmap, rounded up.
const CHAIN_BYTES: usize = size_of::<u32>() + 1;

/// Size of an empty hash table.
const EMPTY_TABLE_BYTES: usize = 64;

/// The rows of a build side that are in memory.
#[derive(Debug)]
pub(super) struct BuildRows {
    batches: Vec<RecordBatch>,
    rows: usize,
    /// Counts each buffer of the batches once.
    buffers: RecordBatchMemoryCounter,
    /// Bytes of the concatenation of the batches.
    concatenated_bytes: usize,
    /// Whether batches are copied so that they hold the bytes of their rows only.
    compacting: bool,
    memory: Arc<BuildMemory>,
    small_build_bytes: usize,
}

impl BuildRows {
    pub(super) fn new(memory: Arc<BuildMemory>, limits: Limits) -> Self {
        Self {
            batches: Vec::new(),
            rows: 0,
            buffers: RecordBatchMemoryCounter::new(),
            concatenated_bytes: 0,
            compacting: false,
            memory,
            small_build_bytes: limits.small_build_bytes,
        }
    }

    /// Takes batches up to the end of `input`, or up to the first that does not fit, which is returned.
    pub(super) async fn fill(&mut self, input: &mut SendableRecordBatchStream) -> Result<Option<RecordBatch>> {
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if batch.num_rows() > 0
                && let Some(refused) = self.push(batch)?
            {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Takes a batch, or returns it when there is no memory for it.
    fn push(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>> {
        let batch = if self.compacting { compact(batch)? } else { batch };
        if self.try_take(&batch)? {
            return Ok(None);
        }
        if self.compacting || !self.holds_unused_bytes(&batch) {
            return Ok(Some(batch));
        }
        self.compact()?;
        let batch = compact(batch)?;
        Ok(if self.try_take(&batch)? { None } else { Some(batch) })
    }

    /// Takes a batch whether or not there is memory for it: a join that has no rows makes no progress.
    pub(super) fn push_always(&mut self, batch: RecordBatch) -> Result<()> {
        self.take(batch);
        self.memory.resize(self.needed_bytes()?);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn memory(&self) -> &Arc<BuildMemory> {
        &self.memory
    }

    /// Returns the batches; their memory stays reserved.
    pub(super) fn into_batches(self) -> Vec<RecordBatch> {
        self.batches
    }

    fn take(&mut self, batch: RecordBatch) {
        self.buffers.count_batch(&batch);
        self.concatenated_bytes += batch.columns().iter().map(concatenated_bytes).sum::<usize>();
        self.rows += batch.num_rows();
        self.batches.push(batch);
    }

    fn try_take(&mut self, batch: &RecordBatch) -> Result<bool> {
        self.take(batch.clone());
        let needed = self.needed_bytes()?;
        if needed <= self.small_build_bytes {
            self.memory.resize(needed);
            return Ok(true);
        }
        if self.memory.try_resize(needed).is_ok() {
            return Ok(true);
        }
        self.batches.pop();
        self.recount();
        Ok(false)
    }

    fn recount(&mut self) {
        let batches = std::mem::take(&mut self.batches);
        self.buffers = RecordBatchMemoryCounter::new();
        self.concatenated_bytes = 0;
        self.rows = 0;
        batches.into_iter().for_each(|batch| self.take(batch));
    }

    fn needed_bytes(&self) -> Result<usize> {
        let table = estimate_memory_size::<(u32, u64)>(self.rows, EMPTY_TABLE_BYTES)?;
        Ok(self.buffers.memory_usage() + self.concatenated_bytes + table + self.rows * CHAIN_BYTES)
    }

    /// Whether the batches and `next` keep buffers of which less than half belongs to their rows.
    fn holds_unused_bytes(&self, next: &RecordBatch) -> bool {
        let batches = || self.batches.iter().chain([next]);
        let mut buffers = RecordBatchMemoryCounter::new();
        batches().for_each(|batch| {
            buffers.count_batch(batch);
        });
        let used: usize = batches().map(rows_bytes).sum();
        buffers.memory_usage() / 2 > used
    }

    fn compact(&mut self) -> Result<()> {
        self.compacting = true;
        for batch in &mut self.batches {
            *batch = compact(batch.clone())?;
        }
        self.recount();
        // Less than before, and reserved already.
        self.memory.resize(self.needed_bytes()?);
        Ok(())
    }
}

/// Bytes that an array adds to a concatenation of its column. The texts of views are not copied.
fn concatenated_bytes(array: &ArrayRef) -> usize {
    let data = array.to_data();
    let width = match array.data_type() {
        // Batches from spill files have dictionaries of their own, and the values are copied with the keys.
        DataType::Dictionary(keys, _) => {
            let values = array.as_any_dictionary().values().get_array_memory_size();
            return array.len() * keys.primitive_width().unwrap_or(size_of::<u64>()) + values;
        }
        DataType::Utf8View | DataType::BinaryView => Some(size_of::<u128>()),
        _ => None,
    };
    width.map_or_else(
        || data.get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
        |width| array.len() * width + array.nulls().map_or(0, |_| array.len().div_ceil(8)),
    )
}
