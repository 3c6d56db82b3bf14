//! Methods of reading one file: direct reads, io_uring, the store's I/O engine, the page cache, a map.
//!
//! Every method adds up the words of each block, so that the bytes reach the processor. Methods that copy use the same
//! amount of memory in turn.

use std::collections::VecDeque;
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use io_uring::{IoUring, opcode, types};
use memmap2::Mmap;
use terrace_tier_store::io::{BlockIo, IoFile};

use super::super::device::{AlignedVec, abandon};
use super::offsets::BlockOffsets;
use crate::error::{Error, Result};

/// Reads the blocks at all offsets.
pub trait Reader: Send {
    /// Reads blocks of `block` bytes, all of which lie in the file.
    fn read(&mut self, offsets: &mut BlockOffsets, block: usize) -> Result<()>;
}

/// Reads all bytes, and adds them up.
pub fn add_up(bytes: &[u8]) {
    black_box(bytes.as_chunks::<8>().0.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word))));
}

/// One read after the other; around the page cache when the file was opened with O_DIRECT.
pub struct Pread {
    /// The file.
    pub file: Arc<File>,
    /// Memory for blocks, used in turn.
    pub memory: AlignedVec,
}

impl Reader for Pread {
    fn read(&mut self, offsets: &mut BlockOffsets, block: usize) -> Result<()> {
        let slots = self.memory.len() / block;
        for (number, offset) in offsets.enumerate() {
            let Some(slot) = self.memory.slot(number % slots, block) else { continue };
            self.file
                .read_exact_at(slot, offset)
                .map_err(Error::io(format!("cannot read {block} bytes at {offset}")))?;
            add_up(slot);
        }
        Ok(())
    }
}

/// A bare io_uring with O_DIRECT.
pub struct Ring {
    /// The file, opened with O_DIRECT.
    pub file: Arc<File>,
    /// Memory for blocks, used in turn: at least for as many as are in flight.
    pub memory: AlignedVec,
    /// Reads in flight.
    pub depth: usize,
    /// The ring.
    pub ring: IoUring,
}

impl Reader for Ring {
    fn read(&mut self, offsets: &mut BlockOffsets, block: usize) -> Result<()> {
        let slots = self.memory.len() / block;
        let mut free: VecDeque<usize> = (0..slots).collect();
        loop {
            while slots - free.len() < self.depth {
                let Some(offset) = offsets.next() else { break };
                let Some(number) = free.pop_front() else { break };
                let Some(slot) = self.memory.slot(number, block) else { continue };
                let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), slot.as_mut_ptr(), block as u32)
                    .offset(offset)
                    .build()
                    .user_data(number as u64);
                // SAFETY: the file and the memory live as long as the ring; nothing else uses this slot until its
                // completion was seen, and the loop ends only when all were. On errors the process ends.
                if unsafe { self.ring.submission().push(&entry) }.is_err() {
                    abandon("push", &std::io::Error::other("the submission queue is full"));
                }
            }
            if free.len() == slots {
                return Ok(());
            }
            if let Err(error) = self.ring.submit_and_wait(1) {
                abandon("io_uring_enter", &error);
            }
            for done in self.ring.completion() {
                if done.result() < 0 {
                    abandon("read", &std::io::Error::from_raw_os_error(-done.result()));
                }
                let number = done.user_data() as usize;
                add_up(self.memory.slot(number, block).unwrap_or_default());
                free.push_back(number);
            }
        }
    }
}

/// The store's I/O engine.
pub struct Engine {
    /// The engine.
    pub engine: Arc<dyn BlockIo>,
    /// The file, opened by the engine.
    pub file: Arc<IoFile>,
    /// Reads in flight.
    pub depth: usize,
}

impl Reader for Engine {
    fn read(&mut self, offsets: &mut BlockOffsets, block: usize) -> Result<()> {
        let mut running = FuturesUnordered::new();
        futures::executor::block_on(async {
            loop {
                while running.len() < self.depth {
                    let Some(offset) = offsets.next() else { break };
                    running.push(self.engine.read(&self.file, offset, block));
                }
                match running.next().await {
                    Some(buffer) => add_up(buffer?.as_slice()),
                    None => return Ok(()),
                }
            }
        })
    }
}

/// A map of the file, read in place.
pub struct Mapped(pub Arc<Mmap>);

impl Reader for Mapped {
    fn read(&mut self, offsets: &mut BlockOffsets, block: usize) -> Result<()> {
        for offset in offsets {
            let start = offset as usize;
            add_up(self.0.get(start..start + block).unwrap_or_default());
        }
        Ok(())
    }
}
