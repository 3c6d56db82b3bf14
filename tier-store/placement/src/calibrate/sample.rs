//! The sample file for measurements: a chunk file as the store writes it, with columns of several widths.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch};
use terrace_model::{ChunkId, ColumnId, Error, Result, TableId};
use terrace_storage::io::IoFile;
use terrace_storage::table::{Chunk, Segment, WrittenFile};
use terrace_storage::tier::MeasuredHome;
use terrace_storage::tier::codec::encode_chunk;
use terrace_storage::tier::stored_file::SAMPLE_NAME;

use super::random;

/// Number of columns of each width: enough to read as many at once without reading one twice.
const COLUMNS: [usize; Sample::WIDTHS] = [8, 8, 4, 8];

/// A file that is deleted on drop.
pub(super) struct Scratch {
    path: PathBuf,
    home: Arc<dyn MeasuredHome>,
}

impl Scratch {
    pub(super) fn create(home: &Arc<dyn MeasuredHome>, bytes: &[u8]) -> Result<Self> {
        let path = home.write_sample(SAMPLE_NAME, bytes)?;
        Ok(Self { path, home: Arc::clone(home) })
    }

    /// Opens the file.
    pub(super) fn open(&self) -> Result<Arc<IoFile>> {
        self.home.open(&self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file that cannot be deleted is removed at the next start.
        let _ = self.home.remove(&self.path);
    }
}

/// The sample file, and chunks to read it by.
pub(super) struct Sample {
    pub(super) file: Scratch,
    /// Several chunks over the same file, each with its own open file: reads of one column of one chunk at the same time
    /// would be shared.
    copies: Vec<Arc<Chunk>>,
}

impl Sample {
    /// Rows of the chunk.
    pub(super) const ROWS: usize = 65_536;
    /// Number of widths: values of 1, 2, 4 and 8 bytes.
    pub(super) const WIDTHS: usize = 4;
    /// Number of chunks that can be read at once.
    pub(super) const COPIES: usize = 16;

    /// Writes the file.
    pub(super) fn create(home: &Arc<dyn MeasuredHome>) -> Result<Self> {
        let mut next = random();
        // Random values of the full range: no encoding stores them in fewer bytes.
        let mut column = |width: usize| -> ArrayRef {
            match width {
                0 => Arc::new(Int8Array::from_iter_values((0..Self::ROWS).map(|_| next() as i8))),
                1 => Arc::new(Int16Array::from_iter_values((0..Self::ROWS).map(|_| next() as i16))),
                2 => Arc::new(Int32Array::from_iter_values((0..Self::ROWS).map(|_| next() as i32))),
                _ => Arc::new(Int64Array::from_iter_values((0..Self::ROWS).map(|_| (next() ^ (next() << 31)) as i64))),
            }
        };
        let widths = COLUMNS.into_iter().enumerate().flat_map(|(width, count)| std::iter::repeat_n(width, count));
        let columns = widths.enumerate().map(|(place, width)| (format!("c{place}"), column(width)));
        let batch = RecordBatch::try_from_iter(columns).map_err(|error| Error::Invalid(error.to_string()))?;
        let encoded = encode_chunk(&batch)?;
        let mut sample = Self { file: Scratch::create(home, &encoded.bytes)?, copies: Vec::new() };
        for _ in 0..Self::COPIES {
            let segments = Segment::of_file((0..).map(ColumnId), encoded.homes.clone());
            let rows = Self::ROWS as u32;
            let bytes = encoded.bytes.len() as u64;
            let file = WrittenFile { path: sample.file.path.clone(), bytes, segments };
            let chunk = Chunk::new(TableId(0), ChunkId(0), rows, batch.schema(), file);
            sample.copies.push(Arc::new(chunk));
        }
        Ok(sample)
    }

    /// One of the chunks.
    pub(super) fn copy(&self, number: usize) -> Result<&Arc<Chunk>> {
        self.copies.get(number % Self::COPIES).ok_or(Error::Cancelled)
    }

    /// One of the columns of a width.
    pub(super) fn column(&self, width: usize, number: usize) -> usize {
        let before: usize = COLUMNS.iter().take(width).sum();
        before + number % COLUMNS.get(width).copied().unwrap_or(1)
    }

    /// Stored bytes of a column of a width.
    pub(super) fn column_bytes(&self, width: usize) -> u64 {
        let chunk = self.copies.first();
        chunk.and_then(|chunk| chunk.segments.get(self.column(width, 0))).map_or(0, |segment| segment.home.len)
    }
}
