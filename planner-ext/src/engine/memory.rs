//! Query memory: one limit for all statements, one pool per statement under it.
//!
//! Operators that can spill are refused at 80 % of the limit, so that they spill while those that cannot (hash joins,
//! small streams) still find room. A statement's pool counts what it holds; when the statement ends, its operators
//! drop their reservations and the bytes return here.
//!
//! Two rules keep an operator that spills from failing beside another one of its statement:
//!
//! - **What an operator gave back is kept for its statement's merges.** A sort frees the bytes of its runs when the runs
//!   hand their batches on, and its merge, which cannot spill, asks for them again when it takes them (DataFusion 55
//!   sorts/sort.rs `sort_batch_stream`, sorts/builder.rs `push_batch`). The batches exist all the while. So bytes that
//!   one spilling operator gave back count as held for all others that spill, until that operator takes them again, one
//!   that cannot spill takes as many, or it ends.
//! - **Who holds little may take of the last fifth**: an operator that holds nothing cannot spill to make room, it
//!   fails. Up to a thirty-second of the limit each is granted while nine tenths are not full.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

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
        Arc::new(StatementPool {
            shared: Arc::clone(self),
            used_bytes: AtomicUsize::new(0),
            spilling: Mutex::default(),
        })
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

/// What one operator that can spill holds, and gave back without anyone taking it since.
#[derive(Debug, Default)]
struct Spilling {
    held_bytes: usize,
    given_back_bytes: usize,
}

/// The pool of one statement.
#[derive(Debug)]
struct StatementPool {
    shared: Arc<QueryMemory>,
    used_bytes: AtomicUsize,
    /// Operators that can spill and have asked for memory, by the id of their consumer.
    spilling: Mutex<HashMap<usize, Spilling>>,
}

impl StatementPool {
    /// The most that all statements may hold for `consumer`, which can spill, to be granted `additional` bytes.
    fn spilling_limit(&self, spilling: &HashMap<usize, Spilling>, consumer: usize, additional: usize) -> usize {
        let whole = self.shared.limit_bytes;
        let held = spilling.get(&consumer).map_or(0, |own| own.held_bytes);
        if held.saturating_add(additional) <= whole / 32 {
            return whole - whole / 10;
        }
        let kept: usize =
            spilling.iter().filter(|(id, _)| **id != consumer).map(|(_, other)| other.given_back_bytes).sum();
        (whole - whole / 5).saturating_sub(kept)
    }

    /// Counts bytes that `consumer` was granted.
    fn granted(&self, spilling: &mut HashMap<usize, Spilling>, consumer: &MemoryConsumer, additional: usize) {
        self.used_bytes.fetch_add(additional, Ordering::Relaxed);
        if consumer.can_spill() {
            let own = spilling.entry(consumer.id()).or_default();
            own.held_bytes += additional;
            own.given_back_bytes = own.given_back_bytes.saturating_sub(additional);
            return;
        }
        let mut taken = additional;
        for other in spilling.values_mut() {
            let part = taken.min(other.given_back_bytes);
            other.given_back_bytes -= part;
            taken -= part;
        }
    }
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

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.spilling.lock().remove(&consumer.id());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.shared.add(additional);
        self.granted(&mut self.spilling.lock(), reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if let Some(own) = self.spilling.lock().get_mut(&reservation.consumer().id()) {
            own.held_bytes = own.held_bytes.saturating_sub(shrink);
            own.given_back_bytes += shrink;
        }
        self.used_bytes.fetch_sub(shrink, Ordering::Relaxed);
        self.shared.sub(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let whole = self.shared.limit_bytes;
        let mut spilling = self.spilling.lock();
        let limit =
            if consumer.can_spill() { self.spilling_limit(&spilling, consumer.id(), additional) } else { whole };
        self.shared.try_add(additional, limit).map_err(|used| {
            DataFusionError::ResourcesExhausted(format!(
                "{} asked for {additional} bytes; this statement holds {}, all statements {used} of {whole}",
                consumer.name(),
                self.reserved(),
            ))
        })?;
        self.granted(&mut spilling, consumer, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.shared.limit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 3_200;

    fn pool() -> (Arc<QueryMemory>, Arc<dyn MemoryPool>) {
        let memory = QueryMemory::new(LIMIT);
        let pool = memory.statement_pool();
        (memory, pool)
    }

    fn operator(pool: &Arc<dyn MemoryPool>, can_spill: bool) -> MemoryReservation {
        MemoryConsumer::new("operator").with_can_spill(can_spill).register(pool)
    }

    #[test]
    fn what_a_sort_hands_on_its_merge_finds_again() {
        let (memory, pool) = pool();
        let (first, second, merge) = (operator(&pool, true), operator(&pool, true), operator(&pool, false));
        first.try_grow(1_280).unwrap();
        second.try_grow(1_000).unwrap();
        // The runs of the first hand their batches on, and the second still has rows coming in.
        first.free();
        second.try_grow(280).unwrap();
        second.try_grow(1).unwrap_err();
        // The merge finds the room of its runs, and a little more.
        merge.try_grow(1_280).unwrap();
        merge.try_grow(640).unwrap();
        merge.try_grow(1).unwrap_err();
        merge.free();
        // Taken once, they are kept no longer.
        second.try_grow(1_280).unwrap();
        assert_eq!(memory.used_bytes(), 2_560);
        assert_eq!(pool.reserved(), 2_560);
    }

    #[test]
    fn bytes_given_back_are_free_again_once_their_operator_ended() {
        let (memory, pool) = pool();
        let (first, second) = (operator(&pool, true), operator(&pool, true));
        first.try_grow(2_560).unwrap();
        first.free();
        first.try_grow(2_560).unwrap();
        first.free();
        second.try_grow(500).unwrap_err();
        drop(first);
        second.try_grow(2_560).unwrap();
        drop(second);
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn who_holds_little_finds_room_beside_who_holds_all() {
        let (_, pool) = pool();
        let (large, small, join) = (operator(&pool, true), operator(&pool, true), operator(&pool, false));
        large.try_grow(2_560).unwrap();
        large.try_grow(1).unwrap_err();
        small.try_grow(101).unwrap_err();
        small.try_grow(100).unwrap();
        small.try_grow(1).unwrap_err();
        join.try_grow(540).unwrap();
        join.try_grow(1).unwrap_err();
    }
}
