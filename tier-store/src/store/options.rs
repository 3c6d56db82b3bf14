//! Options with which a store is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrace_model::FileFormat;
use terrace_model::clock::{Clock, SystemClock};
use terrace_placement::{Calibration, TieringOptions};
use terrace_storage::io::{BlockIo, Depth, FileSystem, IoRules, RealFiles};
use terrace_storage::table::delta::SealRule;
use terrace_storage::tier::codec::{Compression, CompressionRule, FormChoice, Rates};
use terrace_storage::tier::hbm::HbmBacking;
use terrace_storage::tier::nvm::{Limiter, NvmBacking};
use terrace_storage::tier::reader::ReadGap;

use super::home_place::HomePlace;

/// An NVM tier.
#[derive(Debug, Clone)]
pub struct NvmOptions {
    /// The file, device or memory of the pool.
    pub backing: NvmBacking,
    /// Size of the pool in bytes.
    pub capacity_bytes: u64,
    /// Slows reads down to a slower device's speed, for experiments.
    pub limiter: Option<Limiter>,
}

/// The memory of a device, for second copies that kernels read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HbmOptions {
    /// The device.
    pub backing: HbmBacking,
    /// Byte limit of the copies there, at most what is free; `None`: four fifths of that.
    pub budget_bytes: Option<u64>,
}

/// Selects the buffers of new chunk files that are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompressionChoice {
    /// Buffers for which compression pays on the device, by its calibration.
    Auto,
    /// None.
    #[default]
    None,
    /// All buffers that shrink.
    Always(Compression),
}

impl CompressionChoice {
    /// The compression of new chunk files; `Auto` needs the calibration, without it files are not compressed.
    pub(super) fn compression_rule(self, calibration: Option<&Calibration>) -> CompressionRule<'static> {
        match self {
            Self::None => CompressionRule::Raw,
            Self::Always(compression) => CompressionRule::Always(compression),
            Self::Auto => {
                let rates = calibration.and_then(Calibration::rates).filter(Rates::may_pay_at_all);
                rates.map_or(CompressionRule::Raw, CompressionRule::Auto)
            }
        }
    }
}

/// The gap between two pieces of a file above which they are read separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadGapChoice {
    /// The fastest gap on the device, once it is calibrated.
    Auto,
    /// A fixed gap in bytes.
    Fixed(u64),
}

impl Default for ReadGapChoice {
    fn default() -> Self {
        Self::Fixed(ReadGap::USUAL)
    }
}

/// Options of a store. Byte limits are never exceeded.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Folder of the catalog and, below `ssd/`, of the chunk files.
    pub data_dir: PathBuf,
    /// Budget of the DRAM tier.
    pub dram_budget_bytes: u64,
    /// The NVM tier, if any.
    pub nvm: Option<NvmOptions>,
    /// The memory of a device, if any. A device that does not work is left out, with a warning.
    pub hbm: Option<HbmOptions>,
    /// The place of the chunk files.
    pub home: HomePlace,
    /// Limit of the chunk files; `None`: the file system's.
    pub ssd_budget_bytes: Option<u64>,
    /// The forms of copies in memory; a column that has no packed one is plain.
    pub form: FormChoice,
    /// The format of the chunk files of tables that are created without one.
    pub file_format: FileFormat,
    /// Selects the buffers of new chunk files that are compressed.
    pub compression: CompressionChoice,
    /// The gap between two pieces of a file above which they are read separately.
    pub read_gap: ReadGapChoice,
    /// Bytes of cold reads in flight or ready.
    pub io_budget_bytes: u64,
    /// Bytes of all deltas.
    pub delta_budget_bytes: u64,
    /// Bytes of all membership filters; 0: no filters are built.
    pub filter_budget_bytes: u64,
    /// Cache of the catalog.
    pub catalog_cache_bytes: usize,
    /// Age and size at which deltas are sealed.
    pub seal: SealRule,
    /// Most bytes per second that background compaction writes; 0: compaction on request only.
    pub compaction_bytes_per_s: u64,
    /// File system of all files.
    pub files: Arc<dyn FileSystem>,
    /// Engine of cold reads; `None`: the best one this machine has.
    pub io: Option<Arc<dyn BlockIo>>,
    /// The order in which it serves reads.
    pub io_rules: IoRules,
    /// Bytes of other reads and writes that run at once while look-ups come ([`Depth::beside_points`]).
    pub io_beside_points_bytes: u64,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Threads of one bulk ingest that encode and write; 0: the thread that supplies the rows does it.
    pub ingest_threads: usize,
    /// Bytes that these threads work on at a time, over all ingests; exceeded only while a single chunk needs more.
    pub ingest_budget_bytes: u64,
    /// Time between epochs; `None`: only on request.
    pub epoch_interval: Option<Duration>,
    /// Settings of the tiering loop.
    pub tiering: TieringOptions,
}

impl StoreOptions {
    /// A small store for tests and tools: 256 MiB of DRAM, no NVM, no compression, epochs and compactions only on
    /// request.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            dram_budget_bytes: 256 << 20,
            nvm: None,
            hbm: None,
            form: FormChoice::default(),
            file_format: FileFormat::OF_NEW_TABLES,
            home: HomePlace::default(),
            ssd_budget_bytes: None,
            compression: CompressionChoice::None,
            read_gap: ReadGapChoice::default(),
            io_budget_bytes: 64 << 20,
            delta_budget_bytes: 256 << 20,
            filter_budget_bytes: 16 << 20,
            catalog_cache_bytes: 32 << 20,
            seal: SealRule::default(),
            compaction_bytes_per_s: 0,
            files: Arc::new(RealFiles),
            io: None,
            io_rules: IoRules::default(),
            io_beside_points_bytes: Depth::BESIDE_POINTS,
            clock: Arc::new(SystemClock::default()),
            // One more than the machine has cores: one of them waits for the disk.
            ingest_threads: std::thread::available_parallelism().map_or(2, usize::from) + 1,
            ingest_budget_bytes: 256 << 20,
            epoch_interval: None,
            tiering: TieringOptions::default(),
        }
    }
}
