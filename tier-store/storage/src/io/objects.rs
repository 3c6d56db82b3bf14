//! Object stores: what a home asks of one, and the engine that reads ranges of its objects.
//!
//! An [`Objects`] blocks, repeats what failed for a while, and gives up then; this crate has no client of its own. The
//! [`ObjectEngine`] has the queue of the blocking engine, so classes, levels and turns hold for objects as for files,
//! and threads that wait for answers: more than for a disk, as a request takes long and a store serves many. Each read
//! is one request, up to 64 MiB; the planner of cold reads joins and cuts them by the read gap.

use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_model::{Error, Result};

use super::blocking::{Device, Workers};
use super::request::pread;
use super::{AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle};

/// The longest read that is one request. What is longer goes on with the next one, so that the time for which the client tries
/// again holds for each, and a file that takes longer than that can be read all the same.
const PIECE_BYTES: usize = 64 << 20;

/// An object as a listing tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its name, below that of the store.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, by the clock of the store, in microseconds since the Unix epoch.
    pub written_unix_us: u64,
}

/// The objects below one prefix of an object store. Names are relative to it. All calls block.
///
/// Errors are [`Error::Io`] with the full name of the object; a store that does not answer, or fails, has an `errno` of a
/// faulty device ([`Error::is_device_fault`]).
pub trait Objects: Send + Sync + Debug {
    /// The prefix as users write it, such as `s3://bucket/prefix`; without a slash at its end.
    fn url(&self) -> &str;
    /// Reads a range of an object and hands its bytes to `take`, in order, in pieces of any size. Fewer bytes than asked for,
    /// without an error, mean that the object ends there.
    ///
    /// # Errors
    /// Those of the store, after they were tried again.
    fn read(&self, name: &str, range: Range<u64>, take: &mut dyn FnMut(&[u8])) -> Result<()>;
    /// Writes an object, in place of one of that name. It is durable, and readers find it, on return. A failure leaves no
    /// part of it under its name.
    ///
    /// # Errors
    /// Those of the store, after they were tried again.
    fn write(&self, name: &str, bytes: &AlignedBuffer) -> Result<()>;
    /// Like [`Self::write`], unless there is an object of that name: then it returns false. True may also mean that an earlier
    /// try of this call wrote it, whose answer was lost.
    ///
    /// # Errors
    /// Those of the store, after they were tried again.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<bool>;
    /// Deletes objects; those that are gone already are no error.
    ///
    /// # Errors
    /// Those of the store, after they were tried again: some of the objects may be gone.
    fn remove(&self, names: &[String]) -> Result<()>;
    /// Finds one object; `None` when there is none.
    ///
    /// # Errors
    /// Those of the store, after they were tried again.
    fn find(&self, name: &str) -> Result<Option<StoredObject>>;
    /// All objects, in no order.
    ///
    /// # Errors
    /// Those of the store, after they were tried again.
    fn list(&self) -> Result<Vec<StoredObject>>;
}

/// The path by which files of this crate name an object, in errors and in the catalog's memory.
pub fn object_path(objects: &dyn Objects, name: &str) -> PathBuf {
    Path::new(objects.url()).join(name)
}

/// The name of the object at a path; `None` for a path elsewhere.
pub fn object_name<'a>(objects: &dyn Objects, path: &'a Path) -> Option<&'a str> {
    path.strip_prefix(objects.url()).ok().and_then(Path::to_str)
}

/// The device of the engine: requests for ranges of objects.
#[derive(Debug)]
struct ObjectDevice {
    objects: Arc<dyn Objects>,
}

impl Device for ObjectDevice {
    /// Cutting a read would only add the time that each request takes, so none but the longest are cut.
    fn piece_bytes(&self) -> usize {
        PIECE_BYTES
    }

    fn read_at(&self, file: &IoFile, target: &mut [MaybeUninit<u8>], offset: u64) -> std::io::Result<usize> {
        if file.descriptor() >= 0 {
            return pread(file, target, offset);
        }
        let name = object_name(self.objects.as_ref(), &file.path);
        let name = name.ok_or_else(|| std::io::Error::other("it is not in this object store"))?;
        let range = offset..file.len.min(offset.saturating_add(target.len() as u64));
        let mut filled = 0;
        let read = self.objects.read(name, range, &mut |bytes: &[u8]| {
            // A store that sends more than it was asked for sends in vain.
            let len = bytes.len().min(target.len() - filled);
            if let (Some(place), Some(bytes)) = (target.get_mut(filled..filled + len), bytes.get(..len)) {
                place.write_copy_of_slice(bytes);
                filled += len;
            }
        });
        // The request passes the error on as it is.
        read.map(|()| filled).map_err(std::io::Error::other)
    }
}

/// The engine that reads objects.
#[derive(Debug)]
pub struct ObjectEngine {
    workers: Workers<ObjectDevice>,
}

impl ObjectEngine {
    /// Starts its threads: so many requests are under way at most.
    pub fn start(objects: Arc<dyn Objects>, requests: usize) -> Self {
        Self { workers: Workers::start(ObjectDevice { objects }, requests.max(1)) }
    }
}

impl BlockIo for ObjectEngine {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        let objects = self.workers.device().objects.as_ref();
        let missing = || Error::io("open", path, &std::io::ErrorKind::NotFound.into());
        let name = object_name(objects, path).ok_or_else(missing)?;
        let found = objects.find(name)?.ok_or_else(missing)?;
        Ok(IoFile::object(path, found.bytes))
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        self.workers.submit(intent, file, windows)
    }

    /// Writes a file of the operating system; objects are written whole, by [`Objects::write`].
    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        self.workers.submit_write(intent, file, offset, bytes)
    }

    fn raise(&self, intent: Intent, handle: &ReadHandle) {
        self.workers.raise(intent, handle);
    }

    fn rules(&self) -> IoRules {
        self.workers.rules()
    }

    fn set_rules(&self, rules: IoRules) {
        self.workers.set_rules(rules);
    }

    fn stats(&self) -> &IoStats {
        self.workers.stats()
    }

    fn pool(&self) -> &Arc<BufferPool> {
        self.workers.pool()
    }

    fn depth(&self) -> &Depth {
        self.workers.depth()
    }
}
