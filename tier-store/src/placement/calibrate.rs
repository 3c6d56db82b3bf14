//! Calibration: what a small and a large read cost on each tier, measured through the code a scan uses.
//!
//! Two points give a latency and a bandwidth; byte-addressable tiers are also touched at scattered places. A tier that
//! cannot be measured (no room, no device) gets a typical profile, and the result says so. Tiers are listed fastest
//! first by whoever set them up, so noise is not allowed to say otherwise: each is held slower than the one before.
//! What decompressing costs is measured beside them: files are compressed where that is less than their device saves.

mod decompression;
mod work;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cost::{CACHE_LINE_BYTES, TierCost};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::io::{Depth, FileSystem, IoFile, ReadHandle};
use crate::migrate::{HomeTier, Probe};
use crate::tier::codec::{DecompressionRates, Rates};
use crate::tier::{MemoryTier, TierKind};

/// Image sizes tried on memory tiers: larger than the caches of a core, if there is room.
const LARGE_BYTES: [usize; 3] = [8 << 20, 2 << 20, 256 << 10];
const SMALL_BYTES: usize = 4 << 10;
const BLOCK_BYTES: [usize; 2] = [16 << 10, 1 << 20];
const SCRATCH_BYTES: usize = 4 << 20;
pub(crate) const SCRATCH_NAME: &str = "calibration.tmp";
const TOUCHES: usize = 8192;
/// Repetitions of a measurement, and the time after which no further one starts: 3 per memory tier and up to 7 for the
/// home, and 120 ms for the work of reading, so 4 tiers take < 0.5 s, unless the device is slow.
const REPETITIONS: usize = 15;
const ENOUGH_US: u64 = 20_000;
/// What is read to measure how many reads at once keep a device busy, in large blocks.
const DEPTH_BLOCKS: usize = 16;
/// More reads at once are worth it when they are so much quicker.
const GAIN: f64 = 0.95;
/// A tier is at least this much slower than the one before it.
const STEP: f64 = 1.05;

/// One tier's measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierProfile {
    /// Name of the tier.
    pub name: String,
    /// Its kind.
    pub kind: TierKind,
    /// What it stands on; another text means another device.
    pub device: String,
    /// The cost profile.
    pub cost: TierCost,
    /// What the device gives to many reads at once; `None` for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
    /// False when `cost` is only typical of the kind.
    pub measured: bool,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A device that is kept busy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// Bytes in flight that are enough.
    pub depth_bytes: u64,
    /// What it gives then, in bytes per microsecond.
    pub bytes_per_us: f64,
    /// Time of cores that a byte costs to read and check, in microseconds; 0 where the kernel does not say, none in
    /// calibrations of versions that did not ask, or that counted the kernel's clearing of fresh memory.
    #[serde(default)]
    pub cores_us_per_byte: Option<f64>,
}

/// The measurements of all tiers, fastest first, the home last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// When, in microseconds since the Unix epoch.
    pub unix_us: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// One per tier.
    pub tiers: Vec<TierProfile>,
    /// What decompressing costs; none in calibrations of versions that never did.
    #[serde(default)]
    pub decompression: Option<DecompressionRates>,
}

impl Calibration {
    /// The speeds of the home and of decompression: what to compress depends on.
    pub fn rates(&self) -> Option<Rates> {
        let home = self.tiers.last()?;
        let [sequential, ..] = home.cost.patterns;
        let device = home.busy.map_or(sequential.bytes_per_us, |busy| busy.bytes_per_us);
        Some(Rates { device, decompression: self.decompression? })
    }

    /// True when it was measured on these tiers, and whole.
    pub fn fits(&self, tiers: &[Arc<dyn MemoryTier>], home: &dyn HomeTier) -> bool {
        let devices = tiers.iter().map(|t| (t.name(), t.describe())).chain([(home.name(), home.describe())]);
        let known = self.tiers.iter().map(|p| (p.name.as_str(), p.device.clone()));
        let whole = |profile: &TierProfile| profile.busy.is_none_or(|busy| busy.cores_us_per_byte.is_some());
        self.decompression.is_some() && self.tiers.iter().all(whole) && devices.eq(known)
    }
}

/// Measures every tier; takes less than half a second on an idle machine with an SSD and leaves nothing behind. Never fails: see
/// [`TierProfile::measured`].
pub fn calibrate(tiers: &[Arc<dyn MemoryTier>], home: &dyn HomeTier, clock: &dyn Clock) -> Calibration {
    let (start_us, unix_us) = (clock.now_us(), clock.unix_us());
    let mut profiles: Vec<TierProfile> = tiers.iter().map(|tier| measure_tier(tier.as_ref(), clock)).collect();
    profiles.push(profile(home.name(), TierKind::Ssd, home.describe(), measure_home(home, clock)));
    keep_order(&mut profiles);
    let decompression = Some(decompression::measure(clock));
    Calibration { unix_us, took_us: clock.now_us().saturating_sub(start_us), tiers: profiles, decompression }
}

/// Measures one memory tier; see [`calibrate`].
pub(super) fn measure_tier(tier: &dyn MemoryTier, clock: &dyn Clock) -> TierProfile {
    let measured = measure_memory(tier, clock).map(|cost| (cost, None));
    profile(tier.name(), tier.kind(), tier.describe(), measured)
}

fn profile(name: &str, kind: TierKind, device: String, measured: Result<(TierCost, Option<Busy>)>) -> TierProfile {
    let (cost, busy, note) = match measured {
        Ok((cost, busy)) => (cost, busy, None),
        Err(error) => (TierCost::typical(kind), None, Some(error.to_string())),
    };
    TierProfile { name: name.into(), kind, device, cost, busy, measured: note.is_none(), note }
}

/// Holds each slower than the one before.
pub(super) fn keep_order(profiles: &mut [TierProfile]) {
    let mut before: Option<TierCost> = None;
    for profile in profiles {
        if let Some(before) = before {
            for (cost, faster) in profile.cost.patterns.iter_mut().zip(before.patterns) {
                cost.latency_us = cost.latency_us.max(faster.latency_us * STEP);
                cost.bytes_per_us = cost.bytes_per_us.min(faster.bytes_per_us / STEP);
            }
        }
        before = Some(profile.cost);
    }
}

fn measure_memory(tier: &dyn MemoryTier, clock: &dyn Clock) -> Result<TierCost> {
    let mut stored = Err(Error::Invalid(String::new()));
    for len in LARGE_BYTES {
        stored = tier.store(&vec![1; len]);
        if stored.is_ok() {
            break;
        }
    }
    let stored = stored?;
    let image = stored.buffer.as_slice();
    let small = image.get(..SMALL_BYTES.min(image.len())).unwrap_or(image);
    let read = |bytes: &[u8]| {
        tier.touch(bytes.len() as u64, 0);
        sum(bytes)
    };
    // A few microseconds are below the clock's grain: many small reads, spread over the image, per measurement.
    let places = || image.chunks(SMALL_BYTES * 4).map(|place| place.get(..small.len()).unwrap_or(place));
    let small_us = || median_us(clock, |_| Ok(places().map(read).fold(0, u64::wrapping_add)));
    let large_us = || median_us(clock, |_| Ok(read(image)));
    let count = places().count() as f64;
    let measure = || line((small.len(), small_us()? / count), (image.len(), large_us()?));
    let (latency_us, bytes_per_us) = again(measure)?;
    let touch_us = median_us(clock, |seed| {
        tier.touch(0, TOUCHES as u64);
        Ok(scattered(image, seed))
    })? / TOUCHES as f64;
    Ok(TierCost::new(latency_us, touch_us, bytes_per_us, Some(CACHE_LINE_BYTES)))
}

fn measure_home(home: &dyn HomeTier, clock: &dyn Clock) -> Result<(TierCost, Option<Busy>)> {
    let probe = home.probe().ok_or_else(|| Error::Unsupported(format!("measuring {}", home.name())))?;
    let scratch = Scratch::create(&probe)?;
    let file = probe.io.open(&scratch.path)?;
    let time = |len: usize| {
        let places = SCRATCH_BYTES / len;
        median_us(clock, |number| {
            let offset = (number * 7 % places * len) as u64;
            let bytes = probe.io.read(&file, offset, len).wait()?;
            // A scan checks what it reads.
            Ok(u64::from(crc32c::crc32c(bytes.as_slice())))
        })
    };
    let [small, large] = BLOCK_BYTES;
    let (latency_us, bytes_per_us) = again(|| line((small, time(small)?), (large, time(large)?)))?;
    let before = probe.io.depth().bytes();
    let busy = busy(&probe, &file, clock).inspect_err(|_| probe.io.depth().set(before))?;
    Ok((TierCost::new(latency_us, latency_us, bytes_per_us, None), Some(busy)))
}

/// Bytes in flight behind which a device gains nothing: twice as many reads at once are tried until they are not worth it.
/// There are to be twice as many, so that one waits while another is answered.
fn busy(probe: &Probe, file: &Arc<IoFile>, clock: &dyn Clock) -> Result<Busy> {
    let [_, block] = BLOCK_BYTES;
    let places = SCRATCH_BYTES / block;
    let wait = |read: Option<ReadHandle>| -> Result<u64> {
        read.map_or(Ok(0), |read| Ok(read.wait()?.as_slice().len() as u64))
    };
    let time = |at_once: usize| {
        median_us(clock, |_| {
            let (mut running, mut bytes) = (VecDeque::new(), 0);
            for number in 0..DEPTH_BLOCKS {
                if running.len() == at_once {
                    bytes += wait(running.pop_front())?;
                }
                running.push_back(probe.io.read(file, (number % places * block) as u64, block));
            }
            while !running.is_empty() {
                bytes += wait(running.pop_front())?;
            }
            Ok(bytes)
        })
    };
    probe.io.depth().set(Depth::MOST);
    let (mut at_once, mut us) = (1, time(1)?);
    while at_once < DEPTH_BLOCKS / 2 {
        let more = time(at_once * 2)?;
        if more > us * GAIN {
            break;
        }
        (at_once, us) = (at_once * 2, more);
    }
    let (depth_bytes, bytes_per_us) = ((2 * at_once * block) as u64, (DEPTH_BLOCKS * block) as f64 / us.max(1.0));
    let cores_us_per_byte = Some(work::measure(probe, file, clock, depth_bytes)?.unwrap_or_default());
    Ok(Busy { depth_bytes, bytes_per_us, cores_us_per_byte })
}

/// What `measure` finds; up to three times, as other work may come in its way.
fn again<T>(measure: impl Fn() -> Result<T>) -> Result<T> {
    measure().or_else(|_| measure()).or_else(|_| measure())
}

/// Latency and bandwidth of the line through two points of (bytes, microseconds).
fn line(small: (usize, f64), large: (usize, f64)) -> Result<(f64, f64)> {
    let (bytes, us) = (large.0.saturating_sub(small.0) as f64, large.1 - small.1);
    if bytes <= 0.0 || us <= 0.0 || !us.is_finite() {
        return Err(Error::Invalid("the clock is too coarse to measure this tier".into()));
    }
    let bytes_per_us = bytes / us;
    Ok(((small.1 - small.0 as f64 / bytes_per_us).max(0.0), bytes_per_us))
}

/// The median time of `work`, which is told the number of the repetition and returns something that depends on its reads.
fn median_us(clock: &dyn Clock, mut work: impl FnMut(usize) -> Result<u64>) -> Result<f64> {
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

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    words.fold(0, u64::wrapping_add)
}

fn scattered(image: &[u8], seed: usize) -> u64 {
    let lines = (image.len() / CACHE_LINE_BYTES as usize).max(1);
    let mut state = seed as u64 + 1;
    let mut total = 0_u64;
    for _ in 0..TOUCHES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (state >> 33) as usize % lines * CACHE_LINE_BYTES as usize;
        total = total.wrapping_add(image.get(place).copied().unwrap_or(0).into());
    }
    total
}

/// A file of data that goes when dropped.
struct Scratch<'a> {
    path: PathBuf,
    files: &'a dyn FileSystem,
}

impl<'a> Scratch<'a> {
    fn create(probe: &'a Probe) -> Result<Self> {
        let scratch = Self { path: probe.folder.join(SCRATCH_NAME), files: probe.files.as_ref() };
        scratch.files.write(&scratch.path, &vec![0x5a; SCRATCH_BYTES])?;
        Ok(scratch)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // What cannot be deleted is swept at the next start.
        let _ = self.files.remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::clock::{ManualClock, SystemClock};
    use crate::migrate::testing::FakeHome;
    use crate::placement::PatternCost;
    use crate::tier::dram::DramTier;
    use crate::tier::{Account, TierId};

    fn dram(bytes: u64) -> Vec<Arc<dyn MemoryTier>> {
        vec![Arc::new(DramTier::new(TierId(0), Account::new("dram", bytes)))]
    }

    #[test]
    fn tiers_are_measured_leave_nothing_behind_and_keep_their_order() {
        let (home, tiers) = (FakeHome::on_disk(), dram(32 << 20));
        let calibration = calibrate(&tiers, &home, &SystemClock::default());
        let [dram, ssd] = &calibration.tiers[..] else { unreachable!() };
        assert!(dram.measured && ssd.measured, "{calibration:?}");
        let megabyte_us = |c: &PatternCost| c.latency_us + 1e6 / c.bytes_per_us;
        let faster = |(d, s)| megabyte_us(d) < megabyte_us(s);
        assert!(dram.cost.patterns.iter().zip(&ssd.cost.patterns).all(faster), "{calibration:?}");
        assert!(dram.cost.patterns[0].bytes_per_us > 100.0, "{dram:?}");
        assert!(
            dram.busy.is_none() && ssd.busy.is_some_and(|busy| busy.depth_bytes >= Depth::LEAST),
            "{calibration:?}"
        );
        assert_eq!(tiers[0].account().used_bytes(), 0);
        let rates = calibration.decompression.unwrap();
        assert!(rates.lz4 > 50.0 && rates.zstd > 20.0 && calibration.took_us < 5_000_000, "{calibration:?}");
        assert_eq!(std::fs::read_dir(home.probe().unwrap().folder).unwrap().count(), 0);
        let json = serde_json::to_string(&calibration).unwrap();
        assert!(serde_json::from_str::<Calibration>(&json).unwrap().fits(&tiers, &home));
        // One of a version that did not measure all of it is made anew.
        let mut partial = calibration.clone();
        partial.tiers[1].busy.as_mut().unwrap().cores_us_per_byte = None;
        assert!(calibration.fits(&tiers, &home) && !partial.fits(&tiers, &home));
        let old = Calibration { decompression: None, ..calibration };
        let mut json = serde_json::to_value(&old).unwrap();
        json.as_object_mut().unwrap().remove("decompression");
        let old: Calibration = serde_json::from_value(json).unwrap();
        assert!(!old.fits(&tiers, &home) && old.rates().is_none());
    }

    #[test]
    fn what_cannot_be_measured_gets_a_typical_profile_and_says_so() {
        // No room, no device; and a clock that stands still.
        for (tiers, clock) in [(dram(0), true), (dram(32 << 20), false)] {
            let clock: Arc<dyn Clock> =
                if clock { Arc::new(SystemClock::default()) } else { Arc::new(ManualClock::default()) };
            let calibration = calibrate(&tiers, &FakeHome::default(), clock.as_ref());
            assert!(calibration.tiers.iter().all(|t| !t.measured && t.note.is_some()), "{calibration:?}");
            assert_eq!(calibration.tiers[0].cost, TierCost::typical(TierKind::Dram));
        }
    }
}
