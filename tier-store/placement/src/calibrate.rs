//! Calibration: measures the cost of accesses on each tier, by pattern, size and number at once, through the code that
//! scans use.
//!
//! Memory is read in place with the kernels by which scans select rows; the home is read from a chunk file like those
//! of tables, whole columns and pages. A [`Point`] is one measurement; the cost profile of a tier is computed from all
//! its points. A tier that cannot be measured (no room, no device) gets a typical profile, and its [`TierProfile`] says
//! so. The configuration lists tiers fastest first, and noise of measurements must not contradict it: each tier is
//! adjusted to be slower than the one before. The cost of decompression is measured too: files are compressed where it
//! is less than the time that their device saves. So is that of the packed form, by which a plan chooses the form of a copy.
//!
//! - [`device`]: measures the device of the home, and the bytes in flight that keep it busy
//! - [`memory`]: measures memory that is read in place
//! - [`decompression`]: measures the rates of decompression
//! - [`forms`]: measures what packing and unpacking cost
//! - [`work`]: measures the CPU time that reading costs
//! - [`point`]: a measurement, and the cost profile that follows from all of a tier
//! - [`sample`]: the chunk file that is read for measurements
//! - [`timing`]: medians of repeated work, alone or on several threads

mod decompression;
mod device;
mod forms;
mod memory;
mod point;
pub(crate) mod sample;
mod timing;
mod work;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use terrace_model::clock::Clock;
use terrace_model::{Error, Pattern, Result, TierKind};
use terrace_storage::io::device::describe_machine;
use terrace_storage::tier::codec::{DecompressionRates, Rates};
use terrace_storage::tier::reader::ReadCost;
use terrace_storage::tier::{HomeTier, MemoryTier};

pub use point::Point;

use super::correction::Correction;
use super::cost::{CACHE_LINE_BYTES, PAGE_BYTES, TierCost};
use super::form_cost::FormCost;

/// Version of the way in which memory and devices are measured; calibrations of other versions are repeated.
const METHOD: u32 = 1;
/// A tier is at least this much slower than the one before it.
const STEP: f64 = 1.05;
/// Time after which a failed measurement is tried again, in microseconds.
const AGAIN_US: u64 = 600_000_000;

/// The measured profile of one tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TierProfile {
    /// Name of the tier.
    pub name: String,
    /// Its kind.
    pub kind: TierKind,
    /// Description of its device; another text means another device, which is measured anew.
    pub device: String,
    /// The cost that follows from the measurements.
    pub cost: TierCost,
    /// The measurements that `cost` follows from; absent when it is typical, and in calibrations of versions that did
    /// not keep them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Point>,
    /// Performance of the device with many reads at once; absent for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub busy: Option<Busy>,
    /// False when `cost` is only typical of the kind.
    pub measured: bool,
    /// True when there was no room to measure it: it is not tried again before there is.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub no_room: bool,
    /// The reason why it was not measured, or why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub note: Option<String>,
}

impl TierProfile {
    /// Makes a profile with a given cost instead of measurements, for simulations.
    pub fn given(name: &str, kind: TierKind, device: impl Into<String>, cost: TierCost) -> Self {
        let bytes = 1 << 20;
        let pattern = Pattern::Sequential;
        let point = Point { pattern, selectivity: None, bytes, places: 1, at_once: 1, us: cost.sweep_us(bytes) };
        let name = name.into();
        let device = device.into();
        let points = vec![point];
        Self { name, kind, device, cost, points, busy: None, measured: true, no_room: false, note: None }
    }

    /// Computes the cost of reads that skip pages, from the profile of the home tier: compares concurrent reads of many
    /// pages of a column with those of few pages. `None` when the profile lacks these measurements.
    pub fn read_cost(&self) -> Option<ReadCost> {
        let pages = || self.points.iter().filter(|point| point.pattern == Pattern::Monotonic);
        let at_once = pages().map(|point| point.at_once).max()?;
        let busiest = || pages().filter(|point| point.at_once == at_once);
        let few = busiest().min_by_key(|p| p.places)?;
        let many = busiest().max_by_key(|p| p.places)?;
        let [sequential, ..] = self.cost.patterns;
        let page_us = (many.us - few.us) / many.places.checked_sub(few.places).filter(|more| *more > 0)? as f64;
        Some(ReadCost { page_us, bytes_per_us: sequential.bytes_per_us })
    }
}

/// Performance of a device with enough reads in flight to keep it busy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Busy {
    /// Bytes in flight that suffice to keep it busy.
    pub depth_bytes: u64,
    /// Its throughput with so many bytes in flight, in bytes per microsecond.
    pub bytes_per_us: f64,
    /// CPU time to read and check a byte, in microseconds; 0 where the kernel does not report it, null in calibrations
    /// of versions that did not measure it, or that counted the kernel's clearing of fresh memory.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub cores_us_per_byte: Option<f64>,
}

/// The measurements of all tiers, fastest first, the home last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Measurements))]
pub struct Calibration {
    /// Version of the measuring method: versions before this field measured the caches of the processor in place of small
    /// memory tiers.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub method: u32,
    /// Time of the calibration, in microseconds since the Unix epoch.
    pub unix_us: u64,
    /// Duration of the calibration, in microseconds.
    pub took_us: u64,
    /// The processor and its cores; another text means another machine, on which all is measured anew.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub machine: String,
    /// One profile per tier.
    pub tiers: Vec<TierProfile>,
    /// Rates of decompression; null in calibrations of versions that did not decompress.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub decompression: Option<DecompressionRates>,
    /// What packing and unpacking cost; absent in calibrations of versions that did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub forms: Option<FormCost>,
    /// Correction of the home's cost by the scans since then.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub correction: Correction,
}

impl Calibration {
    /// Makes a calibration from given profiles, for simulations.
    pub fn given(tiers: Vec<TierProfile>, decompression: Option<DecompressionRates>) -> Self {
        let machine = describe_machine();
        let correction = Correction::default();
        let forms = Some(FormCost::TYPICAL);
        Self { method: METHOD, unix_us: 0, took_us: 0, machine, tiers, decompression, forms, correction }
    }

    /// What packing and unpacking cost: typical figures where it was not measured.
    pub fn form_cost(&self) -> FormCost {
        self.forms.unwrap_or(FormCost::TYPICAL)
    }

    /// The rates of the home and of decompression, by which files are compressed or not.
    pub fn rates(&self) -> Option<Rates> {
        let home = self.tiers.last()?;
        let [sequential, ..] = home.cost.patterns;
        let device = home.busy.map_or(sequential.bytes_per_us, |busy| busy.bytes_per_us);
        Some(Rates { device, decompression: self.decompression? })
    }

    /// The cost profiles for planning: the home's with the correction by scans.
    pub fn costs(&self) -> Vec<TierCost> {
        let mut profiles = self.tiers.clone();
        if let Some(home) = profiles.last_mut() {
            let cores_us_per_byte = home.busy.and_then(|busy| busy.cores_us_per_byte).unwrap_or_default();
            home.cost = self.correction.applied(home.cost, cores_us_per_byte);
        }
        keep_order(&mut profiles);
        profiles.into_iter().map(|profile| profile.cost).collect()
    }

    /// True when it was measured on these tiers, on this machine and with this method, and nothing is missing that could be
    /// measured now.
    pub fn fits(&self, tiers: &[Arc<dyn MemoryTier>], home: &dyn HomeTier) -> bool {
        let devices = tiers.iter().map(|t| (t.name(), t.describe())).chain([(home.name(), home.describe())]);
        let known = self.tiers.iter().map(|p| (p.name.as_str(), p.device.clone()));
        let is_complete = |profile: &TierProfile| {
            let with_points = !profile.measured || !profile.points.is_empty();
            with_points && profile.busy.is_none_or(|busy| busy.cores_us_per_byte.is_some())
        };
        let has_room = |(profile, tier): (&TierProfile, &Arc<dyn MemoryTier>)| {
            profile.no_room && !profile.measured && tier.has_room(memory::SMALLEST_BYTES as u64)
        };
        let complete = self.decompression.is_some()
            && self.forms.is_some()
            && self.tiers.iter().all(is_complete)
            && !self.tiers.iter().zip(tiers).any(has_room);
        complete && self.method == METHOD && self.machine == describe_machine() && devices.eq(known)
    }

    /// True when a tier could not be measured, and it is time to try again.
    pub(super) fn is_retry_due(&self, unix_us: u64) -> bool {
        !self.is_complete() && unix_us.abs_diff(self.unix_us) > AGAIN_US
    }

    /// True when every tier was measured, except those without room for it.
    pub(super) fn is_complete(&self) -> bool {
        self.tiers.iter().all(|profile| profile.measured || profile.no_room)
    }

    /// Takes the profiles of tiers that could not be measured from an earlier calibration, where machine, method and device
    /// are the same.
    fn with_earlier(mut self, before: Option<&Self>) -> Self {
        let same = |before: &&Self| (&before.machine, before.method) == (&self.machine, self.method);
        let Some(before) = before.filter(same) else { return self };
        for profile in self.tiers.iter_mut().filter(|profile| !profile.measured) {
            let same = |known: &&TierProfile| {
                known.measured && (&known.name, &known.device) == (&profile.name, &profile.device)
            };
            let Some(known) = before.tiers.iter().find(same) else { continue };
            let why = profile.note.take().unwrap_or_default();
            *profile = TierProfile {
                note: Some(format!("measured earlier; the last attempt failed: {why}")),
                ..known.clone()
            };
        }
        keep_order(&mut self.tiers);
        self
    }
}

/// Measures every tier; takes about half a second on an idle machine with an SSD and leaves no files behind. Never fails:
/// see [`TierProfile::measured`]. A tier that cannot be measured keeps its profile in `before`, if there is one.
pub fn calibrate(
    tiers: &[Arc<dyn MemoryTier>],
    home: &dyn HomeTier,
    clock: &dyn Clock,
    before: Option<&Calibration>,
) -> Calibration {
    let start_us = clock.now_us();
    let unix_us = clock.unix_us();
    let mut profiles: Vec<TierProfile> = tiers.iter().map(|tier| measure_tier(tier.as_ref(), clock)).collect();
    profiles.push(profile(home.name(), home.kind(), home.describe(), measure_home(home, clock)));
    keep_order(&mut profiles);
    let decompression = Some(decompression::measure(clock));
    let forms = Some(forms::measure(clock));
    let machine = describe_machine();
    let correction = Correction::default();
    let took_us = clock.now_us().saturating_sub(start_us);
    Calibration { method: METHOD, unix_us, took_us, machine, tiers: profiles, decompression, forms, correction }
        .with_earlier(before)
}

/// The measurements of a tier.
struct Measurement {
    cost: TierCost,
    points: Vec<Point>,
    busy: Option<Busy>,
}

/// Measures one memory tier; see [`calibrate`].
pub(super) fn measure_tier(tier: &dyn MemoryTier, clock: &dyn Clock) -> TierProfile {
    let measured = timing::check(clock).and_then(|()| {
        with_retries(|| {
            let points = memory::measure(tier, clock)?;
            Ok(Measurement { cost: point::profile(&points, CACHE_LINE_BYTES)?, points, busy: None })
        })
    });
    profile(tier.name(), tier.kind(), tier.describe(), measured)
}

fn measure_home(home: &dyn HomeTier, clock: &dyn Clock) -> Result<Measurement> {
    let measured = home.for_measurements().ok_or_else(|| Error::Unsupported(format!("measuring {}", home.name())))?;
    with_retries(|| {
        let (points, busy) = device::measure(&measured, clock)?;
        Ok(Measurement { cost: point::profile(&points, PAGE_BYTES)?, points, busy: Some(busy) })
    })
}

/// The profile of a tier: the measured one, or a typical one with the error as its note.
fn profile(name: &str, kind: TierKind, device: String, measured: Result<Measurement>) -> TierProfile {
    let name = name.into();
    let cost = TierCost::typical(kind);
    match measured {
        Ok(Measurement { cost, points, busy }) => {
            TierProfile { name, kind, device, cost, points, busy, measured: true, no_room: false, note: None }
        }
        Err(error) => {
            let no_room = matches!(error, Error::BudgetExceeded { .. });
            let points = Vec::new();
            let note = Some(error.to_string());
            TierProfile { name, kind, device, cost, points, busy: None, measured: false, no_room, note }
        }
    }
}

/// Adjusts each profile to be slower than the one before.
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

/// Calls `measure` up to three times until it succeeds: other work may disturb a measurement.
fn with_retries<T>(measure: impl Fn() -> Result<T>) -> Result<T> {
    measure().or_else(|_| measure()).or_else(|_| measure())
}

/// Returns the sum of the 8-byte words of `bytes`, so that a measurement reads all of them.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    words.fold(0, u64::wrapping_add)
}

/// A generator of pseudo-random numbers, always the same ones.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use terrace_model::clock::{ManualClock, SystemClock};
    use terrace_model::{Account, Pattern, TierId};
    use terrace_storage::io::simulated::{Faults, SimulatedEngine};
    use terrace_storage::io::{
        AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle,
    };
    use terrace_storage::migrate::testing::FakeHome;
    use terrace_storage::tier::dram::DramTier;
    use terrace_test_support::depth::by_depth;

    use super::*;
    use crate::PatternCost;

    fn dram(bytes: u64) -> Vec<Arc<dyn MemoryTier>> {
        vec![Arc::new(DramTier::new(TierId(0), Account::new("dram", bytes)))]
    }

    fn is_measured(calibration: &Calibration) -> bool {
        calibration.tiers.iter().all(|profile| profile.measured)
    }

    #[test]
    fn tiers_are_measured_leave_nothing_behind_and_keep_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let home = FakeHome::on_disk(folder.path());
        let tiers = dram(32 << 20);
        let calibration = calibrate(&tiers, &home, &SystemClock::default(), None);
        let [dram, ssd] = &calibration.tiers[..] else { unreachable!() };
        assert!(dram.measured && ssd.measured, "{calibration:?}");
        let megabyte_us = |c: &PatternCost| c.latency_us + 1e6 / c.bytes_per_us;
        let faster = |(d, s)| megabyte_us(d) < megabyte_us(s);
        assert!(dram.cost.patterns.iter().zip(&ssd.cost.patterns).all(faster), "{calibration:?}");
        assert!(
            dram.busy.is_none() && ssd.busy.is_some_and(|busy| busy.depth_bytes >= Depth::LEAST),
            "{calibration:?}"
        );
        assert_eq!(tiers[0].account().used_bytes(), 0);
        let rates = calibration.decompression.unwrap();
        assert!(rates.lz4 > 0.0 && rates.zstd > 0.0, "{calibration:?}");
        assert_eq!(std::fs::read_dir(home.disk.as_ref().unwrap().dir()).unwrap().count(), 0);
        // All patterns, several sizes, alone and many at once; what was read was what should be.
        for (profile, place) in [(dram, CACHE_LINE_BYTES), (ssd, PAGE_BYTES)] {
            let points = |pattern: Pattern| profile.points.iter().filter(move |point| point.pattern == pattern);
            let sizes: std::collections::BTreeSet<u64> = points(Pattern::Sequential).map(|point| point.bytes).collect();
            assert!(
                sizes.len() >= 3 && Pattern::ALL.into_iter().all(|pattern| points(pattern).count() > 0),
                "{profile:?}"
            );
            let selectivities: std::collections::BTreeSet<u64> =
                points(Pattern::Monotonic).filter_map(|point| Some((point.selectivity? * 1000.0) as u64)).collect();
            assert_eq!(selectivities.len(), 3, "{profile:?}");
            let at_once = |pattern| points(pattern).map(|point| point.at_once).max();
            assert!(at_once(Pattern::Monotonic) > Some(1) && at_once(Pattern::Point) == Some(1), "{profile:?}");
            assert!(points(Pattern::Monotonic).all(|point| point.bytes == point.places * place && point.us > 0.0));
        }
        let blocks: Vec<u64> = ssd.points.iter().map(|point| point.bytes).collect();
        assert!([64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20].iter().all(|bytes| blocks.contains(bytes)));
        let json = serde_json::to_string(&calibration).unwrap();
        assert!(serde_json::from_str::<Calibration>(&json).unwrap().fits(&tiers, &home));
        // One of a version that did not measure all of it is made anew.
        let mut partial = calibration.clone();
        partial.tiers[1].busy.as_mut().unwrap().cores_us_per_byte = None;
        assert!(calibration.fits(&tiers, &home) && !partial.fits(&tiers, &home));
        let without = |field: &str| {
            let mut json = serde_json::to_value(&calibration).unwrap();
            json.as_object_mut().unwrap().remove(field).unwrap();
            serde_json::from_value::<Calibration>(json).unwrap()
        };
        let old = without("decompression");
        assert!(!old.fits(&tiers, &home) && old.rates().is_none());
        let old = without("forms");
        assert!(!old.fits(&tiers, &home) && old.form_cost() == FormCost::TYPICAL);
    }

    #[test]
    fn a_calibration_made_another_way_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let home = FakeHome::on_disk(folder.path());
        let tiers = dram(32 << 20);
        let calibration = calibrate(&tiers, &home, &SystemClock::default(), None);
        let mut json = serde_json::to_value(&calibration).unwrap();
        json.as_object_mut().unwrap().remove("method");
        let old: Calibration = serde_json::from_value(json).unwrap();
        assert!(calibration.fits(&tiers, &home) && !old.fits(&tiers, &home));
    }

    #[test]
    fn what_cannot_be_measured_gets_a_typical_profile_and_says_so() {
        // No room, no device; and a clock that stands still.
        for (tiers, clock) in [(dram(0), true), (dram(32 << 20), false)] {
            let clock: Arc<dyn Clock> =
                if clock { Arc::new(SystemClock::default()) } else { Arc::new(ManualClock::default()) };
            let calibration = calibrate(&tiers, &FakeHome::default(), clock.as_ref(), None);
            assert!(calibration.tiers.iter().all(|t| !t.measured && t.note.is_some()), "{calibration:?}");
            assert_eq!(calibration.tiers[0].cost, TierCost::typical(TierKind::Dram));
            // A tier without room is not tried again before there is room.
            let empty = tiers[0].account().limit_bytes() == 0;
            let home = FakeHome::default();
            assert_eq!((calibration.tiers[0].no_room, calibration.fits(&tiers, &home)), (empty, true));
            assert_eq!(calibration.fits(&dram(32 << 20), &home), !empty);
        }
    }

    #[test]
    fn what_fails_midway_is_said_and_tried_again_and_does_not_undo_what_was_measured() {
        let clock = SystemClock::default();
        let all = [3, 0, 40, 1500];
        for reads in all.into_iter().take(by_depth(1, all.len())) {
            let device = Arc::new(FailingEngine::after(reads));
            let folder = tempfile::tempdir().unwrap();
            let home = FakeHome::with_io(folder.path(), Arc::clone(&device) as Arc<dyn BlockIo>);
            let broken = calibrate(&dram(32 << 20), &home, &clock, None);
            let [memory, ssd] = &broken.tiers[..] else { unreachable!() };
            assert!(memory.measured && !ssd.measured && ssd.points.is_empty(), "after {reads}: {broken:?}");
            assert!(ssd.note.as_deref().is_some_and(|note| note.contains("calibration.tmp")), "{ssd:?}");
            assert_eq!(ssd.cost.granule_bytes, Some(PAGE_BYTES));
            assert_eq!(device.depth().bytes(), Depth::default().bytes(), "after {reads}");
            assert_eq!(std::fs::read_dir(home.disk.as_ref().unwrap().dir()).unwrap().count(), 0);
            assert!(!is_measured(&broken) && !broken.is_retry_due(broken.unix_us));
            assert!(broken.is_retry_due(broken.unix_us + 2 * AGAIN_US));
            device.mend();
            let whole = calibrate(&dram(32 << 20), &home, &clock, Some(&broken));
            assert!(is_measured(&whole) && !whole.is_retry_due(u64::MAX), "{whole:?}");
            device.fail();
            let kept = calibrate(&dram(32 << 20), &home, &clock, Some(&whole));
            assert_eq!(kept.tiers[1].points, whole.tiers[1].points);
            assert!(kept.tiers[1].note.as_deref().is_some_and(|note| note.contains("measured earlier")), "{kept:?}");
            // Not what another machine measured.
            let other = Calibration { machine: "another".into(), ..whole };
            assert!(!is_measured(&calibrate(&dram(32 << 20), &home, &clock, Some(&other))));
        }
    }

    #[test]
    fn another_device_or_machine_is_measured_anew() {
        let folder = tempfile::tempdir().unwrap();
        let home = FakeHome::on_disk(folder.path());
        let tiers = dram(32 << 20);
        let calibration = calibrate(&tiers, &home, &SystemClock::default(), None);
        assert!(calibration.fits(&tiers, &home));
        let mut replaced = calibration.clone();
        replaced.tiers[1].device = "another disk under the same path".into();
        let moved = Calibration { machine: "another".into(), ..calibration.clone() };
        assert!(!replaced.fits(&tiers, &home) && !moved.fits(&tiers, &home));
        assert!(!calibration.fits(&[], &home));
    }

    #[test]
    fn corrections_hold_the_home_slower_than_memory() {
        let tiers = [("dram", TierKind::Dram), ("ssd", TierKind::Ssd)];
        let tiers = tiers.map(|(name, kind)| TierProfile::given(name, kind, "", TierCost::typical(kind))).to_vec();
        let mut calibration = Calibration::given(tiers, None);
        assert_eq!(calibration.costs(), [TierKind::Dram, TierKind::Ssd].map(TierCost::typical));
        calibration.correction = Correction { device_times: 0.25, waited_share: 0.1, bytes: 1 };
        let [dram, ssd] = calibration.costs()[..] else { unreachable!() };
        assert!(dram.sweep_us(1 << 20) < ssd.sweep_us(1 << 20) && ssd.patterns[0].bytes_per_us > 1_200.0, "{ssd:?}");
    }

    /// An engine whose device fails after a number of reads.
    #[derive(Debug)]
    struct FailingEngine {
        engine: SimulatedEngine,
        left: AtomicUsize,
    }

    impl FailingEngine {
        fn after(reads: usize) -> Self {
            Self { engine: SimulatedEngine::start(1, Faults::default()), left: AtomicUsize::new(reads) }
        }

        fn mend(&self) {
            self.left.store(usize::MAX, Ordering::Relaxed);
            self.engine.set_faults(Faults::default());
        }

        fn fail(&self) {
            self.left.store(0, Ordering::Relaxed);
        }
    }

    impl BlockIo for FailingEngine {
        fn name(&self) -> &'static str {
            self.engine.name()
        }
        fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
            self.engine.open(path)
        }
        fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
            let left = self.left.load(Ordering::Relaxed);
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
            if left == 0 {
                self.engine.set_faults(Faults { error_rate: 1.0, ..Faults::default() });
            }
            self.engine.read_windows(intent, file, windows)
        }
        fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
            self.engine.write_as(intent, file, offset, bytes)
        }
        fn raise(&self, intent: Intent, handle: &ReadHandle) {
            self.engine.raise(intent, handle);
        }
        fn rules(&self) -> IoRules {
            self.engine.rules()
        }
        fn set_rules(&self, rules: IoRules) {
            self.engine.set_rules(rules);
        }
        fn stats(&self) -> &IoStats {
            self.engine.stats()
        }
        fn pool(&self) -> &Arc<BufferPool> {
            self.engine.pool()
        }
        fn depth(&self) -> &Depth {
            self.engine.depth()
        }
    }
}
