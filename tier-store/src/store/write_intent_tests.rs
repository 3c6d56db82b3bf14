//! What the writes of chunk files are for: those of clients take turns, those of compactions and backups are upkeep. And whose
//! the checks of keys are.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roaring::RoaringTreemap;
use tempfile::TempDir;
use terrace_model::Result;
use terrace_storage::io::simulated::{Faults, SimulatedEngine};
use terrace_storage::io::{
    AlignedBuffer, BLOCK_BYTES, BlockIo, BufferPool, Class, Depth, Intent, IoFile, IoRules, IoStats, ReadHandle,
    StatementId, WritingStatement, best_engine,
};
use terrace_storage::table::{ChunkAdmission, Table, TableDefinition};

use super::tests::{definition, rows};
use super::{Store, StoreOptions};

/// An engine that notes what its reads and writes are for.
#[derive(Debug)]
struct Noting {
    inner: Arc<dyn BlockIo>,
    reads: Mutex<HashSet<(Class, StatementId)>>,
    writes: Mutex<HashSet<(Class, StatementId)>>,
}

impl BlockIo for Noting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>> {
        self.inner.open(path)
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        self.reads.lock().insert((intent.class, intent.statement));
        self.inner.read_windows(intent, file, windows)
    }

    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        self.writes.lock().insert((intent.class, intent.statement));
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

/// A store with an empty table of large chunks: files of less than 256 KiB do not go through the engine. It lies in the
/// build folder, on a disk.
fn open() -> (TempDir, Arc<Store>, Arc<Table>, Arc<Noting>) {
    open_over(best_engine(), definition("t"))
}

/// The same over an engine, with a table of this definition.
fn open_over(
    inner: Arc<dyn BlockIo>,
    mut definition: TableDefinition,
) -> (TempDir, Arc<Store>, Arc<Table>, Arc<Noting>) {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let io = Arc::new(Noting { inner, reads: Mutex::default(), writes: Mutex::default() });
    let engine = Some(Arc::clone(&io) as Arc<dyn BlockIo>);
    let store = Store::open(StoreOptions { io: engine, ..StoreOptions::new(dir.path().join("data")) }).unwrap();
    definition.options.chunk_rows = 65_536;
    let table = store.create_table(definition).unwrap();
    (dir, store, table, io)
}

fn ingest(store: &Arc<Store>, table: &Arc<Table>, keys: Range<i64>) {
    let mut ingest = store.ingest(table);
    ingest.write(rows(keys)).unwrap();
    ingest.finish().unwrap();
}

#[test]
fn each_writer_has_a_statement_and_upkeep_has_none() {
    let (dir, store, table, io) = open();
    let noted = || std::mem::take(&mut *io.writes.lock());
    ingest(&store, &table, 0..95_000);
    assert_eq!(table.version().chunks.len(), 2);
    let first = noted();
    ingest(&store, &table, 100_000..130_000);
    let second = noted();
    store.insert(&table, &[rows(200_000..230_000)]).unwrap();
    store.seal(&table).unwrap();
    let third = noted();
    let writers = [first, second, third];
    assert!(writers.iter().all(|writes| writes.len() == 1), "{writers:?}");
    let distinct: HashSet<_> = writers.into_iter().flatten().collect();
    assert_eq!(distinct.len(), 3, "{distinct:?}");
    let takes_turns = |write: &(Class, StatementId)| write.0 == Class::Write && write.1 != StatementId::NONE;
    assert!(distinct.iter().all(takes_turns), "{distinct:?}");
    let upkeep = HashSet::from([(Class::Upkeep, StatementId::NONE)]);
    assert!(store.optimize(&table).unwrap().chunks_out > 0);
    assert_eq!(noted(), upkeep);
    store.backup(&dir.path().join("backup"), &mut |_| true).unwrap();
    assert_eq!(noted(), upkeep);
}

#[test]
fn ingests_count_as_writes_and_compactions_and_backups_as_upkeep() {
    let (dir, store, table, io) = open();
    let written = || [Class::Write, Class::Upkeep].map(|class| io.stats().class_writes(class).sums().bytes);
    // The rest of a file, less than a block, is written without the engine.
    let stored = || {
        let files = table.version().chunks.iter().map(|entry| entry.chunk.file_bytes).collect::<Vec<_>>();
        assert!(files.iter().all(|bytes| *bytes > 256 << 10), "{files:?}");
        files.iter().map(|bytes| bytes - bytes % BLOCK_BYTES as u64).sum::<u64>()
    };
    // A write is counted just after its writer knows of its end.
    let expect = |expected: [u64; 2]| {
        for _ in 0..1_000 {
            if written() == expected {
                return;
            }
            store.core().clock.sleep(Duration::from_millis(5));
        }
        assert_eq!(written(), expected);
    };
    expect([0, 0]);
    ingest(&store, &table, 0..30_000);
    ingest(&store, &table, 30_000..60_000);
    let ingested = stored();
    expect([ingested, 0]);
    let done = store.optimize(&table).unwrap();
    assert_eq!((done.chunks_in, done.chunks_out), (2, 1));
    let compacted = stored();
    expect([ingested, compacted]);
    store.backup(&dir.path().join("backup"), &mut |_| true).unwrap();
    expect([ingested, 2 * compacted]);
    let mut others = Class::ALL.into_iter().filter(|class| ![Class::Write, Class::Upkeep].contains(class));
    assert!(others.all(|class| io.stats().class_writes(class).sums().bytes == 0));
}

#[test]
fn writes_and_checks_of_keys_belong_to_the_statement_that_stores_rows() {
    let mut definition = definition("t");
    definition.primary_key = vec!["k".into()];
    definition.options.enforce_primary_key = true;
    definition.options.admission = ChunkAdmission::Ssd;
    // Reads take longer than a step of the clock.
    let disk = SimulatedEngine::start(0, Faults { latency: Duration::from_millis(2), ..Faults::default() });
    let (_dir, store, table, io) = open_over(Arc::new(disk), definition);
    // A chunk whose keys lie on both sides of those that come later.
    store.insert(&table, &[rows(0..30_000)]).unwrap();
    store.insert(&table, &[rows(90_000..120_000)]).unwrap();
    store.seal(&table).unwrap();
    for keys in [30_000..60_000, 60_000..90_000] {
        io.reads.lock().clear();
        io.writes.lock().clear();
        let statement = Arc::new(WritingStatement::default());
        let mut ingest = store.ingest(&table).for_statement(Arc::clone(&statement));
        ingest.write(rows(keys)).unwrap();
        assert_eq!(statement.key_wait_us(), 0);
        ingest.finish().unwrap();
        assert_eq!(*io.writes.lock(), HashSet::from([(Class::Write, statement.id())]));
        assert_eq!(*io.reads.lock(), HashSet::from([(Class::Needed, statement.id())]));
        assert!(statement.write_wait_us() > 0 && statement.key_wait_us() > 0, "{statement:?}");
    }
    // A change of a transaction compares its keys before the commit.
    let statement = Arc::new(WritingStatement::default());
    let mut ingest = store.ingest(&table).for_statement(Arc::clone(&statement));
    ingest.write(rows(59_000..59_001)).unwrap();
    let added = ingest.into_new_rows().unwrap();
    io.reads.lock().clear();
    let mut transaction = store.begin();
    let seen = table.version();
    transaction.change(&table, &seen, &RoaringTreemap::new(), Some(added)).unwrap_err();
    assert_eq!(*io.reads.lock(), HashSet::from([(Class::Needed, statement.id())]));
    assert!(statement.key_wait_us() > 0);
}
