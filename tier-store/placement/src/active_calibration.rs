//! The calibration in use: measured at the first start and on request, saved, and corrected by the times that scans
//! observe.

use std::sync::Arc;

use terrace_model::Result;
use terrace_model::clock::Clock;

use super::calibrate::{Calibration, calibrate};
use super::correction::{Correction, HomeReads};
use super::lock_order::{OrderedMutex, OrderedRwLock, Rank};
use super::tiering::{Tiering, TieringHost};

impl Tiering {
    /// The cost profiles in use; `None` before the first epoch and without [`Tiering::restore`].
    pub fn calibration(&self) -> Option<Calibration> {
        self.shared.planner.calibration().get()
    }

    /// Measures all tiers anew, after an epoch under way has ended; the corrections by scans so far are forgotten. Takes
    /// about a second. A tier that cannot be measured now, because it is full, keeps its profile.
    pub fn calibrate(&self) -> Result<Calibration> {
        let _epoch_lock = self.shared.controller.lock_epoch();
        let host = self.shared.host()?;
        if let Some(device) = host.device_tier().filter(|device| device.lost().is_none()) {
            device.calibrate(self.shared.clock.as_ref());
        }
        self.shared.planner.calibration().measure(host.as_ref())
    }
}

/// The calibration in use.
pub(super) struct ActiveCalibration {
    clock: Arc<dyn Clock>,
    calibration: OrderedRwLock<Option<Calibration>>,
    calibrating: OrderedMutex<()>,
    /// Reads from home that have been compared with the calibration already.
    compared_home_reads: OrderedMutex<HomeReads>,
}

impl ActiveCalibration {
    /// Nothing is calibrated yet.
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            calibration: OrderedRwLock::new(Rank::Calibration, None),
            calibrating: OrderedMutex::new(Rank::Calibrating, ()),
            compared_home_reads: OrderedMutex::new(Rank::ComparedHomeReads, HomeReads::default()),
        }
    }

    /// The calibration in use, if there is one.
    pub(super) fn get(&self) -> Option<Calibration> {
        self.calibration.read().clone()
    }

    /// The calibration of the host's tiers: the one in use, the saved one, or a new one.
    pub(super) fn for_tiers(&self, host: &dyn TieringHost) -> Result<Calibration> {
        let unix_us = self.clock.unix_us();
        {
            // The lock is held during the comparison, so that tiers do not change in between.
            let known = self.calibration.read();
            let fits =
                |known: &&Calibration| known.fits(&host.memory_tiers(), host.home()) && !known.is_retry_due(unix_us);
            if let Some(known) = known.as_ref().filter(fits) {
                return Ok(known.clone());
            }
        }
        let is_first = self.calibration.read().is_none();
        let saved = match is_first {
            true => host.load_calibration()?,
            false => None,
        };
        let tiers = host.memory_tiers();
        let home = host.home();
        // A saved calibration that is incomplete is not used: the missing tiers are tried again.
        match saved.filter(|saved| saved.fits(&tiers, home) && saved.is_complete()) {
            Some(saved) => {
                self.replace(host, &saved);
                Ok(saved)
            }
            None => self.measure(host),
        }
    }

    /// Measures all tiers and saves the result, which is in use from now on.
    fn measure(&self, host: &dyn TieringHost) -> Result<Calibration> {
        // Two calibrations at a time would measure each other's load.
        let _alone = self.calibrating.lock();
        let before = match self.get() {
            Some(known) => Some(known),
            None => host.load_calibration()?,
        };
        let measured = calibrate(&host.memory_tiers(), host.home(), self.clock.as_ref(), before.as_ref());
        for profile in measured.tiers.iter().filter(|profile| !profile.measured) {
            let why = profile.note.as_deref().unwrap_or_default();
            tracing::warn!(
                tier = profile.name,
                why,
                "a tier could not be measured; its costs are those typical of its kind"
            );
        }
        host.save_calibration(&measured)?;
        self.replace(host, &measured);
        Ok(measured)
    }

    fn replace(&self, host: &dyn TieringHost, calibration: &Calibration) {
        host.use_calibration(calibration);
        // The engine counts what was just measured among the reads of statements: the next correction begins behind it.
        *self.compared_home_reads.lock() = host.home_reads();
        *self.calibration.write() = Some(calibration.clone());
    }

    /// Uses the calibration of changed tiers, once `change` has changed them.
    ///
    /// # Errors
    /// Those of `change`; nothing has changed here then.
    pub(super) fn change_tiers(
        &self,
        host: &dyn TieringHost,
        calibration: Calibration,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held while the tiers change, so that no thread compares the calibration with other tiers than it was made for.
        let mut known = self.calibration.write();
        change()?;
        host.use_calibration(&calibration);
        *known = Some(calibration);
        Ok(())
    }

    /// The calibration corrected by the reads of the home up to now, as the next epoch will use it.
    pub(super) fn corrected(&self, host: &dyn TieringHost) -> Result<Calibration> {
        let mut calibration = self.for_tiers(host)?;
        if let Some(next) = updated_correction(&calibration, &self.compared_home_reads.lock(), &host.home_reads()) {
            calibration.correction = next;
        }
        Ok(calibration)
    }

    /// At the end of an epoch: corrects the calibration by the reads of the home since the last one, and saves it.
    pub(super) fn correct(&self, host: &dyn TieringHost) -> Result<()> {
        let now = host.home_reads();
        let mut compared = self.compared_home_reads.lock();
        let mut known = self.calibration.write();
        let Some(calibration) = known.as_mut() else { return Ok(()) };
        let Some(next) = updated_correction(calibration, &compared, &now) else { return Ok(()) };
        *compared = now;
        calibration.correction = next;
        host.use_calibration(calibration);
        host.save_calibration(calibration)
    }
}

/// Computes the correction from the reads since the last one; `None` when it would change too little to be saved.
fn updated_correction(calibration: &Calibration, before: &HomeReads, now: &HomeReads) -> Option<Correction> {
    let next = calibration.correction.updated(&calibration.tiers.last()?.cost, before, now)?;
    next.differs(&calibration.correction).then_some(next)
}
