//! The tiering loop: runs one epoch per interval, and one when it is asked to.
//!
//! An epoch folds the counters into heat, plans, moves segments, and saves its report and the heat. Epochs never
//! overlap; queries never wait for one. The loop sees the store through [`TieringHost`] and holds it weakly, so that a
//! dropped store ends its loop. A dry run looks at a copy and changes nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Condvar;

use super::calibrate::Calibration;
use super::control::Control;
use super::correction::HomeReads;
use super::epoch::{EpochPlan, Inputs};
use super::epoch_draft::{Decision, EpochDraft, Move};
use super::epoch_steps::{PlansByMode, ProposedMove};
use super::expected_reads::{ExpectedReadSource, ExpectedReadSources};
use super::feasibility::Feasibility;
use super::format::bytes;
use super::hysteresis::{HysteresisOptions, MoveHistory};
use super::lock_order::{OrderedMutex, OrderedRwLock, Rank};
use super::measure::Measuring;
use super::merge::{LogPoint, MergeKind, MergeOptions, MergeState, Offers};
use super::metrics::TieringMetrics;
use super::mode::TieringMode;
use super::policy::{Policy, PolicyKind};
use super::pressure::{self, Pressure};
use super::record::{EpochRecord, EpochReport, MoveRecord, MoveStatus};
use super::snapshot::PlacementSnapshot;
use super::solver::{Deadline, Effort, Work};
use super::survey::tier_names;
use super::tier_set::CounterRows;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::heat::decay::{Heat, SegmentHeat, SegmentKey};
use crate::heat::{ViewSource, ViewUse};
use crate::io::{Priority, lower_priority};
use crate::migrate::{Failing, Health, HomeTier, MoveExecutor, MoveQueue, Relocation, Verdict};
use crate::table::{ChunkEntry, Rules, TableId, TableStatistics};
use crate::tier::ssd::ReadColumn;
use crate::tier::{Account, MemoryTiers};
use crate::units::Size;

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
        Err(Error::Unsupported("tiers that come and go".into()))
    }
    /// The tier where every segment has its durable bytes; its id follows the last memory tier's.
    fn home(&self) -> &dyn HomeTier;
    /// Number of the last epoch saved; 0 when there was none.
    fn last_epoch(&self) -> Result<u64>;
    /// Makes the record of an epoch durable, and with it the encoded history of recent moves.
    fn save_epoch(&self, report: &EpochReport, move_history: &[u8]) -> Result<()>;
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
    /// Replaces the stored records of earlier epochs and moves by these, which hold measurements in addition.
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

pub(super) struct Shared {
    host: Weak<dyn TieringHost>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: TieringOptions,
    pub(super) policy: Box<dyn Policy>,
    /// Lets one epoch, order or change of tiers run at a time; guards the number of the last epoch, `None`: not loaded yet.
    pub(super) epoch_mutex: OrderedMutex<Option<u64>>,
    pub(super) heat: OrderedRwLock<Heat>,
    pub(super) move_history: OrderedMutex<MoveHistory>,
    pub(super) expected_reads: ExpectedReadSources,
    view_source: OrderedRwLock<Option<Weak<dyn ViewSource>>>,
    /// Prices from which the next plan starts: see [`Inputs::prices`].
    pub(super) prices: OrderedMutex<Vec<f64>>,
    /// The moves that were proposed last.
    pub(super) proposed: OrderedMutex<Vec<ProposedMove>>,
    pub(super) calibration: OrderedRwLock<Option<Calibration>>,
    pub(super) calibrating: OrderedMutex<()>,
    /// Reads from home that have been compared with the calibration already.
    pub(super) compared_home_reads: OrderedMutex<HomeReads>,
    /// Held while tiers come, go, or are drained; guards the rows of their counters.
    pub(super) rows: OrderedMutex<CounterRows>,
    /// Read-locked by explanations and advice, which run without the epoch mutex; tiers change only between them.
    pub(super) tier_set_lock: OrderedRwLock<()>,
    /// The largest budget of each tier that may have one, by name.
    pub(super) max_budget_bytes: OrderedMutex<HashMap<String, u64>>,
    /// Rates of the tiers that have their own, by name; 0: no limit.
    pub(super) tier_bytes_per_s: OrderedMutex<HashMap<String, u64>>,
    pub(super) tiers_changed_unix_us: AtomicU64,
    pub(super) offers: Offers,
    pub(super) merging: OrderedMutex<MergeState>,
    pub(super) pressure: Arc<Pressure>,
    pub(super) health: Health,
    pub(super) metrics: TieringMetrics,
    pub(super) control: OrderedRwLock<Control>,
    pub(super) measuring: OrderedMutex<Measuring>,
    pub(super) cancel: AtomicBool,
    /// Number of the epoch or order that is under way; 0: none. Dry runs change nothing and do not count.
    pub(super) under_way: AtomicU64,
    /// True while an epoch is under way; false during an order that holds the epoch mutex.
    pub(super) in_epoch: AtomicBool,
    /// True while the epoch under way is one of the loop's own: it gives way to a requested one.
    pub(super) in_background: AtomicBool,
    signal: OrderedMutex<Signal>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Signal {
    stop: bool,
    interval: Duration,
    /// The trigger of an epoch that is wanted at once.
    wanted: Option<&'static str>,
}

impl std::fmt::Debug for Tiering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tiering").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Tiering {
    /// Makes a loop that is not running yet; [`Tiering::run_epoch`] works at once.
    pub fn new(host: Weak<dyn TieringHost>, clock: Arc<dyn Clock>, options: TieringOptions) -> Self {
        let queue_bytes = options.merge.queue_bytes;
        let shared = Shared {
            host,
            clock,
            policy: options.policy.policy(options.seed),
            epoch_mutex: OrderedMutex::new(Rank::Epoch, None),
            heat: OrderedRwLock::new(Rank::Heat, Heat::default()),
            move_history: OrderedMutex::new(Rank::Leaf, MoveHistory::new(options.hysteresis)),
            expected_reads: ExpectedReadSources::default(),
            view_source: OrderedRwLock::new(Rank::Leaf, None),
            prices: OrderedMutex::new(Rank::Leaf, Vec::new()),
            proposed: OrderedMutex::new(Rank::Leaf, Vec::new()),
            calibration: OrderedRwLock::new(Rank::Calibration, None),
            compared_home_reads: OrderedMutex::new(Rank::ComparedHomeReads, HomeReads::default()),
            calibrating: OrderedMutex::new(Rank::Calibrating, ()),
            rows: OrderedMutex::new(Rank::CounterRows, CounterRows::default()),
            tier_set_lock: OrderedRwLock::new(Rank::TierSet, ()),
            max_budget_bytes: OrderedMutex::new(Rank::Leaf, options.max_budget_bytes.clone()),
            tier_bytes_per_s: OrderedMutex::new(Rank::Leaf, options.tier_bytes_per_s.clone()),
            tiers_changed_unix_us: AtomicU64::new(0),
            offers: Offers::new(queue_bytes),
            merging: OrderedMutex::new(Rank::Merging, MergeState::default()),
            pressure: Arc::default(),
            health: Health::default(),
            metrics: TieringMetrics::default(),
            control: OrderedRwLock::new(Rank::Leaf, Control::default()),
            measuring: OrderedMutex::new(Rank::Leaf, Measuring::default()),
            cancel: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            in_epoch: AtomicBool::new(false),
            in_background: AtomicBool::new(false),
            signal: OrderedMutex::new(Rank::Leaf, Signal::default()),
            wake: Condvar::new(),
            options,
        };
        Self { shared: Arc::new(shared), threads: OrderedMutex::new(Rank::Threads, Vec::new()) }
    }

    /// Loads the saved heat, the move history and the calibration (measures when none is saved for these tiers). Call once
    /// after opening; the hottest segments return with the first epoch, which [`Tiering::start`] then runs at once. Returns
    /// the number of tables whose heat is known. A blob that cannot be read is logged and left out.
    pub fn restore(&self) -> Result<usize> {
        let host = self.shared.host()?;
        let known = host.load_control()?;
        let mode = self.shared.options.mode.unwrap_or(known.mode);
        *self.shared.control.write() = Control { mode, ..known };
        let known: HashMap<TableId, ()> = host.tables().into_iter().map(|table| (table.id, ())).collect();
        let mut restored = 0;
        let mut heat = self.shared.heat.write();
        for (table, blob) in host.load_heat()?.into_iter().filter(|(table, _)| known.contains_key(table)) {
            match heat.add_blob(table, &blob) {
                Ok(()) => restored += 1,
                Err(error) => tracing::warn!(%error, "heat is not restored"),
            }
        }
        drop(heat);
        if let Some(blob) = host.load_move_history()?
            && let Err(error) = self.shared.move_history.lock().restore(&blob)
        {
            tracing::warn!(%error, "segments that moved before the restart may turn back at once");
        }
        self.shared.signal.lock().wanted = (restored > 0).then_some("restart");
        self.shared.log_missing_tiers(host.as_ref())?;
        self.shared.calibrated(host.as_ref())?;
        Ok(restored)
    }

    /// Starts the loop on its own thread, or changes the interval of the running loop. From now on columns that are offered
    /// may come into memory.
    pub fn start(&self, interval: Duration) -> Result<()> {
        let mut threads = self.threads.lock();
        self.shared.signal.lock().interval = interval;
        if !threads.is_empty() {
            self.shared.wake.notify_all();
            return Ok(());
        }
        self.shared.signal.lock().stop = false;
        let spawn = |name: &'static str, work: fn(&Shared)| {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name(name.into()).spawn(move || work(&shared));
            spawned.map_err(|error| Error::io("start", format!("thread {name}"), &error))
        };
        self.shared.pressure.open();
        threads.push(spawn("tiering", Shared::run_loop)?);
        threads.push(spawn("relief", Shared::run_relief)?);
        if self.shared.options.merge.kind != MergeKind::Never {
            self.shared.offers.open();
            threads.push(spawn("merging", Shared::run_merges)?);
        }
        Ok(())
    }

    /// The queue to which loads report that they find no room.
    pub fn pressure(&self) -> &Arc<Pressure> {
        &self.shared.pressure
    }

    /// True when a thread looks at offered columns.
    pub fn takes_offers(&self) -> bool {
        self.shared.offers.is_open()
    }

    /// Offers columns that were read from home, once their access is counted and no reader needs them any more: those that
    /// are worth it come into memory without being read again. Never waits.
    pub fn offer(&self, columns: impl Iterator<Item = ReadColumn>) {
        let forgotten = self.shared.offers.add(columns);
        self.shared.metrics.merge.forgotten.fetch_add(forgotten, Ordering::Relaxed);
    }

    /// Accepts offers without starting a thread: [`Tiering::merge_now`] looks at them. For simulations.
    pub(crate) fn open_offers(&self) {
        self.shared.offers.open();
    }

    /// Runs one merge round over the offers, on the caller's thread.
    pub(crate) fn merge_now(&self) -> Result<()> {
        self.shared.merge_round()
    }

    /// Ends the loop: cancels its epoch after the move under way and waits for its threads.
    pub fn stop(&self) {
        self.shared.signal.lock().stop = true;
        self.shared.cancel.store(true, Ordering::Relaxed);
        self.shared.wake.notify_all();
        self.shared.offers.close();
        self.shared.pressure.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The loop itself may be the last owner of the store: it cannot join itself, and ends by the flag.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("the tiering thread ended abnormally");
            }
        }
    }

    /// Runs one epoch now and returns when its moves have ended. An epoch with a rate, and a dry run, wait for an epoch
    /// under way; others wait for requested epochs and orders, but end an epoch of the loop after its current move. Fails
    /// when the store is closing, when the plan cannot be made, or when its record cannot be saved (its moves are done
    /// then).
    pub fn run_epoch(&self, request: EpochRequest) -> Result<EpochReport> {
        self.shared.run_epoch(&request, true)
    }

    /// Asks the loop for an epoch now, with the heat as it is; without effect when the loop does not run.
    pub fn wake(&self, reason: &'static str) {
        self.shared.wake(reason);
    }

    /// Cancels the remaining moves of an epoch under way; moves that are done stay.
    pub fn cancel(&self) {
        self.shared.cancel.store(true, Ordering::Relaxed);
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
        let max = self.shared.max_budget_bytes.lock().get(tier).copied();
        if let Some(max) = max.filter(|max| bytes > *max) {
            return Err(Error::Invalid(format!(
                "a budget of {bytes} bytes for tier '{tier}' is more than the {max} bytes there are for it; choose less, or start the server with a larger limit"
            )));
        }
        account.set_limit_bytes(bytes);
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
                "a rate limit is bytes per second, such as 100MiB; a percentage has nothing that it could be of".into(),
            ));
        };
        self.shared.tier_bytes_per_s.lock().insert(tier.to_owned(), bytes_per_s);
        Ok(())
    }

    /// Bytes per second that the loop's own moves read from the device of a tier, and write to it, at most; `None`: no
    /// limit.
    pub fn rate_limit(&self, tier: &str) -> Option<u64> {
        self.shared.rate_limit(tier)
    }

    /// The failure for which moves to and from a tier pause; `None` while its device works.
    pub fn failing(&self, tier: &str) -> Option<Failing> {
        self.shared.health.failing(tier)
    }

    /// Heat of one segment.
    pub fn heat(&self, key: &SegmentKey) -> SegmentHeat {
        self.shared.heat.read().get(key)
    }

    /// Calls `look` with all heat; the next epoch waits until it returns.
    pub fn with_heat<T>(&self, look: impl FnOnce(&Heat) -> T) -> T {
        look(&self.shared.heat.read())
    }

    /// Registers a statement's source of expected reads: each plan takes them into account as long as the source lives.
    pub fn add_expected_read_source(&self, source: Weak<dyn ExpectedReadSource>) {
        self.shared.expected_reads.add(source);
    }

    /// Registers the source of hot views: each plan takes them into account as long as the source lives.
    pub fn set_view_source(&self, source: Weak<dyn ViewSource>) {
        *self.shared.view_source.write() = Some(source);
    }

    /// Reads that running statements still expect of segments in memory; at most one per segment and statement.
    pub fn expected_reads(&self) -> HashMap<SegmentKey, SegmentHeat> {
        self.shared.expected_reads.collect()
    }

    /// Counts and last figures.
    pub fn metrics(&self) -> &TieringMetrics {
        &self.shared.metrics
    }

    /// Folds the counters, saves the heat, and logs the merge rounds since the last epoch: call before the store closes.
    pub fn checkpoint(&self) -> Result<()> {
        let last_epoch = self.shared.epoch_mutex.lock();
        let host = self.shared.host()?;
        let tables = host.tables();
        let views = self.shared.views();
        self.shared.observe(&mut self.shared.heat.write(), &tables, &views);
        self.shared.save_heat(host.as_ref(), &tables)?;
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
    let found = memory.iter().find(|tier| tier.name() == name).map(|tier| tier.account());
    found
        .or_else(|| (home.name() == name).then(|| home.account()))
        .map(Arc::clone)
        .ok_or_else(|| Error::unknown_tier(name, &tier_names(host)))
}

impl Shared {
    /// See [`Tiering::wake`].
    pub(super) fn wake(&self, reason: &'static str) {
        self.signal.lock().wanted = Some(reason);
        self.wake.notify_all();
    }

    pub(super) fn rate_limit(&self, tier: &str) -> Option<u64> {
        let own = self.tier_bytes_per_s.lock().get(tier).copied();
        own.or(self.options.background_bytes_per_s).filter(|rate| *rate > 0)
    }

    /// The rate of each tier, the home last.
    pub(super) fn rates(&self, host: &dyn TieringHost) -> Vec<Option<u64>> {
        tier_names(host).iter().map(|tier| self.rate_limit(tier)).collect()
    }

    /// Limits of effort and time for a plan that begins now.
    pub(super) fn work(&self) -> Work<'_> {
        let deadline = Deadline::after(self.clock.as_ref(), self.options.solver_deadline);
        Work { effort: self.options.effort, deadline: Some(deadline) }
    }

    pub(super) fn host(&self) -> Result<Arc<dyn TieringHost>> {
        self.host.upgrade().ok_or(Error::Cancelled)
    }

    fn run_loop(&self) {
        lower_priority(Priority::Planning);
        loop {
            let mut signal = self.signal.lock();
            if signal.stop {
                return;
            }
            let wanted = signal.wanted.take();
            let interval = signal.interval;
            if wanted.is_none() && !signal.wait_for(&self.wake, interval).timed_out() {
                continue;
            }
            drop(signal);
            if !self.control.read().is_running() {
                continue;
            }
            let request = EpochRequest { dry_run: false, reason: wanted.unwrap_or(INTERVAL).into(), is_paced: true };
            match self.run_epoch(&request, wanted.is_none()) {
                Ok(_) => {}
                Err(Error::Cancelled) => return,
                Err(error) => tracing::error!(%error, "an epoch failed; the next one tries again"),
            }
        }
    }

    /// True when the store is closing.
    pub(super) fn is_stopping(&self) -> bool {
        self.signal.lock().stop
    }

    fn run_epoch(&self, request: &EpochRequest, fold: bool) -> Result<EpochReport> {
        let background = request.is_paced && self.rates(self.host()?.as_ref()).iter().any(Option::is_some);
        let mut last_epoch = match background || request.dry_run {
            true => self.epoch_mutex.lock(),
            // Where cores are scarce, a background epoch takes long: it is interrupted instead of waited for.
            false => self.interrupt_and_lock(&self.in_background),
        };
        let host = self.host()?;
        self.cancel.store(false, Ordering::Relaxed);
        if self.is_stopping() {
            return Err(Error::Cancelled);
        }
        if !request.dry_run {
            self.control.read().check_not_frozen()?;
        }
        self.in_epoch.store(true, Ordering::Relaxed);
        self.in_background.store(background, Ordering::Relaxed);
        let report = self.run_epoch_locked(host.as_ref(), request, fold, &mut last_epoch);
        self.in_epoch.store(false, Ordering::Relaxed);
        self.in_background.store(false, Ordering::Relaxed);
        let failed = u64::from(report.is_err());
        self.metrics.failures.fetch_add(failed, Ordering::Relaxed);
        report
    }

    /// Runs one epoch while the caller holds the epoch mutex; `last` is the value that it guards.
    fn run_epoch_locked(
        &self,
        host: &dyn TieringHost,
        request: &EpochRequest,
        fold: bool,
        last: &mut Option<u64>,
    ) -> Result<EpochReport> {
        let id = last.map_or_else(|| host.last_epoch(), Ok)? + 1;
        let _under_way = (!request.dry_run).then(|| self.begin(id));
        let mut tables = host.tables();
        tables.sort_by_key(|table| table.id);
        let unix_us = self.clock.unix_us();
        let start_us = self.clock.now_us();
        if fold && !request.dry_run {
            let views = self.views();
            self.observe(&mut self.heat.write(), &tables, &views);
            self.measure(host)?;
            self.correct(host)?;
        }
        let PlansByMode { acting, advising } = self.prepare_by_mode(host, &tables, id, fold && request.dry_run)?;
        let solve_us = self.clock.now_us().saturating_sub(start_us);
        let main = acting.as_ref().or(advising.as_ref()).ok_or(Error::Cancelled)?;
        let decision = Decision { id, unix_us, solve_us };
        let mut draft = match &acting {
            Some(prepared) => EpochDraft::new(decision, request, prepared, &tables),
            None => EpochDraft::without_moves(decision, request, main),
        };
        self.propose(&mut draft, &tables, advising.as_ref());
        if request.dry_run {
            self.metrics.dry_runs.fetch_add(1, Ordering::Relaxed);
            return Ok(draft.into_report());
        }
        let merged = self.merge_records(host, LogPoint::Epoch(id), draft.rows());
        draft.append(merged);
        self.note_given_way(&main.inputs, &main.plan);
        // Set before saving: even if a part of the report cannot be saved, no other epoch gets the number.
        *last = Some(id);
        self.carry_out(host, request, &mut draft);
        if let Some(prepared) = &acting {
            self.follow_up(request, &draft, prepared);
        }
        let report = draft.into_report();
        self.save(host, &tables, &report)?;
        self.metrics.record_epoch(&report.epoch);
        Ok(report)
    }

    /// Counts the segments whose rules the budgets do not allow, and logs a change of their bytes.
    pub(super) fn note_given_way(&self, inputs: &Inputs, plan: &EpochPlan) {
        let segments = plan.given_way.iter().filter_map(|at| inputs.segments.get(*at));
        let (segments, unmet_bytes) = segments.fold((0, 0), |(n, sum), segment| (n + 1, sum + segment.bytes));
        let before = self.metrics.given_way_bytes.swap(unmet_bytes, Ordering::Relaxed);
        self.metrics.given_way_segments.store(segments, Ordering::Relaxed);
        if unmet_bytes == before {
            return;
        }
        match unmet_bytes {
            0 => tracing::info!("what placement rules want in memory fits its budgets again"),
            _ => tracing::warn!(
                segments,
                "placement rules want {} more in memory than the budgets allow; the latest rules, and of a rule the \
                 newest chunks, give way. Raise a budget or unpin something; system.placement_rules says what is not met",
                bytes(unmet_bytes)
            ),
        }
    }

    /// Carries out the moves of a draft, and notes in it how they ended, how long they took and what they save.
    pub(super) fn carry_out(&self, host: &dyn TieringHost, request: &EpochRequest, draft: &mut EpochDraft<'_>) {
        let start_us = self.clock.now_us();
        let tiers = host.memory_tiers();
        let rates = if request.is_paced { self.rates(host) } else { Vec::new() };
        let has_rate = rates.iter().any(Option::is_some);
        let urgent = request.reason == pressure::TRIGGER;
        let queue = MoveQueue {
            tiers: &tiers,
            home: host.home(),
            health: &self.health,
            clock: self.clock.as_ref(),
            cancel: &self.cancel,
            rates: &rates,
            patience: self.options.patience,
            executor: match (self.options.movers, has_rate) {
                (0, _) => MoveExecutor::Caller,
                // Loads wait for the room, so the copies are dropped at once.
                (_, true) if urgent => MoveExecutor::Caller,
                (_, true) => MoveExecutor::Background,
                (threads, false) => MoveExecutor::Threads(threads),
            },
            urgent,
        };
        let EpochDraft { epoch, moves, .. } = draft;
        let relocations: Vec<Relocation> = moves.iter().map(|moved| moved.relocation.clone()).collect();
        queue.run(&relocations, |number, verdict| {
            let Some(Move { relocation, record, .. }) = moves.get_mut(number) else { return };
            record.unix_us = self.clock.unix_us();
            match verdict {
                Verdict::Done { took_us } => {
                    (record.status, record.took_us) = (MoveStatus::Done, took_us);
                    epoch.moves_done += 1;
                    epoch.moved_bytes += record.bytes;
                    self.metrics.count_move(relocation.from, relocation.to, record.bytes);
                }
                Verdict::Skipped(why) => {
                    (record.status, record.why) = (MoveStatus::Skipped, Some(why));
                    epoch.moves_skipped += 1;
                    self.metrics.moves_skipped.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        epoch.move_us = self.clock.now_us().saturating_sub(start_us);
        epoch.predicted_us = moves.iter().filter(|moved| moved.is_done()).map(|moved| moved.record.benefit_us).sum();
    }

    /// The hot views as they are now.
    pub(super) fn views(&self) -> Vec<ViewUse> {
        let source = self.view_source.read().as_ref().and_then(Weak::upgrade);
        source.map_or_else(Vec::new, |source| source.views())
    }

    pub(super) fn observe(&self, heat: &mut Heat, tables: &[TableSnapshot], views: &[ViewUse]) {
        heat.observe_views(views, self.options.half_life_epochs);
        let chunks = tables.iter().flat_map(|table| table.chunks.iter().map(|entry| &entry.chunk));
        heat.observe(chunks, self.options.half_life_epochs);
    }

    pub(super) fn save_heat(&self, host: &dyn TieringHost, tables: &[TableSnapshot]) -> Result<()> {
        let heat = self.heat.read();
        let blobs = tables.iter().map(|table| (table.id, heat.to_blob(table.id))).collect();
        drop(heat);
        host.save_heat(blobs)
    }
}

#[cfg(test)]
mod tests;
