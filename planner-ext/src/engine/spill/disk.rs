//! The bytes of a statement's spill files on disk.
//!
//! All spill files of a statement lie in one file without a name, which goes with the statement, also when the process is
//! killed. A spill file takes ranges of it. Their space is given back to the file system once neither the spill file nor a
//! write needs them; a hole costs the writes under way a wait, so many ranges are freed at once. No range is used twice, so
//! the file has holes, which need no space.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_tier_store::Result;
use terrace_tier_store::io::{AlignedBuffer, BlockIo, Intent, IoFile, ReadHandle};

/// Bytes by which the file is made longer: writes within it need not wait for each other.
const EXTEND_BYTES: u64 = 64 << 20;
/// Bytes of ranges that are freed at once, at least.
const FREED_BYTES: u64 = 16 << 20;

/// The file of one statement.
#[derive(Debug)]
pub(super) struct StatementFile {
    io: Arc<dyn BlockIo>,
    intent: Intent,
    file: Arc<IoFile>,
    end: Mutex<End>,
    unused: Arc<Mutex<Vec<Range<u64>>>>,
}

#[derive(Debug, Default)]
struct End {
    /// Where the next range begins.
    next: u64,
    /// Length of the file.
    len: u64,
}

/// A range of the file. What holds it may read and write there.
#[derive(Debug)]
pub(super) struct DiskRange {
    pub(super) bytes: Range<u64>,
    unused: Arc<Mutex<Vec<Range<u64>>>>,
}

impl Drop for DiskRange {
    /// May run on the engine's thread, which must not wait for the writes under way as a hole does.
    fn drop(&mut self) {
        self.unused.lock().push(self.bytes.clone());
    }
}

impl StatementFile {
    /// Makes an empty file at `path`.
    pub(super) fn create(path: &Path, io: &Arc<dyn BlockIo>, intent: Intent) -> Result<Self> {
        let file = IoFile::create_nameless(path)?;
        Ok(Self { io: Arc::clone(io), intent, file, end: Mutex::default(), unused: Arc::default() })
    }

    /// A range of `bytes`, a multiple of the blocks of a disk, that no other spill file has.
    pub(super) fn take(&self, bytes: u64) -> Result<Arc<DiskRange>> {
        let mut end = self.end.lock();
        let start = end.next;
        if start + bytes > end.len {
            end.len = start + bytes.max(EXTEND_BYTES);
            self.file.extend(end.len)?;
        }
        end.next = start + bytes;
        Ok(Arc::new(DiskRange { bytes: start..start + bytes, unused: Arc::clone(&self.unused) }))
    }

    /// Starts to write whole blocks to an offset in a range.
    pub(super) fn write(&self, range: &Arc<DiskRange>, offset: u64, blocks: AlignedBuffer) -> ReadHandle {
        let handle = self.io.write_as(self.intent, &self.file, offset, blocks);
        handle.keep(Arc::clone(range));
        handle
    }

    /// Starts to read.
    pub(super) fn read(&self, offset: u64, len: usize) -> ReadHandle {
        self.io.read_as(self.intent, &self.file, offset, len)
    }

    /// Frees the space of ranges that are not used any more, if it is much.
    pub(super) fn free_unused(&self) {
        let mut ranges = {
            let mut unused = self.unused.lock();
            let bytes: u64 = unused.iter().map(|range| range.end - range.start).sum();
            if bytes < FREED_BYTES {
                return;
            }
            std::mem::take(&mut *unused)
        };
        ranges.sort_unstable_by_key(|range| range.start);
        for adjacent in ranges.chunk_by(|range, next| range.end == next.start) {
            if let [first, ..] = adjacent
                && let [.., last] = adjacent
            {
                self.file.free(first.start..last.end);
            }
        }
    }
}

#[cfg(test)]
impl StatementFile {
    /// A path at which the file can be inspected while it is open.
    pub(super) fn descriptor_path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.descriptor())
    }
}
