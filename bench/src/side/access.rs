//! Random and sequential reads of one file, by several methods, for a given time.
//!
//! Requests: `read METHOD STATE PATTERN BLOCK THREADS DEPTH MS`, `drop` (the page cache forgets the file), `fill` (it
//! reads the file). METHOD is `pread`, `uring`, `engine` (these three around the page cache), `buffered`, `map`, or
//! `map-plain` (a map without advice to the kernel). STATE is `cold` (nothing is read twice), `warm` (the map stays) or
//! `kept` (the page cache keeps as much as it can). PATTERN is `random` or `sequential`.
//!
//! Requests about parts of the file: see [`parts`].
//!
//! - [`offsets`]: offsets that a thread reads
//! - [`parts`]: parts of the file through a map
//! - [`reader`]: methods of reading

mod offsets;
mod parts;
mod reader;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use memmap2::{Advice, Mmap, MmapOptions};
use terrace_tier_store::io::{BlockIo, best_engine};

use self::offsets::{BlockOffsets, Order};
use self::reader::{Engine, Mapped, Pread, Reader, Ring};
use super::device::AlignedVec;
use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// Memory that all threads together copy into in turn: more than the processor caches, as with data that is processed.
const ROUND_BYTES: usize = 64 << 20;

/// The side.
pub struct Access {
    path: PathBuf,
    bytes: u64,
    engine: Option<Arc<dyn BlockIo>>,
    /// A map whose pages are all present.
    warm: Option<Arc<Mmap>>,
    parts: parts::Maps,
    passes: u64,
    /// Position of sequential reads in each thread's part, in blocks.
    cursor: u64,
}

/// One request to read.
struct Request<'a> {
    method: &'a str,
    state: &'a str,
    random: bool,
    block: usize,
    threads: usize,
    depth: usize,
    ms: u64,
}

impl Access {
    /// Reads `path`, whose length is a power of two.
    pub fn new(path: &Path) -> Result<Self> {
        let bytes = path.metadata().map_err(Error::path("read", path))?.len();
        if !bytes.is_power_of_two() {
            return Err(Error::failed(format!("{} has {bytes} bytes, not a power of two", path.display())));
        }
        Ok(Self {
            path: path.to_path_buf(),
            bytes,
            engine: None,
            warm: None,
            parts: parts::Maps::default(),
            passes: 0,
            cursor: 0,
        })
    }

    fn open(&self, flags: i32) -> Result<File> {
        let mut options = File::options();
        options.read(true).custom_flags(flags).open(&self.path).map_err(Error::path("open", &self.path))
    }

    /// Drops the file from the page cache.
    fn forget(&mut self) -> Result<()> {
        self.warm = None;
        self.parts = parts::Maps::default();
        self.cursor = 0;
        let file = self.open(0)?;
        // SAFETY: the descriptor is open until the end of this function; the call takes no memory.
        match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
            0 => Ok(()),
            code => Err(Error::path("drop from the page cache", &self.path)(std::io::Error::from_raw_os_error(code))),
        }
    }

    /// Reads the file into the page cache, or as much of it as the cache may keep.
    fn fill_page_cache(&self) -> Result<()> {
        let file = self.open(0)?;
        let mut piece = vec![0; 1 << 20];
        for offset in (0..self.bytes).step_by(piece.len()) {
            file.read_at(&mut piece, offset).map_err(Error::path("read", &self.path))?;
        }
        Ok(())
    }

    fn map(&self, options: &MmapOptions) -> Result<Mmap> {
        let file = self.open(0)?;
        // SAFETY: no process changes or shortens the file: the experiment writes it once, under another name.
        unsafe { options.map(&file) }.map_err(Error::path("map", &self.path))
    }

    fn mapped(&mut self, request: &Request<'_>) -> Result<Arc<Mmap>> {
        if let ("warm", Some(map)) = (request.state, &self.warm) {
            return Ok(Arc::clone(map));
        }
        let warm = request.state == "warm";
        let mut options = MmapOptions::new();
        let map = self.map(if warm { options.populate() } else { &options })?;
        if request.method == "map" {
            let advice = if request.random { Advice::Random } else { Advice::Sequential };
            map.advise(advice).map_err(Error::path("advise on", &self.path))?;
        }
        let map = Arc::new(map);
        self.warm = warm.then(|| Arc::clone(&map));
        Ok(map)
    }

    fn readers(&mut self, request: &Request<'_>) -> Result<Vec<Box<dyn Reader>>> {
        let depth = request.depth;
        // Memory for copies would displace the page cache that is measured.
        let round = if request.state == "kept" { 0 } else { ROUND_BYTES / request.threads };
        let memory = || AlignedVec::new((request.block * depth).max(round));
        let ways = 0..request.threads;
        match request.method {
            "pread" | "buffered" => {
                let file = Arc::new(self.open(if request.method == "pread" { libc::O_DIRECT } else { 0 })?);
                Ok(ways.map(|_| Pread { file: Arc::clone(&file), memory: memory() }).map(boxed).collect())
            }
            "uring" => {
                let file = Arc::new(self.open(libc::O_DIRECT)?);
                let ring = |_| {
                    let ring = IoUring::new(depth as u32).map_err(Error::io("io_uring is not available"))?;
                    Ok(boxed(Ring { file: Arc::clone(&file), memory: memory(), depth, ring }))
                };
                ways.map(ring).collect()
            }
            "engine" => {
                let engine = Arc::clone(self.engine.get_or_insert_with(best_engine));
                let file = engine.open(&self.path)?;
                let way = |_| Engine { engine: Arc::clone(&engine), file: Arc::clone(&file), depth };
                Ok(ways.map(way).map(boxed).collect())
            }
            _ => {
                let map = self.mapped(request)?;
                Ok(ways.map(|_| boxed(Mapped(Arc::clone(&map)))).collect())
            }
        }
    }

    fn read(&mut self, request: &Request<'_>) -> Result<Sample> {
        let mut readers = self.readers(request)?;
        self.passes += 1;
        let block = request.block as u64;
        let seed = request.random.then_some(self.passes);
        let order = Order { block, blocks: self.bytes / block, seed };
        let threads = request.threads as u64;
        let again = request.state != "cold";
        let first = if request.random || !again { 0 } else { self.cursor };
        let faults = major_faults();
        let start = Instant::now();
        let until = start + Duration::from_millis(request.ms);
        let counts = std::thread::scope(|scope| {
            let work = |(thread, reader): (usize, &mut Box<dyn Reader>)| {
                let mut offsets = BlockOffsets::new(order, thread as u64, threads, first, again, until);
                reader.read(&mut offsets, request.block).map(|()| offsets.count)
            };
            let spawn = |item| scope.spawn(move || work(item));
            let running: Vec<_> = readers.iter_mut().enumerate().map(spawn).collect();
            let ended =
                running.into_iter().map(|t| t.join().map_err(|_| Error::failed("a reading thread panicked"))?);
            ended.collect::<Result<Vec<u64>>>()
        })?;
        let reads: u64 = counts.iter().sum();
        if !request.random {
            self.cursor = first + reads / threads;
        }
        let sample = Sample::new(ms_since(start)).with("reads", reads as f64).with("bytes", (reads * block) as f64);
        Ok(sample.with("major_faults", major_faults() - faults))
    }
}

fn boxed<'a>(reader: impl Reader + 'a) -> Box<dyn Reader + 'a> {
    Box::new(reader)
}

impl<'a> Request<'a> {
    fn parse(op: &'a str) -> Option<Self> {
        let words: Vec<&str> = op.split(' ').collect();
        let ["read", method, state, pattern, block, threads, depth, ms] = words.as_slice() else { return None };
        let known = ["pread", "uring", "engine", "buffered", "map", "map-plain"].contains(method)
            && ["cold", "warm", "kept"].contains(state)
            && ["random", "sequential"].contains(pattern);
        let positive = |text: &str| text.parse::<usize>().ok().filter(|n| *n > 0);
        let block = positive(block)?;
        let threads = positive(threads)?;
        let depth = positive(depth)?;
        let random = *pattern == "random";
        known.then_some(Self { method, state, random, block, threads, depth, ms: ms.parse().ok()? })
    }
}

impl Side for Access {
    fn run(&mut self, op: &str) -> Result<Sample> {
        match op {
            "drop" => self.forget()?,
            "fill" => self.fill_page_cache()?,
            _ if op.starts_with("scan ") || op.starts_with("touch ") => return self.read_part(op),
            _ => return self.read(&Request::parse(op).ok_or_else(|| unknown(op))?),
        }
        Ok(Sample::default())
    }
}

/// Pages that this process had to wait for: major faults.
fn major_faults() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place for the one structure that the call writes; all zeros are a valid one too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_majflt as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Runs a request for longer and longer until it reads more than `least` blocks: on a loaded machine a short run may
    /// get no time at all.
    fn read_more_than(least: f64, side: &mut Access, request: &str) -> Result<Sample> {
        let mut ms = 5;
        loop {
            let sample = side.run(&format!("{request} {ms}"))?;
            if sample.value("reads") > least || ms > 10_000 {
                return Ok(sample);
            }
            ms *= 4;
        }
    }

    #[test]
    fn every_method_reads_and_bad_requests_are_refused() {
        let path = std::env::temp_dir().join(format!("terrace-bench-access-{}", std::process::id()));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let mut side = Access::new(&path).unwrap();
        for method in ["pread", "uring", "engine", "buffered", "map", "map-plain"] {
            for (state, pattern) in [("cold", "random"), ("cold", "sequential"), ("kept", "random")] {
                let sample = read_more_than(0.0, &mut side, &format!("read {method} {state} {pattern} 4096 2 4"));
                let sample = match sample {
                    // io_uring and O_DIRECT do not exist everywhere.
                    Err(Error::Io { .. }) if ["pread", "uring"].contains(&method) => continue,
                    sample => sample.unwrap(),
                };
                let reads = sample.value("reads");
                assert!(reads > 0.0 && sample.value("bytes") == reads * 4096.0, "{method} {state} {pattern}");
                assert!(state != "cold" || reads <= 256.0, "{method}: a cold block was read twice");
            }
        }
        side.run("fill").unwrap();
        let again = read_more_than(256.0, &mut side, "read map warm sequential 512 1 1").unwrap();
        assert!(again.value("reads") > 256.0);
        side.run("drop").unwrap();
        for bad in
            ["read", "read map warm random 0 1 1 5", "read dax cold random 512 1 1 5", "read map hot random 512 1 1 5"]
        {
            assert!(side.run(bad).unwrap_err().to_string().contains("does not know"), "{bad}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Access::new(&path).is_err());
    }
}
