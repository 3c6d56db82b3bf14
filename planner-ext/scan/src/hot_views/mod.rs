//! The interface between scans and hot views, with the options and counters that a build without hot views has as well.
//!
//! When a scan is planned, a [`ViewOracle`] returns the views that the scan can use. When it is executed, it updates the
//! [`ViewTally`] of each view, and records the execution in its [`ScanRequest`], from which views are mined.
//!
//! - [`mining_counters`]: counts of mining, for metrics
//! - [`mining_options`]: options of mining
//! - [`run_counters`]: counts of tiering runs, for metrics
//! - [`tally`]: counts of the scans that a view served

pub mod mining_counters;
pub mod mining_options;
pub mod run_counters;
pub mod tally;

use std::fmt;
use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::logical_expr::Expr;
use terrace_error::Result;
use terrace_tier_store::table::{MarkId, Table, TableName};

pub use mining_counters::{MiningCounters, ProposalState};
pub use mining_options::{MiningMode, MiningOptions};
pub use run_counters::RunCounters;
pub use tally::ViewTally;

/// A scan that is planned.
#[derive(Debug, Clone, Copy)]
pub struct PlannedScan<'a> {
    /// The scanned table.
    pub table: &'a Arc<Table>,
    /// Names of the columns that the scan emits.
    pub columns: &'a [&'a str],
    /// Conjuncts that every emitted row fulfils.
    pub filters: &'a [Expr],
    /// Options of the session.
    pub options: &'a ConfigOptions,
}

/// Finds the hot views that a scan can use.
pub trait ViewOracle: fmt::Debug + Send + Sync {
    /// Returns the published views of the table, each with whether the scan asks for its rows only; returns none while
    /// the catalog cannot be read.
    ///
    /// # Errors
    /// When a filter names a column that the table does not have.
    fn views_for_scan(&self, scan: &PlannedScan<'_>) -> Result<Vec<ScanView>>;

    /// Returns the request of the scan, if its executions are to be recorded.
    fn scan_request(&self, scan: &PlannedScan<'_>) -> Option<Arc<dyn ScanRequest>>;
}

/// The filters and columns of a planned scan, as the miner of hot views keeps them.
pub trait ScanRequest: fmt::Debug + Send + Sync {
    /// Records an execution of the scan; `volume` measures what it reads without hot views.
    fn record_execution(self: Arc<Self>, volume: &dyn Fn() -> Volume);
}

/// A published view of a scanned table, and whether the scan asks for its rows only.
#[derive(Debug, Clone)]
pub struct ScanView {
    /// Name of the view.
    pub name: TableName,
    /// The mark of the view, if the scan asks only for rows of the view, and reads only columns of the view.
    pub mark: Option<MarkId>,
    /// Counts the scan when it is executed.
    pub tally: Arc<ViewTally>,
}

/// Rows and bytes that a scan reads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Volume {
    /// Rows of the chunks that bounds do not exclude.
    pub rows: f64,
    /// Bytes of the scan's columns in these chunks.
    pub bytes: f64,
}
