//! Copies of memory: the reference for moves between memory tiers. Targets are written past the caches, as by a
//! `memcpy` of more than the caches hold: `memcpy` of pieces as small as segments reads each line of the target first.

use std::mem::MaybeUninit;
use std::time::Instant;

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// Bytes that each thread copies, in pieces as large as segments, between mapped memory that is larger than the caches.
const THREAD_BYTES: usize = 256 << 20;
const PIECE_BYTES: usize = 256 << 10;

/// The side.
pub struct Copy {
    threads: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Copy {
    /// Memory for so many threads.
    pub fn new(threads: usize) -> Self {
        // Write all memory once, so that no page is missing during a measurement.
        let memory = |number: usize| (vec![number as u8 + 1; THREAD_BYTES], vec![1; THREAD_BYTES]);
        Self { threads: (0..threads.max(1)).map(memory).collect() }
    }

    /// Copies into memory that is allocated for the copy and freed later.
    fn copy_new(&mut self, threads: usize) -> Result<Sample> {
        let start = Instant::now();
        let copies = std::thread::scope(|scope| {
            let one = |from: &[u8]| from.chunks(PIECE_BYTES).map(copied).collect::<Vec<_>>();
            let running: Vec<_> =
                self.threads.iter().take(threads).map(|(from, _)| scope.spawn(move || one(from))).collect();
            let lost = |_| Error::failed("a thread that copies ended abnormally");
            running.into_iter().map(|thread| thread.join().map_err(lost)).collect::<Result<Vec<_>>>()
        })?;
        let ms = ms_since(start);
        let bytes: usize = std::hint::black_box(copies).iter().flatten().map(Vec::len).sum();
        Ok(Sample::new(ms).with("bytes", bytes as f64))
    }

    fn copy(&mut self, threads: usize) -> Result<Sample> {
        let start = Instant::now();
        let bytes = std::thread::scope(|scope| {
            let one = |(from, to): &mut (Vec<u8>, Vec<u8>)| {
                to.chunks_mut(PIECE_BYTES).zip(from.chunks(PIECE_BYTES)).for_each(|(to, from)| {
                    // SAFETY: the copy writes bytes only, so `to` stays initialised.
                    copy_past_caches(from, unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) });
                });
                std::hint::black_box(to.len())
            };
            let running: Vec<_> =
                self.threads.iter_mut().take(threads).map(|memory| scope.spawn(move || one(memory))).collect();
            let lost = |_| Error::failed("a thread that copies ended abnormally");
            running.into_iter().map(|thread| thread.join().map_err(lost)).sum::<Result<usize>>()
        })?;
        Ok(Sample::new(ms_since(start)).with("bytes", bytes as f64))
    }
}

/// Copies into new memory.
fn copied(from: &[u8]) -> Vec<u8> {
    let mut to = Vec::with_capacity(from.len());
    copy_past_caches(from, &mut to.spare_capacity_mut()[..from.len()]);
    // SAFETY: all of it was written.
    unsafe { to.set_len(from.len()) };
    to
}

/// Copies `from` to `to`, which is as long, by non-temporal stores of whole cache lines.
fn copy_past_caches(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX.
        return unsafe { stream(from, to) };
    }
    to.write_copy_of_slice(from);
}

/// A cache line.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [MaybeUninit<u8>; 64]);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn stream(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    // SAFETY: any bytes are a line of bytes that need not be initialised.
    let (head, lines, tail) = unsafe { to.align_to_mut::<Line>() };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(size_of_val(lines));
    head.write_copy_of_slice(first);
    tail.write_copy_of_slice(last);
    let (source, target): (*const __m256i, *mut __m256i) = (middle.as_ptr().cast(), lines.as_mut_ptr().cast());
    for at in 0..2 * lines.len() {
        // SAFETY: both have two halves of 32 bytes for each line, and lines are aligned to 64.
        unsafe { _mm256_stream_si256(target.add(at), _mm256_loadu_si256(source.add(at))) };
    }
    // The fence makes the copy visible to the next reader on any core.
    _mm_sfence();
}

impl Side for Copy {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let threads = |count: &str| count.parse().map_err(|_| unknown(op));
        match op.split_once(' ') {
            Some(("copy", count)) => self.copy(threads(count)?),
            Some(("copy-new", count)) => self.copy_new(threads(count)?),
            _ => Err(unknown(op)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_whole_wherever_they_begin() {
        let bytes: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        for (start, len) in [(0, 0), (1, 1), (3, 63), (7, 4096), (0, 5000), (63, 129)] {
            let from = &bytes[start..start + len];
            assert_eq!(copied(from), from, "{start}, {len}");
        }
    }
}
