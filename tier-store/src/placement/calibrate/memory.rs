//! Memory read in place: loads of a thread, with the kernels that scans select rows with, alone and on all cores.

use arrow::array::{BooleanArray, Int64Array, UInt32Array};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::compute::{filter, take};

use super::point::Point;
use super::timing::{median_at_once_us, median_us};
use super::{random, sum};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::heat::Pattern;
use crate::placement::cost::CACHE_LINE_BYTES;
use crate::tier::{MemoryTier, SegmentBytes};

/// Image sizes tried: larger than the caches, if there is room.
const IMAGE_BYTES: [usize; 4] = [64 << 20, 8 << 20, 2 << 20, SMALLEST_BYTES];
pub(super) const SMALLEST_BYTES: usize = 256 << 10;
/// A larger one is a small part of its tier.
const LEAST_SHARES: u64 = 8;
/// Smaller segments, read at places all over the image.
const BLOCK_BYTES: [usize; 2] = [4 << 10, 64 << 10];
const APART: usize = 4;
/// Rows wanted of so many.
const ONE_OF: [u64; 3] = [2, 16, 128];
/// Values fetched in no order, and one after the other.
const TOUCHES: usize = 8192;
const VALUE_BYTES: usize = size_of::<i64>();
const LINE_VALUES: usize = CACHE_LINE_BYTES as usize / VALUE_BYTES;
/// Each repetition reads lines that the ones before it did not, as they are in the caches: so many lines further on, so
/// many times.
const SHIFT_LINES: usize = 4;
const SHIFTS: usize = 16;

/// Fails when the tier has no room, and when it cannot be written.
pub(super) fn measure(tier: &dyn MemoryTier, clock: &dyn Clock) -> Result<Vec<Point>> {
    let stored = image(tier)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut points = Vec::new();
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        let image = Image { tier, stored: &stored, clock, threads };
        for bytes in BLOCK_BYTES.into_iter().filter(|bytes| bytes * APART <= stored.buffer.len()) {
            points.push(image.sequential(bytes)?);
        }
        points.push(image.sequential(stored.buffer.len())?);
        for one_of in ONE_OF {
            points.push(image.monotonic(one_of)?);
        }
        points.push(image.random()?);
    }
    points.push(Image { tier, stored: &stored, clock, threads: 1 }.point()?);
    Ok(points)
}

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

/// An image of words that are all alike, and how it is read.
struct Image<'a> {
    tier: &'a dyn MemoryTier,
    stored: &'a SegmentBytes,
    clock: &'a dyn Clock,
    threads: usize,
}

impl Image<'_> {
    fn values(&self) -> Int64Array {
        let buffer = self.stored.buffer.clone();
        let len = buffer.len() / VALUE_BYTES;
        Int64Array::new(ScalarBuffer::new(buffer, 0, len), None)
    }

    /// Values of all but some lines: which, goes by the number of the repetition.
    fn shifted(&self, number: usize) -> Int64Array {
        let values = self.values();
        let most = SHIFTS * SHIFT_LINES * LINE_VALUES;
        let len = values.len().saturating_sub(most);
        values.slice((number % SHIFTS * SHIFT_LINES * LINE_VALUES).min(values.len() - len), len)
    }

    fn point_of(&self, pattern: Pattern, (bytes, places): (usize, usize), us: f64) -> Point {
        let (bytes, places, at_once) = (bytes as u64, places as u64, self.threads as u32);
        Point { pattern, selectivity: None, bytes, places, at_once, us }
    }

    /// Segments of `bytes`, with others between them, or the whole image from somewhere on.
    fn sequential(&self, bytes: usize) -> Result<Point> {
        let image = self.stored.buffer.as_slice();
        let read = |segment: &[u8]| {
            self.tier.touch(segment.len() as u64, 0);
            sum(segment)
        };
        if bytes == image.len() {
            let all = |number: usize| {
                let (start, end) = image.split_at(image.len() / SHIFTS * (number % SHIFTS));
                Ok(read(end).wrapping_add(read(start)))
            };
            let us = median_at_once_us(self.clock, self.threads, all)?;
            return Ok(self.point_of(Pattern::Sequential, (bytes, 1), us));
        }
        let stride = bytes * APART;
        // A few microseconds are below the clock's grain: many reads per measurement.
        let all = |number: usize| {
            let start = number % APART * bytes;
            let segment = |place: &[u8]| place.get(start..start + bytes).map_or(0, read);
            Ok(image.chunks(stride).map(segment).fold(0, u64::wrapping_add))
        };
        let us = median_at_once_us(self.clock, self.threads, all)? / (image.len() / stride).max(1) as f64;
        Ok(self.point_of(Pattern::Sequential, (bytes, 1), us))
    }

    /// One of so many rows on the average, in order, taken out as a scan does.
    fn monotonic(&self, one_of: u64) -> Result<Point> {
        let len = self.shifted(0).len();
        let mut next = random();
        let wanted = BooleanBuffer::collect_bool(len, |_| next().is_multiple_of(one_of));
        let touched = |line: usize| {
            let start = line * LINE_VALUES;
            (start..wanted.len().min(start + LINE_VALUES)).any(|row| wanted.value(row))
        };
        let places = (0..wanted.len().div_ceil(LINE_VALUES)).filter(|line| touched(*line)).count();
        let bytes = places * CACHE_LINE_BYTES as usize;
        let wanted = BooleanArray::new(wanted, None);
        let us = median_at_once_us(self.clock, self.threads, |number| {
            self.tier.touch(bytes as u64, 0);
            Ok(filter(&self.shifted(number), &wanted).map_err(|error| Error::Invalid(error.to_string()))?.len() as u64)
        })?;
        let point = self.point_of(Pattern::Monotonic, (bytes, places), us);
        Ok(Point { selectivity: Some(1.0 / one_of as f64), ..point })
    }

    /// Rows by their numbers, in no order.
    fn random(&self) -> Result<Point> {
        let len = self.shifted(0).len().max(1) as u64;
        let mut next = random();
        let rows = UInt32Array::from_iter_values((0..TOUCHES).map(|_| (next() % len) as u32));
        let us = median_at_once_us(self.clock, self.threads, |number| {
            self.tier.touch(0, TOUCHES as u64);
            Ok(take(&self.shifted(number), &rows, None).map_err(|error| Error::Invalid(error.to_string()))?.len()
                as u64)
        })?;
        Ok(self.point_of(Pattern::Random, (TOUCHES * CACHE_LINE_BYTES as usize, TOUCHES), us))
    }

    /// One value, which says where the next one is.
    fn point(&self) -> Result<Point> {
        let us = median_us(self.clock, |number| {
            self.tier.touch(0, TOUCHES as u64);
            let values = self.shifted(number);
            let (words, len) = (values.values(), values.len().max(1) as u64);
            let (mut next, mut place) = (random(), 0);
            for _ in 0..TOUCHES {
                let word = words.get((place % len) as usize).copied().unwrap_or_default();
                place = next().wrapping_add(word as u64);
            }
            Ok(place)
        })?;
        // Of one access.
        Ok(self.point_of(Pattern::Point, (CACHE_LINE_BYTES as usize, 1), us / TOUCHES as f64))
    }
}
