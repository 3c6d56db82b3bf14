//! What scans asked their tables for since the last epoch.
//!
//! Written when a scan is executed: one look-up for a filter that is known, a measurement of its chunks for a new one. Where
//! there is no room, new filters take the places of some that came once, drawn so that all of an epoch have the same chance: a
//! thousand look-ups by key shall not keep out the query that comes after them. What is left out is counted, and a view
//! is never believed to serve more than was seen.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Expr;
use parking_lot::Mutex;
use terrace_tier_store::clock::{Clock, SystemClock};
use terrace_tier_store::table::{Table, TableName};

use super::counters::MiningCounters;

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
    parts: usize,
}

/// The scans of a table in an epoch.
#[derive(Debug)]
pub(super) struct TableLog {
    pub(super) table: Arc<Table>,
    pub(super) scans: Vec<Asked>,
    /// Executions of others, for which there was no room when they came.
    pub(super) missed: u64,
}

impl TableLog {
    /// The place of a scan that may go for another one, if the draw says so.
    fn victim(&self) -> Option<usize> {
        // Not by chance: the same scans in the same order leave the same behind.
        let draw = BuildHasherDefault::<DefaultHasher>::default().hash_one(self.missed);
        let place = usize::try_from(draw % (MOST_SCANS as u64 + self.missed)).ok()?;
        self.scans.get(place).filter(|scan| scan.runs == 1).map(|_| place)
    }
}

#[derive(Debug, Default)]
struct Epoch {
    tables: HashMap<TableName, (TableLog, HashMap<Arc<Asking>, usize>)>,
    parts: usize,
}

impl Epoch {
    fn of(&mut self, table: &Arc<Table>) -> &mut (TableLog, HashMap<Arc<Asking>, usize>) {
        self.tables
            .entry(table.name().clone())
            .or_insert_with(|| (TableLog { table: Arc::clone(table), scans: Vec::new(), missed: 0 }, HashMap::new()))
    }

    /// Counts a scan that is known; false for others.
    fn again(&mut self, asking: &Arc<Asking>, at_us: u64) -> bool {
        let (log, known) = self.of(&asking.table);
        let Some(scan) = known.get(asking).and_then(|at| log.scans.get_mut(*at)) else { return false };
        (scan.runs, scan.at_us) = (scan.runs + 1, at_us);
        true
    }

    /// True when there is room for so many parts of a new scan, or now is, in place of an older one.
    fn has_room(&mut self, table: &Arc<Table>, parts: usize) -> bool {
        let is_free = |all: usize| all + parts <= MOST_PARTS;
        let all_parts = self.parts;
        let (log, known) = self.of(table);
        if log.scans.len() < MOST_SCANS && is_free(all_parts) {
            return true;
        }
        log.missed += 1;
        let victim = log.victim().filter(|place| {
            let freed = log.scans.get(*place).map_or(0, |scan| scan.parts);
            is_free(all_parts.saturating_sub(freed))
        });
        let Some(place) = victim else { return false };
        let gone = log.scans.swap_remove(place);
        known.remove(&gone.asking);
        if let Some(moved) = log.scans.get(place) {
            known.insert(Arc::clone(&moved.asking), place);
        }
        self.parts -= gone.parts;
        true
    }

    fn add(&mut self, scan: Asked) {
        self.parts += scan.parts;
        let (log, known) = self.of(&scan.asking.table);
        log.table = Arc::clone(&scan.asking.table);
        known.insert(Arc::clone(&scan.asking), log.scans.len());
        log.scans.push(scan);
    }
}

/// The log of an epoch.
#[derive(Debug)]
pub(crate) struct AskedLog {
    on: AtomicBool,
    clock: Arc<dyn Clock>,
    epoch: Mutex<Epoch>,
    counters: Arc<MiningCounters>,
}

impl AskedLog {
    /// Empty, and off: it notes nothing before it is told to.
    pub(super) fn new(counters: Arc<MiningCounters>) -> Arc<Self> {
        let clock = Arc::new(SystemClock::default());
        Arc::new(Self { on: AtomicBool::new(false), clock, epoch: Mutex::default(), counters })
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
        let parts: usize = {
            let mut epoch = self.epoch.lock();
            if epoch.again(asking, at_us) {
                return self.counters.noted();
            }
            let parts = asking.filters.iter().map(parts).sum();
            if !epoch.has_room(&asking.table, parts) {
                return self.counters.missed();
            }
            parts
        };
        // Nobody waits while it is measured.
        let scan = Asked { asking: Arc::clone(asking), volume: volume(), runs: 1, at_us, parts };
        let mut epoch = self.epoch.lock();
        if !epoch.again(asking, at_us) {
            epoch.add(scan);
        }
        self.counters.noted();
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
