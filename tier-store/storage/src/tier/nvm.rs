//! The NVM tier: memory-mapped, byte-addressable memory, read in place.
//!
//! A pool (a file on a DAX mount, a devdax device, or a memfd that emulates one) is mapped once; segments are
//! extents of it. An extent returns to the pool, and its charge ends, when the last Arrow buffer over it is dropped.
//! Nothing in the pool outlives the process: the durable home of every segment is its chunk file.
//!
//! - [`extents`]: the free space of a pool
//! - [`limiter`]: delays reads of an emulated device
//! - [`persist`]: makes stores to a mapping durable
//! - [`pool`]: opens and maps a pool, and writes images to it

mod extents;
mod limiter;
mod persist;
mod pool;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::buffer::Buffer;
use terrace_model::{Account, Charge, Error, Result, TierId, TierIndex, TierKind};

pub use limiter::Limiter;

use super::{MemoryTier, SegmentBytes};
use extents::Extent;
use pool::Pool;

/// The memory behind the NVM tier.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvmBacking {
    /// Anonymous memory of this process (a memfd) in place of a device.
    #[default]
    Emulated,
    /// A pool file on a DAX mount (a folder gets `terrace.pool`), a file on tmpfs, or a devdax device.
    Path(PathBuf),
    /// Like [`NvmBacking::Path`], but on any file system: for trials on machines without such a device.
    AllowNonDax(PathBuf),
}

impl NvmBacking {
    /// True when the pool lies in this machine's memory: in the process, or on a file system in memory.
    pub fn takes_memory(&self) -> bool {
        match self {
            Self::Emulated => true,
            Self::Path(path) | Self::AllowNonDax(path) => pool::on_tmpfs(path),
        }
    }
}

/// A mapped pool as a tier.
#[derive(Debug)]
pub struct NvmTier {
    index: TierIndex,
    name: String,
    pool: Arc<Pool>,
    limiter: Option<Limiter>,
    /// Bytes of process memory that the pool may take.
    memory_bytes: u64,
    account: Arc<Account>,
}

/// Keeps an extent and its charge until the last reader is done.
struct Owner {
    pool: Arc<Pool>,
    extent: Extent,
    _charge: Charge,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the pool gave the extent to this owner, which is dropped after the last reader of the extent.
        unsafe { self.pool.free(self.extent) };
    }
}

impl NvmTier {
    /// Maps a pool of `capacity_bytes`. `limiter` slows an emulated device down to a real one's speed; `account` is the
    /// tier's budget and may be smaller than the pool.
    ///
    /// Fails with advice when the path is missing, in use, not a pool, not DAX, or smaller than the capacity.
    pub fn open(
        id: TierId,
        name: impl Into<String>,
        backing: &NvmBacking,
        capacity_bytes: u64,
        limiter: Option<Limiter>,
        account: Arc<Account>,
    ) -> Result<Self> {
        let pool = match backing {
            NvmBacking::Emulated => Pool::in_memory(capacity_bytes)?,
            NvmBacking::Path(path) => Pool::at(path, capacity_bytes, false)?,
            NvmBacking::AllowNonDax(path) => Pool::at(path, capacity_bytes, true)?,
        };
        let memory_bytes = if *backing == NvmBacking::Emulated { capacity_bytes } else { 0 };
        Ok(Self { index: TierIndex::new(id), name: name.into(), pool: Arc::new(pool), limiter, memory_bytes, account })
    }

    /// True when the kernel granted MAP_SYNC: a flushed cache line is durable without a system call.
    pub fn map_sync(&self) -> bool {
        self.pool.map_sync()
    }

    /// The limiter, if any.
    pub fn limiter(&self) -> Option<&Limiter> {
        self.limiter.as_ref()
    }

    /// Free bytes of the pool, and the largest free extent.
    pub fn free_bytes(&self) -> (u64, u64) {
        self.pool.free_bytes()
    }
}

impl MemoryTier for NvmTier {
    fn index(&self) -> &TierIndex {
        &self.index
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> TierKind {
        TierKind::Nvm
    }

    fn emulated(&self) -> bool {
        self.pool.emulated()
    }

    fn describe(&self) -> String {
        match &self.limiter {
            Some(limiter) => format!("{}; {limiter}", self.pool.describe()),
            None => self.pool.describe().to_owned(),
        }
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn charged_bytes(&self, len: usize) -> u64 {
        extents::rounded(len as u64)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn store(&self, image: &[u8]) -> Result<SegmentBytes> {
        let charge = self.account.try_charge(self.charged_bytes(image.len()))?;
        let charged_bytes = charge.bytes();
        if image.is_empty() {
            return Ok(SegmentBytes {
                buffer: Buffer::from(Vec::<u8>::new()),
                tier: self.index.clone(),
                charged_bytes,
            });
        }
        let extent = self.pool.allocate(charged_bytes).ok_or_else(|| {
            let (free, _) = self.pool.free_bytes();
            Error::BudgetExceeded {
                account: format!("{} (free space is fragmented)", self.name),
                asked_bytes: charged_bytes,
                used_bytes: self.pool.capacity_bytes() - free,
                limit_bytes: self.pool.capacity_bytes(),
            }
        })?;
        let owner = Owner { pool: Arc::clone(&self.pool), extent, _charge: charge };
        // SAFETY: the pool has just given the extent to this call alone.
        let start = unsafe { self.pool.write(extent, image)? };
        // SAFETY: the extent lies inside the mapping, was just filled, belongs to `owner` alone until that is dropped,
        // and `owner` keeps the mapping alive.
        let buffer = unsafe { Buffer::from_custom_allocation(start, image.len(), Arc::new(AssertUnwindSafe(owner))) };
        Ok(SegmentBytes { buffer, tier: self.index.clone(), charged_bytes })
    }

    fn touch(&self, bytes: u64, random_touches: u64) {
        if let Some(limiter) = &self.limiter {
            limiter.touch(bytes, random_touches);
        }
    }
}

#[cfg(test)]
mod tests;
