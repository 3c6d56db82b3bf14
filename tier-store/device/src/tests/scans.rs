//! Kernels against the oracle.

use terrace_test_support::depth::by_depth;
use terrace_test_support::seeds::{SeedReport, seeds};

use super::oracle::{compute, of_no_row};
use super::random::World;
use super::{devices, host};
use crate::groups::Groups;
use crate::layout::Places;
use crate::program::{ChunkColumns, Program, ScanJoin};
use crate::scan::{Measure, Scan};
use crate::{Device, Error};

/// Scans for each world.
const SCANS: usize = 6;

fn run(
    device: &dyn Device,
    scan: &Scan,
    chunks: &[ChunkColumns],
    joins: &[ScanJoin],
) -> Result<(Groups, Places), Error> {
    let mut program = Program::new(device, scan, chunks, joins)?;
    program.launch(device)?;
    Ok((program.groups(device)?, program.places()))
}

/// Checks that the groups are those of the oracle; groups without rows have to be as before the scan.
fn check(scan: &Scan, world: &World, groups: &Groups, what: &str) {
    let mut expected = compute(scan, &world.table);
    for (keys, measures) in groups.iter() {
        let of_none = scan.measures.iter().map(of_no_row).collect();
        let expected = expected.remove(&keys).unwrap_or(of_none);
        assert_eq!(measures, expected, "{what}: group {keys:?} of {scan:?}");
    }
    assert!(expected.is_empty(), "{what}: groups that were not found: {expected:?} of {scan:?}");
}

#[test]
fn random_scans_give_what_the_oracle_computes() {
    for device in devices() {
        let (mut cases, mut refused, mut places) = (0, 0, Vec::new());
        for seed in seeds(0..by_depth(400, 5000)) {
            let _report = SeedReport(seed);
            let mut world = World::new(seed);
            let (chunks, joins) = world.upload(&*device);
            for _ in 0..SCANS {
                let mut scan = world.draw_scan();
                scan.measures.push(Measure::count());
                match run(&*device, &scan, &chunks, &joins) {
                    Ok((groups, kind)) => {
                        check(&scan, &world, &groups, &device.properties().name);
                        places.push(kind);
                        cases += 1;
                    }
                    Err(Error::Unsupported(_)) => refused += 1,
                    Err(error) => panic!("{error}: {scan:?}"),
                }
            }
        }
        println!("{}: {cases} scans as expected, {refused} refused", device.properties().name);
        if cases > 100 {
            let kinds = [Places::Own, Places::Block, Places::Output];
            let counts = kinds.map(|kind| places.iter().filter(|other| **other == kind).count());
            assert!(counts.iter().all(|count| *count > 5), "scans with {kinds:?} places: {counts:?}");
            assert!(refused < cases / 2, "{refused} of {cases} scans were refused");
        }
    }
}

#[test]
fn a_second_launch_adds_and_a_reset_forgets() {
    for device in devices() {
        let world = World::new(7);
        let (chunks, joins) = world.upload(&*device);
        let scan =
            Scan { filter: crate::scan::Filter::And(Vec::new()), keys: Vec::new(), measures: vec![Measure::count()] };
        let rows: i128 = chunks.iter().map(|chunk| i128::from(chunk.rows)).sum();
        let mut program = Program::new(&*device, &scan, &chunks, &joins).unwrap();
        for launches in 1..4 {
            program.launch(&*device).unwrap();
            assert_eq!(program.groups(&*device).unwrap().measures(0), [rows * launches]);
        }
        program.reset(&*device).unwrap();
        program.launch(&*device).unwrap();
        assert_eq!(program.groups(&*device).unwrap().measures(0), [rows]);
    }
}

#[test]
fn threads_share_a_device() {
    for device in devices() {
        std::thread::scope(|scope| {
            for seed in 100..104 {
                let device = &device;
                scope.spawn(move || {
                    let mut world = World::new(seed);
                    let (chunks, joins) = world.upload(&**device);
                    for _ in 0..SCANS {
                        let scan = world.draw_scan();
                        if let Ok((groups, _)) = run(&**device, &scan, &chunks, &joins) {
                            check(&scan, &world, &groups, "beside other threads");
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_scan_of_no_rows_finds_no_rows() {
    let device = host();
    let scan =
        Scan { filter: crate::scan::Filter::Constant(Some(true)), keys: Vec::new(), measures: vec![Measure::count()] };
    let (groups, _) = run(&device, &scan, &[], &[]).unwrap();
    assert_eq!((groups.len(), groups.measures(0)), (1, [0].as_slice()));
    assert!(groups.measures(1).is_empty());
}
