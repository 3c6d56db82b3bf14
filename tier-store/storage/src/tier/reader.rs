//! Reads columns of chunk files from a home by a [`BlockIo`], whatever kind of home it is.
//!
//! [`ChunkReader`] plans the ranges of a cold read, joins neighbours, shares what other readers read, and charges the I/O
//! account from the moment a read is queued until its columns leave the scan. The homes open the files and write them.
//!
//! - [`cold`]: the future of a cold read of several columns
//! - [`gap`]: the longest hole that a read includes, by device
//! - [`planned`]: groups the columns to read into requests
//! - [`purpose`]: what a read is for
//! - [`shared_read`]: one column on its way from the home, for all readers that wait for it

pub mod cold;
mod gap;
mod planned;
mod purpose;
mod shared_read;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use parking_lot::RwLock;
use terrace_model::clock::Clock;
use terrace_model::{Account, Error, Result};

pub use cold::{ColdColumns, ColdRead};
pub use gap::{ReadCost, ReadGap};
use planned::{PlannedColumn, group_bytes, group_neighbours};
pub use purpose::{Admission, ReadPurpose};
use shared_read::ColumnSource;
pub use shared_read::ReadColumn;
pub(crate) use shared_read::SharedRead;

use super::codec::{Part, PartOptions};
use super::home::HomeCounters;
use crate::io::{BLOCK_BYTES, BlockIo, Class, Intent, IoFile};
use crate::table::{Chunk, ChunkFile, Segment, SegmentHome};

/// Reads columns of the chunk files of one home.
#[derive(Debug)]
pub struct ChunkReader {
    io: Arc<dyn BlockIo>,
    clock: Arc<dyn Clock>,
    io_account: Arc<Account>,
    /// Locked while a file is replaced: two replacements of one file would share its temporary name.
    replacing: RwLock<()>,
    counters: Arc<HomeCounters>,
    gap: ReadGap,
}

impl ChunkReader {
    /// A reader through `io`. `io_account` bounds bytes being read and memory kept for the next reads.
    pub fn new(io: Arc<dyn BlockIo>, clock: Arc<dyn Clock>, io_account: Arc<Account>) -> Self {
        io.pool().share_budget(&io_account);
        Self::over(io, clock, io_account)
    }

    /// A reader through the same engine with an account and counters of its own, so that the reads of measurements are not
    /// counted or charged as reads of statements.
    pub fn for_measurements(&self, account: Arc<Account>) -> Self {
        Self::over(Arc::clone(&self.io), Arc::clone(&self.clock), account)
    }

    fn over(io: Arc<dyn BlockIo>, clock: Arc<dyn Clock>, io_account: Arc<Account>) -> Self {
        let replacing = RwLock::default();
        let counters = Arc::default();
        let gap = ReadGap::default();
        Self { io, clock, io_account, replacing, counters, gap }
    }

    /// The engine that reads files.
    #[inline]
    pub fn io(&self) -> &Arc<dyn BlockIo> {
        &self.io
    }

    /// The account of the bytes that are being read.
    #[inline]
    pub fn io_account(&self) -> &Arc<Account> {
        &self.io_account
    }

    /// The longest hole between two pieces of a file that one read includes.
    #[inline]
    pub fn read_gap(&self) -> &ReadGap {
        &self.gap
    }

    /// Counters of the home.
    #[inline]
    pub fn counters(&self) -> &HomeCounters {
        &self.counters
    }

    /// The file of a chunk; unless it is open already, `open` opens it.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn file(&self, chunk: &Chunk, open: impl FnOnce() -> Result<Arc<IoFile>>) -> Result<Arc<ChunkFile>> {
        if let Some(file) = chunk.file.load_full() {
            return Ok(file);
        }
        // Wait while the file is replaced, else the old one would be put back in use.
        let _guard = self.replacing.read();
        let opened = Arc::new(ChunkFile::new(open()?));
        // Marks of damage belong to the file that all readers share, so the first thread to open it wins.
        let before = chunk.file.compare_and_swap(&None::<Arc<ChunkFile>>, Some(Arc::clone(&opened)));
        Ok((*before).clone().unwrap_or(opened))
    }

    /// Calls `replace`, which puts another file in the place of the chunk's file. Later readers open that one.
    ///
    /// # Errors
    /// Those of `replace`; the old file then stays in use.
    pub fn replace(&self, chunk: &Chunk, replace: impl FnOnce() -> Result<()>) -> Result<()> {
        // One at a time, as all write beside the file.
        let _guard = self.replacing.write();
        replace()?;
        chunk.file.store(None);
        Ok(())
    }

    /// Starts to read columns of a chunk from its open file; see [`Home::read_rows`](super::Home::read_rows).
    ///
    /// # Errors
    /// The error of its first reader for a column that is known to be damaged.
    pub fn read_rows(
        &self,
        file: &Arc<ChunkFile>,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        wanted: Option<&[Range<usize>]>,
        purpose: ReadPurpose,
    ) -> Result<Option<ColdRead>> {
        let admission = purpose.admission;
        let known = file.running_reads.lock();
        let mut shared_reads = Vec::with_capacity(columns.len());
        let mut planned = Vec::with_capacity(columns.len());
        for (slot, column) in columns.iter().enumerate() {
            let read = known.get(&segment(chunk, *column)?.column).and_then(Weak::upgrade);
            // Upkeep shares a column that is decoded, but takes no part in decoding: it may run at low priority, and
            // statements would wait for its thread.
            let read = read.filter(|read| if admission.is_upkeep() { read.is_decoded() } else { !read.failed() });
            if read.is_none() {
                let (home, declared) = home_unless_damaged(file, chunk, *column)?;
                let part = wanted.and_then(|wanted| self.part(chunk, *column, home, declared, wanted));
                planned.push(PlannedColumn { slot, column: *column, home, part });
            }
            shared_reads.push(read);
        }
        // Upkeep gives the lock back before it submits, so that its low priority delays no statement.
        let mut known = (!admission.is_upkeep()).then_some(known);
        let planned = group_neighbours(planned, &self.gap);
        let intent = purpose.intent(planned.iter().map(|group| group_bytes(group)).sum(), wanted.is_some());
        let class = intent.class;
        // What others read ahead is needed now.
        if class <= Class::Needed {
            // Whole columns: none of them is a point, however few bytes this reader adds.
            let needed = Intent { class: Class::Needed, ..intent };
            shared_reads.iter().flatten().for_each(|read: &Arc<SharedRead>| read.raise(needed));
        }
        let mut bytes_read = 0;
        let mut charged_bytes = 0;
        let mut groups = Vec::new();
        for group in planned {
            let read = group_bytes(&group);
            let bytes = read + group.iter().map(PlannedColumn::image_bytes).sum::<u64>();
            let charge = match (self.io_account.try_charge(bytes), admission) {
                (Ok(charge), _) => charge,
                (Err(_), Admission::Prefetch) => return Ok(None),
                (Err(_), Admission::Upkeep) if self.io_account.used_bytes() > 0 => return Ok(None),
                (Err(_), _) => self.io_account.charge_always(bytes),
            };
            (bytes_read, charged_bytes) = (bytes_read + read, charged_bytes + bytes);
            groups.push((group, Arc::new(charge)));
        }
        let windows: Vec<Vec<(u64, usize)>> =
            groups.iter().map(|(group, _)| group.iter().flat_map(PlannedColumn::windows).collect()).collect();
        let requests = groups.iter().zip(&windows).flat_map(|((group, _), windows)| match group.as_slice() {
            // The ranges of a part are not adjacent: it submits a request for each.
            [PlannedColumn { part: Some(_), .. }] => windows.chunks(1),
            _ => windows.chunks(windows.len().max(1)),
        });
        let requests: Vec<&[(u64, usize)]> = requests.collect();
        let mut reads = self.io.read_all(intent, &file.io, &requests).into_iter();
        for (group, charge) in groups {
            for PlannedColumn { slot, column, part, .. } in group {
                let count = part.as_ref().map_or(1, |part| part.ranges().len());
                let is_whole = part.is_none();
                let source = ColumnSource { chunk: Arc::clone(chunk), file: Arc::clone(file), column };
                let reads = reads.by_ref().take(count).collect();
                let io = Arc::clone(&self.io);
                let read = SharedRead::new(source, part, reads, io, Arc::clone(&charge), Arc::clone(&self.counters));
                if let Some(known) = known.as_mut().filter(|_| is_whole) {
                    known.insert(segment(chunk, column)?.column, Arc::downgrade(&read));
                }
                if let Some(place) = shared_reads.get_mut(slot) {
                    *place = Some(read);
                }
            }
        }
        let shared_reads = shared_reads.into_iter().flatten().collect();
        let clock = Arc::clone(&self.clock);
        let counters = Arc::clone(&self.counters);
        Ok(Some(ColdRead::new(shared_reads, bytes_read, charged_bytes, clock, counters, class)))
    }

    /// Stored bytes of a column that [`Self::read_rows`] would read; no I/O. 0 when there is no such column.
    pub fn bytes_to_read(&self, chunk: &Chunk, column: usize, wanted: Option<&[Range<usize>]>) -> u64 {
        let Ok((home, declared)) = cold::home_and_type(chunk, column) else { return 0 };
        let part = wanted.and_then(|wanted| self.part(chunk, column, home, declared, wanted));
        part.map_or(home.len, |part| part.bytes() as u64)
    }

    fn part(
        &self,
        chunk: &Chunk,
        column: usize,
        home: &SegmentHome,
        declared: &DataType,
        wanted: &[Range<usize>],
    ) -> Option<Part> {
        let is_uneven = |segment: &Arc<Segment>| segment.is_uneven.load(Ordering::Relaxed);
        let guess = !chunk.segments.get(column).is_some_and(is_uneven);
        let options = PartOptions { gap: saturating_usize(self.gap.bytes()), guess };
        Part::for_rows(home, declared, chunk.rows as usize, wanted, options)
    }
}

/// Bytes of the blocks that enclose a range.
fn enclosing_bytes(offset: u64, len: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    if len == 0 { 0 } else { (offset + len).next_multiple_of(block) - (offset - offset % block) }
}

fn saturating_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Home and declared type of a column. For a column that is known to be damaged it fails with the error of its first reader.
fn home_unless_damaged<'a>(
    file: &ChunkFile,
    chunk: &'a Chunk,
    column: usize,
) -> Result<(&'a SegmentHome, &'a DataType)> {
    match file.damage(segment(chunk, column)?.column) {
        Some(damage) => Err(damage),
        None => cold::home_and_type(chunk, column),
    }
}

fn segment(chunk: &Chunk, column: usize) -> Result<&Segment> {
    chunk.segments.get(column).map(Arc::as_ref).ok_or_else(|| no_column(chunk, column))
}

fn no_column(chunk: &Chunk, column: usize) -> Error {
    Error::Invalid(format!("chunk {} of table {} has no column {column}", chunk.id.0, chunk.table.0))
}
