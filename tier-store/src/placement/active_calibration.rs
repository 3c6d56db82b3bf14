//! The calibration in use: measured at the first start and on request, saved, and corrected by the times that scans observe.

use super::calibrate::{Calibration, calibrate};
use super::correction::{Correction, HomeReads};
use super::tiering::{Shared, Tiering, TieringHost};
use crate::error::Result;

impl Tiering {
    /// The cost profiles in use; `None` before the first epoch and without [`Tiering::restore`].
    pub fn calibration(&self) -> Option<Calibration> {
        self.shared.calibration.read().clone()
    }

    /// Measures all tiers anew, after an epoch under way has ended; the corrections by scans so far are forgotten. Takes
    /// about a second. A tier that cannot be measured now, because it is full, keeps its profile.
    pub fn calibrate(&self) -> Result<Calibration> {
        let _epoch_lock = self.shared.epoch_mutex.lock();
        let host = self.shared.host()?;
        self.shared.calibrate(host.as_ref())
    }
}

impl Shared {
    /// The calibration of the host's tiers: the one in use, the saved one, or a new one.
    pub(super) fn calibrated(&self, host: &dyn TieringHost) -> Result<Calibration> {
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
                self.use_calibration(host, &saved);
                Ok(saved)
            }
            None => self.calibrate(host),
        }
    }

    fn calibrate(&self, host: &dyn TieringHost) -> Result<Calibration> {
        // Two calibrations at a time would measure each other's load.
        let _alone = self.calibrating.lock();
        let before = match self.calibration.read().clone() {
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
        self.use_calibration(host, &measured);
        Ok(measured)
    }

    fn use_calibration(&self, host: &dyn TieringHost, calibration: &Calibration) {
        host.use_calibration(calibration);
        *self.compared_home_reads.lock() = host.home_reads();
        *self.calibration.write() = Some(calibration.clone());
    }

    /// The calibration corrected by the reads of the home up to now, as the next epoch will use it.
    pub(super) fn calibrated_now(&self, host: &dyn TieringHost) -> Result<Calibration> {
        let mut calibration = self.calibrated(host)?;
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

/// The correction updated by the reads since it was made; `None` where it would hardly change.
fn updated_correction(calibration: &Calibration, before: &HomeReads, now: &HomeReads) -> Option<Correction> {
    let next = calibration.correction.updated(&calibration.tiers.last()?.cost, before, now)?;
    next.differs(&calibration.correction).then_some(next)
}
