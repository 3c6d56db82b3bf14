//! Opens a file without ever writing it: changes stay in memory (copy on write).
//!
//! redb repairs a database that was not closed when it opens it. Tools that promise not to modify a catalog open it as
//! an [`OverlayFile`]: reads see the file, writes go to pages in memory above it. It takes a shared lock, so no server
//! writes the file meanwhile.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;
use terrace_model::{Error, Result};

use crate::io::files::RandomAccessFile;

const PAGE_BYTES: u64 = 4096;

/// A file, and the pages in memory that override it.
#[derive(Debug)]
pub(super) struct OverlayFile {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// Bytes of the file that are part of the contents; beyond them are zeros.
    file_len: u64,
    /// Changed pages, by their number.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl OverlayFile {
    /// Opens `path` with a shared lock. Fails with [`Error::Locked`] while a server has it open.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("open", path, &e))?;
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.parent().unwrap_or(path).to_owned();
                return Err(Error::Locked { path, holder: "unknown".into() });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", path, &error)),
        }
        Self::new(file, path)
    }

    /// Like `open`, for a file that this process has locked. The caller keeps the pages that are read from being
    /// reused.
    pub(super) fn of_open_file(path: &Path) -> Result<Self> {
        Self::new(File::open(path).map_err(|e| Error::io("open", path, &e))?, path)
    }

    fn new(file: File, path: &Path) -> Result<Self> {
        let len = file.metadata().map_err(|e| Error::io("open", path, &e))?.len();
        Ok(Self { file, state: Mutex::new(State { len, file_len: len, pages: BTreeMap::new() }) })
    }

    /// True for a file without bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().len == 0
    }

    /// Fills `out` from the file at `offset`, and with zeros beyond `file_len`.
    fn read_file(&self, file_len: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(file_len.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let (old, new) = out.split_at_mut(there);
        new.fill(0);
        self.file.read_exact_at(old, offset)
    }
}

/// The part of a range of bytes that lies in one page.
struct PagePart {
    /// Number of the page.
    page: u64,
    /// The part within the page.
    in_page: Range<usize>,
    /// The part within the range of bytes.
    in_bytes: Range<usize>,
}

/// Divides `len` bytes at `offset` at the boundaries of pages.
fn page_parts(offset: u64, len: usize) -> impl Iterator<Item = PagePart> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let part = (PAGE_BYTES as usize - within).min(len - done);
        let in_page = within..within + part;
        let in_bytes = done..done + part;
        done += part;
        (part > 0).then_some(PagePart { page: at / PAGE_BYTES, in_page, in_bytes })
    })
}

fn beyond() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the catalog file ends before the bytes to read")
}

impl RandomAccessFile for OverlayFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.len) {
            return Err(beyond());
        }
        self.read_file(state.file_len, offset, out)?;
        for PagePart { page, in_page, in_bytes } in page_parts(offset, out.len()) {
            let changed = state.pages.get(&page).and_then(|bytes| bytes.get(in_page));
            if let (Some(changed), Some(out)) = (changed, out.get_mut(in_bytes)) {
                out.copy_from_slice(changed);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.len {
            let pages = len.div_ceil(PAGE_BYTES);
            state.pages.split_off(&pages);
            let cut = (len % PAGE_BYTES) as usize;
            if let Some(last) = state.pages.get_mut(&(len / PAGE_BYTES)).and_then(|page| page.get_mut(cut..)) {
                last.fill(0);
            }
        }
        state.file_len = state.file_len.min(len);
        state.len = len;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > state.len) {
            return Err(beyond());
        }
        let file_len = state.file_len;
        for PagePart { page, in_page, in_bytes } in page_parts(offset, bytes.len()) {
            if let Entry::Vacant(entry) = state.pages.entry(page) {
                let mut copy = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                self.read_file(file_len, page * PAGE_BYTES, &mut copy)?;
                entry.insert(copy);
            }
            let target = state.pages.get_mut(&page).and_then(|copy| copy.get_mut(in_page));
            if let (Some(target), Some(bytes)) = (target, bytes.get(in_bytes)) {
                target.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(usize, Vec<u8>),
        Resize(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let bytes = proptest::collection::vec(any::<u8>(), 1..9000);
        prop_oneof![
            (0..30_000usize, bytes).prop_map(|(at, b)| Step::Write(at, b)),
            (0..30_000usize).prop_map(Step::Resize)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Compares with a plain vector; the file itself never changes.
        #[test]
        fn it_behaves_as_a_file_and_leaves_the_file_alone(steps in proptest::collection::vec(step(), 1..30)) {
            let file = tempfile::NamedTempFile::new().unwrap();
            let original: Vec<u8> = (0..20_000u32).map(|i| (i / 7) as u8).collect();
            std::fs::write(file.path(), &original).unwrap();
            let overlay = OverlayFile::open(file.path()).unwrap();
            let mut model = original.clone();
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let fits = at + bytes.len() <= model.len();
                        prop_assert_eq!(overlay.write(at as u64, &bytes).is_ok(), fits);
                        if fits {
                            model[at..at + bytes.len()].copy_from_slice(&bytes);
                        }
                    }
                    Step::Resize(len) => {
                        overlay.set_len(len as u64).unwrap();
                        model.resize(len, 0);
                    }
                }
                let mut all = vec![9; model.len()];
                overlay.read(0, &mut all).unwrap();
                prop_assert!(all == model);
                prop_assert!(overlay.read(1, &mut all).is_err() || all.is_empty());
            }
            prop_assert_eq!(std::fs::read(file.path()).unwrap(), original);
        }
    }
}
