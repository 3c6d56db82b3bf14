//! Data directories and backups of earlier formats, written by their builds (tests/fixtures), and damage of the
//! catalog.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::{Error, FileFormat};
use terrace_storage::catalog::testing::{FORMAT_VERSION, damage_pages};
use terrace_storage::catalog::{CALIBRATION_KEY, Catalog, key};
use terrace_storage::tier::codec::FormChoice;
use terrace_test_support::depth::{by_depth, is_deep};

use super::maintenance_tests::{
    contents, copy_files, directory_contents, ignore_progress, live, make_store, rows, run_check, table,
};
use super::recovery::CATALOG_FILE;
use super::*;

/// Unpacks the fixture of a format.
fn unpacked(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let archive = Path::new("../tests/fixtures").join(name);
    let status = std::process::Command::new("tar").arg("xzf").arg(&archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(status.success(), "{}", archive.display());
    dir
}

/// Tables and rows of a store.
fn counts(store: &Store) -> Vec<(String, u64)> {
    store.tables().iter().map(|table| (table.name().name.clone(), table.version().live_rows())).collect()
}

/// Tables and rows that tests/fixtures/make.py writes.
fn expected() -> Vec<(String, u64)> {
    [("altered", 101), ("empty", 0), ("every_type", 440 - 63), ("keyed", 202)]
        .map(|(n, rows)| (n.to_owned(), rows))
        .into()
}

/// A stored JSON record, and the record that this build would store after it has read it.
fn rewritten<T: serde::Serialize + serde::de::DeserializeOwned>(
    value: &[u8],
) -> (serde_json::Value, serde_json::Value) {
    let record: T = serde_json::from_slice(value).unwrap();
    (serde_json::from_slice(value).unwrap(), serde_json::to_value(record).unwrap())
}

#[test]
fn records_in_json_keep_their_fields() {
    let fixture = unpacked("format-4.tar.gz");
    let catalog = Catalog::open_read_only(&fixture.path().join("data").join(CATALOG_FILE), 1 << 20).unwrap();
    let value = catalog.get(Space::Meta, CALIBRATION_KEY).unwrap().unwrap();
    let (before, after) = rewritten::<terrace_placement::Calibration>(&value);
    assert_eq!(before, after);
    for (space, rewritten) in [
        (Space::Epochs, rewritten::<terrace_placement::EpochRecord> as fn(&[u8]) -> _),
        (Space::Moves, rewritten::<terrace_placement::MoveRecord>),
    ] {
        let mut records = 0;
        let compare = |_: &[u8], value: &[u8]| {
            let (before, after) = rewritten(value);
            assert_eq!(before, after);
            records += 1;
            Ok(true)
        };
        catalog.scan(space, &[], compare).unwrap();
        assert!(records > 2, "{space:?}: {records}");
    }
}

/// A chunk of an earlier version is not packed until it is written anew, which OPTIMIZE does where copies are packed.
#[test]
fn chunks_of_an_earlier_version_are_packed_once_they_are_optimized() {
    let fixture = unpacked("format-4.tar.gz");
    let open = |form| Store::open(StoreOptions { form, ..StoreOptions::new(fixture.path().join("data")) }).unwrap();
    let measured = |store: &Store| {
        let version = table(store, "every_type").version();
        let chunks = version.chunks.iter().map(|entry| &entry.chunk);
        let integers = chunks.flat_map(|chunk| {
            let columns = chunk.columns().iter().zip(chunk.schema.fields());
            columns.filter(|(_, field)| field.data_type().is_integer()).map(|(segment, _)| segment.home.packed_bytes)
        });
        let (known, unknown): (Vec<_>, Vec<_>) = integers.partition(Option::is_some);
        (known.len(), unknown.len())
    };
    let values = |store: &Store| {
        let version = table(store, "every_type").version();
        let chunks = version.chunks.iter().map(|entry| {
            let chunk = &entry.chunk;
            let all: Vec<usize> = (0..chunk.columns().len()).collect();
            let batch = RecordBatch::try_new(Arc::clone(&chunk.schema), store.columns(chunk, &all).unwrap()).unwrap();
            live(&batch, entry.deletions.as_deref())
        });
        let delta = version.delta.iter().map(|rows| live(rows.batch(), rows.deletions.as_deref()));
        let batches: Vec<RecordBatch> = chunks.chain(delta).collect();
        concat_batches(&batches[0].schema(), &batches).unwrap()
    };
    let plain = open(FormChoice::Plain);
    let before = measured(&plain);
    assert!(before.0 == 0 && before.1 > 4, "{before:?}");
    plain.close().unwrap();
    drop(plain);
    let packed = open(FormChoice::Packed);
    let every_type = table(&packed, "every_type");
    let rows = counts(&packed);
    let before = values(&packed);
    packed.optimize(&every_type).unwrap();
    let after = measured(&packed);
    assert!(after.0 > 4 && after.1 == 0, "{after:?}");
    // `every_type` has no order that OPTIMIZE could change.
    assert!(counts(&packed) == rows && values(&packed) == before);
    // There is nothing left to do.
    assert_eq!(packed.optimize(&every_type).unwrap().chunks_in, 0);
    // Nor are its files packed before the table has that format and they are written anew.
    let is_packed = || {
        let version = table(&packed, "every_type").version();
        version.chunks.iter().all(|entry| entry.chunk.segments.iter().any(|segment| segment.home.is_packed()))
    };
    assert!(!is_packed());
    let mut options = every_type.options().clone();
    options.format = Some(FileFormat::Packed);
    let every_type = packed.alter_table(every_type.name(), &[Alteration::SetOptions(options)]).unwrap();
    packed.optimize(&every_type).unwrap();
    assert!(is_packed() && values(&packed) == before);
    packed.close().unwrap();
}

fn of_catalog(report: &CheckReport) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.path.ends_with(CATALOG_FILE)).collect()
}

#[test]
fn a_data_directory_of_format_3_opens_and_is_rewritten() {
    let fixture = unpacked("format-3.tar.gz");
    let data = fixture.path().join("data");
    let before = directory_contents(&data);
    let report = run_check(&data, false);
    assert_eq!(report.count(Severity::Damage), 0, "{:?}", report.findings);
    assert!(of_catalog(&report)[0].what.contains("earlier version"), "{:?}", report.findings);
    assert_eq!(usage(&data).unwrap().tables.len(), 4);
    assert!(directory_contents(&data) == before, "looking changed something");

    let good = {
        let store = Store::open(StoreOptions::new(&data)).unwrap();
        assert_eq!(counts(&store), expected());
        let types = store.table(&TableName::new("public", "every_type")).unwrap();
        types.version().chunks.iter().for_each(|entry| {
            let all: Vec<usize> = (0..entry.chunk.columns().len()).collect();
            store.columns(&entry.chunk, &all).unwrap();
        });
        assert_eq!(store.objects("view").unwrap().len(), 1);
        assert!(!store.epochs(10).unwrap().is_empty());
        assert!(!store.rule_statuses(&|_| true).is_empty());
        assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
        store.close().unwrap();
        counts(&store)
    };
    let report = run_check(&data, false);
    assert!(of_catalog(&report).is_empty(), "{:?}", report.findings);
    let catalog = Catalog::open_read_only(&data.join(CATALOG_FILE), 1 << 20).unwrap();
    assert!(catalog.is_sealed() && FORMAT_VERSION == 4);
    drop(catalog);
    assert_eq!(counts(&Store::open(StoreOptions::new(&data)).unwrap()), good);
}

#[test]
fn the_tools_know_both_formats() {
    let fixture = unpacked("format-3.tar.gz");
    let path = |name: &str| fixture.path().join(name);
    // A backup of the earlier build, and a backup that this build makes of the earlier directory.
    restore(&path("backup"), &path("restored"), &mut ignore_progress).unwrap();
    backup(&path("data"), &path("copy"), &mut ignore_progress).unwrap();
    restore(&path("copy"), &path("copied"), &mut ignore_progress).unwrap();
    for name in ["restored", "copied"] {
        assert_eq!(of_catalog(&run_check(&path(name), false)), Vec::<&Finding>::new());
        assert_eq!(counts(&Store::open(StoreOptions::new(path(name))).unwrap()), expected(), "{name}");
    }
    let report = rebuild_catalog(&path("data"), true, 1, &mut ignore_progress).unwrap();
    assert_eq!((report.tables.len(), report.rows_of_lost_tables), (4, Some(0)));
    assert!(report.objects > 0 && report.tables.iter().all(|table| table.difference.is_some()));
    assert_eq!(run_check(&path("data"), false).count(Severity::Damage), 0);
}

#[test]
fn a_backup_of_a_damaged_directory_of_format_3_is_refused() {
    let fixture = unpacked("format-3.tar.gz");
    let path = |name: &str| fixture.path().join(name);
    let file = path("data").join(CATALOG_FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    let views: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"select k, v from keyed")).collect();
    assert!(!views.is_empty());
    views.iter().for_each(|at| bytes[at + 7] ^= 1);
    std::fs::write(&file, &bytes).unwrap();
    let error = backup(&path("data"), &path("copy"), &mut ignore_progress).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && !path("copy").exists(), "{error}");
    let report = rebuild_catalog(&path("data"), false, 1, &mut ignore_progress).unwrap();
    let said = |part: &str| report.skipped.iter().any(|skipped| skipped.path == file && skipped.why.contains(part));
    assert!(said("Its views and rules may be wrong"), "{:?}", report.skipped);
}

#[test]
fn a_rebuild_keeps_what_it_can_read_and_names_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let path = dir.path().join(CATALOG_FILE);
    {
        let store = Store::open(StoreOptions::new(dir.path())).unwrap();
        (0..300).for_each(|n| store.put_object("view", &format!("public.w{n:03}"), &"sql ".repeat(20)).unwrap());
        store.close().unwrap();
    }
    // Rules of one table do not decode; those of the tables before and after it do.
    let catalog = Catalog::open(&terrace_storage::io::files::RealFiles, &path, 1 << 20).unwrap();
    let mut commit = terrace_storage::catalog::Commit::default();
    let rules = terrace_storage::catalog::records::encode(&terrace_storage::table::Rules::default()).unwrap();
    for (table, value) in [(1, rules.clone()), (2, vec![0xff; 3]), (3, rules)] {
        commit.put(Space::Rules, key(&[table]), value);
    }
    catalog.commit(commit).unwrap();
    drop(catalog);
    damage_pages(&path, b"public.w200");
    let report = run_check(dir.path(), false);
    let finding = report.findings.iter().find(|f| f.what.starts_with("objects")).unwrap();
    assert!(finding.severity == Severity::Damage && finding.advice.contains("rebuild-catalog"), "{finding:?}");
    let old = super::old_catalog::OldCatalog::read(dir.path()).unwrap();
    assert!(old.objects.len() > 50 && old.objects.len() < 250, "{}", old.objects.len());
    assert_eq!(old.rules.iter().map(|(table, _)| table.0).collect::<Vec<_>>(), [1, 3]);
    let said = |part: &str| old.damaged.iter().any(|what| what.contains(part));
    assert!(said("objects") && said("table 2") && old.damaged.len() == 2, "{:?}", old.damaged);
    let report = rebuild_catalog(dir.path(), true, 1, &mut ignore_progress).unwrap();
    assert_eq!((report.objects, report.skipped.len()), (old.objects.len() as u64, 2), "{:?}", report.skipped);
    // A catalog that does not open gives no figures, and the report says so.
    std::fs::write(&path, b"no catalog at all, but long enough to be looked at").unwrap();
    let old = super::old_catalog::OldCatalog::read(dir.path()).unwrap();
    assert!(old.objects.is_empty() && old.damaged.len() == 1, "{:?}", old.damaged);
}

#[test]
fn a_damaged_page_of_a_log_is_not_said_to_be_mended() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let path = dir.path().join(CATALOG_FILE);
    let catalog = Catalog::open(&terrace_storage::io::files::RealFiles, &path, 1 << 20).unwrap();
    let mut commit = terrace_storage::catalog::Commit::default();
    commit.put(Space::Epochs, key(&[1]), b"an epoch that is stored".to_vec());
    catalog.commit(commit).unwrap();
    drop(catalog);
    damage_pages(&path, b"an epoch that is stored");
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    for repair in [false, true] {
        let report = store.check(CheckOptions { quick: false, repair }, &mut ignore_progress).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
        assert!(finding.severity == Severity::Damage && finding.what.starts_with("epochs"), "{finding:?}");
        assert!(finding.advice.contains("restore a backup, or rebuild"), "{finding:?}");
    }
}

#[test]
fn a_check_of_a_closed_catalog_is_an_error_and_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    store.core.catalog.fail_closed(&Error::ReadOnly { errno: Some(libc::EIO), what: "the disk failed".into() });
    let error = store.check(CheckOptions::default(), &mut ignore_progress).unwrap_err();
    assert!(matches!(error, Error::ReadOnly { errno: Some(libc::EIO), .. }), "{error}");
    store.core.reopen_catalog().unwrap();
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
}

#[test]
fn a_first_start_that_is_killed_loses_nothing() {
    // A process may be killed after the rewrite is durable, or in the middle of it: then the file is as before, or in a
    // state in between, which the catalog's own test covers. Here the directory of a killed server is opened, left
    // without a close, and opened again from a copy of its files.
    let fixture = unpacked("format-3.tar.gz");
    let data = fixture.path().join("data");
    let copy = fixture.path().join("copy");
    let store = Store::open(StoreOptions::new(&data)).unwrap();
    copy_files(&data, &copy);
    drop(store);
    assert_eq!(counts(&Store::open(StoreOptions::new(&copy)).unwrap()), expected());
}

#[test]
fn start_and_both_checks_name_a_damaged_value() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let path = dir.path().join(CATALOG_FILE);
    let places = [
        (Space::Chunks, key(&[1, 2]), "chunks, key 1/2 (of table 1)"),
        (Space::Delta, key(&[2, 0]), "delta, key 2/"),
        (Space::Statistics, key(&[2, 0]), "statistics, key 2/0 (of table 2)"),
        (Space::Tables, key(&[3]), "tables, key 3 (of table 3)"),
        (Space::Objects, b"view\0public.v".to_vec(), "objects, key 'view public.v'"),
        (Space::Meta, b"next_table".to_vec(), "meta, key 'next_table'"),
    ];
    for (number, (space, key, name)) in places.into_iter().enumerate() {
        let catalog = Catalog::open(&terrace_storage::io::files::RealFiles, &path, 1 << 20).unwrap();
        let key = if space == Space::Delta { first_key(&catalog, space, &key[..8]) } else { key };
        catalog.damage(space, &key, number).unwrap();
        drop(catalog);
        let report = run_check(dir.path(), false);
        let found = of_catalog(&report);
        let damage = found.iter().find(|f| f.what.starts_with(name));
        let damage = damage.unwrap_or_else(|| panic!("{name}: {:?}", report.findings));
        assert!(damage.severity == Severity::Damage && damage.advice.contains("rebuild-catalog"), "{damage:?}");
        let refused = Store::open(StoreOptions::new(dir.path())).unwrap_err();
        let Error::Corrupt { path: file, what } = &refused else { panic!("{refused}") };
        assert!(*file == path && what.starts_with(name) && what.contains("terrace rebuild-catalog"), "{refused}");
        // A backup of a damaged directory fails.
        assert!(backup(dir.path(), &dir.path().with_extension("b"), &mut ignore_progress).is_err());
        let catalog = Catalog::open(&terrace_storage::io::files::RealFiles, &path, 1 << 20).unwrap();
        catalog.damage(space, &key, number).unwrap();
    }
    // The same bits flipped back: the file is good.
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
    store.core.catalog.damage(Space::Chunks, &key(&[1, 2]), 9).unwrap();
    let report = store.check(CheckOptions::default(), &mut ignore_progress).unwrap();
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert!(finding.what.starts_with("chunks, key 1/2") && finding.table.as_deref() == Some("public.a"), "{finding:?}");
}

#[test]
fn the_check_of_a_running_store_reads_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let good = make_store(dir.path());
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings, []);
    // The whole catalog is in the server's cache. The text of a view is easily found in the file.
    let path = dir.path().join(CATALOG_FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"{\"sql\":\"select 1\"}")).collect();
    places.iter().for_each(|at| bytes[at + 3] ^= 1);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    let report = store.check(CheckOptions::default(), &mut ignore_progress).unwrap();
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert!(finding.what.starts_with("objects, key 'view public.v'"), "{finding:?}");
    assert!(contents(&store) == good, "the store goes on");
    store.insert(&table(&store, "a"), &[rows(7_000..7_010)]).unwrap();
    assert_eq!(store.check(CheckOptions::default(), &mut ignore_progress).unwrap().findings.len(), 1);
}

fn first_key(catalog: &Catalog, space: Space, prefix: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    catalog
        .scan(space, prefix, |k, _| {
            found = k.to_vec();
            Ok(false)
        })
        .unwrap();
    found
}

#[test]
fn what_is_made_anew_is_passed_over_and_removed_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    make_store(dir.path());
    let path = dir.path().join(CATALOG_FILE);
    let catalog = Catalog::open(&terrace_storage::io::files::RealFiles, &path, 1 << 20).unwrap();
    let sketch = first_key(&catalog, Space::Sketches, &[]);
    catalog.damage(Space::Sketches, &sketch, 50).unwrap();
    catalog.damage(Space::Meta, CALIBRATION_KEY, 8).unwrap();
    drop(catalog);
    assert_eq!(run_check(dir.path(), false).count(Severity::Damage), 2);
    let store = Store::open(StoreOptions::new(dir.path())).unwrap();
    let a = store.tables().remove(0);
    assert!(a.version().statistics.sketch(0).is_ok());
    drop(a);
    let repair = CheckOptions { quick: false, repair: true };
    let report = store.check(repair, &mut ignore_progress).unwrap();
    assert_eq!((report.count(Severity::Damage), report.findings.len()), (0, report.count(Severity::Healed)));
    assert!(
        report.findings.iter().any(|finding| finding.what.starts_with("sketches, key 1/")),
        "{:?}",
        report.findings
    );
    assert_eq!(store.check(repair, &mut ignore_progress).unwrap().findings, []);
    store.close().unwrap();
    drop(store);
    assert_eq!(run_check(dir.path(), false).findings, []);
}

/// Bytes of a file that are worth flipping: pages of redb that were never used are zeros.
fn used_bytes(file: &[u8]) -> Vec<usize> {
    let used = |(_, block): &(usize, &[u8])| block.iter().any(|byte| *byte != 0);
    file.chunks(64).enumerate().filter(used).flat_map(|(block, _)| block * 64..block * 64 + 64).collect()
}

#[test]
fn a_flipped_bit_of_the_catalog_changes_no_answer() {
    let source = tempfile::tempdir().unwrap();
    let good = make_store(source.path());
    let bytes = std::fs::read(source.path().join(CATALOG_FILE)).unwrap();
    let places = used_bytes(&bytes);
    let mut random = StdRng::seed_from_u64(7);
    let mut refused = 0;
    let mut found = 0;
    for round in 0..by_depth(12, 120) {
        let dir = tempfile::tempdir().unwrap();
        copy_files(source.path(), dir.path());
        let path: PathBuf = dir.path().join(CATALOG_FILE);
        let at = places[random.random_range(0..places.len())];
        let bit = random.random_range(0..8);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << bit;
        std::fs::write(&path, &damaged).unwrap();
        let damage = run_check(dir.path(), false).count(Severity::Damage);
        found += usize::from(damage > 0);
        match Store::open(StoreOptions::new(dir.path())) {
            Ok(store) => {
                assert!(contents(&store) == good, "round {round}, bit {bit} of byte {at}");
                assert_eq!(store.objects("view").unwrap().len(), 1, "round {round}, bit {bit} of byte {at}");
                for table in store.tables() {
                    (0..table.schema().fields().len())
                        .for_each(|column| drop(table.version().statistics.column(column)));
                }
            }
            Err(Error::Corrupt { .. } | Error::Catalog(_) | Error::Io { .. }) => {
                refused += 1;
                assert!(damage > 0, "round {round}, bit {bit} of byte {at}: the check finds nothing");
            }
            Err(other) => panic!("round {round}, bit {bit} of byte {at}: {other}"),
        }
    }
    assert!(found >= refused, "{refused} refused, {found} found");
    assert!(!is_deep() || refused > 20, "only {refused} refused");
}
