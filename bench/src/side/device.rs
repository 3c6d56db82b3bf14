//! Reads of the disk: whole files in order and random blocks, through a bare io_uring or through the store's own I/O
//! engine.
//!
//! The bare loop is the reference, so it only reads: O_DIRECT, one ring, one buffer per operation in flight.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use io_uring::{IoUring, opcode, types};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::io::{BlockIo, Class, IoFile, best_engine};

use super::points::{self, Load};
use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

const BLOCK: usize = 4096;
/// Memory that sequential raw reads fill in turn: more than the processor caches, as with data that is processed. Into
/// eight buffers that stay in its cache, the host of a virtual disk copies a fifth faster.
const ROUND_BYTES: usize = 64 << 20;

/// A read of a piece of a file.
struct FileRead {
    /// Index of the file.
    file: usize,
    offset: u64,
    len: usize,
}

/// The side.
pub struct Device {
    files: Vec<(PathBuf, u64)>,
    engine: Option<Arc<dyn BlockIo>>,
    passes: u64,
}

impl Device {
    /// A bare io_uring.
    pub fn raw(folder: &Path) -> Result<Self> {
        Ok(Self { files: chunk_files(folder)?, engine: None, passes: 0 })
    }

    /// The store's engine.
    pub fn engine(folder: &Path) -> Result<Self> {
        Ok(Self { files: chunk_files(folder)?, engine: Some(best_engine()), passes: 0 })
    }

    /// Reads of every byte of every file, in order.
    fn sequential(&self, block: usize) -> Vec<FileRead> {
        let pieces = |(file, (_, len)): (usize, &(PathBuf, u64))| {
            let len = *len;
            let piece = move |offset| FileRead { file, offset, len: block.min((len - offset) as usize) };
            (0..len).step_by(block).map(piece).collect::<Vec<_>>()
        };
        self.files.iter().enumerate().flat_map(pieces).collect()
    }

    fn random(&self, block: usize, count: usize) -> Vec<FileRead> {
        // Other places than those of the other side: what that one has read is in the cache of the host of a virtual disk.
        let mut rng = StdRng::seed_from_u64(2 * self.passes + u64::from(self.engine.is_some()));
        let large: Vec<usize> = (0..self.files.len()).filter(|f| self.len(*f) > block as u64).collect();
        let place = |_| {
            let file = large.get(rng.random_range(0..large.len()))?;
            let blocks = (self.len(*file) - block as u64) / BLOCK as u64;
            Some(FileRead { file: *file, offset: rng.random_range(0..=blocks) * BLOCK as u64, len: block })
        };
        if large.is_empty() { Vec::new() } else { (0..count).filter_map(place).collect() }
    }

    fn len(&self, file: usize) -> u64 {
        self.files.get(file).map_or(0, |(_, len)| *len)
    }

    /// Reads with `depth` in flight, raw ones into `memory` bytes or as many as are in flight.
    fn read(&self, reads: &[FileRead], depth: usize, memory: usize) -> Result<Sample> {
        let largest = reads.iter().map(|read| read.len).max().unwrap_or(BLOCK).next_multiple_of(BLOCK);
        let buffers = if self.engine.is_some() { 0 } else { depth.max(memory / largest) };
        let mut buffers: Vec<AlignedVec> = (0..buffers).map(|_| AlignedVec::new(largest)).collect();
        let start = Instant::now();
        let bytes = match &self.engine {
            Some(engine) => self.read_by_engine(engine, reads, depth)?,
            None => self.read_raw(reads, depth, &mut buffers)?,
        };
        Ok(Sample::new(ms_since(start)).with("bytes", bytes as f64).with("reads", reads.len() as f64))
    }

    fn read_by_engine(&self, engine: &Arc<dyn BlockIo>, reads: &[FileRead], depth: usize) -> Result<u64> {
        let files = self.files.iter().map(|(path, _)| engine.open(path));
        let files = files.collect::<std::result::Result<Vec<Arc<IoFile>>, _>>()?;
        let mut waiting = reads.iter();
        let mut running = FuturesUnordered::new();
        let mut bytes = 0;
        futures::executor::block_on(async {
            loop {
                while running.len() < depth {
                    let Some(read) = waiting.next() else { break };
                    if let Some(file) = files.get(read.file) {
                        running.push(engine.read(file, read.offset, read.len));
                    }
                }
                match running.next().await {
                    Some(buffer) => bytes += buffer?.as_slice().len() as u64,
                    None => return Ok(bytes),
                }
            }
        })
    }

    fn read_raw(&self, reads: &[FileRead], depth: usize, buffers: &mut [AlignedVec]) -> Result<u64> {
        let open = |(path, _): &(PathBuf, u64)| {
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).map_err(Error::path("open", path))
        };
        let files = self.files.iter().map(open).collect::<Result<Vec<File>>>()?;
        let count = buffers.len();
        let mut ring = IoUring::new(depth as u32).map_err(Error::io("io_uring is not available"))?;
        let mut free = (0..count).collect::<VecDeque<_>>();
        let mut waiting = reads.iter();
        let mut bytes = 0;
        loop {
            while count - free.len() < depth {
                let Some(read) = waiting.next() else { break };
                let Some(slot) = free.pop_front() else { break };
                let (Some(file), Some(buffer)) = (files.get(read.file), buffers.get_mut(slot)) else { continue };
                let len = read.len.next_multiple_of(BLOCK) as u32;
                let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.start(), len)
                    .offset(read.offset)
                    .build()
                    .user_data(slot as u64);
                // SAFETY: the file and the buffer of this slot live until the loop ends, which is after the slot's
                // completion was seen; no other operation uses the slot meanwhile. On an early return the process ends.
                let pushed = unsafe { ring.submission().push(&entry) };
                pushed.map_err(|_| Error::failed("the submission queue is full"))?;
            }
            if free.len() == count {
                return Ok(bytes);
            }
            if let Err(error) = ring.submit_and_wait(1) {
                abandon("io_uring_enter", &error);
            }
            for done in ring.completion() {
                if done.result() < 0 {
                    abandon("read", &std::io::Error::from_raw_os_error(-done.result()));
                }
                bytes += done.result() as u64;
                free.push_back(done.user_data() as usize);
            }
        }
    }
}

/// Ends the process: the kernel may still write to buffers that an unwinding would free.
pub(super) fn abandon(what: &str, error: &std::io::Error) -> ! {
    eprintln!("{what}: {error}");
    std::process::exit(1)
}

impl Side for Device {
    fn run(&mut self, op: &str) -> Result<Sample> {
        self.passes += 1;
        let words: Vec<&str> = op.split(' ').collect();
        let number = |text: &str| text.parse::<usize>().map_err(|_| unknown(op));
        match words.as_slice() {
            ["sequential", block, depth] => self.read(&self.sequential(number(block)?), number(depth)?, ROUND_BYTES),
            ["random", block, depth, count] => {
                self.read(&self.random(number(block)?, number(count)?), number(depth)?, 0)
            }
            ["points", class, "beside", streams, "of", bytes, ms] => {
                let engine = self.engine.as_ref().ok_or_else(|| unknown(op))?;
                let points = Class::ALL.into_iter().find(|known| known.name() == *class);
                let (streams, ms) = (number(streams)?, number(ms)? as u64);
                let load = Load { streams, points, beside_bytes: number(bytes)? as u64, ms };
                points::run(engine, &self.files, &load)
            }
            _ => Err(unknown(op)),
        }
    }
}

/// Memory whose usable part starts at a whole block.
pub(super) struct AlignedVec {
    bytes: Vec<u8>,
}

impl AlignedVec {
    /// `len` usable bytes.
    pub(super) fn new(len: usize) -> Self {
        // Write all memory once, so that no page is missing during a measurement.
        Self { bytes: vec![1; len + BLOCK] }
    }

    fn start(&mut self) -> *mut u8 {
        let shift = self.bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        self.bytes.get_mut(shift..).map_or(std::ptr::null_mut(), |usable| usable.as_mut_ptr())
    }

    /// Usable bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - BLOCK
    }

    /// The piece number `number` of `len` bytes.
    pub(super) fn slot(&mut self, number: usize, len: usize) -> Option<&mut [u8]> {
        let shift = self.bytes.as_ptr().align_offset(BLOCK).min(BLOCK) + number * len;
        self.bytes.get_mut(shift..shift + len)
    }
}

/// The chunk files of a folder with their lengths, in order of their numbers.
fn chunk_files(folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::path("read", folder))? {
        let path = entry.map_err(Error::path("read", folder))?.path();
        let number = path.file_stem().and_then(|s| s.to_str()?.strip_prefix('c')?.parse::<u64>().ok());
        let len = path.metadata().map_err(Error::path("read", &path))?.len();
        files.extend(number.map(|number| (number, path, len)));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path, len)| (path, len)).collect())
}
