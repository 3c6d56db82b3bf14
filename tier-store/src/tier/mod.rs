//! Tiers: places for segments, each with a kind, a byte budget and an owner type for its bytes.
//!
//! A segment's bytes are one contiguous image (the column's part of the record batch body in its home file), the same on
//! every tier; [`codec`] turns an image into an Arrow array without copying. Byte-addressable tiers hand out
//! [`SegmentBytes`]: an Arrow buffer whose owner holds the tier's [`Charge`], so bytes stay charged until the last
//! reader is done (architecture, decision 1).

pub mod account;
pub mod codec;
mod copy;
pub mod dram;
mod evict;
pub mod nvm;
mod seat;
pub mod ssd;

use std::fmt;
use std::sync::Arc;

use arrow::buffer::Buffer;

pub use account::{Account, Charge};
pub(crate) use copy::copy_past_caches;
pub(crate) use evict::evict;
pub use seat::Seat;
pub(crate) use seat::Slots;

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
    /// Where it lies.
    pub tier: Seat,
    /// Bytes charged to the tier (the image and its padding).
    pub charged_bytes: u64,
}

/// The byte-addressable tiers at some moment, in order of their ids from 0.
pub type MemoryTiers = Arc<Vec<Arc<dyn MemoryTier>>>;

/// A byte-addressable tier (DRAM, NVM).
pub trait MemoryTier: Send + Sync + fmt::Debug {
    /// Its place in the list, whatever that is.
    fn seat(&self) -> &Seat;
    /// Its place in the list now.
    fn id(&self) -> TierId {
        self.seat().id()
    }
    /// Name shown to users.
    fn name(&self) -> &str;
    /// Its kind.
    fn kind(&self) -> TierKind;
    /// True when ordinary memory stands in for the device.
    fn emulated(&self) -> bool;
    /// One line on what it stands on (path, MAP_SYNC or not).
    fn describe(&self) -> String;
    /// Its budget and use.
    fn account(&self) -> &Arc<Account>;
    /// Bytes that `len` image bytes would be charged.
    fn charged_bytes(&self, len: usize) -> u64;
    /// True when an image of `len` bytes would fit now; nothing is reserved.
    fn has_room(&self, len: u64) -> bool {
        self.account().has_room(self.charged_bytes(len as usize))
    }
    /// Bytes of this process's memory that it may take whatever its budget is; 0 for a device, and for process memory, whose
    /// budget says it.
    fn memory_bytes(&self) -> u64 {
        0
    }
    /// Copies an image into the tier. Fails with [`crate::Error::BudgetExceeded`] when it does not fit; charges first.
    fn store(&self, image: &[u8]) -> Result<SegmentBytes>;
    /// Takes an image that was just read. Tiers whose memory is the process's keep it without copying.
    fn adopt(&self, image: AlignedBuffer) -> Result<SegmentBytes> {
        self.store(image.as_slice())
    }
    /// Called by a scan that reads `bytes` in place (`random_touches` of them in no order): an emulated device takes
    /// here the time that the real one would take. Does nothing elsewhere.
    fn touch(&self, _bytes: u64, _random_touches: u64) {}
}
