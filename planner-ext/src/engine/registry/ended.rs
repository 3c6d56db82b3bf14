//! What is kept of statements that have ended: the last ones in memory, all in the query log, events of the audit trail, and a line of
//! the log for each slow one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrace_access::Trail;
use terrace_tier_store::clock::Clock;

use super::query_log::{QueryLog, QueryLogOptions};
use super::record::{StatementRecord, error_name};
use super::touched::Touched;
use crate::error::{Error, ErrorKind, Result};

/// Takes the records of statements that have ended.
#[derive(Debug)]
pub(in crate::engine) struct EndedStatements {
    /// The last ones, the newest last.
    latest: Mutex<VecDeque<StatementRecord>>,
    history: usize,
    /// Statements that take so long, or longer, are logged.
    slow_us: Option<u128>,
    audit: Arc<Trail>,
    query_log: Option<Arc<QueryLog>>,
}

impl EndedStatements {
    /// Keeps `history` statements in memory.
    pub(in crate::engine) fn new(history: usize, audit: Arc<Trail>) -> Self {
        Self { latest: Mutex::default(), history, slow_us: None, audit, query_log: None }
    }

    /// Logs statements that take so long, or longer.
    pub(in crate::engine) fn with_slow_log(self, limit: Option<Duration>) -> Self {
        Self { slow_us: limit.map(|limit| limit.as_micros()), ..self }
    }

    /// Starts a query log, and records statements there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when its thread cannot be started.
    pub(in crate::engine) fn with_query_log(
        self,
        options: Option<QueryLogOptions>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let query_log = options.map(|options| QueryLog::start(options, Arc::clone(clock))).transpose();
        let failed = |error| Error::new(ErrorKind::Unavailable, format!("cannot start the query log: {error}"));
        Ok(Self { query_log: query_log.map_err(failed)?, ..self })
    }

    /// The query log.
    pub(super) fn query_log(&self) -> Option<&Arc<QueryLog>> {
        self.query_log.as_ref()
    }

    /// Whether records are kept in memory.
    pub(super) fn has_history(&self) -> bool {
        self.history > 0
    }

    /// Takes the record of a statement that has ended.
    pub(super) fn add(&self, record: StatementRecord, touched: &Touched) {
        touched.record_end(&self.audit, &record);
        if self.slow_us.is_some_and(|slow_us| u128::from(record.elapsed_us) >= slow_us) {
            log_slow(&record);
        }
        if let Some(query_log) = &self.query_log {
            query_log.record(&record);
        }
        if self.has_history() {
            let mut latest = self.latest.lock();
            while latest.len() >= self.history {
                latest.pop_front();
            }
            latest.push_back(record);
        }
    }

    /// The records in memory, the newest first.
    pub(super) fn latest(&self) -> Vec<StatementRecord> {
        self.latest.lock().iter().rev().cloned().collect()
    }
}

/// A warning, so that it is there whatever else is logged: who sets the limit wants these lines.
fn log_slow(record: &StatementRecord) {
    let tier_bytes: Vec<String> = record.tier_bytes.iter().map(|(tier, bytes)| format!("{tier}={bytes}")).collect();
    tracing::warn!(
        statement = record.id,
        session = record.session,
        user = record.user,
        trace_id = record.trace_id.as_deref(),
        workload_group = record.workload_group,
        kind = record.kind.name(),
        outcome = record.state.name(),
        error = record.error_kind.map(error_name),
        elapsed_us = record.elapsed_us,
        queued_us = record.queued_us,
        stalled_us = record.stalled_us,
        busy_us = record.busy_us,
        read_wait_us = record.read_wait_us,
        rows = record.rows,
        bytes = record.bytes,
        tier_bytes = tier_bytes.join(" "),
        spilled_bytes = record.spilled_bytes,
        sql = record.text_for_log(),
        "a statement was slow"
    );
}
