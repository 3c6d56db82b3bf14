//! Measures the device of the home: reads columns and pages of a sample file as a scan does, alone and many at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use terrace_model::clock::Clock;
use terrace_model::{Error, Pattern, Result};
use terrace_storage::io::{BlockIo, Depth, IoFile, ReadHandle};
use terrace_storage::tier::MeasuredHome;
use terrace_storage::tier::reader::{Admission, ColdRead};

use super::point::Point;
use super::sample::{Sample, Scratch};
use super::timing::median_us;
use super::{Busy, timing, work};
use crate::cost::PAGE_BYTES;

/// Size and number of the reads that measure how many at once keep a device busy.
pub(super) const LARGE_BYTES: usize = 1 << 20;
pub(super) const LARGE_READS: usize = 16;
/// More reads at once are worth it when they take at most this share of the time.
const GAIN: f64 = 0.95;
/// One page is read out of so many.
const ONE_OF: [usize; 3] = [4, 8, 16];
/// Number of small reads that are given to the device at once: they keep it busy by their number, not by their bytes.
const MOST_AT_ONCE: usize = Sample::COPIES;

/// Measures the device of `home`. Fails when the sample file cannot be written or read.
pub(super) fn measure(home: &Arc<dyn MeasuredHome>, clock: &dyn Clock) -> Result<(Vec<Point>, Busy)> {
    check(home, clock)?;
    let sample = Sample::create(home)?;
    let before = home.io().depth().bytes();
    measured(home.as_ref(), &sample, clock).inspect_err(|_| home.io().depth().set(before))
}

fn measured(home: &dyn MeasuredHome, sample: &Sample, clock: &dyn Clock) -> Result<(Vec<Point>, Busy)> {
    let busy = busy(home.io().as_ref(), &sample.file.open()?, clock)?;
    let reader = Reader { home, sample, clock };
    let mut points = Vec::new();
    for width in 0..Sample::WIDTHS {
        let bytes = sample.column_bytes(width);
        points.extend(reader.sequential(width, 1, &busy)?);
        if width + 1 == Sample::WIDTHS {
            let beside = (LARGE_BYTES as u64 / bytes.max(1)).max(1) as usize;
            points.extend(reader.sequential(width, beside, &busy)?);
        }
    }
    for one_of in ONE_OF {
        points.extend(reader.pages(Pattern::Monotonic, one_of, &[1, MOST_AT_ONCE])?);
    }
    points.extend(reader.pages(Pattern::Random, usize::MAX, &[MOST_AT_ONCE])?);
    points.extend(reader.pages(Pattern::Point, usize::MAX, &[1])?);
    Ok((points, busy))
}

/// Fails on a clock that does not advance during a read, before the large sample file is written.
fn check(home: &Arc<dyn MeasuredHome>, clock: &dyn Clock) -> Result<()> {
    timing::check(clock).or_else(|too_coarse| {
        let file = Scratch::create(home, &vec![0; PAGE_BYTES as usize])?;
        let start_us = clock.now_us();
        home.io().read(&file.open()?, 0, PAGE_BYTES as usize).wait()?;
        if clock.now_us() > start_us { Ok(()) } else { Err(too_coarse) }
    })
}

/// Measures reads of the sample file.
struct Reader<'a> {
    home: &'a dyn MeasuredHome,
    sample: &'a Sample,
    clock: &'a dyn Clock,
}

impl Reader<'_> {
    /// Reads whole columns of a width, `beside` adjacent ones per read; alone, and as many at once as keep the device busy.
    fn sequential(&self, width: usize, beside: usize, busy: &Busy) -> Result<Vec<Point>> {
        let bytes = self.sample.column_bytes(width) * beside as u64;
        let many = (busy.depth_bytes / 2 / bytes.max(1)).clamp(1, MOST_AT_ONCE as u64) as usize;
        let at_once = if many > 1 { vec![1, many] } else { vec![1] };
        let start = |number: usize| {
            let columns: Vec<usize> = (0..beside).map(|n| self.sample.column(width, number * beside + n)).collect();
            self.start(number, &columns, None)
        };
        let point = |at_once: usize| {
            let us = self.each_us(at_once, start)?;
            let at_once = at_once as u32;
            Ok(Point { pattern: Pattern::Sequential, selectivity: None, bytes, places: 1, at_once, us })
        };
        at_once.into_iter().map(point).collect()
    }

    /// Reads one row of every `one_of`-th page of a column, or of a single page where there are fewer pages.
    fn pages(&self, pattern: Pattern, one_of: usize, at_once: &[usize]) -> Result<Vec<Point>> {
        let pages = self.sample.column_bytes(Sample::WIDTHS - 1).div_ceil(PAGE_BYTES) as usize;
        let page_rows = Sample::ROWS / pages.max(1);
        let places = (pages / one_of).max(1);
        let start = |number: usize| {
            // A prime factor scatters the pages of successive reads.
            let first = number.wrapping_mul(7919) % one_of.min(pages);
            let row = |place: usize| (first + place * one_of.min(pages)) * page_rows;
            let wanted: Vec<Range<usize>> = (0..places).map(|place| row(place)..row(place) + 1).collect();
            self.start(number, &[self.sample.column(Sample::WIDTHS - 1, number)], Some(&wanted))
        };
        let point = |at_once: &usize| {
            let us = self.each_us(*at_once, start)?;
            let bytes = places as u64 * PAGE_BYTES;
            let selectivity = (pattern == Pattern::Monotonic).then(|| places as f64 / pages as f64);
            Ok(Point { pattern, selectivity, bytes, places: places as u64, at_once: *at_once as u32, us })
        };
        at_once.iter().map(point).collect()
    }

    fn start(&self, number: usize, columns: &[usize], wanted: Option<&[Range<usize>]>) -> Result<ColdRead> {
        let read = self.home.read_rows(self.sample.copy(number)?, columns, wanted, Admission::Guaranteed.into())?;
        read.ok_or(Error::Cancelled)
    }

    /// Microseconds per read with `at_once` reads under way.
    fn each_us(&self, at_once: usize, start: impl Fn(usize) -> Result<ColdRead>) -> Result<f64> {
        let reads = 2 * at_once;
        let us = median_us(self.clock, |round| {
            let mut running = VecDeque::with_capacity(at_once);
            let mut bytes = 0;
            for number in 0..reads {
                if running.len() == at_once {
                    bytes += finish(running.pop_front())?;
                }
                running.push_back(start(round * reads + number)?);
            }
            while !running.is_empty() {
                bytes += finish(running.pop_front())?;
            }
            Ok(bytes)
        })?;
        Ok(us / reads as f64)
    }
}

/// Waits for a read; returns its bytes.
fn finish(read: Option<ColdRead>) -> Result<u64> {
    read.map_or(Ok(0), |read| Ok(read.wait()?.bytes_read))
}

/// Finds the bytes in flight beyond which the device gets no faster: doubles the number of reads at once until that is not
/// worth it. The depth is twice as many, so that one read waits in the queue while another is served.
fn busy(io: &dyn BlockIo, file: &Arc<IoFile>, clock: &dyn Clock) -> Result<Busy> {
    let places = (file.len as usize / LARGE_BYTES).max(1);
    let wait = |read: Option<ReadHandle>| -> Result<u64> {
        read.map_or(Ok(0), |read| Ok(read.wait()?.as_slice().len() as u64))
    };
    let time = |at_once: usize| {
        median_us(clock, |_| {
            let mut running = VecDeque::new();
            let mut bytes = 0;
            for number in 0..LARGE_READS {
                if running.len() == at_once {
                    bytes += wait(running.pop_front())?;
                }
                running.push_back(io.read(file, (number % places * LARGE_BYTES) as u64, LARGE_BYTES));
            }
            while !running.is_empty() {
                bytes += wait(running.pop_front())?;
            }
            Ok(bytes)
        })
    };
    io.depth().set(Depth::MOST);
    let mut at_once = 1;
    let mut us = time(1)?;
    while at_once < LARGE_READS / 2 {
        let more = time(at_once * 2)?;
        if more > us * GAIN {
            break;
        }
        (at_once, us) = (at_once * 2, more);
    }
    let depth_bytes = (2 * at_once * LARGE_BYTES) as u64;
    let bytes_per_us = (LARGE_READS * LARGE_BYTES) as f64 / us.max(1.0);
    let cores_us_per_byte = Some(work::measure(io, file, clock, depth_bytes)?.unwrap_or_default());
    Ok(Busy { depth_bytes, bytes_per_us, cores_us_per_byte })
}
