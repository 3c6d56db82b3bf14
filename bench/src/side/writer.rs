//! A store in this process that is written to: inserts of several writers at once, and a slow stream of them with
//! compaction behind it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_tier_store::table::{Table, TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};

use super::{Side, ms_since, unknown};
use crate::error::{Error, Result};
use crate::row::Sample;

/// Rows of a chunk of the stream's table, and the sixteenth of it that is sealed at a time.
const STREAM_CHUNK_ROWS: u32 = 16_384;
const STREAM_SEAL_BYTES: u64 = STREAM_CHUNK_ROWS as u64 / 16 * ROW_BYTES;
/// Rows of one insert of the stream.
const STREAM_INSERT_ROWS: usize = 100;
/// Approximate bytes of a row of [`rows`].
const ROW_BYTES: u64 = 8 + 8 + 16 + TEXT_BYTES as u64;
const TEXT_BYTES: usize = 64;
/// Longer than the pause between two compactions.
const QUIET: Duration = Duration::from_millis(1300);

/// The side.
pub struct Writer {
    store: Arc<Store>,
}

impl Writer {
    /// Opens a new store; one for `stream` seals small and compacts in the background.
    pub fn new(data_dir: &Path, stream: bool) -> Result<Self> {
        let mut options = StoreOptions::new(data_dir);
        if stream {
            options.compaction_bytes_per_s = 1 << 30;
            options.seal.bytes = STREAM_SEAL_BYTES;
        }
        Ok(Self { store: Store::open(options)? })
    }

    /// A new, empty table.
    fn table(&self, like: &RecordBatch, chunk_rows: Option<u32>) -> Result<Arc<Table>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = TableName::new("public", format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut definition = TableDefinition::new(name, like.schema());
        if let Some(rows) = chunk_rows {
            definition.options.chunk_rows = rows;
        }
        Ok(self.store.create_table(definition)?)
    }

    /// Each of `writers` threads inserts `count` rows at a time, durably, until the time is over.
    fn insert(&self, count: usize, writers: usize, duration: Duration) -> Result<Sample> {
        let rows = rows(count)?;
        let table = self.table(&rows, None)?;
        let start = Instant::now();
        let write = || {
            let mut inserts = 0_u64;
            while start.elapsed() < duration {
                self.store.insert(&table, std::slice::from_ref(&rows))?;
                inserts += 1;
            }
            Ok::<_, Error>(inserts)
        };
        let inserts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..writers).map(|_| scope.spawn(write)).collect();
            let lost = |_| Error::failed("a writer panicked");
            threads.into_iter().map(|thread| thread.join().map_err(lost)?).sum::<Result<u64>>()
        })?;
        let ms = ms_since(start);
        self.store.drop_table(table.name())?;
        Ok(Sample::new(ms).with("inserts", inserts as f64).with("rows", (inserts * count as u64) as f64))
    }

    /// Inserts `rows_per_s` in small inserts, then waits for the last compaction. Counts the bytes of chunk files
    /// written, and the bytes of the remaining chunks.
    fn stream(&self, rows_per_s: usize, duration: Duration) -> Result<Sample> {
        let rows = rows(STREAM_INSERT_ROWS)?;
        let table = self.table(&rows, Some(STREAM_CHUNK_ROWS))?;
        let counters = self.store.home().counters();
        let compactions = self.store.compactions();
        let groups = || compactions.groups.load(Ordering::Relaxed);
        let groups_before = groups();
        let written_before = counters.written_bytes.load(Ordering::Relaxed);
        let disk_before = process_written_bytes()?;
        let pause = Duration::from_secs_f64(STREAM_INSERT_ROWS as f64 / rows_per_s.max(1) as f64);
        let start = Instant::now();
        let mut inserts = 0_u32;
        while start.elapsed() < duration {
            self.store.insert(&table, std::slice::from_ref(&rows))?;
            inserts += 1;
            std::thread::sleep((pause * inserts).saturating_sub(start.elapsed()));
        }
        let ms = ms_since(start);
        self.store.seal(&table)?;
        let mut last = groups();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            std::thread::sleep(Duration::from_millis(20));
            if groups() != last {
                (last, since) = (groups(), Instant::now());
            }
        }
        let version = table.version();
        let live: u64 = version.chunks.iter().map(|c| c.chunk.file_bytes).sum();
        let written = counters.written_bytes.load(Ordering::Relaxed) - written_before;
        let sample = Sample::new(ms)
            .with("rows", f64::from(inserts) * STREAM_INSERT_ROWS as f64)
            .with("written_bytes", written as f64)
            .with("live_bytes", live as f64)
            .with("chunks", version.chunks.len() as f64)
            .with("compactions", (last - groups_before) as f64)
            .with("process_bytes", (process_written_bytes()? - disk_before) as f64);
        drop(version);
        self.store.drop_table(table.name())?;
        Ok(sample)
    }
}

/// Bytes that this process caused to be sent to disks, the catalog's log included.
fn process_written_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io").map_err(Error::io("cannot read /proc/self/io"))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
    bytes.ok_or_else(|| Error::failed("/proc/self/io does not tell written bytes"))
}

impl Side for Writer {
    fn run(&mut self, op: &str) -> Result<Sample> {
        let words: Vec<&str> = op.split(' ').collect();
        let number = |text: &str| text.parse::<usize>().map_err(|_| unknown(op));
        match words.as_slice() {
            ["insert", rows, writers, ms] => {
                self.insert(number(rows)?, number(writers)?, Duration::from_millis(number(ms)? as u64))
            }
            ["stream", rows_per_s, ms] => self.stream(number(rows_per_s)?, Duration::from_millis(number(ms)? as u64)),
            _ => Err(unknown(op)),
        }
    }
}

/// Rows with keys in order, random numbers and random text.
fn rows(count: usize) -> Result<RecordBatch> {
    let mut rng = StdRng::seed_from_u64(count as u64);
    let text =
        (0..count).map(|_| (0..TEXT_BYTES).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect::<String>());
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(text));
    let keys: ArrayRef = Arc::new((0..count as i64).collect::<Int64Array>());
    let values: ArrayRef = Arc::new((0..count).map(|_| rng.random::<i64>()).collect::<Int64Array>());
    Ok(RecordBatch::try_from_iter([("k", keys), ("v", values), ("s", text)])?)
}
