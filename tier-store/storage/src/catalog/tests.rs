//! The catalog: commits, damage, and a disk that fails.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use terrace_model::clock::ManualClock;

use super::*;
use crate::io::RealFiles;
use crate::io::files::{DiskFaults, SimulatedFiles};

#[test]
fn commits_survive_a_reopen_and_prefixes_are_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.redb");
    {
        let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
        let mut commit = Commit::default();
        for n in 0..3 {
            commit.put(Space::Chunks, key(&[7, n]), vec![n as u8]);
        }
        commit.put(Space::Chunks, key(&[8, 0]), vec![9]);
        catalog.commit(commit).unwrap();
    }
    let catalog = Catalog::open(&RealFiles, &path, 1 << 20).unwrap();
    let mut seen = Vec::new();
    let visit = |k: &[u8], v: &[u8]| {
        seen.push((key_part(k, 1), v[0]));
        Ok(true)
    };
    catalog.scan_back(Space::Chunks, &key(&[7]), visit).unwrap();
    assert_eq!(seen, [(2, 2), (1, 1), (0, 0)]);
    assert!(matches!(Catalog::open(&RealFiles, &path, 1 << 20), Err(Error::Locked { .. })));
}

#[test]
fn damaged_values_are_named_and_spare_ones_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&RealFiles, &dir.path().join("catalog.redb"), 1 << 20).unwrap();
    let mut commit = Commit::default();
    for n in 0..3 {
        commit.put(Space::Chunks, key(&[7, n]), vec![n as u8; 30]);
        commit.put(Space::Epochs, key(&[n]), vec![n as u8; 30]);
    }
    commit.put(Space::Meta, CALIBRATION_KEY.to_vec(), b"{}".to_vec());
    catalog.commit(commit).unwrap();
    assert_eq!(catalog.snapshot().unwrap().faults(&Space::ALL), []);
    catalog.refuse_damage().unwrap();
    catalog.damage(Space::Epochs, &key(&[1]), 77).unwrap();
    catalog.damage(Space::Meta, CALIBRATION_KEY, 3).unwrap();
    catalog.refuse_damage().unwrap();
    let mut epochs = Vec::new();
    catalog
        .scan(Space::Epochs, &[], |k, _| {
            Ok({
                epochs.push(key_part(k, 0));
                true
            })
        })
        .unwrap();
    assert_eq!((epochs, catalog.get(Space::Meta, CALIBRATION_KEY).unwrap()), (vec![0, 2], None));
    catalog.damage(Space::Chunks, &key(&[7, 2]), 5).unwrap();
    let named = |error: Error| matches!(&error, Error::Corrupt { what, .. } if what.starts_with("chunks, key 7/2 (of table 7)"));
    assert!(named(catalog.refuse_damage().unwrap_err()));
    assert!(named(catalog.get(Space::Chunks, &key(&[7, 2])).unwrap_err()));
    assert!(named(catalog.scan(Space::Chunks, &[], |_, _| Ok(true)).unwrap_err()));
    assert_eq!(catalog.get(Space::Chunks, &key(&[7, 1])).unwrap(), Some(vec![1; 30]));
    let faults: Vec<String> =
        catalog.snapshot().unwrap().faults(&Space::ALL).iter().map(CatalogFault::to_string).collect();
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert!(faults[0].starts_with("meta, key 'calibration'") && faults[2].starts_with("epochs, key 1:"), "{faults:?}");
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let clock = Arc::<ManualClock>::default();
    let disk = SimulatedFiles::new(1, Arc::<ManualClock>::clone(&clock));
    let catalog = Catalog::open(&disk, Path::new("/catalog.redb"), 1 << 20).unwrap();
    let put = |n: u64| {
        let mut commit = Commit::default();
        commit.put(Space::Chunks, key(&[1, n]), vec![7; 100_000]);
        catalog.commit(commit)
    };
    put(1).unwrap();
    disk.set_faults(DiskFaults { full_rate: 1.0, ..DiskFaults::default() });
    let full = |error: Error| matches!(error, Error::ReadOnly { errno: Some(libc::ENOSPC), .. });
    assert!(full(put(2).unwrap_err()) && full(put(3).unwrap_err()) && full(catalog.failure().unwrap()));
    assert!(catalog.reopen(&disk).is_err() && full(catalog.failure().unwrap()));
    disk.set_faults(DiskFaults::default());
    catalog.reopen(&disk).unwrap();
    assert!(full(put(4).unwrap_err()), "refused until the caller resumes after the failure");
    catalog.resume();
    put(5).unwrap();
    let mut found = Vec::new();
    catalog
        .scan(Space::Chunks, &[], |k, _| {
            Ok({
                found.push(key_part(k, 1));
                true
            })
        })
        .unwrap();
    assert_eq!(found, [1, 5]);
    assert!(disk.len(Path::new("/catalog.redb.probe")).unwrap().is_none());
}
