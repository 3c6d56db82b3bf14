//! The delta: recent inserts of a table, in DRAM, charged to the store's delta budget, always scanned.
//!
//! An entry is one insert, or several small ones that were folded. It is durable before it is visible (unless the table
//! opted out) and stays until a fold replaces it by a larger entry, or a seal by chunks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, RecordBatch};
use roaring::RoaringBitmap;
use terrace_model::{Account, Charge, Result};

use super::delta_column::DeltaColumn;
use super::key::{Key, KeyRange};
use super::row_map::{Destination, RowMap};

/// Entries of fewer rows keep no [`DeltaColumn`]s, which would be larger than the rows: each plan computes them again.
const CACHED_ROWS: usize = 64;

/// Limits at which a delta is sealed into chunks; its rows are limited by the table's `chunk_rows` too.
#[derive(Debug, Clone, Copy)]
pub struct SealRule {
    /// Bytes of the delta.
    pub bytes: u64,
    /// Age of its oldest row, in microseconds; `u64::MAX`: no thread seals, neither for age nor because memory is short.
    pub age_us: u64,
}

impl Default for SealRule {
    fn default() -> Self {
        Self { bytes: 64 << 20, age_us: 300_000_000 }
    }
}

/// The new place of an entry's rows.
#[derive(Debug)]
pub enum Moved {
    /// Into chunks.
    Sealed(RowMap),
    /// Into a larger entry.
    Folded {
        /// The larger entry.
        into: Arc<DeltaEntry>,
        /// Position there of the entry's first row that was not deleted.
        first: u32,
        /// Rows that were deleted before the fold.
        dropped: Option<Arc<RoaringBitmap>>,
    },
}

/// The rows of one insert, or of several small ones.
#[derive(Debug)]
pub struct DeltaEntry {
    /// Its key in the catalog.
    pub sequence: u64,
    /// Its rows, compacted.
    pub batch: RecordBatch,
    /// Time of the insert, on the store's clock.
    pub since_us: u64,
    /// The new place of its rows; set when the entry is sealed or folded.
    pub moved: Destination<Moved>,
    /// Set once it is in the catalog, or on its way there.
    logged: AtomicBool,
    /// Bounds of its keys; set at the first use.
    keys: OnceLock<Option<KeyRange>>,
    /// Values of its columns that plans need, computed at the first use; unused in small entries.
    columns: OnceLock<Box<[OnceLock<Arc<DeltaColumn>>]>>,
    charge: Charge,
}

impl DeltaEntry {
    /// Charges the delta account and makes an entry; fails when the delta is full.
    pub fn charged(account: &Arc<Account>, sequence: u64, batch: RecordBatch, since_us: u64) -> Result<Self> {
        let charge = account.try_charge(batch.get_array_memory_size() as u64)?;
        Ok(Self::new(sequence, batch, since_us, false, charge))
    }

    /// Makes an entry of the same rows with other columns, for a table that was altered; charged even above the limit.
    pub fn with_columns(&self, account: &Arc<Account>, batch: RecordBatch) -> Self {
        let charge = account.charge_always(batch.get_array_memory_size() as u64);
        Self::new(self.sequence, batch, self.since_us, self.is_logged(), charge)
    }

    /// Makes an entry of the rows of other entries. They exist already, so it is charged even above the limit.
    pub fn folded(account: &Arc<Account>, sequence: u64, batch: RecordBatch, since_us: u64) -> Self {
        let charge = account.charge_always(batch.get_array_memory_size() as u64);
        Self::new(sequence, batch, since_us, false, charge)
    }

    /// Makes an entry that was read at start. It exists already, so it is charged even above the limit.
    pub fn restored(account: &Arc<Account>, sequence: u64, batch: RecordBatch, since_us: u64) -> Self {
        let charge = account.charge_always(batch.get_array_memory_size() as u64);
        Self::new(sequence, batch, since_us, true, charge)
    }

    fn new(sequence: u64, batch: RecordBatch, since_us: u64, logged: bool, charge: Charge) -> Self {
        let moved = Destination::default();
        let logged = AtomicBool::new(logged);
        let keys = OnceLock::new();
        let columns = OnceLock::new();
        Self { sequence, batch, since_us, moved, logged, keys, columns, charge }
    }

    /// True when it has too few rows to keep its [`DeltaColumn`]s.
    pub(crate) fn is_small(&self) -> bool {
        self.batch.num_rows() < CACHED_ROWS
    }

    /// Values of a column that plans need, deleted rows included.
    pub fn column(&self, column: usize) -> Option<Arc<DeltaColumn>> {
        let values = self.batch.columns().get(column)?;
        if self.is_small() {
            return Some(Arc::new(DeltaColumn::from_array(values)));
        }
        let columns = self.columns.get_or_init(|| (0..self.batch.num_columns()).map(|_| OnceLock::new()).collect());
        Some(Arc::clone(columns.get(column)?.get_or_init(|| Arc::new(DeltaColumn::from_array(values)))))
    }

    /// Bounds of its keys, deleted rows included; `None` without rows. `key` must always be the key of its table.
    pub fn key_range(&self, key: &Key) -> Result<Option<&KeyRange>> {
        if let Some(range) = self.keys.get() {
            return Ok(range.as_ref());
        }
        let range = key.range(&self.key_columns(key))?;
        Ok(self.keys.get_or_init(|| range).as_ref())
    }

    /// Its key columns.
    pub fn key_columns(&self, key: &Key) -> Vec<ArrayRef> {
        key.columns().iter().filter_map(|column| self.batch.columns().get(*column)).cloned().collect()
    }

    /// True when the catalog has it: not if its table opted out of durability.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Relaxed)
    }

    /// Records that the entry is in the catalog, or in a commit that is under way.
    #[inline]
    pub fn set_logged(&self) {
        self.logged.store(true, Ordering::Relaxed);
    }

    /// Bytes held in DRAM.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }
}
