//! What is known of a statement, running or ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_access::{Authority, Origin};
use terrace_scan::scan::ChunkCounts;
use terrace_sql::StatementKind;
use terrace_sql::masking::{masked, masked_kept};
use terrace_tier_store::placement::ScanProfile;

use super::progress::StatementWork;
use crate::error::ErrorKind;

/// How a statement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All rows were delivered or stored.
    Done,
    /// It ended with an error.
    Failed,
    /// It was cancelled, timed out, or its client disconnected.
    Cancelled,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Cancelled];

    /// Lower-case name, as in metrics and SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// State of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementState {
    /// Being planned.
    Planning,
    /// Waiting for an execution slot.
    Queued,
    /// Executing.
    Running,
    /// Waiting for its client to take rows, without an execution slot.
    Stalled,
    /// Ended well.
    Done,
    /// Ended with an error.
    Failed,
    /// Ended early.
    Cancelled,
}

impl StatementState {
    /// Whether the statement has not ended.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Planning | Self::Queued | Self::Running | Self::Stalled)
    }

    /// Lower-case name, as in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Stalled => "stalled",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One statement, running or ended.
#[derive(Debug, Clone)]
pub struct StatementRecord {
    /// Its identifier, for cancelling.
    pub id: String,
    /// The session it came from.
    pub session: String,
    /// The session's user.
    pub user: String,
    /// Where its client is.
    pub origin: Origin,
    /// Its workload group.
    pub workload_group: String,
    /// Its text; for bulk ingest a description.
    pub sql: String,
    /// Its kind.
    pub kind: StatementKind,
    /// Its state.
    pub state: StatementState,
    /// Start, in microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// Microseconds it took, or takes so far.
    pub elapsed_us: u64,
    /// Rows returned or stored.
    pub rows: u64,
    /// Bytes of these rows in memory.
    pub bytes: u64,
    /// Microseconds that it waited for an execution slot, or waits so far.
    pub queued_us: u64,
    /// Microseconds for which it had no execution slot because its client took no rows.
    pub stalled_us: u64,
    /// Microseconds for which threads worked for it.
    pub busy_us: u64,
    /// Times that it started again before its first rows: query memory ran out, or it was no point statement.
    pub restarts: u64,
    /// Query memory that it was expected to need, weighted by time, in bytes.
    pub demand_bytes: u64,
    /// Memory.
    pub memory: MemoryUse,
    /// Bytes that it wrote to spill files, as query memory did not suffice.
    pub spilled_bytes: u64,
    /// Bytes that its scans read from the home tier.
    pub cold_bytes: u64,
    /// Bytes that its scans read on each tier, by its name, those included of segments in memory.
    pub tier_bytes: BTreeMap<String, u64>,
    /// Chunks of the tables that it scans, and those of them that were not read.
    pub chunks: ChunkCounts,
    /// Microseconds that its scans waited for reads from the home tier, summed over partitions, and its checks of keys.
    pub read_wait_us: u64,
    /// The same by the class of the read that ended the wait, and the waits for spilled rows.
    pub read_waits: ReadWaits,
    /// Microseconds until the chunk files of its rows were durable, summed over the threads that write them.
    pub write_wait_us: u64,
    /// How far it is, where it counts its work.
    pub work: StatementWork,
    /// The error it ended with; see [`Self::seen_by`].
    pub error: Option<String>,
    /// The kind of this error.
    pub error_kind: Option<ErrorKind>,
    /// Its scans, once it has ended.
    pub scans: Arc<[ScanProfile]>,
    /// Whether its figures tell of rows that policies hide from its user.
    pub hides_figures: bool,
    /// The trace that it belongs to, as 32 hexadecimal digits; `None` where that is not recorded.
    pub trace_id: Option<String>,
}

/// Bytes of the longest text that is logged, without the sign for the rest.
const MOST_LOGGED_BYTES: usize = 4_096;

/// A text, cut where it is long, and with a sign there.
pub(super) fn cut(text: &str) -> String {
    let most = text.len().min(MOST_LOGGED_BYTES);
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let sign = if end < text.len() { "…" } else { "" };
    format!("{}{sign}", text.get(..end).unwrap_or_default())
}

/// The text of a statement in one line, without literals, and cut where it is long.
pub(super) fn text_for_others(sql: &str) -> String {
    masked_kept(&cut(sql))
}

impl StatementRecord {
    /// The statement as somebody sees it who may know that there is one: to others than its user and superusers, a text without
    /// literals, and the kind of the error alone, whose message may have values as well.
    pub fn seen_by(mut self, viewer: &Authority) -> Self {
        if !viewer.is_self(&self.user) {
            self.sql = masked(&self.sql);
            self.error = self.error_kind.map(error_name);
        }
        self
    }

    /// Its text for the log, which others read than those who may see statements: in one line, without literals, and cut where it is
    /// long.
    pub fn text_for_log(&self) -> String {
        text_for_others(&self.sql)
    }

    /// Clears the figures of its reads and its memory, which tell of rows that policies hide; a point statement that reads much starts again.
    pub(crate) fn clear_figures(&mut self) {
        self.restarts = 0;
        self.cold_bytes = 0;
        self.tier_bytes.clear();
        self.chunks = ChunkCounts::default();
        self.read_wait_us = 0;
        self.read_waits = ReadWaits::default();
        self.memory = MemoryUse::default();
        self.work = StatementWork::default();
    }
}

/// The memory of a statement, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Query memory that it takes: what its operators reserve, and what it has held far beyond for some time.
    pub reserved: u64,
    /// The most that it took so far.
    pub reserved_peak: u64,
    /// What its work has allocated and not freed, an estimate; 0 in programs whose allocator does not count.
    pub allocated: u64,
    /// The most that it had allocated so far.
    pub allocated_peak: u64,
}

impl MemoryUse {
    /// The peaks divided: much above 1, the plan did not know of a part of what the statement held. `None` where it
    /// took no query memory.
    pub(crate) fn allocated_to_reserved(&self) -> Option<f64> {
        (self.reserved_peak > 0).then(|| self.allocated_peak as f64 / self.reserved_peak as f64)
    }
}

/// Microseconds for which a statement waited for reads of each class. A wait that another partition's work or the end of
/// the scan ended has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadWaits {
    /// For reads of a few rows.
    pub point_us: u64,
    /// For some rows of columns, for what a scan read without room to read ahead, and for keys to compare new ones with.
    pub needed_us: u64,
    /// For rows that it had spilled.
    pub spill_us: u64,
    /// For whole columns, which scans read ahead.
    pub prefetch_us: u64,
}

#[cfg(test)]
impl StatementRecord {
    /// A query that has ended well and has no figures.
    pub(crate) fn example() -> Self {
        Self {
            id: String::new(),
            session: String::new(),
            user: String::new(),
            origin: Origin::default(),
            workload_group: String::new(),
            sql: String::new(),
            kind: StatementKind::Query,
            state: StatementState::Done,
            started_unix_us: 0,
            elapsed_us: 0,
            rows: 0,
            bytes: 0,
            queued_us: 0,
            stalled_us: 0,
            busy_us: 0,
            restarts: 0,
            demand_bytes: 0,
            spilled_bytes: 0,
            cold_bytes: 0,
            tier_bytes: BTreeMap::new(),
            chunks: ChunkCounts::default(),
            read_wait_us: 0,
            read_waits: ReadWaits::default(),
            write_wait_us: 0,
            work: StatementWork::default(),
            memory: MemoryUse::default(),
            error: None,
            error_kind: None,
            scans: Arc::default(),
            hides_figures: false,
            trace_id: None,
        }
    }
}

/// The name of a kind of errors, such as `permission_denied`.
pub(super) fn error_name(kind: ErrorKind) -> String {
    let mut name = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_begin_of_a_text_without_its_literals() {
        let text = |sql: &str| StatementRecord { sql: sql.to_owned(), ..StatementRecord::example() }.text_for_log();
        assert_eq!(text("SELECT a\nFROM t WHERE b = 'geheim'"), "SELECT a FROM t WHERE b = ?");
        let long = format!("SELECT '{}'", "ä".repeat(MOST_LOGGED_BYTES));
        assert_eq!(text(&long), "SELECT …");
        let long = text(&format!("SELECT {} FROM t", "a, ".repeat(MOST_LOGGED_BYTES)));
        assert!(long.len() <= MOST_LOGGED_BYTES + '…'.len_utf8() + 1 && long.ends_with('…'), "{}", long.len());
    }

    #[test]
    fn errors_have_names() {
        assert_eq!(error_name(ErrorKind::PermissionDenied), "permission_denied");
        assert_eq!(error_name(ErrorKind::Aborted), "aborted");
    }
}
