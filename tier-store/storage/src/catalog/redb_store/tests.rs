//! The store in redb: format versions, damaged pages, and commits that fail.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use redb::Database;
use terrace_model::clock::ManualClock;

use super::entries::RedbEntries;
use super::storage::open_database;
use super::{format, *};
use crate::catalog::testing::damage_pages;
use crate::catalog::{Catalog, LAST_COMMIT_KEY, key, key_part, sealed};
use crate::io::RealFiles;
use crate::io::files::{DiskFaults, Outage, SimulatedFiles};

#[test]
fn other_versions_and_foreign_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
    let mut commit = Commit::default();
    commit.put(Space::Meta, format::FORMAT_KEY.to_vec(), 99u32.to_be_bytes().to_vec());
    catalog.commit(commit).unwrap();
    drop(catalog);
    assert!(matches!(Catalog::open(&RealFiles, &path, 1 << 20), Err(Error::UnsupportedFormat { found: 99, .. })));
    let foreign = dir.path().join("foreign");
    std::fs::write(&foreign, b"PAR1 not a catalog at all, but long enough to be read as one").unwrap();
    assert!(matches!(Catalog::open(&RealFiles, &foreign, 1 << 20), Err(Error::Corrupt { .. })));
}

const ENTRIES: [(Space, u64); 6] = [
    (Space::Tables, 1),
    (Space::Chunks, 400),
    (Space::Delta, 40),
    (Space::DeltaDeletions, 3),
    (Space::Heat, 1),
    (Space::Moves, 100),
];

fn entry(space: Space, number: u64) -> (Vec<u8>, Vec<u8>) {
    (key(&[1, number]), format!("{} {number}", space.name()).repeat(number as usize % 50).into_bytes())
}

/// Writes a catalog of version 3: values without checksums, redb tables only for spaces with entries.
fn write_version_3(database: &Database) {
    let mut write = database.begin_write().unwrap();
    write.set_quick_repair(true);
    let put = |space: Space, key: &[u8], value: &[u8]| {
        write.open_table(definition(space)).unwrap().insert(key, value).unwrap();
    };
    put(Space::Meta, format::FORMAT_KEY, &3u32.to_be_bytes());
    for (space, count) in ENTRIES {
        (0..count).map(|number| entry(space, number)).for_each(|(key, value)| put(space, &key, &value));
    }
    write.commit().unwrap();
}

fn all(catalog: &Catalog) -> Vec<(Space, Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    for (space, _) in ENTRIES {
        let visit = |k: &[u8], v: &[u8]| {
            found.push((space, k.to_vec(), v.to_vec()));
            Ok(true)
        };
        catalog.scan(space, &[], visit).unwrap();
    }
    found
}

fn expected() -> Vec<(Space, Vec<u8>, Vec<u8>)> {
    let of = |(space, count)| (0..count).map(move |number| entry(space, number)).map(move |(k, v)| (space, k, v));
    ENTRIES.into_iter().flat_map(of).collect()
}

#[test]
fn a_catalog_of_the_version_before_is_rewritten_whole_whenever_it_is_stopped() {
    let path = Path::new("/catalog.redb");
    let clock = || Arc::<ManualClock>::default();
    let before = SimulatedFiles::new(1, clock());
    write_version_3(&open_database(&before, &Database::builder(), path).unwrap());
    before.sync_folder(Path::new("/")).unwrap();
    let operations = {
        let disk = before.copy(2, clock());
        let catalog = Catalog::open(&disk, path, 1 << 20).unwrap();
        assert_eq!(all(&catalog), expected());
        assert_eq!(catalog.snapshot().unwrap().faults(&Space::ALL), []);
        disk.operations()
    };
    assert!(operations > 10, "{operations}");
    let mut versions = Vec::new();
    for outage in [Outage::Machine, Outage::Process] {
        for cut in 1..=operations {
            let disk = before.copy(cut, clock());
            disk.cut_power_after(cut);
            let _ = Catalog::open(&disk, path, 1 << 20);
            let disk = disk.restart(outage, cut);
            let database = open_database(&disk, &Database::builder(), path).unwrap();
            versions.push(format::version(&database, path).unwrap().unwrap());
            drop(database);
            let catalog = Catalog::open(&disk, path, 1 << 20).unwrap();
            assert_eq!(all(&catalog), expected(), "{outage:?} after {cut} of {operations}");
            assert_eq!(catalog.snapshot().unwrap().faults(&Space::ALL), []);
        }
    }
    assert!(versions.contains(&3) && versions.contains(&4), "{versions:?}");
}

#[test]
fn a_damaged_catalog_of_the_version_before_is_not_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    write_version_3(&Database::create(&path).unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(10).position(|window| window == b"chunks 77c").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Catalog::open(&RealFiles, &path, 1 << 20).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { what, .. } if what.contains("rebuild-catalog")), "{error}");
    assert!(Catalog::verify(&path, 1 << 20).is_err());
    // The undamaged entries are still read.
    let read_only = Catalog::open_read_only(&path, 1 << 20).unwrap();
    assert!(!read_only.is_sealed());
    assert_eq!(read_only.get(Space::Tables, &key(&[1, 0])).unwrap(), Some(entry(Space::Tables, 0).1));
}

#[test]
fn a_copy_of_the_version_before_is_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    let copy = dir.path().join("copy.redb");
    write_version_3(&Database::create(&path).unwrap());
    let before = std::fs::read(&path).unwrap();
    Catalog::open_read_only(&path, 1 << 20).unwrap().snapshot().unwrap().copy_to(&copy, 1 << 20).unwrap();
    assert!(std::fs::read(&path).unwrap() == before);
    let copied = Catalog::open_read_only(&copy, 1 << 20).unwrap();
    assert_eq!((copied.is_sealed(), all(&copied)), (true, expected()));
}

fn put_one(catalog: &Catalog, space: Space, value: &[u8]) -> Result<()> {
    let mut commit = Commit::default();
    commit.put(space, key(&[1]), value.to_vec());
    catalog.commit(commit)
}

#[test]
fn a_damaged_page_fails_a_write_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    put_one(&Catalog::open(&RealFiles, &path, 1 << 20).unwrap(), Space::Moves, b"a move that is stored").unwrap();
    damage_pages(&path, b"a move that is stored");
    let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
    catalog.refuse_damage().unwrap();
    put_one(&catalog, Space::Heat, b"heat").unwrap();
    let refused = |result: Result<()>| matches!(result, Err(Error::ReadOnly { .. } | Error::Corrupt { .. }));
    assert!(refused(put_one(&catalog, Space::Moves, b"another")) && catalog.failure().is_some());
    assert!(refused(put_one(&catalog, Space::Heat, b"heat")), "the writer is there and says why");
    let named = |error: Error| matches!(&error, Error::Corrupt { what, .. } if what.starts_with("moves"));
    assert!(named(catalog.reopen(&RealFiles).unwrap_err()) && named(catalog.failure().unwrap()));
    assert_eq!(catalog.get(Space::Heat, &key(&[1])).unwrap().as_deref(), Some(&b"heat"[..]), "reads go on");
    assert!(catalog.refuse_damage().is_ok(), "no answer depends on it");
}

/// Makes a catalog with one entry after a failed commit; its disk works again.
fn failed(commit: impl Fn(&Catalog) -> Result<()>) -> (SimulatedFiles, Catalog) {
    let disk = SimulatedFiles::new(1, Arc::<ManualClock>::default());
    let catalog = Catalog::open(&disk, Path::new("/catalog.redb"), 1 << 20).unwrap();
    put_one(&catalog, Space::Objects, b"kept").unwrap();
    disk.set_faults(DiskFaults { full_rate: 1.0, ..DiskFaults::default() });
    commit(&catalog).unwrap_err();
    disk.set_faults(DiskFaults::default());
    (disk, catalog)
}

#[test]
fn a_catalog_that_is_gone_is_not_made_anew() {
    let path = Path::new("/catalog.redb");
    let (disk, catalog) = failed(|catalog| put_one(catalog, Space::Objects, b"lost"));
    let refused = |part: &str| {
        let error = catalog.reopen(&disk).unwrap_err();
        assert!(matches!(&error, Error::ReadOnly { what, .. } if what.contains(part)), "{error}");
        assert_eq!(catalog.failure().unwrap().to_string(), error.to_string());
    };
    disk.rename(path, Path::new("/elsewhere")).unwrap();
    refused("is missing or empty");
    assert!(disk.len(path).unwrap().is_none());
    disk.write(path, &[]).unwrap();
    refused("is missing or empty");
    assert_eq!(catalog.get(Space::Objects, &key(&[1])).unwrap().as_deref(), Some(&b"kept"[..]), "reads go on");
    // An empty database, and another catalog.
    disk.remove_file(path).unwrap();
    drop(open_database(&disk, &Database::builder(), path).unwrap());
    refused("is not the catalog of this server");
    disk.remove_file(path).unwrap();
    drop(Catalog::open(&disk, path, 1 << 20).unwrap());
    refused("is not the catalog of this server");
    disk.rename(Path::new("/elsewhere"), path).unwrap();
    catalog.reopen(&disk).unwrap();
    catalog.resume();
    put_one(&catalog, Space::Objects, b"stored").unwrap();
}

#[test]
fn what_a_failed_commit_left_is_told_by_its_number() {
    // The failed commit puts a value that an earlier one has already put.
    let (disk, catalog) = failed(|catalog| put_one(catalog, Space::Objects, b"kept"));
    catalog.reopen(&disk).unwrap();
    catalog.resume();
    put_one(&catalog, Space::Objects, b"stored").unwrap();
    // The commit is on the disk, though the disk reported an error.
    for (space, is_taken) in [(Space::Objects, false), (Space::Epochs, true)] {
        let (disk, catalog) = failed(|catalog| put_one(catalog, space, b"refused"));
        let database = open_database(&disk, &Database::builder(), Path::new("/catalog.redb")).unwrap();
        let origin = Origin { path: Path::new("/catalog.redb").into(), is_sealed: true };
        let snapshot = RedbEntries::read(&database, origin).unwrap().into_snapshot();
        let number = key_part(&snapshot.get(Space::Meta, LAST_COMMIT_KEY).unwrap().unwrap(), 0) + 1;
        drop(snapshot);
        let write = database.begin_write().unwrap();
        let put = |space: Space, key: &[u8], value: Vec<u8>| {
            let sealed = sealed::seal(space, key, value);
            write.open_table(definition(space)).unwrap().insert(key, sealed.as_slice()).unwrap();
        };
        put(space, &key(&[1]), b"refused".to_vec());
        put(Space::Meta, LAST_COMMIT_KEY, key(&[number]));
        write.commit().unwrap();
        drop(database);
        let reopened = catalog.reopen(&disk);
        assert_eq!(reopened.is_ok(), is_taken, "{reopened:?}");
        if is_taken {
            catalog.resume();
            put_one(&catalog, Space::Objects, b"stored").unwrap();
        } else {
            assert!(reopened.unwrap_err().to_string().contains("restart the server"));
        }
    }
}
