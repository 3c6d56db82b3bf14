//! What a small read costs a device that has many of them to serve: the half of [`super::ReadCost`] that calibration, which
//! reads one small block at a time, does not see.

use std::path::PathBuf;

use super::ReadCost;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::io::{FileSystem, ReadHandle};
use crate::migrate::Probe;
use crate::placement::calibrate::SCRATCH_NAME;

const SMALL_BYTES: usize = ReadCost::SMALL_BYTES;
const FILE_BYTES: usize = 4 << 20;
/// Reads at once, as of a chunk of which scattered rows are wanted.
const AT_ONCE: usize = 32;
/// Rounds at most, and the time after which no further one starts.
const ROUNDS: usize = 9;
const ENOUGH_US: u64 = 20_000;
/// From one read to the next, so that no two are neighbours and none is asked for twice in a round.
const STRIDE: usize = 97;

/// The time of one of many small reads, in microseconds. Leaves nothing behind.
pub(crate) fn measure(probe: &Probe, clock: &dyn Clock) -> Result<f64> {
    let scratch = Scratch { path: probe.folder.join(SCRATCH_NAME), files: probe.files.as_ref() };
    scratch.files.write(&scratch.path, &vec![0x5a; FILE_BYTES])?;
    let file = probe.io.open(&scratch.path)?;
    let start_us = clock.now_us();
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let begin_us = clock.now_us();
        let place = |number: usize| (round * AT_ONCE + number) * STRIDE % (FILE_BYTES / SMALL_BYTES);
        let offsets = (0..AT_ONCE).map(|number| (place(number) * SMALL_BYTES) as u64);
        let reads: Vec<ReadHandle> = offsets.map(|offset| probe.io.read(&file, offset, SMALL_BYTES)).collect();
        for read in reads {
            read.wait()?;
        }
        times.push(clock.now_us().saturating_sub(begin_us));
        if clock.now_us().saturating_sub(start_us) > ENOUGH_US {
            break;
        }
    }
    // Other work beside it only makes them longer.
    match times.iter().min() {
        Some(us) if *us > 0 => Ok(*us as f64 / AT_ONCE as f64),
        _ => Err(Error::Invalid("the clock is too coarse to measure small reads".into())),
    }
}

/// A file of data that goes when dropped.
struct Scratch<'a> {
    path: PathBuf,
    files: &'a dyn FileSystem,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // What cannot be deleted is swept at the next start.
        let _ = self.files.remove_file(&self.path);
    }
}
