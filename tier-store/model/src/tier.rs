//! Positions and kinds of tiers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most tiers that a store can have, the home included.
pub const MAX_TIERS: usize = 8;

/// Position of a tier in the store's list, fastest first; the last one is the home tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TierId(pub u8);

/// The kind of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TierKind {
    /// Process memory.
    Dram,
    /// Memory-mapped, byte-addressable memory, read in place.
    Nvm,
    /// Files read with direct I/O; the home of every sealed segment, unless that is an object store.
    Ssd,
    /// Objects of an object store, read by ranges; the home of every sealed segment.
    Object,
    /// Memory of a device that runs kernels (a GPU): it holds second copies, which processors do not read.
    Hbm,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dram => "dram",
            Self::Nvm => "nvm",
            Self::Ssd => "ssd",
            Self::Object => "object",
            Self::Hbm => "hbm",
        })
    }
}
