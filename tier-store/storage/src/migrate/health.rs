//! Circuit breakers for devices: moves of a device that fails pause, everything else goes on.
//!
//! ```text
//!   well --FAILURES in a row--> paused --back-off--> one move probes it --done--> well
//!                                  ^----------failed: twice the back-off--'
//! ```
//!
//! Only errors of the device itself count ([`Error::is_device_fault`]): a full budget, a damaged file and a dropped
//! chunk say nothing about other moves. A write probes a memory tier, a read probes the home. Tiers are identified by
//! name, as their positions change. Used by [`super::queue`], by merging, and by planning, which closes paused tiers.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;
use terrace_model::Error;
use terrace_model::clock::Clock;

/// Failures in a row after which moves pause.
const FAILURES: u32 = 3;
/// Duration of the first pause; each failed probe doubles it.
const FIRST_PAUSE_US: u64 = 30_000_000;
/// Duration of the longest pause.
const MAX_PAUSE_US: u64 = 900_000_000;

/// A failing device: why moves of its tier pause, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failing {
    /// Start of the failure, in microseconds since the Unix epoch.
    pub since_unix_us: u64,
    /// Time from which one move probes the device; in the past: the next move does.
    pub retry_unix_us: u64,
    /// The last error of the device.
    pub error: String,
}

/// Whether a move may use a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    /// It may: the device is well.
    Allowed,
    /// It may, as the move that probes the device.
    Probe,
    /// It may not: another move is probing the device.
    Probing,
    /// It may not, for this reason.
    Paused(String),
}

/// The circuit breakers of all tiers' devices, by the tier's name.
#[derive(Debug, Default)]
pub struct Health {
    devices: Mutex<BTreeMap<String, DeviceFailures>>,
}

/// The circuit breaker of one device.
#[derive(Debug, Default)]
struct DeviceFailures {
    /// Failures in a row.
    failures: u32,
    /// Duration of the current pause; 0 while there were too few failures for one.
    pause_us: u64,
    retry_us: u64,
    is_probing: bool,
    failing: Option<Failing>,
}

impl Health {
    /// The failure for which moves of a tier pause or wait for a probe; `None` while its device is well.
    pub fn failing(&self, tier: &str) -> Option<Failing> {
        self.devices.lock().get(tier)?.failing.clone()
    }

    /// True while no move may use the device.
    pub fn is_paused(&self, tier: &str, clock: &dyn Clock) -> bool {
        self.paused(tier, clock).is_some()
    }

    /// The reason why no move may use the device, and for how long; `None` when one may.
    pub fn paused(&self, tier: &str, clock: &dyn Clock) -> Option<String> {
        match self.access(tier, clock) {
            Access::Paused(why) => Some(why),
            Access::Allowed | Access::Probe | Access::Probing => None,
        }
    }

    /// Tells whether a move may use the device now.
    pub(super) fn access(&self, tier: &str, clock: &dyn Clock) -> Access {
        let devices = self.devices.lock();
        let Some((device, failing)) = devices.get(tier).and_then(|t| Some((t, t.failing.as_ref()?))) else {
            return Access::Allowed;
        };
        match device.retry_us.saturating_sub(clock.now_us()) {
            0 if device.is_probing => Access::Probing,
            0 => Access::Probe,
            us => Access::Paused(format!(
                "{tier} is failing ({}); tried again in {} s",
                failing.error,
                us.div_ceil(1_000_000)
            )),
        }
    }

    /// Records that a move probes the device.
    pub(super) fn begin_probe(&self, tier: &str) {
        if let Some(device) = self.devices.lock().get_mut(tier) {
            device.is_probing = true;
        }
    }

    /// Records that the probe ended, with whatever result.
    pub(super) fn end_probe(&self, tier: &str) {
        if let Some(device) = self.devices.lock().get_mut(tier) {
            device.is_probing = false;
        }
    }

    /// Records that the device served a move. A pause goes on: the move began before it.
    pub fn succeeded(&self, tier: &str, clock: &dyn Clock) {
        let mut devices = self.devices.lock();
        let is_over = |device: &DeviceFailures| device.failing.is_none() || clock.now_us() >= device.retry_us;
        if devices.get(tier).is_some_and(is_over)
            && let Some(DeviceFailures { failing: Some(failing), .. }) = devices.remove(tier)
        {
            let seconds = clock.unix_us().saturating_sub(failing.since_unix_us) / 1_000_000;
            tracing::warn!(tier, seconds, "the device works again; moves to and from it resume");
        }
    }

    /// Records an error of a move. Errors other than those of the device itself do not count.
    pub fn failed(&self, tier: &str, error: &Error, clock: &dyn Clock) {
        if !error.is_device_fault() {
            return;
        }
        let mut devices = self.devices.lock();
        let device = devices.entry(tier.to_owned()).or_default();
        device.failures += 1;
        let is_paused = device.failing.is_some() && clock.now_us() < device.retry_us;
        // A move that began before the pause says nothing new.
        if is_paused || device.failures < FAILURES {
            return;
        }
        device.pause_us = (2 * device.pause_us).clamp(FIRST_PAUSE_US, MAX_PAUSE_US);
        device.retry_us = clock.now_us() + device.pause_us;
        let unix_us = clock.unix_us();
        let retry_unix_us = unix_us + device.pause_us;
        let error = error.to_string();
        if device.failing.is_none() {
            let retry_s = device.pause_us / 1_000_000;
            tracing::warn!(
                tier,
                error,
                retry_s,
                "the device fails; moves to and from it pause, reads of its segments continue"
            );
        }
        let since_unix_us = device.failing.as_ref().map_or(unix_us, |before| before.since_unix_us);
        device.failing = Some(Failing { since_unix_us, retry_unix_us, error });
    }

    /// Forgets a device: another one has its name from now on.
    pub fn forget(&self, tier: &str) {
        self.devices.lock().remove(tier);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use terrace_model::clock::ManualClock;

    use super::*;

    fn fault(errno: i32) -> Error {
        Error::io("read", "/dev/x", &std::io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn three_failures_in_a_row_pause_and_each_failed_try_doubles_the_pause() {
        let health = Health::default();
        let clock = ManualClock::default();
        let fail = |times: u32| (0..times).for_each(|_| health.failed("nvm", &fault(libc::EIO), &clock));
        fail(2);
        health.succeeded("nvm", &clock);
        fail(2);
        assert_eq!((health.failing("nvm"), health.access("nvm", &clock)), (None, Access::Allowed), "not in a row");
        clock.advance(Duration::from_secs(5));
        fail(1);
        let failing = health.failing("nvm").unwrap();
        assert_eq!((failing.since_unix_us, failing.retry_unix_us), (5_000_000, 35_000_000));
        let Access::Paused(why) = health.access("nvm", &clock) else { unreachable!() };
        assert!(why.contains("nvm is failing (cannot read /dev/x") && why.ends_with("tried again in 30 s"), "{why}");
        fail(9);
        health.succeeded("nvm", &clock);
        assert_eq!(health.failing("nvm").unwrap(), failing, "moves that were running change nothing");
        assert_eq!(health.access("ssd", &clock), Access::Allowed);
        for pause_s in [30, 60, 120, 240, 480, 900, 900] {
            assert!(health.is_paused("nvm", &clock), "{pause_s}");
            clock.advance(Duration::from_secs(pause_s));
            assert_eq!(health.access("nvm", &clock), Access::Probe, "{pause_s}");
            health.begin_probe("nvm");
            assert_eq!(health.access("nvm", &clock), Access::Probing);
            fail(1);
            health.end_probe("nvm");
            assert_eq!(health.failing("nvm").unwrap().since_unix_us, 5_000_000);
        }
        clock.advance(Duration::from_secs(900));
        health.begin_probe("nvm");
        health.succeeded("nvm", &clock);
        health.end_probe("nvm");
        assert_eq!((health.failing("nvm"), health.access("nvm", &clock)), (None, Access::Allowed));
        fail(3);
        assert_eq!(health.failing("nvm").unwrap().retry_unix_us, clock.unix_us() + 30_000_000, "from the beginning");
        health.forget("nvm");
        assert_eq!(health.access("nvm", &clock), Access::Allowed);
    }

    #[test]
    fn only_what_the_device_says_counts() {
        let health = Health::default();
        let clock = ManualClock::default();
        let mut others = vec![Error::Cancelled, Error::Corrupt { path: "f".into(), what: "a bit".into() }];
        others.extend([libc::ENOENT, libc::EMFILE, libc::ENOMEM, libc::EACCES].map(fault));
        let account = "nvm".to_owned();
        let asked_bytes = 1;
        let used_bytes = 1;
        let limit_bytes = 1;
        others.push(Error::BudgetExceeded { account, asked_bytes, used_bytes, limit_bytes });
        others.iter().cycle().take(70).for_each(|error| health.failed("nvm", error, &clock));
        assert_eq!(health.failing("nvm"), None);
        for errno in [libc::EIO, libc::ENOSPC, libc::EROFS] {
            health.failed("nvm", &fault(errno), &clock);
        }
        assert!(health.failing("nvm").is_some());
    }
}
