//! Time as a dependency: production code asks a [`Clock`], tests and simulations pass their own.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Microseconds since an arbitrary start; never goes back.
    fn now_us(&self) -> u64;
    /// Microseconds since the Unix epoch; may jump.
    fn unix_us(&self) -> u64;
    /// Blocks the calling thread (or advances virtual time).
    fn sleep(&self, duration: Duration);
}

/// Processor time of the calling thread so far, in nanoseconds: the cost of work, however busy the machine is.
#[inline]
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the one structure that the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    #[allow(clippy::disallowed_methods)]
    #[inline]
    fn unix_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
    }

    #[allow(clippy::disallowed_methods)]
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// A clock that moves only by calls of [`ManualClock::advance`] and `sleep`.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_us: AtomicU64,
    unix_ahead_us: AtomicI64,
}

impl ManualClock {
    /// Moves time forward.
    pub fn advance(&self, duration: Duration) {
        self.now_us.fetch_add(duration.as_micros() as u64, Ordering::SeqCst);
    }

    /// Sets the offset of the time of day from the time since the start, in microseconds; the result is never below 0.
    pub fn jump(&self, ahead_us: i64) {
        self.unix_ahead_us.store(ahead_us, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::SeqCst)
    }

    fn unix_us(&self) -> u64 {
        self.now_us().saturating_add_signed(self.unix_ahead_us.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}
