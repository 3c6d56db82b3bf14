#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::super::cost::{PAGE_BYTES, PatternCost, TierCost};
use super::super::workload::ColumnReads;
use super::*;
use crate::testing::builders::{MIB, ROWS, plan_inputs, reads, scans, segment, two_tiers};

/// 1 MiB takes 1000 us from the device, and 100 us of a core; 2 MiB are waited for at a time.
const DEVICE: Device = Device {
    latency_us: 50.0,
    bytes_per_us: MIB as f64 / 1000.0,
    cost: TierCost {
        patterns: [PatternCost { latency_us: 0.0, bytes_per_us: MIB as f64 / 1000.0 }; 4],
        granule_bytes: Some(PAGE_BYTES),
    },
    window_bytes: (2 * MIB) as f64,
    work_us_per_byte: 100.0 / MIB as f64,
};
const DRAM: Place = Place { tier: TierId(0), form: Form::Plain };
const HOME: Place = Place { tier: TierId(1), form: Form::Plain };

/// Eight chunks of one column, 1 MiB each, each read so often per epoch.
fn inputs(reads: [f32; 8]) -> Inputs {
    let segments = (0..).zip(reads).map(|(chunk, reads)| segment(chunk).heat(scans(reads)));
    plan_inputs(two_tiers(8 * MIB), segments.collect())
}

/// A statement that scanned `dram` chunks in DRAM and `home` chunks at home.
fn statement(elapsed_us: f64, span_us: f64, wait_us: f64, dram: u32, home: u32) -> Workload {
    let mut segments = [0; MAX_TIERS];
    (segments[0], segments[1]) = (dram, home);
    let cold_bytes = u64::from(home) * MIB;
    let reads = vec![ColumnReads { table: TableId(1), column: ColumnId(0), segments, cold_bytes }];
    let scans = vec![ScanProfile { span_us, wait_us, partitions: 2, reads }];
    Workload { statements: vec![StatementProfile { elapsed_us, scans }] }
}

fn time_us(inputs: &Inputs, workload: &Workload, placed: [Place; 8]) -> f64 {
    Forecast::new(inputs, &[MIB; 8], DEVICE, workload).times_us(&placed)[0]
}

#[test]
fn a_scan_takes_the_longer_of_work_and_reads_and_a_window_of_the_other() {
    let inputs = inputs([1.0; 8]);
    // Reads of 8 MiB take 8050 us in four windows; their work 400 us on two cores.
    let quick = statement(3000.0, 2000.0, 0.0, 8, 0);
    assert_eq!(time_us(&inputs, &quick, [DRAM; 8]), 3000.0);
    assert!((time_us(&inputs, &quick, [HOME; 8]) - (1000.0 + 8050.0 + 2400.0 / 4.0)).abs() < 1e-6);
    let slow = statement(21_000.0, 20_000.0, 0.0, 8, 0);
    assert!((time_us(&inputs, &slow, [HOME; 8]) - (21_400.0 + 8050.0 / 4.0)).abs() < 1e-6);
    // Half of it: 4050 us of reads in two windows.
    let half = [HOME, DRAM, HOME, DRAM, HOME, DRAM, HOME, DRAM];
    assert!((time_us(&inputs, &quick, half) - (1000.0 + 4050.0 + 2200.0 / 2.0)).abs() < 1e-6);
}

#[test]
fn what_is_read_more_often_weighs_more() {
    let inputs = inputs([9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0]);
    let scan = statement(3000.0, 100.0, 0.0, 8, 0);
    let cold_tail = [DRAM, DRAM, DRAM, DRAM, HOME, HOME, HOME, HOME];
    // A tenth of the reads goes there: 0.8 MiB of 8, less than a window.
    assert!((time_us(&inputs, &scan, cold_tail) - (2900.0 + 50.0 + 800.0 + 100.0 + 40.0)).abs() < 1e-2);
}

#[test]
fn a_statement_that_waited_is_predicted_without_its_waits() {
    let inputs = inputs([1.0; 8]);
    // 8650 us, of which each of two partitions waited 6250; reading took 400 of the other 2400.
    let waited = statement(9650.0, 8650.0, 2.0 * 6250.0, 0, 8);
    assert!((time_us(&inputs, &waited, [HOME; 8]) - 9650.0).abs() < 1e-6);
    assert!((time_us(&inputs, &waited, [DRAM; 8]) - 3000.0).abs() < 1e-6);
}

#[test]
fn columns_that_nobody_read_count_evenly_and_unknown_ones_not_at_all() {
    let cold = inputs([0.0; 8]);
    let scan = statement(3000.0, 100.0, 0.0, 8, 0);
    let half = [HOME, DRAM, HOME, DRAM, HOME, DRAM, HOME, DRAM];
    assert!((time_us(&cold, &scan, half) - (2900.0 + 4050.0 + 300.0 / 2.0)).abs() < 1e-6);
    let mut dropped = scan;
    dropped.statements[0].scans[0].reads[0].table = TableId(9);
    assert_eq!(time_us(&cold, &dropped, [HOME; 8]), 3000.0);
}

#[test]
fn pages_here_and_there_take_the_device_longer_than_a_column() {
    let mut paged = DEVICE;
    paged.cost.patterns[Pattern::Monotonic as usize].latency_us = 100.0;
    let mut inputs = inputs([1.0; 8]);
    let forecast = |inputs: &Inputs, device| {
        let forecast = Forecast::new(inputs, &[MIB; 8], device, &statement(1_000.0, 1_000.0, 0.0, 8, 0));
        forecast.times_us(&[HOME; 8])[0]
    };
    // The cost of pages has no effect on reads of whole columns.
    assert_eq!(forecast(&inputs, DEVICE), forecast(&inputs, paged));
    for segment in &mut inputs.segments {
        // Ten of its 64 pages, about.
        segment.heat = reads(Pattern::Monotonic, 1.0, 10.0);
    }
    let even = forecast(&inputs, DEVICE);
    let longer = forecast(&inputs, paged);
    let pages = 8.0 * 64.0 * (1.0 - (63.0_f64 / 64.0).powi(10));
    assert!((longer - even - pages * 100.0).abs() < pages * 10.0, "{even} {longer} {pages}");
}

#[test]
fn a_packed_home_is_unpacked_by_the_cores_that_read_it() {
    let plain = inputs([1.0; 8]);
    let mut packed = plain.clone();
    for segment in &mut packed.segments {
        *segment = segment.clone().packed_at_home(MIB);
    }
    let numbers = f64::from(8 * ROWS);
    let unpacking_us = numbers * plain.form_cost.unpack_number_us;
    let slow = statement(21_000.0, 20_000.0, 0.0, 8, 0);
    // Two partitions share the work.
    let later_us = time_us(&packed, &slow, [HOME; 8]) - time_us(&plain, &slow, [HOME; 8]);
    assert!((later_us - unpacking_us / 2.0).abs() < 1e-6, "{later_us} {unpacking_us}");
    assert_eq!(time_us(&packed, &slow, [DRAM; 8]), 21_000.0);
}
