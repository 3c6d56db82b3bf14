//! The schemas of tiers.

use utoipa::ToSchema;

/// Bytes, a size (2GiB, 512MB), or a percentage of the bytes of all sealed data (10%).
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(examples("2GiB", "10%", 1073741824))]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// A size with a unit, or a percentage.
    Text(String),
}

/// The kind of a tier.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum TierKind {
    /// Process memory.
    Dram,
    /// Byte-addressable memory behind a mapping.
    Nvm,
    /// Files; the home of every sealed segment.
    Ssd,
}

/// active: the tier takes segments; draining: it takes none and still holds some; drained: it takes none and holds none.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum TierState {
    /// The tier takes segments.
    Active,
    /// The tier takes no more segments, and still holds some.
    Draining,
    /// The tier takes no more segments, and holds none.
    Drained,
}

/// The reason for which moves to and from a tier pause.
#[derive(ToSchema)]
pub struct Failing {
    /// Start of the failure, in microseconds since the Unix epoch.
    since_unix_us: u64,
    /// Time from which one move tries the device again; in the past: the next move does.
    retry_unix_us: u64,
    /// The last error of the device.
    error: String,
}

/// A tier to add: with a path, or emulated.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TierOrder {
    /// Its name.
    #[schema(pattern = "^[a-z][a-z0-9_]{0,31}$")]
    name: String,
    /// A pool file on a DAX mount, a folder there, a file on tmpfs, or a devdax device.
    path: Option<String>,
    /// Use memory of the server process instead of a device.
    #[serde(default)]
    #[schema(default = false)]
    emulated: bool,
    /// Size of the pool.
    capacity: Size,
    /// Bytes that segments may take; all of the pool without it.
    budget: Option<Size>,
    /// Slows the tier down to the speed of a persistent memory module, for experiments.
    #[serde(default)]
    #[schema(default = false)]
    slow: bool,
}

/// auto: the loop moves segments; advise: it logs the moves as proposed; off: it does neither.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum TieringMode {
    /// The loop moves segments.
    Auto,
    /// The loop plans, and logs the moves as proposed.
    Advise,
    /// The loop does not weigh the segments.
    Off,
}
