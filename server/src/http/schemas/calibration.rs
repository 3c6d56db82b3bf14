//! The schemas of measured costs.

use utoipa::ToSchema;

use super::tiers::TierKind;

/// The pattern of accesses.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub enum Pattern {
    /// The whole segment or a good part of it, from one row to the next.
    Sequential,
    /// Positions in order, some skipped.
    Monotonic,
    /// Positions in no order.
    Random,
    /// A few rows.
    Point,
}

/// Cost of an access: its latency, and bytes at a bandwidth.
#[derive(ToSchema)]
pub struct PatternCost {
    /// Microseconds per access (sequential) or per place it touches (monotonic, random, point).
    latency_us: f64,
    /// Bytes per microsecond, which is MB/s.
    bytes_per_us: f64,
}

/// Cost of accesses on one tier.
#[derive(ToSchema)]
pub struct TierCost {
    /// Cost by pattern: sequential, monotonic, random, point.
    #[schema(min_items = 4, max_items = 4)]
    patterns: Vec<PatternCost>,
    /// Bytes of a place; null: always the whole segment.
    #[schema(required)]
    granule_bytes: Option<u64>,
}

/// One measurement of a tier.
#[derive(ToSchema)]
pub struct MeasuredPoint {
    /// The pattern of the accesses.
    pattern: Pattern,
    /// Share of the values that was selected; absent: all values that were read.
    #[schema(nullable = false)]
    selectivity: Option<f64>,
    /// Bytes that one access read.
    bytes: u64,
    /// Places that one access touched.
    places: u64,
    /// Threads, or reads given to the device.
    at_once: u32,
    /// Microseconds per access.
    us: f64,
}

/// Performance of a device with many reads at once.
#[derive(ToSchema)]
pub struct Busy {
    /// Bytes in flight that keep it busy.
    depth_bytes: u64,
    /// Its throughput with that many bytes in flight, in bytes per microsecond.
    bytes_per_us: f64,
    /// CPU time to read and check a byte, in microseconds.
    #[schema(required)]
    cores_us_per_byte: Option<f64>,
}

/// The measured profile of one tier.
#[derive(ToSchema)]
pub struct TierProfile {
    /// Name of the tier.
    name: String,
    /// Its kind.
    kind: TierKind,
    /// Description of its device; on another device it is measured anew.
    device: String,
    /// The cost that follows from the measurements.
    cost: TierCost,
    /// The measurements; absent when the cost is only typical of the kind.
    #[schema(nullable = false)]
    points: Option<Vec<MeasuredPoint>>,
    /// Performance of the device with many reads at once; absent for memory.
    #[schema(nullable = false)]
    busy: Option<Busy>,
    /// False when the cost is only typical of the kind.
    measured: bool,
    /// True when there was no room to measure it: it is not tried again before there is.
    no_room: bool,
    /// The reason why the last calibration could not measure it.
    #[schema(nullable = false)]
    note: Option<String>,
}

/// Bytes per microsecond that a core decompresses.
#[derive(ToSchema)]
pub struct DecompressionRates {
    /// LZ4.
    lz4: f64,
    /// ZSTD.
    zstd: f64,
}

/// Correction of the home's cost by the scans since the calibration.
#[derive(ToSchema)]
pub struct Correction {
    /// Time that the device takes for the reads of scans, divided by the calibrated time.
    device_times: f64,
    /// Share of that time for which statements wait.
    waited_share: f64,
    /// Bytes of the reads from which the correction was computed.
    bytes: u64,
}

/// The measurements of all tiers.
#[derive(ToSchema)]
pub struct Measurements {
    /// Version of the measuring method.
    method: u32,
    /// Time of the calibration, in microseconds since the Unix epoch.
    unix_us: u64,
    /// Duration of the calibration, in microseconds.
    took_us: u64,
    /// The processor and its cores; on another machine all is measured anew.
    machine: String,
    /// Profiles, fastest tier first, the home last.
    tiers: Vec<TierProfile>,
    /// Rates of decompression.
    #[schema(required)]
    decompression: Option<DecompressionRates>,
    /// Correction of the home's cost by scans.
    correction: Correction,
}
