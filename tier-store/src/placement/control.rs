//! What users said about the loop: its mode, and whether placement is frozen.
//!
//! A frozen placement does not change by anything that Terrace decides or is asked for: no epoch moves, pins neither, and
//! orders are refused. New chunks still start where their tables say, and a chunk that is compacted or dropped takes its
//! copies with it. Statements, counters and dry runs go on. It holds until it is lifted, restarts included; after a
//! restart all lies at home, and stays there.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::mode::TieringMode;
use super::tiering::{Shared, Tiering};
use crate::error::{Error, Result};

/// What users said about the loop; durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// What the loop does with all tables.
    #[serde(default)]
    pub mode: TieringMode,
    /// When placement was frozen, in microseconds since the Unix epoch.
    #[serde(default)]
    pub frozen_unix_us: Option<u64>,
}

impl Control {
    /// True when the loop runs epochs of its own.
    pub(super) fn is_running(&self) -> bool {
        self.mode != TieringMode::Off && self.frozen_unix_us.is_none()
    }

    /// The mode of an epoch: one that somebody asks for while the loop is off moves all the same.
    pub(super) fn for_requests(&self) -> TieringMode {
        if self.mode == TieringMode::Off { TieringMode::Auto } else { self.mode }
    }

    pub(super) fn check_not_frozen(&self) -> Result<()> {
        match self.frozen_unix_us {
            None => Ok(()),
            Some(_) => Err(Error::Invalid(
                "placement is frozen: nothing moves until UNFREEZE PLACEMENT; a dry run says what would".into(),
            )),
        }
    }
}

impl Tiering {
    /// What users said about the loop.
    pub fn control(&self) -> Control {
        self.shared.control.read().clone()
    }

    /// Sets what the loop does with all tables, until somebody says otherwise, restarts included.
    ///
    /// # Errors
    /// When it cannot be made durable; nothing changed then.
    pub fn set_mode(&self, mode: TieringMode) -> Result<()> {
        self.change(|control| control.mode = mode)?;
        self.wake("mode");
        Ok(())
    }

    /// The same, for this run of the server alone: what its configuration says.
    pub fn set_first_mode(&self, mode: TieringMode) {
        self.shared.control.write().mode = mode;
    }

    /// True when the loop runs epochs of its own.
    pub fn is_enabled(&self) -> bool {
        self.shared.control.read().is_running()
    }

    /// Freezes the placement; moves under way end first. Freezing a frozen one changes nothing.
    ///
    /// # Errors
    /// When it cannot be made durable; nothing changed then.
    pub fn freeze(&self) -> Result<()> {
        let now = self.shared.clock.unix_us();
        self.change(|control| _ = control.frozen_unix_us.get_or_insert(now))?;
        self.cancel();
        drop(self.shared.turn.lock());
        Ok(())
    }

    /// Lifts the freeze; the next epoch comes at once.
    ///
    /// # Errors
    /// When it cannot be made durable; nothing changed then.
    pub fn unfreeze(&self) -> Result<()> {
        self.change(|control| control.frozen_unix_us = None)?;
        self.wake("unfreeze");
        Ok(())
    }

    /// The epoch or order that is under way.
    pub fn under_way(&self) -> Option<u64> {
        Some(self.shared.under_way.load(Ordering::Relaxed)).filter(|epoch| *epoch > 0)
    }

    /// Ends the epoch or order under way after the move it is at, and says which; what was moved stays, the rest is logged
    /// as skipped.
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
        let mut control = self.shared.control.write();
        let mut next = control.clone();
        change(&mut next);
        host.save_control(&next)?;
        *control = next;
        Ok(())
    }
}

impl Shared {
    /// Epoch `id` is under way as long as the guard lives.
    pub(super) fn begin(&self, id: u64) -> UnderWay<'_> {
        self.under_way.store(id, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }
}

/// See [`Shared::begin`].
pub(super) struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
