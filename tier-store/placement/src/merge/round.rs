//! A merge round: promotes those of the offered columns that save more time than the segments that they evict.
//!
//! What a selective round brings into free room because it was read once is a guess, and its copy takes new pages, which the
//! kernel clears. So it takes idle processor time only ([`FirstReads`]): the scan that reads it is not to pay for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use terrace_model::{Account, Error, Result, TierId, TieringMode};
use terrace_storage::io::{Priority, with_priority};
use terrace_storage::migrate::{Outcome, Relocation, try_move, try_promote};
use terrace_storage::tier::MemoryTier;
use terrace_storage::tier::reader::ReadColumn;

use super::ledger::{LastUses, Ledger, LedgerOptions, RoundContext, Stamp, Victim};
use super::recent::{MemoryRoom, RecentHeat};
use super::tally::{Direction, LogPoint, Moved, Tally, Tradeoff};
use super::{MergeKind, Rank};
use crate::epoch::SegmentInput;
use crate::heat::decay::SegmentKey;
use crate::place::Place;
use crate::policy::PolicyKind;
use crate::record::MoveRecord;
use crate::shared::Shared;
use crate::survey::{ByteWeights, tier_names};
use crate::tiering::{TableSnapshot, TieringHost};

/// Minimum time for which a ledger is used.
const LEDGER_US: u64 = 1_000_000;
/// A ledger is used for this number of times as long as it took to build, if that is longer.
const LEDGER_SHARE: u64 = 50;
/// Maximum number of offers that one round handles: it bounds the time that an epoch waits for the round.
const ROUND_OFFERS: usize = 16;
/// Maximum number of segments that one promotion evicts.
const MAX_VICTIMS: usize = 64;
/// The longest sleep between two checks whether the store closes.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// The state of merging between rounds.
#[derive(Debug, Default)]
pub(crate) struct MergeState {
    ledger: Option<Ledger>,
    last_uses: LastUses,
    recent: RecentHeat,
    tally: Tally,
    round: i64,
    /// Time from which the rate limit allows the next copy.
    free_at_us: u64,
    /// Time from which columns that were read once are looked at again.
    first_reads_from_us: u64,
}

impl MergeState {
    /// Adapts to new positions of the tiers.
    pub(crate) fn renumber(&mut self, position: impl Fn(TierId) -> Option<TierId>) {
        self.ledger = None;
        self.tally.renumber(position);
    }
}

/// The thread that copies columns which a selective round would bring because of their first read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstReads {
    /// The calling one, as for all others: for simulations, in which no time passes meanwhile.
    ByCaller,
    /// One of [`Priority::Moving`], which the round waits for. Then such columns are dropped for as long as that took: so
    /// on busy processors, where it may take a second, an epoch gets its turn.
    InIdleTime,
}

/// Room for a segment on a tier; `None`: the room was free, so no other segment was compared with it.
struct Room(Option<Tradeoff>);

/// The inputs and the state of one round.
struct Round<'a> {
    shared: &'a Shared,
    host: &'a dyn TieringHost,
    tables: &'a [TableSnapshot],
    ledger: &'a mut Ledger,
    state: &'a mut MergeState,
}

/// The decision about an offered column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Promoted,
    Declined,
}

/// Bytes that segments must free on a tier before it has room for `charged_bytes` more; `None` when it takes no segment of
/// that size at all. The bytes of temporary data count as free.
fn bytes_to_free(account: &Account, charged_bytes: u64) -> Option<u64> {
    if charged_bytes > account.limit_bytes() || account.is_yielding() {
        return None;
    }
    let placed_bytes = account.used_bytes().saturating_sub(account.lent_bytes());
    Some((placed_bytes + charged_bytes).saturating_sub(account.limit_bytes()))
}

impl Shared {
    /// Runs rounds until the offers are closed.
    pub(crate) fn run_merges(&self) {
        while self.merger.offers().wait() {
            match self.merge_round(FirstReads::InIdleTime) {
                Ok(()) => {}
                Err(Error::Cancelled) => return,
                Err(error) => {
                    self.forget();
                    tracing::warn!(%error, "a merge round failed; no column is promoted before the next epoch");
                }
            }
            let free_at_us = self.merger.lock_state().free_at_us;
            while let Some(pause_us) = free_at_us.checked_sub(self.clock.now_us()).filter(|us| *us > 0)
                && !self.controller.is_stopping()
            {
                self.clock.sleep(Duration::from_micros(pause_us).min(MAX_SLEEP));
            }
        }
    }

    fn forget(&self) {
        let forgotten = self.merger.offers().forget();
        self.metrics.merge.forgotten.fetch_add(forgotten, Ordering::Relaxed);
    }

    /// Handles the offers, or discards them while an epoch or an order holds the epoch mutex. Fails with
    /// [`Error::Cancelled`] when the store is closing.
    pub(crate) fn merge_round(&self, first_reads: FirstReads) -> Result<()> {
        let Some(last_epoch) = self.controller.try_lock_epoch() else {
            self.forget();
            return Ok(());
        };
        let host = self.host()?;
        let host = host.as_ref();
        let control = self.controller.settings();
        let moves = control.is_running() && control.mode == TieringMode::Auto;
        if !moves || self.controller.is_stopping() {
            self.forget();
            return Ok(());
        }
        let mut tables = host.tables();
        tables.sort_by_key(|table| table.id);
        let state = &mut *self.merger.lock_state();
        state.round += 1;
        for _ in 0..ROUND_OFFERS {
            if state.free_at_us > self.clock.now_us() {
                break;
            }
            let Some(offer) = self.merger.offers().take() else { break };
            let now = RoundContext { host, recent: &state.recent, round: state.round };
            // Most offers of a scan of more than memory holds end here, without the survey that a ledger needs.
            if !offer.columns.iter().any(|read| self.may_promote(&now, &tables, read)) {
                self.metrics.merge.declined.fetch_add(offer.columns.len() as u64, Ordering::Relaxed);
                continue;
            }
            let mut ledger = self.ledger(host, &tables, *last_epoch, state)?;
            let idle_only = first_reads == FirstReads::InIdleTime && self.are_first_reads(state, &offer.columns);
            if idle_only && state.first_reads_from_us > self.clock.now_us() {
                self.metrics.merge.forgotten.fetch_add(offer.columns.len() as u64, Ordering::Relaxed);
            } else {
                let mut round = Round { shared: self, host, tables: &tables, ledger: &mut ledger, state: &mut *state };
                match idle_only {
                    true => round.consider_in_idle_time(&offer.columns)?,
                    false => round.consider_all(&offer.columns),
                }
            }
            state.ledger = Some(ledger);
        }
        Ok(())
    }

    /// False for a column that no ledger would promote: no tier has free room for it, and nothing is evicted for it, as it
    /// has no earlier reads. Columns of tables with rules may be promoted, as rules may prefer memory for them.
    fn may_promote(&self, now: &RoundContext<'_>, tables: &[TableSnapshot], read: &ReadColumn) -> bool {
        let ReadColumn { chunk, column, .. } = read;
        let Some(segment) = chunk.segments.get(*column) else { return false };
        let bytes = segment.bytes_in(now.host.form().smallest()) as usize;
        let has_rules = || tables.iter().any(|table| table.id == chunk.table && !table.rules.is_empty());
        let has_room = |tier: &Arc<dyn MemoryTier>| bytes_to_free(tier.account(), tier.charged_bytes(bytes)) == Some(0);
        self.options.merge.kind != MergeKind::Selective
            || now.host.memory_tiers().iter().any(has_room)
            || now.recent.was_read_before(chunk, segment)
            || has_rules()
    }

    /// True for columns of which a selective round knows no reads before the one that offers them.
    fn are_first_reads(&self, state: &MergeState, columns: &[ReadColumn]) -> bool {
        let was_read_before = |read: &ReadColumn| {
            let segment = read.chunk.segments.get(read.column);
            segment.is_some_and(|segment| state.recent.was_read_before(&read.chunk, segment))
        };
        self.options.merge.kind == MergeKind::Selective && !columns.iter().any(was_read_before)
    }

    /// Takes the ledger of the last round if it is still valid, else builds a new one.
    fn ledger(
        &self,
        host: &dyn TieringHost,
        tables: &[TableSnapshot],
        epoch: Option<u64>,
        state: &mut MergeState,
    ) -> Result<Ledger> {
        let stamp = Stamp::for_tables(host, tables, epoch);
        let start_us = self.clock.now_us();
        let old = state.ledger.take().filter(|ledger| {
            let age_us = start_us.saturating_sub(ledger.built_us);
            ledger.stamp == stamp && age_us <= LEDGER_US.max(ledger.took_us * LEDGER_SHARE)
        });
        if let Some(ledger) = old {
            return Ok(ledger);
        }
        let bytes = host.memory_tiers().iter().map(|tier| tier.account().limit_bytes()).sum();
        let room = MemoryRoom { bytes, form: host.form() };
        let half_life_epochs = self.options.half_life_epochs;
        state.recent.end_interval(tables, room, epoch, half_life_epochs, &self.planner.read_heat());
        let (mut inputs, origins) = self.inputs(host, tables, None)?;
        inputs.segments.iter_mut().for_each(|segment| segment.heat = state.recent.heat(&segment.key));
        self.planner.mark(&mut inputs, epoch.unwrap_or(0) + 1);
        let merge = &self.options.merge;
        let options = LedgerOptions {
            stamp,
            rank: Rank::for_options(merge.kind, self.planner.policy().kind()),
            weights: ByteWeights { rates: self.planner.calibration().for_tiers(host)?.rates(), form: host.form() },
            top_percent: merge.top_percent,
        };
        let now = RoundContext { host, recent: &state.recent, round: state.round };
        let mut ledger = Ledger::from_survey(inputs, &origins, tables, options, &mut state.last_uses, &now);
        ledger.built_us = self.clock.now_us();
        ledger.took_us = ledger.built_us.saturating_sub(start_us);
        Ok(ledger)
    }

    /// The rows of the log for the moves of rounds since the last call; their numbers begin at `first`.
    pub(crate) fn merge_records(&self, host: &dyn TieringHost, at: LogPoint, first: usize) -> Vec<MoveRecord> {
        let options = &self.options.merge;
        let names = tier_names(host);
        let name = |tier: TierId| names.get(usize::from(tier.0)).cloned().unwrap_or_default();
        let rank = Rank::for_options(options.kind, self.planner.policy().kind());
        self.merger.lock_state().tally.rows(options, rank, at, first as u32, name)
    }
}

impl Round<'_> {
    /// Promotes those columns of an offer that save time by it, and counts what became of each.
    fn consider_all(&mut self, columns: &[ReadColumn]) {
        let shared = self.shared;
        let counts = &shared.metrics.merge;
        for read in columns {
            let counter = match self.consider(read).unwrap_or(Decision::Declined) {
                Decision::Promoted => &counts.promoted,
                Decision::Declined => &counts.declined,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Like [`Self::consider_all`], on a thread that gets idle time only. Fails when the process may have no more threads.
    fn consider_in_idle_time(&mut self, columns: &[ReadColumn]) -> Result<()> {
        let shared = self.shared;
        let start_us = shared.clock.now_us();
        with_priority(Priority::Moving, || self.consider_all(columns))?;
        let now_us = shared.clock.now_us();
        self.state.first_reads_from_us = now_us + now_us.saturating_sub(start_us);
        Ok(())
    }

    /// Promotes a column if that saves time; `None` when the column cannot be promoted any more.
    fn consider(&mut self, read: &ReadColumn) -> Option<Decision> {
        let chunk = &read.chunk;
        let options = &self.shared.options.merge;
        let segment = chunk.segments.get(read.column)?;
        let table = self.tables.iter().find(|table| table.id == chunk.table && table.mode == TieringMode::Auto)?;
        let mut columns = table.chunks.first()?.chunk.columns().iter();
        let is_known = segment.column.mark().is_some() || columns.any(|known| known.column == segment.column);
        let is_there = is_known && !chunk.is_marked_for_deletion();
        if !is_there || segment.constant.is_some() || segment.resident.load().is_some() {
            return None;
        }
        let recent = self.state.recent.clone();
        let now = RoundContext { host: self.host, recent: &recent, round: self.state.round };
        let constraints = self.ledger.constraints(&SegmentKey::for_segment(chunk, segment))?;
        let input = self.ledger.input(chunk, segment, constraints, &now);
        let is_worth_it = match options.kind {
            MergeKind::Never => false,
            MergeKind::Always => read.bytes.is_some(),
            MergeKind::Selective => self.ledger.is_top(&input),
        };
        let home = TierId(self.host.memory_tiers().len() as u8);
        // A column that was read completely is promoted from those bytes, without the home device.
        if !is_worth_it || read.bytes.is_none() && !self.shared.mover.is_well(self.host, home) {
            return Some(Decision::Declined);
        }
        for tier in (0..home.0).map(TierId) {
            let open = constraints.allows(tier) && constraints.preferred.is_none_or(|preferred| preferred == tier);
            let open = open && self.shared.mover.is_well(self.host, tier);
            let Some(place) = open.then(|| self.promotion_place(tier, &input)) else { continue };
            if let Some(room) = self.make_room(&now, place, &input) {
                return Some(self.promote(&now, place, read, &input, room));
            }
        }
        Some(Decision::Declined)
    }

    /// The form in which a segment comes to a tier: the plain one where it saves more time, its making included, and there is free
    /// room for it, else the one that takes fewer bytes. Nothing is evicted for a larger copy; the next epoch weighs both. Under a
    /// policy that does not weigh forms it is the smaller one, which an epoch would choose, too.
    fn promotion_place(&self, tier: TierId, input: &SegmentInput) -> Place {
        let smallest = input.usual_place(tier);
        let plain = Place::plain(tier);
        let memory = self.host.memory_tiers();
        let account = memory.get(usize::from(tier.0)).map(|tier| tier.account());
        let has_room = || account.is_some_and(|account| bytes_to_free(account, input.charged_at(plain)) == Some(0));
        let saves_more = || self.ledger.net_us(input, plain) > self.ledger.net_us(input, smallest);
        let is_weighed = self.shared.planner.policy().kind().uses_costs() && input.allows_form(plain);
        if is_weighed && has_room() && saves_more() { plain } else { smallest }
    }

    /// Finds or makes room for a segment on a tier; `None` when there is none, or the evicted segments would lose more.
    ///
    /// A selective round counts the read that offers the segment where room is free, and leaves it out where other segments
    /// have to leave: one read does not tell that another will follow. So a scan that runs once evicts nothing, neither
    /// what others read nor what it has promoted itself.
    fn make_room(&mut self, now: &RoundContext<'_>, place: Place, input: &SegmentInput) -> Option<Room> {
        let tier = place.tier;
        let memory = self.host.memory_tiers();
        let target = memory.get(usize::from(tier.0))?;
        let account = target.account();
        let bytes = input.image_bytes(place.form);
        let charged_bytes = input.charged_at(place);
        let lacking_bytes = bytes_to_free(account, charged_bytes)?;
        // No segment goes for temporary data: these leave.
        if !target.has_room(bytes) && account.recall(charged_bytes) && lacking_bytes == 0 {
            return None;
        }
        let worth_us = match self.shared.options.merge.kind {
            MergeKind::Selective if lacking_bytes == 0 => self.ledger.net_us(input, place),
            MergeKind::Selective => {
                let heat = now.recent.without_last_read(&input.heat);
                self.ledger.net_us(&SegmentInput { heat, ..input.clone() }, place)
            }
            MergeKind::Never | MergeKind::Always => f64::INFINITY,
        };
        let tradeoff =
            |lost_us: f64| worth_us.is_finite().then_some(Tradeoff { lost_us, margin_us: worth_us - lost_us });
        if lacking_bytes == 0 || worth_us <= 0.0 {
            return (worth_us > 0.0).then(|| Room(tradeoff(0.0)));
        }
        // Under the policy `static` no segment leaves its tier.
        if self.shared.planner.policy().kind() == PolicyKind::Static {
            return None;
        }
        let mut victims = Vec::new();
        let mut freed_bytes = 0;
        let mut lost_us = 0.0;
        while freed_bytes < lacking_bytes && lost_us < worth_us && victims.len() < MAX_VICTIMS {
            let Some(victim) = self.ledger.pop(tier, &mut self.state.last_uses, now) else { break };
            freed_bytes += victim.charged_bytes;
            lost_us += victim.benefit_us.max(0.0);
            victims.push(victim);
        }
        if freed_bytes < lacking_bytes || lost_us >= worth_us {
            victims.into_iter().for_each(|victim| self.ledger.push(tier, victim.candidate));
            return None;
        }
        victims.into_iter().for_each(|victim| self.evict(now, tier, victim));
        // Readers may still hold the evicted copies, whose bytes are not free then.
        target.has_room(bytes).then(|| Room(tradeoff(lost_us)))
    }

    /// Moves a segment off its tier: to a slower memory tier with free room, in the form that it has, else to its home.
    fn evict(&mut self, now: &RoundContext<'_>, from: TierId, victim: Victim) {
        let Victim { candidate, chunk, bytes, .. } = victim;
        let shared = self.shared;
        let memory = self.host.memory_tiers();
        let Some(segment) = chunk.segments.get(candidate.column) else { return };
        let input = self.ledger.input(&chunk, segment, candidate.constraints, now);
        let form = input.form;
        let slower = memory.iter().skip(usize::from(from.0) + 1);
        let is_open = |(id, tier): &(TierId, &Arc<dyn MemoryTier>)| {
            let place = Place { tier: *id, form };
            candidate.constraints.allows(*id) && input.allows_form(place) && tier.has_room(bytes)
        };
        let open = slower.map(|tier| (tier.id(), tier)).filter(is_open);
        let mut open = open.filter(|(id, _)| [from, *id].into_iter().all(|tier| shared.mover.is_well(now.host, tier)));
        let home = TierId(memory.len() as u8);
        let to = open.next().map_or(Place::plain(home), |(tier, _)| Place { tier, form });
        let loss_us = self.ledger.benefit_us(&input, input.place()) - self.ledger.benefit_us(&input, to);
        let to = to.tier;
        let relocation = Relocation { chunk: Arc::clone(&chunk), column: candidate.column, from, to, form };
        let start_us = shared.clock.now_us();
        match try_move(&memory, self.host.home(), &relocation) {
            Ok(Outcome::Moved) => {
                let took_us = shared.clock.now_us().saturating_sub(start_us);
                let benefit_us = -loss_us;
                let unix_us = shared.clock.unix_us();
                let moved = Moved { bytes, benefit_us, tradeoff: None, unix_us, took_us };
                self.state.tally.add(Direction { from, to }, moved);
                shared.metrics.count_move(from, to, bytes, took_us);
                shared.metrics.merge.made_room.fetch_add(1, Ordering::Relaxed);
                shared.metrics.merge.made_room_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.ledger.note_demotion(to, candidate);
            }
            Ok(Outcome::Full | Outcome::Stale(_) | Outcome::Gone) => {}
            Err(failed) => shared.mover.note_failure(self.host, &failed, "could not move a segment to make room"),
        }
    }

    /// Copies a column to a tier, from the bytes that were read or by a new read, and swaps the segment to the copy.
    fn promote(
        &mut self,
        now: &RoundContext<'_>,
        place: Place,
        read: &ReadColumn,
        input: &SegmentInput,
        room: Room,
    ) -> Decision {
        let Room(tradeoff) = room;
        let Place { tier: to, form } = place;
        let bytes = input.image_bytes(form);
        let shared = self.shared;
        let memory = self.host.memory_tiers();
        let home = self.host.home();
        let from = TierId(memory.len() as u8);
        let relocation = Relocation { chunk: Arc::clone(&read.chunk), column: read.column, from, to, form };
        let start_us = shared.clock.now_us();
        let moved = match &read.bytes {
            Some(_) => try_promote(&memory, &relocation, read),
            None => try_move(&memory, home, &relocation),
        };
        if let Err(failed) = &moved {
            shared.mover.note_failure(self.host, failed, "could not promote a segment");
        }
        if !matches!(moved, Ok(Outcome::Moved)) {
            return Decision::Declined;
        }
        let names = tier_names(self.host);
        let used = [Some(to), read.bytes.is_none().then_some(from)];
        let used = used.into_iter().flatten().filter_map(|tier| names.get(usize::from(tier.0)));
        let now_us = shared.clock.now_us();
        let mut rate = None;
        for name in used {
            shared.mover.note_success(name);
            rate = rate.into_iter().chain(shared.mover.rate_limit(name)).min();
        }
        if let Some(rate) = rate {
            let free_at_us = self.state.free_at_us.max(start_us);
            self.state.free_at_us = free_at_us + bytes * 1_000_000 / rate.max(1);
        }
        let benefit_us = self.ledger.benefit_us(input, place);
        let took_us = now_us.saturating_sub(start_us);
        let unix_us = shared.clock.unix_us();
        self.state.tally.add(Direction { from, to }, Moved { bytes, benefit_us, tradeoff, unix_us, took_us });
        shared.metrics.count_move(from, to, bytes, took_us);
        shared.metrics.merge.promoted_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.ledger.note_promotion(read, input, place, &mut self.state.last_uses, now);
        Decision::Promoted
    }
}
