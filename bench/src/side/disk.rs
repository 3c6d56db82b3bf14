//! Raw writes to the disk: bytes written in order to one file, or pages one by one, and made durable, without Terrace.
//!
//! The reference for writes, so it does nothing else: one thread, one file, `write` and `fsync`, of bytes that do not
//! compress. Large writes are tried through the page cache and around it (O_DIRECT); the faster way counts. Files are
//! removed after the clock has stopped.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use terrace_tier_store::io::AlignedBuffer;

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

const BLOCK_BYTES: usize = 4 << 20;
/// Bytes of one insert of the reference.
const PAGE_BYTES: usize = 4096;
/// Pages of the file that updates change.
const UPDATED_PAGES: u64 = 16_384;

/// The side.
pub struct Disk {
    file: PathBuf,
    block: AlignedBuffer,
}

impl Disk {
    /// Writes into `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        let mut block = vec![0; BLOCK_BYTES];
        StdRng::seed_from_u64(1).fill_bytes(&mut block);
        Ok(Self { file: folder.join("raw"), block: AlignedBuffer::copy_of(&block, PAGE_BYTES)? })
    }

    /// Writes `bytes`, rounded up to whole pages, with one fsync; returns the faster of two ways.
    fn write(&self, bytes: usize) -> Result<Sample> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let cached = self.write_with(bytes, 0)?;
        let direct = self.write_with(bytes, libc::O_DIRECT)?;
        let sample = Sample::new(cached.min(direct)).with("bytes", bytes as f64);
        Ok(sample.with("cached_ms", cached).with("direct_ms", direct))
    }

    fn write_with(&self, bytes: usize, flags: i32) -> Result<f64> {
        let failed = || Error::path("write", &self.file);
        let start = Instant::now();
        let open = File::options().write(true).create(true).truncate(true).custom_flags(flags).open(&self.file);
        let mut file = open.map_err(failed())?;
        let mut left = bytes;
        while left > 0 {
            let block = self.block.as_slice();
            let part = block.get(..left.min(BLOCK_BYTES)).unwrap_or(block);
            file.write_all(part).map_err(failed())?;
            left -= part.len();
        }
        file.sync_all().map_err(failed())?;
        let ms = ms_since(start);
        self.remove()?;
        Ok(ms)
    }

    /// Appends pages to one file, each with an fsync, for `duration`.
    fn inserts(&self, duration: Duration) -> Result<Sample> {
        let failed = || Error::path("write", &self.file);
        let page = self.block.as_slice().get(..PAGE_BYTES).unwrap_or_default();
        let mut file = File::create(&self.file).map_err(failed())?;
        let start = Instant::now();
        let mut inserts = 0.0;
        while start.elapsed() < duration {
            file.write_all(page).and_then(|()| file.sync_all()).map_err(failed())?;
            inserts += 1.0;
        }
        let ms = ms_since(start);
        self.remove()?;
        Ok(Sample::new(ms).with("inserts", inserts))
    }

    /// Appends pages to a new file for `duration`, each around the page cache and durable before the next. Unlike
    /// [`Self::inserts`] they meet a control group's limit of writes.
    fn appends(&self, duration: Duration) -> Result<Sample> {
        drop(File::create(&self.file).map_err(Error::path("write", &self.file))?);
        self.write_pages("appends", duration, |number| number)
    }

    /// Writes pages of a file at random places for `duration`, like appends.
    fn updates(&self, duration: Duration) -> Result<Sample> {
        let failed = || Error::path("write", &self.file);
        let mut random = StdRng::seed_from_u64(1);
        let mut whole = File::create(&self.file).map_err(failed())?;
        for _ in 0..UPDATED_PAGES * PAGE_BYTES as u64 / BLOCK_BYTES as u64 {
            whole.write_all(self.block.as_slice()).map_err(failed())?;
        }
        whole.sync_all().map_err(failed())?;
        self.write_pages("updates", duration, |_| random.random_range(0..UPDATED_PAGES))
    }

    /// Writes pages of the file for `duration`, counted as `what`; `place` returns the page of each write. Removes the file.
    fn write_pages(&self, what: &str, duration: Duration, mut place: impl FnMut(u64) -> u64) -> Result<Sample> {
        let failed = || Error::path("write", &self.file);
        let page = self.block.as_slice().get(..PAGE_BYTES).unwrap_or_default();
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let file = File::options().write(true).custom_flags(flags).open(&self.file).map_err(failed())?;
        let start = Instant::now();
        let mut writes = 0;
        while start.elapsed() < duration {
            file.write_all_at(page, place(writes) * PAGE_BYTES as u64).map_err(failed())?;
            writes += 1;
        }
        let ms = ms_since(start);
        self.remove()?;
        Ok(Sample::new(ms).with(what, writes as f64))
    }

    fn remove(&self) -> Result<()> {
        std::fs::remove_file(&self.file).map_err(Error::path("remove", &self.file))
    }
}

impl Side for Disk {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let number = |text: &str| text.parse::<usize>().map_err(|_| unknown(op));
        match op.split_once(' ') {
            Some(("write", bytes)) => self.write(number(bytes)?),
            Some(("appends", ms)) => self.appends(Duration::from_millis(number(ms)? as u64)),
            Some(("updates", ms)) => self.updates(Duration::from_millis(number(ms)? as u64)),
            Some(("inserts", ms)) => self.inserts(Duration::from_millis(number(ms)? as u64)),
            _ => Err(unknown(op)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pages_are_written_one_by_one_and_bad_requests_are_refused() {
        let folder = std::env::temp_dir().join(format!("terrace-bench-disk-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut side = Disk::new(&folder).unwrap();
        for what in ["inserts", "appends", "updates"] {
            let sample = match side.run(&format!("{what} 20")) {
                // O_DIRECT does not exist everywhere.
                Err(Error::Io { .. }) if what != "inserts" => continue,
                sample => sample.unwrap(),
            };
            assert!(sample.value(what) > 0.0 && sample.ms >= 20.0, "{what}: {sample:?}");
            assert!(!folder.join("raw").exists(), "{what} leaves its file");
        }
        for bad in ["appends", "appends x", "reads 20"] {
            assert!(side.run(bad).unwrap_err().to_string().contains("does not know"), "{bad}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
