//! The memory that one statement holds.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::memory_pool::MemoryPool;
use terrace_heap::HeapAccount;

use super::{QueryMemory, StatementPool};

/// How long a statement waits for the operators of a plan that has failed.
const LONGEST_RELEASE: Duration = Duration::from_secs(5);
const RELEASE_CHECK: Duration = Duration::from_millis(1);

/// The memory of one statement, counted in two ways: what its operators reserve of query memory, and what its work
/// allocates. The second is 0 in programs whose allocator does not count.
#[derive(Debug)]
pub(in crate::engine) struct StatementMemory {
    pool: Arc<StatementPool>,
    heap: Arc<HeapAccount>,
}

impl StatementMemory {
    /// The memory of a statement whose workload group may have a limit of its own.
    pub(in crate::engine) fn new(memory: &Arc<QueryMemory>, group: Option<&Arc<QueryMemory>>) -> Self {
        let heap = HeapAccount::new();
        let pool = StatementPool::new(Arc::clone(memory), group.cloned(), Some(Arc::clone(&heap)));
        Self { pool: Arc::new(pool), heap }
    }

    /// The memory of a statement that hands rows to the threads that write tables, and of which only reservations count:
    /// its account is not credited for all that these threads free.
    pub(in crate::engine) fn for_writes(memory: &Arc<QueryMemory>, group: Option<&Arc<QueryMemory>>) -> Self {
        Self { pool: memory.statement_pool(group), heap: HeapAccount::new() }
    }

    /// The most bytes that its operators can reserve.
    pub(in crate::engine) fn limit_bytes(&self) -> usize {
        self.pool.limit_bytes()
    }

    /// The pool that its operators reserve memory in.
    pub(in crate::engine) fn pool(&self) -> Arc<StatementPool> {
        Arc::clone(&self.pool)
    }

    /// The account that its work is charged to.
    pub(in crate::engine) fn heap(&self) -> &Arc<HeapAccount> {
        &self.heap
    }

    pub(in crate::engine) fn reserved_bytes(&self) -> u64 {
        self.pool.reserved() as u64
    }

    /// Waits until its operators have let go of all that they reserved, but not for ever: those of a plan that has failed
    /// end with their tasks, which may be at work on other threads.
    pub(in crate::engine) async fn wait_until_released(&self) {
        let released = async {
            while self.pool.operator_bytes() > 0 {
                tokio::time::sleep(RELEASE_CHECK).await;
            }
        };
        // The next plan may do with what there is.
        _ = tokio::time::timeout(LONGEST_RELEASE, released).await;
    }

    pub(in crate::engine) fn reserved_peak_bytes(&self) -> u64 {
        self.pool.peak_bytes() as u64
    }

    /// Whether its operators were refused memory since the last call that they would have got if it had been alone.
    pub(in crate::engine) fn take_crowded_out(&self) -> bool {
        self.pool.take_crowded_out()
    }

    /// Lets only reservations count from now on: the statement has ended.
    pub(in crate::engine) fn end(&self) {
        self.pool.end();
    }

    /// Counts what its work has held beyond what its operators reserve for some time; `now_us` is the time of this look.
    pub(in crate::engine) fn count_unreserved(&self, now_us: u64) {
        self.pool.count_unreserved(now_us);
    }

    /// What its work allocates beyond what its operators reserve.
    pub(in crate::engine) fn unreserved_bytes(&self) -> u64 {
        self.heap.bytes().saturating_sub(self.pool.operator_bytes() as u64)
    }

    /// The larger of what it reserves and what it allocates.
    pub(in crate::engine) fn held_bytes(&self) -> u64 {
        self.reserved_bytes().max(self.heap.bytes())
    }
}
