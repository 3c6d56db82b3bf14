//! Sections on what the server records: its log, the query log, the audit trail, and traces.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_access::{AuditScope, LogFile, TrailOptions, WhenFull};
use terrace_planner_ext::engine::{LoggedValues, QueryLogOptions};

use super::Docs;
use crate::units::{Size, Span};

section! {
    /// The log, on standard error.
    pub struct LogConfig {
        /// What to log: error, warn, info, debug, trace, off, or a filter such as `info,terrace_tier_store=debug`. The former name of
        /// this key, `log`, is understood.
        pub level: String = LogConfig::LEVEL.to_owned(),
        /// How to log: `text` (lines for people, with colours on a terminal), `json` (each line an object, for collectors; nothing else
        /// is written then, not even the summary on standard output).
        pub format: LogFormat = LogFormat::Text,
        /// Statements that take so long or longer, from planning to the last row taken, are logged as warnings, with their figures, and
        /// their text without literals. 0: all. Default: none, as what is slow depends on the work.
        pub slow_statement: Option<Span> = None,
    }
}

impl LogConfig {
    /// The level where none is set.
    pub const LEVEL: &'static str = "info";
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// An object of JSON in each line.
    Json,
}

section! {
    /// The query log: statements that have ended, with their figures, in files that outlive the server. `system.query_log` shows them.
    pub struct QueryLogConfig {
        /// Bytes that its files, in `data_dir/query_log`, have together at most; the oldest statements go first. 0: there is no query log.
        pub max_bytes: Size = Size::Bytes(256 << 20),
        /// Time for which statements are kept.
        pub keep_for: Span = Span(Duration::from_secs(7 * 24 * 3600)),
        /// Statements that end well and take less time are left out.
        pub least_duration: Span = Span(Duration::ZERO),
        /// What it has of the values in statements: keep (texts as they were sent, without passwords, and messages of errors), mask (`?`
        /// in place of each literal, and of errors the kind only).
        pub values: LoggedValues = LoggedValues::Keep,
    }
}

impl QueryLogConfig {
    /// Options of the log of a data directory; `None`: there is none.
    pub fn options(&self, data_dir: &Path) -> Option<QueryLogOptions> {
        let max_bytes = self.max_bytes.resolve(0);
        (max_bytes > 0).then(|| QueryLogOptions {
            path: data_dir.join("query_log").join("statements.jsonl"),
            max_bytes,
            keep_for: self.keep_for.0,
            least_duration: self.least_duration.0,
            values: self.values,
        })
    }
}

section! {
    /// The audit trail: who did what, from where, on which objects, and how it ended. `system.audit` shows the last events.
    pub struct AuditConfig {
        /// Which events are recorded: changes (log-ins, statements and requests that change something, those that were refused, orders to
        /// end a statement), all (queries and settings, too), off (none).
        pub what: AuditScope = AuditScope::Changes,
        /// File that events are appended to, each as one line of JSON; only the server's user may read it. Its folder must exist.
        /// Default: events are kept in memory only.
        pub file: Option<PathBuf> = None,
        /// Size at which the file is rotated: it becomes `FILE.1`, `FILE.1` becomes `FILE.2`, and so on.
        pub max_bytes: Size = Size::Bytes(64 << 20),
        /// Rotated files that are kept; older ones are removed.
        pub keep: u32 = 10,
        /// What happens while the file takes fewer events than come: lose (they are lost, and counted), wait (statements wait before
        /// they begin, all of them while the file cannot be written at all).
        pub on_full: WhenFull = WhenFull::Lose,
        /// Events that `system.audit` remembers.
        pub remembered: usize = 1000,
    }
}

impl AuditConfig {
    /// Options of the trail.
    pub fn options(&self) -> TrailOptions {
        let file = self.file.as_ref().map(|path| LogFile {
            path: std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            max_bytes: self.max_bytes.resolve(0),
            keep: self.keep,
            keep_for: None,
        });
        TrailOptions { scope: self.what, file, when_full: self.on_full, remembered: self.remembered }
    }
}

section! {
    /// Traces: spans of calls, statements and their scans, sent to an OpenTelemetry collector by OTLP over gRPC. Clients name the
    /// trace of a call by the headers `traceparent` and `tracestate`.
    pub struct TracesConfig {
        /// Address of the collector, such as `http://localhost:4317`, or `https://HOST:PORT` for TLS. Default: no traces. Headers that
        /// the collector wants, such as a key, are taken from OTEL_EXPORTER_OTLP_HEADERS in the environment.
        pub endpoint: Option<String> = None,
        /// File with the certificates of the authorities to trust for the collector, in PEM form. Default: those of this machine.
        pub ca: Option<PathBuf> = None,
        /// Percent of the traces that begin here which are recorded. Where a client names a trace, the client decides.
        pub sample_percent: f64 = 100.0,
        /// Name of this server in traces (`service.name`).
        pub service_name: String = "terrace".to_owned(),
        /// How long the collector may take for some spans. They are lost beyond it, and counted.
        pub timeout: Span = Span(Duration::from_secs(10)),
    }
}

impl TracesConfig {
    /// Whether traces are sent.
    pub fn is_on(&self) -> bool {
        self.endpoint.as_deref().is_some_and(|endpoint| !endpoint.is_empty())
    }
}
