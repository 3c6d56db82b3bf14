//! Transactions of sessions: begun, used by statements, ended.
//!
//! A transaction takes its snapshot of all tables at its first statement and reads it, with its own changes, until it
//! ends. Statements that write run one after the other; the changes of a failed one are undone, and the transaction
//! continues. A transaction that has a snapshot and is not used for long is rolled back, because it pins old versions and
//! their files; the client gets the error at its next statement.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use roaring::RoaringTreemap;
use terrace_sql::Privilege;
use terrace_sql::command::TransactionCommand;
use terrace_tier_store::store::{Savepoint, Snapshot as Versions, Transaction as StoreTransaction};
use terrace_tier_store::table::{NewRows, Table, TableVersion};

use super::Engine;
use super::execute::{Execute, Execution};
use super::session::Session;
use super::users;
use crate::error::{Error, ErrorKind, Result};

/// How often idle transactions are looked for.
const IDLE_CHECK: Duration = Duration::from_secs(1);

/// Most open transactions of a session.
const MOST_OPEN: usize = 100;

/// A transaction of a session, or of one statement that commits by itself.
pub struct Transaction {
    id: String,
    engine: Arc<Engine>,
    /// Whether it was begun READ ONLY.
    read_only: bool,
    state: Mutex<State>,
    /// Held by a statement that writes, from planning to its change.
    write_lock: Arc<tokio::sync::Mutex<()>>,
    last_used_us: AtomicU64,
    /// Number of its statements that run.
    running: AtomicUsize,
}

/// The exclusive right of one statement to write in its transaction. Dropped without [`Attempt::keep`], for example when
/// the statement is cancelled, it undoes the statement's changes. Blocking work that outlives a cancelled statement holds
/// a reference, so that its changes are undone too.
pub(super) struct Attempt {
    transaction: Arc<Transaction>,
    savepoint: Mutex<Option<Savepoint>>,
    _write_lock: tokio::sync::OwnedMutexGuard<()>,
}

impl Attempt {
    /// Keeps the statement's changes as part of the transaction.
    pub(super) fn keep(&self) {
        self.savepoint.lock().take();
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(savepoint) = self.savepoint.get_mut().take() {
            // A transaction that has ended has nothing left to undo.
            let _ = self.transaction.roll_back_to_savepoint(savepoint);
        }
    }
}

/// A statement that runs in a transaction, which is not idle meanwhile.
pub(super) struct Running(Arc<Transaction>);

impl Running {
    /// Lets a statement of a session run in the transaction that it belongs to, if there is one. Every statement comes through
    /// here.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] when the session may not do what needs `privilege`, and
    /// [`ErrorKind::FailedPrecondition`] when a READ ONLY transaction refuses it.
    pub(super) fn enter(
        session: &Session,
        transaction: Option<&Arc<Transaction>>,
        privilege: Privilege,
    ) -> Result<Option<Self>> {
        users::authorize(session, privilege)?;
        let Some(transaction) = transaction else { return Ok(None) };
        transaction.authorize(privilege)?;
        transaction.running.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Self(Arc::clone(transaction))))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.last_used_us.store(self.0.engine.clock.now_us(), Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

enum State {
    /// No statement yet.
    Fresh,
    Active(Box<Active>),
    /// How it ended.
    Ended(Cow<'static, str>),
}

struct Active {
    work: StoreTransaction,
    /// The snapshot it reads; `None` until a statement asks for it, and for a statement that planned on versions of its own.
    versions: Option<Versions>,
    savepoints: Vec<(String, Savepoint)>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id).finish_non_exhaustive()
    }
}

fn ended(why: &str) -> Error {
    Error::new(ErrorKind::FailedPrecondition, format!("the transaction was {why}; begin another one"))
}

fn none_in_progress() -> Error {
    Error::new(ErrorKind::FailedPrecondition, "no transaction is in progress; BEGIN one")
}

impl Transaction {
    pub(super) fn new(id: String, engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self::with_mode(id, engine, false))
    }

    fn with_mode(id: String, engine: &Arc<Engine>, read_only: bool) -> Self {
        let last_used_us = AtomicU64::new(engine.clock.now_us());
        let engine = Arc::clone(engine);
        let state = Mutex::new(State::Fresh);
        let write_lock = Default::default();
        Self { id, engine, read_only, state, write_lock, last_used_us, running: AtomicUsize::new(0) }
    }

    /// Its identifier.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Calls `update` on the state of a transaction that has not ended; starts it first if need be.
    fn active<T>(&self, update: impl FnOnce(&mut Active) -> Result<T>) -> Result<T> {
        self.last_used_us.store(self.engine.clock.now_us(), Ordering::Relaxed);
        let mut state = self.state.lock();
        if matches!(*state, State::Fresh) {
            let work = self.engine.store.begin();
            let versions = None;
            let savepoints = Vec::new();
            *state = State::Active(Box::new(Active { work, versions, savepoints }));
        }
        match &mut *state {
            State::Active(active) => update(active),
            State::Ended(why) => Err(ended(why)),
            State::Fresh => Err(Error::new(ErrorKind::Internal, "a transaction did not start")),
        }
    }

    /// The table versions that a statement of the transaction sees.
    pub(super) fn versions(&self) -> Result<Versions> {
        self.active(|active| {
            let Active { work, versions, .. } = active;
            let versions = versions.get_or_insert_with(|| self.engine.store.snapshot());
            let visible_version = |(table, version): &(Arc<Table>, Arc<TableVersion>)| {
                (Arc::clone(table), work.view(table).unwrap_or_else(|| Arc::clone(version)))
            };
            Ok(versions.iter().map(visible_version).collect())
        })
    }

    /// Deletes rows at positions of `planned_version` and adds rows. Blocks while rows are written and keys compared; the
    /// state of the transaction is not locked meanwhile.
    pub(super) fn change(
        &self,
        table: &Arc<Table>,
        planned_version: &Arc<TableVersion>,
        deleted: &RoaringTreemap,
        added: Option<NewRows>,
    ) -> Result<()> {
        let mut change = self.active(|active| Ok(active.work.prepare(table, planned_version, deleted, added)?))?;
        change.complete()?;
        self.active(|active| Ok(active.work.apply(change)?))
    }

    /// Adds rows to a table and returns how many. Blocks while rows are written.
    pub(super) fn add(&self, table: &Arc<Table>, rows: NewRows) -> Result<u64> {
        let versions = self.versions()?;
        let pinned = versions.iter().find(|(known, _)| Arc::ptr_eq(known, table));
        let planned_version = pinned.map(|(_, version)| Arc::clone(version)).ok_or_else(|| {
            let message = format!(
                "table '{}' was altered or created since the transaction began; begin another one",
                table.name()
            );
            Error::new(ErrorKind::Aborted, message)
        })?;
        let count = rows.rows();
        self.change(table, &planned_version, &RoaringTreemap::new(), Some(rows))?;
        Ok(count)
    }

    /// Refuses what the transaction may not do: a READ ONLY one changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::FailedPrecondition`].
    fn authorize(&self, privilege: Privilege) -> Result<()> {
        if self.read_only && privilege.changes_server() {
            let message = "the transaction was begun READ ONLY; COMMIT or ROLLBACK it and BEGIN one that writes";
            return Err(Error::new(ErrorKind::FailedPrecondition, message));
        }
        Ok(())
    }

    /// Admits a statement that creates, alters or drops something. It commits by itself, and the transaction continues as
    /// if it began after that commit.
    ///
    /// # Errors
    /// [`ErrorKind::FailedPrecondition`] when the transaction has changes of its own.
    pub(super) fn allow_ddl(&self) -> Result<()> {
        if self.active(|active| Ok(active.work.has_changes()))? {
            let message = "tables, views and schemas cannot be created, altered or dropped after changes of rows in the \
                           same transaction; COMMIT or ROLLBACK it first";
            return Err(Error::new(ErrorKind::FailedPrecondition, message));
        }
        self.active(|active| {
            active.versions = None;
            Ok(())
        })
    }

    /// Waits until no other statement of the transaction writes, and begins to write.
    pub(super) async fn attempt(self: &Arc<Self>) -> Result<Arc<Attempt>> {
        let _write_lock = Arc::clone(&self.write_lock).lock_owned().await;
        let savepoint = Mutex::new(Some(self.active(|active| Ok(active.work.savepoint()))?));
        Ok(Arc::new(Attempt { transaction: Arc::clone(self), savepoint, _write_lock }))
    }

    fn roll_back_to_savepoint(&self, savepoint: Savepoint) -> Result<()> {
        self.active(|active| {
            active.work.roll_back_to(savepoint);
            Ok(())
        })
    }

    /// Sets a savepoint; one of the same name is hidden until the new one is released.
    pub fn savepoint(&self, name: &str) -> Result<()> {
        self.active(|active| {
            let savepoint = active.work.savepoint();
            active.savepoints.push((name.to_owned(), savepoint));
            Ok(())
        })
    }

    /// Releases a savepoint and those after it, or rolls back the changes since it was set.
    /// Waits for a statement of the transaction that writes.
    pub async fn end_savepoint(&self, name: &str, roll_back: bool) -> Result<()> {
        let _write_lock = self.write_lock.lock().await;
        self.active(|active| {
            let missing = || Error::new(ErrorKind::NotFound, format!("savepoint '{name}' does not exist"));
            let at = active.savepoints.iter().rposition(|(known, _)| known == name).ok_or_else(missing)?;
            if roll_back {
                // The savepoint stays, so that the client can roll back to it again.
                active.savepoints.truncate(at + 1);
                let savepoint = active.savepoints.last().map(|(_, savepoint)| savepoint.clone()).ok_or_else(missing)?;
                active.work.roll_back_to(savepoint);
            } else {
                active.savepoints.truncate(at);
            }
            Ok(())
        })
    }

    /// Makes its changes durable and visible.
    ///
    /// # Errors
    /// [`ErrorKind::Aborted`] when another transaction changed the same rows first, [`ErrorKind::AlreadyExists`] when it added
    /// a row with the same enforced key: it is rolled back then.
    pub async fn commit(&self) -> Result<()> {
        let _write_lock = self.write_lock.lock().await;
        // Statements that come during the commit already find the transaction ended.
        let state = std::mem::replace(&mut *self.state.lock(), State::Ended("committed".into()));
        match state {
            State::Fresh => Ok(()),
            State::Active(active) => {
                let done = self.engine.blocking(move || Ok(active.work.commit()?)).await;
                if done.is_err() {
                    *self.state.lock() = State::Ended("rolled back when it failed to commit".into());
                }
                done
            }
            State::Ended(why) => {
                let error = ended(&why);
                *self.state.lock() = State::Ended(why);
                Err(error)
            }
        }
    }

    /// Discards its changes. Does nothing when it has ended.
    pub fn roll_back(&self) {
        self.end("rolled back");
    }

    fn end(&self, why: impl Into<Cow<'static, str>>) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Ended(_)) {
            *state = State::Ended(why.into());
        }
    }

    fn is_idle(&self, now_us: u64, limit: Duration) -> bool {
        let is_active = matches!(&*self.state.lock(), State::Active(_));
        let idle_us = now_us.saturating_sub(self.last_used_us.load(Ordering::Relaxed));
        is_active && self.running.load(Ordering::SeqCst) == 0 && idle_us >= limit.as_micros() as u64
    }
}

/// Starts the task that rolls back idle transactions and drops stale plans, as long as the engine lives.
pub(super) fn watch_idle(engine: &Arc<Engine>) {
    let weak = Arc::downgrade(engine);
    let cpu = engine.options.cpu.clone();
    cpu.spawn(async move {
        loop {
            tokio::time::sleep(IDLE_CHECK).await;
            match weak.upgrade() {
                Some(engine) => {
                    engine.end_idle_transactions(engine.options.idle_transaction_timeout);
                    engine.drop_stale_plans();
                }
                None => return,
            }
        }
    });
}

impl Engine {
    /// Begins a transaction of `session` for statements that give its identifier.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceExhausted`] when the session has too many open.
    pub fn begin(self: &Arc<Self>, session: &Session) -> Result<Arc<Transaction>> {
        let number = self.next_transaction.fetch_add(1, Ordering::Relaxed);
        let transaction = Transaction::new(format!("{}-t{number}", session.id()), self);
        let mut open = session.transactions.lock();
        if open.len() >= MOST_OPEN {
            let message =
                format!("the session has {MOST_OPEN} transactions open, which is the limit; COMMIT or ROLLBACK one");
            return Err(Error::new(ErrorKind::ResourceExhausted, message));
        }
        open.insert(transaction.id.clone(), Arc::clone(&transaction));
        Ok(transaction)
    }

    /// Rolls back the transactions that were not used for `limit`, or for the shorter time that their session allows.
    pub(super) fn end_idle_transactions(&self, limit: Option<Duration>) {
        let now_us = self.clock.now_us();
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        for session in sessions {
            let open: Vec<_> = session.transactions.lock().values().cloned().chain(session.current()).collect();
            if open.is_empty() {
                continue;
            }
            let Some(limit) = session.idle_transaction_timeout().into_iter().chain(limit).min() else { continue };
            for transaction in open.iter().filter(|transaction| transaction.is_idle(now_us, limit)) {
                tracing::info!(
                    transaction = transaction.id,
                    "rolled back a transaction that was not used for {limit:?}"
                );
                transaction.end(format!("rolled back after {limit:?} without a statement"));
            }
        }
    }
}

impl Session {
    /// The transaction that statements of this session belong to, unless they name another one.
    pub(super) fn current(&self) -> Option<Arc<Transaction>> {
        self.current.lock().clone()
    }

    /// Executes BEGIN: statements that name no transaction belong to the new one from now on.
    pub(super) fn begin(&self, read_only: bool) -> Result<()> {
        let mut current = self.current.lock();
        if current.is_some() {
            return Err(Error::new(
                ErrorKind::FailedPrecondition,
                "a transaction is in progress; COMMIT or ROLLBACK it",
            ));
        }
        *current = Some(Arc::new(Transaction::with_mode(format!("{}-sql", self.id()), self.engine(), read_only)));
        Ok(())
    }

    /// The transaction in progress, for savepoint statements.
    pub(super) fn in_progress(&self) -> Result<Arc<Transaction>> {
        self.current().ok_or_else(none_in_progress)
    }

    /// Executes COMMIT and ROLLBACK.
    pub(super) async fn end(&self, commit: bool) -> Result<()> {
        let transaction = self.current.lock().take().ok_or_else(none_in_progress)?;
        match commit {
            true => transaction.commit().await,
            false => {
                transaction.roll_back();
                Ok(())
            }
        }
    }

    /// The transaction that a statement prepared for `own` belongs to now. Drivers keep prepared statements over the end of
    /// a transaction and do not name another one; the statement then belongs to the one that is open, or to none.
    ///
    /// # Errors
    /// [`ErrorKind::FailedPrecondition`] when several are open.
    pub(super) fn successor(&self, own: &Arc<Transaction>) -> Result<Option<Arc<Transaction>>> {
        let open = self.transactions.lock();
        match open.len() {
            _ if open.contains_key(own.id()) => Ok(Some(Arc::clone(own))),
            0 | 1 => Ok(open.values().next().cloned().or_else(|| self.current())),
            _ => {
                let message = "the transaction that the statement was prepared for has ended; prepare it again";
                Err(Error::new(ErrorKind::FailedPrecondition, message))
            }
        }
    }

    /// The open transaction `id`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it has ended or never existed.
    pub fn transaction(&self, id: &str) -> Result<Arc<Transaction>> {
        let found = self.transactions.lock().get(id).cloned();
        found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "the transaction is unknown or has ended; begin another one")
        })
    }

    /// Ends the transaction `id`, by commit or roll back.
    pub async fn end_transaction(&self, id: &str, commit: bool) -> Result<()> {
        let transaction = self.transaction(id)?;
        self.transactions.lock().remove(id);
        match commit {
            true => transaction.commit().await,
            false => {
                transaction.roll_back();
                Ok(())
            }
        }
    }

    /// Rolls back all open transactions, as the session ends.
    pub(super) fn roll_back_all(&self) {
        let open: Vec<_> = self.transactions.lock().drain().map(|(_, transaction)| transaction).collect();
        open.iter().chain(&self.current.lock().take()).for_each(|transaction| transaction.roll_back());
    }
}

impl Execute for TransactionCommand {
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let session = execution.session();
        match self {
            Self::Begin(read_only) => session.begin(*read_only),
            Self::Commit => session.end(true).await,
            Self::RollBack => session.end(false).await,
            Self::Savepoint(name) => session.in_progress()?.savepoint(name),
            Self::Release(name) => session.in_progress()?.end_savepoint(name, false).await,
            Self::RollBackTo(name) => session.in_progress()?.end_savepoint(name, true).await,
        }
        .map(|()| 0)
    }
}
