//! An object store in memory, for tests: with a clock of its own, and with faults that its caller switches on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_model::{Error, Result};

use super::AlignedBuffer;
use super::objects::{Objects, StoredObject, object_path};

/// Objects in memory.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    objects: Mutex<BTreeMap<String, Stored>>,
    now_us: AtomicU64,
    failing: AtomicU64,
    cut: AtomicU64,
    lost: AtomicU64,
    requests: AtomicU64,
}

#[derive(Debug, Clone)]
struct Stored {
    bytes: Vec<u8>,
    written_unix_us: u64,
}

impl MemoryObjects {
    /// Lets so many of the next requests fail.
    pub fn fail_next(&self, requests: u64) {
        self.failing.store(requests, Ordering::SeqCst);
    }

    /// Lets the next so many reads end after half of their bytes, without an error.
    pub fn cut_next(&self, reads: u64) {
        self.cut.store(reads, Ordering::SeqCst);
    }

    /// Lets the next so many writes fail after they were carried out, as if their answers were lost.
    pub fn lose_next(&self, writes: u64) {
        self.lost.store(writes, Ordering::SeqCst);
    }

    /// Moves the clock of the store forward.
    pub fn advance_us(&self, us: u64) {
        self.now_us.fetch_add(us, Ordering::SeqCst);
    }

    /// Requests so far, those that failed included.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Changes the bytes of an object in place.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(stored) = self.objects.lock().get_mut(name) {
            change(&mut stored.bytes);
        }
    }

    fn request(&self, action: &'static str, name: &str) -> Result<()> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.fail_if(&self.failing, action, name)
    }

    fn fail_if(&self, faults: &AtomicU64, action: &'static str, name: &str) -> Result<()> {
        let errno = Some(libc::EREMOTEIO);
        match take_one(faults) {
            true => Err(Error::Io { action, path: self.path(name), errno, message: "503 Slow Down".into() }),
            false => Ok(()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        object_path(self, name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let written_unix_us = self.now_us.load(Ordering::SeqCst);
        self.objects.lock().insert(name.to_owned(), Stored { bytes: bytes.to_vec(), written_unix_us });
    }
}

/// Takes one of a number; false when there is none left.
fn take_one(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Stored {
    fn named(&self, name: &str) -> StoredObject {
        let written_unix_us = self.written_unix_us;
        StoredObject { name: name.to_owned(), bytes: self.bytes.len() as u64, written_unix_us }
    }
}

impl Objects for MemoryObjects {
    fn url(&self) -> &str {
        "memory://objects"
    }

    fn read(&self, name: &str, range: Range<u64>, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.request("read", name)?;
        let missing = || Error::io("read", self.path(name), &std::io::ErrorKind::NotFound.into());
        let stored = self.objects.lock().get(name).cloned().ok_or_else(missing)?;
        let end = (range.end as usize).min(stored.bytes.len());
        let found = stored.bytes.get(range.start as usize..end).unwrap_or_default();
        let found = if take_one(&self.cut) { found.get(..found.len() / 2).unwrap_or_default() } else { found };
        // In pieces, as they come from a network.
        found.chunks(1000).for_each(take);
        Ok(())
    }

    fn write(&self, name: &str, bytes: &AlignedBuffer) -> Result<()> {
        self.request("write", name)?;
        self.put(name, bytes.as_slice());
        self.fail_if(&self.lost, "write", name)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.request("write", name)?;
        if self.objects.lock().contains_key(name) {
            return Ok(false);
        }
        self.put(name, bytes);
        Ok(true)
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        self.request("delete", names.first().map_or("", String::as_str))?;
        self.objects.lock().retain(|name, _| !names.contains(name));
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Option<StoredObject>> {
        self.request("inspect", name)?;
        Ok(self.objects.lock().get(name).map(|stored| stored.named(name)))
    }

    fn list(&self) -> Result<Vec<StoredObject>> {
        self.request("list", "")?;
        Ok(self.objects.lock().iter().map(|(name, stored)| stored.named(name)).collect())
    }
}
