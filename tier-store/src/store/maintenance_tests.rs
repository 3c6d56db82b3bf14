//! Check, heal, backup, restore, rebuild and usage on real directories, with seeded damage.
//!
//! - [`packed_tests`]: tables whose files hold packed columns
//! - [`random_batch`]: random batches with a column of each type, shared with the tests of the codec
//! - [`rebuild_tests`]: a catalog that is rebuilt from the files

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod packed_tests;
#[path = "../../storage/src/tier/codec/random_batch.rs"]
mod random_batch;
mod rebuild_tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringViewArray};
use arrow::compute::concat_batches;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{Error, FileFormat};
use terrace_storage::catalog::Catalog;
use terrace_storage::table::{Alteration, Chunk, ChunkAdmission, TableVersion};
use terrace_storage::tier::codec::Compression;
use terrace_storage::tier::codec::Form;
use terrace_storage::tier::reader::{Admission, ColdRead};
use terrace_test_support::depth::by_depth;

use super::recovery::CATALOG_FILE;
use super::*;
use random_batch::batch_of_all_types;

/// Rows with all kinds of columns in chunk files: fixed widths, bits, nulls, long texts, lists.
pub(super) fn rows(range: std::ops::Range<i64>) -> RecordBatch {
    let lists = range.clone().map(|i| (i % 5 != 0).then(|| (0..i % 4).map(Some).collect::<Vec<_>>()));
    let columns: [(&str, ArrayRef); 5] = [
        ("k", Arc::new(Int64Array::from_iter_values(range.clone()))),
        ("x", Arc::new(Float64Array::from_iter(range.clone().map(|i| (i % 9 != 0).then_some(i as f64 / 3.0))))),
        ("b", Arc::new(BooleanArray::from_iter(range.clone().map(|i| Some(i % 3 == 0))))),
        ("s", Arc::new(StringViewArray::from_iter(range.map(|i| (i % 7 != 0).then(|| format!("value number {i}")))))),
        ("l", Arc::new(arrow::array::ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(lists))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, name != "k"))).unwrap()
}

fn definition(name: &str) -> TableDefinition {
    let mut definition = TableDefinition::new(TableName::new("public", name), rows(0..0).schema());
    definition.primary_key = vec!["k".to_owned()];
    definition.options.chunk_rows = 500;
    definition
}

/// Makes a closed store with two tables, with sealed chunks and a delta, and a view. Some buffers are compressed, some
/// are not.
pub(super) fn make_store(dir: &Path) -> BTreeMap<String, RecordBatch> {
    make_store_with(dir, Files { compression: CompressionChoice::Always(Compression::Zstd), format: FileFormat::Arrow })
}

/// How the chunk files of a store are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Files {
    compression: CompressionChoice,
    format: FileFormat,
}

const CHOICES: [Files; 5] = [
    Files { compression: CompressionChoice::None, format: FileFormat::Arrow },
    Files { compression: CompressionChoice::Always(Compression::Lz4), format: FileFormat::Arrow },
    Files { compression: CompressionChoice::Always(Compression::Zstd), format: FileFormat::Arrow },
    Files { compression: CompressionChoice::None, format: FileFormat::Packed },
    Files { compression: CompressionChoice::Always(Compression::Zstd), format: FileFormat::Packed },
];

fn make_store_with(dir: &Path, files: Files) -> BTreeMap<String, RecordBatch> {
    let Files { compression, format } = files;
    let store = Store::open(StoreOptions { compression, file_format: format, ..StoreOptions::new(dir) }).unwrap();
    for (name, count) in [("a", 1_700), ("b", 900)] {
        let mut ingest = store.ingest_new(definition(name), false).unwrap();
        ingest.write(rows(0..count)).unwrap();
        ingest.finish().unwrap();
    }
    store.create_table(definition("empty")).unwrap();
    store.insert(&table(&store, "b"), &[rows(900..930)]).unwrap();
    store.put_object("view", "public.v", "{\"sql\":\"select 1\"}").unwrap();
    store.close().unwrap();
    contents(&store)
}

pub(super) fn table(store: &Store, name: &str) -> Arc<Table> {
    store.table(&TableName::new("public", name)).unwrap()
}

fn read(store: &Store, version: &TableVersion) -> Result<RecordBatch> {
    let schema = rows(0..0).schema();
    let mut batches = Vec::new();
    for entry in version.chunks.iter() {
        let chunk = &entry.chunk;
        let cold: Vec<usize> = (0..chunk.segments.len()).filter(|i| !chunk.segments[*i].is_in_memory()).collect();
        let read = store.home().read_columns(chunk, &cold, Admission::Guaranteed)?.map(ColdRead::wait).transpose()?;
        let mut columns = read.map(|c| c.columns.clone()).unwrap_or_default().into_iter();
        let columns = chunk.segments.iter().map(|s| match (s.resident.load_full(), &s.constant) {
            (Some(resident), _) => resident.column.widened().unwrap(),
            (None, Some(constant)) => constant.array(chunk.rows as usize).unwrap(),
            (None, None) => columns.next().unwrap().widened().unwrap(),
        });
        let batch = RecordBatch::try_new(Arc::clone(&chunk.schema), columns.collect()).unwrap();
        batches.push(live(&batch, entry.deletions.as_deref()));
    }
    batches.extend(version.delta.iter().map(|rows| live(rows.batch(), rows.deletions.as_deref())));
    let schema = batches.first().map_or(schema, RecordBatch::schema);
    Ok(concat_batches(&schema, &batches).unwrap())
}

pub(super) fn live(batch: &RecordBatch, deleted: Option<&roaring::RoaringBitmap>) -> RecordBatch {
    let kept = (0..batch.num_rows() as u32).map(|row| Some(deleted.is_none_or(|deleted| !deleted.contains(row))));
    arrow::compute::filter_record_batch(batch, &BooleanArray::from_iter(kept)).unwrap()
}

pub(super) fn contents(store: &Store) -> BTreeMap<String, RecordBatch> {
    let all = |t: &Arc<Table>| (t.name().to_string(), read(store, &t.version()).unwrap());
    store.tables().iter().map(all).collect()
}

/// Every file of a directory with its bytes.
pub(super) fn directory_contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(directory_contents(&path)),
            false => drop(files.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    files
}

pub(super) fn copy_files(from: &Path, to: &Path) {
    for (path, bytes) in directory_contents(from) {
        let to = to.join(path.strip_prefix(from).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, bytes).unwrap();
    }
}

pub(super) fn ignore_progress(_: Progress) -> bool {
    true
}

pub(super) fn run_check(dir: &Path, quick: bool) -> CheckReport {
    check(dir, CheckOptions { quick, repair: false }, &mut ignore_progress).unwrap()
}

fn chunk_files(dir: &Path) -> Vec<PathBuf> {
    let is_chunk = |path: &PathBuf| path.extension().is_some_and(|e| e == "arrow" || e == "packed");
    directory_contents(dir).into_keys().filter(is_chunk).collect()
}

#[test]
fn a_sound_directory_is_found_sound_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let before = directory_contents(dir.path());
    for quick in [false, true] {
        let report = run_check(dir.path(), quick);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let tables: Vec<_> = report.tables.iter().map(|t| (t.table.as_str(), t.rows, t.chunks)).collect();
        assert_eq!(tables, [("public.a", 1_700, 4), ("public.b", 930, 2), ("public.empty", 0, 0)]);
        assert_eq!(report.verified_bytes > 0, !quick);
    }
    let usage = usage(dir.path()).unwrap();
    let files: u64 =
        before.iter().filter(|(p, _)| p.extension().unwrap() == "arrow").map(|(_, b)| b.len() as u64).sum();
    assert_eq!(usage.tables.iter().map(|t| t.file_bytes).sum::<u64>(), files);
    assert_eq!((usage.tables[1].delta_rows, usage.unowned_files, usage.tables[1].delta_bytes > 500), (30, 0, true));
    assert!(directory_contents(dir.path()) == before, "looking changed something");
    let _store = Store::open(StoreOptions::new(dir.path())).unwrap();
    for error in [
        check(dir.path(), CheckOptions::default(), &mut ignore_progress).unwrap_err(),
        super::usage(dir.path()).unwrap_err(),
        backup(dir.path(), &dir.path().with_extension("b"), &mut ignore_progress).unwrap_err(),
        rebuild_catalog(dir.path(), true, 0, &mut ignore_progress).unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Locked { holder, .. } if *holder == std::process::id().to_string()), "{error}");
    }
}

#[test]
fn columns_of_all_types_are_found_sound() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let mut definition =
        TableDefinition::new(TableName::new("public", "all_types"), batch_of_all_types(0, 0, 0.0).schema());
    definition.options.chunk_rows = 300;
    let mut ingest = store.ingest_new(definition, false).unwrap();
    // Chunks made from several batches, and from a slice of one.
    for (seed, rows, nulls) in [(1, 200, 0.2), (2, 250, 0.0), (3, 20, 1.0), (4, 270, 0.5)] {
        ingest.write(batch_of_all_types(seed, rows, nulls)).unwrap();
    }
    ingest.finish().unwrap();
    let t = table(&store, "all_types");
    store.insert(&t, &[batch_of_all_types(5, 30, 0.3), batch_of_all_types(6, 10, 0.0)]).unwrap();
    store.seal(&t).unwrap();
    store.insert(&t, &[batch_of_all_types(7, 20, 0.1)]).unwrap();
    for repair in [false, true] {
        let report = store.check(CheckOptions { quick: false, repair }, &mut ignore_progress).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
    store.optimize(&t).unwrap();
    store.insert(&t, &[batch_of_all_types(8, 20, 0.1)]).unwrap();
    store.close().unwrap();
    drop((t, store));
    let report = run_check(dir.path(), false);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    rebuild_catalog(dir.path(), true, 0, &mut ignore_progress).unwrap();
    assert_eq!(run_check(dir.path(), false).findings, []);
}

#[test]
fn bounds_that_say_less_are_no_damage() {
    use terrace_storage::catalog::records::{decode_batches, encode_batches};
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    {
        let catalog =
            Catalog::open(&terrace_storage::io::files::RealFiles, &dir.path().join(CATALOG_FILE), 1 << 20).unwrap();
        let key = terrace_storage::catalog::key(&[1, 0]);
        let (schema, batches) = decode_batches(&catalog.get(Space::Statistics, &key).unwrap().unwrap()).unwrap();
        let rows = batches[0].num_rows();
        let unknown = BooleanArray::from(vec![false; batches[0].num_rows()]);
        let column = |(field, array): (&arrow::datatypes::FieldRef, &ArrayRef)| match field.name().as_str() {
            "min0" | "max0" => arrow::array::new_null_array(field.data_type(), rows),
            "exact0" => Arc::new(unknown.clone()),
            _ => Arc::clone(array),
        };
        let columns = schema.fields().iter().zip(batches[0].columns()).map(column).collect();
        let bytes = encode_batches(&schema, &[RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()]).unwrap();
        let mut commit = Commit::default();
        commit.put(Space::Statistics, key, bytes);
        catalog.commit(commit).unwrap();
    }
    assert_eq!(run_check(dir.path(), false).findings, []);
}

#[test]
fn a_crash_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let copy = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    store.insert(&table(&store, "a"), &[rows(5_000..5_010)]).unwrap();
    // Copy the files at this moment, as after a kill: the catalog was not closed.
    copy_files(dir.path(), copy.path());
    std::fs::write(copy.path().join("ssd/t1/c9.arrow.tmp"), "half").unwrap();
    std::fs::write(copy.path().join("ssd/notes.txt"), "mine").unwrap();
    let before = directory_contents(copy.path());
    let report = run_check(copy.path(), false);
    let found: Vec<_> =
        report.findings.iter().map(|f| (f.severity, f.path.file_name().unwrap().to_str().unwrap())).collect();
    assert_eq!(report.count(Severity::Damage), 0, "{:?}", report.findings);
    assert!(found.len() == 2 && found.contains(&(Severity::Notice, "notes.txt")), "{found:?}");
    assert_eq!(report.tables[0].rows, 1_710);
    assert!(directory_contents(copy.path()) == before, "looking changed something");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(8, 48), failure_persistence: None, ..ProptestConfig::default() })]
    /// Flips one bit anywhere in any chunk file: the check names the file, and the column or the header.
    #[test]
    fn a_check_names_the_place_of_a_flipped_bit(seed in any::<u64>()) {
        static LOADED: [std::sync::OnceLock<tempfile::TempDir>; 5] = [const { std::sync::OnceLock::new() }; 5];
        static ONE_AT_A_TIME: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock();
        let choice = (seed % CHOICES.len() as u64) as usize;
        let dir = LOADED[choice].get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            make_store_with(dir.path(), CHOICES[choice]);
            dir
        });
        let mut random = StdRng::seed_from_u64(seed);
        let files = chunk_files(dir.path());
        let path = &files[random.random_range(0..files.len())];
        let good = std::fs::read(path).unwrap();
        let header = terrace_storage::tier::codec::read_header(&good).unwrap();
        // Half of the flips hit the ends, because header and footer are a small part of a file.
        let at = match random.random_range(0..4) {
            0 => random.random_range(0..800),
            1 => good.len() - 1 - random.random_range(0..1_500),
            _ => random.random_range(0..good.len()),
        };
        let hit = header.homes.iter().position(|h| (h.offset..h.offset + h.len).contains(&(at as u64)));
        let expected = hit.map(|column| header.schema.field(column).name().clone());
        let mut bad = good.clone();
        bad[at] ^= 1 << random.random_range(0..8);
        std::fs::write(path, &bad).unwrap();
        let report = run_check(dir.path(), false);
        let skipped = rebuild_catalog(dir.path(), false, 0, &mut ignore_progress).unwrap().skipped;
        std::fs::write(path, &good).unwrap();
        let found: Vec<_> = report.findings.iter().map(|f| (f.severity, &f.path, f.column.clone())).collect();
        prop_assert_eq!(found, vec![(Severity::Damage, path, expected)], "byte {} of {}: {:?}", at, good.len(), &report.findings);
        prop_assert!(report.findings[0].column.is_some() || report.findings[0].what.starts_with("header"));
        prop_assert_eq!(skipped.iter().map(|s| &s.path).collect::<Vec<_>>(), vec![path]);
        prop_assert_eq!(report.tables.iter().map(|t| t.damaged).sum::<u64>(), 1);
    }

    /// A damaged catalog is distinguished from a good one, and never ends the process. (A flip in a free page is no
    /// damage.)
    #[test]
    fn a_check_survives_a_damaged_catalog(seed in any::<u64>()) {
        static LOADED: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
        let dir = tempfile::tempdir().unwrap();
        let source = LOADED.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            make_store(dir.path());
            dir
        });
        copy_files(source.path(), dir.path());
        let path = dir.path().join(CATALOG_FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        let mut random = StdRng::seed_from_u64(seed);
        // Overwrite whole pages, so that some of them are in use.
        for _ in 0..8 {
            let page = random.random_range(0..bytes.len() / 4096) * 4096;
            bytes[page..page + 4096].fill(0x5a);
        }
        std::fs::write(&path, &bytes).unwrap();
        let report = run_check(dir.path(), false);
        if report.count(Severity::Damage) == 0 {
            let found: Vec<_> = report.tables.iter().map(|t| t.rows).collect();
            prop_assert_eq!(found, vec![1_700, 930, 0]);
        }
        prop_assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

#[test]
fn other_damage_is_named_too() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let files = chunk_files(dir.path());
    std::fs::remove_file(&files[0]).unwrap();
    std::fs::OpenOptions::new().write(true).open(&files[1]).unwrap().set_len(500).unwrap();
    std::fs::copy(&files[3], &files[2]).unwrap();
    let table_file = dir.path().join("tables/t1.json");
    std::fs::write(&table_file, "{}").unwrap();
    let report = run_check(dir.path(), false);
    let of = |path: &Path| report.findings.iter().filter(|f| f.path == path).collect::<Vec<_>>();
    assert!(of(&files[0])[0].what.contains("No such file"));
    assert!(of(&files[1])[0].what.contains("500 bytes"));
    assert!(!of(&files[2]).is_empty());
    assert_eq!(of(&table_file)[0].severity, Severity::Notice);
    assert!(run_check(dir.path(), true).count(Severity::Damage) >= 2, "sizes are looked at quickly too");
    let missing = dir.path().join("nothing");
    assert!(matches!(check(&missing, CheckOptions::default(), &mut ignore_progress), Err(Error::NotFound { .. })));
}

#[test]
fn wrong_bounds_are_found() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    {
        let catalog =
            Catalog::open(&terrace_storage::io::files::RealFiles, &dir.path().join(CATALOG_FILE), 1 << 20).unwrap();
        let stored =
            |table: u64| catalog.get(Space::Statistics, &terrace_storage::catalog::key(&[table, 0])).unwrap().unwrap();
        let (schema, batches) = terrace_storage::catalog::records::decode_batches(&stored(1)).unwrap();
        // Exchange the bounds of chunks 0 and 1.
        let order = arrow::array::UInt32Array::from(vec![1, 0, 2, 3]);
        let swapped = arrow::compute::take_record_batch(&batches[0], &order).unwrap();
        let bytes = terrace_storage::catalog::records::encode_batches(&schema, &[swapped]).unwrap();
        let mut commit = Commit::default();
        commit.put(Space::Statistics, terrace_storage::catalog::key(&[1, 0]), bytes);
        commit.put(Space::Chunks, terrace_storage::catalog::key(&[77, 0]), vec![1]);
        catalog.commit(commit).unwrap();
    }
    let report = run_check(dir.path(), false);
    let found: Vec<_> = report.findings.iter().map(|f| (f.chunk, f.column.as_deref())).collect();
    assert_eq!(found, [(None, None), (Some(0), Some("k")), (Some(1), Some("k"))], "{:?}", report.findings);
    assert!(report.findings[0].what.contains("table 77: its table does not exist"), "{:?}", report.findings[0]);
}

/// Flips one byte in the middle of a column.
fn flip_byte(chunk: &Chunk, column: usize) {
    let home = &chunk.segments[column].home;
    let mut bytes = std::fs::read(&chunk.path).unwrap();
    bytes[(home.offset + home.len / 2) as usize] ^= 0x10;
    std::fs::write(&chunk.path, bytes).unwrap();
}

#[test]
fn damage_is_marked_not_read_again_and_healed_from_a_copy() {
    CHOICES.into_iter().for_each(damage_is_healed);
}

fn damage_is_healed(files: Files) {
    let dir = tempfile::tempdir().unwrap();
    let good = make_store_with(dir.path(), files);
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let a = table(&store, "a");
    let chunk = Arc::clone(&a.version().chunks[1].chunk);
    let written = std::fs::read(&chunk.path).unwrap();
    let compressed = chunk.segments.iter().filter(|segment| segment.home.encoding.compression().is_some()).count();
    assert_eq!(compressed > 0, files.compression != CompressionChoice::None, "{compressed} columns are compressed");
    assert_eq!(chunk.segments[3].home.is_packed(), files.format == FileFormat::Packed);
    flip_byte(&chunk, 3);
    let fails = || read(&store, &a.version()).unwrap_err().to_string();
    let first = fails();
    let reads = store.io().stats().reads.load(Ordering::Relaxed);
    let name = format!("c1.{}", files.format);
    assert!(first.contains(&name) && first.contains("chunk 1, column 's'"), "{first}");
    let again = store.home().read_columns(&chunk, &[3], Admission::Guaranteed).unwrap_err().to_string();
    assert_eq!((again.as_str(), store.io().stats().reads.load(Ordering::Relaxed)), (first.as_str(), reads));
    assert!(store.home().read_columns(&chunk, &[2], Admission::Guaranteed).is_ok(), "other columns are read");

    // Without a copy anywhere, repair reports that and changes nothing.
    let repair = CheckOptions { quick: false, repair: true };
    let report = store.check(repair, &mut ignore_progress).unwrap();
    assert_eq!((report.count(Severity::Damage), report.count(Severity::Healed)), (1, 0));
    assert!(report.findings[0].advice.contains("no good copy"), "{:?}", report.findings[0]);
    assert_eq!(fails(), first);

    // A copy in DRAM from before the damage.
    let mut file = written.clone();
    std::fs::write(&chunk.path, &file).unwrap();
    assert_eq!(store.check(repair, &mut ignore_progress).unwrap().findings, []);
    let dram = Arc::clone(&store.memory_tiers()[0]);
    let promote = |column: usize| terrace_storage::migrate::Relocation {
        chunk: Arc::clone(&chunk),
        column,
        from: terrace_model::TierId(1),
        to: terrace_model::TierId(0),
        form: Form::Packed,
    };
    for column in 0..5 {
        let moved =
            terrace_storage::migrate::try_move(std::slice::from_ref(&dram), store.home().as_ref(), &promote(column))
                .unwrap();
        assert_eq!(moved, terrace_storage::migrate::Outcome::Moved);
    }
    flip_byte(&chunk, 3);
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().count(Severity::Damage), 1);
    let demote = terrace_storage::migrate::Relocation {
        from: terrace_model::TierId(0),
        to: terrace_model::TierId(1),
        ..promote(3)
    };
    let refused = terrace_storage::migrate::try_move(std::slice::from_ref(&dram), store.home().as_ref(), &demote);
    assert!(matches!(refused.map_err(Error::from), Err(Error::Corrupt { .. })), "the only good copy stays");
    let report = store.check(repair, &mut ignore_progress).unwrap();
    assert_eq!((report.count(Severity::Damage), report.count(Severity::Healed)), (0, 1), "{:?}", report.findings);
    assert!(std::fs::read(&chunk.path).unwrap() == written, "byte for byte as before");

    // Damage header and footer, then the whole file.
    for damage in [0, 1, 2] {
        match damage {
            0 => file[20] ^= 1,
            1 => file.truncate(300),
            _ => std::fs::remove_file(&chunk.path).unwrap(),
        }
        if damage < 2 {
            std::fs::write(&chunk.path, &file).unwrap();
        }
        let report = store.check(repair, &mut ignore_progress).unwrap();
        assert_eq!((report.count(Severity::Damage), report.count(Severity::Healed)), (0, 1), "{:?}", report.findings);
        assert!(std::fs::read(&chunk.path).unwrap() == written);
    }
    assert_eq!(store.home().counters().healed.load(Ordering::Relaxed), 4);
    for column in 0..5 {
        let back = terrace_storage::migrate::Relocation {
            from: terrace_model::TierId(0),
            to: terrace_model::TierId(1),
            ..promote(column)
        };
        terrace_storage::migrate::try_move(std::slice::from_ref(&dram), store.home().as_ref(), &back).unwrap();
    }
    assert!(contents(&store) == good);
    assert!(directory_contents(dir.path()).keys().all(|path| path.extension().unwrap() != "tmp"));
}

#[test]
fn a_backup_holds_one_commit_and_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let good = make_store(dir.path());
    let target = dir.path().with_extension("backup");
    let back = dir.path().with_extension("back");
    let before = directory_contents(dir.path());
    let report = backup(dir.path(), &target, &mut ignore_progress).unwrap();
    assert_eq!((report.tables, report.chunks, report.rows), (3, 6, 2_600));
    assert!(directory_contents(dir.path()) == before);
    assert!(run_check(&target, false).findings.is_empty(), "a backup is a data directory");
    assert_eq!(
        restore(&target, &back, &mut ignore_progress).unwrap(),
        BackupReport { bytes: report.bytes, ..report.clone() }
    );
    for folder in [&target, &back] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}: no other user of this machine may read it", folder.display());
    }
    let store = Store::open(StoreOptions::new(&back)).unwrap();
    assert!(contents(&store) == good);
    assert_eq!(store.objects("view").unwrap().len(), 1);
    assert!(!back.join("backup.json").exists());
    drop(store);

    let exists = |error: Error| matches!(error, Error::AlreadyExists { .. });
    assert!(exists(backup(dir.path(), &target, &mut ignore_progress).unwrap_err()));
    assert!(exists(restore(&target, &back, &mut ignore_progress).unwrap_err()));
    let foreign = restore(dir.path(), &dir.path().with_extension("x"), &mut ignore_progress).unwrap_err().to_string();
    assert!(foreign.contains("is not a backup"), "{foreign}");

    // Stopped half way, and with a damaged source: no target appears.
    let third = dir.path().with_extension("third");
    let mut files = 0;
    let stopped = backup(dir.path(), &third, &mut |_| {
        files += 1;
        files < 3
    });
    assert!(matches!(stopped, Err(Error::Cancelled)));
    let file = &chunk_files(&target)[0];
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).unwrap();
    let damaged = restore(&target, &third, &mut ignore_progress).unwrap_err();
    assert!(matches!(&damaged, Error::Corrupt { path, .. } if path == file), "{damaged}");
    let partial = third.with_extension("third.partial");
    assert!(!third.exists() && !partial.exists());
    std::fs::create_dir(&partial).unwrap();
    assert!(backup(dir.path(), &third, &mut ignore_progress).unwrap_err().to_string().contains("Delete it"));
    for path in [&target, &back, &partial] {
        std::fs::remove_dir_all(path).unwrap();
    }
}

/// Rows are inserted and tables replaced while backups are made: each backup has exactly the state of one commit.
#[test]
fn a_backup_while_tables_change_is_consistent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions::new(dir.path().join("data"))).unwrap();
    for name in ["a", "b"] {
        let mut definition = definition(name);
        definition.options.chunk_rows = 100;
        definition.options.admission = ChunkAdmission::Ssd;
        store.create_table(definition).unwrap();
    }
    let inside = store.backup(&dir.path().join("data/x"), &mut ignore_progress).unwrap_err().to_string();
    assert!(inside.contains("inside the data directory"), "{inside}");
    let stop = AtomicBool::new(false);
    let backups = std::thread::scope(|scope| {
        scope.spawn(|| {
            for start in (0..).step_by(40) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // `b` gets its rows after `a`, so `a` has at most one batch more in a backup.
                store.insert(&table(&store, "a"), &[rows(start..start + 40)]).unwrap();
                store.insert(&table(&store, "b"), &[rows(start..start + 40)]).unwrap();
                let mut ingest = store.ingest_new(definition("replaced"), true).unwrap();
                ingest.write(rows(start..start + 700)).unwrap();
                ingest.finish().unwrap();
            }
        });
        let backups: Vec<PathBuf> = (0..6)
            .map(|n| {
                let target = dir.path().join(format!("backup{n}"));
                store.backup(&target, &mut ignore_progress).unwrap();
                target
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        backups
    });
    for (n, target) in backups.iter().enumerate() {
        let back = dir.path().join(format!("back{n}"));
        restore(target, &back, &mut ignore_progress).unwrap();
        assert_eq!(run_check(&back, false).count(Severity::Damage), 0);
        let store = Store::open(StoreOptions::new(&back)).unwrap();
        let all = contents(&store);
        let count = |name: &str| all.get(&format!("public.{name}")).map_or(0, RecordBatch::num_rows);
        assert!(count("a") == count("b") || count("a") == count("b") + 40, "{} and {}", count("a"), count("b"));
        assert!(matches!(count("replaced"), 0 | 700));
    }
}

/// A table with deleted rows, whose files have columns that it dropped or renamed and lack columns that it added.
#[test]
fn altered_tables_and_deleted_rows_are_checked_healed_backed_up_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let name = TableName::new("public", "a");
    let added = arrow::datatypes::Field::new("y", arrow::datatypes::DataType::Int64, true);
    let value: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    let changes = [
        Alteration::DropColumn("x".into()),
        Alteration::RenameColumn { from: "s".into(), to: "t".into() },
        Alteration::AddColumn { field: added, default: None, value: Some(value) },
        // Another column gets an old name: columns of files are found by ids, not by names.
        Alteration::RenameColumn { from: "b".into(), to: "x".into() },
    ];
    let a = store.alter_table(&name, &changes).unwrap();
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
    let before = contents(&store);
    let mut transaction = store.begin();
    let seen = a.version();
    let to_delete = (0..600).map(|row| TableVersion::position((row % 4) as u32, row as u32 / 4));
    transaction.change(&a, &seen, &to_delete.collect(), None).unwrap();
    transaction.commit().unwrap();
    let good = contents(&store);
    assert_eq!(good["public.a"].num_rows(), 1_100);

    // Columns of altered chunks are healed too; the header is not, because it has a dropped column.
    let chunk = Arc::clone(&table(&store, "a").version().chunks[2].chunk);
    let written = std::fs::read(&chunk.path).unwrap();
    let dram = Arc::clone(&store.memory_tiers()[0]);
    for column in [0, 2] {
        let from = terrace_model::TierId(1);
        let to = terrace_model::TierId(0);
        let promote =
            terrace_storage::migrate::Relocation { chunk: Arc::clone(&chunk), column, from, to, form: Form::Packed };
        terrace_storage::migrate::try_move(std::slice::from_ref(&dram), store.home().as_ref(), &promote).unwrap();
        flip_byte(&chunk, column);
    }
    let report = store.check(CheckOptions { quick: false, repair: true }, &mut ignore_progress).unwrap();
    let found: Vec<_> = report.findings.iter().map(|f| (f.severity, f.column.as_deref())).collect();
    assert_eq!(found, [(Severity::Healed, Some("k")), (Severity::Healed, Some("t"))], "{:?}", report.findings);
    assert!(std::fs::read(&chunk.path).unwrap() == written);
    store.close().unwrap();
    drop((store, a, seen, chunk));

    assert!(run_check(dir.path(), false).findings.is_empty());
    let target = dir.path().with_extension("backup");
    let back = dir.path().with_extension("back");
    backup(dir.path(), &target, &mut ignore_progress).unwrap();
    restore(&target, &back, &mut ignore_progress).unwrap();
    let store = Store::open(StoreOptions::new(&back)).unwrap();
    assert!(contents(&store) == good);
    drop(store);
    // A file of an unfinished load.
    let files = chunk_files(&back);
    std::fs::copy(&files[0], files[0].with_file_name("c77.arrow")).unwrap();
    let look = rebuild_catalog(&back, false, 3, &mut ignore_progress).unwrap();
    let of_a = look.tables.iter().find(|t| t.table == "public.a").and_then(|t| t.difference).unwrap();
    assert_eq!((of_a.undeleted_rows, of_a.lost_rows), (600, 0));
    assert!(of_a.unnamed_rows > 0);
    std::fs::remove_file(files[0].with_file_name("c77.arrow")).unwrap();
    let report = rebuild_catalog(&back, true, 3, &mut ignore_progress).unwrap();
    let of_b = report.tables.iter().find(|t| t.table == "public.b").and_then(|t| t.difference).unwrap();
    assert_eq!((of_b.undeleted_rows, of_b.unnamed_rows), (0, 0));
    assert_eq!(of_b.lost_rows, good["public.b"].num_rows() as u64 - report.tables[1].rows);
    assert!(run_check(&back, false).findings.is_empty());
    let store = Store::open(StoreOptions::new(&back)).unwrap();
    assert!(contents(&store)["public.a"] == before["public.a"], "deleted rows are in the files, as the command says");
    drop(store);
    for path in [&target, &back] {
        std::fs::remove_dir_all(path).unwrap();
    }
}
