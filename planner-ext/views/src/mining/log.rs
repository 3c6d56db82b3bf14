//! The log of the scans that were executed since the last epoch.
//!
//! An execution costs one look-up for a known filter, and a measurement of its chunks for a new one. When the log is
//! full, a new filter replaces one that came only once, drawn so that all filters of an epoch have the same chance: a
//! thousand look-ups by key must not keep out the query that comes after them. Scans that are left out are counted, and
//! a view is never assumed to serve more scans than were logged.
//!
//! The log names tables and holds none: a [`Table`] that was altered or dropped keeps its last version, and with it the
//! files of all chunks that were deleted since.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Expr;
use parking_lot::Mutex;
use terrace_scan::hot_views::{MiningCounters, PlannedScan, Volume};
use terrace_tier_store::clock::{Clock, SystemClock};
use terrace_tier_store::table::{Table, TableId, TableName};

/// Most different scans of one table in the log.
const MOST_SCANS: usize = 512;
/// Most parts of expressions in the log, of all scans together.
const MOST_PARTS: usize = 16_384;

/// The table of a scan, as of the definition that the scan was planned with.
#[derive(Debug, Clone)]
pub(super) struct ScannedTable {
    id: TableId,
    pub(super) name: TableName,
    pub(super) schema: SchemaRef,
}

impl ScannedTable {
    fn new(table: &Table) -> Self {
        Self { id: table.id(), name: table.name().clone(), schema: Arc::clone(table.schema()) }
    }

    /// Whether this is the same table with the same columns.
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.schema, &other.schema)
    }
}

/// The filters and columns of a planned scan.
#[derive(Debug)]
pub(crate) struct MinedRequest {
    log: Arc<ScanLog>,
    table: ScannedTable,
    pub(super) filters: Vec<Expr>,
    /// Names of the columns that the scan emits.
    pub(super) columns: Vec<String>,
}

impl terrace_scan::hot_views::ScanRequest for MinedRequest {
    fn record_execution(self: Arc<Self>, volume: &dyn Fn() -> Volume) {
        self.log.note(&self, volume);
    }
}

impl PartialEq for MinedRequest {
    fn eq(&self, other: &Self) -> bool {
        self.table.is_same(&other.table) && self.filters == other.filters && self.columns == other.columns
    }
}

impl Eq for MinedRequest {}

impl Hash for MinedRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.filters.hash(state);
        self.columns.hash(state);
    }
}

/// A scan with the number of its executions.
#[derive(Debug)]
pub(super) struct LoggedScan {
    pub(super) request: Arc<MinedRequest>,
    pub(super) volume: Volume,
    pub(super) runs: u64,
    /// Time of the last execution, in microseconds since 1970.
    pub(super) at_us: u64,
    parts: usize,
}

/// The scans of a table in an epoch.
#[derive(Debug)]
pub(super) struct TableLog {
    pub(super) table: ScannedTable,
    pub(super) scans: Vec<LoggedScan>,
    /// Number of executions of scans for which the log had no room.
    pub(super) missed: u64,
}

impl TableLog {
    /// Draws the place of a scan that is replaced by a new one; `None` when the new one is not logged.
    fn replaceable(&self) -> Option<usize> {
        // Deterministic: the same scans in the same order give the same log.
        let draw = BuildHasherDefault::<DefaultHasher>::default().hash_one(self.missed);
        let place = usize::try_from(draw % (MOST_SCANS as u64 + self.missed)).ok()?;
        self.scans.get(place).filter(|scan| scan.runs == 1).map(|_| place)
    }
}

#[derive(Debug, Default)]
struct Epoch {
    tables: HashMap<TableName, (TableLog, HashMap<Arc<MinedRequest>, usize>)>,
    parts: usize,
}

impl Epoch {
    fn table_mut(&mut self, table: &ScannedTable) -> &mut (TableLog, HashMap<Arc<MinedRequest>, usize>) {
        self.tables
            .entry(table.name.clone())
            .or_insert_with(|| (TableLog { table: table.clone(), scans: Vec::new(), missed: 0 }, HashMap::new()))
    }

    /// Counts an execution of a known scan; false for an unknown one.
    fn count_known(&mut self, request: &Arc<MinedRequest>, at_us: u64) -> bool {
        let (log, known) = self.table_mut(&request.table);
        let Some(scan) = known.get(request).and_then(|at| log.scans.get_mut(*at)) else { return false };
        (scan.runs, scan.at_us) = (scan.runs + 1, at_us);
        true
    }

    /// Makes room for a new scan with so many parts, removing an older one if necessary; false when there is no room.
    fn make_room(&mut self, table: &ScannedTable, parts: usize) -> bool {
        let is_free = |all: usize| all + parts <= MOST_PARTS;
        let all_parts = self.parts;
        let (log, known) = self.table_mut(table);
        if log.scans.len() < MOST_SCANS && is_free(all_parts) {
            return true;
        }
        log.missed += 1;
        let replaced = log.replaceable().filter(|place| {
            let freed = log.scans.get(*place).map_or(0, |scan| scan.parts);
            is_free(all_parts.saturating_sub(freed))
        });
        let Some(place) = replaced else { return false };
        let gone = log.scans.swap_remove(place);
        known.remove(&gone.request);
        if let Some(moved) = log.scans.get(place) {
            known.insert(Arc::clone(&moved.request), place);
        }
        self.parts -= gone.parts;
        true
    }

    fn add(&mut self, scan: LoggedScan) {
        self.parts += scan.parts;
        let (log, known) = self.table_mut(&scan.request.table);
        log.table = scan.request.table.clone();
        known.insert(Arc::clone(&scan.request), log.scans.len());
        log.scans.push(scan);
    }
}

/// The log of an epoch.
#[derive(Debug)]
pub(crate) struct ScanLog {
    on: AtomicBool,
    clock: Arc<dyn Clock>,
    epoch: Mutex<Epoch>,
    counters: Arc<MiningCounters>,
}

impl ScanLog {
    /// An empty log that is switched off.
    pub(super) fn new(counters: Arc<MiningCounters>) -> Arc<Self> {
        let clock = Arc::new(SystemClock::default());
        Arc::new(Self { on: AtomicBool::new(false), clock, epoch: Mutex::default(), counters })
    }

    /// Switches logging on or off.
    pub(super) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// The request of a planned scan; `None` when logging is off, or for a scan without filters.
    pub(crate) fn request(self: &Arc<Self>, scan: &PlannedScan<'_>) -> Option<Arc<MinedRequest>> {
        if scan.filters.is_empty() || !self.on.load(Ordering::Relaxed) {
            return None;
        }
        Some(Arc::new(MinedRequest {
            log: Arc::clone(self),
            table: ScannedTable::new(scan.table),
            filters: scan.filters.to_vec(),
            columns: scan.columns.iter().map(|&column| column.to_owned()).collect(),
        }))
    }

    fn note(&self, request: &Arc<MinedRequest>, volume: &dyn Fn() -> Volume) {
        let at_us = self.clock.unix_us();
        let parts: usize = {
            let mut epoch = self.epoch.lock();
            if epoch.count_known(request, at_us) {
                return self.counters.noted();
            }
            let parts = request.filters.iter().map(parts).sum();
            if !epoch.make_room(&request.table, parts) {
                return self.counters.missed();
            }
            parts
        };
        // The lock is not held while the volume is measured.
        let scan = LoggedScan { request: Arc::clone(request), volume: volume(), runs: 1, at_us, parts };
        let mut epoch = self.epoch.lock();
        if !epoch.count_known(request, at_us) {
            epoch.add(scan);
        }
        self.counters.noted();
    }

    /// Takes all scans logged since the last call.
    pub(super) fn take(&self) -> Vec<TableLog> {
        let epoch = std::mem::take(&mut *self.epoch.lock());
        epoch.tables.into_values().map(|(log, _)| log).collect()
    }

    pub(super) fn now_us(&self) -> u64 {
        self.clock.unix_us()
    }
}

/// Number of expressions in an expression.
fn parts(expr: &Expr) -> usize {
    let mut parts = 0;
    let _ = expr.apply(|_| {
        parts += 1;
        Ok(if parts > MOST_PARTS { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    parts
}
