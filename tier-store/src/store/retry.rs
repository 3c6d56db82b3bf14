//! Opening the catalog again after the disk refused a write, with back-off.
//!
//! ```text
//!   well --a write fails--> failing --after a pause--> tried --it works--> well
//!                              ^-----fails: twice the pause---'
//! ```

use std::time::Duration;

use parking_lot::Mutex;

use super::core::Core;
use crate::migrate::Failing;

/// The first pause, and the longest. Nothing can be stored meanwhile, so they are shorter than those of a tier's device.
const PAUSES_US: (u64, u64) = (1_000_000, 60_000_000);
/// Between two looks at whether there is anything to do.
const LOOK: Duration = Duration::from_millis(500);

/// When the catalog is tried again.
#[derive(Debug, Default)]
pub(super) struct Retry(Mutex<Option<Pause>>);

#[derive(Debug, Clone, Copy)]
struct Pause {
    since_unix_us: u64,
    pause_us: u64,
    retry_us: u64,
}

impl Core {
    /// Why nothing can be stored, and when that is tried again; `None` while it can.
    pub(super) fn catalog_failing(&self) -> Option<Failing> {
        let error = self.catalog.failure()?.to_string();
        let mut pause = self.retry.0.lock();
        let now_us = self.clock.now_us();
        let unix_us = self.clock.unix_us();
        let pause = pause.get_or_insert_with(|| Pause {
            since_unix_us: unix_us,
            pause_us: PAUSES_US.0,
            retry_us: now_us + PAUSES_US.0,
        });
        let retry_unix_us = unix_us + pause.retry_us.saturating_sub(now_us);
        Some(Failing { since_unix_us: pause.since_unix_us, retry_unix_us, error })
    }

    /// Tries a catalog that cannot be written, if it is time for it.
    pub(super) fn retry_catalog(&self) {
        if self.catalog_failing().is_none() {
            return;
        }
        let is_due = |pause: &Option<Pause>| pause.is_some_and(|pause| self.clock.now_us() >= pause.retry_us);
        if !is_due(&self.retry.0.lock()) {
            return;
        }
        match self.reopen_catalog() {
            Ok(()) => {
                let before = self.retry.0.lock().take();
                let seconds =
                    before.map_or(0, |before| self.clock.unix_us().saturating_sub(before.since_unix_us) / 1_000_000);
                tracing::warn!(seconds, "the catalog can be written again");
            }
            Err(error) => {
                if let Some(pause) = self.retry.0.lock().as_mut() {
                    pause.pause_us = (2 * pause.pause_us).min(PAUSES_US.1);
                    pause.retry_us = self.clock.now_us() + pause.pause_us;
                    let retry_s = pause.pause_us / 1_000_000;
                    tracing::warn!(%error, retry_s, "the catalog cannot be written yet");
                }
            }
        }
    }

    /// Does so from time to time; returns the time to the next look.
    pub(super) fn watch_catalog(&self) -> Duration {
        self.retry_catalog();
        LOOK
    }
}
