//! Pressure relief: makes room at once, without waiting for the next epoch, when a budget was lowered below the bytes on
//! its tier, when a load finds no room for its segments, or when running statements need more memory than there is.
//!
//! The victims are chosen as in the emergency eviction of GPU memory (Hetero-DB, Zhang et al. 2015, 4.2.2): least cost
//! `e + f s l` first, where `e` are the bytes that have to be written, `s` those of the segment, `l` its position in the
//! order of last use as a share of all, and `f` a constant: see [`eviction_cost`]. Here every segment has its home, so
//! relief drops the copy in memory and writes nothing. It is logged as an epoch of its own, with its reasons, and obeys
//! rules, modes and freezes as epochs do.
//!
//! For a lowered budget an epoch under way is cancelled, because its remaining plan is for the old budget. A load evicts
//! only segments without a read within the last `payback_epochs` epochs, and only those that an epoch has observed.
//!
//! For running statements the DRAM tier yields memory: it cancels an epoch under way, too, and takes nothing until
//! [`Shared::end_yielding`]. The copies of chunks that are no part of a table yet go first, all of them if need be; then up
//! to half of the budget. What a statement reserves does not count all that it needs: a table of
//! groups that grows is copied into one of twice the size. A copy in memory saves time; without it the statement ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Condvar;
use terrace_model::{Account, Error, Result, TierId, TierIndex, TierKind, TieringMode};

use super::controller::Interruptible;
use super::epoch::{EpochPlan, Inputs, PlannedMove, SegmentInput, TierInput, planned_move, reading_us};
use super::epoch_draft::{Decision, EpochDraft, Move};
use super::format::{bytes, figure, over_budget};
use super::frozen::{MovableInputs, PreparedPlan, origin_table};
use super::lock_order::{OrderedMutex, Rank};
use super::place::Place;
use super::policy::PolicyKind;
use super::record::{EpochReport, TierPrice};
use super::shared::Shared;
use super::solver::{Method, gap};
use super::tiering::{EpochRequest, TieringHost};

/// Trigger in the records of the epochs that relieve pressure.
pub(super) const TRIGGER: &str = "memory pressure";
/// The weight of last use against bytes that have to be written, as in the authors' code.
const LATENCY_FACTOR: f64 = 0.01;
/// Segments dropped in one pass, which bounds its work; the next pass goes on with the remaining ones.
const MAX_VICTIMS: usize = 4096;
/// Time to collect further requests of a load, which brings many segments.
const LOAD_GATHER_TIME: Duration = Duration::from_millis(100);
/// Pause between two evictions on behalf of loads.
const LOAD_PAUSE_US: u64 = 10_000_000;
/// Pause after a try to yield memory that freed none.
const YIELD_PAUSE_US: u64 = 1_000_000;
/// The least part of a budget that is freed for a load.
const LOAD_SHARE: u64 = 16;
/// A tier yields its budget divided by this at most.
const YIELD_DIVISOR: u64 = 2;

/// The cost of evicting a segment, in bytes: from the bytes to write out, its size, and its position in the order of last
/// use from just above 0 (longest ago) to 1.
fn eviction_cost(written: u64, size: u64, last_use: f64) -> f64 {
    written as f64 + LATENCY_FACTOR * size as f64 * last_use
}

/// Why a tier needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It holds more than its budget.
    Budget,
    /// A load found no room for this number of bytes.
    Load(u64),
    /// Running statements need this number of bytes of memory.
    Memory(u64),
}

impl Need {
    /// Combines two needs of one tier.
    fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Load(one), Self::Load(other)) => Self::Load(one.saturating_add(other)),
            // Each request names all that is missing.
            (Self::Memory(one), Self::Memory(other)) => Self::Memory(one.max(other)),
            (Self::Memory(bytes), Self::Load(_)) | (Self::Load(_), Self::Memory(bytes)) => Self::Memory(bytes),
            (Self::Budget, _) | (_, Self::Budget) => Self::Budget,
        }
    }
}

/// Queue of the tiers that need room.
#[derive(Debug)]
pub struct Pressure {
    queue: OrderedMutex<Queue>,
    wake: Condvar,
    /// Whether the DRAM tiers are to yield memory to running statements.
    is_memory_short: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    needs: BTreeMap<TierId, Need>,
    stop: bool,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            queue: OrderedMutex::new(Rank::Leaf, Queue::default()),
            wake: Condvar::new(),
            is_memory_short: AtomicBool::new(false),
        }
    }
}

impl Pressure {
    /// Reports that a load found no room for `bytes` on a tier. Never waits.
    pub fn report_shortage(&self, tier: TierId, bytes: u64) {
        self.note(tier, Need::Load(bytes));
    }

    /// Adds a need to the queue.
    pub(super) fn note(&self, tier: TierId, need: Need) {
        let mut queue = self.queue.lock();
        let sum = queue.needs.get(&tier).map_or(need, |known| known.combine(need));
        queue.needs.insert(tier, sum);
        self.wake.notify_one();
    }

    /// Moves the needs to the new positions of their tiers and drops those of tiers that are gone.
    pub(super) fn renumber(&self, position: impl Fn(TierId) -> Option<TierId>) {
        let needs = &mut self.queue.lock().needs;
        *needs = std::mem::take(needs).into_iter().filter_map(|(tier, need)| Some((position(tier)?, need))).collect();
    }

    /// Combines `need` with the need that was added to the queue for the tier meanwhile.
    fn with_more(&self, tier: TierId, need: Need) -> Need {
        self.queue.lock().needs.remove(&tier).map_or(need, |more| need.combine(more))
    }

    /// Drops a request for memory that was added meanwhile: it counts bytes that have been freed since.
    fn forget_memory(&self, tier: TierId) {
        let needs = &mut self.queue.lock().needs;
        if matches!(needs.get(&tier), Some(Need::Memory(_))) {
            needs.remove(&tier);
        }
    }

    /// Opens the queue, without needs from before there was a thread to serve them.
    pub(super) fn open(&self) {
        *self.queue.lock() = Queue::default();
    }

    /// Ends [`Pressure::wait`].
    pub(super) fn close(&self) {
        self.queue.lock().stop = true;
        self.wake.notify_all();
    }

    /// The next need; `None` once closed.
    fn wait(&self) -> Option<(TierId, Need)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(need) = queue.needs.pop_first() {
                return Some(need);
            }
            queue.wait(&self.wake);
        }
    }
}

impl Shared {
    /// Reacts to a budget that is now lower than the bytes on its tier. Cancels an epoch under way, which planned with
    /// the old budget; an epoch that begins now uses the new one. Where slower memory has room for the surplus, the loop
    /// runs an epoch at once, which may move it there; else the relief thread evicts it.
    pub(super) fn over_budget(&self, tier: TierId) {
        if self.controller.is_under_way(Interruptible::Any) {
            self.mover.cancel();
        }
        match self.host().is_ok_and(|host| slower_has_room(host.as_ref(), tier)) {
            true => self.controller.wake(TRIGGER),
            false => self.mover.pressure().note(tier, Need::Budget),
        }
    }

    /// Has the relief thread free `bytes` of the DRAM tiers, which take nothing from then on. Never waits.
    pub(super) fn yield_memory(&self, bytes: u64) {
        let Ok(host) = self.host() else { return };
        let pressure = self.mover.pressure();
        pressure.is_memory_short.store(true, Ordering::SeqCst);
        for tier in host.memory_tiers().iter().filter(|tier| tier.kind() == TierKind::Dram) {
            pressure.note(tier.id(), Need::Memory(bytes));
        }
    }

    /// Lets the DRAM tiers take segments again.
    pub(super) fn end_yielding(&self) {
        self.mover.pressure().is_memory_short.store(false, Ordering::SeqCst);
        let Ok(host) = self.host() else { return };
        host.memory_tiers().iter().for_each(|tier| tier.account().set_yielding(false));
    }

    /// Lets a tier take nothing more, and says whether it has segments to yield. Cancels an epoch that is under way then.
    fn begin_yielding(&self, account: &Account) -> bool {
        let control = self.controller.settings();
        if !control.is_running() || control.mode != TieringMode::Auto {
            return false;
        }
        account.set_yielding(true);
        // It may have ended meanwhile.
        if !self.mover.pressure().is_memory_short.load(Ordering::SeqCst) {
            account.set_yielding(false);
        }
        let has_some = account.used_bytes() > kept_bytes(account);
        if has_some && self.controller.is_under_way(Interruptible::Any) {
            self.mover.cancel();
        }
        has_some
    }

    /// Serves the queue until it is closed; runs on the relief thread.
    pub(super) fn run_relief(&self) {
        let mut free_at_us = 0;
        let mut yield_at_us = 0;
        while let Some((tier, need)) = self.mover.pressure().wait() {
            // The position of the tier may change while this thread waits; its index follows.
            let Some(index) = self.host().ok().and_then(|host| tier_index(host.as_ref(), tier)) else { continue };
            let now_us = self.clock.now_us();
            let is_early = match need {
                Need::Budget => false,
                Need::Load(_) => now_us < free_at_us,
                Need::Memory(_) => now_us < yield_at_us,
            };
            if is_early {
                continue;
            }
            let need = match need {
                Need::Budget | Need::Memory(_) => need,
                // A load brings many segments.
                Need::Load(_) => {
                    self.clock.sleep(LOAD_GATHER_TIME);
                    self.mover.pressure().with_more(index.id(), need)
                }
            };
            let has_freed = match self.relieve(index.id(), need) {
                Ok(report) => report.is_some_and(|report| report.epoch.moves_done > 0),
                Err(Error::Cancelled) => return,
                Err(error) => {
                    tracing::error!(%error, "pressure relief failed; the next epoch makes room");
                    false
                }
            };
            match need {
                Need::Budget => {}
                Need::Load(_) => free_at_us = now_us + LOAD_PAUSE_US,
                Need::Memory(_) => {
                    self.mover.pressure().forget_memory(index.id());
                    yield_at_us = if has_freed { 0 } else { now_us + YIELD_PAUSE_US };
                }
            }
        }
    }

    /// Makes room on a tier, as far as rules and modes allow it; `None` when there was nothing to do.
    pub(super) fn relieve(&self, tier: TierId, need: Need) -> Result<Option<EpochReport>> {
        let host = self.host()?;
        let Some(index) = tier_index(host.as_ref(), tier) else { return Ok(None) };
        if let (Need::Memory(wanted), Some(memory)) = (need, host.memory_tiers().get(usize::from(tier.0))) {
            let has_some = self.begin_yielding(memory.account());
            // Nobody reads what is no part of a table yet.
            if host.drop_unpublished(tier, wanted) >= wanted || !has_some {
                return Ok(None);
            }
        }
        let mut last_epoch = match need {
            Need::Budget | Need::Memory(_) => self.controller.lock_epoch(),
            // An epoch under way places segments better than an eviction would.
            Need::Load(_) => match self.controller.try_lock_epoch() {
                Some(last_epoch) => last_epoch,
                None => return Ok(None),
            },
        };
        let host = self.host()?;
        let tier = index.id();
        let host = host.as_ref();
        self.mover.clear_cancel();
        if self.controller.is_stopping() {
            return Err(Error::Cancelled);
        }
        let mut last = None;
        loop {
            let control = self.controller.settings();
            if !control.is_running() || control.mode != TieringMode::Auto || self.mover.is_cancelled() {
                return Ok(last);
            }
            let id = last_epoch.map_or_else(|| host.last_epoch(), Ok)? + 1;
            let Some(report) = self.relieve_once(host, tier, need, id)? else { return Ok(last) };
            // Set before the next pass: no other epoch gets the number.
            *last_epoch = Some(id);
            // If no segment could be dropped, another pass would only try the same segments again.
            let is_all = report.moves.len() < MAX_VICTIMS || report.epoch.moves_done == 0;
            let is_all = is_all || self.controller.is_stopping() || need != Need::Budget;
            last = Some(report);
            if is_all {
                return Ok(last);
            }
        }
    }

    /// Evicts at most [`MAX_VICTIMS`] segments as epoch `id`.
    fn relieve_once(&self, host: &dyn TieringHost, tier: TierId, need: Need, id: u64) -> Result<Option<EpochReport>> {
        let memory = host.memory_tiers();
        let Some(account) = memory.get(usize::from(tier.0)).map(|tier| tier.account()) else { return Ok(None) };
        // Epochs empty a drained tier: other memory may be better for its segments than home.
        if account.is_closed() {
            return Ok(None);
        }
        let (budget, wanted_bytes) = match need {
            Need::Budget => (account.limit_bytes(), 0),
            Need::Load(wanted) => (account.limit_bytes(), wanted.max(account.limit_bytes() / LOAD_SHARE)),
            // As if the budget were lower by as much.
            Need::Memory(wanted) => (account.used_bytes().saturating_sub(wanted).max(kept_bytes(account)), 0),
        };
        if account.used_bytes() == 0 || account.used_bytes() + wanted_bytes <= budget {
            return Ok(None);
        }
        let unix_us = self.clock.unix_us();
        let start_us = self.clock.now_us();
        let mut tables = host.tables();
        tables.sort_by_key(|table| table.id);
        let preview_heat = self.planner.preview_heat(&tables);
        let (mut inputs, origins) = self.inputs(host, &tables, Some(&preview_heat))?;
        let basis = self.planner.mark(&mut inputs, id);
        let payback_epochs = inputs.payback_epochs;
        let may_leave = |at: usize, segment: &SegmentInput| {
            let idle = || last_use(segment).is_none_or(|epochs| f64::from(epochs) > inputs.payback_epochs);
            let stays =
                || self.planner.policy().kind() == PolicyKind::Static || segment.constraints.preferred == Some(tier);
            let open =
                || !matches!(need, Need::Load(_)) || !stays() && idle() && self.planner.read_heat().knows(&segment.key);
            let is_auto = || origin_table(&tables, &origins, at).is_some_and(|t| t.mode == TieringMode::Auto);
            segment.current == tier && segment.constraints.allows(inputs.home()) && is_auto() && open()
        };
        let movable: Vec<bool> =
            inputs.segments.iter().enumerate().map(|(at, segment)| may_leave(at, segment)).collect();
        // Copies that left the tier free their bytes when their readers end: only segments that are on it count.
        let resident_bytes: u64 =
            inputs.segments.iter().filter(|s| s.current == tier).map(|s| s.charged_at(s.place())).sum();
        let lacking_bytes = (resident_bytes.min(account.used_bytes()) + wanted_bytes).saturating_sub(budget);
        let movable = MovableInputs::new(inputs, origins, basis, &movable);
        let why = |over| match need {
            Need::Budget => over_budget(account.name(), over, budget),
            Need::Load(_) => format!("a load needs {} of {}", bytes(over), account.name()),
            Need::Memory(_) => {
                format!("running statements need {} of memory that {} yields", bytes(over), account.name())
            }
        };
        let Eviction { plan, spare_bytes } = plan_eviction(&movable.inputs, tier, lacking_bytes, &why);
        if plan.moves.is_empty() {
            return Ok(None);
        }
        let prepared = PreparedPlan::from_plan(movable, plan, self.planner.policy().kind());
        let request = EpochRequest::now(TRIGGER);
        let solve_us = self.clock.now_us().saturating_sub(start_us);
        let mut draft = EpochDraft::new(Decision { id, unix_us, solve_us }, &request, &prepared, &tables);
        for Move { planned, record, .. } in &mut draft.moves {
            let less = spare_bytes.get(&planned.segment).copied().unwrap_or_default();
            record.condition = condition(account.name(), need, less, payback_epochs);
            // The decision used no prices and no costs, so the records show none.
            record.price_ns_per_byte = None;
            record.runner_up = None;
            record.runner_up_us = None;
        }
        self.mover.carry_out(host, &request, &mut draft, &self.metrics);
        self.planner.follow_up(&request, &draft, &prepared);
        let report = draft.into_report();
        self.save(host, &tables, &report)?;
        self.metrics.count_relief(&report.epoch);
        tracing::info!(
            tier = account.name(),
            segments = report.epoch.moves_done,
            bytes = report.epoch.moved_bytes,
            "pressure relief evicted segments"
        );
        Ok(Some(report))
    }
}

/// The part of a tier's budget that it does not yield.
fn kept_bytes(account: &Account) -> u64 {
    // Read once: the budget may change meanwhile.
    let budget_bytes = account.limit_bytes();
    budget_bytes - budget_bytes / YIELD_DIVISOR
}

fn tier_index(host: &dyn TieringHost, tier: TierId) -> Option<TierIndex> {
    host.memory_tiers().get(usize::from(tier.0)).map(|tier| tier.index().clone())
}

/// True when slower memory tiers have room for the bytes of `tier` above its budget.
fn slower_has_room(host: &dyn TieringHost, tier: TierId) -> bool {
    let memory = host.memory_tiers();
    let mut accounts = memory.iter().skip(usize::from(tier.0)).map(|tier| tier.account());
    let over = accounts.next().map_or(0, |account| account.used_bytes().saturating_sub(account.limit_bytes()));
    let room = accounts.map(|account| account.limit_bytes().saturating_sub(account.used_bytes()));
    room.sum::<u64>() >= over
}

/// Describes when a victim would have stayed: if `less` bytes fewer had been needed.
fn condition(tier: &str, need: Need, less: u64, payback_epochs: f64) -> String {
    let unweighed = "no price and no second tier was weighed, only last use and size";
    match need {
        Need::Budget => format!("stays when {tier} has {} more; {unweighed}", bytes(less)),
        Need::Load(_) => format!(
            "stays when {tier} has {} more free, or when it was read within the last {payback_epochs} epochs; {unweighed}",
            bytes(less),
        ),
        Need::Memory(_) => format!("stays when running statements need {} less; {unweighed}", bytes(less)),
    }
}

/// Epochs since a segment was last read; 0 for a segment that a running statement expects to read.
fn last_use(segment: &SegmentInput) -> Option<u32> {
    if segment.expected_reads.total() > 0.0 { Some(0) } else { segment.heat.idle_epochs }
}

/// A segment that may be evicted.
struct Victim<'a> {
    cost: f64,
    /// Position in the order of last use, from 1.
    place: usize,
    /// Position in [`Inputs::segments`].
    at: usize,
    segment: &'a SegmentInput,
}

/// A plan of evictions.
struct Eviction {
    plan: EpochPlan,
    /// By the position of each victim in [`Inputs::segments`]: it would stay if so many bytes fewer were lacking.
    spare_bytes: HashMap<usize, u64>,
}

/// Plans to evict segments by cost until `lacking_bytes` are free, without those that turn out not to be needed.
fn plan_eviction(inputs: &Inputs, tier: TierId, lacking_bytes: u64, why: &dyn Fn(u64) -> String) -> Eviction {
    let mut by_use: Vec<(usize, &SegmentInput)> = inputs.segments.iter().enumerate().collect();
    by_use.sort_by(|(_, a), (_, b)| {
        let last = |segment: &SegmentInput| last_use(segment).unwrap_or(u32::MAX);
        last(b).cmp(&last(a)).then(a.heat.total().total_cmp(&b.heat.total())).then(a.key.cmp(&b.key))
    });
    let count = by_use.len();
    let mut victims: Vec<Victim<'_>> = (1..)
        .zip(by_use)
        .map(|(place, (at, segment))| {
            let last_use = place as f64 / count as f64;
            // Every segment has all its bytes at home, so nothing has to be written.
            Victim { cost: eviction_cost(0, segment.charged_at(segment.place()), last_use), place, at, segment }
        })
        .collect();
    // Of two that cost the same, the less recently used one goes first.
    let by_cost = |a: &Victim<'_>, b: &Victim<'_>| a.cost.total_cmp(&b.cost).then(a.place.cmp(&b.place));
    victims.sort_by(by_cost);
    let mut freed = 0;
    let mut chosen = Vec::new();
    for victim in victims {
        if freed >= lacking_bytes || chosen.len() >= MAX_VICTIMS {
            break;
        }
        // If so many bytes fewer were lacking, the victims before it would free enough.
        let less = lacking_bytes - freed;
        freed += victim.segment.charged_at(victim.segment.place());
        chosen.push((victim, less));
    }
    // Small segments that were used lately cost little, but free little: the last victim may free enough without them. So
    // the most recently used ones stay where the others suffice.
    chosen.sort_by_key(|(victim, _)| std::cmp::Reverse(victim.place));
    chosen.retain(|(victim, _)| {
        let charged = victim.segment.charged_at(victim.segment.place());
        let is_needed = freed < lacking_bytes + charged;
        freed -= if is_needed { 0 } else { charged };
        is_needed
    });
    chosen.sort_by(|(a, _), (b, _)| by_cost(a, b));
    let spare_bytes = chosen.iter().map(|(victim, less)| (victim.at, *less)).collect();
    let planned = |Victim { cost, place, at, segment }: Victim<'_>| {
        let from = segment.place();
        let to = Place::plain(inputs.home());
        let benefit_us = reading_us(inputs, segment, from) - reading_us(inputs, segment, to);
        PlannedMove {
            reason: format!(
                "{TRIGGER}: {}; its eviction cost {} is among the lowest: no bytes to write, {LATENCY_FACTOR} of {} by its \
                 position in the order of last use, {place} of {count}",
                why(lacking_bytes),
                figure(cost),
                bytes(segment.charged_at(from)),
            ),
            ..planned_move(inputs, at, segment, [from, to], benefit_us)
        }
    };
    let moves: Vec<PlannedMove> = chosen.into_iter().map(|(victim, _)| planned(victim)).collect();
    let before_us: f64 = inputs.segments.iter().map(|segment| reading_us(inputs, segment, segment.place())).sum();
    let after_us = before_us - moves.iter().map(|planned| planned.benefit_us).sum::<f64>();
    let evicted_bytes: u64 =
        moves.iter().filter_map(|m| inputs.segments.get(m.segment)).map(|s| s.charged_at(s.place())).sum();
    let price = |(id, tier_input): (u8, &TierInput)| {
        let on = |segment: &&SegmentInput| segment.current == TierId(id);
        let before_bytes = inputs.segments.iter().filter(on).map(|s| s.charged_at(s.place())).sum();
        let moved_bytes = if TierId(id) == tier { evicted_bytes } else { 0 };
        Some(TierPrice {
            tier: tier_input.name.clone(),
            budget_bytes: tier_input.budget_bytes?,
            before_bytes,
            planned_bytes: before_bytes - moved_bytes,
            price_ns_per_byte: 0.0,
        })
    };
    let prices = (0..).zip(&inputs.tiers).filter_map(price).collect();
    let plan = EpochPlan {
        moves,
        before_us,
        after_us,
        objective_us: after_us,
        // No bound is proven.
        bound_us: 0.0,
        gap: gap(after_us, 0.0),
        bound_prices: Vec::new(),
        method: Method::Ranked,
        prices,
        given_way: Vec::new(),
        has_image: Vec::new(),
        images: Vec::new(),
    };
    Eviction { plan, spare_bytes }
}

#[cfg(test)]
mod tests;
