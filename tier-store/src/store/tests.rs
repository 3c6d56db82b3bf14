//! Tests of the public interface: acknowledged changes exist after a reopen, others do not.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringViewArray, cast::AsArray};
use arrow::buffer::ScalarBuffer;
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, UnionMode};
use terrace_model::Error;
use terrace_storage::table::{ChunkAdmission, TableVersion};
use terrace_storage::tier::reader::{Admission, ColdRead};

use super::*;

/// The text that belongs to a key.
pub(super) fn text(key: i64) -> Option<String> {
    (key % 7 != 0).then(|| format!("value number {key}"))
}

pub(super) fn rows(range: std::ops::Range<i64>) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Utf8View, true)]);
    let text = StringViewArray::from_iter(range.clone().map(text));
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(range)), Arc::new(text)];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

pub(super) fn definition(name: &str) -> TableDefinition {
    let mut definition = TableDefinition::new(TableName::new("public", name), rows(0..0).schema());
    definition.options.chunk_rows = 1000;
    definition
}

/// The rows of each chunk and delta entry of a version, deleted ones included, from whichever tier has them.
pub(super) fn items(store: &Store, version: &TableVersion) -> Result<Vec<RecordBatch>> {
    let mut batches: Vec<RecordBatch> = Vec::new();
    for entry in version.chunks.iter() {
        let chunk = &entry.chunk;
        let cold: Vec<usize> = (0..2).filter(|i| chunk.segments[*i].resident.load().is_none()).collect();
        let read = store.home().read_columns(chunk, &cold, Admission::Guaranteed)?;
        let cold = read.map(ColdRead::wait).transpose()?;
        let mut stored = cold.iter().flat_map(|c| &c.columns);
        let columns = chunk.columns().iter().map(|s| match s.resident.load_full() {
            Some(resident) => resident.column.widened().unwrap(),
            None => stored.next().unwrap().widened().unwrap(),
        });
        batches.push(RecordBatch::try_new(Arc::clone(&chunk.schema), columns.collect()).unwrap());
    }
    batches.extend(version.delta.iter().map(|d| d.batch().clone()));
    Ok(batches)
}

/// All live rows of a version.
pub(super) fn read(store: &Store, version: &TableVersion) -> Result<RecordBatch> {
    let live = version.live_positions();
    let parts = items(store, version)?.into_iter().zip(0..).map(|(batch, item)| {
        let row = |row| Some(live.contains(TableVersion::position(item, row)));
        let mask: BooleanArray = (0..batch.num_rows() as u32).map(row).collect();
        filter_record_batch(&batch, &mask).unwrap()
    });
    Ok(concat_batches(&rows(0..0).schema(), &parts.collect::<Vec<_>>()).unwrap())
}

pub(super) fn keys(store: &Store, table: &Table) -> Vec<i64> {
    let all = read(store, &table.version()).unwrap();
    let mut keys = all.column(0).as_primitive::<Int64Type>().values().to_vec();
    keys.sort_unstable();
    keys
}

#[test]
fn acknowledged_rows_survive_a_reopen_on_both_paths() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        let table = store.create_table(definition("t")).unwrap();
        assert_eq!(store.insert(&table, &[rows(0..10)]).unwrap(), 10);
        let mut ingest = store.ingest(&table);
        ingest.write(rows(10..2_510)).unwrap();
        assert_eq!(ingest.finish().unwrap(), 2_500);
        let mut aborted = store.ingest(&table);
        aborted.write(rows(0..5_000)).unwrap();
        drop(aborted);
        assert_eq!(keys(&store, &table), (0..2_510).collect::<Vec<_>>());
        store.close().unwrap();
    }
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let table = store.table(&TableName::new("public", "t")).unwrap();
    let version = table.version();
    assert_eq!((version.chunks.len(), version.delta_rows(), version.statistics.len()), (3, 10, 3));
    assert_eq!(keys(&store, &table), (0..2_510).collect::<Vec<_>>());
    assert_eq!(version.statistics.column(0).unwrap().max.as_primitive::<Int64Type>().value(0), 1_009);
    assert_eq!(
        std::fs::read_dir(dir.path().join("ssd/t1")).unwrap().count(),
        3,
        "files of the aborted ingest are gone"
    );
}

#[test]
fn a_table_with_a_column_that_files_cannot_hold_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let member = Arc::new(Field::new("member", DataType::Int32, true));
    let union = DataType::Union([(0, member)].into_iter().collect(), UnionMode::Sparse);
    let column = |data_type| Arc::new(Schema::new(vec![Field::new("c", data_type, true)]));
    let made = |data_type| store.create_table(TableDefinition::new(TableName::new("public", "c"), column(data_type)));
    assert!(matches!(made(union.clone()), Err(Error::Unsupported(_))));
    assert!(store.table(&TableName::new("public", "c")).is_err());
    // Columns of dictionaries are stored as columns of their values.
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8View));
    let table = made(dictionary).unwrap();
    assert_eq!(table.schema().field(0).data_type(), &DataType::Utf8View);
    let added = Alteration::AddColumn { field: Field::new("u", union, true), default: None, value: None };
    assert!(matches!(store.alter_table(table.name(), &[added]), Err(Error::Unsupported(_))));
}

#[test]
fn a_full_delta_is_sealed_and_so_is_an_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(dir.path());
    options.seal.age_us = 100_000;
    let store = Store::open(options).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    for start in (0..2_400).step_by(300) {
        store.insert(&table, &[rows(start..start + 300)]).unwrap();
    }
    assert!(table.version().chunks.len() >= 2);
    for _ in 0..100 {
        if table.version().delta_rows() == 0 {
            break;
        }
        store.core().clock.sleep(Duration::from_millis(50));
    }
    assert_eq!((table.version().delta_rows(), store.delta_account().used_bytes()), (0, 0));
    assert_eq!(keys(&store, &table), (0..2_400).collect::<Vec<_>>());
}

#[test]
fn a_bounded_delta_makes_room_by_sealing_and_refuses_what_never_fits() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(dir.path());
    options.delta_budget_bytes = 40_000;
    let store = Store::open(options).unwrap();
    let table = store.create_table(definition("t")).unwrap();
    for start in (0..2_000).step_by(200) {
        store.insert(&table, &[rows(start..start + 200)]).unwrap();
    }
    assert!(store.delta_account().peak_bytes() <= 40_000);
    assert!(matches!(store.insert(&table, &[rows(0..5_000)]), Err(Error::BudgetExceeded { .. })));
    assert_eq!(keys(&store, &table), (0..2_000).collect::<Vec<_>>());
}

/// A store of three tables, and memory for unsealed rows that holds twelve inserts of [`Unsealed::insert`].
struct Unsealed {
    store: Arc<Store>,
    tables: [Arc<Table>; 3],
    _dir: tempfile::TempDir,
}

impl Unsealed {
    fn new(age_us: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path());
        options.seal.age_us = age_us;
        options.compaction_bytes_per_s = 0;
        let store = Store::open(options).unwrap();
        let tables = ["a", "b", "c"].map(|name| store.create_table(definition(name)).unwrap());
        let unsealed = Self { store, tables, _dir: dir };
        unsealed.insert(2, 1);
        let account = unsealed.store.delta_account();
        account.set_limit_bytes(12 * account.used_bytes());
        unsealed
    }

    fn insert(&self, table: usize, times: usize) {
        for _ in 0..times {
            self.store.insert(&self.tables[table], &[rows(0..100)]).unwrap();
        }
    }

    /// Inserts that are not sealed, of each table.
    fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|table: usize| self.tables[table].version().delta_rows() / 100)
    }
}

#[test]
fn unsealed_rows_leave_step_by_step_between_two_marks() {
    let unsealed = Unsealed::new(u64::MAX);
    unsealed.insert(0, 5);
    unsealed.insert(1, 2);
    assert!(unsealed.store.core().seal_to_low_mark());
    assert_eq!(unsealed.counts(), [5, 2, 1], "below the high mark, which is 9");
    unsealed.insert(1, 1);
    assert!(unsealed.store.core().seal_to_low_mark());
    assert_eq!(unsealed.counts(), [0, 3, 1], "below the low mark, which is 6");
    // A statement that finds no room makes as much as it needs, with its own table first.
    unsealed.insert(0, 8);
    unsealed.insert(1, 1);
    assert_eq!(unsealed.counts(), [8, 1, 1]);
    unsealed.insert(2, 3);
    assert_eq!(unsealed.counts(), [8, 1, 1], "the third finds no room");
}

#[test]
fn a_thread_keeps_unsealed_rows_below_the_high_mark() {
    let unsealed = Unsealed::new(300_000_000);
    unsealed.insert(0, 6);
    unsealed.insert(1, 3);
    for _ in 0..200 {
        if unsealed.counts() != [6, 3, 1] {
            break;
        }
        unsealed.store.core().clock.sleep(Duration::from_millis(50));
    }
    assert_eq!(unsealed.counts(), [0, 3, 1]);
}

#[test]
fn replacing_a_table_is_atomic_and_old_readers_keep_reading() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let mut slow = definition("t");
    slow.options.admission = ChunkAdmission::Ssd;
    let mut first = store.ingest_new(slow.clone(), false).unwrap();
    first.write(rows(0..1_500)).unwrap();
    first.finish().unwrap();
    let name = TableName::new("public", "t");
    let old = store.table(&name).unwrap().version();
    assert!(matches!(store.ingest_new(slow.clone(), false), Err(Error::AlreadyExists { .. })));
    let mut second = store.ingest_new(slow, true).unwrap();
    second.write(rows(7..8)).unwrap();
    second.finish().unwrap();
    assert_eq!(keys(&store, &store.table(&name).unwrap()), [7]);
    assert_eq!(read(&store, &old).unwrap().num_rows(), 1_500);
    assert!(dir.path().join("ssd/t1").read_dir().unwrap().count() == 2);
    drop(old);
    assert!(!dir.path().join("ssd/t1").exists() || dir.path().join("ssd/t1").read_dir().unwrap().count() == 0);
    store.drop_table(&name).unwrap();
    assert!(matches!(store.table(&name), Err(Error::NotFound { .. })));
}

#[test]
fn orphans_go_foreign_files_stay_and_a_damaged_file_fails_only_its_readers() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<std::path::PathBuf> = {
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        for name in ["good", "bad"] {
            let mut ingest = store.ingest_new(definition(name), false).unwrap();
            ingest.write(rows(0..1_000)).unwrap();
            ingest.finish().unwrap();
        }
        let path = |t: &Arc<Table>| t.version().chunks[0].chunk.path.clone();
        store.tables().iter().map(path).collect()
    };
    let orphan = paths[1].with_file_name(paths[1].file_name().unwrap().to_str().unwrap().replace("c0", "c99"));
    std::fs::copy(&paths[1], &orphan).unwrap();
    let foreign = dir.path().join("ssd/notes.txt");
    std::fs::write(&foreign, "mine").unwrap();
    std::fs::OpenOptions::new().write(true).open(&paths[0]).unwrap().set_len(500).unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert!(!orphan.exists() && foreign.exists());
    let table = |name: &str| store.table(&TableName::new("public", name)).unwrap();
    assert_eq!(keys(&store, &table("good")).len(), 1_000);
    let error = read(&store, &table("bad").version()).unwrap_err().to_string();
    assert!(error.contains(paths[0].to_str().unwrap()), "{error}");
}

#[test]
fn a_second_server_on_the_directory_is_refused_and_told_who_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let _store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let Err(Error::Locked { holder, .. }) = Store::open(StoreOptions::new(dir.path())) else { panic!("not refused") };
    assert_eq!(holder, std::process::id().to_string());
}

#[test]
fn objects_are_listed_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    store.put_object("view", "public.b", "2").unwrap();
    store.put_object("view", "public.a", "1").unwrap();
    store.put_object("views", "public.c", "3").unwrap();
    let found: Vec<_> = store.objects("view").unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, ["public.a", "public.b"]);
    assert!(store.remove_object("view", "public.a").unwrap() && !store.remove_object("view", "public.a").unwrap());
}

#[test]
fn rows_that_wait_for_their_chunk_keep_no_large_allocation() {
    let folder = tempfile::tempdir().unwrap();
    // Without threads of its own, an ingest has written a chunk when it has taken the rows.
    let store = Store::open(StoreOptions { ingest_threads: 0, ..StoreOptions::new(folder.path()) }).unwrap();
    let mut numbers = definition("numbers");
    numbers.options.chunk_rows = 65_536;
    let mut ingest = store.ingest_new(numbers, false).unwrap();
    // Of the large batch ten chunks are full, and the rest waits with the small one.
    for (rows, is_kept) in [(0..700_000_i64, false), (700_000..710_000, true)] {
        let texts = StringViewArray::new_null(rows.clone().count());
        let keys = ScalarBuffer::from_iter(rows);
        let buffer = keys.inner().clone();
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::new(keys, None)), Arc::new(texts)];
        ingest.write(RecordBatch::try_new(Arc::clone(ingest.table().schema()), columns).unwrap()).unwrap();
        assert_eq!(buffer.strong_count() > 1, is_kept);
    }
    assert!(store.ingest_memory().used_bytes() >= 54_640 * 8);
    assert_eq!(ingest.finish().unwrap(), 710_000);
    assert_eq!(store.ingest_memory().used_bytes(), 0);
    let table = store.table(&TableName::new("public", "numbers")).unwrap();
    let chunks: Vec<u32> = table.version().chunks.iter().map(|entry| entry.chunk.rows).collect();
    assert_eq!(chunks, [[65_536; 10].as_slice(), &[54_640]].concat());
    assert_eq!(keys(&store, &table), (0..710_000).collect::<Vec<_>>());
}

#[test]
fn many_ingests_keep_few_waiting_rows() {
    const INGESTS: usize = 6;
    const BUDGET_BYTES: u64 = 64 << 20;
    let folder = tempfile::tempdir().unwrap();
    let options =
        StoreOptions { ingest_budget_bytes: BUDGET_BYTES, ingest_threads: 0, ..StoreOptions::new(folder.path()) };
    let store = Store::open(options).unwrap();
    let open = |number| {
        let mut definition = definition(&format!("t{number}"));
        definition.options.chunk_rows = 65_536;
        store.ingest_new(definition, false).unwrap()
    };
    let mut ingests: Vec<_> = (0..INGESTS).map(open).collect();
    let part = |part: i64| {
        let texts = StringViewArray::from_iter_values((0..1_000).map(|row| format!("{row:>1000}")));
        let keys = Int64Array::from_iter_values(part * 1_000..(part + 1) * 1_000);
        RecordBatch::try_new(rows(0..0).schema(), vec![Arc::new(keys), Arc::new(texts)]).unwrap()
    };
    let mut most = 0;
    for number in 0..30 {
        ingests.iter_mut().for_each(|ingest| ingest.write(part(number)).unwrap());
        most = most.max(store.ingest_memory().used_bytes());
    }
    assert!((BUDGET_BYTES / 4..=BUDGET_BYTES).contains(&most), "{most}");
    for (number, ingest) in ingests.into_iter().enumerate() {
        assert_eq!(ingest.finish().unwrap(), 30_000);
        let table = store.table(&TableName::new("public", format!("t{number}"))).unwrap();
        let chunks: Vec<u32> = table.version().chunks.iter().map(|entry| entry.chunk.rows).collect();
        // Without the others it would be one chunk.
        assert!(chunks.len() > 1 && chunks.iter().rev().skip(1).all(|rows| *rows >= 5_000), "{chunks:?}");
        assert_eq!(keys(&store, &table), (0..30_000).collect::<Vec<_>>());
    }
    assert_eq!(store.ingest_memory().used_bytes(), 0);
}

#[test]
fn chunks_of_wide_rows_are_cut_by_bytes_and_stay_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions { dram_budget_bytes: 0, ..StoreOptions::new(folder.path()) }).unwrap();
    let mut wide = definition("wide");
    wide.options.chunk_rows = 65_536;
    let mut ingest = store.ingest_new(wide, false).unwrap();
    let text = "x".repeat(1 << 20);
    for part in 0..15_i64 {
        let keys = Int64Array::from_iter_values(part * 10..part * 10 + 10);
        let texts = StringViewArray::from_iter_values((0..10).map(|_| &text));
        ingest
            .write(RecordBatch::try_new(rows(0..0).schema(), vec![Arc::new(keys), Arc::new(texts)]).unwrap())
            .unwrap();
    }
    assert_eq!(ingest.finish().unwrap(), 150);
    let table = store.table(&TableName::new("public", "wide")).unwrap();
    let sizes = || table.version().chunks.iter().map(|entry| entry.chunk.rows).collect::<Vec<_>>();
    assert_eq!(sizes(), [63, 63, 24], "64 MiB at most");
    store.optimize(&table).unwrap();
    assert_eq!(sizes(), [63, 63, 24], "half full or more: not written again");
    assert_eq!(store.ingest_memory().used_bytes(), 0);
}
