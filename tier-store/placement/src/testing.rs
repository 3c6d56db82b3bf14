//! A host in memory, for tests of the loop.
//!
//! - [`builders`]: the inputs of plans
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::cast::AsArray;
use arrow::datatypes::{DataType, Int64Type};
use parking_lot::Mutex;
use terrace_model::clock::{Clock, SystemClock};
use terrace_model::{Account, Pattern, Result, TableId, TableName, TierId, TierKind, TieringMode};
use terrace_storage::migrate::testing::FakeHome;
use terrace_storage::table::{ChunkEntry, Rules, TableDefinition, TableStatistics};
use terrace_storage::tier::codec::StoredColumn;
use terrace_storage::tier::dram::DramTier;
use terrace_storage::tier::hbm::HbmTier;
use terrace_storage::tier::{HomeTier, MemoryTier, MemoryTiers};

use super::control::Control;
use super::snapshot::PlacementSnapshot;
use super::*;

pub(crate) mod builders;

/// Bytes that an `id` column of a [`FakeHost`] is charged.
pub(super) const COLUMN_BYTES: u64 = 8192;

/// The durable state of a [`FakeHost`].
#[derive(Default)]
pub(super) struct Saved {
    pub(super) epochs: Vec<EpochReport>,
    pub(super) heat: HashMap<TableId, Vec<u8>>,
    pub(super) calibration: Option<Calibration>,
    pub(super) snapshots: std::collections::BTreeMap<u64, PlacementSnapshot>,
    pub(super) control: Control,
    pub(super) move_history: Option<Vec<u8>>,
}

/// What a test does while the loop loads something from its host.
pub(super) type Look = Box<dyn Fn() + Send + Sync>;

/// A host with the table `public.t` of ten chunks with columns `id` (8,000 bytes) and `word`.
pub(super) struct FakeHost {
    pub(super) home: FakeHome,
    pub(super) tiers: MemoryTiers,
    pub(super) chunks: Arc<[ChunkEntry]>,
    pub(super) rules: Mutex<Arc<Rules>>,
    pub(super) mode: Mutex<TieringMode>,
    pub(super) saved: Arc<Mutex<Saved>>,
    /// Called before the record of an epoch is loaded.
    pub(super) on_load_epoch: Mutex<Option<Look>>,
    /// The memory of a device.
    pub(super) device: Mutex<Option<Arc<HbmTier>>>,
}

impl FakeHost {
    /// Ten chunks of two columns, all at home, and a DRAM tier.
    pub(super) fn new(dram_bytes: u64, saved: Arc<Mutex<Saved>>) -> Arc<Self> {
        let home = FakeHome::default();
        let chunks = (0..10).map(|id| ChunkEntry { chunk: home.add(1, id), deletions: None, place: id }).collect();
        let dram: Arc<dyn MemoryTier> = Arc::new(DramTier::new(TierId(0), Account::new("dram", dram_bytes)));
        let tiers = Arc::new(vec![dram]);
        let rules = Mutex::default();
        let mode = Mutex::default();
        let on_load_epoch = Mutex::default();
        let device = Mutex::default();
        Arc::new(Self { home, tiers, chunks, rules, mode, saved, on_load_epoch, device })
    }

    pub(super) fn tiering(self: &Arc<Self>) -> Tiering {
        self.tiering_with(TieringOptions::default())
    }

    /// A loop over this host with short waits.
    pub(super) fn tiering_with(self: &Arc<Self>, options: TieringOptions) -> Tiering {
        self.tiering_on(Arc::new(SystemClock::default()), options)
    }

    /// Like [`FakeHost::tiering_with`], but on a clock of the test.
    pub(super) fn tiering_on(self: &Arc<Self>, clock: Arc<dyn Clock>, options: TieringOptions) -> Tiering {
        let host: Arc<dyn TieringHost> = Arc::clone(self) as _;
        let options = TieringOptions {
            max_budget_bytes: [("dram".to_owned(), 1 << 20)].into(),
            patience: Duration::from_millis(10),
            movers: 0,
            ..options
        };
        Tiering::new(Arc::downgrade(&host), clock, options)
    }

    /// Counts reads of a chunk's first column.
    pub(super) fn read(&self, chunk: usize, times: u32) {
        for _ in 0..times {
            self.chunks[chunk].chunk.segments[0].counters.record(Pattern::Sequential, 1000);
        }
    }

    /// Saves a calibration with typical costs, whatever this machine has.
    pub(super) fn with_usual_costs(self: Arc<Self>) -> Arc<Self> {
        let profile = |name: &str, kind: TierKind, device: String| {
            TierProfile::given(name, kind, device, TierCost::typical(kind))
        };
        let memory = self.tiers.iter().map(|tier| profile(tier.name(), tier.kind(), tier.describe()));
        let home = profile(self.home.name(), TierKind::Ssd, self.home.describe());
        let tiers = memory.chain([home]).collect();
        let decompression = Some(terrace_storage::tier::codec::DecompressionRates::TYPICAL);
        self.saved.lock().calibration = Some(Calibration::given(tiers, decompression));
        self
    }

    /// The first value of a chunk's `id`, read from memory or from home.
    pub(super) fn first_id(&self, chunk: usize, io: &Arc<Account>) -> i64 {
        let chunk = &self.chunks[chunk].chunk;
        let segment = &chunk.segments[0];
        let column = match segment.resident.load_full() {
            Some(resident) => resident.column.clone(),
            None => {
                let bytes = self.home.read(chunk, 0, io).bytes.unwrap();
                // SAFETY: its checksums were compared when it was read.
                let column =
                    unsafe { StoredColumn::decode_image(&segment.home, &DataType::Int64, chunk.rows as usize, &bytes) };
                column.unwrap()
            }
        };
        column.widened().unwrap().as_primitive::<Int64Type>().value(0)
    }

    /// Chunks whose first column is in DRAM.
    pub(super) fn resident(&self) -> Vec<u64> {
        let entries = self.chunks.iter().filter(|entry| entry.chunk.segments[0].resident.load().is_some());
        entries.map(|entry| entry.chunk.id.0).collect()
    }
}

impl TieringHost for FakeHost {
    fn tables(&self) -> Vec<TableSnapshot> {
        let definition = TableDefinition::new(TableName::new("public", "t"), self.chunks[0].chunk.schema.clone());
        vec![TableSnapshot {
            id: TableId(1),
            name: "public.t".into(),
            chunks: Arc::clone(&self.chunks),
            statistics: Arc::new(TableStatistics::empty(&definition)),
            rules: Arc::clone(&self.rules.lock()),
            mode: *self.mode.lock(),
        }]
    }
    fn memory_tiers(&self) -> MemoryTiers {
        Arc::clone(&self.tiers)
    }
    fn home(&self) -> &dyn HomeTier {
        &self.home
    }
    fn device_tier(&self) -> Option<Arc<HbmTier>> {
        self.device.lock().clone()
    }
    fn last_epoch(&self) -> Result<u64> {
        Ok(self.saved.lock().epochs.last().map_or(0, |report| report.epoch.id))
    }
    fn save_epoch(&self, report: &EpochReport, move_history: &[u8]) -> Result<()> {
        let mut saved = self.saved.lock();
        saved.epochs.push(report.clone());
        saved.move_history = Some(move_history.to_vec());
        Ok(())
    }
    fn load_epoch(&self, epoch: u64) -> Result<Option<EpochRecord>> {
        if let Some(look) = &*self.on_load_epoch.lock() {
            look();
        }
        let saved = self.saved.lock();
        Ok(saved.epochs.iter().find(|report| report.epoch.id == epoch).map(|report| report.epoch.clone()))
    }
    fn load_move_history(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.saved.lock().move_history.clone())
    }
    fn save_heat(&self, tables: Vec<(TableId, Vec<u8>)>) -> Result<()> {
        self.saved.lock().heat.extend(tables);
        Ok(())
    }
    fn load_heat(&self) -> Result<Vec<(TableId, Vec<u8>)>> {
        Ok(self.saved.lock().heat.iter().map(|(table, blob)| (*table, blob.clone())).collect())
    }
    fn load_calibration(&self) -> Result<Option<Calibration>> {
        Ok(self.saved.lock().calibration.clone())
    }
    fn use_calibration(&self, _calibration: &Calibration) {}
    fn update_records(&self, epochs: &[EpochRecord], moves: &[MoveRecord]) -> Result<()> {
        let mut saved = self.saved.lock();
        for report in &mut saved.epochs {
            if let Some(epoch) = epochs.iter().find(|e| e.id == report.epoch.id) {
                report.epoch = epoch.clone();
            }
            for known in &mut report.moves {
                if let Some(now) = moves.iter().find(|m| (m.epoch, m.number) == (known.epoch, known.number)) {
                    *known = now.clone();
                }
            }
        }
        Ok(())
    }
    fn append_moves(&self, epoch: u64, moves: Vec<MoveRecord>) -> Result<()> {
        let mut saved = self.saved.lock();
        let report = saved.epochs.iter_mut().find(|report| report.epoch.id == epoch).unwrap();
        let first = report.moves.len() as u32;
        report.moves.extend((first..).zip(moves).map(|(number, record)| MoveRecord { number, ..record }));
        Ok(())
    }
    fn save_placement_snapshot(&self, epoch: u64, snapshot: &PlacementSnapshot) -> Result<()> {
        self.saved.lock().snapshots.insert(epoch, snapshot.clone());
        Ok(())
    }
    fn load_placement_snapshot(&self, epoch: u64) -> Result<Option<PlacementSnapshot>> {
        Ok(self.saved.lock().snapshots.get(&epoch).cloned())
    }
    fn placement_snapshots(&self) -> Result<Vec<u64>> {
        Ok(self.saved.lock().snapshots.keys().copied().collect())
    }
    fn save_control(&self, control: &Control) -> Result<()> {
        self.saved.lock().control = control.clone();
        Ok(())
    }
    fn load_control(&self) -> Result<Control> {
        Ok(self.saved.lock().control.clone())
    }
    fn save_calibration(&self, calibration: &Calibration) -> Result<()> {
        self.saved.lock().calibration = Some(calibration.clone());
        Ok(())
    }
}
