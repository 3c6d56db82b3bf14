//! The SSD tier: the home of every sealed chunk, one file each, read with direct I/O.
//!
//! ```text
//!   <dir>/t<table>/c<chunk>.arrow        the file, an Arrow IPC file
//!   <dir>/t<table>/c<chunk>.packed       the file, where it holds packed columns
//!   <dir>/t<table>/c<chunk>.arrow.tmp    being written; swept at start
//! ```
//!
//! A file appears under its name only when it is complete and on disk (write, fsync, rename, fsync the folder). Cold reads
//! are charged to the I/O account from the moment they are queued until their columns leave the scan.
//!
//! - [`cold`]: the future of a cold read of several columns
//! - [`files`]: writes and lists the files of the tier
//! - [`gap`]: the longest hole that a read includes, by device
//! - [`planned`]: groups the columns to read into requests
//! - [`shared_read`]: one column on its way from disk, for all readers that wait for it

pub mod cold;
pub mod files;
mod gap;
mod planned;
mod shared_read;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use parking_lot::{Mutex, RwLock};
use terrace_model::clock::Clock;
use terrace_model::{Account, Charge, ChunkId, Error, FileFormat, Result, TableId};

pub use cold::{ColdColumns, ColdRead};
pub use files::StoredFile;
pub use gap::{ReadCost, ReadGap};
use planned::{PlannedColumn, group_bytes, group_neighbours};
use shared_read::ColumnSource;
pub use shared_read::ReadColumn;
pub(crate) use shared_read::SharedRead;

use super::codec::{self, Part, PartOptions};
use super::home::{Home, HomeCounters, HomeTier};
use crate::io::device::describe_device;
use crate::io::files::create_folders;
use crate::io::{AlignedBuffer, BLOCK_BYTES, BlockIo, Class, FileSystem, Intent, IoFile, Level, StatementId};
use crate::table::{Chunk, ChunkFile, Segment, SegmentHome};

/// Says whether a cold read may be refused when the I/O account is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// A read ahead of use: admitted only with room in the account.
    Prefetch,
    /// A read that is needed now, with nothing else under way: always admitted.
    Guaranteed,
    /// A read for a move: always admitted, but never shared with statements, which would have to wait for it.
    Move,
    /// A read for other upkeep: admitted with room in the account, or when nothing else is in it; never shared with
    /// statements.
    Upkeep,
}

/// The home in a folder: a [`Home`].
#[derive(Debug)]
pub struct SsdTier {
    dir: PathBuf,
    /// Description of the device under the folder.
    device: String,
    files: Arc<dyn FileSystem>,
    io: Arc<dyn BlockIo>,
    clock: Arc<dyn Clock>,
    io_account: Arc<Account>,
    stored: Arc<Account>,
    /// The charge to `stored` of each file, kept while the file exists.
    charges: Mutex<HashMap<PathBuf, Charge>>,
    /// The tables' folders whose names are durable, and how many writers of files keep each.
    folders: Mutex<HashMap<PathBuf, usize>>,
    /// Locked while a file is replaced: two replacements of one file would share its temporary name.
    replacing: RwLock<()>,
    counters: Arc<HomeCounters>,
    gap: ReadGap,
}

/// What a read of the home is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPurpose {
    /// Whether it may be refused.
    pub admission: Admission,
    /// The statement that reads.
    pub statement: StatementId,
    /// The level of the operator that reads, if it reads at random.
    pub level: Level,
    /// Whether the scan has asked for little so far: its small reads are then of [`Class::Point`].
    pub is_short: bool,
}

impl From<Admission> for ReadPurpose {
    /// A read that belongs to no statement.
    fn from(admission: Admission) -> Self {
        Self { admission, statement: StatementId::NONE, level: Level::NONE, is_short: false }
    }
}

impl ReadPurpose {
    /// The intent of a read of so many bytes, for all rows of its columns or for some of them. One for all rows is sequential
    /// unless it is a point, so it has no level.
    fn intent(self, bytes: u64, is_part: bool) -> Intent {
        let class = self.class(bytes, is_part);
        let level = if is_part || class == Class::Point { self.level } else { Level::NONE };
        Intent { class, statement: self.statement, level }
    }

    /// The class of a read of so many bytes, for all rows of its columns or some.
    fn class(self, bytes: u64, is_part: bool) -> Class {
        match self.admission {
            Admission::Move | Admission::Upkeep => Class::Upkeep,
            // Columns that others read are no point, however few bytes this reader adds.
            _ if self.is_short && bytes == 0 => Class::Needed,
            _ if self.is_short && bytes <= Class::POINT_BYTES => Class::Point,
            // A statement reads some rows of a column when others have passed its filter: it needs them now.
            Admission::Guaranteed => Class::Needed,
            Admission::Prefetch if is_part => Class::Needed,
            Admission::Prefetch => Class::Prefetch,
        }
    }
}

impl Admission {
    /// True when no statement waits for the read.
    fn is_upkeep(self) -> bool {
        matches!(self, Self::Move | Self::Upkeep)
    }
}

impl SsdTier {
    /// A tier in `dir` (created when missing). `io_account` bounds bytes being read and
    /// memory kept for the next reads, `stored` the bytes of all files.
    pub fn new(
        dir: impl Into<PathBuf>,
        files: Arc<dyn FileSystem>,
        io: Arc<dyn BlockIo>,
        clock: Arc<dyn Clock>,
        io_account: Arc<Account>,
        stored: Arc<Account>,
    ) -> Result<Self> {
        let dir = dir.into();
        create_folders(files.as_ref(), &dir)?;
        let charges = Mutex::default();
        let replacing = RwLock::default();
        let counters = Arc::default();
        let folders = Mutex::default();
        let gap = ReadGap::default();
        io.pool().share_budget(&io_account);
        let device = describe_device(&dir);
        Ok(Self { dir, device, files, io, clock, io_account, stored, charges, folders, replacing, counters, gap })
    }

    /// A tier over the same device with separate accounts and counters, so that the reads of measurements are not
    /// counted or charged as reads of statements.
    pub fn for_measurements(&self) -> Self {
        let files = Arc::clone(&self.files);
        let io = Arc::clone(&self.io);
        let clock = Arc::clone(&self.clock);
        let account = Account::new("measurements", u64::MAX);
        Self {
            dir: self.dir.clone(),
            device: self.device.clone(),
            files,
            io,
            clock,
            io_account: Arc::clone(&account),
            stored: account,
            charges: Mutex::default(),
            folders: Mutex::default(),
            replacing: RwLock::default(),
            counters: Arc::default(),
            gap: ReadGap::default(),
        }
    }

    /// The folder of the tier.
    #[inline]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The layer that writes files.
    #[inline]
    pub fn files(&self) -> &Arc<dyn FileSystem> {
        &self.files
    }

    /// The engine that reads files.
    #[inline]
    pub fn io(&self) -> &Arc<dyn BlockIo> {
        &self.io
    }

    /// The path of a chunk's file.
    fn file_name(&self, table: TableId, chunk: ChunkId, format: FileFormat) -> PathBuf {
        self.dir.join(format!("t{}", table.0)).join(format!("c{}.{format}", chunk.0))
    }

    /// Makes a table's folder unless it exists with a durable name, and keeps it from being deleted.
    fn keep_folder(&self, folder: &Path) -> Result<KeptFolder<'_>> {
        let mut known = self.folders.lock();
        if !(known.contains_key(folder) && self.files.is_folder(folder)) {
            self.files.create_folder(folder)?;
            self.files.sync_folder(&self.dir)?;
        }
        *known.entry(folder.to_owned()).or_default() += 1;
        Ok(KeptFolder { folders: &self.folders, folder: folder.to_owned() })
    }

    /// Writes a file; its bytes are durable on return.
    fn write(&self, path: &Path, intent: Intent, file: &AlignedBuffer) -> Result<()> {
        self.files.write_through(self.io.as_ref(), intent, path, file)
    }

    /// Opens a file for cold reads.
    #[inline]
    pub fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        self.io.open(path)
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

    /// The open file of a chunk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the file does not have the length that was written, or does not start like a chunk file.
    fn chunk_file(&self, chunk: &Chunk) -> Result<Arc<ChunkFile>> {
        if let Some(file) = chunk.file.load_full() {
            return Ok(file);
        }
        // Wait while the file is replaced, else the old one would be put back in use.
        let _guard = self.replacing.read();
        let file = self.open(&chunk.path)?;
        if file.len != chunk.file_bytes {
            let what = format!("its size is {} bytes, expected {}", file.len, chunk.file_bytes);
            return Err(Error::Corrupt { path: chunk.path.clone(), what });
        }
        check_version(&file).map_err(|error| codec::locate(error, &chunk.path, "header"))?;
        let opened = Arc::new(ChunkFile::new(file));
        // Marks of damage belong to the file that all readers share, so the first thread to open it wins.
        let before = chunk.file.compare_and_swap(&None::<Arc<ChunkFile>>, Some(Arc::clone(&opened)));
        Ok((*before).clone().unwrap_or(opened))
    }
}

/// Keeps a table's folder while a file is written to it.
struct KeptFolder<'a> {
    folders: &'a Mutex<HashMap<PathBuf, usize>>,
    folder: PathBuf,
}

impl Drop for KeptFolder<'_> {
    fn drop(&mut self) {
        if let Some(writers) = self.folders.lock().get_mut(&self.folder) {
            *writers -= 1;
        }
    }
}

impl HomeTier for SsdTier {
    fn name(&self) -> &str {
        "ssd"
    }

    fn account(&self) -> &Arc<Account> {
        &self.stored
    }

    fn describe(&self) -> String {
        let device = if self.device.is_empty() { String::new() } else { format!(" on {}", self.device) };
        format!("{}{device}, read by {} with direct I/O", self.dir.display(), self.io.name())
    }

    fn device(&self) -> Option<&Self> {
        (!self.files.is_simulated()).then_some(self)
    }

    fn check(&self, chunk: &Chunk) -> Result<()> {
        self.chunk_file(chunk).map(drop)
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        let read = self.read_columns(chunk, columns, Admission::Move)?.map(ColdRead::wait).transpose()?;
        Ok(read.into_iter().flat_map(ColdColumns::into_read_columns).collect())
    }
}

impl Home for SsdTier {
    fn read_rows(
        &self,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        wanted: Option<&[Range<usize>]>,
        purpose: ReadPurpose,
    ) -> Result<Option<ColdRead>> {
        let admission = purpose.admission;
        let file = self.chunk_file(chunk)?;
        let known = file.running_reads.lock();
        let mut shared_reads = Vec::with_capacity(columns.len());
        let mut planned = Vec::with_capacity(columns.len());
        for (slot, column) in columns.iter().enumerate() {
            let read = known.get(&segment(chunk, *column)?.column).and_then(Weak::upgrade);
            // Upkeep shares a column that is decoded, but takes no part in decoding: it may run at low priority, and
            // statements would wait for its thread.
            let read = read.filter(|read| if admission.is_upkeep() { read.is_decoded() } else { !read.failed() });
            if read.is_none() {
                let (home, declared) = home_unless_damaged(&file, chunk, *column)?;
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
                let source = ColumnSource { chunk: Arc::clone(chunk), file: Arc::clone(&file), column };
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

    fn bytes_to_read(&self, chunk: &Chunk, column: usize, wanted: Option<&[Range<usize>]>) -> u64 {
        let Ok((home, declared)) = cold::home_and_type(chunk, column) else { return 0 };
        let part = wanted.and_then(|wanted| self.part(chunk, column, home, declared, wanted));
        part.map_or(home.len, |part| part.bytes() as u64)
    }

    fn load_file(&self, chunk: &Chunk) -> Result<AlignedBuffer> {
        let file = self.open(&chunk.path)?;
        let len = usize::try_from(file.len).map_err(|_| Error::Invalid("the file is larger than memory".into()))?;
        self.io.read_as(Class::Upkeep.into(), &file, 0, len).wait()
    }

    fn write_chunk(&self, table: TableId, chunk: ChunkId, intent: Intent, file: &AlignedBuffer) -> Result<PathBuf> {
        let bytes = file.as_slice().len() as u64;
        let charge = self.stored.try_charge(bytes)?;
        let path = self.file_name(table, chunk, codec::format_of_file(file.as_slice()));
        let _folder = self.keep_folder(path.parent().unwrap_or(&self.dir))?;
        files::replace(self.files.as_ref(), &path, |temporary| self.write(temporary, intent, file))?;
        self.charges.lock().insert(path.clone(), charge);
        self.counters.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(path)
    }

    fn sync_names(&self, table: TableId) -> Result<()> {
        self.files.sync_folder(&self.dir.join(format!("t{}", table.0)))
    }

    fn replace_file(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        let bytes = AlignedBuffer::copy_of(bytes, BLOCK_BYTES)?;
        // One at a time, as all write beside the file. Readers wait for it, so it is urgent.
        let _guard = self.replacing.write();
        let intent = Intent::from(Class::Needed);
        files::replace(self.files.as_ref(), &chunk.path, |temporary| self.write(temporary, intent, &bytes))?;
        self.sync_names(chunk.table)?;
        chunk.file.store(None);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.files.remove_file(path)?;
        self.charges.lock().remove(path);
        // Delete the table's folder with its last file; the call fails while there are others. A folder that a writer
        // keeps stays.
        if let (Some(folder), Some(mut folders)) = (path.parent(), self.folders.try_lock())
            && folder != self.dir
            && folders.get(folder).is_none_or(|writers| *writers == 0)
            && self.files.remove_folder(folder).is_ok()
        {
            folders.remove(folder);
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<StoredFile>> {
        files::list(self.files.as_ref(), &self.dir)
    }

    fn file_bytes(&self, path: &Path) -> Result<Option<u64>> {
        self.files.len(path)
    }

    fn adopt_file(&self, path: &Path, bytes: u64) {
        let charge = self.stored.charge_always(bytes);
        self.charges.lock().insert(path.to_path_buf(), charge);
    }

    fn relative(&self, path: &Path) -> Result<String> {
        let inside = path.strip_prefix(&self.dir).ok().and_then(Path::to_str);
        inside.map(str::to_owned).ok_or_else(|| Error::Invalid(format!("{} is outside the tier", path.display())))
    }

    fn absolute(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn read_gap(&self) -> &ReadGap {
        &self.gap
    }

    fn counters(&self) -> &HomeCounters {
        &self.counters
    }
}

/// Refuses files of another version of Terrace and files of other programs.
fn check_version(file: &IoFile) -> Result<()> {
    let first = file.read_start((file.len as usize).min(BLOCK_BYTES))?;
    let prefix = first.as_slice().get(..codec::PREFIX_BYTES).unwrap_or_default();
    let end = codec::PREFIX_BYTES + codec::schema_len(prefix)?;
    match first.as_slice().get(codec::PREFIX_BYTES..end) {
        Some(schema) => codec::check_schema_version(schema),
        None => {
            let start = file.read_start(end)?;
            codec::check_schema_version(start.as_slice().get(codec::PREFIX_BYTES..).unwrap_or_default())
        }
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

fn segment(chunk: &Chunk, column: usize) -> Result<&crate::table::Segment> {
    chunk.segments.get(column).map(Arc::as_ref).ok_or_else(|| no_column(chunk, column))
}

fn no_column(chunk: &Chunk, column: usize) -> Error {
    Error::Invalid(format!("chunk {} of table {} has no column {column}", chunk.id.0, chunk.table.0))
}

#[cfg(test)]
mod tests;
