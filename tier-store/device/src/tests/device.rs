//! Memory, transfers, faults.

use std::sync::Arc;
use std::time::Duration;

use terrace_model::clock::{Clock, ManualClock};
use terrace_model::error::ErrorKind;
use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};

use super::oracle::compute;
use super::random::World;
use super::{devices, host};
use crate::cuda::CudaDevice;
use crate::faults::{FaultRates, Faults};
use crate::host::{HostDevice, HostOptions};
use crate::program::Program;
use crate::stream::StreamProgram;
use crate::{Device, Error, Rates};

#[test]
fn rates_are_measured_where_there_is_room() {
    let clock = terrace_model::clock::SystemClock::default();
    for device in devices() {
        let free = device.free_bytes().unwrap();
        let Rates { upload_bytes_per_us, download_bytes_per_us, scan_bytes_per_us, launch_us } =
            Rates::measure(&*device, &clock).unwrap();
        let rates = [upload_bytes_per_us, download_bytes_per_us, scan_bytes_per_us];
        assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0) && launch_us >= 0.0, "{rates:?} {launch_us}");
        device.finish().unwrap();
        assert_eq!(device.free_bytes().unwrap(), free);
    }
    let small = HostDevice::new(HostOptions { memory_bytes: 1 << 16, ..HostOptions::default() });
    assert_eq!(Rates::measure(&small, &clock).unwrap_err().kind(), ErrorKind::ResourceExhausted);
}

#[test]
fn bytes_come_back_as_they_were() {
    for device in devices() {
        // More than the buffers on the way, and not a multiple of them.
        let bytes: Vec<u8> = (0..13_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut memory = device.allocate(bytes.len() as u64 + 5).unwrap();
        device.upload(&bytes, &mut memory, 5).unwrap();
        device.upload(&[1, 2, 3], &mut memory, 100).unwrap();
        let mut back = vec![0; bytes.len()];
        device.download(&memory, 5, &mut back).unwrap();
        assert_eq!(back[95..98], [1, 2, 3]);
        back[95..98].copy_from_slice(&bytes[95..98]);
        assert!(back == bytes);
    }
}

#[test]
fn memory_is_freed_and_has_an_end() {
    for device in devices() {
        let properties = device.properties().clone();
        let free = device.free_bytes().unwrap();
        assert!(free <= properties.memory_bytes);
        let memory = device.allocate(64 << 20).unwrap();
        assert!(device.free_bytes().unwrap() < free);
        let error = device.allocate(properties.memory_bytes + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
        drop(memory);
        device.finish().unwrap();
        assert!(device.free_bytes().unwrap() >= free.min(64 << 20));
        // Pieces come and go, in all more than there is.
        for _ in 0..8 {
            device.allocate(free / 5).unwrap();
        }
    }
    let device = host();
    let all = device.free_bytes().unwrap();
    let pieces: Vec<_> = (0..4).map(|_| device.allocate(all / 4).unwrap()).collect();
    assert!(matches!(device.allocate(1), Err(Error::OutOfMemory { asked_bytes: 1, free_bytes: 0, .. })));
    drop(pieces);
    assert_eq!(device.free_bytes().unwrap(), all);
}

#[test]
fn memory_adds_up() {
    for device in devices() {
        for words in [0_u64, 2, 4, 1000, 1_000_002] {
            let bytes: Vec<u8> =
                (0..words).flat_map(|word| (word * word).wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
            let expected =
                (0..words).fold(0_u64, |sum, word| sum.wrapping_add((word * word).wrapping_mul(0x9e37_79b9)));
            let mut memory = device.allocate(words.max(2) * 8).unwrap();
            device.upload(&vec![0; words.max(2) as usize * 8], &mut memory, 0).unwrap();
            device.upload(&bytes, &mut memory, 0).unwrap();
            let mut program = StreamProgram::new(&*device, &memory).unwrap();
            program.launch(&*device).unwrap();
            program.launch(&*device).unwrap();
            assert_eq!(program.sum(&*device).unwrap(), expected.wrapping_mul(2));
        }
    }
}

#[test]
fn a_slow_bus_takes_its_time() {
    let clock = Arc::new(ManualClock::default());
    let options =
        HostOptions { transfer_bytes_per_second: Some(1 << 20), clock: clock.clone(), ..HostOptions::default() };
    let device = HostDevice::new(options);
    let mut memory = device.allocate(1 << 20).unwrap();
    device.upload(&vec![0; 1 << 20], &mut memory, 0).unwrap();
    device.download(&memory, 0, &mut vec![0; 1 << 19]).unwrap();
    assert_eq!(clock.now_us(), Duration::from_millis(1500).as_micros() as u64);
}

#[test]
fn without_a_gpu_or_its_driver_an_error_says_so() {
    let error = CudaDevice::open(63).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.starts_with("device 'cuda:63' is not available: the ") && text.contains("driver"), "{text}");
}

/// What one scan of a world gives on a device that fails now and then: the right answer, or an error.
fn scan_once(device: &HostDevice, world: &mut World) -> Result<(), Error> {
    // Joins and columns are copied anew each time: any of it may fail.
    device.allocate(1 << 16)?;
    let (scan, kept) = (world.draw_scan(), host());
    let expected = compute(&scan, &world.table);
    let (chunks, joins) = world.upload(&kept);
    if let Err(Error::Unsupported(_)) = Program::new(&kept, &scan, &chunks, &joins) {
        return Ok(());
    }
    let (chunks, joins) = world.try_upload(device)?;
    let mut program = Program::new(device, &scan, &chunks, &joins)?;
    program.launch(device)?;
    let groups = program.groups(device)?;
    for (keys, measures) in groups.iter() {
        if let Some(expected) = expected.get(&keys) {
            assert_eq!(measures, expected);
        }
    }
    assert!(expected.keys().all(|keys| groups.iter().any(|(found, _)| found == *keys)));
    Ok(())
}

#[test]
fn a_device_that_fails_gives_the_right_answer_or_an_error() {
    let (mut right, mut kinds) = (0, std::collections::BTreeMap::new());
    for seed in seeds(0..by_depth(40, 400)) {
        let _report = SeedReport(seed);
        let rates = FaultRates { out_of_memory: 0.01, launch: 0.2, lost: 0.002 };
        let faults = Some(Faults::new(seed, rates));
        let device = HostDevice::new(HostOptions { faults, threads: 2, ..HostOptions::default() });
        let mut world = World::new(seed);
        let mut is_lost = false;
        for _ in 0..8 {
            match scan_once(&device, &mut world) {
                Ok(()) => {
                    assert!(!is_lost, "a lost device answered");
                    right += 1;
                }
                Err(error) => {
                    is_lost |= matches!(error, Error::Lost { .. });
                    let kind = match error {
                        Error::OutOfMemory { .. } => "out of memory",
                        Error::Failed { .. } => "failed",
                        Error::Lost { .. } => "lost",
                        other => panic!("{other}"),
                    };
                    *kinds.entry(kind).or_insert(0) += 1;
                }
            }
        }
        assert_eq!(device.used_bytes(), 0, "memory was not freed");
    }
    println!("{right} answers, errors: {kinds:?}");
    assert!(right > 20 && kinds.len() == 3 || std::env::var_os("TERRACE_SEED").is_some(), "{right} answers, {kinds:?}");
}
