//! Wrong arguments, and data that is not what it claims to be.

use std::sync::Arc;

use super::{devices, host};
use crate::column::{ColumnData, DeviceColumn, Form, Packed, Values};
use crate::error::Result;
use crate::join::JoinTable;
use crate::program::{ChunkColumn, ChunkColumns, Program, ScanJoin};
use crate::scan::{ColumnRef, Factor, Filter, Measure, Scan};
use crate::stream::StreamProgram;
use crate::{Device, Error};

const ROWS: u32 = 1500;

/// A column of small numbers, 0 to 6.
fn column(device: &dyn Device) -> Arc<DeviceColumn> {
    let bytes: Vec<u8> = (0..ROWS).map(|row| (row % 7) as u8).collect();
    let data = ColumnData { rows: ROWS, values: Values::Plain(Form::U8, &bytes), validity: None, range: 0..=6 };
    Arc::new(DeviceColumn::upload(device, &data).unwrap())
}

fn chunk(columns: Vec<ChunkColumn>) -> ChunkColumns {
    ChunkColumns { rows: ROWS, columns }
}

fn count_all() -> Scan {
    Scan { filter: Filter::Constant(Some(true)), keys: Vec::new(), measures: vec![Measure::count()] }
}

fn run(device: &dyn Device, scan: &Scan, chunks: &[ChunkColumns], joins: &[ScanJoin]) -> Result<Vec<i128>> {
    let mut program = Program::new(device, scan, chunks, joins)?;
    program.launch(device)?;
    Ok(program.groups(device)?.measures(0).to_vec())
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result.unwrap_err() {
        Error::Invalid(what) | Error::Unsupported(what) => what,
        other => panic!("{other}"),
    }
}

#[test]
fn columns_that_are_too_short_are_refused() {
    let device = host();
    let upload = |values, validity, rows| {
        message(DeviceColumn::upload(&device, &ColumnData { rows, values, validity, range: 0..=1 }))
    };
    assert_eq!(
        upload(Values::Plain(Form::I32, &[0; 11]), None, 3),
        "the values of a column are too short: 11 instead of 12"
    );
    let packed = Packed::new(&[1, 2]).unwrap();
    assert_eq!(upload(Values::Packed(&packed), None, 3), "the packed values of a column are too short: 2 instead of 3");
    assert_eq!(
        upload(Values::Plain(Form::U8, &[0; 9]), Some(&[255]), 9),
        "the validity of a column are too short: 1 instead of 2"
    );
    let short = ChunkColumns { rows: ROWS + 1, columns: vec![column(&device).into()] };
    let text = message(run(&device, &count_all(), &[short], &[]));
    assert_eq!(text, "column 0 of chunk 0 has fewer rows than the chunk");
}

#[test]
fn scans_of_what_is_not_there_are_refused() {
    let device = host();
    let chunks = [chunk(vec![column(&device).into()]), chunk(Vec::new())];
    assert_eq!(message(run(&device, &count_all(), &chunks, &[])), "chunk 1 has 0 columns, the first one 1");
    let chunks = [chunk(vec![column(&device).into()])];
    for (filter, text) in [
        (ColumnRef::Chunk(1).equals(1), "there is no column Chunk(1)"),
        (ColumnRef::Join { join: 0, column: 0 }.equals(1), "there is no join 0"),
        (Filter::Matches(3), "there is no join 3"),
    ] {
        assert_eq!(message(run(&device, &Scan { filter, ..count_all() }, &chunks, &[])), text);
    }
    let table = Arc::new(JoinTable::build(&device, &[1], &[]).unwrap());
    let join = ScanJoin { key: 9, table };
    assert_eq!(message(run(&device, &count_all(), &chunks, &[join])), "there is no column Chunk(9)");
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = host();
    let wide = |range| {
        let data = ColumnData { rows: 1, values: Values::Plain(Form::I64, &[0; 8]), validity: None, range };
        ChunkColumns { rows: 1, columns: vec![Arc::new(DeviceColumn::upload(&device, &data).unwrap()).into()] }
    };
    let key = Scan { keys: vec![ColumnRef::Chunk(0)], ..count_all() };
    let text = message(run(&device, &key, &[wide(0..=5_000_000)], &[]));
    assert_eq!(text, "groups whose measures take more than 4194304 places");
    assert!(message(run(&device, &key, &[wide(i64::MIN..=i64::MAX)], &[])).starts_with("groups whose"));
    let square = Measure::sum(vec![ColumnRef::Chunk(0).factor(); 2]);
    let square = Scan { measures: vec![square], ..count_all() };
    assert_eq!(message(run(&device, &square, &[wide(0..=1 << 32)], &[])), "a product that may exceed 64 bits");
    assert!(run(&device, &square, &[wide(0..=1 << 31)], &[]).is_ok());
    let far = Filter::In { column: ColumnRef::Chunk(0), values: (0..65).map(|at| at << 40).collect() };
    let far = Scan { filter: far, ..count_all() };
    assert_eq!(message(run(&device, &far, &[wide(0..=1)], &[])), "a list of 65 values from 0 to 70368744177664");
    let deep = (0..20).fold(Filter::IsNull(ColumnRef::Chunk(0)), |deep, _| {
        Filter::Or(vec![ColumnRef::Chunk(0).equals(1), Filter::Not(Box::new(deep))])
    });
    assert_eq!(
        message(run(&device, &Scan { filter: deep, ..count_all() }, &[wide(0..=1)], &[])),
        "a condition of depth 21; 16 is the most"
    );
    let none = Scan { measures: Vec::new(), ..count_all() };
    assert_eq!(message(run(&device, &none, &[wide(0..=1)], &[])), "0 measures; 1 to 24 are");
    assert_eq!(message(JoinTable::build(&device, &[4, 5, 4], &[])), "a join whose build side has the key 4 twice");
    let far_apart = [4, i64::MAX, 5, i64::MAX];
    assert!(message(JoinTable::build(&device, &far_apart, &[])).contains("twice"));
}

#[test]
fn keys_that_hash_alike_are_refused() {
    // Multiples of the inverse of the multiplier: their hashes are small numbers, so all begin at slot 0.
    let inverse = (0..6).fold(0x9e37_79b9_7f4a_7c15_u64, |inverse: u64, _| {
        inverse.wrapping_mul(2_u64.wrapping_sub(inverse.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    });
    let keys: Vec<i64> = (0..4000_u64).map(|key| key.wrapping_mul(inverse) as i64).collect();
    assert_eq!(message(JoinTable::build(&host(), &keys, &[])), "a join whose keys hash alike");
}

#[test]
fn memory_of_another_device_is_refused() {
    let (device, other) = (host(), host());
    let foreign = column(&other);
    assert!(message(run(&device, &count_all(), &[chunk(vec![foreign.into()])], &[])).ends_with("of another device"));
    let mut memory = other.allocate(16).unwrap();
    assert!(message(device.upload(&[1], &mut memory, 0)).ends_with("of another device"));
    assert!(message(device.download(&memory, 0, &mut [0])).ends_with("of another device"));
    assert!(message(StreamProgram::new(&device, &memory)).ends_with("of another device"));
    let mut program = Program::new(&device, &count_all(), &[chunk(vec![column(&device).into()])], &[]).unwrap();
    assert!(message(program.launch(&other)).ends_with("of another device"));
    let mut memory = device.allocate(17).unwrap();
    assert_eq!(message(StreamProgram::new(&device, &memory)), "17 bytes are not a multiple of 16");
    for (offset, length) in [(17, 1), (16, 2), (u64::MAX, 1), (0, 18)] {
        let text = format!("bytes {offset}+{length} are not inside of an allocation of 17 bytes");
        assert_eq!(message(device.upload(&vec![0; length], &mut memory, offset)), text);
    }
}

#[test]
fn values_that_are_not_what_was_said_do_no_harm() {
    for device in devices() {
        // The column says 0..=6, and has so; another one has 0..=6, but says 2..=3.
        let bytes: Vec<u8> = (0..ROWS).map(|row| (row % 7) as u8).collect();
        let data = ColumnData { rows: ROWS, values: Values::Plain(Form::U8, &bytes), validity: None, range: 2..=3 };
        let wrong = Arc::new(DeviceColumn::upload(&*device, &data).unwrap());
        let key = Scan { keys: vec![ColumnRef::Chunk(0)], ..count_all() };
        let text = message(run(&*device, &key, &[chunk(vec![wrong.into()])], &[]));
        assert_eq!(text, "a column has values outside of the range given for it");
        // A dictionary of three values, and keys up to 6.
        let dictionary = ChunkColumn { column: column(&*device), codes: Some(vec![2, 0, 1]) };
        let sum = Measure::sum(vec![Factor { column: ColumnRef::Chunk(0), offset: 0, scale: 1 }]);
        for scan in [
            Scan { keys: vec![ColumnRef::Chunk(0)], ..count_all() },
            Scan { measures: vec![sum], ..count_all() },
            Scan { filter: ColumnRef::Chunk(0).equals(1), ..count_all() },
        ] {
            let text = message(run(&*device, &scan, &[chunk(vec![dictionary.clone()])], &[]));
            assert_eq!(text, "a dictionary column has keys that its dictionary does not have");
        }
    }
}
