//! What reading costs the cores, whoever pays: the time of all threads of this process while blocks are read, checked and
//! given back, as a scan does it: its memory is that of reads before it.
//!
//! A scan that has its data in memory keeps the cores busy; what they spend on reads comes on top of it, also where the
//! device itself is waited for by nobody.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{BLOCK_BYTES, DEPTH_BLOCKS, ENOUGH_US, SCRATCH_BYTES};
use crate::clock::Clock;
use crate::error::Result;
use crate::io::{AlignedBuffer, IoFile, ReadHandle};
use crate::migrate::Probe;

/// Rounds of reads; the first gets the memory that the others use again, as the reads of a scan do.
const ROUNDS: usize = 5;

/// Microseconds of a core per byte; `None` where the kernel does not say.
pub(super) fn measure(probe: &Probe, file: &Arc<IoFile>, clock: &dyn Clock, depth_bytes: u64) -> Result<Option<f64>> {
    let [_, block] = BLOCK_BYTES;
    let (places, at_once) = (SCRATCH_BYTES / block, (depth_bytes as usize / 2 / block).max(1));
    let round = || -> Result<usize> {
        // What a scan has read is in use for as long as it reads about as much again.
        let (mut kept, mut running, mut bytes) = (VecDeque::new(), VecDeque::with_capacity(at_once), 0);
        for number in 0..DEPTH_BLOCKS {
            if running.len() == at_once {
                kept.extend(checked(running.pop_front())?);
                bytes += block;
            }
            if kept.len() > at_once {
                kept.pop_front();
            }
            running.push_back(probe.io.read(file, (number % places * block) as u64, block));
        }
        while !running.is_empty() {
            kept.extend(checked(running.pop_front())?);
            bytes += block;
        }
        Ok(bytes)
    };
    round()?;
    let Some(before_us) = cores_us() else { return Ok(None) };
    let (start_us, mut bytes) = (clock.now_us(), 0);
    for _ in 1..ROUNDS {
        bytes += round()?;
        if clock.now_us().saturating_sub(start_us) > ENOUGH_US {
            break;
        }
    }
    Ok(cores_us().map(|after_us| (after_us - before_us).max(0.0) / bytes.max(1) as f64))
}

fn checked(read: Option<ReadHandle>) -> Result<Option<AlignedBuffer>> {
    let bytes = read.map(ReadHandle::wait).transpose()?;
    if let Some(bytes) = &bytes {
        std::hint::black_box(crc32c::crc32c(bytes.as_slice()));
    }
    Ok(bytes)
}

/// Time that all threads of this process have spent on cores, in microseconds: the first figure of each `schedstat`.
fn cores_us() -> Option<f64> {
    let mut sum_us = 0.0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread that has just ended has no figures.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        sum_us += text.split_whitespace().next()?.parse::<f64>().ok()? / 1e3;
    }
    (sum_us > 0.0).then_some(sum_us)
}
