//! What statements did, as far as placement can change how long they take: the scans of each, and what they read.
//!
//! The engine writes it down while a statement runs; [`super::forecast`] says from it how long the same statements would
//! take with another placement.

use super::epoch::MAX_TIERS;
use crate::table::{ColumnId, TableId};

/// Statements that ran.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workload {
    /// In any order.
    pub statements: Vec<StatementProfile>,
}

/// One statement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatementProfile {
    /// From its start to its last row, in microseconds.
    pub elapsed_us: f64,
    /// Its scans of tables.
    pub scans: Vec<ScanProfile>,
}

/// One scan of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScanProfile {
    /// From its first poll to its end, in microseconds; what the statement does with the rows meanwhile is part of it.
    pub span_us: f64,
    /// Time for which its partitions waited for reads, all of them added, in microseconds.
    pub wait_us: f64,
    /// Its partitions.
    pub partitions: u32,
    /// What it read.
    pub reads: Vec<ColumnReads>,
}

/// Segments of one column that a scan read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnReads {
    /// The table.
    pub table: TableId,
    /// The column.
    pub column: ColumnId,
    /// How many of them lay on each tier.
    pub segments: [u32; MAX_TIERS],
    /// Bytes read from home.
    pub cold_bytes: u64,
}

impl ColumnReads {
    /// All segments read.
    pub fn total(&self) -> u64 {
        self.segments.iter().copied().map(u64::from).sum()
    }
}
