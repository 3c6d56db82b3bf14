//! Neighbouring samples, merged into one point of the lines.

use serde::Serialize;
use terrace_tier_store::durations::BOUNDS_US;
use utoipa::ToSchema;

use super::sample::{Sample, TierUse, Totals};

/// A point of the history: one sample, or several that follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = HistoryPoint)]
pub struct Point {
    /// Its end, in microseconds since the Unix epoch.
    pub unix_us: u64,
    /// Time that its counts cover, in microseconds; 0 at the start of the server.
    pub span_us: u64,
    /// The tiers at its end, fastest first, each with the most bytes of this time.
    pub tiers: Vec<TierUse>,
    /// Most statements that executed at a sample.
    pub running: u64,
    /// Most statements that waited for an execution slot at a sample.
    pub queued: u64,
    /// Most query memory that was in use at a sample.
    pub query_memory_bytes: u64,
    /// Most memory of the process at a sample.
    pub resident_bytes: u64,
    /// Statements that ended well.
    pub done: u64,
    /// Statements that ended with an error.
    pub failed: u64,
    /// Statements that were cancelled.
    pub cancelled: u64,
    /// The time that half of the queries that ended did not exceed, an estimate in microseconds; `null` without any.
    #[schema(required)]
    pub p50_us: Option<u64>,
    /// The time that 99 % of these queries did not exceed, an estimate in microseconds; `null` without any.
    #[schema(required)]
    pub p99_us: Option<u64>,
    /// Moves of segments.
    pub moves: u64,
    /// Bytes of these moves.
    pub moved_bytes: u64,
    /// Bytes read from the disk.
    pub read_bytes: u64,
    /// Bytes written to the disk.
    pub written_bytes: u64,
}

impl Point {
    /// The point of some samples, oldest first; `None` without any.
    pub(super) fn from_samples(samples: &[&Sample]) -> Option<Self> {
        let last = samples.last()?;
        let most = |value: fn(&Sample) -> u64| samples.iter().map(|sample| value(sample)).max().unwrap_or(0);
        let most_used = |name: &str| {
            let tiers = samples.iter().flat_map(|sample| &sample.state.tiers);
            tiers.filter(|tier| tier.name == name).map(|tier| tier.used_bytes).max().unwrap_or(0)
        };
        let mut sums = Totals::default();
        samples.iter().for_each(|sample| sums.add(&sample.done));
        let [done, failed, cancelled] = sums.ended;
        let tiers = last.state.tiers.iter();
        Some(Self {
            unix_us: last.state.unix_us,
            span_us: samples.iter().map(|sample| sample.span_us).sum(),
            tiers: tiers.map(|tier| TierUse { used_bytes: most_used(&tier.name), ..tier.clone() }).collect(),
            running: most(|sample| sample.state.running),
            queued: most(|sample| sample.state.queued),
            query_memory_bytes: most(|sample| sample.state.query_memory_bytes),
            resident_bytes: most(|sample| sample.state.resident_bytes),
            done,
            failed,
            cancelled,
            p50_us: percentile_us(&sums.durations, 0.5),
            p99_us: percentile_us(&sums.durations, 0.99),
            moves: sums.moves,
            moved_bytes: sums.moved_bytes,
            read_bytes: sums.read_bytes,
            written_bytes: sums.written_bytes,
        })
    }
}

/// The duration that this share of those counted did not exceed, in microseconds: estimated between the bounds that it lies
/// between, and the greatest bound if it is longer. `None` without any.
fn percentile_us(counts: &[u64], share: f64) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = share * all as f64;
    let mut before = 0.0;
    let mut lower = 0.0;
    for (count, bound) in counts.iter().zip(BOUNDS_US) {
        let (count, bound) = (*count as f64, bound as f64);
        if count > 0.0 && before + count >= wanted {
            return Some((lower + (bound - lower) * ((wanted - before) / count).max(0.0)) as u64);
        }
        before += count;
        lower = bound;
    }
    Some(lower as u64)
}

#[cfg(test)]
mod tests {
    use terrace_tier_store::durations::Durations;

    use super::*;

    #[test]
    fn percentiles_lie_between_their_bounds() {
        assert_eq!(percentile_us(&[], 0.5), None);
        assert_eq!(percentile_us(&Durations::default().sums().counts, 0.5), None);
        let durations = Durations::default();
        (0..99).for_each(|_| durations.record(150));
        durations.record(1_500_000);
        let counts = durations.sums().counts;
        let p50 = percentile_us(&counts, 0.5).unwrap_or(0);
        assert!((100..=200).contains(&p50), "{p50}");
        assert_eq!(percentile_us(&counts, 0.99), Some(200));
        let longest = percentile_us(&counts, 1.0).unwrap_or(0);
        assert!((1_000_000..=2_000_000).contains(&longest), "{longest}");
        let endless = Durations::default();
        endless.record(u64::MAX / 2);
        assert_eq!(percentile_us(&endless.sums().counts, 0.5), BOUNDS_US.last().copied());
    }
}
