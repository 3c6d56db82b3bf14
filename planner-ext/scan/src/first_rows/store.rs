//! The rows of candidates: parts of batches, of which rows are given up one by one.

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{interleave_record_batch, take_record_batch};
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::common::{Result, internal_datafusion_err};

use crate::compact;

/// Rows of a part that is made anew.
const PART_ROWS: usize = 8192;
/// So many rows that nobody needs may be held beside as many as are needed.
const SPARE_ROWS: usize = 65_536;
/// So many parts may be added before all are made anew.
const SPARE_PARTS: usize = 4096;

/// Where a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    part: u32,
    row: u32,
}

/// Rows of one batch.
struct Part {
    rows: RecordBatch,
    /// Rows that are needed.
    needed: usize,
    bytes: usize,
}

/// The rows.
#[derive(Default)]
pub(super) struct Store {
    /// `None` for parts of which no row is needed any more.
    parts: Vec<Option<Part>>,
    /// Rows of all parts.
    held: usize,
    needed: usize,
    bytes: usize,
    /// Parts after they were made anew.
    dense_parts: usize,
}

impl Store {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.parts.capacity() * size_of::<Option<Part>>()
    }

    /// Rows that are needed.
    pub(super) fn needed(&self) -> usize {
        self.needed
    }

    /// The place of the row that will be number `row` of the next part.
    pub(super) fn next_place(&self, row: usize) -> Place {
        Place { part: self.parts.len() as u32, row: row as u32 }
    }

    /// Whether a row is in the next part.
    pub(super) fn is_next(&self, place: Place) -> bool {
        place.part as usize == self.parts.len()
    }

    /// Adds these rows of a batch as the next part. `given_up` of them are not needed any more.
    pub(super) fn push(&mut self, batch: &RecordBatch, rows: Vec<u32>, given_up: usize) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let needed = rows.len() - given_up;
        let rows = match rows.len() == batch.num_rows() {
            true => batch.clone(),
            false => take_record_batch(batch, &UInt32Array::from(rows))?,
        };
        self.add(compact(rows)?, needed);
        Ok(())
    }

    fn add(&mut self, rows: RecordBatch, needed: usize) {
        let bytes = get_record_batch_memory_size(&rows);
        self.held += rows.num_rows();
        self.needed += needed;
        self.bytes += bytes;
        self.parts.push(Some(Part { rows, needed, bytes }));
    }

    /// Gives up a row of an earlier part.
    pub(super) fn give_up(&mut self, place: Place) {
        let Some(slot) = self.parts.get_mut(place.part as usize) else { return };
        let Some(part) = slot else { return };
        part.needed -= 1;
        self.needed -= 1;
        if part.needed == 0 {
            self.held -= part.rows.num_rows();
            self.bytes -= part.bytes;
            *slot = None;
        }
    }

    /// Whether it holds many rows that nobody needs, or many small parts.
    pub(super) fn is_sparse(&self) -> bool {
        self.held > 2 * self.needed + SPARE_ROWS || self.parts.len() > self.dense_parts + SPARE_PARTS
    }

    /// Copies the rows at all `places` that are needed, and changes the places to where the rows are then.
    pub(super) fn make_dense(&mut self, places: &mut [&mut Place]) -> Result<()> {
        let mut dense = Self::default();
        places.sort_unstable();
        for places in places.chunks_mut(PART_ROWS) {
            let old: Vec<Place> = places.iter().map(|place| **place).collect();
            for (row, place) in places.iter_mut().enumerate() {
                **place = dense.next_place(row);
            }
            dense.add(self.copied(&old)?, old.len());
        }
        dense.dense_parts = dense.parts.len();
        *self = dense;
        Ok(())
    }

    /// The rows at some places, which are in order, in buffers of their own; at least one.
    pub(super) fn copied(&self, places: &[Place]) -> Result<RecordBatch> {
        let mut sources: Vec<&RecordBatch> = Vec::new();
        let mut last = None;
        let mut rows = Vec::with_capacity(places.len());
        for place in places {
            if last != Some(place.part) {
                let part = self.parts.get(place.part as usize).and_then(Option::as_ref);
                let part = part.ok_or_else(|| internal_datafusion_err!("a row of part {} is gone", place.part))?;
                sources.push(&part.rows);
                last = Some(place.part);
            }
            rows.push((sources.len() - 1, place.row as usize));
        }
        compact(interleave_record_batch(&sources, &rows)?)
    }
}
