//! Tiers: places for segments, each with a kind, a byte budget and an owner type for its bytes.
//!
//! A segment's bytes are one contiguous image (the column's part of the record batch body in its home file), the same on
//! every tier; [`codec`] turns an image into an Arrow array without copying. Byte-addressable tiers hand out
//! [`SegmentBytes`]: an Arrow buffer whose owner holds the tier's [`Charge`], so bytes stay charged until the last
//! reader is done (architecture, decision 1).
//!
//! - [`account`]: byte limits and the charges against them
//! - [`codec`]: record batches to chunk files, images to Arrow arrays
//! - [`copy`]: copies images without filling the processor's caches
//! - [`dram`]: the DRAM tier
//! - [`evict`]: removes bytes from the processor's caches, for measurements
//! - [`nvm`]: the NVM tier
//! - [`ssd`]: the SSD tier, the home of every chunk
//! - [`tier_index`]: the position of a tier in the list, which changes when tiers come and go

pub mod account;
pub mod codec;
mod copy;
pub mod dram;
mod evict;
pub mod nvm;
pub mod ssd;
mod tier_index;

use std::fmt;
use std::sync::Arc;

use arrow::buffer::Buffer;

pub use account::{Account, Charge};
pub(crate) use copy::copy_past_caches;
pub(crate) use evict::evict;
pub use tier_index::TierIndex;
pub(crate) use tier_index::TierRows;

use crate::error::Result;
use crate::io::AlignedBuffer;

/// Most tiers that a store can have, the home included.
pub const MAX_TIERS: usize = 8;

/// Position of a tier in the store's list, fastest first; the last one is the home tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct TierId(pub u8);

/// The kind of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierKind {
    /// Process memory.
    Dram,
    /// Byte-addressable memory behind a mapping, read in place.
    Nvm,
    /// Files read with direct I/O; the home of every sealed segment.
    Ssd,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dram => "dram",
            Self::Nvm => "nvm",
            Self::Ssd => "ssd",
        })
    }
}

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
    fn id(&self) -> TierId {
        self.index().id()
    }
    /// The name shown to users.
    fn name(&self) -> &str;
    /// The kind of tier.
    fn kind(&self) -> TierKind;
    /// True when ordinary memory stands in for the device.
    fn emulated(&self) -> bool;
    /// One line about the backing of the tier (path, MAP_SYNC or not).
    fn describe(&self) -> String;
    /// The account that holds the tier's budget and use.
    fn account(&self) -> &Arc<Account>;
    /// Bytes that the tier would charge for an image of `len` bytes.
    fn charged_bytes(&self, len: usize) -> u64;
    /// True when an image of `len` bytes would fit now; nothing is reserved.
    fn has_room(&self, len: u64) -> bool {
        self.account().has_room(self.charged_bytes(len as usize))
    }
    /// Bytes of this process's memory that the tier may take independently of its budget; 0 for a device, and for a tier
    /// in process memory, where the budget is that number.
    fn memory_bytes(&self) -> u64 {
        0
    }
    /// Charges the account and copies an image into the tier. Fails with [`crate::Error::BudgetExceeded`] when it does not
    /// fit.
    fn store(&self, image: &[u8]) -> Result<SegmentBytes>;
    /// Stores an image that was just read. A tier in process memory keeps the buffer without copying.
    fn adopt(&self, image: AlignedBuffer) -> Result<SegmentBytes> {
        self.store(image.as_slice())
    }
    /// Accounts for a scan that reads `bytes` in place, with `random_touches` accesses at random addresses: an emulated
    /// device delays the caller here by the time that a real device would take. Other tiers do nothing.
    fn touch(&self, _bytes: u64, _random_touches: u64) {}
}
