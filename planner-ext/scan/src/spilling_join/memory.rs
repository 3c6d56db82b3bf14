//! Memory of a build side: reserved while its rows are collected, then used by the join that takes them.
//!
//! DataFusion's join reserves its build side itself when it takes the batches. Freeing what was reserved for them before
//! would open a gap in which another statement takes the bytes. So the join gets a pool that grants what is reserved
//! already and asks the statement's pool only for more.

use std::fmt;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

/// The memory of one build side.
#[derive(Debug)]
pub(super) struct BuildMemory {
    /// In the statement's pool.
    reservation: MemoryReservation,
    join: Mutex<JoinMemory>,
}

/// What the join that got the rows holds.
#[derive(Debug, Default)]
struct JoinMemory {
    bytes: usize,
    /// Whether the reservation follows what the join holds.
    settled: bool,
}

impl BuildMemory {
    pub(super) fn new(context: &TaskContext, partition: usize) -> Arc<Self> {
        let consumer = MemoryConsumer::new(format!("HashJoinBuild[{partition}]")).with_can_spill(true);
        Arc::new(Self { reservation: consumer.register(context.memory_pool()), join: Mutex::default() })
    }

    /// Reserves `bytes` in all; fails when the statement's pool refuses them.
    pub(super) fn try_resize(&self, bytes: usize) -> Result<()> {
        self.reservation.try_resize(bytes)
    }

    /// Reserves `bytes` in all, also beyond the limit.
    pub(super) fn resize(&self, bytes: usize) {
        self.reservation.resize(bytes);
    }

    /// Frees what the join did not take. Called when it has built its hash table.
    pub(super) fn settle(&self) {
        let mut join = self.join.lock();
        join.settled = true;
        self.reservation.resize(join.bytes);
    }
}

impl fmt::Display for BuildMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "build side(reserved: {})", self.reservation.size())
    }
}

impl MemoryPool for BuildMemory {
    fn name(&self) -> &str {
        "build side"
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        let mut join = self.join.lock();
        join.bytes = join.bytes.saturating_add(additional);
        if join.settled || join.bytes > self.reservation.size() {
            self.reservation.resize(join.bytes);
        }
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        let mut join = self.join.lock();
        join.bytes = join.bytes.saturating_sub(shrink);
        if join.settled {
            self.reservation.resize(join.bytes);
        }
    }

    /// Never fails: the rows are reserved with all that the join makes of them. What it asks for beyond that is small (an
    /// array in place of a hash table, whose size follows from the keys).
    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.grow(reservation, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.join.lock().bytes
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Unknown
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;

    use super::*;

    #[test]
    fn a_join_takes_over_what_is_reserved_and_the_rest_is_freed() {
        let parent: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1_000));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&parent)).build_arc().unwrap();
        let memory = BuildMemory::new(&TaskContext::default().with_runtime(runtime), 0);
        memory.try_resize(900).unwrap();
        memory.try_resize(1_001).unwrap_err();
        let pool: Arc<dyn MemoryPool> = Arc::clone(&memory) as _;
        let join = MemoryConsumer::new("join").register(&pool);
        join.try_grow(300).unwrap();
        assert_eq!(parent.reserved(), 900);
        memory.settle();
        assert_eq!(parent.reserved(), 300);
        join.try_grow(900).unwrap();
        assert_eq!(parent.reserved(), 1_200);
        join.shrink(1_000);
        assert_eq!(parent.reserved(), 200);
        drop((join, pool, memory));
        assert_eq!(parent.reserved(), 0);
    }
}
