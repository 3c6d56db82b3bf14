//! A store of one table on simulated devices: its tiers and its home take virtual time and can be lost.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::buffer::Buffer;
use terrace_model::clock::{Clock, ManualClock};
use terrace_model::{
    Account, ChunkId, ColumnId, Error, Result, TableId, TableName, TierId, TierIndex, TierKind, TieringMode,
};
use terrace_placement::{Calibration, EpochReport, TableSnapshot, TierCost, TierProfile, TieringHost};
use terrace_storage::table::{
    Chunk, ChunkEntry, Rules, Segment, SegmentHome, TableDefinition, TableStatistics, WrittenFile,
};
use terrace_storage::tier::codec::DecompressionRates;
use terrace_storage::tier::dram::DramTier;
use terrace_storage::tier::reader::ReadColumn;
use terrace_storage::tier::{HomeTier, MemoryTier, MemoryTiers, SegmentBytes, codec};

/// Chunks of the table for drawn reads.
pub(super) const CHUNKS: usize = 40;
/// Its columns; the first is twice as wide as the second.
pub(super) const COLUMNS: [&str; 2] = ["wide", "narrow"];
/// Its segments, in the order of chunks and then columns.
pub(super) const SEGMENTS: usize = CHUNKS * COLUMNS.len();
/// Rows of its chunks.
const ROWS: u32 = 1000;
/// Names of the tiers, the home last.
pub(super) const TIERS: [&str; 3] = ["dram", "nvm", "ssd"];
/// Budgets of the memory tiers, as shares of all bytes.
const SHARES: [f64; 2] = [0.2, 0.2];
/// Real bytes that one simulated byte stands for.
const SCALE: f64 = 128.0;

/// Bytes of a value of the first column.
const WIDE_BYTES: f64 = 8.0;

/// The segments of a table: chunks with so many rows, and with the first of [`COLUMNS`].
#[derive(Debug, Clone)]
pub(super) struct Shape {
    rows: Vec<u32>,
    columns: usize,
}

impl Shape {
    /// The table for drawn reads.
    pub(super) fn drawn() -> Self {
        Self { rows: vec![ROWS; CHUNKS], columns: COLUMNS.len() }
    }

    /// A chunk of one column for each recorded segment, for which so many bytes stand.
    pub(super) fn recorded(bytes: &[u64]) -> Self {
        let rows = |bytes: &u64| ((*bytes as f64 / SCALE / WIDE_BYTES) as u32).max(1);
        Self { rows: bytes.iter().map(rows).collect(), columns: 1 }
    }

    /// Number of segments.
    pub(super) fn segments(&self) -> usize {
        self.rows.len() * self.columns
    }
}

/// The cost profile of a simulated tier.
fn cost(kind: TierKind) -> TierCost {
    let mut cost = TierCost::typical(kind);
    cost.patterns.iter_mut().for_each(|pattern| pattern.bytes_per_us /= SCALE);
    // Nothing is compressed, and the home reads segments whole.
    cost.granule_bytes = if kind == TierKind::Ssd { None } else { Some(1) };
    cost
}

fn lost(action: &'static str, device: &str) -> Error {
    Error::Io { action, path: PathBuf::from(device), errno: Some(libc::EIO), message: "the device is lost".into() }
}

/// A device that takes time and can be lost.
#[derive(Debug)]
struct Device {
    name: &'static str,
    cost: TierCost,
    clock: Arc<ManualClock>,
    lost: AtomicBool,
}

impl Device {
    fn new(name: &'static str, kind: TierKind, clock: &Arc<ManualClock>) -> Arc<Self> {
        Arc::new(Self { name, cost: cost(kind), clock: Arc::clone(clock), lost: AtomicBool::new(false) })
    }

    /// Advances the clock by the time of one sweep over `bytes` bytes.
    fn sweep(&self, action: &'static str, bytes: usize) -> Result<()> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(lost(action, self.name));
        }
        self.clock.sleep(Duration::from_micros(self.cost.sweep_us(bytes as u64) as u64));
        Ok(())
    }
}

/// A memory tier on a simulated device.
#[derive(Debug)]
struct SimulatedTier {
    memory: DramTier,
    kind: TierKind,
    device: Arc<Device>,
}

impl MemoryTier for SimulatedTier {
    fn index(&self) -> &TierIndex {
        self.memory.index()
    }

    fn name(&self) -> &str {
        self.memory.name()
    }

    fn kind(&self) -> TierKind {
        self.kind
    }

    fn emulated(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "simulated".into()
    }

    fn account(&self) -> &Arc<Account> {
        self.memory.account()
    }

    fn charged_bytes(&self, len: usize) -> u64 {
        self.memory.charged_bytes(len)
    }

    fn store(&self, image: &[u8]) -> Result<SegmentBytes> {
        self.device.sweep("write", image.len())?;
        self.memory.store(image)
    }
}

/// The home tier: one file that all chunks share.
struct SimulatedHome {
    device: Arc<Device>,
    account: Arc<Account>,
    file: Vec<u8>,
}

impl HomeTier for SimulatedHome {
    fn name(&self) -> &str {
        self.device.name
    }

    fn account(&self) -> &Arc<Account> {
        &self.account
    }

    fn describe(&self) -> String {
        "simulated".into()
    }

    fn check(&self, _chunk: &Chunk) -> Result<()> {
        self.device.sweep("read", 0)
    }

    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        columns.iter().map(|column| self.read_column(chunk, *column)).collect()
    }
}

impl SimulatedHome {
    fn read_column(&self, chunk: &Arc<Chunk>, column: usize) -> Result<ReadColumn> {
        let segment = chunk.segments.get(column).ok_or_else(|| lost("find a column on", self.device.name))?;
        let home = &segment.home;
        self.device.sweep("read", home.len as usize)?;
        let range = home.offset as usize..(home.offset + home.len) as usize;
        let stored = Buffer::from(self.file.get(range).ok_or_else(|| lost("read past the end of", self.device.name))?);
        let bytes = codec::decompressed(home, stored, &Arc::default())?;
        Ok(ReadColumn { chunk: Arc::clone(chunk), column, bytes: Some(bytes), charge: None })
    }
}

/// The simulated store.
pub(super) struct World {
    /// The virtual clock.
    pub(super) clock: Arc<ManualClock>,
    devices: Vec<Arc<Device>>,
    tiers: MemoryTiers,
    budgets: Vec<u64>,
    home: SimulatedHome,
    chunks: Arc<[ChunkEntry]>,
    columns: usize,
    statistics: Arc<TableStatistics>,
}

impl World {
    /// Makes a store with all segments at home; budgets are shares of all bytes.
    pub(super) fn new(shape: &Shape) -> Result<Arc<Self>> {
        let clock = Arc::new(ManualClock::default());
        let schema = rows(0, shape.columns)?.schema();
        let mut file = Vec::new();
        // Chunks with equally many rows have the same bytes.
        let mut known: HashMap<u32, (Vec<SegmentHome>, u64)> = HashMap::new();
        let mut chunks = Vec::with_capacity(shape.rows.len());
        for (id, count) in (0..).zip(&shape.rows) {
            let (homes, bytes) = match known.get(count) {
                Some(known) => known.clone(),
                None => {
                    let mut encoded = codec::encode_chunk(&rows(*count, shape.columns)?)?;
                    encoded.homes.iter_mut().for_each(|home| home.offset += file.len() as u64);
                    let bytes = encoded.bytes.len() as u64;
                    file.extend(encoded.bytes);
                    known.entry(*count).or_insert((encoded.homes, bytes)).clone()
                }
            };
            let segments = Segment::of_file((0..).map(ColumnId), homes);
            let written = WrittenFile { path: PathBuf::new(), bytes, segments };
            let chunk = Chunk::new(TableId(1), ChunkId(id), *count, Arc::clone(&schema), written);
            chunks.push(ChunkEntry { chunk: Arc::new(chunk), deletions: None, place: id });
        }
        let chunks: Arc<[ChunkEntry]> = chunks.into();
        let definition = TableDefinition::new(TableName::new("public", "t"), schema);
        let devices: Vec<_> = TIERS
            .into_iter()
            .zip([TierKind::Dram, TierKind::Nvm, TierKind::Ssd])
            .map(|(name, kind)| Device::new(name, kind, &clock))
            .collect();
        let all: u64 = chunks.iter().flat_map(|entry| entry.chunk.segments.iter()).map(|s| s.bytes()).sum();
        let budgets: Vec<u64> = SHARES.iter().map(|share| (all as f64 * share) as u64).collect();
        let kinds = [TierKind::Dram, TierKind::Nvm];
        let tiers =
            (0..).map(TierId).zip(kinds).zip(devices.iter().zip(&budgets)).map(|((id, kind), (device, budget))| {
                let memory = DramTier::new(id, Account::new(device.name, *budget));
                Arc::new(SimulatedTier { memory, kind, device: Arc::clone(device) }) as Arc<dyn MemoryTier>
            });
        let tiers = Arc::new(tiers.collect());
        let device = devices.last().cloned().ok_or_else(|| Error::Invalid("a world needs a home".into()))?;
        let home = SimulatedHome { device, account: Account::new("ssd", u64::MAX), file };
        let statistics = Arc::new(TableStatistics::empty(&definition));
        let columns = shape.columns;
        Ok(Arc::new(Self { clock, devices, tiers, budgets, home, chunks, columns, statistics }))
    }

    /// The chunk of a segment, and the position of its column.
    pub(super) fn segment(&self, at: usize) -> Option<(&Arc<Chunk>, usize)> {
        Some((&self.chunks.get(at / self.columns)?.chunk, at % self.columns))
    }

    /// Rows of a segment.
    pub(super) fn rows(&self, at: usize) -> u32 {
        self.segment(at).map_or(0, |(chunk, _)| chunk.rows)
    }

    /// Columns of a chunk.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Number of segments.
    pub(super) fn segments(&self) -> usize {
        self.chunks.len() * self.columns
    }

    /// Position of the tier of a segment.
    pub(super) fn place(&self, at: usize) -> usize {
        let segment = self.segment(at).and_then(|(chunk, column)| chunk.segments.get(column));
        let resident = segment.and_then(|segment| segment.resident.load_full());
        resident.map_or(self.tiers.len(), |resident| usize::from(resident.tier.id().0))
    }

    /// Reads a segment from home as a scan does; `None` where it lies in memory, or the home is lost.
    pub(super) fn read_from_home(&self, at: usize) -> Result<Option<ReadColumn>> {
        let Some((chunk, column)) = self.segment(at) else { return Ok(None) };
        let Some(segment) = chunk.segments.get(column) else { return Ok(None) };
        if self.home.device.lost.load(Ordering::Relaxed) || segment.resident.load().is_some() {
            return Ok(None);
        }
        self.home.read_column(chunk, column).map(Some)
    }

    /// Budgets of the memory tiers, when none is lost.
    pub(super) fn budgets(&self) -> &[u64] {
        &self.budgets
    }

    /// Bytes that a segment is charged on a tier; 0 at home.
    pub(super) fn charged_bytes(&self, at: usize, tier: usize) -> u64 {
        let segment = self.segment(at).and_then(|(chunk, column)| chunk.segments.get(column));
        let Some((segment, tier)) = segment.zip(self.tiers.get(tier)) else { return 0 };
        tier.charged_bytes(segment.bytes() as usize)
    }

    /// Bytes that a read of a segment moves on a tier.
    pub(super) fn read_bytes(&self, at: usize, tier: usize) -> u64 {
        let segment = self.segment(at).and_then(|(chunk, column)| chunk.segments.get(column));
        segment.map_or(0, |segment| match self.tiers.get(tier) {
            Some(_) => segment.bytes(),
            None => segment.home.len,
        })
    }

    /// The cost profile of a tier.
    pub(super) fn cost(&self, tier: usize) -> Option<&TierCost> {
        self.devices.get(tier).map(|device| &device.cost)
    }

    /// Makes all operations of a device fail, or work again. Its segments stay, and scans still read them.
    pub(super) fn fail(&self, tier: usize, fails: bool) {
        if let Some(device) = self.devices.get(tier) {
            device.lost.store(fails, Ordering::Relaxed);
        }
    }

    /// Removes a device with its segments, or brings it back empty. A lost home keeps its bytes.
    pub(super) fn lose(&self, tier: usize, lost: bool) {
        let Some(device) = self.devices.get(tier) else { return };
        device.lost.store(lost, Ordering::Relaxed);
        let Some(memory) = self.tiers.get(tier) else { return };
        memory.account().set_limit_bytes(if lost { 0 } else { self.budgets.get(tier).copied().unwrap_or(0) });
        for at in (0..self.segments()).filter(|at| lost && self.place(*at) == tier) {
            if let Some(segment) = self.segment(at).and_then(|(chunk, column)| chunk.segments.get(column)) {
                segment.resident.store(None);
            }
        }
    }
}

/// Rows of a chunk: values that fill their width.
fn rows(count: u32, columns: usize) -> Result<RecordBatch> {
    let mixed = |n: u32| (i64::from(n) + 1).wrapping_mul(0x5851_F42D_4C95_7F2D);
    let wide: ArrayRef = Arc::new(Int64Array::from_iter_values((0..count).map(mixed)));
    let narrow: ArrayRef = Arc::new(Int32Array::from_iter_values((0..count).map(|n| (mixed(n) >> 32) as i32)));
    Ok(RecordBatch::try_from_iter(COLUMNS.into_iter().zip([wide, narrow]).take(columns))?)
}

impl TieringHost for World {
    fn tables(&self) -> Vec<TableSnapshot> {
        vec![TableSnapshot {
            id: TableId(1),
            name: "public.t".into(),
            chunks: Arc::clone(&self.chunks),
            statistics: Arc::clone(&self.statistics),
            rules: Arc::new(Rules::default()),
            mode: TieringMode::Auto,
        }]
    }

    fn memory_tiers(&self) -> MemoryTiers {
        Arc::clone(&self.tiers)
    }

    fn home(&self) -> &dyn HomeTier {
        &self.home
    }

    fn last_epoch(&self) -> Result<u64> {
        Ok(0)
    }

    fn save_epoch(&self, _report: &EpochReport, _holds: &[u8]) -> Result<()> {
        Ok(())
    }

    fn save_heat(&self, _tables: Vec<(TableId, Vec<u8>)>) -> Result<()> {
        Ok(())
    }

    fn load_heat(&self) -> Result<Vec<(TableId, Vec<u8>)>> {
        Ok(Vec::new())
    }

    fn load_calibration(&self) -> Result<Option<Calibration>> {
        let profile =
            |(device, kind): (&Arc<Device>, TierKind)| TierProfile::given(device.name, kind, "simulated", device.cost);
        let kinds = [TierKind::Dram, TierKind::Nvm, TierKind::Ssd];
        let tiers = self.devices.iter().zip(kinds).map(profile).collect();
        let decompression = Some(DecompressionRates::TYPICAL);
        Ok(Some(Calibration::given(tiers, decompression)))
    }

    fn save_calibration(&self, _calibration: &Calibration) -> Result<()> {
        Ok(())
    }

    fn use_calibration(&self, _calibration: &Calibration) {}
}
