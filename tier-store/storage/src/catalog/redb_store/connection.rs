//! The connection of a store to its database, and recovery after the disk refused a write.
//!
//! ```text
//!   well --a commit fails--> failing: every write is refused, redb serves reads from memory
//!     ^                          |
//!     '--------resume()----------+-- reopen(): check room, close, open, verify, write --fails--> failing
//! ```
//!
//! redb stops using a file after an I/O error, so the connection reopens it. Commits that were queued
//! before [`Connection::resume`] build on the failed one; they have an older generation and are refused.
//!
//! Each transaction stores its number, which shows afterwards whether the failed one is in the file.

use std::path::Path;

use parking_lot::{Mutex, RwLock};
use redb::{Database, Durability, ReadableTable};
use terrace_model::{Error, Result};

use super::entries::{EntriesOnDisk, RedbEntries};
use super::format::{self, FORMAT_KEY, FORMAT_VERSION};
use super::overlay_file::OverlayFile;
use super::storage::open_database;
use super::{catalog_error, catch_panic, close, definition, open_error, read_only_database, successor, write_error};
use crate::catalog::commit::{Action, Commit};
use crate::catalog::sealed::{ADVICE, CatalogFault};
use crate::catalog::snapshot::{Origin, Snapshot};
use crate::catalog::{LAST_COMMIT_KEY, Space, key, key_part};
use crate::io::FileSystem;

/// Free bytes that the disk must have before the catalog is reopened.
const PROBE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    origin: Origin,
    cache_bytes: usize,
    /// `None` after it was closed and could not be reopened.
    database: RwLock<Option<Database>>,
    /// Locked while a transaction is written.
    writing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of times that writing was resumed.
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
    /// The failed commits changed values that the server has in memory too.
    is_in_memory: bool,
    /// The error may come from a damaged page instead of the disk.
    may_be_damage: bool,
    /// Spaces that the failed commits changed.
    spaces: Vec<Space>,
}

impl Failure {
    fn new(error: &Error, group: &[Commit]) -> Self {
        let in_memory =
            |space: &Space| *space == Space::Objects || Space::OF_TABLES.contains(space) && *space != Space::Heat;
        let changed =
            |space: &Space| group.iter().flat_map(|commit| &commit.changes).any(|change| change.space == *space);
        let spaces: Vec<Space> = Space::ALL.into_iter().filter(changed).collect();
        Self {
            is_in_memory: spaces.iter().any(in_memory),
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
        // Damage is ignored here; the operations that need the value report it.
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
        self.entries().map(RedbEntries::into_snapshot)
    }

    fn entries(&self) -> Result<RedbEntries> {
        let database = self.database.read();
        let closed = || Error::Catalog("the disk failed, and the catalog could not be reopened yet".into());
        RedbEntries::read(database.as_ref().ok_or_else(closed)?, self.origin.clone())
    }

    /// Reads the last commit as stored on the disk, without the pages that redb has in memory.
    pub(super) fn snapshot_on_disk(&self) -> Result<Snapshot> {
        // Opening a database reads the position of the last commit, so no transaction may be written meanwhile.
        // Afterwards the pinned entries keep the pages of that commit.
        let _writing = self.writing.lock();
        let pinned = self.entries()?;
        let database = read_only_database(OverlayFile::of_open_file(self.path())?, self.path(), self.cache_bytes)?;
        let entries = RedbEntries::read(&database, self.origin.clone())?;
        let on_disk = EntriesOnDisk { entries, database: Some(database), _pinned: pinned };
        Ok(Snapshot::new(on_disk, self.origin.clone()))
    }

    /// Flips a bit of a stored value and lets redb compute its checksums for it; for tests.
    pub(super) fn damage(&self, space: Space, key: &[u8], bit: usize) -> Result<()> {
        let database = self.database.read();
        let absent = || Error::Catalog("the value does not exist".into());
        let write = database.as_ref().ok_or_else(absent)?.begin_write().map_err(catalog_error)?;
        {
            let mut table = write.open_table(definition(space)).map_err(catalog_error)?;
            let mut value = table.get(key).map_err(catalog_error)?.ok_or_else(absent)?.value().to_vec();
            let at = bit / 8 % value.len().max(1);
            if let Some(byte) = value.get_mut(at) {
                *byte ^= 1 << (bit % 8);
            }
            table.insert(key, value.as_slice()).map_err(catalog_error)?;
        }
        write.commit().map_err(catalog_error)
    }

    /// Brings the connection into the state after a failed write and a failed reopen; for tests.
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
            let stale = || Error::ReadOnly { errno: None, what: "an earlier change was not stored; try again".into() };
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
            self.record_result(&result, number, &taken);
        }
        let result = result.map_err(|error| refusal(&error));
        let answer = |refused: Option<Error>| refused.map_or_else(|| result.clone(), Err);
        refused.into_iter().map(answer).collect()
    }

    /// Records the result of a transaction.
    fn record_result(&self, result: &Result<()>, number: u64, group: &[Commit]) {
        let mut state = self.state.lock();
        match result {
            Ok(()) => {
                state.last_commit = number;
                state.durable = group.iter().filter_map(|commit| commit.number).max().max(state.durable);
            }
            Err(error) => {
                tracing::error!(%error, "the catalog cannot write; it refuses writes until it is reopened");
                state.failure = Some(Failure::new(error, group));
            }
        }
    }

    fn write(&self, group: &[Commit]) -> Result<()> {
        let what = || format!("a page that a write needs is damaged. {ADVICE}");
        catch_panic(|| self.write_pages(group))
            .map_err(|_| Error::Corrupt { path: self.path().into(), what: what() })?
    }

    fn write_pages(&self, group: &[Commit]) -> Result<()> {
        let _writing = self.writing.lock();
        let database = self.database.read();
        let database = database.as_ref().ok_or_else(|| Error::Catalog("the catalog is closed".into()))?;
        let failed = |error: redb::Error| write_error(self.path(), error);
        let mut transaction = database.begin_write().map_err(|e| failed(e.into()))?;
        transaction.set_durability(Durability::Immediate).map_err(catalog_error)?;
        transaction.set_quick_repair(true);
        for space in Space::ALL {
            let mut changes =
                group.iter().flat_map(|commit| &commit.changes).filter(|change| change.space == space).peekable();
            if changes.peek().is_none() {
                continue;
            }
            let mut table = transaction.open_table(definition(space)).map_err(|e| failed(e.into()))?;
            for change in changes {
                let key = change.key.as_slice();
                match &change.action {
                    Action::Put(value) => table.insert(key, value.as_slice()).map(drop),
                    Action::Delete => table.remove(key).map(drop),
                    Action::DeletePrefix => match successor(key) {
                        Some(end) => table.retain_in::<&[u8], _>(key..end.as_slice(), |_, _| false),
                        None => table.retain_in::<&[u8], _>(key.., |_, _| false),
                    },
                }
                .map_err(|e| failed(e.into()))?;
            }
        }
        transaction.commit().map_err(|e| failed(e.into()))
    }

    /// Reopens the database after a failed write, and verifies that it can be written. Writes stay refused until
    /// [`Connection::resume`]. Does nothing if no write failed.
    ///
    /// # Errors
    /// The reason why it cannot be written yet, which later refusals give too.
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
        // A closed database cannot be read. So check first that the file is there and undamaged, and that there is room
        // to open it.
        if let Some(fault) = self.damaged_page() {
            return Err(fault.error(self.path()));
        }
        if files.len(self.path())?.is_none_or(|bytes| bytes == 0) {
            return Err(self.misplaced("is missing or empty: mount its disk, or restore the file"));
        }
        let probe = self.path().with_extension("redb.probe");
        let probed = files.write(&probe, &vec![0; PROBE_BYTES]);
        let removed = files.remove_file(&probe);
        probed.and(removed)?;
        self.open_again(files)?;
        let last_commit = self.resolve_failed_commit()?;
        let mut trial = Commit::default();
        trial.put(Space::Meta, FORMAT_KEY.to_vec(), FORMAT_VERSION.to_be_bytes().to_vec());
        self.write(&[trial, numbered(last_commit)])
    }

    /// Finds a damaged page in the spaces that the failed commits changed.
    fn damaged_page(&self) -> Option<CatalogFault> {
        let spaces = {
            let state = self.state.lock();
            state.failure.as_ref().filter(|failure| failure.may_be_damage)?.spaces.clone()
        };
        self.snapshot().ok()?.faults(&spaces).into_iter().find(CatalogFault::is_page_damage)
    }

    fn open_again(&self, files: &dyn FileSystem) -> Result<()> {
        let mut slot = self.database.write();
        // Closing it releases its lock on the file.
        close(slot.take());
        let mut settings = Database::builder();
        settings.set_cache_size(self.cache_bytes);
        let opened = catch_panic(|| open_database(files, &settings, self.path()))?;
        let opened = opened.map_err(|e| open_error(self.path(), e))?;
        match format::version(&opened, self.path()) {
            Ok(Some(FORMAT_VERSION)) => {
                *slot = Some(opened);
                Ok(())
            }
            found => {
                close(Some(opened));
                found.and_then(|_| Err(self.misplaced("is not the catalog of this server: restore that")))
            }
        }
    }

    fn misplaced(&self, what: &str) -> Error {
        Error::ReadOnly { errno: None, what: format!("{} {what}", self.path().display()) }
    }

    /// Finds out whether the failed transaction is on the disk, with all of its commits or none. Returns the number of
    /// the last transaction on the disk.
    ///
    /// # Errors
    /// When the file differs from what the server has in memory.
    fn resolve_failed_commit(&self) -> Result<u64> {
        let found = self.last_commit()?;
        let mut state = self.state.lock();
        let Some(failure) = &state.failure else { return Ok(found) };
        if found != state.last_commit && found != state.last_commit + 1 {
            return Err(self.misplaced("is not the catalog of this server: restore that, or restart the server"));
        }
        if found != state.last_commit && failure.is_in_memory {
            let what = "the disk reported an error for a commit that it stored; restart the server to continue from it";
            return Err(Error::ReadOnly { errno: None, what: what.into() });
        }
        state.last_commit = found;
        Ok(found)
    }

    fn last_commit(&self) -> Result<u64> {
        let stored = self.snapshot()?.get(Space::Meta, LAST_COMMIT_KEY)?;
        Ok(stored.map_or(0, |number| key_part(&number, 0)))
    }

    /// Accepts writes again.
    pub(super) fn resume(&self) {
        let mut state = self.state.lock();
        if state.failure.take().is_some() {
            state.generation += 1;
        }
    }
}

/// Makes a commit that stores the number of a transaction.
fn numbered(number: u64) -> Commit {
    let mut commit = Commit::default();
    commit.put(Space::Meta, LAST_COMMIT_KEY.to_vec(), key(&[number]));
    commit
}

/// The error that writers get after a failure.
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
