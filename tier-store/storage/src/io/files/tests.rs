//! Compares the simulated disk with the real one, and checks what survives a power cut.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_model::clock::{Clock, ManualClock};

use super::*;
use crate::io::Class;
use crate::io::simulated::{Faults, SimulatedEngine};

fn disk(seed: u64) -> SimulatedFiles {
    SimulatedFiles::new(seed, Arc::<ManualClock>::default())
}

fn errno<T: Debug>(result: Result<T>) -> Option<i32> {
    match result.unwrap_err() {
        Error::Io { errno, .. } => errno,
        other => panic!("{other}"),
    }
}

/// Carries out a random operation, and returns the result that a caller sees.
fn step(files: &dyn FileSystem, root: &Path, random: &mut StdRng) -> String {
    let folder = root.join(["", "a", "a/b", "c"][random.random_range(0..4)]);
    let file = folder.join(["x", "y"][random.random_range(0..2)]);
    let other = folder.join("z");
    let bytes = vec![random.random::<u8>(); random.random_range(0..2000)];
    let done = |result: Result<()>| {
        result.map_err(|error| match error {
            Error::Io { action, path, errno, .. } => (action, path.strip_prefix(root).unwrap().to_owned(), errno),
            other => panic!("{other}"),
        })
    };
    match random.random_range(0..8) {
        0 => format!("{:?}", done(files.create_folder(&folder))),
        1 | 2 => format!("{:?}", done(files.write(&file, &bytes))),
        3 => format!("{:?}", done(files.rename(&file, &other))),
        4 => format!("{:?}", done(files.remove_file(&other))),
        5 => format!("{:?}", done(files.remove_folder(&folder))),
        6 => format!("{:?}", done(files.sync_folder(&folder))),
        _ => format!("{:?} {:?}", files.len(&file).ok(), files.read(&file).ok()),
    }
}

fn all(files: &dyn FileSystem, root: &Path) -> BTreeSet<(PathBuf, Option<Vec<u8>>)> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in files.list(&folder).unwrap() {
            let bytes = if entry.is_folder { None } else { Some(files.read(&entry.path).unwrap()) };
            found.insert((entry.path.strip_prefix(root).unwrap().to_owned(), bytes));
            open.extend(entry.is_folder.then_some(entry.path));
        }
    }
    found
}

#[test]
fn as_many_files_may_be_open_as_the_system_allows() {
    raise_open_file_limit();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
}

#[test]
fn files_of_every_size_hold_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let from = DIRECT_FROM_BYTES;
    let part = DIRECT_PART_BYTES;
    // A shorter file over a longer one, too.
    for len in [2 * part + 5, 0, 1, from - 1, from, from + 1, part - 1, part, part + BLOCK_BYTES, 3, from + 4095] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
        RealFiles.write(&path, &bytes).unwrap();
        assert!(RealFiles.read(&path).unwrap() == bytes, "{len} bytes");
    }
}

#[test]
fn files_of_every_size_go_through_the_engine() {
    // On a disk: in the build folder, which lies outside of the repository.
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let path = dir.path().join("f");
    let engine = crate::io::best_engine();
    let stats = engine.stats();
    let from = DIRECT_FROM_BYTES;
    let part = DIRECT_PART_BYTES;
    for len in [9 * part + 5, 0, 1, from - 1, from, from + 1, part - 1, part, part + BLOCK_BYTES, 3, from + 4095] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
        let aligned = AlignedBuffer::copy_of(&bytes, BLOCK_BYTES).unwrap();
        let before = stats.class_writes(Class::Write).sums().bytes;
        RealFiles.write_through(engine.as_ref(), Class::Write.into(), &path, &aligned).unwrap();
        assert!(RealFiles.read(&path).unwrap() == bytes, "{len} bytes");
        let direct = if len < from { 0 } else { len - len % BLOCK_BYTES };
        assert_eq!(stats.class_writes(Class::Write).sums().bytes - before, direct as u64, "{len} bytes");
    }
    // Where space can be reserved, a file has it before its first part is written; no part changes its length.
    let reserved = File::create(&path).unwrap();
    reserve(&reserved, &path, 9 * part + 5).unwrap();
    assert!([0, 9 * part + 5].contains(&(reserved.metadata().unwrap().len() as usize)));
    reserve(&reserved, &path, 0).unwrap();
    drop(reserved);
    // A device that fails.
    let rough = SimulatedEngine::start(3, Faults { fails_after: Some(2), ..Faults::default() });
    let bytes = AlignedBuffer::copy_of(&[7; 9 << 20], BLOCK_BYTES).unwrap();
    let failed = RealFiles.write_through(&rough, Class::Write.into(), &path, &bytes).unwrap_err();
    assert!(matches!(&failed, Error::Io { action: "write", path: named, .. } if *named == path), "{failed}");
    let missing = dir.path().join("none/f");
    let failed = RealFiles.write_through(engine.as_ref(), Class::Write.into(), &missing, &bytes).unwrap_err();
    assert!(matches!(failed, Error::Io { action: "create", .. }), "{failed}");
}

#[test]
fn the_simulated_disk_answers_as_the_real_one_does() {
    for seed in 0..5 {
        let real = tempfile::tempdir().unwrap();
        let simulated = disk(seed);
        let root = Path::new("/root");
        simulated.create_folder(root).unwrap();
        let mut draws = [StdRng::seed_from_u64(seed), StdRng::seed_from_u64(seed)];
        for number in 0..200 {
            let expected = step(&RealFiles, real.path(), &mut draws[0]);
            assert_eq!(step(&simulated, root, &mut draws[1]), expected, "seed {seed}, step {number}");
        }
        assert_eq!(all(&simulated, root), all(&RealFiles, real.path()), "seed {seed}");
    }
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_any_part_of_the_rest() {
    let mut names = BTreeSet::new();
    let mut torn = false;
    for seed in 0..200 {
        let files = disk(seed);
        let root = Path::new("/d");
        files.create_folder(root).unwrap();
        files.sync_folder(Path::new("/")).unwrap();
        files.write(&root.join("kept"), &[1; 5000]).unwrap();
        files.sync_folder(root).unwrap();
        files.write(&root.join("tmp"), &[2; 5000]).unwrap();
        files.rename(&root.join("tmp"), &root.join("new")).unwrap();
        files.write(&root.join("other"), &[3; 5000]).unwrap();
        // The power goes while an old file is replaced: truncated and written, but not synced.
        files.cut_power_after(2);
        assert_eq!(errno(files.write(&root.join("kept"), &[4; 5000])), Some(libc::ENODEV));
        assert!(files.is_dead() && files.read(&root.join("kept")).is_err());
        let after = files.restart(Outage::Machine, seed);
        let kept = after.read(&root.join("kept")).unwrap();
        torn |= kept.contains(&1) && kept.contains(&4);
        let found: BTreeSet<String> =
            after.list(root).unwrap().iter().map(|e| e.path.file_name().unwrap().to_str().unwrap().into()).collect();
        for name in found.iter().filter(|name| *name != "kept") {
            let fill = if name == "other" { 3 } else { 2 };
            assert_eq!(after.read(&root.join(name)).unwrap(), [fill; 5000], "bytes were synced");
        }
        assert!(!(found.contains("tmp") && found.contains("new")), "a rename is one change");
        names.insert(found);
    }
    assert!(torn);
    assert!(names.len() >= 6, "{names:?}");
}

#[test]
fn a_killed_process_leaves_unsynced_changes_that_a_power_cut_still_takes() {
    let lost = (0..50).filter(|seed| {
        let files = disk(*seed);
        files.create_folder(Path::new("/d")).unwrap();
        let files = files.restart(Outage::Process, *seed);
        assert!(files.is_folder(Path::new("/d")));
        !files.restart(Outage::Machine, *seed).is_folder(Path::new("/d"))
    });
    assert!((1..50).contains(&lost.count()));
}

#[test]
fn a_full_disk_says_so_and_time_passes_on_a_slow_one() {
    let clock = Arc::<ManualClock>::default();
    let files = SimulatedFiles::new(1, Arc::<ManualClock>::clone(&clock));
    files.set_faults(DiskFaults {
        full_rate: 1.0,
        latency: std::time::Duration::from_millis(3),
        ..DiskFaults::default()
    });
    let full = files.write(Path::new("/x"), &[0; 10]).unwrap_err();
    assert!(full.to_string().contains("the disk is full"), "{full}");
    assert_eq!(clock.now_us(), 3_000);
    let below = Some(PathBuf::from("/elsewhere"));
    files.set_faults(DiskFaults { full_rate: 1.0, error_rate: 1.0, below, ..DiskFaults::default() });
    files.write(Path::new("/x"), &[0; 10]).unwrap();
}
