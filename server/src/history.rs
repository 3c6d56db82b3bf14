//! The last hours of the server as samples, which the cockpit draws as lines.
//!
//! A task reads the counters of the components every [`INTERVAL`] and keeps the last [`MOST_SAMPLES`] samples in a ring,
//! which takes about a megabyte whatever the server does. Reading takes no lock for long and walks over no table. The samples
//! are in memory only: after a restart the history begins anew. Who needs more keeps the metrics in Prometheus.
//!
//! - `point`: samples merged for an answer
//! - `sample`: one sample

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrace_planner_ext::engine::Engine;
use tokio_util::sync::CancellationToken;

use crate::memory_watch::WatchFigures;

mod point;
mod sample;

pub use point::Point;
pub use sample::TierUse;

use sample::{Reading, Sample, Totals};

/// Time between two samples.
pub const INTERVAL: Duration = Duration::from_secs(15);

/// Samples that are kept: those of six hours.
pub const MOST_SAMPLES: usize = 1_440;

/// The samples of the last hours.
#[derive(Debug, Default)]
pub struct History(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// Samples taken so far, those included that are not kept any more.
    taken: u64,
    /// The counters at the last sample, which began at 0 with the process.
    totals: Totals,
    /// When the last sample was taken, by the clock.
    last_us: Option<u64>,
}

impl History {
    /// Takes a sample now and every [`INTERVAL`], until `stop` is cancelled.
    pub async fn keep_current(
        self: Arc<Self>,
        engine: Arc<Engine>,
        memory: Arc<WatchFigures>,
        stop: CancellationToken,
    ) {
        loop {
            self.record(Reading::take(&engine, &memory));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    fn record(&self, reading: Reading) {
        let mut ring = self.0.lock();
        let span_us = ring.last_us.map_or(0, |last_us| reading.now_us.saturating_sub(last_us));
        ring.last_us = Some(reading.now_us);
        let done = reading.totals.since(&ring.totals);
        ring.totals = reading.totals;
        if ring.samples.len() == MOST_SAMPLES {
            ring.samples.pop_front();
        }
        ring.samples.push_back(Sample { span_us, done, state: reading.state });
        ring.taken += 1;
    }

    /// The samples since `since_unix_us`, oldest first. Where there are more than `most`, neighbours are merged; `most` is 2 at
    /// least.
    pub fn points(&self, since_unix_us: u64, most: usize) -> Vec<Point> {
        let ring = self.0.lock();
        let first = ring.taken - ring.samples.len() as u64;
        let wanted = (first..).zip(&ring.samples).filter(|(_, sample)| sample.state.unix_us >= since_unix_us);
        let wanted: Vec<(u64, &Sample)> = wanted.collect();
        // Groups begin at multiples of their size, so that a sample stays in its group when others follow.
        let size = (wanted.len() as u64).div_ceil((most as u64).saturating_sub(1).max(1)).max(1);
        let groups = wanted.chunk_by(|one, other| one.0 / size == other.0 / size);
        let point = |group: &[(u64, &Sample)]| {
            let samples: Vec<&Sample> = group.iter().map(|(_, sample)| *sample).collect();
            Point::from_samples(&samples)
        };
        groups.filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::sample::State;
    use super::*;

    /// A reading at a second, when so many statements have ended and so many bytes have moved.
    fn reading(second: u64, ended: u64, moved_bytes: u64) -> Reading {
        let used_bytes = 100 + second;
        let tier = TierUse { name: "dram".to_owned(), used_bytes, budget_bytes: Some(1_000) };
        Reading {
            now_us: second * 1_000_000,
            state: State { unix_us: second * 1_000_000, tiers: vec![tier], running: second % 3, ..State::default() },
            totals: Totals { ended: [ended, 0, 0], moved_bytes, ..Totals::default() },
        }
    }

    #[test]
    fn samples_have_what_happened_since_the_one_before() {
        let history = History::default();
        for (second, ended, moved) in [(10, 5, 100), (25, 7, 100), (40, 7, 400)] {
            history.record(reading(second, ended, moved));
        }
        let points = history.points(0, 100);
        let found: Vec<_> = points.iter().map(|p| (p.unix_us, p.span_us, p.done, p.moved_bytes)).collect();
        let second = 1_000_000;
        assert_eq!(
            found,
            [(10 * second, 0, 5, 100), (25 * second, 15 * second, 2, 0), (40 * second, 15 * second, 0, 300)]
        );
        assert_eq!(history.points(25 * second, 100).len(), 2);
    }

    #[test]
    fn counters_that_begin_again_count_nothing() {
        let history = History::default();
        history.record(reading(1, 5, 900));
        history.record(reading(2, 6, 10));
        assert_eq!(history.points(0, 10)[1].moved_bytes, 0);
    }

    #[test]
    fn neighbours_are_merged_and_the_sums_stay() {
        let history = History::default();
        (1..=100).for_each(|second| history.record(reading(second, 2 * second, 10 * second)));
        for most in [2, 3, 7, 30, 99, 100, 1_000] {
            let points = history.points(0, most);
            assert!(points.len() <= most, "{most}: {}", points.len());
            assert_eq!(points.iter().map(|p| p.done).sum::<u64>(), 200, "{most}");
            assert_eq!(points.iter().map(|p| p.moved_bytes).sum::<u64>(), 1_000, "{most}");
            assert_eq!(points.iter().map(|p| p.span_us).sum::<u64>(), 99_000_000, "{most}");
            assert_eq!(points.last().unwrap().tiers[0].used_bytes, 200, "{most}");
            assert!(points.is_sorted_by_key(|p| p.unix_us));
        }
        // The next sample changes the last group only, or begins one.
        let before = history.points(0, 200);
        history.record(reading(101, 202, 1_010));
        assert_eq!(history.points(0, 200)[..100], before);
    }

    #[test]
    fn the_oldest_samples_go() {
        let history = History::default();
        (1..=MOST_SAMPLES as u64 + 5).for_each(|second| history.record(reading(second, second, 0)));
        let points = history.points(0, MOST_SAMPLES + 100);
        assert_eq!((points.len(), points[0].unix_us), (MOST_SAMPLES, 6_000_000));
        assert!(History::default().points(0, 10).is_empty());
    }
}
