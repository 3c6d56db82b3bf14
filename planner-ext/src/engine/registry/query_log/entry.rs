//! One statement as the query log has it, a line of JSON.
//!
//! Files are read by later versions of the server: fields that a line lacks have their default, and those that are unknown are left out.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use terrace_sql::masking::masked_kept;

use super::super::record::{StatementRecord, cut, error_name};

/// A statement that has ended. Its figures are those of [`StatementRecord`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct QueryLogEntry {
    pub(crate) id: String,
    pub(crate) session: String,
    pub(crate) user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<IpAddr>,
    pub(crate) workload_group: String,
    pub(crate) kind: Cow<'static, str>,
    pub(crate) state: Cow<'static, str>,
    /// Its text, cut where it is long.
    pub(crate) sql: String,
    pub(crate) started_unix_us: u64,
    pub(crate) elapsed_us: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) queued_us: u64,
    pub(crate) stalled_us: u64,
    pub(crate) busy_us: u64,
    pub(crate) restarts: u64,
    pub(crate) demand_bytes: u64,
    pub(crate) reserved_peak_bytes: u64,
    pub(crate) allocated_peak_bytes: u64,
    pub(crate) spilled_bytes: u64,
    pub(crate) cold_bytes: u64,
    pub(crate) tier_bytes: BTreeMap<String, u64>,
    pub(crate) chunks: u64,
    pub(crate) pruned_chunks: u64,
    pub(crate) read_wait_us: u64,
    pub(crate) point_wait_us: u64,
    pub(crate) needed_wait_us: u64,
    pub(crate) prefetch_wait_us: u64,
    pub(crate) spill_wait_us: u64,
    pub(crate) write_wait_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error_kind: Option<String>,
    /// The message of the error, cut where it is long; none where values are masked, which it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Whether its figures tell of rows that policies hide from its user.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) hides_figures: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
}

impl QueryLogEntry {
    /// The entry of a statement that has ended.
    pub(super) fn new(record: &StatementRecord) -> Self {
        Self {
            id: record.id.clone(),
            session: record.session.clone(),
            user: record.user.clone(),
            address: record.origin.address,
            workload_group: record.workload_group.clone(),
            kind: Cow::Borrowed(record.kind.name()),
            state: Cow::Borrowed(record.state.name()),
            sql: cut(&record.sql),
            started_unix_us: record.started_unix_us,
            elapsed_us: record.elapsed_us,
            rows: record.rows,
            bytes: record.bytes,
            queued_us: record.queued_us,
            stalled_us: record.stalled_us,
            busy_us: record.busy_us,
            restarts: record.restarts,
            demand_bytes: record.demand_bytes,
            reserved_peak_bytes: record.memory.reserved_peak,
            allocated_peak_bytes: record.memory.allocated_peak,
            spilled_bytes: record.spilled_bytes,
            cold_bytes: record.cold_bytes,
            tier_bytes: record.tier_bytes.clone(),
            chunks: record.chunks.chunks,
            pruned_chunks: record.chunks.pruned,
            read_wait_us: record.read_wait_us,
            point_wait_us: record.read_waits.point_us,
            needed_wait_us: record.read_waits.needed_us,
            prefetch_wait_us: record.read_waits.prefetch_us,
            spill_wait_us: record.read_waits.spill_us,
            write_wait_us: record.write_wait_us,
            error_kind: record.error_kind.map(error_name),
            error: record.error.as_deref().map(cut),
            hides_figures: record.hides_figures,
            trace_id: record.trace_id.clone(),
        }
    }

    /// The entry without values: the literals of its text, and the message of its error, which may have some.
    pub(crate) fn masked(self) -> Self {
        Self { sql: masked_kept(&self.sql), error: None, ..self }
    }

    /// Time of its end, in microseconds since the Unix epoch.
    pub(crate) fn ended_unix_us(&self) -> u64 {
        self.started_unix_us.saturating_add(self.elapsed_us)
    }

    /// Bytes that its scans read of segments in memory, of all tiers.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.tier_bytes.values().sum::<u64>().saturating_sub(self.cold_bytes)
    }

    /// Clears the figures of its reads and its memory, as [`StatementRecord::clear_figures`] does.
    pub(crate) fn clear_figures(&mut self) {
        self.restarts = 0;
        self.reserved_peak_bytes = 0;
        self.allocated_peak_bytes = 0;
        self.cold_bytes = 0;
        self.read_wait_us = 0;
        self.point_wait_us = 0;
        self.needed_wait_us = 0;
        self.prefetch_wait_us = 0;
        self.spill_wait_us = 0;
        self.tier_bytes.clear();
        self.chunks = 0;
        self.pruned_chunks = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use terrace_access::{Origin, Port};
    use terrace_scan::scan::ChunkCounts;

    use super::*;
    use crate::engine::registry::{MemoryUse, ReadWaits};
    use crate::error::ErrorKind;

    fn record() -> StatementRecord {
        let reads = ReadWaits { point_us: 1, needed_us: 2, spill_us: 3, prefetch_us: 4 };
        StatementRecord {
            id: "q1".to_owned(),
            origin: Origin::new(Port::Flight, "10.0.0.7".parse().unwrap()),
            sql: "SELECT 'x'".to_owned(),
            started_unix_us: 1_000,
            elapsed_us: 50,
            restarts: 1,
            cold_bytes: 7,
            tier_bytes: BTreeMap::from([("dram".to_owned(), 100), ("ssd".to_owned(), 7)]),
            chunks: ChunkCounts { chunks: 9, pruned: 8 },
            read_wait_us: 10,
            read_waits: reads,
            memory: MemoryUse { reserved: 0, reserved_peak: 5, allocated: 0, allocated_peak: 6 },
            error: Some("no".to_owned()),
            error_kind: Some(ErrorKind::NotFound),
            hides_figures: true,
            trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned()),
            ..StatementRecord::example()
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_by_other_versions() {
        let entry = QueryLogEntry::new(&record());
        let line = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<QueryLogEntry>(&line).unwrap(), entry);
        assert_eq!((entry.ended_unix_us(), entry.memory_bytes()), (1_050, 100));
        let other = r#"{"id":"q7","started_unix_us":1,"elapsed_us":2,"kind":"query","state":"done","sql":"SELECT 1","of_a_later_version":[1]}"#;
        let other: QueryLogEntry = serde_json::from_str(other).unwrap();
        assert_eq!((other.id.as_str(), other.kind.as_ref(), other.rows, other.error), ("q7", "query", 0, None));
        assert!(serde_json::from_str::<QueryLogEntry>(line.get(..line.len() - 2).unwrap()).is_err());
    }

    #[test]
    fn long_texts_and_messages_are_cut() {
        let long = "ä".repeat(1 << 20);
        let record = StatementRecord { sql: long.clone(), error: Some(long), ..record() };
        let entry = QueryLogEntry::new(&record);
        let expected = format!("{}…", "ä".repeat(2_048));
        assert_eq!((entry.sql, entry.error), (expected.clone(), Some(expected)));
    }

    #[test]
    fn hidden_figures_are_those_that_queries_hide() {
        let mut record = record();
        let mut entry = QueryLogEntry::new(&record);
        entry.clear_figures();
        record.clear_figures();
        assert_eq!(entry, QueryLogEntry::new(&record));
    }
}
