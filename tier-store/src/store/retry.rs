//! Reopens the catalog after the disk refused a write, with back-off.
//!
//! ```text
//!   writable --a write fails--> failing --after a pause--> reopen --success--> writable
//!                                  ^----failure: pause doubles----'
//! ```

use std::time::Duration;

use parking_lot::Mutex;
use terrace_storage::migrate::Failing;

use super::core::Core;

/// The first pause. Nothing can be stored meanwhile, so pauses are shorter than those of a tier's device.
const FIRST_PAUSE_US: u64 = 1_000_000;
/// The longest pause.
const LONGEST_PAUSE_US: u64 = 60_000_000;
/// Interval at which the background task checks whether a retry is due.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The state of retries; `None` while the catalog can be written.
#[derive(Debug, Default)]
pub(super) struct Retry(Mutex<Option<Pause>>);

/// A pause before the next retry.
#[derive(Debug, Clone, Copy)]
struct Pause {
    /// Time of the failure.
    since_unix_us: u64,
    pause_us: u64,
    /// Time of the next retry, on the store's clock.
    retry_us: u64,
}

impl Core {
    /// Why nothing can be stored, and when it is tried again; `None` while the catalog can be written. The first call
    /// after a failure starts the first pause.
    pub(super) fn catalog_failing(&self) -> Option<Failing> {
        let error = self.catalog.failure()?.to_string();
        let mut pause = self.retry.0.lock();
        let now_us = self.clock.now_us();
        let unix_us = self.clock.unix_us();
        let pause = pause.get_or_insert_with(|| Pause {
            since_unix_us: unix_us,
            pause_us: FIRST_PAUSE_US,
            retry_us: now_us + FIRST_PAUSE_US,
        });
        let retry_unix_us = unix_us + pause.retry_us.saturating_sub(now_us);
        Some(Failing { since_unix_us: pause.since_unix_us, retry_unix_us, error })
    }

    /// Reopens a catalog that cannot be written, if a retry is due.
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
                    pause.pause_us = (2 * pause.pause_us).min(LONGEST_PAUSE_US);
                    pause.retry_us = self.clock.now_us() + pause.pause_us;
                    let retry_s = pause.pause_us / 1_000_000;
                    tracing::warn!(%error, retry_s, "the catalog cannot be written yet");
                }
            }
        }
    }

    /// One step of the background task: retries if due; returns the time until the next step.
    pub(super) fn watch_catalog(&self) -> Duration {
        self.retry_catalog();
        CHECK_INTERVAL
    }
}
