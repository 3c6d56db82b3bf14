//! Stores whose home lies elsewhere: what they keep, what they sweep, and the homes that they refuse.

#![allow(clippy::unwrap_used)]

use terrace_model::{ErrorKind, TableName};
use terrace_storage::io::memory_objects::MemoryObjects;
use terrace_storage::table::ChunkAdmission;

use super::super::tests::{definition, keys, rows};
use super::super::{CheckOptions, Store, StoreOptions, backup, check, rebuild_catalog, restore, usage};
use super::*;

fn name() -> TableName {
    TableName::new("public", "t")
}

fn in_memory(objects: &Arc<MemoryObjects>) -> HomePlace {
    HomePlace::Objects { objects: Arc::<MemoryObjects>::clone(objects), requests: 4 }
}

/// A store without room in memory, so that all is read from its home.
fn open(dir: &Path, home: HomePlace) -> Result<Arc<Store>> {
    Store::open(StoreOptions { home, dram_budget_bytes: 0, ..StoreOptions::new(dir) })
}

/// Makes a table of three chunks and ten unsealed rows.
fn fill(store: &Arc<Store>) {
    let mut definition = definition("t");
    definition.options.admission = ChunkAdmission::Ssd;
    let table = store.create_table(definition).unwrap();
    store.insert(&table, &[rows(0..10)]).unwrap();
    let mut ingest = store.ingest(&table);
    ingest.write(rows(10..2_510)).unwrap();
    assert_eq!(ingest.finish().unwrap(), 2_500);
}

fn all_keys(store: &Arc<Store>) -> Vec<i64> {
    keys(store, &store.table(&name()).unwrap())
}

#[test]
fn a_store_over_objects_keeps_what_it_acknowledged_and_sweeps_what_nobody_names() {
    let dir = tempfile::tempdir().unwrap();
    let objects = Arc::new(MemoryObjects::default());
    {
        let store = open(dir.path(), in_memory(&objects)).unwrap();
        fill(&store);
        let table = store.table(&name()).unwrap();
        let mut aborted = store.ingest(&table);
        aborted.write(rows(0..5_000)).unwrap();
        drop(aborted);
        assert_eq!(all_keys(&store), (0..2_510).collect::<Vec<_>>());
        assert_eq!(store.home().list().unwrap().len(), 3, "objects of the aborted ingest are gone");
        assert_eq!(std::fs::read_dir(dir.path().join("ssd")).unwrap().count(), 0);
        assert_eq!(store.tier_infos().last().unwrap().kind, terrace_model::TierKind::Object);
        store.close().unwrap();
    }
    // What a killed process left.
    let orphan = terrace_storage::io::AlignedBuffer::copy_of(&[1; 100], 64).unwrap();
    objects.write("t1/c99-7.arrow", &orphan).unwrap();
    objects.write("readme", &orphan).unwrap();
    let count = || objects.list().unwrap().iter().filter(|object| object.name.contains("c99")).count();
    drop(open(dir.path(), in_memory(&objects)).unwrap());
    assert_eq!(count(), 1, "it is too young");
    objects.advance_us(600_000_000);
    let store = open(dir.path(), in_memory(&objects)).unwrap();
    assert_eq!(all_keys(&store), (0..2_510).collect::<Vec<_>>());
    assert_eq!(store.home().list().unwrap().len(), 4, "three chunks, and what Terrace did not write");
    assert_eq!(count(), 0);
    store.drop_table(&name()).unwrap();
    assert_eq!(store.home().list().unwrap().len(), 1);
    assert_eq!(store.home().account().used_bytes(), 0);
}

#[test]
fn writes_that_a_store_of_objects_refuses_leave_the_table_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let objects = Arc::new(MemoryObjects::default());
    let store = open(dir.path(), in_memory(&objects)).unwrap();
    fill(&store);
    let table = store.table(&name()).unwrap();
    let mut ingest = store.ingest(&table);
    objects.fail_next(u64::MAX);
    let failed = ingest.write(rows(5_000..9_000)).and_then(|()| ingest.finish());
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Internal);
    objects.fail_next(0);
    assert_eq!(all_keys(&store), (0..2_510).collect::<Vec<_>>());
    let mut ingest = store.ingest(&table);
    ingest.write(rows(5_000..9_000)).unwrap();
    assert_eq!(ingest.finish().unwrap(), 4_000);
}

#[test]
fn a_home_belongs_to_one_data_directory() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let objects = Arc::new(MemoryObjects::default());
    let other = Arc::new(MemoryObjects::default());
    fill(&open(first.path(), in_memory(&objects)).unwrap());
    let refused = |dir: &Path, home: HomePlace, why: &str| {
        let error = open(dir, home).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains(why), "{error}");
    };
    let before = objects.list().unwrap();
    refused(second.path(), in_memory(&objects), "another data directory");
    refused(first.path(), in_memory(&other), "marker is missing");
    refused(first.path(), HomePlace::DataDir, "memory://objects");
    let names = |found: Vec<terrace_storage::io::objects::StoredObject>| {
        let chunks = found.into_iter().filter(|object| object.name.starts_with('t') && object.name.contains('/'));
        chunks.map(|object| object.name).collect::<Vec<_>>()
    };
    assert_eq!(names(objects.list().unwrap()), names(before), "nothing was removed");
    assert_eq!(all_keys(&open(first.path(), in_memory(&objects)).unwrap()).len(), 2_510);
    // A directory without chunks may have another home.
    fill(&open(second.path(), in_memory(&other)).unwrap());
    // A directory whose tables lie in it goes nowhere else.
    let third = tempfile::tempdir().unwrap();
    fill(&open(third.path(), HomePlace::DataDir).unwrap());
    refused(third.path(), in_memory(&Arc::default()), "ssd");
    // The directory is lost: its home is not another one's.
    let fourth = tempfile::tempdir().unwrap();
    refused(fourth.path(), in_memory(&objects), "was lost");
}

#[test]
fn a_home_of_a_newer_version_or_with_a_broken_marker_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (marker, kind) in [("{\"format_version\": 2}", ErrorKind::FailedPrecondition), ("half", ErrorKind::DataLoss)] {
        let objects = Arc::new(MemoryObjects::default());
        assert!(objects.create("terrace-home.json", marker.as_bytes()).unwrap());
        assert_eq!(open(dir.path(), in_memory(&objects)).unwrap_err().kind(), kind, "{marker}");
    }
    // Files of tables without a marker: somebody's.
    let objects = Arc::new(MemoryObjects::default());
    assert!(objects.create("t1/c1-5.arrow", b"file").unwrap());
    let error = open(dir.path(), in_memory(&objects)).unwrap_err();
    assert!(error.to_string().contains("has no marker"), "{error}");
}

#[test]
fn a_start_that_was_stopped_while_it_took_a_home_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let objects = Arc::new(MemoryObjects::default());
    drop(open(dir.path(), in_memory(&objects)).unwrap());
    let record = || std::fs::read(dir.path().join(HOME_FILE)).unwrap();
    let before = record();
    // The record is there, the marker is not.
    objects.remove(&[MARKER_NAME.to_owned()]).unwrap();
    fill(&open(dir.path(), in_memory(&objects)).unwrap());
    assert_eq!(record(), before, "the marker of the first start may still arrive");
    assert_eq!(all_keys(&open(dir.path(), in_memory(&objects)).unwrap()).len(), 2_510);
}

#[test]
fn a_home_outlives_a_lost_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let objects = Arc::new(MemoryObjects::default());
    fill(&open(dir.path(), in_memory(&objects)).unwrap());
    objects.advance_us(600_000_000);
    let before = objects.list().unwrap().len();
    for entry in std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.file_name().and_then(|name| name.to_str()) {
            Some(HOME_FILE | SSD_FOLDER) => {}
            _ if entry.is_dir() => std::fs::remove_dir_all(&entry).unwrap(),
            _ => std::fs::remove_file(&entry).unwrap(),
        }
    }
    for _ in 0..2 {
        assert_eq!(open(dir.path(), in_memory(&objects)).unwrap_err().kind(), ErrorKind::DataLoss);
    }
    assert_eq!(objects.list().unwrap().len(), before);
}

#[test]
fn the_folder_of_a_data_directory_may_be_the_home_of_another_one() {
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    drop(open(second.path(), HomePlace::DataDir).unwrap());
    let place = HomePlace::Folder(second.path().join(SSD_FOLDER));
    fill(&open(first.path(), place.clone()).unwrap());
    // The other one has no tables, but must not remove these.
    let error = open(second.path(), HomePlace::DataDir).unwrap_err();
    assert!(error.to_string().contains("the home of another data directory"), "{error}");
    let store = open(first.path(), place).unwrap();
    assert_eq!(all_keys(&store).len(), 2_510);
    // Its own folder may be named, and left out once it is empty.
    let third = tempfile::tempdir().unwrap();
    drop(open(third.path(), HomePlace::Folder(third.path().join(SSD_FOLDER))).unwrap());
    fill(&open(third.path(), HomePlace::DataDir).unwrap());
    assert_eq!(all_keys(&open(third.path(), HomePlace::DataDir).unwrap()).len(), 2_510);
}

#[test]
fn files_of_others_in_a_folder_are_left_alone() {
    let [data, home] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    std::fs::create_dir(home.path().join("uploads")).unwrap();
    for name in ["draft.tmp", "uploads/part.tmp", "uploads/t1"] {
        std::fs::write(home.path().join(name), "not ours").unwrap();
    }
    let open = || open(data.path(), HomePlace::Folder(home.path().to_owned())).unwrap();
    fill(&open());
    std::fs::write(home.path().join("t1/c99.arrow.tmp"), "half").unwrap();
    drop(open());
    assert!(!home.path().join("t1/c99.arrow.tmp").exists());
    for name in ["draft.tmp", "uploads/part.tmp", "uploads/t1"] {
        assert_eq!(std::fs::read(home.path().join(name)).unwrap(), b"not ours", "{name}");
    }
}

#[test]
fn a_home_in_another_folder_is_found_by_programs_without_a_server() {
    let [data, home, target] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let place = HomePlace::Folder(home.path().join("chunks"));
    let store = open(data.path(), place.clone()).unwrap();
    fill(&store);
    store.close().unwrap();
    drop(store);
    assert_eq!(std::fs::read_dir(home.path().join("chunks/t1")).unwrap().count(), 3);
    let report = check(data.path(), CheckOptions::default(), &mut |_| true).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!(usage(data.path()).unwrap().unowned_files, 0);
    let rebuilt = rebuild_catalog(data.path(), false, 0, &mut |_| true).unwrap();
    assert_eq!(rebuilt.tables.iter().map(|table| table.rows).sum::<u64>(), 2_500);
    // A backup has all in one directory, wherever its source lay.
    let [copy, restored] = ["copy", "restored"].map(|name| target.path().join(name));
    backup(data.path(), &copy, &mut |_| true).unwrap();
    restore(&copy, &restored, &mut |_| true).unwrap();
    assert_eq!(all_keys(&open(&restored, HomePlace::DataDir).unwrap()).len(), 2_510);
    assert_eq!(all_keys(&open(data.path(), place).unwrap()).len(), 2_510);
}

#[test]
fn a_server_of_objects_makes_backups_and_other_programs_say_why_they_cannot() {
    let [data, target] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let objects = Arc::new(MemoryObjects::default());
    let store = open(data.path(), in_memory(&objects)).unwrap();
    fill(&store);
    let copy = target.path().join("copy");
    store.backup(&copy, &mut |_| true).unwrap();
    let report = store.check(CheckOptions::default(), &mut |_| true).unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    store.close().unwrap();
    drop(store);
    let refused = backup(data.path(), &target.path().join("other"), &mut |_| true).unwrap_err();
    assert!(refused.kind() == ErrorKind::Unimplemented && refused.to_string().contains("memory://"), "{refused}");
    let rebuild = rebuild_catalog(data.path(), false, 0, &mut |_| true);
    assert_eq!(rebuild.unwrap_err().kind(), ErrorKind::Unimplemented);
    let restored = target.path().join("restored");
    restore(&copy, &restored, &mut |_| true).unwrap();
    assert_eq!(all_keys(&open(&restored, HomePlace::DataDir).unwrap()).len(), 2_510);
}
