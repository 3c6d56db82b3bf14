//! Measures memory that is read in place: with the kernels by which scans select rows, on one thread and on all cores.
//!
//! A tier may be smaller than the caches of the processor, while its segments in production are mostly not in them. So the
//! bytes that a repetition reads are evicted from the caches before it, and each thread reads its own piece of the image:
//! no other thread brings its lines back into a cache that they share.

use arrow::array::{BooleanArray, Int64Array, UInt32Array};
use arrow::buffer::{BooleanBuffer, Buffer, ScalarBuffer};
use arrow::compute::{filter, take};
use terrace_model::clock::Clock;
use terrace_model::{Error, Pattern, Result};
use terrace_storage::tier::{MemoryTier, SegmentBytes, evict};

use super::point::Point;
use super::timing::{median_after_us, median_at_once_us};
use super::{random, sum};
use crate::cost::CACHE_LINE_BYTES;

/// Image sizes tried.
const IMAGE_BYTES: [usize; 4] = [64 << 20, 8 << 20, 2 << 20, SMALLEST_BYTES];
/// The smallest image, and the smallest piece of one: reading it takes many times the clock's grain.
pub(super) const SMALLEST_BYTES: usize = 256 << 10;
/// An image above the smallest size takes at most one part in this many of its tier.
const LEAST_SHARES: u64 = 8;
/// Sizes of smaller segments, which are read at places all over the image, and the distance between them in segments.
const BLOCK_BYTES: [usize; 2] = [4 << 10, 64 << 10];
const APART: usize = 4;
/// Reads select one row out of this many.
const ONE_OF: [u64; 3] = [2, 16, 128];
/// Number of values fetched in random order, and one after the other; in a small piece one of so many lines, so that few
/// lines are fetched twice.
const TOUCHES: usize = 8192;
const TOUCHED_LINES: usize = 8;
const VALUE_BYTES: usize = size_of::<i64>();
const LINE_BYTES: usize = CACHE_LINE_BYTES as usize;
const LINE_VALUES: usize = LINE_BYTES / VALUE_BYTES;

/// Evicts bytes from the processor's caches and returns false where it cannot: [`evict`], or the observer of a test.
type Evict<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// Measures a memory tier. Fails when the tier has no room, when it cannot be written, and where the caches cannot be
/// emptied.
pub(super) fn measure(tier: &dyn MemoryTier, clock: &dyn Clock) -> Result<Vec<Point>> {
    measure_with(tier, clock, &evict)
}

/// [`measure`] with a given eviction.
fn measure_with(tier: &dyn MemoryTier, clock: &dyn Clock, evict: Evict<'_>) -> Result<Vec<Point>> {
    let stored = image(tier)?;
    if !evict(&stored.buffer) {
        return Err(Error::Unsupported("measuring memory behind the caches of this processor".into()));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = cores.min(stored.buffer.len() / SMALLEST_BYTES).max(1);
    let piece_bytes = stored.buffer.len() / most / LINE_BYTES * LINE_BYTES;
    let mut points = Vec::new();
    for threads in if most > 1 { vec![1, most] } else { vec![1] } {
        let image = Image { tier, stored: &stored, piece_bytes, clock, evict, threads };
        for bytes in BLOCK_BYTES.into_iter().filter(|bytes| bytes * APART <= piece_bytes) {
            points.push(image.sequential(bytes)?);
        }
        points.push(image.sequential(piece_bytes)?);
        for one_of in ONE_OF {
            points.push(image.monotonic(one_of)?);
        }
        points.push(image.random()?);
    }
    points.push(Image { tier, stored: &stored, piece_bytes, clock, evict, threads: 1 }.point()?);
    Ok(points)
}

/// Stores the largest image that fits the tier.
fn image(tier: &dyn MemoryTier) -> Result<SegmentBytes> {
    let mut stored = Err(Error::Invalid(String::new()));
    let limit_bytes = tier.account().limit_bytes();
    let fits = |len: &usize| *len as u64 <= limit_bytes / LEAST_SHARES || *len == SMALLEST_BYTES;
    for len in IMAGE_BYTES.into_iter().filter(fits) {
        stored = tier.store(&vec![1; len]);
        if stored.is_ok() {
            break;
        }
    }
    stored
}

/// An image of equal bytes, and the way in which it is read.
struct Image<'a> {
    tier: &'a dyn MemoryTier,
    stored: &'a SegmentBytes,
    /// Bytes that one thread reads.
    piece_bytes: usize,
    clock: &'a dyn Clock,
    evict: Evict<'a>,
    threads: usize,
}

impl Image<'_> {
    fn piece(&self, thread: usize) -> Buffer {
        self.stored.buffer.slice_with_length(thread * self.piece_bytes, self.piece_bytes)
    }

    fn values(&self, thread: usize) -> Int64Array {
        Int64Array::new(ScalarBuffer::new(self.piece(thread), 0, self.piece_bytes / VALUE_BYTES), None)
    }

    fn touches(&self) -> usize {
        TOUCHES.min(self.piece_bytes / LINE_BYTES / TOUCHED_LINES).max(1)
    }

    /// A measurement of accesses that read `bytes` in `places` and took `us` each.
    fn measurement(&self, pattern: Pattern, bytes: usize, places: usize, us: f64) -> Point {
        let bytes = bytes as u64;
        let places = places as u64;
        let at_once = self.threads as u32;
        Point { pattern, selectivity: None, bytes, places, at_once, us }
    }

    /// Microseconds of `work` on all threads at once; it is called with the numbers of thread and repetition.
    fn us(&self, work: impl Fn(usize, usize) -> Result<u64> + Sync) -> Result<f64> {
        let evicted = |thread: usize| {
            (self.evict)(&self.piece(thread));
        };
        median_at_once_us(self.clock, self.threads, evicted, work)
    }

    /// Reads segments of `bytes`, with others between them, or the whole piece.
    fn sequential(&self, bytes: usize) -> Result<Point> {
        let read = |segment: &[u8]| {
            self.tier.touch(segment.len() as u64, 0);
            sum(segment)
        };
        if bytes == self.piece_bytes {
            let us = self.us(|thread, _| Ok(read(&self.piece(thread))))?;
            return Ok(self.measurement(Pattern::Sequential, bytes, 1, us));
        }
        let stride = bytes * APART;
        // One read takes a few microseconds, below the clock's grain: many reads per measurement.
        let us = self.us(|thread, number| {
            let start = number % APART * bytes;
            let segment = |place: &[u8]| place.get(start..start + bytes).map_or(0, read);
            Ok(self.piece(thread).chunks(stride).map(segment).fold(0, u64::wrapping_add))
        })?;
        Ok(self.measurement(Pattern::Sequential, bytes, 1, us / (self.piece_bytes / stride).max(1) as f64))
    }

    /// Selects one of `one_of` rows on average, in order, with the kernel that scans use.
    fn monotonic(&self, one_of: u64) -> Result<Point> {
        let len = self.piece_bytes / VALUE_BYTES;
        let mut next = random();
        let wanted = BooleanBuffer::collect_bool(len, |_| next().is_multiple_of(one_of));
        let touched = |line: usize| {
            let start = line * LINE_VALUES;
            (start..wanted.len().min(start + LINE_VALUES)).any(|row| wanted.value(row))
        };
        let places = (0..wanted.len().div_ceil(LINE_VALUES)).filter(|line| touched(*line)).count();
        let bytes = places * LINE_BYTES;
        let wanted = BooleanArray::new(wanted, None);
        let us = self.us(|thread, _| {
            self.tier.touch(bytes as u64, 0);
            let found = filter(&self.values(thread), &wanted).map_err(|error| Error::Invalid(error.to_string()))?;
            Ok(found.len() as u64)
        })?;
        let point = self.measurement(Pattern::Monotonic, bytes, places, us);
        Ok(Point { selectivity: Some(1.0 / one_of as f64), ..point })
    }

    /// Fetches rows by their numbers, in random order.
    fn random(&self) -> Result<Point> {
        let len = (self.piece_bytes / VALUE_BYTES).max(1) as u64;
        let touches = self.touches();
        let mut next = random();
        let rows = UInt32Array::from_iter_values((0..touches).map(|_| (next() % len) as u32));
        let us = self.us(|thread, _| {
            self.tier.touch(0, touches as u64);
            let found = take(&self.values(thread), &rows, None).map_err(|error| Error::Invalid(error.to_string()))?;
            Ok(found.len() as u64)
        })?;
        Ok(self.measurement(Pattern::Random, touches * LINE_BYTES, touches, us))
    }

    /// Fetches single values, each of which determines the place of the next one.
    fn point(&self) -> Result<Point> {
        let touches = self.touches();
        let values = self.values(0);
        let piece = self.piece(0);
        let evicted = || {
            (self.evict)(&piece);
        };
        let us = median_after_us(self.clock, evicted, |_| {
            self.tier.touch(0, touches as u64);
            let words = values.values();
            let len = values.len().max(1) as u64;
            let mut next = random();
            let mut place = 0;
            for _ in 0..touches {
                let word = words.get((place % len) as usize).copied().unwrap_or_default();
                place = next().wrapping_add(word as u64);
            }
            Ok(place)
        })?;
        // The time of one access.
        Ok(self.measurement(Pattern::Point, LINE_BYTES, 1, us / touches as f64))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use terrace_model::clock::SystemClock;
    use terrace_model::{Account, TierId, TierIndex, TierKind};
    use terrace_storage::tier::dram::DramTier;
    use terrace_test_support::depth::by_depth;

    use super::*;

    thread_local! {
        /// Address and length of the piece that this thread evicted last, until it has read it and looked at the clock.
        static EVICTED: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
        static HAS_READ: Cell<bool> = const { Cell::new(false) };
    }

    /// A clock that ends a timed read: pieces that were read before a look at it count as cached again.
    #[derive(Debug, Default)]
    struct ReadingClock(SystemClock);

    impl Clock for ReadingClock {
        fn now_us(&self) -> u64 {
            if HAS_READ.take() {
                EVICTED.take();
            }
            self.0.now_us()
        }
        fn unix_us(&self) -> u64 {
            self.0.unix_us()
        }
        fn sleep(&self, duration: Duration) {
            self.0.sleep(duration);
        }
    }

    /// Process memory that records which pieces were evicted before a read, and counts the reads without an eviction.
    #[derive(Debug)]
    struct ObservedTier {
        memory: DramTier,
        read_pieces: Mutex<BTreeSet<(usize, usize)>>,
        cached_reads: AtomicU64,
    }

    impl MemoryTier for ObservedTier {
        fn index(&self) -> &TierIndex {
            self.memory.index()
        }
        fn name(&self) -> &str {
            self.memory.name()
        }
        fn kind(&self) -> TierKind {
            self.memory.kind()
        }
        fn emulated(&self) -> bool {
            self.memory.emulated()
        }
        fn describe(&self) -> String {
            self.memory.describe()
        }
        fn account(&self) -> &Arc<Account> {
            self.memory.account()
        }
        fn charged_bytes(&self, len: usize) -> u64 {
            self.memory.charged_bytes(len)
        }
        fn store(&self, image: &[u8]) -> Result<SegmentBytes> {
            self.memory.store(image)
        }
        fn touch(&self, _bytes: u64, _random_touches: u64) {
            HAS_READ.set(true);
            match EVICTED.get() {
                Some(piece) => _ = self.read_pieces.lock().unwrap().insert(piece),
                None => _ = self.cached_reads.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    fn observe(budget_bytes: u64, evict: Evict<'_>) -> (Vec<Point>, ObservedTier) {
        let memory = DramTier::new(TierId(0), Account::new("dram", budget_bytes));
        let tier = ObservedTier { memory, read_pieces: Mutex::default(), cached_reads: AtomicU64::new(0) };
        let points = measure_with(&tier, &ReadingClock::default(), evict).unwrap();
        (points, tier)
    }

    fn noted_eviction(bytes: &[u8]) -> bool {
        EVICTED.set(Some((bytes.as_ptr() as usize, bytes.len())));
        evict(bytes)
    }

    #[test]
    fn every_timed_read_of_a_small_tier_finds_its_whole_piece_evicted() {
        for budget_bytes in [1 << 20, 24 << 20, 100 << 20].into_iter().take(by_depth(2, 3)) {
            let (points, tier) = observe(budget_bytes, &noted_eviction);
            assert_eq!(tier.cached_reads.into_inner(), 0, "{budget_bytes}");
            let threads = points.iter().map(|point| point.at_once as usize).max().unwrap();
            let largest = points.iter().filter(|point| point.pattern == Pattern::Sequential).map(|point| point.bytes);
            // The thread that reads alone and the first of several read one and the same piece, each other thread its own.
            let pieces = tier.read_pieces.into_inner().unwrap();
            assert_eq!(pieces.len(), threads, "{budget_bytes}");
            assert!(pieces.iter().all(|(_, len)| Some(*len as u64) == largest.clone().max()), "{pieces:?}");
            let starts: Vec<usize> = pieces.iter().map(|(start, _)| *start).collect();
            let ends: Vec<usize> = pieces.iter().map(|(start, len)| start + len).collect();
            assert!(ends.iter().zip(starts.iter().skip(1)).all(|(end, next)| end <= next), "{pieces:?}");
        }
        // Reads without an eviction are noticed.
        assert!(observe(1 << 20, &|_| true).1.cached_reads.into_inner() > 0);
    }

    #[test]
    fn a_processor_whose_caches_cannot_be_emptied_is_not_measured() {
        let tier = DramTier::new(TierId(0), Account::new("dram", 1 << 20));
        let error = measure_with(&tier, &SystemClock::default(), &|_| false).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert_eq!(tier.account().used_bytes(), 0);
    }
}
