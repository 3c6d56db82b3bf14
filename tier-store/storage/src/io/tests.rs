//! Tests over all engines, and tests of single ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::blocking::BlockingEngine;
use super::simulated::{Faults, SimulatedEngine};
use super::uring::UringEngine;
use super::*;

/// A temporary folder on a disk: in the build folder, which lies outside of the repository.
fn disk_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn write_file(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    // SAFETY: plain system call on an open descriptor.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn engines() -> Vec<Arc<dyn BlockIo>> {
    let rough = Faults { short_rate: 0.4, interrupt_rate: 0.2, reorder: true, ..Faults::default() };
    let mut engines: Vec<Arc<dyn BlockIo>> =
        vec![Arc::new(BlockingEngine::start()), Arc::new(SimulatedEngine::start(7, rough))];
    match UringEngine::start() {
        Ok(engine) => engines.push(Arc::new(engine)),
        Err(error) => println!("without io_uring: {error}"),
    }
    engines
}

fn idle(engine: &dyn BlockIo) {
    let start = Instant::now();
    while engine.stats().in_flight.load(Ordering::SeqCst) > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{}: operations are left", engine.name());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_window_of_a_file_is_read_exactly() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    let bytes = pattern(3 * (1 << 20) + 1234);
    write_file(&path, &bytes);
    for engine in engines() {
        let file = engine.open(&path).unwrap();
        let last = bytes.len() as u64;
        let windows =
            [(0, 1), (64, 4096), (4095, 2), (100, 3 << 20), (last - 7, 7), (0, bytes.len()), (5, 0), (last, 0)];
        let reads: Vec<_> = windows.iter().map(|(offset, len)| engine.read(&file, *offset, *len)).collect();
        for ((offset, len), read) in windows.into_iter().zip(reads) {
            let got = read.wait().unwrap();
            let expected = &bytes[offset as usize..][..len];
            assert!(got.as_slice() == expected, "{}: {offset} + {len}", engine.name());
            assert_eq!(got.as_slice().as_ptr() as u64 % 64, if len == 0 { 1 } else { offset % 64 });
        }
        idle(&*engine);
    }
}

#[test]
fn windows_read_at_once_are_independent() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    let bytes = pattern((2 << 20) + 99);
    write_file(&path, &bytes);
    let last = bytes.len() as u64;
    let windows = [(100, 50), (150, 0), (192, 4096), (100_000, 1 << 20), (last - 9, 9)];
    for engine in engines() {
        let file = engine.open(&path).unwrap();
        for kept in 0..1_u32 << windows.len() {
            let handles =
                engine.read_windows(Class::Needed.into(), &file, &windows).into_iter().zip(windows).enumerate();
            let kept: Vec<_> = handles.filter(|(place, _)| kept & (1 << place) != 0).collect();
            for (_, (handle, (offset, len))) in kept {
                let got = handle.wait().unwrap();
                assert!(got.as_slice() == &bytes[offset as usize..][..len], "{}: {offset} + {len}", engine.name());
            }
        }
        assert!(engine.read_windows(Class::Needed.into(), &file, &[]).is_empty());
        let mut beyond = engine.read_windows(Class::Needed.into(), &file, &[(0, 10), (last, 1)]);
        assert!(matches!(beyond.pop().unwrap().wait(), Err(Error::Corrupt { .. })));
        assert_eq!(beyond.pop().unwrap().wait().unwrap().as_slice(), &bytes[..10]);
        idle(&*engine);
    }
}

#[test]
fn a_file_too_short_is_damage_and_names_the_file() {
    let dir = disk_dir();
    let path = dir.path().join("short");
    for engine in engines() {
        write_file(&path, &pattern(20_000));
        let file = engine.open(&path).unwrap();
        let beyond = engine.read(&file, 19_999, 2).wait().unwrap_err();
        // Cut in the middle of a block, after opening.
        File::options().write(true).open(&path).unwrap().set_len(9_000).unwrap();
        let cut = engine.read(&file, 4096, 10_000).wait().unwrap_err();
        for error in [beyond, cut] {
            assert!(matches!(&error, Error::Corrupt { path: named, .. } if *named == path), "{error}");
        }
        assert_eq!(engine.stats().errors.load(Ordering::Relaxed), 2, "{}", engine.name());
        let missing = engine.open(&dir.path().join("missing")).unwrap_err();
        assert!(matches!(missing, Error::Io { action: "open", .. }));
        idle(&*engine);
    }
}

#[test]
fn dropped_handles_leave_nothing_behind() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_file(&path, &pattern(8 << 20));
    for engine in engines() {
        let file = engine.open(&path).unwrap();
        let handles: Vec<_> = (0..400).map(|i| engine.read(&file, i * 4096, 4 << 20)).collect();
        let kept = engine.read(&file, 4096, 100);
        drop(handles);
        assert_eq!(kept.wait().unwrap().as_slice(), &pattern(8 << 20)[4096..4196]);
        idle(&*engine);
        // The engine drops withdrawn requests when it takes them from the queue.
        let start = Instant::now();
        while Arc::strong_count(&file) > 1 {
            assert!(start.elapsed() < Duration::from_secs(10), "{}: a request keeps the file", engine.name());
            std::thread::sleep(Duration::from_millis(1));
        }
        // Most were withdrawn before anything was read.
        assert!(engine.stats().read_bytes() < 400 * (4 << 20));
    }
}

#[test]
fn what_is_written_is_read_back() {
    let dir = disk_dir();
    for engine in engines() {
        let path = dir.path().join(engine.name());
        File::create(&path).unwrap();
        let file = IoFile::open_for_writing(&path).expect("the build folder is on a disk");
        let bytes = pattern(9 << 20);
        let all = AlignedBuffer::copy_of(&bytes, BLOCK_BYTES).unwrap();
        let parts = [(0, 1 << 20), (1 << 20, 4096), ((1 << 20) + 4096, 3 << 20), (7 << 20, 2 << 20), (5 << 20, 0)];
        let write = |(start, len): (usize, usize)| {
            engine.write_as(Class::Spill.into(), &file, start as u64, all.part(start..start + len))
        };
        let handles = parts.map(write);
        for (handle, (start, len)) in handles.into_iter().zip(parts) {
            let written = handle.wait().unwrap();
            assert!(written.as_slice() == &bytes[start..start + len], "{}: the bytes come back", engine.name());
        }
        let sum: usize = parts.iter().map(|(_, len)| len).sum();
        assert_eq!(engine.stats().written_bytes.load(Ordering::Relaxed), sum as u64, "{}", engine.name());
        let sums = engine.stats().class_writes(Class::Spill).sums();
        assert_eq!((sums.operations(), sums.bytes), (4, sum as u64), "{}", engine.name());
        assert_eq!(engine.stats().class_reads(Class::Spill).sums().operations(), 0);
        let read = engine.open(&path).unwrap();
        for (start, len) in parts {
            let got = engine.read(&read, start as u64, len).wait().unwrap();
            assert!(got.as_slice() == &bytes[start..start + len], "{}: {start}", engine.name());
        }
        // At any offset, where the page cache takes it.
        let buffered = IoFile::create_nameless(Path::new("/dev/shm/terrace-test-write")).unwrap();
        engine.write_as(Class::Write.into(), &buffered, 0, all.part(0..10_000)).wait().unwrap();
        engine.write_as(Class::Write.into(), &buffered, 101, all.part(7..5007)).wait().unwrap();
        let got = engine.read(&buffered, 0, 10_000).wait().unwrap();
        let expected = [&bytes[..101], &bytes[7..5007], &bytes[5101..10_000]].concat();
        assert!(got.as_slice() == expected, "{}", engine.name());
        // A write that is given up leaves nothing behind, whether it had begun or not.
        drop((0..100).map(|_| write((0, 8 << 20))).collect::<Vec<_>>());
        idle(&*engine);
        // It was opened for reads only.
        let refused = engine.write_as(Class::Spill.into(), &read, 0, all.part(0..4096)).wait().unwrap_err();
        assert!(matches!(refused, Error::Io { action: "write", .. }), "{}: {refused}", engine.name());
    }
}

#[test]
fn an_engine_ends_cleanly_with_reads_under_way() {
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_file(&path, &pattern(4 << 20));
    for engine in engines() {
        let file = engine.open(&path).unwrap();
        let handles: Vec<_> = (0..200).map(|_| engine.read(&file, 0, 4 << 20)).collect();
        drop(engine);
        for handle in handles {
            match handle.wait() {
                Ok(bytes) => assert_eq!(bytes.as_slice().len(), 4 << 20),
                Err(error) => assert!(matches!(error, Error::Cancelled), "{error}"),
            }
        }
        assert_eq!(Arc::strong_count(&file), 1);
    }
}

/// Windows that are read together fail independently.
#[test]
fn what_can_be_read_of_a_joined_read_is() {
    let dir = disk_dir();
    let bytes = pattern(300_000);
    for engine in engines() {
        let path = dir.path().join(engine.name());
        write_file(&path, &bytes);
        let file = engine.open(&path).unwrap();
        let windows = [(0, 90_001), (90_001, 0), (90_001, 9_999), (100_000, 200_000), (299_999, 2)];
        let read = || engine.read_windows(Class::Needed.into(), &file, &windows);
        let lens = |reads: Vec<ReadHandle>| -> Vec<Option<usize>> {
            reads.into_iter().map(|read| read.wait().ok().map(|bytes| bytes.as_slice().len())).collect()
        };
        assert_eq!(lens(read()), [Some(90_001), Some(0), Some(9_999), Some(200_000), None], "{}", engine.name());
        File::options().write(true).open(&path).unwrap().set_len(150_000).unwrap();
        for round in 0..20 {
            let mut reads = read();
            if round % 2 == 1 {
                drop(reads.remove(0));
                assert_eq!(lens(reads), [Some(0), Some(9_999), None, None], "{}", engine.name());
                continue;
            }
            let mut reads = reads.into_iter();
            assert_eq!(reads.next().unwrap().wait().unwrap().as_slice(), &bytes[..90_001]);
            assert_eq!(lens(reads.collect()), [Some(0), Some(9_999), None, None], "{}", engine.name());
        }
        idle(engine.as_ref());
    }
}

#[test]
fn without_o_direct_reads_still_work() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("file");
    let bytes = pattern(100_000);
    std::fs::write(&path, &bytes).unwrap();
    for engine in engines() {
        let file = engine.open(&path).unwrap();
        assert_eq!(engine.read(&file, 50_001, 49_999).wait().unwrap().as_slice(), &bytes[50_001..]);
    }
    // tmpfs accepts O_DIRECT on newer kernels and ignores it; a file system without it says EINVAL.
    let file = IoFile::open_buffered(&path).unwrap();
    assert!(!file.direct);
    let engine = BlockingEngine::start();
    assert_eq!(engine.read(&file, 3, 9_000).wait().unwrap().as_slice(), &bytes[3..9_003]);
}

fn process_read_bytes() -> u64 {
    let counters = std::fs::read_to_string("/proc/self/io").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("read_bytes: ")).unwrap().trim().parse().unwrap()
}

/// Runs alone in a child process: other tests read too.
#[test]
fn counted_bytes_are_those_of_the_kernel() {
    const CHILD: &str = "TERRACE_TEST_IO_BYTES_CHILD";
    let Some(name) = std::env::var_os(CHILD) else {
        for engine in engines().iter().filter(|engine| engine.name() != "simulated") {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["counted_bytes_are_those_of_the_kernel", "--test-threads=1"])
                .env(CHILD, engine.name())
                .output()
                .unwrap();
            assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        }
        return;
    };
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_file(&path, &pattern(16 << 20));
    let engine = engines().into_iter().find(|engine| *name == *engine.name()).unwrap();
    let file = engine.open(&path).unwrap();
    if !file.direct {
        println!("not run: no O_DIRECT here, nothing to compare");
        return;
    }
    // A second cold run reads the same again.
    for round in 0..2 {
        let kernel = process_read_bytes();
        let counted = engine.stats().read_bytes();
        let reads: Vec<_> = (0..300u64).map(|i| engine.read(&file, i * 50_048, 40_000 + 64 * i as usize)).collect();
        reads.into_iter().for_each(|read| drop(read.wait().unwrap()));
        let kernel = process_read_bytes() - kernel;
        let counted = engine.stats().read_bytes() - counted;
        let asked: u64 = (0..300).map(|i| 40_000 + 64 * i).sum();
        assert!(counted >= asked, "round {round}: {counted} counted, {asked} asked");
        assert!(counted.abs_diff(kernel) * 20 <= kernel, "round {round}: {counted} counted, {kernel} by the kernel");
    }
}

#[test]
fn an_idle_ring_uses_no_processor_time() {
    let Ok(engine) = UringEngine::start() else {
        println!("not run: this kernel has no io_uring for us");
        return;
    };
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_file(&path, &pattern(8192));
    let file = engine.open(&path).unwrap();
    drop(engine.read(&file, 0, 10).wait().unwrap());
    let ticks = || {
        let mut sum = 0u64;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            // A thread of another test may end in between.
            let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
            if stat.contains("(terrace-uring)") {
                let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
                sum += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
            }
        }
        sum
    };
    // Other tests' rings may work meanwhile, so look for one quiet interval.
    let quiet = (0..20).any(|_| {
        let before = ticks();
        std::thread::sleep(Duration::from_millis(250));
        ticks() <= before
    });
    assert!(quiet);
}

#[test]
fn simulated_faults_follow_the_seed() {
    let run = |seed: u64| {
        let engine = SimulatedEngine::start(seed, Faults { error_rate: 0.3, reorder: true, ..Faults::default() });
        engine.add_file("/in/memory", &pattern(64 * 4096)).unwrap();
        let file = engine.open(Path::new("/in/memory")).unwrap();
        engine.pause();
        let reads: Vec<_> = (0..64).map(|i| engine.read(&file, i * 4096, 4096)).collect();
        engine.resume();
        reads.into_iter().map(|read| read.wait().map(|_| ()).map_err(|e| e.to_string())).collect::<Vec<_>>()
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
    let failed: Vec<_> = first.iter().filter_map(|r| r.as_ref().err()).collect();
    assert!(!failed.is_empty() && failed.len() < 64);
    assert!(failed.iter().all(|e| e.contains("/in/memory") && e.contains("Input/output error")));
}

#[test]
fn a_raised_read_goes_before_those_of_its_old_class() {
    let engine = SimulatedEngine::start(1, Faults::default());
    engine.add_file("/m", &pattern(64 * 4096)).unwrap();
    let file = engine.open(Path::new("/m")).unwrap();
    engine.pause();
    let mut ahead: Vec<_> = (0..8).map(|at| engine.read_as(Class::Prefetch.into(), &file, at * 4096, 4096)).collect();
    // Windows that are read together are raised together.
    let together = engine.read_windows(Class::Prefetch.into(), &file, &[(40 * 4096, 10), (41 * 4096, 10)]);
    engine.raise(Class::Needed.into(), &together[1]);
    let raised = ahead.remove(7);
    engine.raise(Class::Needed.into(), &raised);
    // The device breaks down after the reads that were raised.
    engine.set_faults(Faults { fails_after: Some(2), ..Faults::default() });
    engine.resume();
    assert!(together.into_iter().chain([raised]).all(|read| read.wait().is_ok()));
    assert!(ahead.into_iter().all(|read| read.wait().is_err()));
}

#[test]
fn paused_reads_are_withdrawn_when_dropped() {
    let engine = SimulatedEngine::start(1, Faults::default());
    engine.add_file("/m", &pattern(8192)).unwrap();
    let file = engine.open(Path::new("/m")).unwrap();
    engine.pause();
    drop((0..10).map(|_| engine.read(&file, 0, 8192)).collect::<Vec<_>>());
    assert_eq!(engine.stats().in_flight.load(Ordering::SeqCst), 0);
    engine.resume();
    assert_eq!(engine.read(&file, 0, 8192).wait().unwrap().as_slice(), pattern(8192));
    assert_eq!(engine.stats().read_bytes(), 8192);
}
