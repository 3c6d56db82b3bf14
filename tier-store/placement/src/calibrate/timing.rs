//! Medians of repeated work, alone or on several threads at once, and latency and bandwidth from two of them.

use terrace_model::clock::Clock;
use terrace_model::{Error, Result};

/// Repetitions of a measurement at most, and the time after which no further one starts.
const REPETITIONS: usize = 15;
const ENOUGH_US: u64 = 8_000;
/// Time after which even a single repetition suffices: a hard disk takes seconds for the work of a millisecond on an SSD.
const SLOW_US: u64 = 400_000;
/// Number of times that a clock is read; one that has not advanced by then is too coarse.
const LOOKS: usize = 100_000;

/// Fails on a clock that is too coarse to measure anything.
pub(super) fn check(clock: &dyn Clock) -> Result<()> {
    let start_us = clock.now_us();
    if (0..LOOKS).any(|_| clock.now_us() != start_us) { Ok(()) } else { Err(too_coarse()) }
}

fn too_coarse() -> Error {
    Error::Invalid("the clock is too coarse to measure this tier".into())
}

/// The median time of `work`, which is called with the number of the repetition and returns a value that depends on its
/// reads.
pub(super) fn median_us(clock: &dyn Clock, work: impl FnMut(usize) -> Result<u64>) -> Result<f64> {
    median_after_us(clock, || (), work)
}

/// Like [`median_us`], but calls `before` ahead of each repetition, outside the measured time.
pub(super) fn median_after_us(
    clock: &dyn Clock,
    mut before: impl FnMut(),
    mut work: impl FnMut(usize) -> Result<u64>,
) -> Result<f64> {
    let begin_us = clock.now_us();
    let mut times = Vec::with_capacity(REPETITIONS);
    for number in 0..REPETITIONS {
        before();
        let start_us = clock.now_us();
        std::hint::black_box(work(number)?);
        let end_us = clock.now_us();
        times.push(end_us.saturating_sub(start_us));
        let took_us = end_us.saturating_sub(begin_us);
        if (took_us > ENOUGH_US && number > 1) || took_us > SLOW_US {
            break;
        }
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).copied().unwrap_or(0) as f64)
}

/// Like [`median_after_us`], but on several threads at once; `before` and `work` are called with the number of the thread
/// first. Returns the mean of the threads' medians.
pub(super) fn median_at_once_us(
    clock: &dyn Clock,
    threads: usize,
    before: impl Fn(usize) + Sync,
    work: impl Fn(usize, usize) -> Result<u64> + Sync,
) -> Result<f64> {
    let before = &before;
    let work = &work;
    let run = move |thread: usize| median_after_us(clock, || before(thread), |number| work(thread, number));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let mut sum = run(0)?;
        for other in others {
            sum += other.join().map_err(|_| Error::Cancelled)??;
        }
        Ok(sum / threads.max(1) as f64)
    })
}

/// Largest bandwidth of a line over that of its large read, latency included (it is 2.1 for a disk that takes 8 ms and then
/// gives 150 MB/s). Where each request takes so long that bytes hardly count, the line depends on the difference of two
/// nearly equal times.
const MOST_STEEPER: f64 = 2.5;

/// Size and time of a read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadTime {
    pub(super) bytes: u64,
    pub(super) us: f64,
}

/// Latency in microseconds, and bandwidth in bytes per microsecond, of the line through a small and a large read.
pub(super) fn fit_line(small: ReadTime, large: ReadTime) -> Result<(f64, f64)> {
    let bytes = large.bytes.saturating_sub(small.bytes) as f64;
    let us = large.us - small.us;
    if bytes <= 0.0 || !(large.us > 0.0 && large.us.is_finite()) {
        return Err(too_coarse());
    }
    let most = MOST_STEEPER * large.bytes as f64 / large.us;
    let bytes_per_us = if us > 0.0 { (bytes / us).min(most) } else { most };
    Ok(((small.us - small.bytes as f64 / bytes_per_us).max(0.0), bytes_per_us))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn line(small: (u64, f64), large: (u64, f64)) -> Result<(f64, f64)> {
        let [small, large] = [small, large].map(|(bytes, us)| ReadTime { bytes, us });
        fit_line(small, large)
    }

    #[test]
    fn a_line_is_no_steeper_than_its_points_allow() {
        let (latency_us, bytes_per_us) = line((1_000, 20.0), (11_000, 30.0)).unwrap();
        assert!((bytes_per_us - 916.7).abs() < 0.1 && (latency_us - 18.9).abs() < 0.1);
        assert_eq!(line((1_000, 2.0), (101_000, 102.0)).unwrap(), (1.0, 1_000.0));
        // A disk with an arm: a request takes 7 ms, whatever it reads; now and then the larger one is the quicker.
        for small_us in [6_900.0, 7_000.0, 7_100.0] {
            let (latency_us, bytes_per_us) = line((1 << 16, small_us), (1 << 20, 7_000.0)).unwrap();
            assert!((bytes_per_us - 374.5).abs() < 0.1, "{bytes_per_us}");
            assert!((latency_us - small_us + 175.0).abs() < 1.0, "{latency_us}");
        }
        for none in [(0.0, 0.0), (5.0, f64::NAN), (5.0, 0.0)] {
            line((1_000, none.0), (2_000, none.1)).unwrap_err();
        }
        line((1_000, 1.0), (1_000, 2.0)).unwrap_err();
    }
}
