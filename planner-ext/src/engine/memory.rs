//! Query memory: one limit for all statements, one pool per statement under it.
//!
//! Operators that can spill are refused at 80 % of the limit, so that they spill while those that cannot (merges,
//! nested-loop joins, small streams) still find room. A statement's pool counts the statement's bytes; when the statement ends, its operators
//! drop their reservations and the bytes return to [`QueryMemory`].
//!
//! - [`pool`]: the pool of one statement, and which requests it refuses
//! - [`statement`]: the memory that one statement holds: what its operators reserve, and what its work allocates
//! - [`credited`]: rows that leave a statement
//! - [`spawned`]: charges the tasks that DataFusion spawns to the statement that spawned them

mod credited;
mod pool;
mod spawned;
mod statement;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use credited::credited;
pub(super) use pool::StatementPool;
pub(super) use spawned::charge_spawned_tasks;
pub(super) use statement::StatementMemory;

/// The limit of all statements together.
#[derive(Debug)]
pub struct QueryMemory {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    /// The part of the used bytes that no operator has reserved.
    unreserved_bytes: AtomicUsize,
}

impl QueryMemory {
    pub(super) fn new(limit_bytes: u64) -> Arc<Self> {
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let [used_bytes, peak_bytes, unreserved_bytes] = Default::default();
        Arc::new(Self { limit_bytes, used_bytes, peak_bytes, unreserved_bytes })
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

    /// A pool for one statement, whose workload group may have a limit of its own.
    pub(super) fn statement_pool(self: &Arc<Self>, group: Option<&Arc<Self>>) -> Arc<StatementPool> {
        Arc::new(StatementPool::new(Arc::clone(self), group.cloned(), None))
    }

    fn add(&self, bytes: usize) {
        let before = self.used_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
    }

    /// Takes bytes that a statement has allocated without asking for them, or is about to.
    fn add_unreserved(&self, bytes: usize) {
        self.unreserved_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.add(bytes);
    }

    fn sub_unreserved(&self, bytes: usize) {
        self.sub(bytes);
        self.unreserved_bytes.fetch_sub(bytes, Ordering::SeqCst);
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

/// Query memory for messages that are decompressed before a statement owns them.
#[derive(Debug, Clone)]
pub(super) struct MessageMemory(pub(super) Arc<QueryMemory>);

impl MessageMemory {
    /// The limit of all statements, in bytes.
    pub(super) fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes as u64
    }
}

/// Bytes charged for a message, freed when it is dropped.
struct MessageCharge(Arc<QueryMemory>, usize);

impl Drop for MessageCharge {
    fn drop(&mut self) {
        self.0.sub(self.1);
    }
}

impl terrace_ipc::Account for MessageMemory {
    fn charge(&self, bytes: u64) -> std::result::Result<terrace_ipc::Charge, String> {
        let memory = &self.0;
        // A message cannot wait, so it is not refused for what statements hold without reservation.
        let total = memory.limit_bytes.saturating_add(memory.unreserved_bytes.load(Ordering::SeqCst));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        memory.try_add(bytes, total).map_err(|used| format!("all statements hold {used} of {total} bytes"))?;
        Ok(Box::new(MessageCharge(Arc::clone(memory), bytes)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};

    use super::*;

    #[test]
    fn messages_take_of_query_memory_until_their_last_reader_is_done() {
        let memory = QueryMemory::new(3_200);
        let pool: Arc<dyn MemoryPool> = memory.statement_pool(None);
        let messages = MessageMemory(Arc::clone(&memory));
        let charge = terrace_ipc::Account::charge(&messages, 3_000).unwrap();
        MemoryConsumer::new("join").register(&pool).try_grow(201).unwrap_err();
        assert!(terrace_ipc::Account::charge(&messages, u64::MAX).is_err_and(|why| why.contains("3000 of 3200")));
        drop(charge);
        assert_eq!(memory.used_bytes(), 0);
    }
}
