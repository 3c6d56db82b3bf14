//! The query log: each statement that has ended, with its figures, in files that outlive the server.
//!
//! Nobody waits for it: an entry goes through a queue to a thread that appends it as a line of JSON; one that finds the queue full is
//! lost, and counted. What is written survives a kill of the process. The files are kept for a time and within a number of bytes.
//!
//! - `entry`: one statement as the log has it

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use terrace_access::{Line, LineLog, LogFile, LogOptions};
use terrace_tier_store::clock::Clock;

use super::record::StatementRecord;

mod entry;

pub(crate) use entry::QueryLogEntry;

/// The thread waits a moment after the first statement: else each of a server that answers thousands a second would wake it. So a kill
/// of the process loses what ended within this time.
const LOG: LogOptions = LogOptions {
    name: "the query log",
    thread: "terrace-log",
    // Each has a text and a message of 4 KiB at most.
    capacity: 4_096,
    linger: Duration::from_millis(50),
};

/// Files that the log is divided into: the oldest goes when they are full.
const FILES: u32 = 16;

/// Time that a reader waits for entries that are not written yet.
const FLUSH_TIME: Duration = Duration::from_millis(500);

/// What a log has of the values in statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoggedValues {
    /// The texts of statements, without passwords, and messages of errors.
    #[default]
    Keep,
    /// Texts without literals, and of errors only the kind.
    Mask,
}

/// Options of the query log.
#[derive(Debug, Clone)]
pub struct QueryLogOptions {
    /// Its file; the older ones have its name with a number.
    pub path: PathBuf,
    /// Bytes that all files have at most.
    pub max_bytes: u64,
    /// Time for which statements are kept.
    pub keep_for: Duration,
    /// Statements that end well and take less time are left out.
    pub least_duration: Duration,
    /// What it has of the values in statements.
    pub values: LoggedValues,
}

impl QueryLogOptions {
    fn file(&self) -> LogFile {
        LogFile {
            path: self.path.clone(),
            max_bytes: self.max_bytes / u64::from(FILES),
            keep: FILES - 1,
            keep_for: Some(self.keep_for),
        }
    }
}

/// The query log of a server.
pub struct QueryLog {
    options: QueryLogOptions,
    file: LogFile,
    log: LineLog<NewEntry>,
    recorded: AtomicU64,
    lost: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for QueryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryLog").field("options", &self.options).finish_non_exhaustive()
    }
}

/// An entry that is to be written.
struct NewEntry {
    entry: QueryLogEntry,
    values: LoggedValues,
}

impl Line for NewEntry {
    fn append_to(&self, lines: &mut Vec<u8>) -> serde_json::Result<()> {
        match self.values {
            LoggedValues::Keep => serde_json::to_writer(lines, &self.entry),
            LoggedValues::Mask => serde_json::to_writer(lines, &self.entry.clone().masked()),
        }
    }
}

impl QueryLog {
    /// Starts the log. Its folder is made where it is missing; while that is impossible, nothing is written.
    ///
    /// # Errors
    /// When its thread cannot be started.
    pub fn start(options: QueryLogOptions, clock: Arc<dyn Clock>) -> io::Result<Arc<Self>> {
        if let Some(Err(error)) = options.path.parent().map(std::fs::create_dir_all) {
            tracing::warn!(%error, path = %options.path.display(), "cannot make the folder of the query log");
        }
        let file = options.file();
        let log = LineLog::start(file.clone(), LOG, Arc::clone(&clock))?;
        Ok(Arc::new(Self { options, file, log, recorded: AtomicU64::new(0), lost: AtomicU64::new(0), clock }))
    }

    /// Takes the record of a statement that has ended. Never waits.
    pub(super) fn record(&self, record: &StatementRecord) {
        let is_brief = u128::from(record.elapsed_us) < self.options.least_duration.as_micros();
        if record.error_kind.is_none() && is_brief {
            return;
        }
        let values = self.options.values;
        let entry = QueryLogEntry::new(record);
        self.recorded.fetch_add(1, Ordering::Relaxed);
        if !self.log.send(NewEntry { entry, values }) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The statements that the log has, those that ended last first. What ended before this call is among them, unless the disk is slow.
    ///
    /// # Errors
    /// When a file is there and cannot be opened.
    pub(crate) fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<QueryLogEntry>> + use<>> {
        self.flush(FLUSH_TIME);
        let lines = self.file.newest_first()?;
        let keep_us = u64::try_from(self.options.keep_for.as_micros()).unwrap_or(u64::MAX);
        let since_us = self.clock.unix_us().saturating_sub(keep_us);
        // A line that was cut when the machine stopped is no entry.
        let entries = lines.filter_map(|line| match line {
            Ok(line) => serde_json::from_slice::<QueryLogEntry>(&line).ok().map(Ok),
            Err(error) => Some(Err(error)),
        });
        // Statements stand in the order of their ends, as far as the clock does not jump.
        Ok(entries.filter(move |entry| !entry.as_ref().is_ok_and(|entry| entry.ended_unix_us() < since_us)))
    }

    /// Waits until all statements that have ended are written, for `most` at most if the file does not take them.
    pub fn flush(&self, most: Duration) {
        self.log.flush(most);
    }

    /// Statements recorded since the start.
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Relaxed)
    }

    /// Statements that are missing in the log, because the queue was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Statements that wait to be written.
    pub fn queued(&self) -> usize {
        self.log.queued()
    }

    /// Whether the file does not take statements now; it is tried again and again.
    pub fn is_failing(&self) -> bool {
        self.log.is_failing()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use terrace_tier_store::clock::{ManualClock, SystemClock};

    use super::*;
    use crate::error::ErrorKind;

    fn options(dir: &Path) -> QueryLogOptions {
        QueryLogOptions {
            path: dir.join("log/statements.jsonl"),
            max_bytes: 1 << 20,
            keep_for: Duration::from_secs(3600),
            least_duration: Duration::ZERO,
            values: LoggedValues::Keep,
        }
    }

    fn record(sql: &str) -> StatementRecord {
        let started_unix_us = SystemClock::default().unix_us();
        StatementRecord { sql: sql.to_owned(), started_unix_us, ..StatementRecord::example() }
    }

    fn failed(sql: &str, kind: ErrorKind) -> StatementRecord {
        StatementRecord { error_kind: Some(kind), ..record(sql) }
    }

    fn texts(log: &QueryLog) -> Vec<String> {
        log.entries().unwrap().map(|entry| entry.unwrap().sql).collect()
    }

    #[test]
    fn statements_are_there_after_a_restart_the_last_one_first() {
        let dir = tempfile::tempdir().unwrap();
        let clock = || Arc::new(SystemClock::default());
        let log = QueryLog::start(options(dir.path()), clock()).unwrap();
        log.record(&record("SELECT 'one'"));
        log.record(&failed("SELECT 'two'", ErrorKind::NotFound));
        assert_eq!(texts(&log), ["SELECT 'two'", "SELECT 'one'"]);
        assert_eq!((log.recorded(), log.lost(), log.queued(), log.is_failing()), (2, 0, 0, false));
        drop(log);
        // As if the machine had stopped while a line was written.
        let path = options(dir.path()).path;
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, whole.get(..whole.len() - 9).unwrap()).unwrap();
        let log = QueryLog::start(options(dir.path()), clock()).unwrap();
        log.record(&record("SELECT 'three'"));
        assert_eq!(texts(&log), ["SELECT 'three'", "SELECT 'one'"]);
    }

    #[test]
    fn the_oldest_statements_go_when_the_files_are_full() {
        let dir = tempfile::tempdir().unwrap();
        let log = QueryLog::start(options(dir.path()), Arc::new(SystemClock::default())).unwrap();
        for number in 0..4_000 {
            log.record(&record(&format!("SELECT {number}")));
        }
        log.flush(Duration::from_secs(60));
        let found = texts(&log);
        let expected: Vec<String> =
            (4_000 - found.len()..4_000).rev().map(|number| format!("SELECT {number}")).collect();
        assert_eq!(found, expected, "none is missing in between");
        let sizes =
            std::fs::read_dir(dir.path().join("log")).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
        let sizes: Vec<u64> = sizes.collect();
        assert!(sizes.len() == FILES as usize && sizes.iter().sum::<u64>() <= 1 << 20, "{sizes:?}");
        assert!((1_000..4_000).contains(&found.len()), "{}", found.len());
    }

    #[test]
    fn statements_that_are_too_old_are_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let now_us = SystemClock::default().unix_us();
        clock.advance(Duration::from_micros(now_us));
        let log = QueryLog::start(options(dir.path()), Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        log.record(&StatementRecord { started_unix_us: now_us, ..record("SELECT 1") });
        assert_eq!(texts(&log), ["SELECT 1"]);
        clock.advance(Duration::from_secs(3601));
        assert!(texts(&log).is_empty());
    }

    #[test]
    fn brief_statements_may_be_left_out_and_those_with_errors_not() {
        let dir = tempfile::tempdir().unwrap();
        let options = QueryLogOptions { least_duration: Duration::from_millis(1), ..options(dir.path()) };
        let log = QueryLog::start(options, Arc::new(SystemClock::default())).unwrap();
        log.record(&StatementRecord { elapsed_us: 999, ..record("SELECT 1") });
        log.record(&StatementRecord { elapsed_us: 999, ..failed("SELECT 2", ErrorKind::InvalidArgument) });
        log.record(&StatementRecord { elapsed_us: 1_000, ..record("SELECT 3") });
        assert_eq!(texts(&log), ["SELECT 3", "SELECT 2"]);
    }

    #[test]
    fn values_may_be_masked() {
        let dir = tempfile::tempdir().unwrap();
        let masked = QueryLogOptions { values: LoggedValues::Mask, ..options(dir.path()) };
        let log = QueryLog::start(masked, Arc::new(SystemClock::default())).unwrap();
        let failed = failed("SELECT 'geheim' + 1", ErrorKind::InvalidArgument);
        log.record(&StatementRecord { error: Some("'geheim' is no number".to_owned()), ..failed });
        let entry = log.entries().unwrap().next().unwrap().unwrap();
        assert_eq!((entry.sql.as_str(), entry.error), ("SELECT ? + ?", None));
        assert_eq!(entry.error_kind.as_deref(), Some("invalid_argument"));
    }
}
