//! The statement registry: running statements, ended statements, and counters.
//!
//! The task that executes a statement holds a [`Ticket`]. It ends the statement's record explicitly with an outcome, or
//! as cancelled when it is dropped, which happens when a client disconnects.
//!
//! - `counters`: counts of ended statements
//! - `ended`: what is kept of ended statements
//! - `progress`: how far a statement is that counts its work
//! - `query_log`: ended statements in files
//! - `record`: what is known of a statement, running or ended
//! - `stopping`: stops statements to free memory, and when rights change
//! - `touched`: the objects of a statement, and its event in the audit trail
//! - `trace`: the spans of a statement, for traces

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_access::{Origin, Principal};
use terrace_scan::pause::Pause;
use terrace_scan::scan::StatementScans;
use terrace_sql::StatementKind;
use terrace_tier_store::clock::Clock;
use terrace_tier_store::io::{Class, WritingStatement};
use tokio::sync::Notify;
use tracing::{Instrument, Span};

use super::interrupt::Interrupt;
use super::memory::{QueryMemory, StatementMemory};
use super::spill::{SpillSpace, StatementSpill};
use super::workload::Group;
use crate::error::{Error, ErrorKind, Result};

mod counters;
mod ended;
mod progress;
mod query_log;
mod record;
mod stopping;
mod touched;
mod trace;

pub use counters::Counters;
pub(super) use ended::EndedStatements;
pub use progress::StatementWork;
use progress::WorkProgress;
pub(crate) use query_log::QueryLogEntry;
pub use query_log::{LoggedValues, QueryLog, QueryLogOptions};
pub use record::{MemoryUse, Outcome, ReadWaits, StatementRecord, StatementState};
use stopping::Ending;
pub use stopping::StopOrder;
pub(super) use touched::{Reading, Touched, is_change};
use trace::StatementTrace;
pub use trace::TraceIdOf;
pub(super) use trace::{Phase, Step};

/// A statement that has not ended.
#[derive(Debug)]
struct RunningStatement {
    id: String,
    session: String,
    principal: Principal,
    origin: Origin,
    touched: Arc<Touched>,
    /// What it reads, once it is planned.
    readings: Mutex<Arc<BTreeSet<Reading>>>,
    /// Whether its figures tell of rows that policies hide from its user.
    hides_figures: AtomicBool,
    group: Arc<Group>,
    sql: Arc<str>,
    kind: StatementKind,
    state: Mutex<StatementState>,
    started_unix_us: u64,
    started_us: u64,
    rows: AtomicU64,
    bytes: AtomicU64,
    waits: Mutex<Waits>,
    restarts: AtomicU64,
    demand_bytes: AtomicU64,
    interrupt: Interrupt,
    memory: Arc<StatementMemory>,
    scans: Arc<StatementScans>,
    spill: Arc<StatementSpill>,
    writing: Arc<WritingStatement>,
    progress: Arc<WorkProgress>,
    /// Puts its id, session, user and trace into lines of the log about its work.
    span: Span,
    trace: StatementTrace,
}

/// Time that a statement spent waiting: for execution slots, of which one that is executed again needs another, and for its
/// client.
#[derive(Debug, Default)]
struct Waits {
    queued_us: u64,
    stalled_us: u64,
    /// The statement's state, and the time at which it entered it.
    state: Option<(StatementState, u64)>,
}

impl Waits {
    /// Enters a state.
    fn enter(&mut self, state: StatementState, now_us: u64) {
        (self.queued_us, self.stalled_us) = self.until(now_us);
        self.state = Some((state, now_us));
    }

    /// Microseconds that it was queued, and stalled.
    fn until(&self, now_us: u64) -> (u64, u64) {
        let in_state = |wanted| match self.state {
            Some((state, since_us)) if state == wanted => now_us.saturating_sub(since_us),
            _ => 0,
        };
        (self.queued_us + in_state(StatementState::Queued), self.stalled_us + in_state(StatementState::Stalled))
    }
}

impl RunningStatement {
    fn set_state(&self, state: StatementState, now_us: u64) {
        *self.state.lock() = state;
        self.waits.lock().enter(state, now_us);
        if let Some(phase) = Phase::from_state(state) {
            self.trace.enter(phase);
        }
    }

    fn read_waits(&self) -> ReadWaits {
        let scans_us = |class| self.scans.read_wait_for(class).as_micros() as u64;
        ReadWaits {
            point_us: scans_us(Class::Point),
            needed_us: scans_us(Class::Needed) + self.writing.key_wait_us(),
            spill_us: self.spill.wait_us(),
            prefetch_us: scans_us(Class::Prefetch),
        }
    }

    fn record(&self, now_us: u64) -> StatementRecord {
        // One lock at a time.
        let state = *self.state.lock();
        let (queued_us, stalled_us) = self.waits.lock().until(now_us);
        StatementRecord {
            id: self.id.clone(),
            session: self.session.clone(),
            user: self.principal.user.clone(),
            origin: self.origin,
            workload_group: self.group.options.name.clone(),
            sql: self.sql.to_string(),
            kind: self.kind,
            state,
            started_unix_us: self.started_unix_us,
            elapsed_us: now_us.saturating_sub(self.started_us),
            rows: self.rows.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            queued_us,
            stalled_us,
            busy_us: self.memory.heap().busy_time().as_micros() as u64,
            restarts: self.restarts.load(Ordering::Relaxed),
            demand_bytes: self.demand_bytes.load(Ordering::Relaxed),
            memory: MemoryUse {
                reserved: self.memory.reserved_bytes(),
                reserved_peak: self.memory.reserved_peak_bytes(),
                allocated: self.memory.heap().bytes(),
                allocated_peak: self.memory.heap().peak_bytes(),
            },
            spilled_bytes: self.spill.spilled_bytes(),
            cold_bytes: self.scans.cold_bytes(),
            tier_bytes: self.scans.tier_bytes(),
            chunks: self.scans.chunks(),
            read_wait_us: self.scans.read_wait().as_micros() as u64 + self.writing.key_wait_us(),
            read_waits: self.read_waits(),
            write_wait_us: self.writing.write_wait_us(),
            work: self.progress.work(),
            error: None,
            error_kind: None,
            scans: Arc::default(),
            hides_figures: self.hides_figures.load(Ordering::Relaxed),
            trace_id: self.trace.id().map(str::to_owned),
        }
    }
}

/// A statement that starts.
pub(super) struct NewStatement<'a> {
    pub(super) session: &'a str,
    pub(super) principal: &'a Principal,
    pub(super) origin: Origin,
    pub(super) touched: &'a Arc<Touched>,
    pub(super) group: Arc<Group>,
    pub(super) sql: &'a Arc<str>,
    pub(super) kind: StatementKind,
    pub(super) step: Step,
    pub(super) trace_id_of: Option<TraceIdOf>,
    /// Longest duration; `None`: the registry's.
    pub(super) time_limit: Option<Duration>,
}

/// The span that puts a statement into lines of the log. Of the highest level, so that warnings have it whatever else is logged.
fn log_span(new: &NewStatement<'_>, id: &str, trace_id: Option<&str>) -> Span {
    tracing::error_span!(
        parent: None,
        "run",
        statement = id,
        session = new.session,
        user = new.principal.user.as_str(),
        trace_id
    )
}

/// Time that a server may take to start again.
const RESTART: Duration = Duration::from_secs(5);

/// All statements of an engine.
#[derive(Debug)]
pub(super) struct Registry {
    running: Mutex<HashMap<String, Arc<RunningStatement>>>,
    ended: EndedStatements,
    time_limit: Option<Duration>,
    memory: Arc<QueryMemory>,
    spill_space: Arc<SpillSpace>,
    /// Makes all statements wait that read rows.
    pause: Arc<Pause>,
    /// Statements that were stopped and have ended: their tasks may hold memory until each has had its turn.
    ending: Mutex<Vec<Ending>>,
    next: AtomicU64,
    refuses_new: AtomicBool,
    became_empty: Notify,
    counters: Counters,
    clock: Arc<dyn Clock>,
}

impl Registry {
    /// Makes a registry that gives ended statements to `ended` and limits the duration of each statement, whose operators
    /// reserve their memory in `memory` and spill to `spill_space`.
    pub(super) fn new(
        ended: EndedStatements,
        time_limit: Option<Duration>,
        memory: Arc<QueryMemory>,
        spill_space: Arc<SpillSpace>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            running: Mutex::default(),
            ended,
            time_limit,
            memory,
            spill_space,
            pause: Arc::default(),
            ending: Mutex::default(),
            next: AtomicU64::new(1),
            refuses_new: AtomicBool::new(false),
            became_empty: Notify::new(),
            counters: Counters::default(),
            clock,
        })
    }

    /// Registers a statement. [`ErrorKind::Unavailable`] while the engine drains.
    pub(super) fn start(self: &Arc<Self>, new: &NewStatement<'_>) -> Result<Ticket> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let started_unix_us = self.clock.unix_us();
        // A session and its group can shorten the server's limit, not lengthen it.
        let time_limits = new.time_limit.into_iter().chain(new.group.options.timeout).chain(self.time_limit);
        let interrupt = Interrupt::new(time_limits.min(), Arc::clone(&self.pause));
        let stop_check = {
            let interrupt = interrupt.clone();
            move || interrupt.check().map_err(Into::into)
        };
        let id = format!("q{started_unix_us:x}-{number}");
        let trace = StatementTrace::begin(new, &id);
        let scans = StatementScans::with_stop_check(stop_check, Arc::clone(&self.pause));
        let scans = Arc::new(scans.with_span(trace.span().clone()));
        let memory = match new.kind {
            StatementKind::Query | StatementKind::Export => StatementMemory::new,
            _ => StatementMemory::for_writes,
        };
        let memory = memory(&self.memory, new.group.memory.as_ref());
        let memory = Arc::new(memory);
        memory.heap().set_stop_check({
            let interrupt = interrupt.clone();
            move || interrupt.check().is_err()
        });
        let span = log_span(new, &id, trace.id());
        let statement = Arc::new(RunningStatement {
            id,
            span,
            trace,
            session: new.session.to_owned(),
            principal: new.principal.clone(),
            origin: new.origin,
            touched: Arc::clone(new.touched),
            readings: Mutex::default(),
            hides_figures: AtomicBool::new(false),
            group: Arc::clone(&new.group),
            sql: Arc::clone(new.sql),
            kind: new.kind,
            state: Mutex::new(StatementState::Planning),
            started_unix_us,
            started_us: self.clock.now_us(),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            waits: Mutex::default(),
            restarts: AtomicU64::new(0),
            demand_bytes: AtomicU64::new(0),
            interrupt,
            memory,
            spill: self.spill_space.for_statement(scans.id()),
            writing: Arc::new(WritingStatement::new(scans.id())),
            progress: Arc::default(),
            scans,
        });
        // Checked under the lock: after `refuse_new` no statement is added.
        let mut running = self.running.lock();
        if self.refuses_new.load(Ordering::SeqCst) {
            self.counters.count_rejected();
            let stopping = Error::new(ErrorKind::Unavailable, "the server is stopping; connect again later");
            return Err(stopping.with_retry_after(RESTART));
        }
        running.insert(statement.id.clone(), Arc::clone(&statement));
        Ok(Ticket { registry: Arc::clone(self), statement, ended: false })
    }

    /// The query log, where there is one.
    pub(super) fn query_log(&self) -> Option<&Arc<QueryLog>> {
        self.ended.query_log()
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn statements(&self) -> Vec<StatementRecord> {
        let now = self.clock.now_us();
        let mut all: Vec<_> = self.running.lock().values().map(|l| l.record(now)).collect();
        all.sort_by_key(|r| std::cmp::Reverse(r.started_unix_us));
        all.extend(self.ended.latest());
        all
    }

    pub(super) fn cancel(&self, id: &str) -> bool {
        let found = self.running.lock().get(id).cloned();
        found.inspect(|l| l.interrupt.cancel()).is_some()
    }

    /// For whom a running statement runs; `None` when none has this id.
    pub(super) fn principal(&self, id: &str) -> Option<Principal> {
        self.running.lock().get(id).map(|statement| statement.principal.clone())
    }

    /// Whether a statement of a session has not ended.
    pub(super) fn runs_in(&self, session: &str) -> bool {
        self.running.lock().values().any(|statement| statement.session == session)
    }

    pub(super) fn cancel_session(&self, session: &str) {
        self.running.lock().values().filter(|l| l.session == session).for_each(|l| l.interrupt.cancel());
    }

    pub(super) fn cancel_all(&self) {
        self.running.lock().values().for_each(|l| l.interrupt.cancel());
    }

    pub(super) fn refuse_new(&self) {
        let _running = self.running.lock();
        self.refuses_new.store(true, Ordering::SeqCst);
    }

    /// Returns when no statement runs.
    pub(super) async fn wait_until_idle(&self) {
        loop {
            // Registers before it looks, so that no notification in between is lost.
            let became_empty = self.became_empty.notified();
            tokio::pin!(became_empty);
            became_empty.as_mut().enable();
            if self.running.lock().is_empty() {
                return;
            }
            became_empty.await;
        }
    }

    fn end(&self, statement: &RunningStatement, outcome: Outcome, error: Option<&Error>) {
        let mut record = statement.record(self.clock.now_us());
        record.state = match outcome {
            Outcome::Done => StatementState::Done,
            Outcome::Failed => StatementState::Failed,
            Outcome::Cancelled => StatementState::Cancelled,
        };
        record.error = error.map(|e| e.message().to_owned());
        record.error_kind = error.map(Error::kind);
        if self.ended.has_history() {
            record.scans = statement.scans.scans().into();
        }
        record.memory.reserved = 0;
        record.memory.allocated = 0;
        statement.trace.end(&record);
        self.counters.count(&record, outcome);
        self.ended.add(record, &statement.touched);
        statement.memory.end();
        self.record_ending(statement);
        self.remove(statement);
    }

    fn remove(&self, statement: &RunningStatement) {
        let mut running = self.running.lock();
        running.remove(&statement.id);
        if running.is_empty() {
            self.became_empty.notify_waiters();
        }
    }
}

/// Handle of the task that executes a statement to the statement's record.
#[derive(Debug)]
pub(super) struct Ticket {
    registry: Arc<Registry>,
    statement: Arc<RunningStatement>,
    ended: bool,
}

impl Ticket {
    pub(super) fn id(&self) -> &str {
        &self.statement.id
    }

    /// Puts its id, session, user and trace into lines of the log.
    pub(super) fn span(&self) -> Span {
        self.statement.span.clone()
    }

    /// Its spill files.
    pub(super) fn spill(&self) -> &Arc<StatementSpill> {
        &self.statement.spill
    }

    /// Where the store records how long it waits for its writes and checks of keys.
    pub(super) fn writing(&self) -> Arc<WritingStatement> {
        Arc::clone(&self.statement.writing)
    }

    /// Where it notes how far it is.
    pub(super) fn progress(&self) -> Arc<WorkProgress> {
        Arc::clone(&self.statement.progress)
    }

    /// Where its scans record their reads.
    pub(super) fn scans(&self) -> Arc<StatementScans> {
        Arc::clone(&self.statement.scans)
    }

    /// Does the work of the statement: charges it with what the work allocates, and ends it when the statement has to stop.
    pub(super) async fn supervised<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.interrupt().guarded(self.memory().heap().charge(work)).instrument(self.span()).await
    }

    /// The objects that it names and reads.
    pub(super) fn touched(&self) -> &Touched {
        &self.statement.touched
    }

    /// For whom it runs.
    pub(super) fn principal(&self) -> &Principal {
        &self.statement.principal
    }

    /// Notes what it reads, in place of what was noted before.
    pub(super) fn note_readings(&self, readings: Arc<BTreeSet<Reading>>) {
        *self.statement.readings.lock() = readings;
    }

    /// Hides its figures from its user: they tell of rows that policies hide.
    pub(super) fn hide_figures(&self) {
        self.statement.hides_figures.store(true, Ordering::Relaxed);
    }

    /// Its text.
    pub(super) fn sql(&self) -> &str {
        &self.statement.sql
    }

    pub(super) fn interrupt(&self) -> Interrupt {
        self.statement.interrupt.clone()
    }

    /// Id of its session.
    pub(super) fn session(&self) -> &str {
        &self.statement.session
    }

    /// Its workload group.
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.statement.group
    }

    /// Counts that it starts again, having sent no rows.
    pub(super) fn count_restart(&self) {
        self.statement.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the query memory that it is expected to need.
    pub(super) fn set_demand(&self, bytes: u64) {
        self.statement.demand_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The memory that it holds.
    pub(super) fn memory(&self) -> &Arc<StatementMemory> {
        &self.statement.memory
    }

    pub(super) fn set_state(&self, state: StatementState) {
        self.statement.set_state(state, self.registry.clock.now_us());
    }

    /// Notes for its trace that a phase begins which is no state of its own.
    pub(super) fn enter(&self, phase: Phase) {
        self.statement.trace.enter(phase);
    }

    /// Begins to commit what it changed. An error where it has to stop.
    pub(super) fn begin_commit(&self) -> Result<()> {
        self.statement.interrupt.begin_commit()?;
        self.enter(Phase::Commit);
        Ok(())
    }

    pub(super) fn add(&self, rows: u64, bytes: u64) {
        self.statement.rows.fetch_add(rows, Ordering::Relaxed);
        self.statement.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a refusal by admission.
    pub(super) fn count_rejected(&self) {
        self.registry.counters.count_rejected();
    }

    /// The time, in microseconds, for [`Self::count_queue_wait`].
    pub(super) fn now_us(&self) -> u64 {
        self.registry.clock.now_us()
    }

    /// Counts the wait for an execution slot that began at this time.
    pub(super) fn count_queue_wait(&self, since_us: u64) {
        self.registry.counters.count_queue_wait(self.now_us().saturating_sub(since_us));
    }

    /// Removes the statement without a record in the history: it was planned, and did not execute.
    pub(super) fn discard(mut self) {
        self.ended = true;
        self.statement.trace.stop();
        self.registry.remove(&self.statement);
    }

    /// Ends the record with the result of the statement.
    pub(super) fn end<T>(mut self, result: &Result<T>) {
        self.ended = true;
        let (outcome, error) = match result {
            Ok(_) => (Outcome::Done, None),
            Err(e) if matches!(e.kind(), ErrorKind::Cancelled | ErrorKind::DeadlineExceeded) => {
                (Outcome::Cancelled, Some(e))
            }
            Err(e) => (Outcome::Failed, Some(e)),
        };
        self.registry.end(&self.statement, outcome, error);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended {
            let gone = Error::new(ErrorKind::Cancelled, "the client went away");
            self.registry.end(&self.statement, Outcome::Cancelled, Some(&gone));
        }
    }
}
