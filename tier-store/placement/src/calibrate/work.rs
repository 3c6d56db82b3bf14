//! Measures the CPU time that reading costs: the additional CPU time of all threads of this process for the same work
//! while blocks are read and checked, as by a scan, into memory that earlier reads have used.
//!
//! A scan of data in memory keeps the cores busy; reads add CPU time to that, even where no thread waits for the device.
//! It is more than the time of the system calls: arriving bytes evict others from the caches and use memory bandwidth.

use std::collections::VecDeque;
use std::sync::Arc;

use terrace_model::Result;
use terrace_model::clock::Clock;
use terrace_storage::io::{BlockIo, IoFile, ReadHandle};

use super::device::{LARGE_BYTES, LARGE_READS};
use super::sum;

/// Rounds of the same work without and with reads; the first one only allocates memory that the others use again.
const ROUNDS: usize = 8;
/// Time after which no further round starts: other threads of the process are counted too, so that a few rounds are needed.
const LONG_ENOUGH_US: u64 = 120_000;
/// Size of the buffer for the work: more than the caches of a core hold.
const WORK_BYTES: usize = 16 << 20;
/// Bytes of work per byte read; about as much as a core gets done while a fast SSD delivers the byte.
const WORK_PER_BYTE: usize = 4;

/// Microseconds of a core per byte; `None` where the kernel does not report the time of threads.
pub(super) fn measure(
    io: &dyn BlockIo,
    file: &Arc<IoFile>,
    clock: &dyn Clock,
    depth_bytes: u64,
) -> Result<Option<f64>> {
    let block = LARGE_BYTES;
    let places = (file.len as usize / block).max(1);
    let at_once = (depth_bytes as usize / 2 / block).max(1);
    let memory = vec![0x5a_u8; WORK_BYTES];
    let work = |number: usize| {
        let part = WORK_PER_BYTE * block;
        let start = number * part % WORK_BYTES;
        std::hint::black_box(sum(memory.get(start..start + part).unwrap_or_default()));
    };
    let reading = || -> Result<()> {
        let mut running = VecDeque::with_capacity(at_once);
        for number in 0..LARGE_READS {
            if running.len() == at_once {
                checked(running.pop_front())?;
            }
            running.push_back(io.read(file, (number % places * block) as u64, block));
            work(number);
        }
        while !running.is_empty() {
            checked(running.pop_front())?;
        }
        Ok(())
    };
    let start_us = clock.now_us();
    let mut more_us = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let Some(before_us) = cores_us() else { return Ok(None) };
        (0..LARGE_READS).for_each(work);
        let Some(between_us) = cores_us() else { return Ok(None) };
        reading()?;
        let Some(after_us) = cores_us() else { return Ok(None) };
        if round > 0 {
            more_us.push(after_us - between_us - (between_us - before_us));
        }
        if round > 0 && clock.now_us().saturating_sub(start_us) > LONG_ENOUGH_US {
            break;
        }
    }
    more_us.sort_unstable_by(f64::total_cmp);
    let median_us = more_us.get(more_us.len() / 2).copied().unwrap_or_default();
    // If the noise of other threads is larger than the cost, the cost is negligible.
    Ok(Some(median_us.max(1.0) / (LARGE_READS * block) as f64))
}

/// Waits for a read and computes the checksum of its bytes.
fn checked(read: Option<ReadHandle>) -> Result<()> {
    if let Some(bytes) = read.map(ReadHandle::wait).transpose()? {
        std::hint::black_box(crc32c::crc32c(bytes.as_slice()));
    }
    Ok(())
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
