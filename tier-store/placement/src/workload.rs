//! Profiles of statements that ran: their scans and reads, on which placement has an effect.
//!
//! The engine records them while a statement runs; [`super::forecast`] computes from them how long the same statements
//! would take with another placement.

use terrace_model::{ColumnId, MAX_TIERS, TableId};

/// Profiles of statements that ran.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workload {
    /// The statements, in any order.
    pub statements: Vec<StatementProfile>,
}

/// Profile of one statement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatementProfile {
    /// Time from its start to its last row, in microseconds.
    pub elapsed_us: f64,
    /// Its scans of tables.
    pub scans: Vec<ScanProfile>,
}

/// Profile of one scan of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScanProfile {
    /// Time from its first poll to its end, in microseconds; the work of the statement on the rows meanwhile is part of it.
    pub span_us: f64,
    /// Time for which its partitions waited for reads, summed over the partitions, in microseconds.
    pub wait_us: f64,
    /// Number of its partitions.
    pub partitions: u32,
    /// Its reads by column.
    pub reads: Vec<ColumnReads>,
}

/// Segments of one column that a scan read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnReads {
    /// The table.
    pub table: TableId,
    /// The column.
    pub column: ColumnId,
    /// Number of the segments that lay on each tier.
    pub segments: [u32; MAX_TIERS],
    /// Bytes read from home.
    pub cold_bytes: u64,
}

impl ColumnReads {
    /// Number of all segments read.
    pub fn total(&self) -> u64 {
        self.segments.iter().copied().map(u64::from).sum()
    }
}
