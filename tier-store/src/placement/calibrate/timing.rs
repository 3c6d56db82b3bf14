//! Medians of repeated work, alone or on several threads at once, and the line through two of them.

use crate::clock::Clock;
use crate::error::{Error, Result};

/// Repetitions of a measurement at most, and the time after which no further one starts.
const REPETITIONS: usize = 15;
const ENOUGH_US: u64 = 8_000;
/// Looks at a clock within which one that moves has moved.
const LOOKS: usize = 100_000;

/// Fails on a clock that cannot tell one moment from the next.
pub(super) fn check(clock: &dyn Clock) -> Result<()> {
    let start_us = clock.now_us();
    if (0..LOOKS).any(|_| clock.now_us() != start_us) { Ok(()) } else { Err(too_coarse()) }
}

fn too_coarse() -> Error {
    Error::Invalid("the clock is too coarse to measure this tier".into())
}

/// The median time of `work`, which is told the number of the repetition and returns something that depends on its reads.
pub(super) fn median_us(clock: &dyn Clock, mut work: impl FnMut(usize) -> Result<u64>) -> Result<f64> {
    let begin_us = clock.now_us();
    let mut times = Vec::with_capacity(REPETITIONS);
    for number in 0..REPETITIONS {
        let start_us = clock.now_us();
        std::hint::black_box(work(number)?);
        let end_us = clock.now_us();
        times.push(end_us.saturating_sub(start_us));
        if end_us.saturating_sub(begin_us) > ENOUGH_US && number > 1 {
            break;
        }
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or(0) as f64)
}

/// The same on so many threads at once: the mean of their medians.
pub(super) fn median_at_once_us(
    clock: &dyn Clock,
    threads: usize,
    work: impl Fn(usize) -> Result<u64> + Sync,
) -> Result<f64> {
    let work = &work;
    std::thread::scope(|scope| {
        // Each is at another repetition, and so elsewhere.
        let from = |thread: usize| move |number: usize| work(number + thread * REPETITIONS / 2);
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || median_us(clock, from(thread)))).collect();
        let mut sum = median_us(clock, work)?;
        for other in others {
            sum += other.join().map_err(|_| Error::Cancelled)??;
        }
        Ok(sum / threads.max(1) as f64)
    })
}

/// Latency and bandwidth of the line through two points of (bytes, microseconds).
pub(super) fn line(small: (u64, f64), large: (u64, f64)) -> Result<(f64, f64)> {
    let (bytes, us) = (large.0.saturating_sub(small.0) as f64, large.1 - small.1);
    if bytes <= 0.0 || us <= 0.0 || !us.is_finite() {
        return Err(too_coarse());
    }
    let bytes_per_us = bytes / us;
    Ok(((small.1 - small.0 as f64 / bytes_per_us).max(0.0), bytes_per_us))
}
