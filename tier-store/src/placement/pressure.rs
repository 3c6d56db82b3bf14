//! Room that is needed now and not with the next epoch: a budget was lowered below what its tier holds, or a load finds no
//! room for what it brings.
//!
//! Victims are chosen as GPU memory is freed in an emergency (Hetero-DB, Zhang et al. 2015, 4.2.2): least cost `e + f s l`
//! first, where `e` are the bytes that have to be written, `s` those of the segment, `l` its place by last use as a share of
//! all, and `f` a constant: see [`cost`]. Here every segment has its home, so a copy in memory is dropped and nothing is
//! written. It is logged as an epoch of its own, with its reasons, and obeys rules, modes and freezes as epochs do.
//!
//! An epoch under way is given up for a lowered budget: what is left of its plan was made for another one. A load takes
//! only what nobody read within the epochs in which moves have to pay back, and nothing that no epoch has seen yet.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::epoch::{EpochPlan, Inputs, PlannedMove, SegmentInput, TierInput, reading_us};
use super::kept::{Drawn, origin_table, set_aside};
use super::mode::TieringMode;
use super::policy::PolicyKind;
use super::record::{EpochReport, TierPrice};
use super::solver::{Method, gap};
use super::tiering::{EpochRequest, Shared, TieringHost, epoch_record};
use super::words::{bytes, figure, over_budget};
use crate::error::{Error, Result};
use crate::tier::{Seat, TierId};

/// What its epochs say asked for them.
pub(super) const TRIGGER: &str = "memory pressure";
/// The weight of last use against bytes that have to be written, as in the authors' code.
const LATENCY_FACTOR: f64 = 0.01;
/// Segments dropped at a time; the work is bounded, and goes on with those that are left.
const MOST: usize = 4096;
/// Before one: more will be needed than the first segment asked for.
const LOAD_GATHERS: Duration = Duration::from_millis(100);
/// Between two looks on behalf of loads.
const LOAD_PAUSE_US: u64 = 10_000_000;
/// The least part of a budget that is freed for a load.
const LOAD_SHARE: u64 = 16;

/// What a victim costs, in bytes: `written` that have to be written out, `size` of it, and its place by last use from just
/// above 0 (longest ago) to 1.
fn cost(written: u64, size: u64, last_use: f64) -> f64 {
    written as f64 + LATENCY_FACTOR * size as f64 * last_use
}

/// Why a tier needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It holds more than its budget.
    Budget,
    /// A load found no room for so many bytes.
    Load(u64),
}

impl Need {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Load(one), Self::Load(other)) => Self::Load(one.saturating_add(other)),
            _ => Self::Budget,
        }
    }
}

/// Tiers that need room.
#[derive(Debug, Default)]
pub struct Pressure {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    needs: BTreeMap<TierId, Need>,
    stop: bool,
}

impl Pressure {
    /// A load found no room on a tier for so many bytes. Never waits.
    pub fn lacks(&self, tier: TierId, bytes: u64) {
        self.note(tier, Need::Load(bytes));
    }

    pub(super) fn note(&self, tier: TierId, need: Need) {
        let mut queue = self.queue.lock();
        let sum = queue.needs.get(&tier).map_or(need, |known| known.and(need));
        queue.needs.insert(tier, sum);
        self.wake.notify_one();
    }

    /// Tiers stand elsewhere now; what was needed on one that is gone is forgotten.
    pub(super) fn renumber(&self, position: impl Fn(TierId) -> Option<TierId>) {
        let needs = &mut self.queue.lock().needs;
        *needs = std::mem::take(needs).into_iter().filter_map(|(tier, need)| Some((position(tier)?, need))).collect();
    }

    /// The need with what came since.
    fn with_more(&self, tier: TierId, need: Need) -> Need {
        self.queue.lock().needs.remove(&tier).map_or(need, |more| need.and(more))
    }

    /// Forgets what was needed before somebody cared.
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
            self.wake.wait(&mut queue);
        }
    }
}

impl Shared {
    /// A budget is lower now than what its tier holds. An epoch under way planned with the one before, and is given up; one
    /// that begins now sees to it itself. Where slower memory has room for what has to leave, the loop plans an epoch at
    /// once, which may bring it there.
    pub(super) fn over_budget(&self, tier: TierId) {
        if self.in_epoch.load(Ordering::Relaxed) {
            self.cancel.store(true, Ordering::Relaxed);
        }
        match self.host().is_ok_and(|host| slower_has_room(host.as_ref(), tier)) {
            true => self.wake(TRIGGER),
            false => self.pressure.note(tier, Need::Budget),
        }
    }

    /// Makes room where it is needed, until that ends.
    pub(super) fn run_relief(&self) {
        let mut free_at_us = 0;
        while let Some((tier, need)) = self.pressure.wait() {
            // Positions may change while it waits.
            let Some(seat) = self.host().ok().and_then(|host| seat(host.as_ref(), tier)) else { continue };
            let now_us = self.clock.now_us();
            if need != Need::Budget && now_us < free_at_us {
                continue;
            }
            let need = match need {
                Need::Budget => need,
                // A load brings many segments.
                Need::Load(_) => {
                    self.clock.sleep(LOAD_GATHERS);
                    self.pressure.with_more(seat.id(), need)
                }
            };
            match self.relieve(seat.id(), need) {
                Ok(_) => {}
                Err(Error::Cancelled) => return,
                Err(error) => tracing::error!(%error, "no room is made before the next epoch"),
            }
            if need != Need::Budget {
                free_at_us = now_us + LOAD_PAUSE_US;
            }
        }
    }

    /// Makes room on a tier, as far as rules and modes let it; `None` when there was nothing to do.
    pub(super) fn relieve(&self, tier: TierId, need: Need) -> Result<Option<EpochReport>> {
        let Some(seat) = seat(self.host()?.as_ref(), tier) else { return Ok(None) };
        let mut turn = match need {
            Need::Budget => self.turn.lock(),
            // The epoch under way decides better.
            Need::Load(_) => match self.turn.try_lock() {
                Some(turn) => turn,
                None => return Ok(None),
            },
        };
        let host = self.host()?;
        let tier = seat.id();
        let host = host.as_ref();
        self.cancel.store(false, Ordering::Relaxed);
        if self.is_stopping() {
            return Err(Error::Cancelled);
        }
        let mut last = None;
        loop {
            let control = self.control.read().clone();
            if !control.is_running() || control.mode != TieringMode::Auto || self.cancel.load(Ordering::Relaxed) {
                return Ok(last);
            }
            let id = turn.map_or_else(|| host.last_epoch(), Ok)? + 1;
            let Some(report) = self.relieve_once(host, (tier, need), id)? else { return Ok(last) };
            // Should a part of it not be saved, its number is not given again.
            *turn = Some(id);
            // Where nothing could be dropped, the same would be tried again.
            let is_all = report.moves.len() < MOST || report.epoch.moves_done == 0;
            let is_all = is_all || self.is_stopping() || need != Need::Budget;
            last = Some(report);
            if is_all {
                return Ok(last);
            }
        }
    }

    fn relieve_once(
        &self,
        host: &dyn TieringHost,
        (tier, need): (TierId, Need),
        id: u64,
    ) -> Result<Option<EpochReport>> {
        let memory = host.memory_tiers();
        let Some(account) = memory.get(usize::from(tier.0)).map(|tier| tier.account()) else { return Ok(None) };
        // What is drained leaves with epochs: other memory may be better than home.
        if account.is_closed() {
            return Ok(None);
        }
        let (budget, wanted) = match need {
            Need::Budget => (account.limit_bytes(), 0),
            Need::Load(wanted) => (account.limit_bytes(), wanted.max(account.limit_bytes() / LOAD_SHARE)),
        };
        if account.used_bytes() == 0 || account.used_bytes() + wanted <= budget {
            return Ok(None);
        }
        let unix_us = self.clock.unix_us();
        let start_us = self.clock.now_us();
        let mut tables = host.tables();
        tables.sort_by_key(|table| table.id);
        let seen = self.seen_heat(&tables, true);
        let (mut inputs, mut origins) = self.inputs(host, &tables, seen.as_ref())?;
        let basis = self.mark(&mut inputs, id);
        let payback_epochs = inputs.payback_epochs;
        let may_leave = |at: usize, segment: &SegmentInput| {
            let idle = || last_use(segment).is_none_or(|epochs| f64::from(epochs) > inputs.payback_epochs);
            let stays = || self.policy.kind() == PolicyKind::Static || segment.duty.preferred == Some(tier);
            let open = || need == Need::Budget || !stays() && idle() && self.heat.read().knows(&segment.key);
            let is_auto = || origin_table(&tables, &origins, at).is_some_and(|t| t.mode == TieringMode::Auto);
            segment.current == tier && segment.duty.allows(inputs.home()) && is_auto() && open()
        };
        let kept: Vec<bool> = inputs.segments.iter().enumerate().map(|(at, segment)| may_leave(at, segment)).collect();
        // What readers still hold of copies that left goes without us.
        let lying: u64 = inputs.segments.iter().filter(|s| s.current == tier).map(|s| s.charged_on(tier)).sum();
        let lacking_bytes = (lying.min(account.used_bytes()) + wanted).saturating_sub(budget);
        let held = set_aside(&mut inputs, &mut origins, &kept);
        let why = |over| match need {
            Need::Budget => over_budget(account.name(), over, budget),
            Need::Load(_) => format!("a load needs {} of {}", bytes(over), account.name()),
        };
        let (plan, spare_bytes) = plan(&inputs, (tier, lacking_bytes), &why);
        if plan.moves.is_empty() {
            return Ok(None);
        }
        let drawn = Drawn::by_hand((inputs, origins, held, basis), plan, self.policy.kind());
        let request = EpochRequest::now(TRIGGER);
        let solve_us = self.clock.now_us().saturating_sub(start_us);
        let mut report =
            EpochReport { epoch: epoch_record(id, unix_us, &request, &drawn, solve_us), moves: Vec::new() };
        report.moves = drawn.records(&report.epoch, &tables);
        // Of what costs say, nothing was asked.
        for (record, less) in report.moves.iter_mut().zip(spare_bytes) {
            (record.price_ns_per_byte, record.runner_up, record.runner_up_us) = (None, None, None);
            record.condition = condition(account.name(), need, less, payback_epochs);
        }
        self.finish(host, &request, (&tables, Some(&drawn)), &mut report)?;
        self.metrics.relieved(&report.epoch);
        tracing::info!(
            tier = account.name(),
            segments = report.epoch.moves_done,
            bytes = report.epoch.moved_bytes,
            "made room at once"
        );
        Ok(Some(report))
    }
}

fn seat(host: &dyn TieringHost, tier: TierId) -> Option<Seat> {
    host.memory_tiers().get(usize::from(tier.0)).map(|tier| tier.seat().clone())
}

/// True when tiers of memory below `tier` have room for all that is too much for it.
fn slower_has_room(host: &dyn TieringHost, tier: TierId) -> bool {
    let memory = host.memory_tiers();
    let mut accounts = memory.iter().skip(usize::from(tier.0)).map(|tier| tier.account());
    let over = accounts.next().map_or(0, |account| account.used_bytes().saturating_sub(account.limit_bytes()));
    let room = accounts.map(|account| account.limit_bytes().saturating_sub(account.used_bytes()));
    room.sum::<u64>() >= over
}

/// What would have left a victim where it lay, for which it would have had to be `less` that was needed.
fn condition(tier: &str, need: Need, less: u64, payback_epochs: f64) -> String {
    let unweighed = "no price and no second tier was weighed, only last use and size";
    match need {
        Need::Budget => format!("stays when {tier} has {} more; {unweighed}", bytes(less)),
        Need::Load(_) => format!(
            "stays when {tier} has {} more free, or when it was read within the last {payback_epochs} epochs; {unweighed}",
            bytes(less),
        ),
    }
}

/// Epochs since a segment was last read; what a running statement is about to read is in use.
fn last_use(segment: &SegmentInput) -> Option<u32> {
    if segment.ahead.total() > 0.0 { Some(0) } else { segment.heat.idle_epochs }
}

/// Segments by cost until `lacking_bytes` are free, without those that turn out not to be needed; and for each by how much
/// less would have to be lacking for it to stay.
fn plan(inputs: &Inputs, (tier, lacking_bytes): (TierId, u64), why: &dyn Fn(u64) -> String) -> (EpochPlan, Vec<u64>) {
    let mut by_use: Vec<(usize, &SegmentInput)> = inputs.segments.iter().enumerate().collect();
    by_use.sort_by(|(_, a), (_, b)| {
        let last = |segment: &SegmentInput| last_use(segment).unwrap_or(u32::MAX);
        last(b).cmp(&last(a)).then(a.heat.total().total_cmp(&b.heat.total())).then(a.key.cmp(&b.key))
    });
    let count = by_use.len();
    let mut victims: Vec<(f64, usize, usize, &SegmentInput)> = (1..)
        .zip(by_use)
        .map(|(place, (at, segment))| {
            let last_use = place as f64 / count as f64;
            // Its home is whole, so nothing has to be written.
            (cost(0, segment.charged_on(tier), last_use), place, at, segment)
        })
        .collect();
    // The less recently used one of two that cost the same.
    victims.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut freed = 0;
    let mut chosen = Vec::new();
    for victim in victims {
        if freed >= lacking_bytes || chosen.len() >= MOST {
            break;
        }
        // With so much less lacking, those before it do.
        let less = lacking_bytes - freed;
        freed += victim.3.charged_on(tier);
        chosen.push((victim, less));
    }
    // Small ones that were used lately cost little and free little.
    chosen.sort_by_key(|(victim, _)| std::cmp::Reverse(victim.1));
    chosen.retain(|((.., segment), _)| {
        let charged = segment.charged_on(tier);
        let is_needed = freed < lacking_bytes + charged;
        freed -= if is_needed { 0 } else { charged };
        is_needed
    });
    chosen.sort_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (chosen, spare_bytes): (Vec<_>, Vec<u64>) = chosen.into_iter().unzip();
    let home = inputs.home();
    let planned = |(cost, place, at, segment): (f64, usize, usize, &SegmentInput)| {
        let benefit_us = reading_us(inputs, segment, tier) - reading_us(inputs, segment, home);
        PlannedMove {
            segment: at,
            from: tier,
            to: home,
            bytes: segment.bytes,
            benefit_us,
            benefit_ns_per_byte: benefit_us * 1e3 / segment.bytes.max(1) as f64,
            reason: format!(
                "{TRIGGER}: {}; costs {}, among the least: nothing to write, {LATENCY_FACTOR} of {} by its place in the \
                 order of last use, {place} of {count}",
                why(lacking_bytes),
                figure(cost),
                bytes(segment.charged_on(tier)),
            ),
        }
    };
    let moves: Vec<PlannedMove> = chosen.into_iter().map(planned).collect();
    let before_us: f64 = inputs.segments.iter().map(|segment| reading_us(inputs, segment, tier)).sum();
    let after_us = before_us - moves.iter().map(|planned| planned.benefit_us).sum::<f64>();
    let left: u64 = moves.iter().filter_map(|m| inputs.segments.get(m.segment)).map(|s| s.charged_on(tier)).sum();
    let price = |(id, tier_input): (u8, &TierInput)| {
        let on = |segment: &&SegmentInput| segment.current == TierId(id);
        let before_bytes = inputs.segments.iter().filter(on).map(|s| s.charged_on(TierId(id))).sum();
        let gone = if TierId(id) == tier { left } else { 0 };
        Some(TierPrice {
            tier: tier_input.name.clone(),
            budget_bytes: tier_input.budget_bytes?,
            before_bytes,
            planned_bytes: before_bytes - gone,
            price_ns_per_byte: 0.0,
        })
    };
    let prices = (0..).zip(&inputs.tiers).filter_map(price).collect();
    let plan = EpochPlan {
        moves,
        before_us,
        after_us,
        objective_us: after_us,
        // Nothing is proven.
        bound_us: 0.0,
        gap: gap(after_us, 0.0),
        method: Method::Ranked,
        prices,
        given_way: Vec::new(),
    };
    (plan, spare_bytes)
}

#[cfg(test)]
mod tests;
