//! Room on memory tiers that segments leave over, for spilled rows.
//!
//! A piece of a spill file lies on the fastest memory tier that has room, up to a share of its budget. It is charged to the
//! tier like a segment. DRAM takes none while the process has little memory left. When a move finds no room, or the tier is closed or yields its memory, pieces go to the disk, and for
//! a while no new ones come.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::buffer::Buffer;
use terrace_tier_store::clock::Clock;
use terrace_tier_store::store::Store;
use terrace_tier_store::tier::{Loan, TierId, TierIndex, TierKind};

/// For so long no pieces come to a tier after some were recalled.
const PAUSE_US: u64 = 2_000_000;

/// A part of the memory tiers.
pub(super) struct TierShare {
    store: Arc<Store>,
    /// Of each budget, from 0 to 1.
    share: f64,
    /// Whether there is memory for rows in DRAM: statements and segments may need it sooner than the rows could leave.
    is_memory_ample: AtomicBool,
    /// Until when nothing is stored.
    paused_until_us: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// The bytes of a piece on a memory tier, which are charged while any reader has them.
#[derive(Debug)]
pub(super) struct TierBytes {
    pub(super) tier: TierIndex,
    pub(super) bytes: Buffer,
    _loan: Loan,
}

impl fmt::Debug for TierShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierShare").field("share", &self.share).finish_non_exhaustive()
    }
}

impl TierShare {
    /// `share` of the budget of each memory tier of `store`.
    pub(super) fn new(store: Arc<Store>, share: f64, clock: Arc<dyn Clock>) -> Self {
        let is_memory_ample = AtomicBool::new(true);
        Self { store, share, is_memory_ample, paused_until_us: AtomicU64::new(0), clock }
    }

    /// Copies bytes to the fastest tier that has room; `None` if none has.
    pub(super) fn store(&self, bytes: &[u8]) -> Option<TierBytes> {
        if self.share <= 0.0 || self.clock.now_us() < self.paused_until_us.load(Ordering::Relaxed) {
            return None;
        }
        let takes_dram = self.is_memory_ample.load(Ordering::Relaxed);
        self.store.memory_tiers().iter().find_map(|tier| {
            if !tier.has_room(bytes.len() as u64) || (tier.kind() == TierKind::Dram && !takes_dram) {
                return None;
            }
            let account = tier.account();
            let most_bytes = (account.limit_bytes() as f64 * self.share) as u64;
            let loan = account.try_lend(tier.charged_bytes(bytes.len()), most_bytes)?;
            // A device that fails is no error of the statement: the disk takes the rows.
            let stored = tier.store(bytes).ok()?;
            Some(TierBytes { tier: stored.tier, bytes: stored.buffer, _loan: loan })
        })
    }

    pub(super) fn set_memory_ample(&self, is_ample: bool) {
        self.is_memory_ample.store(is_ample, Ordering::Relaxed);
    }

    /// Lets an emulated device take its time for bytes that are read.
    pub(super) fn touch(&self, tier: &TierIndex, bytes: u64) {
        self.store.touch(tier.id(), bytes);
    }

    /// Bytes of spilled rows on memory tiers.
    pub(super) fn used_bytes(&self) -> u64 {
        self.store.memory_tiers().iter().map(|tier| tier.account().lent_bytes()).sum()
    }

    /// What the tiers want back now.
    pub(super) fn recalled(&self) -> Vec<(TierId, u64)> {
        let tiers = self.store.memory_tiers();
        let lending = tiers.iter().filter(|tier| tier.account().lent_bytes() > 0);
        let wanted = lending.map(|tier| {
            let account = tier.account();
            let recalled = account.take_recalled();
            let all = account.is_closed() || account.is_yielding() || account.used_bytes() > account.limit_bytes();
            (tier.id(), if all { u64::MAX } else { recalled })
        });
        let wanted: Vec<_> = wanted.filter(|(_, bytes)| *bytes > 0).collect();
        if !wanted.is_empty() {
            self.paused_until_us.store(self.clock.now_us() + PAUSE_US, Ordering::Relaxed);
        }
        wanted
    }
}
