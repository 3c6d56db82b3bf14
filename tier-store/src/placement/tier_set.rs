//! Tiers that come and go while statements run.
//!
//! ```text
//!   add ---> active ---drain---> draining ---(epochs move what lies there)---> drained ---drop---> gone
//!              ^-------------------resume-------------------'
//! ```
//!
//! A tier that is drained is closed: it takes nothing, plans have no room on it, and what lies there goes where the policy
//! finds it best, in epochs like any others. Only a drained one can be dropped, when neither segments nor readers hold a
//! byte of it. A new tier is measured and stands behind those that are about as fast. Positions change under the turn of the
//! loop, and an epoch under way is given up for it: its plan was made for other tiers. All of it holds until the server
//! stops, as budgets do that are set while it serves; copies in memory do not outlive it either.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;

use super::calibrate::{TierProfile, keep_order, measure_tier};
use super::mode::TieringMode;
use super::needs::Needs;
use super::survey::tier_names;
use super::tiering::{Shared, Tiering, TieringHost};
use super::words::bytes;
use crate::error::{Error, Result};
use crate::tier::{Account, MAX_TIERS, MemoryTier, MemoryTiers, TierId, TierKind};

/// Between two looks at an epoch that is to give way.
const SOON: Duration = Duration::from_millis(20);
/// Why the loop goes on at once.
const GIVEN_UP: &str = "an epoch was given up for nothing";

/// Whether a tier takes segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TierState {
    /// It does.
    Active,
    /// It takes nothing more, and still holds something.
    Draining,
    /// It takes nothing more and holds nothing.
    Drained,
}

impl TierState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Active, Self::Draining, Self::Drained];

    /// Lower-case name, as in system tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }

    /// That of a tier with so many segments.
    pub(crate) fn of(account: &Account, segments: u64) -> Self {
        match (account.is_closed(), account.used_bytes() == 0 && segments == 0) {
            (false, _) => Self::Active,
            (true, false) => Self::Draining,
            (true, true) => Self::Drained,
        }
    }
}

/// Names of all tiers that counters know, by their row; the home's is among them.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<String>);

impl Rows {
    /// The rows of the tiers `now`, in this order, and the one that begins anew: that of a tier that is gone, when there
    /// are no others left. A tier that comes back goes on where it was.
    fn arrange(&mut self, before: Vec<String>, now: &[String]) -> (Vec<u8>, Option<u8>) {
        if self.0.is_empty() {
            self.0 = before;
        }
        let mut anew = None;
        for name in now.iter().filter(|name| !self.0.contains(name)).cloned().collect::<Vec<_>>() {
            let gone = self.0.iter().position(|known| !now.contains(known));
            match gone.filter(|_| self.0.len() >= MAX_TIERS) {
                Some(row) => {
                    anew = Some(row as u8);
                    if let Some(known) = self.0.get_mut(row) {
                        *known = name;
                    }
                }
                None => self.0.push(name),
            }
        }
        let row = |name: &String| self.0.iter().position(|known| known == name).unwrap_or(MAX_TIERS) as u8;
        (now.iter().map(row).collect(), anew)
    }
}

impl Tiering {
    /// When tiers came or went last, in microseconds since the Unix epoch; 0 when they never did.
    pub fn tiers_changed_unix_us(&self) -> u64 {
        self.shared.tiers_changed_unix_us.load(Ordering::Relaxed)
    }

    /// Adds a memory tier, empty, with a budget and the largest one it may have later. It is measured; the next epoch, which
    /// is asked for at once, may use it.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] for its name; [`Error::Invalid`] when there are as many tiers as there may be, and when it
    /// takes process memory that there is not beside the budget of DRAM, with the figures.
    pub fn add_tier(&self, tier: Arc<dyn MemoryTier>, budget_bytes: u64, max_budget_bytes: u64) -> Result<()> {
        let shared = &self.shared;
        let host = shared.host()?;
        let host = host.as_ref();
        // No epoch is given up for what is refused.
        shared.check_new(host, tier.as_ref())?;
        let _turn = shared.turn_before(&shared.in_epoch);
        let mut rows = shared.rows.lock();
        shared.check_new(host, tier.as_ref()).inspect_err(|_| shared.wake(GIVEN_UP))?;
        let memory = host.memory_tiers();
        let names = tier_names(host);
        let mut calibration = shared.calibrated(host)?;
        let profile = measure_tier(tier.as_ref(), shared.clock.as_ref());
        tier.account().set_limit_bytes(budget_bytes);
        let at = place(&profile, &calibration.tiers);
        let device = profile.device.clone();
        let measured = profile.measured;
        tracing::info!(tier = tier.name(), position = at, device, measured, "a tier is added");
        calibration.tiers.insert(at, profile);
        // Of the others nothing becomes untrue: they may outlive it.
        keep_order(calibration.tiers.get_mut(..=at).unwrap_or_default());
        let mut tiers = memory.as_ref().clone();
        tiers.insert(at, Arc::clone(&tier));
        shared.change_tiers(host, (names, Arc::new(tiers)), &mut rows, calibration)?;
        shared.share_memory(&memory, |most| most.saturating_sub(tier.memory_bytes()));
        shared.max_budget_bytes.lock().insert(tier.name().to_owned(), max_budget_bytes);
        shared.health.forget(tier.name());
        shared.wake("a tier was added");
        Ok(())
    }

    /// Refuses a tier to come that needs more of the process's memory than there is beside the budget of DRAM.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the figures.
    pub(crate) fn check_memory(&self, name: &str, need_bytes: u64) -> Result<()> {
        self.shared.check_memory(&self.shared.host()?.memory_tiers(), (name, need_bytes))
    }

    /// Nothing more comes to a tier from now on; what lies there leaves with the next epochs, the first of which is asked for
    /// at once. Nothing changes for a tier that is drained already.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the tier; [`Error::Invalid`] for the home, and when placement rules need the room, with the
    /// figures.
    pub fn drain_tier(&self, name: &str) -> Result<()> {
        let _rows = self.shared.rows.lock();
        let host = self.shared.host()?;
        let tier = memory_tier(host.as_ref(), name, "drained")?;
        if tier.account().is_closed() {
            return Ok(());
        }
        let needs = Needs::of(host.as_ref(), &host.tables());
        needs.clone().with_budget(name, 0).check(&needs).map_err(|error| match error {
            Error::Invalid(why) => Error::Invalid(format!("tier '{name}' cannot be drained: {why}")),
            other => other,
        })?;
        tier.account().close();
        tracing::info!(tier = name, bytes = tier.account().used_bytes(), "a tier is drained");
        if self.shared.in_epoch.load(Ordering::Relaxed) {
            self.shared.cancel.store(true, Ordering::Relaxed);
        }
        self.shared.wake("a tier is drained");
        Ok(())
    }

    /// A tier that was drained takes segments again, up to its budget.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the tier.
    pub fn resume_tier(&self, name: &str) -> Result<()> {
        let _rows = self.shared.rows.lock();
        let host = self.shared.host()?;
        let tier = memory_tier(host.as_ref(), name, "resumed")?;
        if tier.account().is_closed() {
            tier.account().open();
            tracing::info!(tier = name, "a tier takes segments again");
            self.shared.wake("a tier takes segments again");
        }
        Ok(())
    }

    /// Takes a drained tier away. Its pool is unmapped when nobody has it any more.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the tier; [`Error::Invalid`] for the home and process memory, for one that was not drained, and
    /// while segments or readers hold bytes of it, with the figures.
    pub fn drop_tier(&self, name: &str) -> Result<()> {
        let shared = &self.shared;
        let host = shared.host()?;
        let host = host.as_ref();
        // While it is being drained, the epoch that does so goes on.
        shared.droppable(host, name)?;
        let _turn = shared.turn_before(&shared.in_epoch);
        let mut rows = shared.rows.lock();
        let tier = shared.droppable(host, name).inspect_err(|_| shared.wake(GIVEN_UP))?;
        let memory = host.memory_tiers();
        let names = tier_names(host);
        let mut calibration = shared.calibrated(host)?;
        calibration.tiers.retain(|profile| profile.name != name);
        let left = memory.iter().filter(|known| known.name() != name).cloned().collect();
        shared.change_tiers(host, (names, Arc::new(left)), &mut rows, calibration)?;
        shared.share_memory(&memory, |most| most + tier.memory_bytes());
        shared.max_budget_bytes.lock().remove(name);
        shared.tier_bytes_per_s.lock().remove(name);
        tracing::info!(tier = name, "a tier is dropped");
        shared.wake("a tier was dropped");
        Ok(())
    }
}

impl Shared {
    /// The turn, for somebody who does not wait for an epoch: while `gives_way` says that one is under way, it ends after the
    /// move it is at. Orders are waited for.
    pub(super) fn turn_before(&self, gives_way: &AtomicBool) -> MutexGuard<'_, Option<u64>> {
        loop {
            if gives_way.load(Ordering::Relaxed) {
                self.cancel.store(true, Ordering::Relaxed);
            }
            if let Some(turn) = self.turn.try_lock_for(SOON) {
                return turn;
            }
        }
    }

    /// Refuses a tier to come for its name, for there being too many, and for want of memory.
    fn check_new(&self, host: &dyn TieringHost, tier: &dyn MemoryTier) -> Result<()> {
        let names = tier_names(host);
        if names.iter().any(|name| name == tier.name()) {
            return Err(Error::AlreadyExists { kind: "tier", name: tier.name().to_owned() });
        }
        if names.len() >= MAX_TIERS {
            let names = names.join(", ");
            return Err(Error::Invalid(format!("there are {MAX_TIERS} tiers, {names}, and there cannot be more")));
        }
        self.check_memory(&host.memory_tiers(), (tier.name(), tier.memory_bytes()))
    }

    /// The tier, if it can be dropped.
    fn droppable(&self, host: &dyn TieringHost, name: &str) -> Result<Arc<dyn MemoryTier>> {
        let tier = memory_tier(host, name, "dropped")?;
        if tier.kind() == TierKind::Dram {
            let what = "is process memory and cannot be dropped; drain it, or set its budget to 0";
            return Err(Error::Invalid(format!("tier '{name}' {what}")));
        }
        self.check_empty(host, tier.as_ref()).map(|()| tier)
    }

    /// These tiers instead of those before, with what is known of them by their positions.
    fn change_tiers(
        &self,
        host: &dyn TieringHost,
        (before, tiers): (Vec<String>, MemoryTiers),
        rows: &mut Rows,
        calibration: super::Calibration,
    ) -> Result<()> {
        let names: Vec<String> =
            tiers.iter().map(|tier| tier.name()).chain([host.home().name()]).map(str::to_owned).collect();
        let position = |id: TierId| {
            let name = before.get(usize::from(id.0))?;
            Some(TierId(names.iter().position(|known| known == name)? as u8))
        };
        host.save_calibration(&calibration)?;
        let (rows, anew) = rows.arrange(before.clone(), &names);
        // Whoever asks something without the turn does so before or after.
        let _questions = self.questions.write();
        let mut known = self.calibration.write();
        host.set_memory_tiers(tiers, (&rows, anew))?;
        self.metrics.rearrange(&rows, anew);
        host.use_calibration(&calibration);
        *known = Some(calibration);
        self.prices.lock().clear();
        self.merging.lock().renumber(position);
        self.pressure.renumber(position);
        self.tiers_changed_unix_us.store(self.clock.unix_us(), Ordering::Relaxed);
        Ok(())
    }

    /// Refuses while somebody holds a byte of a tier, or might.
    fn check_empty(&self, host: &dyn TieringHost, tier: &dyn MemoryTier) -> Result<()> {
        let name = tier.name();
        let account = tier.account();
        let mut segments = 0_u64;
        let mut held = 0;
        let mut kept = false;
        for table in host.tables() {
            let found = table.chunks.iter().flat_map(|entry| entry.chunk.segments.iter());
            let found = found.filter(|s| s.resident.load().as_ref().is_some_and(|r| r.tier == *tier.seat()));
            let (count, sum) = found.fold((0, 0), |(count, sum), segment| (count + 1, sum + segment.bytes()));
            (segments, held) = (segments + count, held + sum);
            kept |= count > 0 && table.mode != TieringMode::Auto;
        }
        let holds = format!("{segments} segment{}, {}", if segments == 1 { "" } else { "s" }, bytes(held));
        if !account.is_closed() {
            return Err(Error::Invalid(format!(
                "tier '{name}' takes segments and holds {holds}; drain it before: ALTER SYSTEM DRAIN TIER {name}"
            )));
        }
        if segments > 0 {
            let control = self.control.read().clone();
            let how = match (control.frozen_unix_us, control.mode) {
                (Some(_), _) => "placement is frozen, they leave after UNFREEZE PLACEMENT",
                (None, TieringMode::Advise) => "tiering is advise, they leave after ALTER SYSTEM SET tiering = auto",
                _ if kept => "tables keep theirs whose tiering is advise or off; ALTER TABLE .. SET (tiering = auto)",
                (None, TieringMode::Off) => "tiering is off, EPOCH NOW moves them",
                (None, TieringMode::Auto) => "they leave with the next epochs, EPOCH NOW runs one",
            };
            return Err(Error::Invalid(format!("tier '{name}' still holds {holds}: {how}")));
        }
        match account.used_bytes() {
            0 => Ok(()),
            used => Err(Error::Invalid(format!(
                "statements still read {} of copies that left tier '{name}'; drop it when they have ended",
                bytes(used)
            ))),
        }
    }

    /// Refuses a tier that needs process memory which DRAM may have.
    fn check_memory(&self, memory: &MemoryTiers, (name, need): (&str, u64)) -> Result<()> {
        let Some(dram) = dram(memory) else { return Ok(()) };
        let Some(most) = self.max_budget_bytes.lock().get(dram.name()).copied() else { return Ok(()) };
        let taken = dram.account().opened_limit_bytes().max(dram.account().used_bytes());
        if need > most.saturating_sub(taken) {
            return Err(Error::Invalid(format!(
                "tier '{}' takes {} of this process's memory: {} and emulated tiers may have {} in all, of which {} are \
                 taken; lower that budget by {} before",
                name,
                bytes(need),
                dram.name(),
                bytes(most),
                bytes(taken),
                bytes(need - most.saturating_sub(taken))
            )));
        }
        Ok(())
    }

    /// The largest budget of DRAM changes.
    fn share_memory(&self, memory: &MemoryTiers, change: impl Fn(u64) -> u64) {
        let most = &mut *self.max_budget_bytes.lock();
        if let Some(most) = dram(memory).and_then(|dram| most.get_mut(dram.name())) {
            *most = change(*most);
        }
    }

    /// Says which tiers held segments when the store was open last, or are named by rules, and are not there now. Nothing is
    /// lost by it.
    pub(super) fn note_missing(&self, host: &dyn TieringHost) -> Result<()> {
        let names = tier_names(host);
        let home = host.home().name();
        let last = host.pictures()?.last().map(|epoch| host.load_picture(*epoch)).transpose()?.flatten();
        for (tier, segments) in last.iter().flat_map(|picture| picture.held()).filter(|(tier, _)| !names.contains(tier))
        {
            tracing::warn!(
                tier,
                segments,
                "a tier that held segments is not configured any more; nothing is lost, they are read from {home} until \
                 epochs bring them elsewhere"
            );
        }
        let mut rules: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for table in host.tables() {
            for rule in table.rules.iter().filter(|rule| !names.contains(&rule.wish.tier)) {
                let named = format!("rule {} of {}", rule.number, table.name);
                rules.entry(rule.wish.tier.clone()).or_default().push(named);
            }
        }
        for (tier, rules) in rules {
            tracing::warn!(
                tier,
                rules = rules.join(", "),
                "placement rules name a tier that is not there; they hold again when there is one of that name"
            );
        }
        Ok(())
    }
}

/// Where a tier stands among those that are measured, the home last: before the first that is clearly slower. Process
/// memory stays first, and what could not be measured is last.
fn place(new: &TierProfile, known: &[TierProfile]) -> usize {
    /// What is not slower by this is about as fast.
    const CLEARLY: f64 = 1.25;
    let sweep_us = |profile: &TierProfile| profile.cost.sweep_us(1 << 20);
    let memory = known.len().saturating_sub(1);
    let slower = |profile: &TierProfile| {
        new.measured && profile.kind != TierKind::Dram && sweep_us(profile) > sweep_us(new) * CLEARLY
    };
    known.iter().take(memory).position(slower).unwrap_or(memory)
}

fn dram(memory: &MemoryTiers) -> Option<&Arc<dyn MemoryTier>> {
    memory.iter().find(|tier| tier.kind() == TierKind::Dram)
}

fn memory_tier(host: &dyn TieringHost, name: &str, done: &str) -> Result<Arc<dyn MemoryTier>> {
    if name == host.home().name() {
        let what = format!("'{name}' is the home of every segment and cannot be {done}");
        return Err(Error::Invalid(what));
    }
    let found = host.memory_tiers().iter().find(|tier| tier.name() == name).map(Arc::clone);
    found.ok_or_else(|| Error::unknown_tier(name, &tier_names(host)))
}

/// Refuses what cannot be the name of a tier in SQL, in a path and as a label.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    match begins && name.len() <= 32 && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "'{name}' cannot be the name of a tier: up to 32 lower-case letters, digits and _, a letter first"
        ))),
    }
}

#[cfg(test)]
mod tests;
