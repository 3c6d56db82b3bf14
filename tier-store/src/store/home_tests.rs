//! A store works through the trait [`Home`]: with a home that counts what is asked of it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_model::{ChunkId, TableId};
use terrace_storage::io::{AlignedBuffer, Intent};
use terrace_storage::migrate::{Outcome, Relocation, try_move};
use terrace_storage::table::ChunkAdmission;
use terrace_storage::tier::HomeTier;
use terrace_storage::tier::codec::Form;
use terrace_storage::tier::home::HomeCounters;
use terrace_storage::tier::reader::{Admission, ColdRead, ReadColumn, ReadGap, ReadPurpose};
use terrace_storage::tier::stored_file::StoredFile;

use super::tests::{definition, rows};
use super::*;

/// Counts calls and passes them on.
#[derive(Debug)]
struct Counting {
    home: Arc<dyn Home>,
    written: AtomicU64,
    read: AtomicU64,
    moved: AtomicU64,
    removed: AtomicU64,
}

impl Counting {
    fn new(home: Arc<dyn Home>) -> Arc<Self> {
        let [written, read, moved, removed] = [0; 4].map(AtomicU64::new);
        Arc::new(Self { home, written, read, moved, removed })
    }

    /// Files written, reads, columns read for moves, files removed.
    fn counts(&self) -> [u64; 4] {
        [&self.written, &self.read, &self.moved, &self.removed].map(|count| count.load(Ordering::Relaxed))
    }
}

impl HomeTier for Counting {
    fn name(&self) -> &str {
        "counting"
    }
    fn account(&self) -> &Arc<Account> {
        self.home.account()
    }
    fn describe(&self) -> String {
        self.home.describe()
    }
    fn check(&self, chunk: &Chunk) -> Result<()> {
        self.home.check(chunk)
    }
    fn read(&self, chunk: &Arc<Chunk>, columns: &[usize]) -> Result<Vec<ReadColumn>> {
        self.moved.fetch_add(columns.len() as u64, Ordering::Relaxed);
        self.home.read(chunk, columns)
    }
}

impl Home for Counting {
    fn io(&self) -> &Arc<dyn BlockIo> {
        self.home.io()
    }
    fn read_rows(
        &self,
        chunk: &Arc<Chunk>,
        columns: &[usize],
        wanted: Option<&[Range<usize>]>,
        purpose: ReadPurpose,
    ) -> Result<Option<ColdRead>> {
        self.read.fetch_add(1, Ordering::Relaxed);
        self.home.read_rows(chunk, columns, wanted, purpose)
    }
    fn bytes_to_read(&self, chunk: &Chunk, column: usize, wanted: Option<&[Range<usize>]>) -> u64 {
        self.home.bytes_to_read(chunk, column, wanted)
    }
    fn load_file(&self, chunk: &Chunk) -> Result<AlignedBuffer> {
        self.home.load_file(chunk)
    }
    fn write_chunk(&self, table: TableId, chunk: ChunkId, intent: Intent, file: &AlignedBuffer) -> Result<PathBuf> {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.home.write_chunk(table, chunk, intent, file)
    }
    fn sync_names(&self, table: TableId) -> Result<()> {
        self.home.sync_names(table)
    }
    fn replace_file(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        self.home.replace_file(chunk, bytes)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.removed.fetch_add(1, Ordering::Relaxed);
        self.home.remove(path)
    }
    fn list(&self) -> Result<Vec<StoredFile>> {
        self.home.list()
    }
    fn file_bytes(&self, path: &Path) -> Result<Option<u64>> {
        self.home.file_bytes(path)
    }
    fn adopt_file(&self, path: &Path, bytes: u64) {
        self.home.adopt_file(path, bytes);
    }
    fn relative(&self, path: &Path) -> Result<String> {
        self.home.relative(path)
    }
    fn absolute(&self, name: &str) -> PathBuf {
        self.home.absolute(name)
    }
    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.home.read_marker()
    }
    fn create_marker(&self, bytes: &[u8]) -> Result<bool> {
        self.home.create_marker(bytes)
    }
    fn read_gap(&self) -> &ReadGap {
        self.home.read_gap()
    }
    fn counters(&self) -> &HomeCounters {
        self.home.counters()
    }
}

#[test]
fn a_store_writes_reads_moves_and_deletes_through_its_home() {
    let dir = tempfile::tempdir().unwrap();
    let mut core = recovery::open(StoreOptions::new(dir.path())).unwrap();
    let home = Counting::new(Arc::clone(&core.home));
    core.home = Arc::<Counting>::clone(&home);
    let core = Arc::new(core);
    let host: Arc<dyn TieringHost> = Arc::<Core>::clone(&core);
    let tiering = Tiering::new(Arc::downgrade(&host), Arc::clone(&core.clock), TieringOptions::default());
    let store = Arc::new(Store { core, tiering, _background: Vec::new() });

    let mut definition = definition("t");
    definition.options.admission = ChunkAdmission::Ssd;
    let table = store.create_table(definition).unwrap();
    let mut ingest = store.ingest(&table);
    ingest.write(rows(0..3_000)).unwrap();
    ingest.finish().unwrap();
    assert_eq!(home.counts(), [3, 0, 0, 0]);

    let version = table.version();
    let chunk = &version.chunks.first().unwrap().chunk;
    let read = || store.core.columns(chunk, &[0, 1], Admission::Guaranteed).unwrap();
    let cold = read();
    assert_eq!(home.counts(), [3, 1, 0, 0], "one call for all columns of a chunk");
    for column in [0, 1] {
        let relocation =
            Relocation { chunk: Arc::clone(chunk), column, from: store.home_tier(), to: TierId(0), form: Form::Plain };
        let moved = try_move(&store.memory_tiers(), store.home().as_ref(), &relocation);
        assert_eq!(moved.unwrap(), Outcome::Moved);
    }
    assert_eq!(read(), cold);
    assert_eq!(home.counts(), [3, 1, 2, 0], "columns in memory need no call");

    assert_eq!(store.tier_infos().last().unwrap().name, "counting");
    store.drop_table(table.name()).unwrap();
    drop((version, table));
    assert_eq!((home.counts(), store.home().list().unwrap()), ([3, 1, 2, 3], Vec::new()));
}
