//! Query memory: one limit for all statements, one pool per statement under it.
//!
//! Operators that can spill are refused at 80 % of the limit, so that they spill while those that cannot (hash joins,
//! small streams) still find room. A statement's pool counts what it holds; when the statement ends, its operators
//! drop their reservations and the bytes return here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

/// The limit of all statements together.
#[derive(Debug)]
pub struct QueryMemory {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
}

impl QueryMemory {
    pub(super) fn new(limit_bytes: u64) -> Arc<Self> {
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        Arc::new(Self { limit_bytes, used_bytes: AtomicUsize::new(0), peak_bytes: AtomicUsize::new(0) })
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Bytes reserved now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The largest [`Self::used_bytes`] so far.
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// A pool for one statement.
    pub(super) fn statement_pool(self: &Arc<Self>) -> Arc<dyn MemoryPool> {
        Arc::new(StatementPool { shared: Arc::clone(self), used_bytes: AtomicUsize::new(0) })
    }

    fn add(&self, bytes: usize) {
        let before = self.used_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
    }

    fn try_add(&self, bytes: usize, limit: usize) -> std::result::Result<(), usize> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let before = self.used_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits)?;
        self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
        Ok(())
    }

    fn sub(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// The pool of one statement.
#[derive(Debug)]
struct StatementPool {
    shared: Arc<QueryMemory>,
    used_bytes: AtomicUsize,
}

impl fmt::Display for StatementPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "statement(used: {}, limit of all: {})", self.reserved(), self.shared.limit_bytes)
    }
}

impl MemoryPool for StatementPool {
    fn name(&self) -> &str {
        "statement"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        self.used_bytes.fetch_add(additional, Ordering::Relaxed);
        self.shared.add(additional);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        self.used_bytes.fetch_sub(shrink, Ordering::Relaxed);
        self.shared.sub(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let whole = self.shared.limit_bytes;
        let limit = if reservation.consumer().can_spill() { whole - whole / 5 } else { whole };
        self.shared.try_add(additional, limit).map_err(|used| {
            DataFusionError::ResourcesExhausted(format!(
                "{} asked for {additional} bytes; this statement holds {}, all statements {used} of {whole}",
                reservation.consumer().name(),
                self.reserved(),
            ))
        })?;
        self.used_bytes.fetch_add(additional, Ordering::Relaxed);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.shared.limit_bytes)
    }
}
