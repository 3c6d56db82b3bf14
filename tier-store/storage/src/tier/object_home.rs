//! A home in an object store: every sealed chunk is one object, read by ranges.
//!
//! ```text
//!   <url>/terrace-home.json                   the marker: whose home it is
//!   <url>/t<table>/c<chunk>-<run>.arrow       a chunk's file; <run> tells the start of the process that wrote it
//! ```
//!
//! An object is complete or absent, so nothing is renamed and no folder is synced. Names are never used twice: what an
//! earlier process still sends, or a delete whose answer was lost, cannot touch what this one writes. Objects are
//! deleted by a thread of their own ([`Remover`]), because the last reader of a chunk must not wait for a request. Reads
//! are those of a [`ChunkReader`] over an [`ObjectEngine`](crate::io::objects::ObjectEngine).

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use terrace_model::clock::Clock;
use terrace_model::{Account, Charge, ChunkId, Error, Result, TableId, TierKind};

use super::codec;
use super::home::{Home, HomeCounters, HomeTier, MeasuredHome};
use super::reader::{Admission, ChunkReader, ColdColumns, ColdRead, ReadColumn, ReadGap, ReadPurpose};
use super::remover::Remover;
use super::stored_file::{MARKER_NAME, StoredFile, run_file_name};
use crate::io::objects::{Objects, StoredObject, object_name, object_path};
use crate::io::{AlignedBuffer, BLOCK_BYTES, BlockIo, Class, Intent, IoFile};
use crate::table::{Chunk, ChunkFile};

/// Objects that nobody names are left alone until they are this old by the clock of the store, in microseconds: a process
/// that was cut off may still name them.
const SWEEP_AGE_US: u64 = 120_000_000;
/// Name of the object that is written to learn the time of the store.
const CLOCK_NAME: &str = "terrace-clock.tmp";

/// The home below a prefix of an object store: a [`Home`].
#[derive(Debug)]
pub struct ObjectHome {
    objects: Arc<dyn Objects>,
    reader: ChunkReader,
    stored: Arc<Account>,
    /// The charge to `stored` of each object, kept while it exists.
    charges: Mutex<HashMap<PathBuf, Charge>>,
    remover: Arc<Remover>,
    /// When this process opened the home, a part of the names that it writes.
    run: u64,
}

impl ObjectHome {
    /// A home whose objects `io` reads. `io_account` bounds bytes being read and memory kept for the next reads, `stored` the
    /// bytes of all objects.
    pub fn new(
        objects: Arc<dyn Objects>,
        io: Arc<dyn BlockIo>,
        clock: Arc<dyn Clock>,
        io_account: Arc<Account>,
        stored: Arc<Account>,
    ) -> Self {
        let run = clock.unix_us();
        let reader = ChunkReader::new(io, clock, io_account);
        let remover = Arc::new(Remover::start(Arc::clone(&objects)));
        Self { objects, reader, stored, charges: Mutex::default(), remover, run }
    }

    fn path(&self, name: &str) -> PathBuf {
        object_path(self.objects.as_ref(), name)
    }

    fn name_at<'a>(&self, path: &'a Path) -> Result<&'a str> {
        let outside = || Error::Invalid(format!("{} is outside of {}", path.display(), self.objects.url()));
        object_name(self.objects.as_ref(), path).ok_or_else(outside)
    }

    /// The file of a chunk. The catalog knows its length and the checksums of its columns, so opening it asks for nothing.
    fn chunk_file(&self, chunk: &Chunk) -> Result<Arc<ChunkFile>> {
        self.reader.file(chunk, || Ok(IoFile::object(&chunk.path, chunk.file_bytes)))
    }

    /// The time of the store, in microseconds since the Unix epoch: when it says that an object was written just now.
    fn store_time_us(&self) -> Result<u64> {
        let now = AlignedBuffer::copy_of(b"clock", BLOCK_BYTES)?;
        self.objects.write(CLOCK_NAME, &now)?;
        let missing = || Error::io("read", self.path(CLOCK_NAME), &std::io::ErrorKind::NotFound.into());
        Ok(self.objects.find(CLOCK_NAME)?.ok_or_else(missing)?.written_unix_us)
    }
}

impl HomeTier for ObjectHome {
    fn name(&self) -> &str {
        "object"
    }

    fn kind(&self) -> TierKind {
        TierKind::Object
    }

    fn account(&self) -> &Arc<Account> {
        &self.stored
    }

    fn describe(&self) -> String {
        format!("{}, read by {}", self.objects.url(), self.reader.io().name())
    }

    fn for_measurements(&self) -> Option<Arc<dyn MeasuredHome>> {
        let account = Account::new("measurements", u64::MAX);
        Some(Arc::new(Self {
            objects: Arc::clone(&self.objects),
            reader: self.reader.for_measurements(Arc::clone(&account)),
            stored: account,
            charges: Mutex::default(),
            remover: Arc::clone(&self.remover),
            run: self.run,
        }))
    }

    fn check(&self, chunk: &Chunk) -> Result<()> {
        if chunk.file.load().is_some() {
            return Ok(());
        }
        let path = &chunk.path;
        match self.objects.find(self.name_at(path)?)? {
            Some(found) if found.bytes == chunk.file_bytes => self.chunk_file(chunk).map(drop),
            Some(found) => {
                let what = format!("its size is {} bytes, expected {}", found.bytes, chunk.file_bytes);
                Err(Error::Corrupt { path: path.clone(), what })
            }
            None => Err(Error::io("open", path, &std::io::ErrorKind::NotFound.into())),
        }
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        let read = self.read_columns(chunk, columns, Admission::Move)?.map(ColdRead::wait).transpose()?;
        Ok(read.into_iter().flat_map(ColdColumns::into_read_columns).collect())
    }
}

impl MeasuredHome for ObjectHome {
    fn write_sample(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        self.objects.write(name, &AlignedBuffer::copy_of(bytes, BLOCK_BYTES)?)?;
        Ok(self.path(name))
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        self.reader.io().open(path)
    }
}

impl Home for ObjectHome {
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
        io.read_as(Class::Upkeep.into(), &file, 0, len).wait()
    }

    fn write_chunk(&self, table: TableId, chunk: ChunkId, _intent: Intent, file: &AlignedBuffer) -> Result<PathBuf> {
        let bytes = file.as_slice().len() as u64;
        let charge = self.stored.try_charge(bytes)?;
        let name = run_file_name(table, chunk, self.run, codec::format_of_file(file.as_slice()));
        // A write that failed may have been carried out, if its answer was lost.
        self.objects.write(&name, file).inspect_err(|_| self.remover.remove(&name))?;
        let path = self.path(&name);
        self.charges.lock().insert(path.clone(), charge);
        self.counters().written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(path)
    }

    /// Names are durable with their objects.
    fn sync_names(&self, _table: TableId) -> Result<()> {
        Ok(())
    }

    fn replace_file(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        let name = self.name_at(&chunk.path)?;
        let bytes = AlignedBuffer::copy_of(bytes, BLOCK_BYTES)?;
        self.reader.replace(chunk, || self.objects.write(name, &bytes))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.remover.remove(self.name_at(path)?);
        self.charges.lock().remove(path);
        Ok(())
    }

    fn list(&self) -> Result<Vec<StoredFile>> {
        // An object that is being deleted is none of the home's any more.
        self.remover.wait();
        let now_us = self.store_time_us()?;
        let mut found = self.objects.list()?;
        found.retain(|object| object.name != MARKER_NAME && object.name != CLOCK_NAME);
        let file = |object: StoredObject| StoredFile {
            is_fresh: now_us.saturating_sub(object.written_unix_us) < SWEEP_AGE_US,
            ..StoredFile::new(Path::new(self.objects.url()), self.path(&object.name), object.bytes)
        };
        Ok(found.into_iter().map(file).collect())
    }

    fn file_bytes(&self, path: &Path) -> Result<Option<u64>> {
        Ok(self.objects.find(self.name_at(path)?)?.map(|object| object.bytes))
    }

    fn adopt_file(&self, path: &Path, bytes: u64) {
        let charge = self.stored.charge_always(bytes);
        self.charges.lock().insert(path.to_path_buf(), charge);
    }

    fn relative(&self, path: &Path) -> Result<String> {
        self.name_at(path).map(str::to_owned)
    }

    fn absolute(&self, name: &str) -> PathBuf {
        self.path(name)
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let Some(found) = self.objects.find(MARKER_NAME)? else { return Ok(None) };
        let mut marker = Vec::new();
        // A body may end early.
        while (marker.len() as u64) < found.bytes {
            let before = marker.len();
            let rest = before as u64..found.bytes;
            self.objects.read(MARKER_NAME, rest, &mut |bytes: &[u8]| marker.extend_from_slice(bytes))?;
            if marker.len() == before {
                let what = format!("it ends before offset {}", found.bytes);
                return Err(Error::Corrupt { path: self.path(MARKER_NAME), what });
            }
        }
        Ok(Some(marker))
    }

    fn create_marker(&self, bytes: &[u8]) -> Result<bool> {
        self.objects.create(MARKER_NAME, bytes)
    }

    fn read_gap(&self) -> &ReadGap {
        self.reader.read_gap()
    }

    fn counters(&self) -> &HomeCounters {
        self.reader.counters()
    }
}

#[cfg(test)]
mod tests;
