//! Devices that fail: their moves pause, everything else goes on.
//!
//! ```text
//!   well --FAILURES in a row--> paused --back-off--> due: one move tries it --done--> well
//!                                  ^--------------failed: twice the back-off--'
//! ```
//!
//! Only what the device itself answers counts ([`Error::is_device_fault`]): a full budget, damage of one file and a chunk that
//! is gone say nothing of others. A memory tier is tried by writing to it, the home by reading from it. Tiers are known by
//! name, as their positions change. Used by [`super::queue`], by merging, and by planning, which closes what is paused.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::Clock;
use crate::error::Error;

/// Failures in a row after which moves pause.
const FAILURES: u32 = 3;
/// The first pause, and the longest.
const PAUSES_US: (u64, u64) = (30_000_000, 900_000_000);

/// Why moves of a tier pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failing {
    /// Since when, in microseconds since the Unix epoch.
    pub since_unix_us: u64,
    /// When one move tries the device again; in the past: the next one does.
    pub retry_unix_us: u64,
    /// What the device said last.
    pub error: String,
}

/// Whether a move may use a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pass {
    /// It may.
    Open,
    /// It may as the one that tries.
    Due,
    /// Another one is trying.
    Tried,
    /// It may not, and why.
    Paused(String),
}

/// What is known of the devices of all tiers.
#[derive(Debug, Default)]
pub struct Health {
    troubles: Mutex<BTreeMap<String, Trouble>>,
}

#[derive(Debug, Default)]
struct Trouble {
    /// In a row.
    failures: u32,
    /// What was paused already; 0: it is well, but for a few failures.
    pause_us: u64,
    retry_us: u64,
    trying: bool,
    failing: Option<Failing>,
}

impl Health {
    /// Why moves of a tier pause, or wait for one that tries its device; `None` while it is well.
    pub fn failing(&self, tier: &str) -> Option<Failing> {
        self.troubles.lock().get(tier)?.failing.clone()
    }

    /// True while no move may use the device.
    pub fn is_paused(&self, tier: &str, clock: &dyn Clock) -> bool {
        self.paused(tier, clock).is_some()
    }

    /// Why no move may use the device, and for how long.
    pub(crate) fn paused(&self, tier: &str, clock: &dyn Clock) -> Option<String> {
        match self.pass(tier, clock) {
            Pass::Paused(why) => Some(why),
            Pass::Open | Pass::Due | Pass::Tried => None,
        }
    }

    /// Whether a move may use the device now.
    pub(super) fn pass(&self, tier: &str, clock: &dyn Clock) -> Pass {
        let troubles = self.troubles.lock();
        let Some((trouble, failing)) = troubles.get(tier).and_then(|t| Some((t, t.failing.as_ref()?))) else {
            return Pass::Open;
        };
        match trouble.retry_us.saturating_sub(clock.now_us()) {
            0 if trouble.trying => Pass::Tried,
            0 => Pass::Due,
            us => Pass::Paused(format!(
                "{tier} is failing ({}); tried again in {} s",
                failing.error,
                us.div_ceil(1_000_000)
            )),
        }
    }

    /// A move tries a device that is due.
    pub(super) fn begin(&self, tier: &str) {
        if let Some(trouble) = self.troubles.lock().get_mut(tier) {
            trouble.trying = true;
        }
    }

    /// It came to an end, whatever it found.
    pub(super) fn end(&self, tier: &str) {
        if let Some(trouble) = self.troubles.lock().get_mut(tier) {
            trouble.trying = false;
        }
    }

    /// A device did what a move asked of it. One that is paused stays so: the move began before.
    pub(crate) fn did(&self, tier: &str, clock: &dyn Clock) {
        let mut troubles = self.troubles.lock();
        let is_over = |trouble: &Trouble| trouble.failing.is_none() || clock.now_us() >= trouble.retry_us;
        if troubles.get(tier).is_some_and(is_over)
            && let Some(Trouble { failing: Some(failing), .. }) = troubles.remove(tier)
        {
            let seconds = clock.unix_us().saturating_sub(failing.since_unix_us) / 1_000_000;
            tracing::warn!(tier, seconds, "the device works again; moves to and from it go on");
        }
    }

    /// A device failed a move. An error that is not its own is none of its failures.
    pub(crate) fn failed(&self, tier: &str, error: &Error, clock: &dyn Clock) {
        if !error.is_device_fault() {
            return;
        }
        let mut troubles = self.troubles.lock();
        let trouble = troubles.entry(tier.to_owned()).or_default();
        trouble.failures += 1;
        let is_paused = trouble.failing.is_some() && clock.now_us() < trouble.retry_us;
        // What began before the pause says nothing new.
        if is_paused || trouble.failures < FAILURES {
            return;
        }
        trouble.pause_us = (2 * trouble.pause_us).clamp(PAUSES_US.0, PAUSES_US.1);
        trouble.retry_us = clock.now_us() + trouble.pause_us;
        let unix_us = clock.unix_us();
        let retry_unix_us = unix_us + trouble.pause_us;
        let error = error.to_string();
        if trouble.failing.is_none() {
            let retry_s = trouble.pause_us / 1_000_000;
            tracing::warn!(
                tier,
                error,
                retry_s,
                "the device fails; moves to and from it pause, what lies there is read as before"
            );
        }
        let since_unix_us = trouble.failing.as_ref().map_or(unix_us, |before| before.since_unix_us);
        trouble.failing = Some(Failing { since_unix_us, retry_unix_us, error });
    }

    /// Another device has this name from now on.
    pub(crate) fn forget(&self, tier: &str) {
        self.troubles.lock().remove(tier);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    fn fault(errno: i32) -> Error {
        Error::io("read", "/dev/x", &std::io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn three_failures_in_a_row_pause_and_each_failed_try_doubles_the_pause() {
        let health = Health::default();
        let clock = ManualClock::default();
        let fail = |times: u32| (0..times).for_each(|_| health.failed("nvm", &fault(libc::EIO), &clock));
        fail(2);
        health.did("nvm", &clock);
        fail(2);
        assert_eq!((health.failing("nvm"), health.pass("nvm", &clock)), (None, Pass::Open), "not in a row");
        clock.advance(Duration::from_secs(5));
        fail(1);
        let failing = health.failing("nvm").unwrap();
        assert_eq!((failing.since_unix_us, failing.retry_unix_us), (5_000_000, 35_000_000));
        let Pass::Paused(why) = health.pass("nvm", &clock) else { unreachable!() };
        assert!(why.contains("nvm is failing (cannot read /dev/x") && why.ends_with("tried again in 30 s"), "{why}");
        fail(9);
        health.did("nvm", &clock);
        assert_eq!(health.failing("nvm").unwrap(), failing, "what was under way changes nothing");
        assert_eq!(health.pass("ssd", &clock), Pass::Open);
        for pause_s in [30, 60, 120, 240, 480, 900, 900] {
            assert!(health.is_paused("nvm", &clock), "{pause_s}");
            clock.advance(Duration::from_secs(pause_s));
            assert_eq!(health.pass("nvm", &clock), Pass::Due, "{pause_s}");
            health.begin("nvm");
            assert_eq!(health.pass("nvm", &clock), Pass::Tried);
            fail(1);
            health.end("nvm");
            assert_eq!(health.failing("nvm").unwrap().since_unix_us, 5_000_000);
        }
        clock.advance(Duration::from_secs(900));
        health.begin("nvm");
        health.did("nvm", &clock);
        health.end("nvm");
        assert_eq!((health.failing("nvm"), health.pass("nvm", &clock)), (None, Pass::Open));
        fail(3);
        assert_eq!(health.failing("nvm").unwrap().retry_unix_us, clock.unix_us() + 30_000_000, "from the beginning");
        health.forget("nvm");
        assert_eq!(health.pass("nvm", &clock), Pass::Open);
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
