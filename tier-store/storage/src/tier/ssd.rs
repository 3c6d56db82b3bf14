//! The SSD tier: the home of every sealed chunk, one file each, read with direct I/O.
//!
//! ```text
//!   <dir>/t<table>/c<chunk>.arrow        the file, an Arrow IPC file
//!   <dir>/t<table>/c<chunk>.packed       the file, where it holds packed columns
//!   <dir>/t<table>/c<chunk>.arrow.tmp    being written; swept at start
//! ```
//!
//! A file appears under its name only when it is complete and on disk (write, fsync, rename, fsync the folder). Cold reads
//! are those of a [`ChunkReader`].
//!
//! - `deletions`: deletes files, one now and then while look-ups come
//! - [`files`]: writes and lists the files of the tier
//! - `folder`: the files with their charges, and the folders of the tables

mod deletions;
pub mod files;
mod folder;

use std::collections::VecDeque;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_model::clock::Clock;
use terrace_model::{Account, Charge, ChunkId, Error, Result, TableId};

use super::codec;
use super::home::{Home, HomeCounters, HomeTier, MeasuredHome};
use super::reader::{Admission, ChunkReader, ColdColumns, ColdRead, ReadColumn, ReadGap, ReadPurpose};
use super::stored_file::{MARKER_NAME, StoredFile, file_name, table_folder};
use crate::io::device::describe_device;
use crate::io::files::create_folders;
use crate::io::{AlignedBuffer, BLOCK_BYTES, BlockIo, Class, FileBytes, FileSystem, Intent, IoFile, ReadHandle};
use crate::table::{Chunk, ChunkFile};
use deletions::Deletions;
use folder::TierFolder;

/// Bytes of a single read of a file that is loaded whole.
const PART_BYTES: usize = 1 << 20;
/// Reads of such a file that wait or run at once.
const PARTS_AT_ONCE: usize = 4;

/// The home in a folder: a [`Home`].
#[derive(Debug)]
pub struct SsdTier {
    folder: Arc<TierFolder>,
    /// `None` for measurements, which delete their sample at once.
    deletions: Option<Deletions>,
    /// Description of the device under the folder.
    device: String,
    reader: ChunkReader,
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
        let device = describe_device(&dir);
        let reader = ChunkReader::new(io, clock, io_account);
        let folder = Arc::new(TierFolder::new(dir, files, stored));
        let deletions = Some(Deletions::start(&folder, reader.io()));
        Ok(Self { folder, deletions, device, reader })
    }

    /// The folder of the tier.
    #[inline]
    pub fn dir(&self) -> &Path {
        &self.folder.path
    }

    /// Its files, as the file system has them.
    fn files(&self) -> &dyn FileSystem {
        self.folder.files.as_ref()
    }

    /// Writes a file; its bytes are durable on return.
    fn write(&self, path: &Path, intent: Intent, file: &AlignedBuffer) -> Result<()> {
        self.files().write_through(self.reader.io().as_ref(), intent, path, file)
    }

    /// Charges a new file. Where there is no room, files that wait for their deletion make some.
    fn charge(&self, bytes: u64) -> Result<Charge> {
        match self.folder.stored.try_charge(bytes) {
            Err(Error::BudgetExceeded { .. }) if self.delete_waiting() => self.folder.stored.try_charge(bytes),
            charged => charged,
        }
    }

    /// Deletes the files that wait for it; false where there are none.
    fn delete_waiting(&self) -> bool {
        self.deletions.as_ref().is_some_and(Deletions::delete_waiting)
    }

    /// The open file of a chunk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the file does not have the length that was written, or does not start like a chunk file.
    fn chunk_file(&self, chunk: &Chunk) -> Result<Arc<ChunkFile>> {
        self.reader.file(chunk, || {
            let file = self.reader.io().open(&chunk.path)?;
            if file.len != chunk.file_bytes {
                let what = format!("its size is {} bytes, expected {}", file.len, chunk.file_bytes);
                return Err(Error::Corrupt { path: chunk.path.clone(), what });
            }
            check_version(&file).map_err(|error| codec::locate(error, &chunk.path, "header"))?;
            Ok(file)
        })
    }
}

impl HomeTier for SsdTier {
    fn name(&self) -> &str {
        "ssd"
    }

    fn account(&self) -> &Arc<Account> {
        &self.folder.stored
    }

    fn describe(&self) -> String {
        let device = if self.device.is_empty() { String::new() } else { format!(" on {}", self.device) };
        format!("{}{device}, read by {} with direct I/O", self.dir().display(), self.reader.io().name())
    }

    fn for_measurements(&self) -> Option<Arc<dyn MeasuredHome>> {
        if self.files().is_simulated() {
            return None;
        }
        let account = Account::new("measurements", u64::MAX);
        let reader = self.reader.for_measurements(Arc::clone(&account));
        let folder = Arc::new(TierFolder::new(self.dir().to_owned(), Arc::clone(&self.folder.files), account));
        Some(Arc::new(Self { folder, deletions: None, device: self.device.clone(), reader }))
    }

    fn check(&self, chunk: &Chunk) -> Result<()> {
        self.chunk_file(chunk).map(drop)
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        let read = self.read_columns(chunk, columns, Admission::Move)?.map(ColdRead::wait).transpose()?;
        Ok(read.into_iter().flat_map(ColdColumns::into_read_columns).collect())
    }
}

impl MeasuredHome for SsdTier {
    fn write_sample(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.dir().join(name);
        // The first error is the one to report; what cannot be deleted is swept at the next start.
        self.files().write(&path, bytes).inspect_err(|_| drop(self.files().remove_file(&path)))?;
        Ok(path)
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        self.reader.io().open(path)
    }
}

impl Home for SsdTier {
    fn io(&self) -> &Arc<dyn BlockIo> {
        self.reader.io()
    }

    fn read_rows(
        &self,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        wanted: Option<&[Range<usize>]>,
        purpose: ReadPurpose,
    ) -> Result<Option<ColdRead>> {
        self.reader.read_rows(&self.chunk_file(chunk)?, chunk, columns, wanted, purpose)
    }

    fn bytes_to_read(&self, chunk: &Chunk, column: usize, wanted: Option<&[Range<usize>]>) -> u64 {
        self.reader.bytes_to_read(chunk, column, wanted)
    }

    fn load_file(&self, chunk: &Chunk) -> Result<AlignedBuffer> {
        let io = self.reader.io();
        let file = io.open(&chunk.path)?;
        let len = usize::try_from(file.len).map_err(|_| Error::Invalid("the file is larger than memory".into()))?;
        load_in_parts(io.as_ref(), &file, len)
    }

    fn write_chunk(&self, table: TableId, chunk: ChunkId, intent: Intent, file: &AlignedBuffer) -> Result<PathBuf> {
        let bytes = file.as_slice().len() as u64;
        let charge = self.charge(bytes)?;
        let path = self.dir().join(file_name(table, chunk, codec::format_of_file(file.as_slice())));
        let _folder = self.folder.keep_table(path.parent().unwrap_or(self.dir()))?;
        let write = || files::replace(self.files(), &path, |temporary| self.write(temporary, intent, file));
        match write() {
            Err(Error::Io { errno: Some(libc::ENOSPC | libc::EDQUOT), .. }) if self.delete_waiting() => write()?,
            written => written?,
        }
        self.folder.keep_charge(path.clone(), charge);
        self.counters().written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(path)
    }

    fn sync_names(&self, table: TableId) -> Result<()> {
        self.files().sync_folder(&self.dir().join(table_folder(table)))
    }

    fn replace_file(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        let bytes = AlignedBuffer::copy_of(bytes, BLOCK_BYTES)?;
        // Readers wait for it, so it is urgent.
        let intent = Intent::from(Class::Needed);
        self.reader.replace(chunk, || {
            files::replace(self.files(), &chunk.path, |temporary| self.write(temporary, intent, &bytes))?;
            self.sync_names(chunk.table)
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        match &self.deletions {
            Some(deletions) => deletions.delete(path),
            None => self.folder.delete(path),
        }
    }

    fn end_removals(&self) {
        self.deletions.iter().for_each(Deletions::end);
    }

    fn list(&self) -> Result<Vec<StoredFile>> {
        files::list(self.files(), self.dir())
    }

    fn file_bytes(&self, path: &Path) -> Result<Option<u64>> {
        self.files().len(path)
    }

    fn adopt_file(&self, path: &Path, bytes: u64) {
        let charge = self.folder.stored.charge_always(bytes);
        self.folder.keep_charge(path.to_path_buf(), charge);
    }

    fn relative(&self, path: &Path) -> Result<String> {
        let inside = path.strip_prefix(self.dir()).ok().and_then(Path::to_str);
        inside.map(str::to_owned).ok_or_else(|| Error::Invalid(format!("{} is outside the tier", path.display())))
    }

    fn absolute(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let path = self.dir().join(MARKER_NAME);
        self.files().len(&path)?.map(|_| self.files().read(&path)).transpose()
    }

    fn create_marker(&self, bytes: &[u8]) -> Result<bool> {
        let path = self.dir().join(MARKER_NAME);
        if self.files().len(&path)?.is_some() {
            return Ok(false);
        }
        files::replace_durably(self.files(), &path, bytes)?;
        Ok(true)
    }

    fn read_gap(&self) -> &ReadGap {
        self.reader.read_gap()
    }

    fn counters(&self) -> &HomeCounters {
        self.reader.counters()
    }
}

/// Reads the first `len` bytes of a file in parts, whose memory serves again for the next ones. For one large read the kernel
/// would clear fresh memory on the thread that gives reads to the device, and points would wait for that.
fn load_in_parts(io: &dyn BlockIo, file: &Arc<IoFile>, len: usize) -> Result<AlignedBuffer> {
    let mut whole = FileBytes::with_capacity(io.pool(), len)?;
    let mut running = VecDeque::new();
    let mut starts = (0..len).step_by(PART_BYTES);
    loop {
        let more = starts.by_ref().take(PARTS_AT_ONCE - running.len());
        running.extend(more.map(|start| {
            let part = PART_BYTES.min(len - start);
            io.read_as(Class::Upkeep.into(), file, start as u64, part)
        }));
        let Some(part) = running.pop_front().map(ReadHandle::wait) else { return Ok(whole.into_buffer()) };
        whole.write_all(part?.as_slice()).map_err(|error| Error::io("read", &file.path, &error))?;
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

#[cfg(test)]
mod tests;
