//! Tiers: places for segments, each with a kind, a byte budget and an owner type for its bytes.
//!
//! A segment's bytes are one contiguous image (the column's part of its home file), in the same form or another one on
//! every tier; [`codec`] turns an image into Arrow arrays, a plain one without copying. Byte-addressable tiers hand out
//! [`SegmentBytes`]: an Arrow buffer whose owner holds the tier's [`Charge`](terrace_model::Charge), so bytes stay charged until the last
//! reader is done (architecture, decision 1).
//!
//! - [`codec`]: record batches to chunk files, images to Arrow arrays
//! - [`dram`]: the DRAM tier
//! - [`evict`]: removes bytes from the processor's caches, for measurements
//! - [`hbm`]: the HBM tier, memory of a device for second copies
//! - [`home`]: what a home of every chunk has to do
//! - [`nvm`]: the NVM tier
//! - [`object_home`]: a home in an object store
//! - [`reader`]: cold reads of columns, for homes of every kind
//! - `remover`: deletes objects in the background
//! - [`ssd`]: the SSD tier, a home in a folder
//! - [`stored_file`]: the files of a home and their names

pub mod codec;
pub mod dram;
mod evict;
pub mod hbm;
pub mod home;
pub mod nvm;
pub mod object_home;
pub mod reader;
mod remover;
pub mod ssd;
pub mod stored_file;

use std::fmt;
use std::sync::Arc;

use arrow::buffer::Buffer;
use terrace_model::{Account, Result, TierId, TierIndex, TierKind};

pub use evict::evict;
pub use home::{Home, HomeTier, MeasuredHome};

/// A segment's image on a byte-addressable tier. Cloning shares it; the charge ends with the last clone or array slice.
#[derive(Debug, Clone)]
pub struct SegmentBytes {
    /// The image; starts at least 64-byte aligned.
    pub buffer: Buffer,
    /// Index of the tier that holds it.
    pub tier: TierIndex,
    /// Bytes charged to the tier (the image and its padding).
    pub charged_bytes: u64,
}

/// The byte-addressable tiers at some moment, in order of their ids from 0.
pub type MemoryTiers = Arc<Vec<Arc<dyn MemoryTier>>>;

/// A byte-addressable tier (DRAM, NVM).
pub trait MemoryTier: Send + Sync + fmt::Debug {
    /// The shared index of this tier in the store's list.
    fn index(&self) -> &TierIndex;
    /// Its position in the list now.
    #[inline]
    fn id(&self) -> TierId {
        self.index().id()
    }
    /// The name shown to users.
    fn name(&self) -> &str;
    /// The kind of tier.
    fn kind(&self) -> TierKind;
    /// True when ordinary memory emulates the device.
    fn emulated(&self) -> bool;
    /// One line about the backing of the tier (path, MAP_SYNC or not).
    fn describe(&self) -> String;
    /// The account that holds the tier's budget and use.
    fn account(&self) -> &Arc<Account>;
    /// Bytes that the tier would charge for an image of `len` bytes.
    fn charged_bytes(&self, len: usize) -> u64;
    /// True when an image of `len` bytes would fit now; nothing is reserved.
    #[inline]
    fn has_room(&self, len: u64) -> bool {
        self.account().has_room(self.charged_bytes(len as usize))
    }
    /// Bytes of this process's memory that the tier may take independently of its budget; 0 for a device, and for a tier
    /// in process memory, where the budget is that number.
    #[inline]
    fn memory_bytes(&self) -> u64 {
        0
    }
    /// Charges the account and copies an image into the tier. Fails with [`terrace_model::Error::BudgetExceeded`] when it does not
    /// fit.
    fn store(&self, image: &[u8]) -> Result<SegmentBytes>;
    /// Accounts for a scan that reads `bytes` in place, with `random_touches` accesses at random addresses: an emulated
    /// device delays the caller here by the time that a real device would take. Other tiers do nothing.
    fn touch(&self, _bytes: u64, _random_touches: u64) {}
}
