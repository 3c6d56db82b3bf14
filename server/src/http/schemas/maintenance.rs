//! The schemas of checks, backups and disk usage.

use utoipa::ToSchema;

/// damage: stored data is lost, or would be without action; healed: damage that was healed; notice: nothing is lost.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Severity {
    /// Stored data is lost, or would be without action.
    Damage,
    /// Damage that was healed.
    Healed,
    /// Worth knowing; nothing is lost.
    Notice,
}

/// A finding of a check.
#[derive(ToSchema)]
pub struct Finding {
    /// Its severity.
    severity: Severity,
    /// The file.
    path: String,
    /// The table that it concerns, if any.
    #[schema(required)]
    table: Option<String>,
    /// The chunk that it concerns, if any.
    #[schema(required)]
    chunk: Option<u64>,
    /// The column that it concerns, if any.
    #[schema(required)]
    column: Option<String>,
    /// The problem.
    what: String,
    /// Advice how to solve the problem.
    advice: String,
}

/// Totals of a checked table.
#[derive(ToSchema)]
pub struct CheckedTable {
    /// Schema and name.
    table: String,
    /// Rows that a full scan returns.
    rows: u64,
    /// Sealed chunks.
    chunks: u64,
    /// Bytes of their files.
    file_bytes: u64,
    /// Findings that are damage.
    damaged: u64,
}

/// Result of a check.
#[derive(ToSchema)]
pub struct CheckReport {
    /// True when the contents of files were not read.
    quick: bool,
    /// Checked tables, by name.
    tables: Vec<CheckedTable>,
    /// Findings in the order of the tables, those of no table last.
    findings: Vec<Finding>,
    /// Bytes of files that were read and verified.
    verified_bytes: u64,
}

/// Result of a backup.
#[derive(ToSchema)]
pub struct BackupReport {
    /// Layout of the backup.
    format_version: u32,
    /// Time at which it was made, in microseconds since the Unix epoch.
    created_unix_us: u64,
    /// Tables.
    tables: u64,
    /// Sealed chunks.
    chunks: u64,
    /// Rows of these chunks.
    rows: u64,
    /// Bytes of all files.
    bytes: u64,
}

/// Disk usage of one table.
#[derive(ToSchema)]
pub struct TableUsage {
    /// Schema and name.
    table: String,
    /// Rows that a full scan returns.
    rows: u64,
    /// Sealed chunks.
    chunks: u64,
    /// Bytes of their files.
    file_bytes: u64,
    /// Rows not yet sealed.
    delta_rows: u64,
    /// Bytes of these rows in the catalog.
    delta_bytes: u64,
    /// Bytes of all other catalog records of the table.
    catalog_bytes: u64,
}

/// Disk usage of a data directory.
#[derive(ToSchema)]
pub struct Usage {
    /// Usage of each table, by name.
    tables: Vec<TableUsage>,
    /// Size of the catalog's file, free pages included.
    catalog_file_bytes: u64,
    /// Files that no table has: of interrupted writes, of loads under way, of tables dropped while they are read.
    unowned_files: u64,
    /// Bytes of these files.
    unowned_bytes: u64,
    /// Tables that cannot be loaded; `terrace check` says why.
    broken_tables: u64,
}
