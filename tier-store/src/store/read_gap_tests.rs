//! Measures devices of several speeds on virtual time, and checks the reads that follow from the measurements.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use terrace_model::clock::ManualClock;
use terrace_model::{Result, TableName};
use terrace_storage::io::blocking::BlockingEngine;
use terrace_storage::io::{AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle};
use terrace_storage::table::TableDefinition;
use terrace_storage::tier::reader::{Admission, ReadGap};

use super::{CompressionChoice, ReadGapChoice, Store, StoreOptions};

/// An engine that serves one request after another, each in `request_us` and the time of its bytes.
#[derive(Debug)]
struct Timed {
    inner: BlockingEngine,
    clock: Arc<ManualClock>,
    request_us: f64,
    bytes_per_us: f64,
    /// Time by which the clock, which counts whole microseconds, lags.
    lag_ns: AtomicU64,
    requests: AtomicU64,
}

impl BlockIo for Timed {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        self.inner.open(path)
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        let start = windows.first().unwrap().0;
        let end = windows.last().map(|w| w.0 + w.1 as u64).unwrap();
        let took_us = self.request_us + (end - start) as f64 / self.bytes_per_us;
        let ns = self.lag_ns.fetch_add((took_us * 1e3) as u64, Ordering::SeqCst) + (took_us * 1e3) as u64;
        self.lag_ns.store(ns % 1000, Ordering::SeqCst);
        self.clock.advance(Duration::from_micros(ns / 1000));
        self.requests.fetch_add(1, Ordering::SeqCst);
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

fn open(dir: &Path, speed: Speed, read_gap: ReadGapChoice) -> (Arc<Store>, Arc<Timed>) {
    open_with(speed, StoreOptions { read_gap, ..StoreOptions::new(dir) })
}

fn open_with(speed: Speed, options: StoreOptions) -> (Arc<Store>, Arc<Timed>) {
    let Speed { request_us, bytes_per_us } = speed;
    let clock = Arc::new(ManualClock::default());
    let io = Arc::new(Timed {
        inner: BlockingEngine::start(),
        clock: Arc::clone(&clock),
        request_us,
        bytes_per_us,
        lag_ns: AtomicU64::default(),
        requests: AtomicU64::default(),
    });
    let engine = Some(Arc::clone(&io) as _);
    let options = StoreOptions { io: engine, clock, dram_budget_bytes: 0, ..options };
    (Store::open(options).unwrap(), io)
}

/// How fast a device serves requests.
#[derive(Debug, Clone, Copy)]
struct Speed {
    request_us: f64,
    bytes_per_us: f64,
}

/// A disk with an arm.
const DISK: Speed = Speed { request_us: 8_000.0, bytes_per_us: 150.0 };
/// A network disk.
const NETWORK: Speed = Speed { request_us: 270.0, bytes_per_us: 250.0 };
/// A fast device.
const FAST: Speed = Speed { request_us: 2.0, bytes_per_us: 3_000.0 };

#[test]
fn the_distance_follows_the_device() {
    let gap = |device: Speed, choice: ReadGapChoice| {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path(), device, choice);
        let bytes = store.home().read_gap().bytes();
        let shown = store.tier_infos().pop().unwrap().read_gap_bytes;
        assert_eq!((shown, std::fs::read_dir(dir.path().join("ssd")).unwrap().count()), (Some(bytes), 0));
        bytes
    };
    let [disk, network, fast] = [DISK, NETWORK, FAST].map(|device| gap(device, ReadGapChoice::Auto));
    assert!((1_150_000..=1_250_000).contains(&disk), "{disk}");
    assert!((60_000..=75_000).contains(&network), "{network}");
    assert!((3_000..=9_000).contains(&fast), "{fast}");
    assert_eq!(gap(DISK, ReadGapChoice::Fixed(40_000)), 40_000);
    assert_eq!(gap(DISK, ReadGapChoice::default()), ReadGap::USUAL);
}

/// Spilled rows follow the files.
#[test]
fn files_are_compressed_where_the_device_is_slow() {
    let compresses = |device: Speed, compression: CompressionChoice| {
        let dir = tempfile::tempdir().unwrap();
        open_with(device, StoreOptions { compression, ..StoreOptions::new(dir.path()) }).0.compresses_files()
    };
    let choices = [CompressionChoice::Auto, CompressionChoice::None];
    assert_eq!(choices.map(|choice| compresses(DISK, choice)), [true, false]);
    assert_eq!(choices.map(|choice| compresses(FAST, choice)), [false, false]);
}

/// Reads every 9,000th row of a column: as pages on a fast device, as one request on a disk with an arm, and each is quicker
/// than the other device's reads would be.
#[test]
fn slow_devices_get_few_large_reads() {
    let read = |device: Speed, choice: ReadGapChoice| {
        let dir = tempfile::tempdir().unwrap();
        let (store, io) = open(dir.path(), device, choice);
        let numbers = |factor: i64| {
            let values = (0..65_536_i64).map(|row| (row * factor).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
            Arc::new(Int64Array::from_iter_values(values)) as ArrayRef
        };
        let rows = RecordBatch::try_from_iter([("a", numbers(1)), ("b", numbers(2)), ("c", numbers(3))]).unwrap();
        let name = TableName::new("public", "numbers");
        let mut ingest = store.ingest_new(TableDefinition::new(name.clone(), rows.schema()), false).unwrap();
        ingest.write(rows.clone()).unwrap();
        ingest.finish().unwrap();
        let chunk = Arc::clone(&store.table(&name).unwrap().version().chunks[0].chunk);
        let wanted: Vec<_> = (0..7).map(|n| n * 9_000..n * 9_000 + 1).collect();
        let requests = io.requests.load(Ordering::SeqCst);
        let start_us = now_us(&io);
        let cold =
            store.home().read_rows(&chunk, &[0, 2], Some(&wanted), Admission::Guaranteed.into()).unwrap().unwrap();
        let cold = cold.wait().unwrap();
        for (column, position) in cold.columns.iter().zip([0, 2]) {
            for row in wanted.iter().map(|range| range.start) {
                assert_eq!(&column.slice(row, 1).unwrap(), &rows.column(position).slice(row, 1));
            }
        }
        (io.requests.load(Ordering::SeqCst) - requests, cold.bytes_read, now_us(&io) - start_us)
    };
    let pages = ReadGapChoice::Fixed(16 << 10);
    let whole = ReadGapChoice::Fixed(1 << 20);
    let [fast, disk] = [FAST, DISK].map(|device| read(device, ReadGapChoice::Auto));
    assert_eq!((fast.0, disk.0), (14, 1), "{fast:?} {disk:?}");
    assert!(fast.1 < 2 * 8 * 20_000 && disk.1 > 3 * 65_536 * 8, "{fast:?} {disk:?}");
    let fast_other = read(FAST, whole);
    let disk_other = read(DISK, pages);
    assert!(fast.2 < fast_other.2 && disk.2 * 5 < disk_other.2, "{fast:?} {fast_other:?} {disk:?} {disk_other:?}");
}

fn now_us(io: &Timed) -> u64 {
    terrace_model::clock::Clock::now_us(io.clock.as_ref())
}
