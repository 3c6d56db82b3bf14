//! What users do to a store, epoch by epoch: seeded draws from shares that may change with time.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::world::{CHUNKS, COLUMNS, SEGMENTS, TIERS};

/// Scans per epoch.
const READS: u32 = 400;
/// Share of a segment that belongs to no hot set, against one that does.
const BACKGROUND: f64 = 0.01;
/// Chunks of a hot set: about what DRAM holds.
const HOT: usize = 8;
/// Epochs in which the hot range stays before it goes on by one chunk.
const STAY: u32 = 6;
/// Epochs of one phase of the periodic scenario.
const PHASE: u32 = 12;
/// Tenants, each with as many chunks.
const TENANTS: usize = 10;
/// When the one-off scan reads everything, or begins to.
pub(super) const SCAN_EPOCH: u32 = 20;
/// Chunks that the long scan reads in an epoch.
const LONG_SCAN_CHUNKS: usize = 5;
/// When the second tier is lost and when it is back; then the same of the home.
pub(super) const LOSSES: [(usize, u32, u32); 2] = [(1, 15, 21), (2, 26, 30)];
/// When the second tier takes no writes and when it does again; then the same of reads from the home.
pub(super) const FAULTS: [(usize, u32, u32); 2] = [(1, 10, 17), (2, 22, 29)];

/// A kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// The same skewed popularity all the time.
    Stable,
    /// A hot range of chunks that moves on.
    Drift,
    /// Two hot ranges that take turns for many epochs each.
    Periodic,
    /// Stable, and one scan of everything.
    FullScan,
    /// Stable, and one scan of everything that goes on for many epochs; these know what it still has to read.
    LongScan,
    /// Ten tenants with binomial shares of the queries (Dreseler 2021, section 7.2.3).
    Tenants,
    /// Two hot sets, each of which would fill DRAM, that take turns every epoch.
    Alternation,
    /// Stable; the second tier is lost and returns, then the home cannot be read for some epochs.
    Loss,
    /// A hot range that moves on, while the second tier fails for some epochs, and later the home: what lies there stays.
    Faults,
}

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It is gone with what lies on it, or back and empty.
    Lost(bool),
    /// It fails whatever is asked of it, or does not any more; what lies on it stays.
    Fails(bool),
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Stable,
        Self::Drift,
        Self::Periodic,
        Self::FullScan,
        Self::LongScan,
        Self::Tenants,
        Self::Alternation,
        Self::Loss,
        Self::Faults,
    ];

    /// Name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Drift => "drift",
            Self::Periodic => "periodic",
            Self::FullScan => "full-scan",
            Self::LongScan => "long-scan",
            Self::Tenants => "tenants",
            Self::Alternation => "alternation",
            Self::Loss => "loss",
            Self::Faults => "faults",
        }
    }

    /// What happens to the devices before an epoch, by tier.
    pub(super) fn events(self, epoch: u32) -> impl Iterator<Item = (usize, Event)> {
        let (times, event): (&[_], fn(bool) -> Event) = match self {
            Self::Loss => (&LOSSES, Event::Lost),
            Self::Faults => (&FAULTS, Event::Fails),
            _ => (&[], Event::Lost),
        };
        times.iter().filter_map(move |(tier, from, to)| match epoch {
            e if e == *from => Some((*tier, event(true))),
            e if e == *to => Some((*tier, event(false))),
            _ => None,
        })
    }

    /// True while a tier is lost.
    pub(super) fn is_lost(self, tier: usize, epoch: u32) -> bool {
        self == Self::Loss && LOSSES.iter().any(|(lost, from, to)| *lost == tier && (*from..*to).contains(&epoch))
    }

    /// The event before an epoch in words.
    pub(super) fn words(self, epoch: u32) -> Option<String> {
        if self == Self::FullScan && epoch == SCAN_EPOCH {
            return Some("one scan of everything".into());
        }
        if self == Self::LongScan && epoch == SCAN_EPOCH {
            return Some("a long scan of everything begins".into());
        }
        let name = |tier: usize| TIERS.get(tier).copied().unwrap_or("?");
        self.events(epoch).next().map(|(tier, event)| {
            let what = match event {
                Event::Lost(true) => "is lost",
                Event::Lost(false) => "is back",
                Event::Fails(true) => "fails",
                Event::Fails(false) => "works again",
            };
            format!("{} {what}", name(tier))
        })
    }

    /// Chunks that a scan under way has yet to read at the end of an epoch.
    pub(super) fn untaken(self, epoch: u32) -> Range<usize> {
        let begun = self == Self::LongScan && epoch >= SCAN_EPOCH;
        if begun { scanned(epoch).end..CHUNKS } else { 0..0 }
    }

    /// Scans of every segment in each of `epochs` epochs.
    pub(super) fn reads(self, seed: u64, epochs: u32) -> Vec<Vec<u32>> {
        let mut rng = StdRng::seed_from_u64(seed);
        let skew = skew(&mut rng);
        (0..epochs).map(|epoch| self.draw(epoch, &skew, &mut rng)).collect()
    }

    fn draw(self, epoch: u32, skew: &[f64], rng: &mut StdRng) -> Vec<u32> {
        let is_scanned = |at: usize| match self {
            Self::FullScan => epoch == SCAN_EPOCH,
            Self::LongScan => scanned(epoch).contains(&(at / COLUMNS.len())),
            _ => false,
        };
        let mut reads: Vec<u32> = (0..SEGMENTS).map(|at| u32::from(is_scanned(at))).collect();
        let mut sum = 0.0;
        let upto: Vec<f64> = (0..SEGMENTS)
            .map(|at| {
                sum += self.share(epoch, at, skew);
                sum
            })
            .collect();
        for _ in 0..READS {
            let drawn = rng.random_range(0.0..sum.max(f64::MIN_POSITIVE));
            if let Some(count) = reads.get_mut(upto.partition_point(|upto| *upto <= drawn)) {
                *count += 1;
            }
        }
        reads
    }

    /// How often a segment is read, against the others.
    fn share(self, epoch: u32, at: usize, skew: &[f64]) -> f64 {
        let chunk = at / COLUMNS.len();
        let hot = |first: usize| if (chunk + CHUNKS - first % CHUNKS) % CHUNKS < HOT { 1.0 } else { BACKGROUND };
        let skewed = |at: usize| skew.get(at).copied().unwrap_or(0.0);
        match self {
            Self::Stable | Self::FullScan | Self::LongScan | Self::Loss => skewed(at),
            Self::Drift | Self::Faults => hot((epoch / STAY) as usize),
            Self::Periodic => hot(if (epoch / PHASE).is_multiple_of(2) { 0 } else { CHUNKS / 2 }),
            Self::Alternation => hot(if epoch.is_multiple_of(2) { 0 } else { HOT }),
            // Within a tenant as skewed as any table.
            Self::Tenants => binomial(chunk / (CHUNKS / TENANTS)) * skewed(at),
        }
    }
}

/// Chunks that the long scan reads in an epoch.
fn scanned(epoch: u32) -> Range<usize> {
    let Some(past) = epoch.checked_sub(SCAN_EPOCH) else { return 0..0 };
    let upto = |epochs: usize| (epochs * LONG_SCAN_CHUNKS).min(CHUNKS);
    upto(past as usize)..upto(past as usize + 1)
}

/// Zipf's shares, dealt out to the segments.
fn skew(rng: &mut StdRng) -> Vec<f64> {
    let mut shares: Vec<f64> = (1..=SEGMENTS).map(|rank| 1.0 / rank as f64).collect();
    shares.shuffle(rng);
    shares
}

/// The share of a tenant: binomial with n = 9, p = 0.5.
fn binomial(tenant: usize) -> f64 {
    let n = TENANTS - 1;
    let ways: f64 = (0..tenant).map(|k| (n - k) as f64 / (k + 1) as f64).product();
    ways / f64::from(1 << n)
}
