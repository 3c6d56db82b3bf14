//! One round: what was offered is looked at, and what is worth it comes into memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ledger::{Ledger, Now, Stamp, Uses, Victim};
use super::recent::Recent;
use super::tally::{Moved, Tally, Until, Weighed};
use super::{MergeKind, Rank};
use crate::error::{Error, Result};
use crate::heat::decay::SegmentKey;
use crate::migrate::{Failed, Outcome, Relocation, try_move, try_promote};
use crate::placement::epoch::SegmentInput;
use crate::placement::mode::TieringMode;
use crate::placement::policy::PolicyKind;
use crate::placement::record::MoveRecord;
use crate::placement::survey::tier_names;
use crate::placement::tiering::{Shared, TableSnapshot, TieringHost};
use crate::tier::TierId;
use crate::tier::ssd::ReadColumn;

/// How long a ledger is used at least, and for how many times as long as it took to make.
const LEDGER_US: u64 = 1_000_000;
const LEDGER_SHARE: u64 = 50;
/// Offers looked at in one round: an epoch waits no longer than for these.
const ROUND_OFFERS: usize = 16;
/// Segments that make room for one.
const MOST_VICTIMS: usize = 64;
/// The longest sleep between two looks at whether the store closes.
const NAP: Duration = Duration::from_millis(50);

/// What rounds keep.
#[derive(Debug, Default)]
pub(in crate::placement) struct Merging {
    ledger: Option<Ledger>,
    uses: Uses,
    recent: Recent,
    tally: Tally,
    round: i64,
    /// When the rate allows the next copy.
    free_at_us: u64,
}

impl Merging {
    /// Tiers stand elsewhere now.
    pub(in crate::placement) fn renumber(&mut self, position: impl Fn(TierId) -> Option<TierId>) {
        self.ledger = None;
        self.tally.renumber(position);
    }
}

/// There is room for a segment: what it was weighed against, if it was.
struct Room(Option<Weighed>);

/// What became of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Promoted,
    Declined,
}

impl Shared {
    /// Runs rounds until the offers are closed.
    pub(in crate::placement) fn run_merges(&self) {
        while self.offers.wait() {
            match self.merge_round() {
                Ok(()) => {}
                Err(Error::Cancelled) => return,
                Err(error) => {
                    self.forget();
                    tracing::warn!(%error, "what was read does not come into memory before the next epoch");
                }
            }
            let free_at_us = self.merging.lock().free_at_us;
            while let Some(pause_us) = free_at_us.checked_sub(self.clock.now_us()).filter(|us| *us > 0)
                && !self.is_stopping()
            {
                self.clock.sleep(Duration::from_micros(pause_us).min(NAP));
            }
        }
    }

    fn forget(&self) {
        let forgotten = self.offers.forget();
        self.metrics.merge.forgotten.fetch_add(forgotten, Ordering::Relaxed);
    }

    /// Looks at what was offered, unless an epoch or an order has the turn. Fails with [`Error::Cancelled`] when the store
    /// is closing.
    pub(in crate::placement) fn merge_round(&self) -> Result<()> {
        let Some(turn) = self.turn.try_lock() else {
            self.forget();
            return Ok(());
        };
        let host = self.host()?;
        let host = host.as_ref();
        let control = self.control.read().clone();
        let moves = control.is_running() && control.mode == TieringMode::Auto;
        if !moves || self.is_stopping() {
            self.forget();
            return Ok(());
        }
        let mut tables = host.tables();
        tables.sort_by_key(|table| table.id);
        let merging = &mut *self.merging.lock();
        merging.round += 1;
        let mut ledger = self.ledger(host, &tables, *turn, merging)?;
        for _ in 0..ROUND_OFFERS {
            if merging.free_at_us > self.clock.now_us() {
                break;
            }
            let Some(offer) = self.offers.take() else { break };
            for read in &offer.columns {
                let fate = self.consider((host, &tables), (&mut ledger, merging), read);
                let counter = match fate.unwrap_or(Fate::Declined) {
                    Fate::Promoted => &self.metrics.merge.promoted,
                    Fate::Declined => &self.metrics.merge.declined,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        merging.ledger = Some(ledger);
        Ok(())
    }

    /// The ledger, if it is still good, else a new one.
    fn ledger(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        epoch: Option<u64>,
        merging: &mut Merging,
    ) -> Result<Ledger> {
        let stamp = Stamp::of(host, tables, epoch);
        let start_us = self.clock.now_us();
        let old = merging.ledger.take().filter(|ledger| {
            let age_us = start_us.saturating_sub(ledger.built_us);
            ledger.stamp == stamp && age_us <= LEDGER_US.max(ledger.took_us * LEDGER_SHARE)
        });
        if let Some(ledger) = old {
            return Ok(ledger);
        }
        let room_bytes = host.memory_tiers().iter().map(|tier| tier.account().limit_bytes()).sum();
        let past = (epoch, self.options.half_life_epochs);
        merging.recent.turn(tables, room_bytes, past, &self.heat.read());
        let (mut inputs, origins) = self.inputs(host, tables, None)?;
        inputs.segments.iter_mut().for_each(|segment| segment.heat = merging.recent.heat(&segment.key));
        self.mark(&mut inputs, epoch.unwrap_or(0) + 1);
        let rates = self.calibrated(host)?.rates();
        let options = &self.options.merge;
        let rank = Rank::of(options.kind, self.policy.kind());
        let now = Now { host, recent: &merging.recent, round: merging.round };
        let uses = (&mut merging.uses, &now);
        let mut ledger = Ledger::of((inputs, &origins), (stamp, tables), (rank, options, rates), uses);
        ledger.built_us = self.clock.now_us();
        ledger.took_us = ledger.built_us.saturating_sub(start_us);
        Ok(ledger)
    }

    /// Brings a column into memory if that is worth it; `None` when it is no longer of interest.
    fn consider(
        &self,
        (host, tables): (&dyn TieringHost, &[TableSnapshot]),
        (ledger, merging): (&mut Ledger, &mut Merging),
        read: &ReadColumn,
    ) -> Option<Fate> {
        let chunk = &read.chunk;
        let options = &self.options.merge;
        let segment = chunk.segments.get(read.column)?;
        let table = tables.iter().find(|table| table.id == chunk.table && table.mode == TieringMode::Auto)?;
        let mut columns = table.chunks.first()?.chunk.columns().iter();
        let is_known = segment.column.mark().is_some() || columns.any(|known| known.column == segment.column);
        let is_there = is_known && !chunk.is_doomed();
        if !is_there || segment.constant.is_some() || segment.resident.load().is_some() {
            return None;
        }
        let recent = merging.recent.clone();
        let now = Now { host, recent: &recent, round: merging.round };
        let duty = ledger.duty(&SegmentKey::of(chunk, segment))?;
        let input = ledger.input(chunk, segment, duty, &now);
        let is_worth_it = match options.kind {
            MergeKind::Never => false,
            MergeKind::Always => read.bytes.is_some(),
            MergeKind::Selective => ledger.is_top(&input),
        };
        let home = TierId(host.memory_tiers().len() as u8);
        // What was read already needs its device no more.
        if !is_worth_it || read.bytes.is_none() && !self.is_well(host, home) {
            return Some(Fate::Declined);
        }
        for tier in (0..home.0).map(TierId) {
            let open = duty.allows(tier) && duty.preferred.is_none_or(|preferred| preferred == tier);
            let open = open && self.is_well(host, tier);
            let room = open.then(|| self.make_room((&now, tier), (ledger, merging), &input)).flatten();
            if let Some(room) = room {
                return Some(self.promote((&now, tier), (ledger, merging), (read, &input, room)));
            }
        }
        Some(Fate::Declined)
    }

    /// What a segment was weighed against, when there is room for it on a tier, or was made; `None`: it has none.
    fn make_room(
        &self,
        (now, tier): (&Now<'_>, TierId),
        (ledger, merging): (&mut Ledger, &mut Merging),
        input: &SegmentInput,
    ) -> Option<Room> {
        let memory = now.host.memory_tiers();
        let target = memory.get(usize::from(tier.0))?;
        let account = target.account();
        let charged_bytes = input.charged_on(tier);
        if charged_bytes > account.limit_bytes() {
            return None;
        }
        let lacking_bytes = (account.used_bytes() + charged_bytes).saturating_sub(account.limit_bytes());
        let worth_us = match self.options.merge.kind {
            MergeKind::Selective => ledger.net_us(input, tier),
            _ => f64::INFINITY,
        };
        let weighed = |lost_us: f64| worth_us.is_finite().then_some(Weighed { lost_us, margin_us: worth_us - lost_us });
        if lacking_bytes == 0 || worth_us <= 0.0 {
            return (worth_us > 0.0).then(|| Room(weighed(0.0)));
        }
        // What lies somewhere stays there under this one.
        if self.policy.kind() == PolicyKind::Static {
            return None;
        }
        let mut victims = Vec::new();
        let mut freed_bytes = 0;
        let mut lost_us = 0.0;
        while freed_bytes < lacking_bytes && lost_us < worth_us && victims.len() < MOST_VICTIMS {
            let Some(victim) = ledger.pop(tier, (&mut merging.uses, now)) else { break };
            freed_bytes += victim.charged_bytes;
            lost_us += victim.benefit_us.max(0.0);
            victims.push(victim);
        }
        if freed_bytes < lacking_bytes || lost_us >= worth_us {
            victims.into_iter().for_each(|victim| ledger.push(tier, victim.place));
            return None;
        }
        victims.into_iter().for_each(|victim| self.evict((now, tier), (ledger, merging), victim));
        // Somebody may still read what lay there.
        target.has_room(input.bytes).then(|| Room(weighed(lost_us)))
    }

    /// Takes a segment off its tier: to a slower one in memory with free room, else to its home.
    fn evict(&self, (now, from): (&Now<'_>, TierId), (ledger, merging): (&mut Ledger, &mut Merging), victim: Victim) {
        let Victim { place, chunk, bytes, .. } = victim;
        let memory = now.host.memory_tiers();
        let Some(segment) = chunk.segments.get(place.column) else { return };
        let slower = memory.iter().skip(usize::from(from.0) + 1);
        let open = slower.map(|tier| (tier.id(), tier)).filter(|(id, t)| place.duty.allows(*id) && t.has_room(bytes));
        let mut open = open.filter(|(id, _)| [from, *id].into_iter().all(|tier| self.is_well(now.host, tier)));
        let to = open.next().map_or(TierId(memory.len() as u8), |(id, _)| id);
        let input = ledger.input(&chunk, segment, place.duty, now);
        let loss_us = ledger.benefit_us(&input, from) - ledger.benefit_us(&input, to);
        let relocation = Relocation { chunk: Arc::clone(&chunk), column: place.column, from, to };
        let start_us = self.clock.now_us();
        match try_move(&memory, now.host.home(), &relocation) {
            Ok(Outcome::Moved) => {
                let took_us = self.clock.now_us().saturating_sub(start_us);
                let benefit_us = -loss_us;
                let unix_us = self.clock.unix_us();
                merging.tally.add((from, to), Moved { bytes, benefit_us, weighed: None, unix_us, took_us });
                self.metrics.moved(from, to, bytes);
                self.metrics.merge.made_room.fetch_add(1, Ordering::Relaxed);
                self.metrics.merge.made_room_bytes.fetch_add(bytes, Ordering::Relaxed);
                ledger.sank(to, place);
            }
            Ok(Outcome::Full | Outcome::Stale(_) | Outcome::Gone) => {}
            Err(failed) => self.note_failure(now.host, &failed, "a segment does not make room"),
        }
    }

    /// True while nothing is wrong with the device of a tier. One that fails is tried out by epochs.
    fn is_well(&self, host: &dyn TieringHost, tier: TierId) -> bool {
        tier_names(host).get(usize::from(tier.0)).is_none_or(|name| self.health.failing(name).is_none())
    }

    fn note_failure(&self, host: &dyn TieringHost, failed: &Failed, what: &'static str) {
        if let Some(name) = tier_names(host).get(usize::from(failed.at.0)) {
            self.health.failed(name, &failed.error, self.clock.as_ref());
        }
        tracing::debug!(error = %failed.error, "{what}");
    }

    /// Copies what was read, or reads the rest of it, and swaps.
    fn promote(
        &self,
        (now, to): (&Now<'_>, TierId),
        (ledger, merging): (&mut Ledger, &mut Merging),
        (read, input, Room(weighed)): (&ReadColumn, &SegmentInput, Room),
    ) -> Fate {
        let memory = now.host.memory_tiers();
        let home = now.host.home();
        let from = TierId(memory.len() as u8);
        let relocation = Relocation { chunk: Arc::clone(&read.chunk), column: read.column, from, to };
        let start_us = self.clock.now_us();
        let moved = match &read.bytes {
            Some(_) => try_promote(&memory, &relocation, read),
            None => try_move(&memory, home, &relocation),
        };
        if let Err(failed) = &moved {
            self.note_failure(now.host, failed, "a segment does not come into memory");
        }
        if !matches!(moved, Ok(Outcome::Moved)) {
            return Fate::Declined;
        }
        let names = tier_names(now.host);
        let used = [Some(to), read.bytes.is_none().then_some(from)];
        let used = used.into_iter().flatten().filter_map(|tier| names.get(usize::from(tier.0)));
        let now_us = self.clock.now_us();
        let mut rate = None;
        for name in used {
            self.health.did(name, self.clock.as_ref());
            rate = rate.into_iter().chain(self.rate_limit(name)).min();
        }
        if let Some(rate) = rate {
            merging.free_at_us = merging.free_at_us.max(start_us) + input.bytes * 1_000_000 / rate.max(1);
        }
        let benefit_us = ledger.benefit_us(input, to);
        let took_us = now_us.saturating_sub(start_us);
        let bytes = input.bytes;
        let unix_us = self.clock.unix_us();
        merging.tally.add((from, to), Moved { bytes, benefit_us, weighed, unix_us, took_us });
        self.metrics.moved(from, to, input.bytes);
        self.metrics.merge.promoted_bytes.fetch_add(input.bytes, Ordering::Relaxed);
        ledger.promoted((&read.chunk, read.column), (input, to), (&mut merging.uses, now));
        Fate::Promoted
    }

    /// What rounds did since the last call, to be logged; the numbers of the rows begin at `first`.
    pub(in crate::placement) fn merged(&self, host: &dyn TieringHost, until: Until, first: usize) -> Vec<MoveRecord> {
        let options = &self.options.merge;
        let names = tier_names(host);
        let name = |tier: TierId| names.get(usize::from(tier.0)).cloned().unwrap_or_default();
        let rank = Rank::of(options.kind, self.policy.kind());
        self.merging.lock().tally.rows((options, rank), (until, first as u32), name)
    }
}
