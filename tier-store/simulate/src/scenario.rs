//! The workloads: seeded draws of reads, epoch by epoch, from shares that may change with time.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::world::{CHUNKS, COLUMNS, SEGMENTS, TIERS};

/// Scans per epoch.
const READS: u32 = 400;
/// Share of a segment outside the hot set, relative to one in it.
const BACKGROUND: f64 = 0.01;
/// Chunks of a hot set: about as many as DRAM holds.
const HOT: usize = 8;
/// Epochs in which the hot range stays before it moves on by one chunk.
const STAY: u32 = 6;
/// Epochs of one phase of the periodic scenario.
const PHASE: u32 = 12;
/// Tenants, each with the same number of chunks.
const TENANTS: usize = 10;
/// Epoch in which the one-off scan reads everything, or begins to.
pub(super) const SCAN_EPOCH: u32 = 20;
/// Chunks that the long scan reads in an epoch.
const LONG_SCAN_CHUNKS: usize = 5;
/// Losses of devices: of the second tier, then of the home.
pub(super) const LOSSES: [Outage; 2] = [Outage { tier: 1, from: 15, to: 21 }, Outage { tier: 2, from: 26, to: 30 }];
/// Failures of devices: of the second tier, then of the home.
pub(super) const FAULTS: [Outage; 2] = [Outage { tier: 1, from: 10, to: 17 }, Outage { tier: 2, from: 22, to: 29 }];

/// Epochs in which a device is lost or fails.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outage {
    /// Position of the tier.
    pub(super) tier: usize,
    /// The first epoch of the outage.
    pub(super) from: u32,
    /// The first epoch after it.
    pub(super) to: u32,
}

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
    /// Stable, and one scan of everything that takes many epochs; the loop knows its expected reads.
    LongScan,
    /// Ten tenants with binomial shares of the queries (Dreseler 2021, section 7.2.3).
    Tenants,
    /// Two hot sets, each of which would fill DRAM, that take turns every epoch.
    Alternation,
    /// Stable; the second tier is lost and returns, then the home cannot be read for some epochs.
    Loss,
    /// A hot range that moves on, while the second tier fails for some epochs, and later the home: segments there stay.
    Faults,
}

/// A change of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// True: the device is gone with its segments. False: it is back, and empty.
    Lost(bool),
    /// True: all operations fail. False: they work again. Its segments stay.
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

    /// The changes of devices before an epoch, by tier.
    pub(super) fn events(self, epoch: u32) -> impl Iterator<Item = (usize, Event)> {
        let (outages, event): (&[Outage], fn(bool) -> Event) = match self {
            Self::Loss => (&LOSSES, Event::Lost),
            Self::Faults => (&FAULTS, Event::Fails),
            _ => (&[], Event::Lost),
        };
        outages.iter().filter_map(move |outage| match epoch {
            e if e == outage.from => Some((outage.tier, event(true))),
            e if e == outage.to => Some((outage.tier, event(false))),
            _ => None,
        })
    }

    /// True while a tier is lost.
    pub(super) fn is_lost(self, tier: usize, epoch: u32) -> bool {
        let has_outage = |outage: &Outage| outage.tier == tier && (outage.from..outage.to).contains(&epoch);
        self == Self::Loss && LOSSES.iter().any(has_outage)
    }

    /// Description of the event before an epoch.
    pub(super) fn event_text(self, epoch: u32) -> Option<String> {
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
    pub(super) fn pending_chunks(self, epoch: u32) -> Range<usize> {
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

    /// The share of the reads that go to a segment, relative to the others.
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

/// Zipf's shares, assigned to the segments at random.
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
