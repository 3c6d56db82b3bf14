//! User control of the loop: its mode, and the freeze of the placement.
//!
//! Neither the loop nor requests change a frozen placement: epochs move no segments, new pins have no effect, and orders
//! are refused. New chunks still start on the tier of their table, and the copies of a chunk go when it is compacted
//! or dropped. Statements, counters and dry runs go on. A freeze lasts until it is lifted, across restarts; after a restart
//! all segments are at home, and stay there.

use serde::{Deserialize, Serialize};
use terrace_model::{Error, Result, TieringMode};

use super::tiering::Tiering;

/// The settings of users for the loop; durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Mode for all tables.
    #[serde(default)]
    pub mode: TieringMode,
    /// Time at which placement was frozen, in microseconds since the Unix epoch.
    #[serde(default)]
    pub frozen_unix_us: Option<u64>,
}

impl Control {
    /// True when the loop runs epochs of its own.
    pub(super) fn is_running(&self) -> bool {
        self.mode != TieringMode::Off && self.frozen_unix_us.is_none()
    }

    /// The mode of an epoch that was requested: it moves even while the loop is off.
    pub(super) fn for_requests(&self) -> TieringMode {
        if self.mode == TieringMode::Off { TieringMode::Auto } else { self.mode }
    }

    /// Refuses while placement is frozen.
    pub(super) fn check_not_frozen(&self) -> Result<()> {
        match self.frozen_unix_us {
            None => Ok(()),
            Some(_) => Err(Error::Invalid(
                "placement is frozen: no segment moves until UNFREEZE PLACEMENT; a dry run shows which would".into(),
            )),
        }
    }
}

impl Tiering {
    /// The current settings of users for the loop.
    pub fn control(&self) -> Control {
        self.shared.controller.settings()
    }

    /// Sets the mode for all tables; it lasts across restarts.
    ///
    /// # Errors
    /// When it cannot be made durable; nothing has changed then.
    pub fn set_mode(&self, mode: TieringMode) -> Result<()> {
        self.change(|control| control.mode = mode)?;
        self.wake("mode");
        Ok(())
    }

    /// Like [`Tiering::set_mode`], but only for this run of the server: the mode from its configuration.
    pub fn set_first_mode(&self, mode: TieringMode) {
        self.shared.controller.set_mode(mode);
    }

    /// True when the loop runs epochs of its own.
    pub fn is_enabled(&self) -> bool {
        self.shared.controller.settings().is_running()
    }

    /// Freezes the placement and waits for moves under way to end. Freezing a frozen placement changes nothing.
    ///
    /// # Errors
    /// When it cannot be made durable; nothing changed then.
    pub fn freeze(&self) -> Result<()> {
        let now = self.shared.clock.unix_us();
        self.change(|control| _ = control.frozen_unix_us.get_or_insert(now))?;
        self.cancel();
        drop(self.shared.controller.lock_epoch());
        Ok(())
    }

    /// Lifts the freeze; the next epoch starts at once.
    ///
    /// # Errors
    /// When it cannot be made durable; nothing changed then.
    pub fn unfreeze(&self) -> Result<()> {
        self.change(|control| control.frozen_unix_us = None)?;
        self.wake("unfreeze");
        Ok(())
    }

    /// Number of the epoch or order that is under way.
    pub fn under_way(&self) -> Option<u64> {
        self.shared.controller.under_way()
    }

    /// Ends the epoch or order under way after its current move, and returns its number. Completed moves stay; the others
    /// are logged as skipped.
    ///
    /// # Errors
    /// [`Error::Invalid`] when none is under way.
    pub fn cancel_epoch(&self) -> Result<u64> {
        let nothing = || Error::Invalid("no epoch is under way, so there is nothing to cancel".into());
        let epoch = self.under_way().ok_or_else(nothing)?;
        self.cancel();
        Ok(epoch)
    }

    fn change(&self, change: impl FnOnce(&mut Control)) -> Result<()> {
        let host = self.shared.host()?;
        self.shared.controller.change_settings(host.as_ref(), change)
    }
}
