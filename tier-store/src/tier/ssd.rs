//! The SSD tier: the home of every sealed chunk, one Arrow IPC file each, read with direct I/O.
//!
//! ```text
//!   <dir>/t<table>/c<chunk>.arrow        the file
//!   <dir>/t<table>/c<chunk>.arrow.tmp    being written; swept at start
//! ```
//!
//! A file appears under its name only when it is whole and on disk (write, fsync, rename, fsync the folder). Cold reads
//! are charged to the I/O account from the moment they are queued until their columns leave the scan.

pub(crate) mod cold;
pub(crate) mod files;
mod flight;
mod gap;
mod planned;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arrow::datatypes::DataType;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use cold::{ColdColumns, ColdRead};
pub use files::StoredFile;
pub(crate) use flight::Flight;
pub use flight::ReadColumn;
pub use gap::{ReadCost, ReadGap};
use planned::{Planned, bytes_of, together};

use super::codec::{self, Cut, Part};
use super::{Account, Charge};

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::io::device::describe_device;
use crate::io::files::create_folders;
use crate::io::{AlignedBuffer, BLOCK_BYTES, BlockIo, Class, FileBytes, FileSystem, IoFile};
use crate::table::{Chunk, ChunkFile, ChunkId, Home, Segment, TableId};

/// Whether a cold read may be refused when the I/O account is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Ahead of use: only with room in the account.
    Prefetch,
    /// Needed now, nothing else under way: always.
    Guaranteed,
    /// For a move: always, but nobody who is in a greater hurry comes to wait for it.
    Move,
}

/// What the tier read since the start of the process.
#[derive(Debug, Default)]
pub struct SsdCounters {
    /// Cold reads finished.
    pub reads: AtomicU64,
    /// Bytes their blocks had.
    pub read_bytes: AtomicU64,
    /// Time in which statements waited for them, in microseconds.
    pub wait_us: AtomicU64,
    /// Bytes of chunk files written.
    pub written_bytes: AtomicU64,
    /// Reads that found damage.
    pub corrupt: AtomicU64,
    /// Files made whole again.
    pub healed: AtomicU64,
}

/// The home tier.
#[derive(Debug)]
pub struct SsdTier {
    dir: PathBuf,
    /// The device under it.
    device: String,
    files: Arc<dyn FileSystem>,
    io: Arc<dyn BlockIo>,
    clock: Arc<dyn Clock>,
    io_account: Arc<Account>,
    stored: Arc<Account>,
    /// The bytes of each file, charged to `stored` while it exists.
    charges: Mutex<HashMap<PathBuf, Charge>>,
    /// The tables' folders whose names are durable. Held while a file is written into one, so that it stays.
    folders: RwLock<HashSet<PathBuf>>,
    /// One replacement at a time: two of one file would share its temporary name.
    replacing: RwLock<()>,
    counters: Arc<SsdCounters>,
    gap: ReadGap,
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
        let folders = RwLock::default();
        let gap = ReadGap::default();
        io.pool().share_budget(&io_account);
        let device = describe_device(&dir);
        Ok(Self { dir, device, files, io, clock, io_account, stored, charges, folders, replacing, counters, gap })
    }

    /// The same device with accounts and counts of its own: what it reads is nobody's.
    pub(crate) fn apart(&self) -> Self {
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
            folders: RwLock::default(),
            replacing: RwLock::default(),
            counters: Arc::default(),
            gap: ReadGap::default(),
        }
    }

    /// What it stands on, in one line.
    pub fn describe(&self) -> String {
        let device = if self.device.is_empty() { String::new() } else { format!(" on {}", self.device) };
        format!("{}{device}, read by {} with direct I/O", self.dir.display(), self.io.name())
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The layer that files are written through.
    pub fn files(&self) -> &Arc<dyn FileSystem> {
        &self.files
    }

    /// The engine that reads.
    pub fn io(&self) -> &Arc<dyn BlockIo> {
        &self.io
    }

    /// Bytes of all files.
    pub fn stored(&self) -> &Arc<Account> {
        &self.stored
    }

    /// Bytes being read, or read and not yet taken.
    pub fn io_account(&self) -> &Arc<Account> {
        &self.io_account
    }

    /// How far apart two pieces of a file are read as two.
    pub fn read_gap(&self) -> &ReadGap {
        &self.gap
    }

    /// What was read so far.
    pub fn counters(&self) -> &SsdCounters {
        &self.counters
    }

    /// Where a chunk's file lies.
    pub fn file_name(&self, table: TableId, chunk: ChunkId) -> PathBuf {
        self.dir.join(format!("t{}", table.0)).join(format!("c{}.arrow", chunk.0))
    }

    /// An empty file for [`Self::write_chunk`], in memory that it shares with reads.
    pub fn new_file(&self, capacity: usize) -> Result<FileBytes> {
        FileBytes::with_capacity(self.io.pool(), capacity)
    }

    /// Writes a chunk's file and returns its path once its bytes are durable; its name is after
    /// [`Self::sync_names`]. A failure leaves nothing behind; a full disk and a full budget say so.
    pub fn write_chunk(&self, table: TableId, chunk: ChunkId, file: &[u8]) -> Result<PathBuf> {
        let charge = self.stored.try_charge(file.len() as u64)?;
        let path = self.file_name(table, chunk);
        let _folder = self.hold_folder(path.parent().unwrap_or(&self.dir))?;
        files::replace(self.files.as_ref(), &path, file)?;
        self.charges.lock().insert(path.clone(), charge);
        self.counters.written_bytes.fetch_add(file.len() as u64, Ordering::Relaxed);
        Ok(path)
    }

    /// Makes the names of a table's files durable: before the commit that speaks of them.
    pub fn sync_names(&self, table: TableId) -> Result<()> {
        self.files.sync_folder(&self.dir.join(format!("t{}", table.0)))
    }

    /// Counts a file that was there before this process.
    pub fn adopt_file(&self, path: &Path, bytes: u64) {
        let charge = self.stored.charge_always(bytes);
        self.charges.lock().insert(path.to_path_buf(), charge);
    }

    /// A file's path as the catalog records it: relative to the tier's folder, so that the folder can move.
    pub fn relative(&self, path: &Path) -> Result<String> {
        let inside = path.strip_prefix(&self.dir).ok().and_then(Path::to_str);
        inside.map(str::to_owned).ok_or_else(|| Error::Invalid(format!("{} is outside the tier", path.display())))
    }

    /// Deletes a chunk's file; one that is gone already is no error. Reads under way finish.
    pub fn remove(&self, path: &Path) -> Result<()> {
        self.files.remove_file(path)?;
        self.charges.lock().remove(path);
        // The table's folder goes with its last file; the call refuses while there are others. One that somebody
        // writes into stays.
        if let (Some(folder), Some(mut folders)) = (path.parent(), self.folders.try_write())
            && folder != self.dir
            && self.files.remove_folder(folder).is_ok()
        {
            folders.remove(folder);
        }
        Ok(())
    }

    /// Bytes of a chunk's file as the file system says; `None` when there is none.
    pub fn file_bytes(&self, path: &Path) -> Result<Option<u64>> {
        self.files.len(path)
    }

    /// Makes a table's folder unless it is there with a durable name; it stays while the answer is held.
    fn hold_folder(&self, folder: &Path) -> Result<RwLockReadGuard<'_, HashSet<PathBuf>>> {
        let known = self.folders.read();
        if known.contains(folder) && self.files.is_folder(folder) {
            return Ok(known);
        }
        drop(known);
        let mut known = self.folders.write();
        self.files.create_folder(folder)?;
        self.files.sync_folder(&self.dir)?;
        known.insert(folder.to_owned());
        Ok(RwLockWriteGuard::downgrade(known))
    }

    /// All files in the tier's folder, in no order.
    pub fn list(&self) -> Result<Vec<StoredFile>> {
        files::list(self.files.as_ref(), &self.dir)
    }

    /// Opens a file for cold reads.
    pub fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        self.io.open(path)
    }

    /// Reads, verifies and decompresses columns, blocking: for moves.
    pub fn load(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        let read = self.read_columns(chunk, columns, Admission::Move)?.map(ColdRead::wait).transpose()?;
        Ok(read.into_iter().flat_map(ColdColumns::into_read).collect())
    }

    /// The whole file of a chunk, unverified: for checks and repairs.
    pub(crate) fn load_file(&self, chunk: &Chunk) -> Result<AlignedBuffer> {
        let file = self.open(&chunk.path)?;
        let len = usize::try_from(file.len).map_err(|_| Error::Invalid("a file larger than memory".into()))?;
        self.io.read_as(Class::Move, &file, 0, len).wait()
    }

    /// Puts `bytes` in the place of a chunk's file: readers of the old one finish, later ones open the new one. The old
    /// file is there until the new one is durable.
    pub(crate) fn replace_file(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        let _turn = self.replacing.write();
        files::replace_durably(self.files.as_ref(), &chunk.path, bytes)?;
        chunk.file.store(None);
        Ok(())
    }

    /// Starts reading `columns` of a chunk. `None`: the I/O account has no room for a prefetch now.
    pub fn read_columns(
        &self,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        admission: Admission,
    ) -> Result<Option<ColdRead>> {
        self.read_rows(chunk, columns, None, admission)
    }

    /// As [`Self::read_columns`]; of columns that can be cut, and where it saves enough, only what the `wanted` rows
    /// (ascending ranges) need. The other rows of such a column are zero or empty. Whole columns that somebody reads, or
    /// has read and still holds, are shared.
    pub fn read_rows(
        &self,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        wanted: Option<&[Range<usize>]>,
        admission: Admission,
    ) -> Result<Option<ColdRead>> {
        let file = self.chunk_file(chunk)?;
        let known = file.flights.lock();
        let mut flights = Vec::with_capacity(columns.len());
        let mut planned = Vec::with_capacity(columns.len());
        for (slot, column) in columns.iter().enumerate() {
            let flight = known.get(&segment(chunk, *column)?.column).and_then(Weak::upgrade);
            // A move takes what is there, and no part in getting it: it may run at low priority.
            let flight =
                flight.filter(|flight| if admission == Admission::Move { flight.is_there() } else { !flight.failed() });
            if flight.is_none() {
                let (home, declared) = undamaged(&file, chunk, *column)?;
                let part = wanted.and_then(|wanted| self.part((chunk, *column), (home, declared), wanted));
                planned.push(Planned { slot, column: *column, home, part });
            }
            flights.push(flight);
        }
        // Who moves, perhaps at low priority, holds up nobody while it submits.
        let mut known = (admission != Admission::Move).then_some(known);
        let class = match (admission, wanted) {
            (Admission::Move, _) => Class::Move,
            // Rows that passed are wanted at once.
            (Admission::Guaranteed, _) | (_, Some(_)) => Class::Needed,
            (Admission::Prefetch, None) => Class::Prefetch,
        };
        let mut bytes_read = 0;
        let mut charged_bytes = 0;
        let mut groups = Vec::new();
        for group in together(planned, &self.gap) {
            let read = bytes_of(&group);
            let bytes = read + group.iter().map(Planned::own_bytes).sum::<u64>();
            let charge = match (self.io_account.try_charge(bytes), admission) {
                (Ok(charge), _) => charge,
                (Err(_), Admission::Prefetch) => return Ok(None),
                (Err(_), _) => self.io_account.charge_always(bytes),
            };
            (bytes_read, charged_bytes) = (bytes_read + read, charged_bytes + bytes);
            groups.push((group, Arc::new(charge)));
        }
        let windows: Vec<Vec<(u64, usize)>> =
            groups.iter().map(|(group, _)| group.iter().flat_map(Planned::windows).collect()).collect();
        let requests = groups.iter().zip(&windows).flat_map(|((group, _), windows)| match group.as_slice() {
            // Its ranges are apart.
            [Planned { part: Some(_), .. }] => windows.chunks(1),
            _ => windows.chunks(windows.len().max(1)),
        });
        let requests: Vec<&[(u64, usize)]> = requests.collect();
        let mut reads = self.io.read_all(class, &file.io, &requests).into_iter();
        for (group, charge) in groups {
            for Planned { slot, column, part, .. } in group {
                let count = part.as_ref().map_or(1, |part| part.ranges().len());
                let shared = part.is_none();
                let place = (Arc::clone(chunk), Arc::clone(&file));
                let memory = (Arc::clone(&self.io), Arc::clone(&charge));
                let reads = reads.by_ref().take(count).collect();
                let flight = Flight::new(place, (column, part), reads, memory, Arc::clone(&self.counters));
                if let Some(known) = known.as_mut().filter(|_| shared) {
                    known.insert(segment(chunk, column)?.column, Arc::downgrade(&flight));
                }
                if let Some(place) = flights.get_mut(slot) {
                    *place = Some(flight);
                }
            }
        }
        let flights = flights.into_iter().flatten().collect();
        let clock = Arc::clone(&self.clock);
        let counters = Arc::clone(&self.counters);
        let for_move = admission == Admission::Move;
        Ok(Some(ColdRead::new(flights, (bytes_read, charged_bytes), clock, counters, for_move)))
    }

    /// Stored bytes of a column that [`Self::read_rows`] would ask for.
    pub fn bytes_to_read(&self, chunk: &Chunk, column: usize, wanted: Option<&[Range<usize>]>) -> u64 {
        let Ok((home, declared)) = cold::described(chunk, column) else { return 0 };
        let part = wanted.and_then(|wanted| self.part((chunk, column), (home, declared), wanted));
        part.map_or(home.len, |part| part.bytes() as u64)
    }

    fn part(
        &self,
        (chunk, column): (&Chunk, usize),
        (home, declared): (&Home, &DataType),
        wanted: &[Range<usize>],
    ) -> Option<Part> {
        let is_uneven = |segment: &Arc<Segment>| segment.is_uneven.load(Ordering::Relaxed);
        let guess = !chunk.segments.get(column).is_some_and(is_uneven);
        Part::of(home, declared, chunk.rows as usize, wanted, Cut { gap: usize_of(self.gap.bytes()), guess })
    }

    /// The open file of a chunk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it has not the length that was written, or its first bytes are not those of a chunk file.
    pub(crate) fn chunk_file(&self, chunk: &Chunk) -> Result<Arc<ChunkFile>> {
        if let Some(file) = chunk.file.load_full() {
            return Ok(file);
        }
        // Not while the file is replaced, or the old one would be put back in use.
        let _turn = self.replacing.read();
        let file = self.open(&chunk.path)?;
        if file.len != chunk.file_bytes {
            let what = format!("it has {} bytes, {} were written", file.len, chunk.file_bytes);
            return Err(Error::Corrupt { path: chunk.path.clone(), what });
        }
        check_version(&file).map_err(|error| codec::locate(error, &chunk.path, "header"))?;
        let opened = Arc::new(ChunkFile::new(file));
        // Marks belong to the file that everybody uses, so the first one to open it wins.
        let before = chunk.file.compare_and_swap(&None::<Arc<ChunkFile>>, Some(Arc::clone(&opened)));
        Ok((*before).clone().unwrap_or(opened))
    }
}

/// Refuses what another version of Terrace wrote, and what nobody did.
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

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Home and declared type of a column; a damaged one is not read: the error is the one that its first reader got.
fn undamaged<'a>(file: &ChunkFile, chunk: &'a Chunk, column: usize) -> Result<(&'a Home, &'a DataType)> {
    match file.damage(segment(chunk, column)?.column) {
        Some(damage) => Err(damage),
        None => cold::described(chunk, column),
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
