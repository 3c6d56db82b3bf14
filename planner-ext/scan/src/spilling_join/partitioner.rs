//! Splits the rows of one side of a join into spill files by a hash of their keys.
//!
//! The hash is DataFusion's `create_hashes`, with which its join looks up rows too: rows that the join matches have equal
//! hashes for every seed (it makes -0.0 and 0.0 equal, and so does the join's comparison). Where NULL equals nothing, a row
//! with a NULL key matches no row, so such rows are spread evenly over the files.
//!
//! Rows are collected until they make a batch of good size for each file. The memory for that is reserved; when it is
//! refused, the rows at hand are written as smaller batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::common::{NullEquality, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr_common::utils::evaluate_expressions_to_arrays;
use datafusion::physical_plan::SpillManager;
use futures::StreamExt;

use super::Limits;
use super::writer::{FileWriter, RowFile, with_schema};
use crate::compact::{compact, rows_bytes};

/// Seed of the first split; each further split adds one. Neither the seed of exchanges nor that of DataFusion's join.
const SEED: u64 = 0x7e44_ace5_9111_0001;

/// The rows that wait to be written have at most this share of query memory in each partition, and their copies as much:
/// other operators of the statement need some too, and cannot take it from this one.
const BUFFER_SHARE: usize = 32;

/// Rows of so many bytes may always wait: writes would be small beside what they cost.
const LEAST_BUFFER_BYTES: usize = 64 << 10;

/// The rows of one side in files.
#[derive(Clone, Default)]
pub(super) struct Partitions {
    pub(super) files: Vec<RowFile>,
    /// Rows in all, also those that were not written.
    pub(super) rows: usize,
    /// Rows with a NULL key, where NULL equals nothing.
    pub(super) null_rows: usize,
}

impl Partitions {
    /// Whether a file of so many rows has nearly all, so that another split would not help.
    pub(super) fn is_skewed(&self, rows: usize) -> bool {
        rows > self.rows.saturating_sub(rows).saturating_mul(7)
    }
}

/// How a side is split.
#[derive(Clone)]
pub(super) struct Split {
    pub(super) keys: Vec<PhysicalExprRef>,
    pub(super) null_equality: NullEquality,
    /// How often the rows were split before.
    pub(super) depth: usize,
    pub(super) limits: Limits,
}

/// Splits rows into files.
pub(super) struct Partitioner {
    split: Split,
    random_state: RandomState,
    writers: Vec<FileWriter>,
    /// Files whose rows are counted but not written.
    skipped: Vec<bool>,
    schema: SchemaRef,
    batch_rows: usize,
    /// Rows that are not written yet.
    buffered: Vec<RecordBatch>,
    buffered_rows: usize,
    buffered_bytes: usize,
    reservation: MemoryReservation,
    rows: usize,
    null_rows: usize,
}

impl Partitioner {
    pub(super) fn new(mut split: Split, manager: SpillManager, context: &TaskContext) -> Self {
        let consumer = MemoryConsumer::new("HashJoinSpill").with_can_spill(true);
        let files = split.limits.files.max(2);
        if let MemoryLimit::Finite(limit) = context.memory_pool().memory_limit() {
            split.limits.buffer_bytes = split.limits.buffer_bytes.min((limit / BUFFER_SHARE).max(LEAST_BUFFER_BYTES));
        }
        Self {
            random_state: RandomState::with_seed(SEED.wrapping_add(split.depth as u64)),
            split,
            writers: std::iter::repeat_with(|| FileWriter::new(manager.clone())).take(files).collect(),
            skipped: vec![false; files],
            schema: Arc::clone(manager.schema()),
            batch_rows: context.session_config().batch_size().max(1),
            buffered: Vec::new(),
            buffered_rows: 0,
            buffered_bytes: 0,
            reservation: consumer.register(context.memory_pool()),
            rows: 0,
            null_rows: 0,
        }
    }

    /// Does not write rows whose number of file is that of an empty file of `build`.
    pub(super) fn skip_empty(&mut self, build: &Partitions) {
        self.skipped = build.files.iter().map(|build| build.file.is_none()).collect();
    }

    /// Writes batches whose memory is reserved elsewhere. Yields between writes.
    pub(super) async fn write_all(&mut self, batches: Vec<RecordBatch>) -> Result<()> {
        for batch in batches {
            self.buffer(batch)?;
            if self.is_full() {
                self.write_buffered()?;
                tokio::task::yield_now().await;
            }
        }
        self.write_buffered()
    }

    /// Writes all rows of a stream.
    pub(super) async fn write_stream(&mut self, mut rows: SendableRecordBatchStream) -> Result<()> {
        while let Some(batch) = rows.next().await {
            self.push(batch?)?;
        }
        Ok(())
    }

    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        // A slice of large buffers would keep them, and be counted as large as they are.
        let batch = compact(batch)?;
        // The batch, and the copy of its rows that is written.
        let bytes = get_record_batch_memory_size(&batch).saturating_mul(2);
        if self.reservation.try_grow(bytes).is_err() {
            self.write_buffered()?;
            self.reservation.grow(bytes);
        }
        self.buffer(batch)?;
        if self.is_full() {
            self.write_buffered()?;
        }
        Ok(())
    }

    /// Writes what is buffered and ends the files.
    pub(super) fn finish(mut self) -> Result<Partitions> {
        self.write_buffered()?;
        let files = self.writers.into_iter().map(FileWriter::finish).collect::<Result<_>>()?;
        Ok(Partitions { files, rows: self.rows, null_rows: self.null_rows })
    }

    fn buffer(&mut self, batch: RecordBatch) -> Result<()> {
        let batch = with_schema(batch, &self.schema)?;
        self.buffered_rows += batch.num_rows();
        self.buffered_bytes += rows_bytes(&batch);
        self.buffered.push(batch);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.buffered_bytes >= self.split.limits.buffer_bytes
            || self.buffered_rows >= self.batch_rows.saturating_mul(self.writers.len())
    }

    fn write_buffered(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.buffered);
        let mut places = vec![Vec::new(); self.writers.len()];
        for (number, batch) in batches.iter().enumerate() {
            self.place_rows(number, batch, &mut places)?;
        }
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        let files = self.writers.iter_mut().zip(places).zip(&self.skipped);
        for ((writer, places), _) in files.filter(|(_, skipped)| !**skipped) {
            for places in places.chunks(self.batch_rows) {
                writer.write(&interleave_record_batch(&batches, places)?)?;
            }
        }
        self.buffered_rows = 0;
        self.buffered_bytes = 0;
        self.reservation.free();
        Ok(())
    }

    /// Adds the rows of a batch to the places of the files that they belong to.
    fn place_rows(&mut self, number: usize, batch: &RecordBatch, places: &mut [Vec<(usize, usize)>]) -> Result<()> {
        let keys = evaluate_expressions_to_arrays(&self.split.keys, batch)?;
        let mut hashes = vec![0; batch.num_rows()];
        create_hashes(&keys, &self.random_state, &mut hashes)?;
        let nulls = match self.split.null_equality {
            NullEquality::NullEqualsNothing => null_keys(&keys),
            NullEquality::NullEqualsNull => None,
        };
        for (row, hash) in hashes.into_iter().enumerate() {
            let spread = if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                self.null_rows += 1;
                self.null_rows as u64
            } else {
                hash
            };
            // Less than the number of files, so it fits.
            let file = (spread % places.len().max(1) as u64) as usize;
            let places =
                places.get_mut(file).ok_or_else(|| internal_datafusion_err!("a join has no spill file {file}"))?;
            places.push((number, row));
        }
        self.rows += batch.num_rows();
        Ok(())
    }
}

/// The rows whose key has a NULL in any column.
pub(super) fn null_keys(keys: &[ArrayRef]) -> Option<NullBuffer> {
    keys.iter().fold(None, |nulls, key| NullBuffer::union(nulls.as_ref(), key.logical_nulls().as_ref()))
}
