//! Small reads beside large ones, by the store's I/O engine without a server.
//!
//! Streams ask for pieces of a megabyte ahead, as cold scans do, each a statement of its own with 32 under way. Points come
//! 20 times a second at random times whether or not earlier ones have ended (open loop), and read a page at a random place.
//! Each is a statement of its own, as look-ups of clients are: the engine makes room for several statements that read little.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::io::{BlockIo, Class, Intent, IoFile, ReadHandle, StatementId};

use super::ms_since;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::statistics::percentile;

const PAGE_BYTES: usize = 4096;
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that a stream has under way.
const PIECES: usize = 32;
const POINTS_PER_S: f64 = 20.0;

/// What to run.
pub(super) struct Load {
    /// Streams of large reads.
    pub(super) streams: usize,
    /// The class of the small reads; `None`: there are none.
    pub(super) points: Option<Class>,
    /// Bytes of large reads that may run beside points.
    pub(super) beside_bytes: u64,
    pub(super) ms: u64,
}

/// Runs it, and returns the waits of the points and the bytes of the streams.
pub(super) fn run(engine: &Arc<dyn BlockIo>, files: &[(PathBuf, u64)], load: &Load) -> Result<Sample> {
    engine.depth().set_beside_points(load.beside_bytes);
    let files = files.iter().map(|(path, _)| engine.open(path));
    let files: Vec<Arc<IoFile>> = files.collect::<std::result::Result<_, _>>()?;
    let large: Vec<Arc<IoFile>> = files.into_iter().filter(|file| file.len > PIECE_BYTES as u64).collect();
    if large.is_empty() {
        return Err(Error::failed("no file is larger than a megabyte"));
    }
    let has_ended = AtomicBool::new(false);
    let start = Instant::now();
    let (bytes, waits_ms) = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..load.streams)
            .map(|number| {
                scope.spawn({
                    let (large, has_ended) = (&large, &has_ended);
                    move || read_ahead(engine, large, number as u64, has_ended)
                })
            })
            .collect();
        let waits = read_points(engine, &large, load, start);
        has_ended.store(true, Ordering::Relaxed);
        let bytes: Result<u64> =
            streams.into_iter().map(|stream| stream.join().map_err(|_| Error::failed("a stream panicked"))?).sum();
        Ok::<_, Error>((bytes?, waits?))
    })?;
    let sample = Sample::new(ms_since(start)).with("bytes", bytes as f64).with("points", waits_ms.len() as f64);
    Ok(sample.with("p50_ms", percentile(&waits_ms, 0.5)).with("p99_ms", percentile(&waits_ms, 0.99)))
}

/// Reads pieces at random places until the end; returns their bytes.
fn read_ahead(engine: &Arc<dyn BlockIo>, files: &[Arc<IoFile>], seed: u64, has_ended: &AtomicBool) -> Result<u64> {
    let intent = Intent { statement: StatementId::next(), ..Class::Prefetch.into() };
    let mut random = StdRng::seed_from_u64(seed);
    let mut running = FuturesUnordered::new();
    let mut bytes = 0;
    futures::executor::block_on(async {
        while !has_ended.load(Ordering::Relaxed) {
            while running.len() < PIECES {
                running.extend(read_random(engine, files, &mut random, intent, PIECE_BYTES));
            }
            if let Some(read) = running.next().await {
                bytes += read?.as_slice().len() as u64;
            }
        }
        Ok(bytes)
    })
}

/// Reads pages at random times; returns how long after its time each was there, in milliseconds.
#[allow(clippy::disallowed_methods, reason = "open loop: the next one comes when it comes")]
fn read_points(engine: &Arc<dyn BlockIo>, files: &[Arc<IoFile>], load: &Load, start: Instant) -> Result<Vec<f64>> {
    let length = Duration::from_millis(load.ms);
    let Some(class) = load.points else {
        std::thread::sleep(length);
        return Ok(Vec::new());
    };
    let mut random = StdRng::seed_from_u64(99);
    let mut due = Duration::ZERO;
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        loop {
            due += Duration::from_secs_f64(-random.random::<f64>().max(1e-9).ln() / POINTS_PER_S);
            if due >= length {
                let join = |point: std::thread::ScopedJoinHandle<'_, Result<f64>>| {
                    point.join().map_err(|_| Error::failed("a point panicked"))?
                };
                return waiting.into_iter().map(join).collect();
            }
            std::thread::sleep(due.saturating_sub(start.elapsed()));
            let asked = Instant::now();
            let intent = Intent { statement: StatementId::next(), ..class.into() };
            let Some(read) = read_random(engine, files, &mut random, intent, PAGE_BYTES) else { continue };
            waiting.push(scope.spawn(move || {
                read.wait()?;
                Ok(ms_since(asked))
            }));
        }
    })
}

fn read_random(
    engine: &Arc<dyn BlockIo>,
    files: &[Arc<IoFile>],
    random: &mut StdRng,
    intent: Intent,
    bytes: usize,
) -> Option<ReadHandle> {
    let file = files.get(random.random_range(0..files.len().max(1)))?;
    let pages = (file.len - bytes as u64) / PAGE_BYTES as u64;
    Some(engine.read_as(intent, file, random.random_range(0..=pages) * PAGE_BYTES as u64, bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::Mutex;

    use terrace_tier_store::Result as StoreResult;
    use terrace_tier_store::io::simulated::{Faults, SimulatedEngine};
    use terrace_tier_store::io::{AlignedBuffer, BufferPool, Depth, IoRules, IoStats};

    use super::*;

    /// An engine that notes whose its reads are.
    #[derive(Debug)]
    struct Noting {
        inner: SimulatedEngine,
        statements: Mutex<HashSet<StatementId>>,
    }

    impl BlockIo for Noting {
        fn name(&self) -> &'static str {
            self.inner.name()
        }

        fn open(&self, path: &Path) -> StoreResult<Arc<IoFile>> {
            self.inner.open(path)
        }

        fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
            self.statements.lock().unwrap().insert(intent.statement);
            self.inner.read_windows(intent, file, windows)
        }

        fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
            self.inner.write_as(intent, file, offset, bytes)
        }

        fn raise(&self, intent: Intent, handle: &ReadHandle) {
            self.inner.raise(intent, handle);
        }

        fn rules(&self) -> IoRules {
            self.inner.rules()
        }

        fn set_rules(&self, rules: IoRules) {
            self.inner.set_rules(rules);
        }

        fn stats(&self) -> &IoStats {
            self.inner.stats()
        }

        fn pool(&self) -> &Arc<BufferPool> {
            self.inner.pool()
        }

        fn depth(&self) -> &Depth {
            self.inner.depth()
        }
    }

    /// Else the engine makes no room for them, and the bytes that run beside points decide nothing.
    #[test]
    fn each_point_is_a_statement() {
        let inner = SimulatedEngine::start(0, Faults::default());
        inner.add_file("/in/memory", &vec![1_u8; 2 << 20]).unwrap();
        let noting = Arc::new(Noting { inner, statements: Mutex::default() });
        let engine: Arc<dyn BlockIo> = Arc::<Noting>::clone(&noting);
        let load = Load { streams: 0, points: Some(Class::Point), beside_bytes: 256 << 10, ms: 500 };
        let sample = run(&engine, &[(PathBuf::from("/in/memory"), 2 << 20)], &load).unwrap();
        let statements = noting.statements.lock().unwrap();
        assert!(statements.len() > 1 && statements.len() as f64 == sample.value("points"), "{statements:?}");
        assert!(!statements.contains(&StatementId::NONE));
    }
}
