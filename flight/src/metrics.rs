//! Counters per operation: plain atomics that the exporter reads.
//!
//! The set of operations is closed, so exported series are bounded. A call that a client abandons counts as a call, not
//! as an error.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::Span;

use crate::trace::{CallEnd, record_end};

/// The kind of a client's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Operation {
    /// Log in.
    Handshake,
    /// Plan a query given as text.
    StatementQuery,
    /// Run DML or DDL given as text.
    StatementUpdate,
    /// Prepare a statement.
    Prepare,
    /// Bind parameters.
    Bind,
    /// Plan a prepared query.
    PreparedQuery,
    /// Run a prepared update.
    PreparedUpdate,
    /// Close a prepared statement.
    ClosePrepared,
    /// Fetch the rows of a planned query.
    Fetch,
    /// Store a stream of rows.
    Ingest,
    /// Any metadata command: catalogs, schemas, tables, keys, types, server information.
    Metadata,
    /// Schema of a command.
    GetSchema,
    /// Cancel a query.
    Cancel,
    /// Begin and end of transactions and savepoints.
    Transaction,
    /// Session options, close of a session.
    Session,
    /// All other calls.
    Other,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 16] = [
        Self::Handshake,
        Self::StatementQuery,
        Self::StatementUpdate,
        Self::Prepare,
        Self::Bind,
        Self::PreparedQuery,
        Self::PreparedUpdate,
        Self::ClosePrepared,
        Self::Fetch,
        Self::Ingest,
        Self::Metadata,
        Self::GetSchema,
        Self::Cancel,
        Self::Transaction,
        Self::Session,
        Self::Other,
    ];

    /// Name as a metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::StatementQuery => "statement_query",
            Self::StatementUpdate => "statement_update",
            Self::Prepare => "prepare",
            Self::Bind => "bind",
            Self::PreparedQuery => "prepared_query",
            Self::PreparedUpdate => "prepared_update",
            Self::ClosePrepared => "close_prepared",
            Self::Fetch => "fetch",
            Self::Ingest => "ingest",
            Self::Metadata => "metadata",
            Self::GetSchema => "get_schema",
            Self::Cancel => "cancel",
            Self::Transaction => "transaction",
            Self::Session => "session",
            Self::Other => "other",
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    errors: AtomicU64,
    duration_us: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    active: AtomicI64,
}

/// The counters of one operation at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationSnapshot {
    /// The operation.
    pub operation: Operation,
    /// Calls that ended.
    pub calls: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Sum of their durations in microseconds; for streams until the last message.
    pub duration_us: u64,
    /// Rows sent (fetch), stored (ingest) or changed (updates).
    pub rows: u64,
    /// Bytes of Arrow data sent or received.
    pub bytes: u64,
    /// Running calls.
    pub active: i64,
}

/// Counters of the service. They only grow, except `active` and what exists now.
#[derive(Debug, Default)]
pub struct FlightMetrics {
    operations: [Counters; Operation::ALL.len()],
    sessions: AtomicI64,
    connections: AtomicI64,
    kept_bytes: AtomicU64,
    stalled: AtomicU64,
    received_bytes: AtomicU64,
    received_peak_bytes: AtomicU64,
}

impl FlightMetrics {
    /// The counters of every operation, in the order of [`Operation::ALL`].
    pub fn snapshot(&self) -> Vec<OperationSnapshot> {
        Operation::ALL.into_iter().map(|operation| self.operation(operation)).collect()
    }

    /// The counters of one operation.
    pub fn operation(&self, operation: Operation) -> OperationSnapshot {
        let counters = self.counters(operation);
        OperationSnapshot {
            operation,
            calls: counters.calls.load(Relaxed),
            errors: counters.errors.load(Relaxed),
            duration_us: counters.duration_us.load(Relaxed),
            rows: counters.rows.load(Relaxed),
            bytes: counters.bytes.load(Relaxed),
            active: counters.active.load(Relaxed),
        }
    }

    /// Sessions open now.
    pub fn sessions(&self) -> i64 {
        self.sessions.load(Relaxed)
    }

    /// Connections open now.
    pub fn connections(&self) -> i64 {
        self.connections.load(Relaxed)
    }

    /// Memory of planned queries, prepared statements and parameters that sessions keep now, an estimate in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Relaxed)
    }

    /// Results that ended because their client did not read them. They count as calls, not as errors.
    pub fn stalled(&self) -> u64 {
        self.stalled.load(Relaxed)
    }

    /// Bytes of request messages that are being received, wait to be decoded, or hold rows that wait to be stored.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Relaxed)
    }

    /// The largest [`Self::received_bytes`] so far.
    pub fn received_peak_bytes(&self) -> u64 {
        self.received_peak_bytes.load(Relaxed)
    }

    pub(crate) fn set_received_bytes(&self, bytes: u64) {
        self.received_bytes.store(bytes, Relaxed);
        self.received_peak_bytes.fetch_max(bytes, Relaxed);
    }

    pub(crate) fn set_kept_bytes(&self, bytes: u64) {
        self.kept_bytes.store(bytes, Relaxed);
    }

    pub(crate) fn count_stalled(&self) {
        self.stalled.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_sessions(&self, change: i64) {
        self.sessions.fetch_add(change, Relaxed);
    }

    pub(crate) fn add_connections(&self, change: i64) {
        self.connections.fetch_add(change, Relaxed);
    }

    fn counters(&self, operation: Operation) -> &Counters {
        &self.operations[operation as usize]
    }

    /// Begins to observe one call.
    pub(crate) fn begin(self: &Arc<Self>, operation: Operation) -> Observation {
        self.counters(operation).active.fetch_add(1, Relaxed);
        Observation {
            metrics: self.clone(),
            operation,
            start: Instant::now(),
            code: Code::Ok,
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            span: Span::current(),
        }
    }
}

/// A running call; counted when dropped.
#[derive(Debug)]
pub(crate) struct Observation {
    metrics: Arc<FlightMetrics>,
    operation: Operation,
    start: Instant,
    code: Code,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// That of the call, for traces.
    span: Span,
}

impl Observation {
    /// Records whether a result is an error, and returns it.
    pub(crate) fn note<T>(&mut self, result: Result<T, Status>) -> Result<T, Status> {
        if let Err(status) = &result {
            self.code = status.code();
        }
        result
    }

    /// The span of the call, for work that is done for it after its answer has begun.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Adds rows and bytes.
    pub(crate) fn add(&self, rows: u64, bytes: u64) {
        let counters = self.metrics.counters(self.operation);
        counters.rows.fetch_add(rows, Relaxed);
        counters.bytes.fetch_add(bytes, Relaxed);
        self.rows.fetch_add(rows, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts the call under another operation, which is known only after its request was decoded.
    pub(crate) fn rename(&mut self, operation: Operation) {
        self.metrics.counters(self.operation).active.fetch_sub(1, Relaxed);
        self.operation = operation;
        self.metrics.counters(operation).active.fetch_add(1, Relaxed);
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let counters = self.metrics.counters(self.operation);
        counters.active.fetch_sub(1, Relaxed);
        counters.calls.fetch_add(1, Relaxed);
        counters.errors.fetch_add(u64::from(self.code != Code::Ok), Relaxed);
        let elapsed_us = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        counters.duration_us.fetch_add(elapsed_us, Relaxed);
        let (rows, bytes) = (self.rows.load(Relaxed), self.bytes.load(Relaxed));
        record_end(&self.span, &CallEnd { operation: self.operation.name(), code: self.code, rows, bytes });
    }
}
