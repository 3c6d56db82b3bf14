//! What copying memory gives: the yardstick of moves between tiers of memory.

use std::time::Instant;

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// What each thread copies, in pieces as large as segments, from and to memory that is there and larger than caches.
const THREAD_BYTES: usize = 256 << 20;
const PIECE_BYTES: usize = 256 << 10;

/// The side.
pub struct Copy {
    threads: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Copy {
    /// Memory for so many threads.
    pub fn new(threads: usize) -> Self {
        // Written once, so that no page is missing during a measurement.
        let memory = |number: usize| (vec![number as u8 + 1; THREAD_BYTES], vec![1; THREAD_BYTES]);
        Self { threads: (0..threads.max(1)).map(memory).collect() }
    }

    /// Into memory that is taken from the allocator for it and given back later.
    fn copy_new(&mut self, threads: usize) -> Result<Sample> {
        let start = Instant::now();
        let copies = std::thread::scope(|scope| {
            let one = |from: &[u8]| from.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect::<Vec<_>>();
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
                to.chunks_mut(PIECE_BYTES)
                    .zip(from.chunks(PIECE_BYTES))
                    .for_each(|(to, from)| to.copy_from_slice(from));
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
