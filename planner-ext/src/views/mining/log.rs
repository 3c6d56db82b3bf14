//! What scans asked their tables for since the last epoch.
//!
//! Written when a scan is executed: one look-up for a filter that is known, a measurement of its chunks for a new one. What
//! there is no room for is counted and left out, so that a view is never believed to serve more than was seen.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Expr;
use parking_lot::Mutex;
use terrace_tier_store::clock::{Clock, SystemClock};
use terrace_tier_store::table::{Table, TableName};

/// Different scans of one table that an epoch remembers, and parts of expressions of all of them.
const MOST_SCANS: usize = 512;
const MOST_PARTS: usize = 16_384;

/// What a scan asks its table for.
#[derive(Debug)]
pub(crate) struct Asking {
    log: Arc<AskedLog>,
    table: Arc<Table>,
    pub(super) filters: Vec<Expr>,
    /// Names of the columns that it puts out.
    pub(super) columns: Vec<String>,
}

impl Asking {
    /// It is executed; `volume` measures what it reads without hot views.
    pub(crate) fn ran(self: &Arc<Self>, volume: impl FnOnce() -> Volume) {
        self.log.note(self, volume);
    }
}

impl PartialEq for Asking {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table, &other.table) && self.filters == other.filters && self.columns == other.columns
    }
}

impl Eq for Asking {}

impl Hash for Asking {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.filters.hash(state);
        self.columns.hash(state);
    }
}

/// What a scan reads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Volume {
    /// Rows of the chunks that bounds leave.
    pub(crate) rows: f64,
    /// Bytes of its columns in them.
    pub(crate) bytes: f64,
}

/// A scan, as often as it was executed.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) asking: Arc<Asking>,
    pub(super) volume: Volume,
    pub(super) runs: u64,
    /// When it ran last, in microseconds since 1970.
    pub(super) at_us: u64,
}

/// The scans of a table in an epoch.
#[derive(Debug)]
pub(super) struct TableLog {
    pub(super) table: Arc<Table>,
    pub(super) scans: Vec<Asked>,
    /// Executions of others, for which there was no room.
    pub(super) missed: u64,
}

#[derive(Debug, Default)]
struct Epoch {
    tables: HashMap<TableName, (TableLog, HashMap<Arc<Asking>, usize>)>,
    parts: usize,
}

/// The log of an epoch.
#[derive(Debug)]
pub(crate) struct AskedLog {
    on: AtomicBool,
    clock: Arc<dyn Clock>,
    epoch: Mutex<Epoch>,
}

impl AskedLog {
    /// Empty, and off: it notes nothing before it is told to.
    pub(super) fn new() -> Arc<Self> {
        let clock = Arc::new(SystemClock::default());
        Arc::new(Self { on: AtomicBool::new(false), clock, epoch: Mutex::default() })
    }

    /// Notes scans from now on, or no longer.
    pub(super) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// A planned scan; `None` where nothing is noted, or nothing could be learned.
    pub(crate) fn asking(
        self: &Arc<Self>,
        table: &Arc<Table>,
        filters: &[Expr],
        columns: &[&str],
    ) -> Option<Arc<Asking>> {
        if filters.is_empty() || !self.on.load(Ordering::Relaxed) {
            return None;
        }
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Some(Arc::new(Asking { log: Arc::clone(self), table: Arc::clone(table), filters: filters.to_vec(), columns }))
    }

    fn note(&self, asking: &Arc<Asking>, volume: impl FnOnce() -> Volume) {
        let at_us = self.clock.unix_us();
        let epoch = &mut *self.epoch.lock();
        let (log, known) = epoch.tables.entry(asking.table.name().clone()).or_insert_with(|| {
            (TableLog { table: Arc::clone(&asking.table), scans: Vec::new(), missed: 0 }, HashMap::new())
        });
        if let Some(scan) = known.get(asking).and_then(|at| log.scans.get_mut(*at)) {
            (scan.runs, scan.at_us) = (scan.runs + 1, at_us);
            return;
        }
        let parts: usize = asking.filters.iter().map(parts).sum();
        if log.scans.len() >= MOST_SCANS || epoch.parts + parts > MOST_PARTS {
            log.missed += 1;
            return;
        }
        epoch.parts += parts;
        log.table = Arc::clone(&asking.table);
        known.insert(Arc::clone(asking), log.scans.len());
        log.scans.push(Asked { asking: Arc::clone(asking), volume: volume(), runs: 1, at_us });
    }

    /// All since it was called last.
    pub(super) fn take(&self) -> Vec<TableLog> {
        let epoch = std::mem::take(&mut *self.epoch.lock());
        epoch.tables.into_values().map(|(log, _)| log).collect()
    }

    pub(super) fn now_us(&self) -> u64 {
        self.clock.unix_us()
    }
}

/// How many expressions an expression consists of.
fn parts(expr: &Expr) -> usize {
    let mut parts = 0;
    let _ = expr.apply(|_| {
        parts += 1;
        Ok(if parts > MOST_PARTS { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    parts
}
