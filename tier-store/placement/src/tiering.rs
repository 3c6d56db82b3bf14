//! The tiering loop: runs one epoch per interval, and one on each request.
//!
//! An epoch folds the counters into heat, plans, moves segments, and saves its report and the heat. Epochs never
//! overlap; queries never wait for one. The loop sees the store through [`TieringHost`] and holds it weakly, so that a
//! dropped store ends its loop. A dry run works on a copy and changes nothing.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_model::clock::Clock;
use terrace_model::units::{Size, human_bytes};
use terrace_model::{Account, Error, Result, TableId, TierId, TieringMode};
use terrace_storage::migrate::Failing;
use terrace_storage::table::{ChunkEntry, Rules, TableStatistics};
use terrace_storage::tier::codec::FormChoice;
use terrace_storage::tier::hbm::HbmTier;
use terrace_storage::tier::reader::ReadColumn;
use terrace_storage::tier::{HomeTier, MemoryTiers};

use super::calibrate::Calibration;
use super::control::Control;
use super::correction::HomeReads;
use super::expected_reads::ExpectedReadSource;
use super::feasibility::Feasibility;
use super::hysteresis::HysteresisOptions;
use super::lock_order::{OrderedMutex, Rank};
use super::merge::{FirstReads, LogPoint, MergeKind, MergeOptions};
use super::metrics::TieringMetrics;
use super::policy::PolicyKind;
use super::pressure::Pressure;
use super::record::{EpochRecord, EpochReport, MoveRecord};
use super::shared::Shared;
use super::snapshot::PlacementSnapshot;
use super::solver::Effort;
use super::survey::all_tier_names;
use crate::heat::ViewSource;
use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};

/// A table as the loop sees it.
#[derive(Debug, Clone)]
pub struct TableSnapshot {
    /// Its number.
    pub id: TableId,
    /// Full name, for records.
    pub name: String,
    /// Chunks of its current version.
    pub chunks: Arc<[ChunkEntry]>,
    /// Bounds of the chunks.
    pub statistics: Arc<TableStatistics>,
    /// Placement rules of the table.
    pub rules: Arc<Rules>,
    /// Mode of tiering for the table.
    pub mode: TieringMode,
}

/// The interface through which the loop uses a store.
pub trait TieringHost: Send + Sync {
    /// All tables.
    fn tables(&self) -> Vec<TableSnapshot>;
    /// Byte-addressable tiers, in order of their ids from 0.
    fn memory_tiers(&self) -> MemoryTiers;
    /// Replaces the memory tiers, in this order. The loop calls it while it holds the epoch mutex; when it returns, every
    /// tier knows its new position. `rows` gives the row of the counters for each position, the home's included; the
    /// counters of the row `reset` begin at 0.
    fn set_memory_tiers(&self, _tiers: MemoryTiers, _rows: &[u8], _reset: Option<u8>) -> Result<()> {
        Err(Error::Unsupported("changing the memory tiers".into()))
    }
    /// The tier of a device, whose memory may hold second copies for kernels.
    fn device_tier(&self) -> Option<Arc<HbmTier>> {
        None
    }
    /// Drops copies on a memory tier that belong to no table yet, until so many bytes are free; returns the bytes.
    fn drop_unpublished(&self, _tier: TierId, _wanted_bytes: u64) -> u64 {
        0
    }
    /// The forms of copies in memory, where no rule names one.
    fn form(&self) -> FormChoice {
        FormChoice::default()
    }
    /// The tier where every segment has its durable bytes; its id follows the last memory tier's.
    fn home(&self) -> &dyn HomeTier;
    /// Number of the last epoch saved; 0 when there was none.
    fn last_epoch(&self) -> Result<u64>;
    /// Makes the record of an epoch durable, and with it the encoded history of recent moves.
    fn save_epoch(&self, report: &EpochReport, move_history: &[u8]) -> Result<()>;
    /// The saved record of an epoch; `None` when the host does not keep it.
    fn load_epoch(&self, _epoch: u64) -> Result<Option<EpochRecord>> {
        Ok(None)
    }
    /// The encoded history of recent moves that was saved with the last epoch; `None` where it was never saved.
    fn load_move_history(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Appends rows to the moves of an epoch; the host assigns their numbers. Epoch 0 is before the first.
    fn append_moves(&self, _epoch: u64, _moves: Vec<MoveRecord>) -> Result<()> {
        Ok(())
    }
    /// Makes the heat of tables durable, in place of their saved heat.
    fn save_heat(&self, tables: Vec<(TableId, Vec<u8>)>) -> Result<()>;
    /// All heat that was saved.
    fn load_heat(&self) -> Result<Vec<(TableId, Vec<u8>)>>;
    /// The calibration that was saved.
    fn load_calibration(&self) -> Result<Option<Calibration>>;
    /// Makes a calibration durable.
    fn save_calibration(&self, calibration: &Calibration) -> Result<()>;
    /// Counts of the reads that statements made from home so far.
    fn home_reads(&self) -> HomeReads {
        HomeReads::default()
    }
    /// Tells the host which calibration is in use from now on.
    fn use_calibration(&self, calibration: &Calibration);
    /// Replaces the stored records of earlier epochs and moves by these, which hold measurements or a certified gap in
    /// addition.
    fn update_records(&self, _epochs: &[EpochRecord], _moves: &[MoveRecord]) -> Result<()> {
        Ok(())
    }
    /// Makes the placement snapshot of an epoch durable; the host keeps only the last ones.
    fn save_placement_snapshot(&self, _epoch: u64, _snapshot: &PlacementSnapshot) -> Result<()> {
        Ok(())
    }
    /// The placement snapshot of an epoch; `None` when the host does not keep it.
    fn load_placement_snapshot(&self, _epoch: u64) -> Result<Option<PlacementSnapshot>> {
        Ok(None)
    }
    /// The epochs whose placement snapshots are kept, ascending.
    fn placement_snapshots(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }
    /// Makes the users' settings of the loop durable.
    fn save_control(&self, _control: &Control) -> Result<()> {
        Ok(())
    }
    /// The users' settings of the loop.
    fn load_control(&self) -> Result<Control> {
        Ok(Control::default())
    }
}

/// Trigger in the records of the loop's own epochs.
pub(super) const INTERVAL: &str = "interval";

/// Mover threads per core: while one waits for its device, another copies.
const MOVERS_PER_CORE: usize = 2;
/// The most mover threads. Each holds a mebibyte of reads, or one column, whatever the budget of reads: more threads would
/// keep no device busier.
const MAX_MOVERS: usize = 16;

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct TieringOptions {
    /// Epochs after which an access counts half.
    pub half_life_epochs: f64,
    /// Epochs within which a move must pay back.
    pub payback_epochs: f64,
    /// How long, and how strongly, a segment that moved is kept from moving back.
    pub hysteresis: HysteresisOptions,
    /// Bytes per second that epochs of the loop itself read from a device, and write to it, at most; `None`: no limit.
    pub background_bytes_per_s: Option<u64>,
    /// Like `background_bytes_per_s`, for single tiers by name; 0: no limit.
    pub tier_bytes_per_s: HashMap<String, u64>,
    /// How long a move waits for readers to release room.
    pub patience: Duration,
    /// The largest budget that [`Tiering::set_budget`] accepts, by name of tier; a tier not named has none.
    pub max_budget_bytes: HashMap<String, u64>,
    /// Limits of the solver's work.
    pub effort: Effort,
    /// Time that the solver may take for one plan; at the deadline the best placement so far is the answer.
    pub solver_deadline: Duration,
    /// The policy that decides where segments lie.
    pub policy: PolicyKind,
    /// Seed of [`PolicyKind::Random`].
    pub seed: u64,
    /// Mode of the loop for all tables at first; `None`: the mode that was set last.
    pub mode: Option<TieringMode>,
    /// Settings of merging: segments that come into memory between epochs because they were read.
    pub merge: MergeOptions,
    /// Threads that carry out moves when there is no rate limit; with a rate limit it is one thread of low priority. 0:
    /// always the thread of the epoch.
    pub movers: usize,
}

impl Default for TieringOptions {
    fn default() -> Self {
        Self {
            half_life_epochs: 3.0,
            payback_epochs: 4.0,
            hysteresis: HysteresisOptions::default(),
            background_bytes_per_s: Some(512 << 20),
            tier_bytes_per_s: HashMap::new(),
            patience: Duration::from_secs(2),
            max_budget_bytes: HashMap::new(),
            effort: Effort::default(),
            solver_deadline: Duration::from_secs(1),
            policy: PolicyKind::default(),
            seed: 0,
            mode: None,
            merge: MergeOptions::default(),
            movers: MAX_MOVERS.min(MOVERS_PER_CORE * std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }
}

/// A request for one epoch.
#[derive(Debug, Clone)]
pub struct EpochRequest {
    /// Plan and explain, but change nothing.
    pub dry_run: bool,
    /// Trigger of the epoch, for its record.
    pub reason: String,
    /// True: moves keep to the rates of the devices, and the epoch gives way to requested ones. False: as fast as possible.
    pub is_paced: bool,
}

impl EpochRequest {
    /// Requests an epoch that moves segments as fast as possible.
    pub fn now(reason: impl Into<String>) -> Self {
        Self { dry_run: false, reason: reason.into(), is_paced: false }
    }

    /// Requests a preview.
    pub fn dry_run(reason: impl Into<String>) -> Self {
        Self { dry_run: true, reason: reason.into(), is_paced: false }
    }
}

/// The loop and its controls. Dropping it stops the loop.
pub struct Tiering {
    pub(super) shared: Arc<Shared>,
    /// The threads: epoch loop, pressure relief and, where merging is on, merger.
    threads: OrderedMutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Tiering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tiering").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Tiering {
    /// Makes a loop that is not running yet; [`Tiering::run_epoch`] works at once.
    pub fn new(host: Weak<dyn TieringHost>, clock: Arc<dyn Clock>, options: TieringOptions) -> Self {
        let shared = Arc::new(Shared::new(host, clock, options));
        Self { shared, threads: OrderedMutex::new(Rank::Threads, Vec::new()) }
    }

    /// Loads the saved heat, the move history and the calibration (measures when none is saved for these tiers). Call once
    /// after opening; the hottest segments return with the first epoch, which [`Tiering::start`] then runs at once. Returns
    /// the number of tables whose heat is known. A blob that cannot be read is logged and left out.
    pub fn restore(&self) -> Result<usize> {
        let host = self.shared.host()?;
        let known = host.load_control()?;
        let mode = self.shared.options.mode.unwrap_or(known.mode);
        self.shared.controller.restore(Control { mode, ..known });
        let restored = self.shared.planner.restore(host.as_ref())?;
        self.shared.controller.set_first_trigger((restored > 0).then_some("restart"));
        self.shared.log_missing_tiers(host.as_ref())?;
        self.shared.planner.calibration().for_tiers(host.as_ref())?;
        Ok(restored)
    }

    /// Starts the loop on its own thread, or changes the interval of the running loop. From now on columns that are offered
    /// may come into memory.
    pub fn start(&self, interval: Duration) -> Result<()> {
        let mut threads = self.threads.lock();
        self.shared.controller.set_interval(interval);
        if !threads.is_empty() {
            return Ok(());
        }
        self.shared.controller.open();
        let spawn = |name: &'static str, work: fn(&Shared)| {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name(name.into()).spawn(move || work(&shared));
            spawned.map_err(|error| Error::io("start", format!("thread {name}"), &error))
        };
        self.shared.mover.pressure().open();
        threads.push(spawn("tiering", Shared::run_loop)?);
        threads.push(spawn("relief", Shared::run_relief)?);
        if self.shared.options.merge.kind != MergeKind::Never {
            self.shared.merger.offers().open();
            threads.push(spawn("merging", Shared::run_merges)?);
        }
        Ok(())
    }

    /// The queue to which loads report that they find no room.
    pub fn pressure(&self) -> &Arc<Pressure> {
        self.shared.mover.pressure()
    }

    /// Lets the DRAM tier yield `bytes` to running statements: it evicts segments, as far as rules allow it, down to half of
    /// its budget, and takes none until [`Tiering::end_yielding`]. Where the loop may not move segments (frozen, or a mode
    /// other than auto), nothing happens. Never waits: a thread does it.
    pub fn yield_memory(&self, bytes: u64) {
        self.shared.yield_memory(bytes);
    }

    /// Lets the DRAM tier take segments again.
    pub fn end_yielding(&self) {
        self.shared.end_yielding();
    }

    /// True when a thread looks at offered columns.
    pub fn takes_offers(&self) -> bool {
        self.shared.merger.offers().is_open()
    }

    /// Offers columns that were read from home, once their access is counted and no reader needs them any more: those that
    /// are worth it come into memory without being read again. Never waits.
    pub fn offer(&self, columns: impl Iterator<Item = ReadColumn>) {
        let forgotten = self.shared.merger.offers().add(columns);
        self.shared.metrics.merge.forgotten.fetch_add(forgotten, Ordering::Relaxed);
    }

    /// Accepts offers without starting a thread: [`Tiering::merge_now`] looks at them. For simulations.
    pub fn open_offers(&self) {
        self.shared.merger.offers().open();
    }

    /// Runs one merge round over the offers, on the caller's thread.
    pub fn merge_now(&self) -> Result<()> {
        self.shared.merge_round(FirstReads::ByCaller)
    }

    /// Ends the loop: cancels its epoch after the move under way and waits for its threads.
    pub fn stop(&self) {
        self.shared.controller.stop();
        self.shared.mover.cancel();
        self.shared.merger.offers().close();
        self.shared.mover.pressure().close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The loop itself may be the last owner of the store: it cannot join itself, and ends by the flag.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the tiering loop panicked");
            }
        }
    }

    /// Runs one epoch now and returns when its moves have ended and another solver has bounded its plan. An epoch with a
    /// rate, and a dry run, wait for an epoch under way; others wait for requested epochs and orders, but end an epoch of the
    /// loop after its current move. Fails when the store is closing, when the plan cannot be made, or when its record cannot
    /// be saved (its moves are done then).
    pub fn run_epoch(&self, request: EpochRequest) -> Result<EpochReport> {
        self.shared.run_epoch(&request, true)
    }

    /// Asks the loop for an epoch now, with the heat as it is; without effect when the loop does not run.
    pub fn wake(&self, reason: &'static str) {
        self.shared.controller.wake(reason);
    }

    /// Cancels the remaining moves of an epoch under way; moves that are done stay.
    pub fn cancel(&self) {
        self.shared.mover.cancel();
    }

    /// Sets the budget of a tier in bytes. Segments above a lowered budget leave at once where the loop runs, else with the
    /// next epoch; until then the tier admits nothing new. Fails on an unknown tier, above its maximum, and below what
    /// placement rules need.
    pub fn set_budget(&self, tier: &str, bytes: u64) -> Result<()> {
        let host = self.shared.host()?;
        if bytes < account(host.as_ref(), tier)?.limit_bytes() {
            let now = Feasibility::for_tables(host.as_ref(), &host.tables());
            now.clone().with_budget(tier, bytes).check(&now)?;
        }
        self.set_first_budget(tier, bytes)
    }

    /// Like [`Tiering::set_budget`], for a budget that the server starts with: it may be lower than placement rules need.
    pub fn set_first_budget(&self, tier: &str, bytes: u64) -> Result<()> {
        let host = self.shared.host()?;
        let account = account(host.as_ref(), tier)?;
        let max = self.shared.controller.max_budget_bytes(tier);
        if let Some(max) = max.filter(|max| bytes > *max) {
            return Err(Error::Invalid(format!(
                "a budget of {} for tier '{tier}' is more than its maximum of {} ({max} bytes); choose less, or start the server \
                 with a larger limit",
                human_bytes(bytes),
                human_bytes(max)
            )));
        }
        account.set_limit_bytes(bytes);
        if host.device_tier().is_some_and(|device| device.name() == tier) {
            self.shared.controller.wake("the budget of a device");
        }
        let tier = host.memory_tiers().iter().find(|memory| memory.name() == tier).map(|memory| memory.id());
        // Epochs empty a drained tier at their own pace.
        if let Some(tier) = tier.filter(|_| account.used_bytes() > bytes && !account.is_closed()) {
            self.shared.over_budget(tier);
        }
        Ok(())
    }

    /// Limits the bytes per second that the loop's own moves read from the device of a tier, and write to it, until the
    /// server stops; 0: no limit. The limit applies from the next epoch on. Fails on an unknown tier and on a percentage.
    pub fn set_rate_limit(&self, tier: &str, rate: Size) -> Result<()> {
        account(self.shared.host()?.as_ref(), tier)?;
        let Size::Bytes(bytes_per_s) = rate else {
            return Err(Error::Invalid(
                "a rate limit is a number of bytes per second, such as 100MiB, not a percentage".into(),
            ));
        };
        self.shared.mover.set_rate_limit(tier, bytes_per_s);
        Ok(())
    }

    /// Bytes per second that the loop's own moves read from the device of a tier, and write to it, at most; `None`: no
    /// limit.
    pub fn rate_limit(&self, tier: &str) -> Option<u64> {
        self.shared.mover.rate_limit(tier)
    }

    /// The failure for which moves to and from a tier pause; `None` while its device works.
    pub fn failing(&self, tier: &str) -> Option<Failing> {
        self.shared.mover.health().failing(tier)
    }

    /// Heat of one segment.
    pub fn heat(&self, key: &SegmentKey) -> SegmentHeat {
        self.shared.planner.read_heat().get(key)
    }

    /// Calls `look` with all heat; the next epoch waits until it returns.
    pub fn with_heat<T>(&self, look: impl FnOnce(&Heat) -> T) -> T {
        look(&self.shared.planner.read_heat())
    }

    /// Registers a statement's source of expected reads: each plan takes them into account as long as the source lives.
    pub fn add_expected_read_source(&self, source: Weak<dyn ExpectedReadSource>) {
        self.shared.planner.expected_reads().add(source);
    }

    /// Registers the source of hot views: each plan takes them into account as long as the source lives.
    pub fn set_view_source(&self, source: Weak<dyn ViewSource>) {
        self.shared.planner.set_view_source(source);
    }

    /// Reads that running statements still expect of segments in memory; at most one per segment and statement.
    pub fn expected_reads(&self) -> HashMap<SegmentKey, SegmentHeat> {
        self.shared.planner.expected_reads().collect()
    }

    /// Counts and last figures.
    pub fn metrics(&self) -> &TieringMetrics {
        &self.shared.metrics
    }

    /// Folds the counters, saves the heat, and logs the merge rounds since the last epoch: call before the store closes.
    pub fn checkpoint(&self) -> Result<()> {
        let last_epoch = self.shared.controller.lock_epoch();
        let host = self.shared.host()?;
        let tables = host.tables();
        self.shared.planner.fold_counters(&tables);
        self.shared.planner.save_heat(host.as_ref(), &tables)?;
        let last = last_epoch.map_or_else(|| host.last_epoch(), Ok)?;
        let merged = self.shared.merge_records(host.as_ref(), LogPoint::Stop(last), 0);
        if merged.is_empty() { Ok(()) } else { host.append_moves(last, merged) }
    }
}

impl Drop for Tiering {
    fn drop(&mut self) {
        self.stop();
    }
}

fn account(host: &dyn TieringHost, name: &str) -> Result<Arc<Account>> {
    let memory = host.memory_tiers();
    let home = host.home();
    let device = host.device_tier().filter(|device| device.name() == name);
    let found = memory.iter().find(|tier| tier.name() == name).map(|tier| tier.account());
    found
        .or_else(|| (home.name() == name).then(|| home.account()))
        .or_else(|| device.as_ref().map(|device| device.account()))
        .map(Arc::clone)
        .ok_or_else(|| Error::unknown_tier(name, &all_tier_names(host)))
}

#[cfg(test)]
mod tests;
