//! Slows an emulated device down to the speed of a real one, for experiments.
//!
//! Reading `bytes` from a device of `bandwidth_ratio` times DRAM's bandwidth takes `bytes x (1/ratio - 1) / base` longer
//! than from DRAM; each random touch takes the latency that the device has above DRAM's. The calling thread waits for this
//! time when it reads the bytes, so the delay shows up in a query where a real device would cause it.

use std::fmt;
use std::time::{Duration, Instant};

/// The speed of an emulated device relative to DRAM.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Limiter {
    /// The device's bandwidth as a share of DRAM's, above 0 and at most 1.
    pub bandwidth_ratio: f64,
    /// DRAM's bandwidth for one thread, in bytes per microsecond.
    pub base_bytes_per_us: f64,
    /// Latency of one random touch above DRAM's, in nanoseconds.
    pub random_latency_ns: u64,
}

/// Shorter waits spin, because the kernel's sleep is less precise than this.
const SPIN: Duration = Duration::from_micros(150);

impl Limiter {
    /// Slows DRAM down to about a persistent memory module: a third of its bandwidth, five times its latency. One core of a
    /// current server reads about 10 GB/s from DRAM, and waits about 90 ns for a random cache line.
    pub const SLOW: Self = Self { bandwidth_ratio: 0.35, base_bytes_per_us: 10_000.0, random_latency_ns: 360 };

    /// The additional time of a read compared with DRAM. The transfer takes none when the rates are invalid.
    pub fn delay(&self, bytes: u64, random_touches: u64) -> Duration {
        let slower = (1.0 / self.bandwidth_ratio - 1.0) / self.base_bytes_per_us;
        let transfer_ns = if slower.is_finite() && slower > 0.0 { bytes as f64 * slower * 1000.0 } else { 0.0 };
        Duration::from_nanos((transfer_ns as u64).saturating_add(random_touches.saturating_mul(self.random_latency_ns)))
    }

    /// Blocks the calling thread for [`Limiter::delay`].
    // Virtual time would defeat the purpose: this models a device in real time.
    #[allow(clippy::disallowed_methods)]
    pub fn touch(&self, bytes: u64, random_touches: u64) {
        let delay = self.delay(bytes, random_touches);
        let start = Instant::now();
        if delay > SPIN {
            std::thread::sleep(delay - SPIN);
        }
        while start.elapsed() < delay {
            std::hint::spin_loop();
        }
    }
}

impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bandwidth_ratio, random_latency_ns, .. } = self;
        write!(f, "limited to {bandwidth_ratio} of DRAM's bandwidth and {random_latency_ns} ns more per random touch")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn a_third_of_the_bandwidth_takes_three_times_as_long() {
        let limiter = Limiter { bandwidth_ratio: 1.0 / 3.0, base_bytes_per_us: 10_000.0, random_latency_ns: 200 };
        // 1 MB takes DRAM 100 us, the device 300 us: 200 us more.
        assert!(limiter.delay(1_000_000, 0).as_nanos().abs_diff(200_000) < 100);
        assert_eq!(limiter.delay(0, 5), Duration::from_nanos(1000));
        let start = Instant::now();
        limiter.touch(1_000_000, 0);
        assert!(start.elapsed() >= Duration::from_nanos(199_900));
    }

    #[test]
    fn nonsense_costs_nothing() {
        let limiter = Limiter { bandwidth_ratio: 0.0, base_bytes_per_us: 1.0, random_latency_ns: 0 };
        assert_eq!(limiter.delay(1 << 40, 0), Duration::ZERO);
    }
}
