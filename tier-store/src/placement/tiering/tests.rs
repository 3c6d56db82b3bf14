#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::clock::SystemClock;
use crate::heat::Pattern;
use crate::migrate::testing::FakeHome;
use crate::table::{TableDefinition, TableName};
use crate::tier::dram::DramTier;

/// What a store would have on disk.
#[derive(Default)]
struct Saved {
    epochs: Vec<EpochReport>,
    heat: HashMap<TableId, Vec<u8>>,
    calibration: Option<Calibration>,
}

struct FakeHost {
    home: FakeHome,
    tiers: Vec<Arc<dyn MemoryTier>>,
    chunks: Arc<[ChunkEntry]>,
    rules: Mutex<Arc<Rules>>,
    saved: Arc<Mutex<Saved>>,
}

impl FakeHost {
    /// Ten chunks of two columns, all at home, and a DRAM tier.
    fn new(dram_bytes: u64, saved: Arc<Mutex<Saved>>) -> Arc<Self> {
        let home = FakeHome::default();
        let chunks = (0..10).map(|id| ChunkEntry { chunk: home.add(1, id), deletions: None, place: id }).collect();
        let tiers: Vec<Arc<dyn MemoryTier>> =
            vec![Arc::new(DramTier::new(TierId(0), Account::new("dram", dram_bytes)))];
        Arc::new(Self { home, tiers, chunks, rules: Mutex::default(), saved })
    }

    fn tiering(self: &Arc<Self>) -> Tiering {
        let host: Arc<dyn TieringHost> = Arc::clone(self) as _;
        let options = TieringOptions {
            max_budget_bytes: [("dram".to_owned(), 1 << 20)].into(),
            patience: Duration::from_millis(10),
            ..TieringOptions::default()
        };
        Tiering::new(Arc::downgrade(&host), Arc::new(SystemClock::default()), options)
    }

    fn read(&self, chunk: usize, times: u32) {
        for _ in 0..times {
            self.chunks[chunk].chunk.segments[0].counters.record(Pattern::Sequential, 1000);
        }
    }

    /// Chunks whose first column is in DRAM.
    fn resident(&self) -> Vec<u64> {
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
        }]
    }
    fn memory_tiers(&self) -> &[Arc<dyn MemoryTier>] {
        &self.tiers
    }
    fn home(&self) -> &dyn HomeTier {
        &self.home
    }
    fn last_epoch(&self) -> Result<u64> {
        Ok(self.saved.lock().epochs.last().map_or(0, |report| report.epoch.id))
    }
    fn save_epoch(&self, report: &EpochReport) -> Result<()> {
        self.saved.lock().epochs.push(report.clone());
        Ok(())
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
    fn save_calibration(&self, calibration: &Calibration) -> Result<()> {
        self.saved.lock().calibration = Some(calibration.clone());
        Ok(())
    }
}

/// Room for three `id` columns of 8,000 bytes.
const THREE: u64 = 3 * 8192;

#[test]
fn the_hottest_segments_come_and_leave_when_the_budget_shrinks() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    (2..7).for_each(|chunk| host.read(chunk, 10 * chunk as u32));
    let preview = tiering.run_epoch(EpochRequest::dry_run("a look")).unwrap();
    assert_eq!((preview.epoch.moves, host.resident().len()), (3, 0), "a dry run moves nothing");
    assert!(host.saved.lock().epochs.is_empty() && host.saved.lock().heat.is_empty());
    assert!(tiering.with_heat(Heat::is_empty));
    assert!(preview.moves.iter().all(|m| m.status == MoveStatus::Planned));

    let report = tiering.run_epoch(EpochRequest::now("requested by test")).unwrap();
    assert_eq!(host.resident(), [4, 5, 6]);
    assert_eq!((report.epoch.id, report.epoch.moves_done, report.epoch.moves_skipped), (1, 3, 0));
    assert_eq!((report.moves[0].table.as_str(), report.moves[0].column.as_str()), ("public.t", "id"));
    assert_eq!(report.moves.iter().map(|m| m.chunk).collect::<Vec<_>>(), [6, 5, 4], "best benefit per byte first");
    assert_eq!(tiering.metrics().moves(TierId(1), TierId(0)), 3);
    assert_eq!(host.saved.lock().epochs, [report]);
    let json = serde_json::to_string(&host.saved.lock().epochs[0]).unwrap();
    assert_eq!(serde_json::from_str::<EpochReport>(&json).unwrap().moves.len(), 3);

    tiering.set_budget("dram", 8192).unwrap();
    let reader = host.chunks[4].chunk.segments[0].resident.load_full();
    let report = tiering.run_epoch(EpochRequest::now("smaller")).unwrap();
    assert_eq!((host.resident(), report.epoch.id), (vec![6], 2));
    assert!(report.moves.iter().all(|m| m.reason.contains("over its budget")), "{report:?}");
    assert_eq!(host.tiers[0].account().used_bytes(), 2 * 8192, "one is still being read");
    drop(reader);
    assert_eq!(host.tiers[0].account().used_bytes(), 8192);
}

#[test]
fn heat_survives_a_restart_and_the_loop_brings_the_hottest_back_at_once() {
    let saved = Arc::default();
    let host = FakeHost::new(THREE, Arc::clone(&saved));
    host.read(7, 50);
    host.tiering().checkpoint().unwrap();
    let host = FakeHost::new(THREE, Arc::clone(&saved));
    let tiering = host.tiering();
    assert_eq!(tiering.restore().unwrap(), 1);
    assert!(saved.lock().calibration.is_some());
    tiering.start(Duration::from_secs(3600)).unwrap();
    while saved.lock().epochs.is_empty() {
        std::thread::yield_now();
    }
    tiering.stop();
    assert_eq!((host.resident(), saved.lock().epochs[0].epoch.trigger.as_str()), (vec![7], "restart"));
    assert!(matches!(tiering.run_epoch(EpochRequest::now("late")), Err(Error::Cancelled)));
}

#[test]
fn the_switch_stops_the_loop_but_not_the_user() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    tiering.set_enabled(false);
    tiering.start(Duration::from_millis(1)).unwrap();
    host.read(1, 9);
    for _ in 0..3 {
        tiering.run_epoch(EpochRequest::now("requested")).unwrap();
    }
    let triggers: Vec<_> = host.saved.lock().epochs.iter().map(|report| report.epoch.trigger.clone()).collect();
    assert_eq!(triggers, ["requested"; 3]);
    tiering.set_enabled(true);
    while host.saved.lock().epochs.len() < 4 {
        std::thread::yield_now();
    }
    drop(tiering);
    assert_eq!(host.resident(), [1]);
}

#[test]
fn budgets_of_unknown_tiers_and_above_the_maximum_are_refused() {
    let host = FakeHost::new(THREE, Arc::default());
    let tiering = host.tiering();
    assert!(matches!(tiering.set_budget("tape", 1), Err(Error::NotFound { kind: "tier", .. })));
    assert!(matches!(tiering.set_budget("dram", (1 << 20) + 1), Err(Error::Invalid(_))));
    tiering.set_budget("dram", 1 << 20).unwrap();
    assert_eq!(host.tiers[0].account().limit_bytes(), 1 << 20);
}
