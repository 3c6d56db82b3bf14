//! Memory of finished reads, kept for the next ones.
//!
//! The kernel clears fresh memory page by page, on the one thread that submits reads: that halves the bandwidth of an SSD
//! (docs/design/scan.md). So the pool keeps returned blocks and reuses the latest first. They may fill the part of the read
//! budget that reads leave free; when that is too little, the blocks that were unused longest are freed. Sizes are rounded up
//! to eighths of a power of two, and a request takes a block of up to twice its size, so that columns of about the same size
//! share blocks.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use terrace_model::{Account, Error, Result};

use super::BLOCK_BYTES;

/// Smaller pieces of memory come from the allocator and return to it.
const SMALLEST_BYTES: usize = 64 << 10;
/// About the memory that a few scans have in flight and in use; more would rarely be reused.
const MOST_KEPT_BYTES: u64 = 192 << 20;

/// Heap memory with a chosen alignment. Drop returns it to its pool, or frees it.
#[derive(Debug)]
pub(super) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    pool: Option<Arc<BufferPool>>,
}

// SAFETY: the memory has one owner and no thread affinity; shared access is read-only.
unsafe impl Send for Allocation {}
// SAFETY: as above; writing needs `&mut`.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `bytes` (more than 0) of uninitialised memory.
    pub(super) fn new(bytes: usize, align: usize) -> Result<Self> {
        let out_of_memory = || Error::Io {
            action: "allocate",
            path: "memory".into(),
            errno: Some(libc::ENOMEM),
            message: format!("cannot allocate {bytes} bytes"),
        };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| out_of_memory())?;
        if layout.size() == 0 {
            return Err(out_of_memory());
        }
        // SAFETY: the layout has a size above 0.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(out_of_memory)?;
        Ok(Self { start, layout, pool: None })
    }

    /// Address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match self.pool.take() {
            Some(pool) => pool.keep(Self { start: self.start, layout: self.layout, pool: None }),
            // SAFETY: allocated in `new` with this layout. A pool's blocks were moved to another owner above.
            None => unsafe { dealloc(self.start.as_ptr(), self.layout) },
        }
    }
}

/// A pool of unused blocks.
#[derive(Debug, Default)]
pub struct BufferPool {
    budget: OnceLock<Arc<Account>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept_bytes: usize,
    /// Number of blocks returned so far: the order in which they came back.
    returns: u64,
    /// By size, oldest first.
    free: BTreeMap<usize, VecDeque<(u64, Allocation)>>,
}

// Arrow requires it of the owner of a buffer. A panic inside the lock cannot put a block into two lists.
impl std::panic::RefUnwindSafe for BufferPool {}

impl BufferPool {
    /// Limits the pool to the bytes that `account`, to which reads are charged, has left. The pool keeps nothing before this
    /// call; later calls change nothing.
    pub fn share_budget(&self, account: &Arc<Account>) {
        self.budget.get_or_init(|| Arc::clone(account));
    }

    /// Bytes that the pool keeps now.
    pub fn kept_bytes(&self) -> usize {
        self.state.lock().kept_bytes
    }

    /// Memory of at least `bytes`, from the pool or the allocator.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Result<Allocation> {
        if bytes < SMALLEST_BYTES {
            return Allocation::new(bytes, BLOCK_BYTES);
        }
        let size = bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(BLOCK_BYTES));
        let kept = self.state.lock().take(size);
        let mut blocks = match kept {
            Some(blocks) => blocks,
            None => {
                self.shrink();
                Allocation::new(size, BLOCK_BYTES)?
            }
        };
        blocks.pool = Some(Arc::clone(self));
        Ok(blocks)
    }

    fn keep(&self, blocks: Allocation) {
        self.state.lock().keep(blocks);
        self.shrink();
    }

    fn shrink(&self) {
        let left = |account: &Arc<Account>| account.limit_bytes().saturating_sub(account.used_bytes());
        let limit = self.budget.get().map_or(0, left).min(MOST_KEPT_BYTES);
        let surplus = self.state.lock().shrink(limit as usize);
        // Free the memory outside of the lock, as it takes the kernel a while.
        drop(surplus);
    }
}

impl State {
    /// Removes the smallest block of at least `size` and at most twice that.
    fn take(&mut self, size: usize) -> Option<Allocation> {
        let (_, blocks) = self.free.range_mut(size..=2 * size).find_map(|(_, waiting)| waiting.pop_back())?;
        self.kept_bytes -= blocks.layout.size();
        Some(blocks)
    }

    fn keep(&mut self, blocks: Allocation) {
        self.returns += 1;
        let size = blocks.layout.size();
        self.kept_bytes += size;
        self.free.entry(size).or_default().push_back((self.returns, blocks));
    }

    /// Removes the blocks that were unused longest until the rest is within `limit`.
    fn shrink(&mut self, limit: usize) -> Vec<Allocation> {
        let mut surplus = Vec::new();
        while self.kept_bytes > limit {
            let fronts = self.free.values_mut().filter(|waiting| !waiting.is_empty());
            let oldest = fronts.min_by_key(|waiting| waiting.front().map(|(returned, _)| *returned));
            let Some((_, blocks)) = oldest.and_then(VecDeque::pop_front) else { break };
            self.kept_bytes -= blocks.layout.size();
            surplus.push(blocks);
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn blocks_come_back_latest_first_and_the_oldest_leave() {
        let pool = Arc::new(BufferPool::default());
        let take = |kib: usize| pool.take(kib << 10).unwrap();
        drop(take(256));
        assert_eq!(pool.kept_bytes(), 0, "nothing is kept before there is a budget");
        let reads = Account::new("reads", 1 << 20);
        pool.share_budget(&reads);
        let first = take(260);
        let second = take(264);
        let places = [first.start(), second.start()];
        drop((first, second));
        assert_eq!(pool.kept_bytes(), 640 << 10, "260 KiB and 264 KiB take the same size");
        let again = take(280);
        assert_eq!(again.start(), places[1]);
        drop(again);
        drop(take(512));
        assert_eq!(pool.kept_bytes(), (320 + 512) << 10, "the block unused longest made room");
        assert_eq!(take(200).start(), places[1], "a block of less than twice the size is reused");
        drop(take(4));
        assert_eq!(pool.kept_bytes(), 832 << 10, "small memory is the allocator's");
        let read = reads.try_charge(512 << 10).unwrap();
        drop(take(70));
        assert_eq!(pool.kept_bytes(), (320 + 80) << 10, "running reads have the budget");
        drop(read);
    }
}
