//! Adding, draining, resuming and dropping memory tiers while statements run.
//!
//! ```text
//!   add ---> active ---drain---> draining ---(epochs move what lies there)---> drained ---drop---> gone
//!              ^-------------------resume-------------------'
//! ```
//!
//! A tier that is drained is closed: it accepts no segment, plans have no room on it, and ordinary epochs move its
//! segments to the tiers that the policy chooses. Only a drained tier can be dropped, when neither segments nor readers
//! hold a byte of it. A new tier is measured and comes after those that are about as fast in the order of tiers. The
//! positions of tiers change under the epoch mutex, and an epoch under way is cancelled first: its plan was made for
//! other tiers. Changes last until the server stops, like budgets that are set while it runs; copies in memory do not
//! outlive it either.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use terrace_model::{Account, Error, MAX_TIERS, Result, TierId, TierKind, TieringMode};
use terrace_storage::tier::{MemoryTier, MemoryTiers};

use super::calibrate::{TierProfile, keep_order, measure_tier};
use super::controller::Interruptible;
use super::feasibility::Feasibility;
use super::format::bytes;
use super::lock_order::OrderedMutexGuard;
use super::shared::Shared;
use super::survey::{all_tier_names, tier_names};
use super::tiering::{Tiering, TieringHost};

/// Interval at which a thread that waits for an epoch to end cancels it again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Trigger of the epoch that replaces one that was cancelled for a change of tiers, when the change was refused.
const CANCELLED_IN_VAIN: &str = "an epoch was cancelled for a refused change";

/// Whether a tier takes segments. active: it does; yielding: it takes none while running statements need its memory;
/// draining: it takes none and still holds some; drained: it takes none and holds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TierState {
    /// The tier takes segments.
    Active,
    /// The tier takes no segments while running statements need its memory.
    Yielding,
    /// The tier takes no more segments, and still holds some.
    Draining,
    /// The tier takes no more segments, and holds none.
    Drained,
}

impl TierState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Active, Self::Yielding, Self::Draining, Self::Drained];

    /// Lower-case name, as in system tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Yielding => "yielding",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }

    /// The state of a tier with this account and number of segments.
    pub fn for_account(account: &Account, segments: u64) -> Self {
        match (account.is_closed(), account.used_bytes() == 0 && segments == 0) {
            (false, _) if account.is_yielding() => Self::Yielding,
            (false, _) => Self::Active,
            (true, false) => Self::Draining,
            (true, true) => Self::Drained,
        }
    }
}

/// Names of the tiers that have a row of counters, by row; the home is among them.
#[derive(Debug, Default)]
pub(super) struct CounterRows(Vec<String>);

impl CounterRows {
    /// The rows of the tiers `now`, in this order, and the row to reset, if any: that of a tier that is gone, reused when
    /// all rows are taken. A tier that comes back continues in its row.
    fn arrange(&mut self, before: Vec<String>, now: &[String]) -> (Vec<u8>, Option<u8>) {
        if self.0.is_empty() {
            self.0 = before;
        }
        let mut reset = None;
        for name in now.iter().filter(|name| !self.0.contains(name)).cloned().collect::<Vec<_>>() {
            let gone = self.0.iter().position(|known| !now.contains(known));
            match gone.filter(|_| self.0.len() >= MAX_TIERS) {
                Some(row) => {
                    reset = Some(row as u8);
                    if let Some(known) = self.0.get_mut(row) {
                        *known = name;
                    }
                }
                None => self.0.push(name),
            }
        }
        let row = |name: &String| self.0.iter().position(|known| known == name).unwrap_or(MAX_TIERS) as u8;
        (now.iter().map(row).collect(), reset)
    }
}

impl Tiering {
    /// Time of the last change of the set of tiers, in microseconds since the Unix epoch; 0 when there was none.
    pub fn tiers_changed_unix_us(&self) -> u64 {
        self.shared.controller.tiers_changed_unix_us()
    }

    /// Adds an empty memory tier with a budget, and the largest budget it may have later. The tier is measured; the next
    /// epoch, which is requested at once, may use it.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] for its name; [`Error::Invalid`] when there are already [`MAX_TIERS`] tiers, and when it
    /// takes more process memory than there is beside the budget of DRAM, with the figures.
    pub fn add_tier(&self, tier: Arc<dyn MemoryTier>, budget_bytes: u64, max_budget_bytes: u64) -> Result<()> {
        let shared = &self.shared;
        let host = shared.host()?;
        let host = host.as_ref();
        // Checked before and after the lock: no epoch is cancelled for a tier that is refused anyway.
        shared.check_new(host, tier.as_ref())?;
        let _epoch_lock = shared.interrupt_and_lock(Interruptible::Any);
        let mut rows = shared.controller.lock_counter_rows();
        shared.check_new(host, tier.as_ref()).inspect_err(|_| shared.controller.wake(CANCELLED_IN_VAIN))?;
        let memory = host.memory_tiers();
        let names = tier_names(host);
        let mut calibration = shared.planner.calibration().for_tiers(host)?;
        let profile = measure_tier(tier.as_ref(), shared.clock.as_ref());
        tier.account().set_limit_bytes(budget_bytes);
        let at = position_for(&profile, &calibration.tiers);
        let device = profile.device.clone();
        let measured = profile.measured;
        tracing::info!(tier = tier.name(), position = at, device, measured, "added a tier");
        calibration.tiers.insert(at, profile);
        // Only the tiers before it and its own profile are adjusted: slower tiers may outlive it and keep theirs.
        keep_order(calibration.tiers.get_mut(..=at).unwrap_or_default());
        let mut tiers = memory.as_ref().clone();
        tiers.insert(at, Arc::clone(&tier));
        shared.change_tiers(host, names, Arc::new(tiers), &mut rows, calibration)?;
        shared.share_memory(&memory, |most| most.saturating_sub(tier.memory_bytes()));
        shared.controller.set_max_budget(tier.name(), max_budget_bytes);
        shared.mover.health().forget(tier.name());
        shared.controller.wake("a tier was added");
        Ok(())
    }

    /// Refuses a new tier that needs more of the process's memory than there is beside the budget of DRAM.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the figures.
    pub fn check_memory(&self, name: &str, need_bytes: u64) -> Result<()> {
        self.shared.check_memory(&self.shared.host()?.memory_tiers(), name, need_bytes)
    }

    /// Closes a tier for further segments; the next epochs, the first of which is requested at once, move its segments
    /// away. Draining a drained tier changes nothing.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the tier; [`Error::Invalid`] for the home, and when placement rules need the room, with the
    /// figures.
    pub fn drain_tier(&self, name: &str) -> Result<()> {
        let _rows = self.shared.controller.lock_counter_rows();
        let host = self.shared.host()?;
        let tier = memory_tier(host.as_ref(), name, "drained")?;
        if tier.account().is_closed() {
            return Ok(());
        }
        let feasibility = Feasibility::for_tables(host.as_ref(), &host.tables());
        feasibility.clone().with_budget(name, 0).check(&feasibility).map_err(|error| match error {
            Error::Invalid(why) => Error::Invalid(format!("tier '{name}' cannot be drained: {why}")),
            other => other,
        })?;
        tier.account().close();
        tracing::info!(tier = name, bytes = tier.account().used_bytes(), "draining a tier");
        if self.shared.controller.is_under_way(Interruptible::Any) {
            self.shared.mover.cancel();
        }
        self.shared.controller.wake("a tier was drained");
        Ok(())
    }

    /// Opens a drained tier for segments again, up to its budget.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the tier.
    pub fn resume_tier(&self, name: &str) -> Result<()> {
        let _rows = self.shared.controller.lock_counter_rows();
        let host = self.shared.host()?;
        let tier = memory_tier(host.as_ref(), name, "resumed")?;
        if tier.account().is_closed() {
            tier.account().open();
            tracing::info!(tier = name, "resumed a tier");
            self.shared.controller.wake("a tier was resumed");
        }
        Ok(())
    }

    /// Drops a drained tier. Its pool is unmapped with the last reference to it.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the tier; [`Error::Invalid`] for the home and process memory, for a tier that was not
    /// drained, and while segments or readers hold bytes of it, with the figures.
    pub fn drop_tier(&self, name: &str) -> Result<()> {
        let shared = &self.shared;
        let host = shared.host()?;
        let host = host.as_ref();
        // Checked before and after the lock: the epoch that is still draining the tier must not be cancelled.
        shared.droppable(host, name)?;
        let _epoch_lock = shared.interrupt_and_lock(Interruptible::Any);
        let mut rows = shared.controller.lock_counter_rows();
        let tier = shared.droppable(host, name).inspect_err(|_| shared.controller.wake(CANCELLED_IN_VAIN))?;
        let memory = host.memory_tiers();
        let names = tier_names(host);
        let mut calibration = shared.planner.calibration().for_tiers(host)?;
        calibration.tiers.retain(|profile| profile.name != name);
        let left = memory.iter().filter(|known| known.name() != name).cloned().collect();
        shared.change_tiers(host, names, Arc::new(left), &mut rows, calibration)?;
        shared.share_memory(&memory, |most| most + tier.memory_bytes());
        shared.controller.forget_max_budget(name);
        shared.mover.forget_rate_limit(name);
        tracing::info!(tier = name, "dropped a tier");
        shared.controller.wake("a tier was dropped");
        Ok(())
    }
}

impl Shared {
    /// Locks the epoch mutex without waiting for an interruptible epoch to complete: it is cancelled, and ends after its
    /// current move. Other epochs and orders are waited for.
    pub(super) fn interrupt_and_lock(&self, interruptible: Interruptible) -> OrderedMutexGuard<'_, Option<u64>> {
        loop {
            if self.controller.is_under_way(interruptible) {
                self.mover.cancel();
            }
            if let Some(guard) = self.controller.try_lock_epoch_for(RETRY_INTERVAL) {
                return guard;
            }
        }
    }

    /// Refuses a new tier whose name is taken, that would be one too many, or for which memory is lacking.
    fn check_new(&self, host: &dyn TieringHost, tier: &dyn MemoryTier) -> Result<()> {
        let names = tier_names(host);
        if all_tier_names(host).iter().any(|name| name == tier.name()) {
            return Err(Error::AlreadyExists { kind: "tier", name: tier.name().to_owned() });
        }
        if names.len() >= MAX_TIERS {
            let names = names.join(", ");
            return Err(Error::Invalid(format!(
                "there are {MAX_TIERS} tiers already, {names}, and more are not supported"
            )));
        }
        self.check_memory(&host.memory_tiers(), tier.name(), tier.memory_bytes())
    }

    /// Returns the tier if it can be dropped.
    fn droppable(&self, host: &dyn TieringHost, name: &str) -> Result<Arc<dyn MemoryTier>> {
        let tier = memory_tier(host, name, "dropped")?;
        if tier.kind() == TierKind::Dram {
            let message = "is process memory and cannot be dropped; drain it, or set its budget to 0";
            return Err(Error::Invalid(format!("tier '{name}' {message}")));
        }
        self.check_empty(host, tier.as_ref()).map(|()| tier)
    }

    /// Replaces the tiers, whose names were `before`, and renumbers all state that is kept by their positions.
    fn change_tiers(
        &self,
        host: &dyn TieringHost,
        before: Vec<String>,
        tiers: MemoryTiers,
        rows: &mut CounterRows,
        calibration: super::Calibration,
    ) -> Result<()> {
        let names: Vec<String> =
            tiers.iter().map(|tier| tier.name()).chain([host.home().name()]).map(str::to_owned).collect();
        let position = |id: TierId| {
            let name = before.get(usize::from(id.0))?;
            Some(TierId(names.iter().position(|known| known == name)? as u8))
        };
        host.save_calibration(&calibration)?;
        let (rows, reset) = rows.arrange(before.clone(), &names);
        // Queries do not take the epoch mutex; this lock lets them see the tiers either before or after the change.
        let _tier_set = self.controller.write_tier_set();
        self.planner.change_tiers(host, calibration, || {
            host.set_memory_tiers(tiers, &rows, reset)?;
            self.metrics.change_tiers(&rows, reset);
            Ok(())
        })?;
        self.merger.renumber(position);
        self.mover.pressure().renumber(position);
        self.controller.note_tiers_changed(self.clock.unix_us());
        Ok(())
    }

    /// Refuses while the tier is open, or while segments or readers hold a byte of it.
    fn check_empty(&self, host: &dyn TieringHost, tier: &dyn MemoryTier) -> Result<()> {
        let name = tier.name();
        let account = tier.account();
        let mut segments = 0_u64;
        let mut held_bytes = 0_u64;
        // True when a segment belongs to a table that the loop does not move.
        let mut stays = false;
        for table in host.tables() {
            let found = table.chunks.iter().flat_map(|entry| entry.chunk.segments.iter());
            let found = found.filter(|s| s.resident.load().as_ref().is_some_and(|r| r.tier == *tier.index()));
            let (count, sum) = found.fold((0_u64, 0_u64), |(count, sum), segment| (count + 1, sum + segment.bytes()));
            segments += count;
            held_bytes += sum;
            stays |= count > 0 && table.mode != TieringMode::Auto;
        }
        let holds = format!("{segments} segment{}, {}", if segments == 1 { "" } else { "s" }, bytes(held_bytes));
        if !account.is_closed() {
            return Err(Error::Invalid(format!(
                "tier '{name}' takes segments and holds {holds}; drain it first: ALTER SYSTEM DRAIN TIER {name}"
            )));
        }
        if segments > 0 {
            let control = self.controller.settings();
            let how = match (control.frozen_unix_us, control.mode) {
                (Some(_), _) => "placement is frozen, they move after UNFREEZE PLACEMENT",
                (None, TieringMode::Advise) => "tiering is advise, they move after ALTER SYSTEM SET tiering = auto",
                _ if stays => "tables with tiering advise or off keep theirs; run ALTER TABLE .. SET (tiering = auto)",
                (None, TieringMode::Off) => "tiering is off, EPOCH NOW moves them",
                (None, TieringMode::Auto) => "the next epochs move them, EPOCH NOW runs one",
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

    /// Refuses a tier that needs process memory which the budget of DRAM may take.
    fn check_memory(&self, memory: &MemoryTiers, name: &str, need: u64) -> Result<()> {
        let Some(dram) = dram(memory) else { return Ok(()) };
        let Some(most) = self.controller.max_budget_bytes(dram.name()) else { return Ok(()) };
        let taken = dram.account().opened_limit_bytes().max(dram.account().used_bytes());
        if need > most.saturating_sub(taken) {
            return Err(Error::Invalid(format!(
                "tier '{}' takes {} of this process's memory: {} and emulated tiers may have {} in all, of which {} are \
                 taken; lower that budget by {} first",
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

    /// Changes the largest budget of DRAM.
    fn share_memory(&self, memory: &MemoryTiers, change: impl Fn(u64) -> u64) {
        if let Some(dram) = dram(memory) {
            self.controller.change_max_budget(dram.name(), change);
        }
    }

    /// Logs the tiers that are missing: those that held segments when the store was open last, and those that rules name.
    /// No data is lost by their absence.
    pub(super) fn log_missing_tiers(&self, host: &dyn TieringHost) -> Result<()> {
        let names = all_tier_names(host);
        let home = host.home().name();
        let last =
            host.placement_snapshots()?.last().map(|epoch| host.load_placement_snapshot(*epoch)).transpose()?.flatten();
        for (tier, segments) in
            last.iter().flat_map(|snapshot| snapshot.resident_segments()).filter(|(tier, _)| !names.contains(tier))
        {
            tracing::warn!(
                tier,
                segments,
                "a tier that held segments is not configured any more; no data is lost, statements read the segments from \
                 {home} until epochs move them to other tiers"
            );
        }
        let mut rules: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for table in host.tables() {
            for rule in table.rules.iter().filter(|rule| !names.contains(&rule.spec.tier)) {
                let named = format!("rule {} of {}", rule.number, table.name);
                rules.entry(rule.spec.tier.clone()).or_default().push(named);
            }
        }
        for (tier, rules) in rules {
            tracing::warn!(
                tier,
                rules = rules.join(", "),
                "placement rules name a tier that is not configured; they apply once there is a tier of that name"
            );
        }
        Ok(())
    }
}

/// Position of a new tier among the known ones, of which the home is last: before the first that is clearly slower.
/// Process memory stays first, and a tier that could not be measured is last, before the home.
fn position_for(new: &TierProfile, known: &[TierProfile]) -> usize {
    /// A tier that is not slower by this factor is about as fast.
    const CLEARLY: f64 = 1.25;
    let sweep_us = |profile: &TierProfile| profile.cost.sweep_us(1 << 20);
    let memory = known.len().saturating_sub(1);
    let slower = |profile: &TierProfile| {
        new.measured && profile.kind != TierKind::Dram && sweep_us(profile) > sweep_us(new) * CLEARLY
    };
    known.iter().take(memory).position(slower).unwrap_or(memory)
}

/// The tier of process memory.
fn dram(memory: &MemoryTiers) -> Option<&Arc<dyn MemoryTier>> {
    memory.iter().find(|tier| tier.kind() == TierKind::Dram)
}

/// Finds a memory tier by its name; `done` is the participle of the command, for the error about the home.
fn memory_tier(host: &dyn TieringHost, name: &str, done: &str) -> Result<Arc<dyn MemoryTier>> {
    if name == host.home().name() {
        let message = format!("'{name}' is the home of every segment and cannot be {done}");
        return Err(Error::Invalid(message));
    }
    if host.device_tier().is_some_and(|device| device.name() == name) {
        let message = format!("'{name}' is the memory of a device and cannot be {done}; with a budget of 0 it empties");
        return Err(Error::Invalid(message));
    }
    let found = host.memory_tiers().iter().find(|tier| tier.name() == name).map(Arc::clone);
    found.ok_or_else(|| Error::unknown_tier(name, &tier_names(host)))
}

/// Refuses a name that is not suitable for a tier in SQL, in a path and as a label.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    match begins && name.len() <= 32 && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "'{name}' cannot be the name of a tier: use up to 32 lower-case letters, digits and _, with a letter first"
        ))),
    }
}

#[cfg(test)]
mod tests;
