//! A catalog file that is looked at and never written: what opening it would change stays in memory.
//!
//! A database that was not closed repairs itself when it is opened. Tools that promise not to modify what they look at
//! open it through [`Frozen`]: reads see the file, writes go to pages in memory above it. The file is locked for
//! sharing, so nobody writes it meanwhile.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::Mutex;
use redb::StorageBackend;

use crate::error::{Error, Result};

const PAGE_BYTES: u64 = 4096;

/// A file below pages in memory.
#[derive(Debug)]
pub(super) struct Frozen {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// Bytes of the file that are still part of the contents; beyond them are zeros.
    from_file: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Frozen {
    /// Opens `path` and locks it for sharing. Fails with [`Error::Locked`] while a server has it open.
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
        Self::over(file, path)
    }

    /// The same over a file that this process has locked: who has it open keeps what is read in its place.
    pub(super) fn of_open_file(path: &Path) -> Result<Self> {
        Self::over(File::open(path).map_err(|e| Error::io("open", path, &e))?, path)
    }

    fn over(file: File, path: &Path) -> Result<Self> {
        let len = file.metadata().map_err(|e| Error::io("open", path, &e))?.len();
        Ok(Self { file, state: Mutex::new(State { len, from_file: len, pages: BTreeMap::new() }) })
    }

    /// True for a file without bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().len == 0
    }

    /// Fills `out` with what the file has at `offset`, and zeros beyond its end.
    fn read_file(&self, from_file: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(from_file.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let (old, new) = out.split_at_mut(there);
        new.fill(0);
        self.file.read_exact_at(old, offset)
    }
}

/// The parts of `len` bytes at `offset` by page: number of the page, start within it, start within the bytes, length.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let part = (PAGE_BYTES as usize - within).min(len - done);
        let found = (part > 0).then_some((at / PAGE_BYTES, within, done, part));
        done += part;
        found
    })
}

fn beyond() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the catalog ends before what is read from it")
}

impl StorageBackend for Frozen {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.len) {
            return Err(beyond());
        }
        self.read_file(state.from_file, offset, out)?;
        for (page, within, start, len) in parts(offset, out.len()) {
            let changed = state.pages.get(&page).and_then(|bytes| bytes.get(within..within + len));
            if let (Some(changed), Some(out)) = (changed, out.get_mut(start..start + len)) {
                out.copy_from_slice(changed);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.len {
            let kept = len.div_ceil(PAGE_BYTES);
            state.pages.split_off(&kept);
            let cut = (len % PAGE_BYTES) as usize;
            if let Some(last) = state.pages.get_mut(&(len / PAGE_BYTES)).and_then(|page| page.get_mut(cut..)) {
                last.fill(0);
            }
        }
        state.from_file = state.from_file.min(len);
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > state.len) {
            return Err(beyond());
        }
        let from_file = state.from_file;
        for (page, within, start, len) in parts(offset, data.len()) {
            if let Entry::Vacant(entry) = state.pages.entry(page) {
                let mut bytes = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                self.read_file(from_file, page * PAGE_BYTES, &mut bytes)?;
                entry.insert(bytes);
            }
            let target = state.pages.get_mut(&page).and_then(|bytes| bytes.get_mut(within..within + len));
            if let (Some(target), Some(data)) = (target, data.get(start..start + len)) {
                target.copy_from_slice(data);
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
        /// Against a plain vector; the file itself never changes.
        #[test]
        fn it_behaves_as_a_file_and_leaves_the_file_alone(steps in proptest::collection::vec(step(), 1..30)) {
            let file = tempfile::NamedTempFile::new().unwrap();
            let original: Vec<u8> = (0..20_000u32).map(|i| (i / 7) as u8).collect();
            std::fs::write(file.path(), &original).unwrap();
            let frozen = Frozen::open(file.path()).unwrap();
            let mut model = original.clone();
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        let fits = at + bytes.len() <= model.len();
                        prop_assert_eq!(frozen.write(at as u64, &bytes).is_ok(), fits);
                        if fits {
                            model[at..at + bytes.len()].copy_from_slice(&bytes);
                        }
                    }
                    Step::Resize(len) => {
                        frozen.set_len(len as u64).unwrap();
                        model.resize(len, 0);
                    }
                }
                let mut all = vec![9; model.len()];
                frozen.read(0, &mut all).unwrap();
                prop_assert!(all == model);
                prop_assert!(frozen.read(1, &mut all).is_err() || all.is_empty());
            }
            prop_assert_eq!(std::fs::read(file.path()).unwrap(), original);
        }
    }
}
