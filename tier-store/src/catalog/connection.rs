//! The database behind a catalog, and what becomes of it when the disk refuses a write.
//!
//! ```text
//!   well --a commit fails--> failing: every write is refused, reads go on from what redb has in memory
//!     ^                          |
//!     '--------resume()----------+-- reopen(): is there room? close, open, look, write --fails--> failing
//! ```
//!
//! redb takes no more part in a file after an I/O error, so the file is opened anew. Commits that were queued before
//! [`Connection::resume`] build on what failed; they carry an older generation and are refused.
//!
//! Each transaction puts its number, so that the file says afterwards whether the one that failed is in it.

use std::path::Path;

use parking_lot::{Mutex, RwLock};
use redb::{Database, Durability, ReadableDatabase};

use super::format::{self, FORMAT_KEY, FORMAT_VERSION};
use super::frozen::Frozen;
use super::sealed::ADVICE;
use super::snapshot::{Origin, Snapshot, close, guarded};
use super::{
    CatalogFault, Change, Commit, LAST_COMMIT_KEY, Space, catalog_error, frozen_database, key, key_part, open_error,
    successor, write_error,
};
use crate::error::{Error, Result};
use crate::io::FileSystem;

/// What has to fit on the disk before the catalog is opened again.
const PROBE_BYTES: usize = 1 << 20;

/// The last commit, read from the disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) snapshot: Snapshot,
    database: Option<Database>,
    _held: Snapshot,
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        close(self.database.take());
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    origin: Origin,
    cache_bytes: usize,
    /// `None` after it was closed and could not be opened again.
    database: RwLock<Option<Database>>,
    /// Held while a transaction is written.
    writing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How often writing was resumed.
    generation: u64,
    /// The number of the last numbered commit that is durable.
    durable: Option<u64>,
    /// The number of the last transaction that is durable.
    last_commit: u64,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    error: Error,
    /// What failed was to change something that the server has in memory too.
    is_of_memory: bool,
    /// It was not the disk that refused.
    may_be_damage: bool,
    /// Where there were changes.
    spaces: Vec<Space>,
}

impl Failure {
    fn new(error: &Error, group: &[Commit]) -> Self {
        let in_memory =
            |space: &Space| *space == Space::Objects || Space::OF_TABLES.contains(space) && *space != Space::Heat;
        let changed = |space: &Space| group.iter().flat_map(|commit| &commit.changes).any(|change| change.0 == *space);
        let spaces: Vec<Space> = Space::ALL.into_iter().filter(changed).collect();
        Self {
            is_of_memory: spaces.iter().any(in_memory),
            may_be_damage: matches!(error, Error::Corrupt { .. } | Error::Catalog(_)),
            error: refusal(error),
            spaces,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        close(self.database.get_mut().take());
    }
}

impl Connection {
    pub(super) fn new(database: Database, origin: Origin, cache_bytes: usize) -> Self {
        let database = RwLock::new(Some(database));
        let opened = Self { origin, cache_bytes, database, writing: Mutex::default(), state: Mutex::default() };
        // Damage is for those who ask for it.
        opened.state.lock().last_commit = opened.last_commit().unwrap_or_default();
        opened
    }

    pub(super) fn path(&self) -> &Path {
        &self.origin.path
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let database = self.database.read();
        let closed = || Error::Catalog("the disk failed, and it could not be opened again yet".into());
        let read = guarded(|| database.as_ref().map(Database::begin_read))?.ok_or_else(closed)?;
        Ok(Snapshot::new(read.map_err(catalog_error)?, self.origin.clone()))
    }

    /// The catalog as the disk has it, and not what redb keeps of it in memory.
    pub(super) fn on_disk(&self) -> Result<OnDisk> {
        // Whoever opens a database reads where the last commit is; afterwards the pages of that commit stay while it is held.
        let _writing = self.writing.lock();
        let held = self.snapshot()?;
        let database = frozen_database(Frozen::of_open_file(self.path())?, self.path(), self.cache_bytes)?;
        let read = guarded(|| database.begin_read())?.map_err(catalog_error)?;
        let database = Some(database);
        Ok(OnDisk { snapshot: Snapshot::new(read, self.origin.clone()), database, _held: held })
    }

    #[cfg(test)]
    pub(super) fn with_database(&self, work: impl FnOnce(&Database)) {
        work(self.database.read().as_ref().unwrap_or_else(|| unreachable!("it is open")));
    }

    /// As after a failed write and a failed reopen.
    #[cfg(test)]
    pub(super) fn fail_closed(&self, error: &Error) {
        self.state.lock().failure = Some(Failure::new(error, &[]));
        close(self.database.write().take());
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// The number of the last numbered commit that is durable.
    pub(super) fn durable(&self) -> Option<u64> {
        self.state.lock().durable
    }

    /// Why writes are refused; `None` while they are not.
    pub(super) fn failure(&self) -> Option<Error> {
        self.state.lock().failure.as_ref().map(|failure| failure.error.clone())
    }

    /// Makes commits durable in one transaction, in order. Those of an older generation are refused.
    pub(super) fn apply(&self, group: Vec<(u64, Commit)>) -> Vec<Result<()>> {
        let refused = {
            let state = self.state.lock();
            let failed = state.failure.as_ref().map(|failure| failure.error.clone());
            let stale =
                || Error::ReadOnly { errno: None, what: "what this builds on was not stored; try again".into() };
            let refuse = |(generation, _): &(u64, Commit)| match &failed {
                Some(error) => Some(error.clone()),
                None => (*generation != state.generation).then(stale),
            };
            group.iter().map(refuse).collect::<Vec<_>>()
        };
        let taken = group.into_iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let mut taken: Vec<Commit> = taken.map(|((_, commit), _)| commit).collect();
        let mut result = Ok(());
        if !taken.is_empty() {
            let number = self.state.lock().last_commit + 1;
            taken.push(numbered(number));
            result = self.write(&taken);
            self.note(&result, number, &taken);
        }
        let result = result.map_err(|error| refusal(&error));
        let answer = |refused: Option<Error>| refused.map_or_else(|| result.clone(), Err);
        refused.into_iter().map(answer).collect()
    }

    fn note(&self, result: &Result<()>, number: u64, group: &[Commit]) {
        let mut state = self.state.lock();
        match result {
            Ok(()) => {
                state.last_commit = number;
                state.durable = group.iter().filter_map(|commit| commit.number).max().max(state.durable);
            }
            Err(error) => {
                tracing::error!(%error, "the catalog cannot write; writes are refused until it can be opened again");
                state.failure = Some(Failure::new(error, group));
            }
        }
    }

    fn write(&self, group: &[Commit]) -> Result<()> {
        let what = || format!("a page that a write needs is damaged. {ADVICE}");
        guarded(|| self.write_pages(group)).map_err(|_| Error::Corrupt { path: self.path().into(), what: what() })?
    }

    fn write_pages(&self, group: &[Commit]) -> Result<()> {
        let _writing = self.writing.lock();
        let database = self.database.read();
        let database = database.as_ref().ok_or_else(|| Error::Catalog("it is closed".into()))?;
        let failed = |error: redb::Error| write_error(self.path(), error);
        let mut transaction = database.begin_write().map_err(|e| failed(e.into()))?;
        transaction.set_durability(Durability::Immediate).map_err(catalog_error)?;
        transaction.set_quick_repair(true);
        for space in Space::ALL {
            let mut changes = group.iter().flat_map(|commit| &commit.changes).filter(|c| c.0 == space).peekable();
            if changes.peek().is_none() {
                continue;
            }
            let mut table = transaction.open_table(space.definition()).map_err(|e| failed(e.into()))?;
            for (_, key, change) in changes {
                match change {
                    Change::Put(value) => table.insert(key.as_slice(), value.as_slice()).map(drop),
                    Change::Delete => table.remove(key.as_slice()).map(drop),
                    Change::DeletePrefix => match successor(key) {
                        Some(end) => table.retain_in::<&[u8], _>(key.as_slice()..end.as_slice(), |_, _| false),
                        None => table.retain_in::<&[u8], _>(key.as_slice().., |_, _| false),
                    },
                }
                .map_err(|e| failed(e.into()))?;
            }
        }
        transaction.commit().map_err(|e| failed(e.into()))
    }

    /// Opens the database again after a failed write, and proves that it can be written. Writes stay refused until
    /// [`Connection::resume`]. Nothing happens while none failed.
    ///
    /// # Errors
    /// Why not yet; that is the reason of refusals from then on.
    pub(super) fn reopen(&self, files: &dyn FileSystem) -> Result<()> {
        if self.failure().is_none() {
            return Ok(());
        }
        self.try_reopen(files).inspect_err(|error| {
            if let Some(failure) = &mut self.state.lock().failure {
                failure.error = refusal(error);
            }
        })
    }

    fn try_reopen(&self, files: &dyn FileSystem) -> Result<()> {
        // A database that is closed cannot be read: first see that it is whole and there, and that there is room to open it.
        if let Some(fault) = self.damaged_page() {
            return Err(fault.error(self.path()));
        }
        if files.len(self.path())?.is_none_or(|bytes| bytes == 0) {
            return Err(self.misplaced("is missing or empty: mount its disk, or put it back"));
        }
        let probe = self.path().with_extension("redb.probe");
        let probed = files.write(&probe, &vec![0; PROBE_BYTES]);
        let removed = files.remove_file(&probe);
        probed.and(removed)?;
        self.open_again(files)?;
        let last_commit = self.settle_failed()?;
        let mut trial = Commit::default();
        trial.put(Space::Meta, FORMAT_KEY.to_vec(), FORMAT_VERSION.to_be_bytes().to_vec());
        self.write(&[trial, numbered(last_commit)])
    }

    /// A damaged page where what failed was to be written.
    fn damaged_page(&self) -> Option<CatalogFault> {
        let spaces = {
            let state = self.state.lock();
            state.failure.as_ref().filter(|failure| failure.may_be_damage)?.spaces.clone()
        };
        self.snapshot().ok()?.faults(&spaces).into_iter().find(CatalogFault::is_of_pages)
    }

    fn open_again(&self, files: &dyn FileSystem) -> Result<()> {
        let mut slot = self.database.write();
        // Its lock on the file goes with it.
        close(slot.take());
        let mut settings = Database::builder();
        settings.set_cache_size(self.cache_bytes);
        let opened = guarded(|| files.open_database(&settings, self.path()))?;
        let opened = opened.map_err(|e| open_error(self.path(), e))?;
        match format::version(&opened, self.path()) {
            Ok(Some(FORMAT_VERSION)) => {
                *slot = Some(opened);
                Ok(())
            }
            found => {
                close(Some(opened));
                found.and_then(|_| Err(self.misplaced("is not the catalog that was there: put that back")))
            }
        }
    }

    fn misplaced(&self, what: &str) -> Error {
        Error::ReadOnly { errno: None, what: format!("{} {what}", self.path().display()) }
    }

    /// Finds out what became of the commits that failed: of one transaction all are on the disk, or none. Returns the number
    /// of the last transaction that is.
    ///
    /// # Errors
    /// When writes would not fit what the server has in memory.
    fn settle_failed(&self) -> Result<u64> {
        let found = self.last_commit()?;
        let mut state = self.state.lock();
        let Some(failure) = &state.failure else { return Ok(found) };
        if found != state.last_commit && found != state.last_commit + 1 {
            return Err(self.misplaced("is not the catalog that was there: put that back, or restart the server"));
        }
        if found != state.last_commit && failure.is_of_memory {
            let what = "the disk refused a commit that it holds all the same; restart the server to go on from it";
            return Err(Error::ReadOnly { errno: None, what: what.into() });
        }
        state.last_commit = found;
        Ok(found)
    }

    fn last_commit(&self) -> Result<u64> {
        let stored = self.snapshot()?.get(Space::Meta, LAST_COMMIT_KEY)?;
        Ok(stored.map_or(0, |number| key_part(&number, 0)))
    }

    /// Writes are taken again.
    pub(super) fn resume(&self) {
        let mut state = self.state.lock();
        if state.failure.take().is_some() {
            state.generation += 1;
        }
    }
}

/// Puts the number of a transaction.
fn numbered(number: u64) -> Commit {
    let mut commit = Commit::default();
    commit.put(Space::Meta, LAST_COMMIT_KEY.to_vec(), key(&[number]));
    commit
}

/// What writers hear from a failure on.
fn refusal(error: &Error) -> Error {
    let errno = match error {
        Error::Io { errno, .. } | Error::ReadOnly { errno, .. } => *errno,
        _ => None,
    };
    match error {
        Error::ReadOnly { .. } | Error::Corrupt { .. } => error.clone(),
        other => Error::ReadOnly { errno, what: other.to_string() },
    }
}
