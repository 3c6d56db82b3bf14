//! Kernels against the oracle.

use std::ops::RangeInclusive;
use std::sync::Arc;

use terrace_test_support::depth::{by_depth, runs};
use terrace_test_support::seeds::{SeedReport, seeds};

use super::oracle::{compute, of_no_row};
use super::random::World;
use super::{devices, host};
use crate::column::{ColumnData, DeviceColumn, Form, Packed, Values};
use crate::groups::Groups;
use crate::join::JoinTable;
use crate::layout::Places;
use crate::program::{ChunkColumns, Program, ScanJoin};
use crate::scan::{ColumnRef, Filter, Measure, Scan};
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
        let scan = Scan { filter: Filter::And(Vec::new()), keys: Vec::new(), measures: vec![Measure::count()] };
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
    let scan = Scan { filter: Filter::Constant(Some(true)), keys: Vec::new(), measures: vec![Measure::count()] };
    let (groups, _) = run(&device, &scan, &[], &[]).unwrap();
    assert_eq!((groups.len(), groups.measures(0)), (1, [0].as_slice()));
    assert!(groups.measures(1).is_empty());
}

/// A chunk of one column of 64-bit values.
fn wide(device: &dyn Device, values: &[i64], range: RangeInclusive<i64>) -> ChunkColumns {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let rows = values.len() as u32;
    let data = ColumnData { rows, values: Values::Plain(Form::I64, &bytes), validity: None, range };
    ChunkColumns { rows, columns: vec![Arc::new(DeviceColumn::upload(device, &data).unwrap()).into()] }
}

#[test]
fn sums_of_more_than_two_billion_rows_are_exact() {
    if !runs("sums_of_more_than_two_billion_rows_are_exact") {
        return;
    }
    let device = host();
    // One column of a million rows, many times.
    let chunk = wide(&device, &vec![i64::from(u32::MAX); 1 << 20], 0..=u32::MAX.into());
    let sum = Measure::sum(vec![ColumnRef::Chunk(0).factor()]);
    let scan = Scan { filter: Filter::Constant(Some(true)), keys: Vec::new(), measures: vec![sum] };
    let chunks = vec![chunk; 2100];
    let (groups, _) = run(&device, &scan, &chunks, &[]).unwrap();
    assert_eq!(groups.measures(0), [2100 * (1 << 20) * i128::from(u32::MAX)]);
}

#[test]
fn keys_without_values_have_no_groups() {
    let device = host();
    let scan = Scan {
        filter: Filter::Constant(Some(true)),
        keys: vec![ColumnRef::Chunk(0)],
        measures: vec![Measure::count()],
    };
    let none = RangeInclusive::new(i64::MAX, i64::MIN);
    assert!(run(&device, &scan, &[wide(&device, &[], none)], &[]).unwrap().0.is_empty());
}

#[test]
fn a_join_without_rows_matches_nothing() {
    for device in devices() {
        let device = &*device;
        let values = [i64::MIN, -5, -2, 0, i64::MAX];
        let mut chunk = wide(device, &values, i64::MIN..=i64::MAX);
        let packed = Packed::new(&[-5, -4, -3, -2, -1]).unwrap();
        let data = ColumnData { rows: 5, values: Values::Packed(&packed), validity: None, range: -5..=-1 };
        chunk.columns.push(Arc::new(DeviceColumn::upload(device, &data).unwrap()).into());
        let table = Arc::new(JoinTable::build(device, &[], &[]).unwrap());
        let joins = [0, 1].map(|key| ScanJoin { key, table: table.clone() });
        let filter = Filter::Or(vec![Filter::Matches(0), Filter::Matches(1)]);
        let scan = Scan { filter, keys: Vec::new(), measures: vec![Measure::count()] };
        assert_eq!(run(device, &scan, &[chunk], &joins).unwrap().0.measures(0), [0]);
    }
}
