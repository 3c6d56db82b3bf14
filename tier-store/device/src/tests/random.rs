//! Random tables in random forms, and random scans over them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::oracle::{Build, Column, Table};
use crate::column::{ColumnData, DeviceColumn, Form, Packed, Values};
use crate::join::{JoinColumn, JoinTable};
use crate::program::{ChunkColumn, ChunkColumns, ScanJoin};
use crate::scan::{Aggregate, ColumnRef, Factor, Filter, Measure, Scan};
use crate::{Device, Result};

/// How a column of a chunk lies on the device.
#[derive(Debug, Clone)]
enum Lies {
    Plain(Form),
    Packed,
    /// Keys of this form; the codes of the keys.
    Dictionary(Form, Vec<u32>),
}

/// A table, how it lies, and what is known of its columns.
#[derive(Debug)]
pub struct World {
    pub table: Table,
    lies: Vec<Vec<Lies>>,
    /// Values that a column of the chunks may have.
    ranges: Vec<RangeInclusive<i64>>,
    /// The same for the columns of each join.
    join_ranges: Vec<Vec<RangeInclusive<i64>>>,
    rng: StdRng,
}

/// Numbers of rows around the borders of words, tiles and pages.
const ROWS: [usize; 12] = [0, 1, 31, 33, 127, 129, 1000, 1023, 1024, 1025, 8193, 10_000];

fn draw_range(rng: &mut StdRng) -> RangeInclusive<i64> {
    match rng.random_range(0..10) {
        0..4 => {
            let low = rng.random_range(-3..4);
            low..=low + rng.random_range(0..6)
        }
        4 => 0..=rng.random_range(0..200),
        5 => -30_000..=30_000,
        6 => 19_920_101..=19_981_231,
        7 => i64::from(i32::MIN)..=i64::from(i32::MAX),
        8 => i64::MAX - rng.random_range(0..5_000_000_000)..=i64::MAX,
        _ => i64::MIN..=i64::MIN + rng.random_range(0..4_000_000_000),
    }
}

fn draw_column(rng: &mut StdRng, rows: usize, range: &RangeInclusive<i64>, nulls: f64) -> Column {
    (0..rows).map(|_| (!rng.random_bool(nulls)).then(|| rng.random_range(range.clone()))).collect()
}

/// A form that can hold the range.
fn draw_form(rng: &mut StdRng, range: &RangeInclusive<i64>) -> Form {
    let holds = |form: &Form| form.range().contains(range.start()) && form.range().contains(range.end());
    let forms: Vec<Form> = Form::ALL.into_iter().filter(holds).collect();
    *forms.choose(rng).unwrap()
}

fn bitmap(column: &Column) -> Option<Vec<u8>> {
    if column.iter().all(Option::is_some) {
        return None;
    }
    let mut bitmap = vec![0; column.len().div_ceil(8)];
    for (row, _) in column.iter().enumerate().filter(|(_, value)| value.is_some()) {
        bitmap[row / 8] |= 1 << (row % 8);
    }
    Some(bitmap)
}

/// Copies a column to a device; null rows get a value that some form holds.
fn upload(device: &dyn Device, column: &Column, lies: &Lies, range: &RangeInclusive<i64>) -> Result<DeviceColumn> {
    let (form, code_of) = match lies {
        Lies::Plain(form) => (Some(*form), None),
        Lies::Packed => (None, None),
        Lies::Dictionary(form, codes) => (Some(*form), Some(codes)),
    };
    let key = |value: i64| {
        code_of.map_or(value, |codes| codes.iter().position(|code| i64::from(*code) == value).unwrap() as i64)
    };
    // What lies in a null row must not matter: for keys of a dictionary it is no key at all.
    let null = if code_of.is_some() { 100 } else { *range.start() };
    let values: Vec<i64> = column.iter().map(|value| value.map_or(null, key)).collect();
    let validity = bitmap(column);
    let rows = column.len() as u32;
    let mut bytes = Vec::new();
    let packed;
    let values = match form {
        Some(form) => {
            values.iter().for_each(|value| form.write(*value, &mut bytes));
            Values::Plain(form, &bytes)
        }
        None => {
            packed = Packed::new(&values).unwrap();
            Values::Packed(&packed)
        }
    };
    DeviceColumn::upload(device, &ColumnData { rows, values, validity: validity.as_deref(), range: range.clone() })
}

impl World {
    /// A table from a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let columns = rng.random_range(1..6);
        let ranges: Vec<_> = (0..columns).map(|_| draw_range(&mut rng)).collect();
        let null_shares: Vec<f64> =
            (0..columns).map(|_| *[0.0, 0.0, 0.01, 0.5, 1.0].choose(&mut rng).unwrap()).collect();
        let dictionaries: Vec<bool> =
            ranges.iter().map(|range| *range.start() >= 0 && *range.end() < 8 && rng.random_bool(0.5)).collect();
        let (mut chunks, mut lies) = (Vec::new(), Vec::new());
        for _ in 0..rng.random_range(1..4) {
            let rows = *ROWS.choose(&mut rng).unwrap();
            let (mut chunk, mut chunk_lies) = (Vec::new(), Vec::new());
            for column in 0..columns {
                let (range, mut nulls) = (&ranges[column], null_shares[column]);
                if rng.random_bool(0.3) {
                    nulls = 0.0;
                }
                chunk.push(draw_column(&mut rng, rows, range, nulls));
                let fits = range.end().abs_diff(*range.start()) <= u32::MAX.into();
                chunk_lies.push(if dictionaries[column] {
                    let mut codes: Vec<u32> = range.clone().map(|code| code as u32).collect();
                    let places = rng.random_range(0..codes.len());
                    codes.rotate_left(places);
                    Lies::Dictionary(*[Form::U8, Form::U16].choose(&mut rng).unwrap(), codes)
                } else if fits && rng.random_bool(0.4) {
                    Lies::Packed
                } else {
                    Lies::Plain(draw_form(&mut rng, range))
                });
            }
            chunks.push(chunk);
            lies.push(chunk_lies);
        }
        let (mut joins, mut join_ranges) = (Vec::new(), Vec::new());
        for _ in 0..rng.random_range(0..3) {
            let key = rng.random_range(0..columns);
            let rows = *[0, 1, 3, 200].choose(&mut rng).unwrap();
            let mut keys = BTreeSet::new();
            for _ in 0..rows {
                let stored = chunks.iter().find_map(|chunk: &Vec<Column>| *chunk[key].choose(&mut rng)?);
                keys.insert(match stored {
                    Some(value) if rng.random_bool(0.8) => value,
                    _ if rng.random_bool(0.5) => rng.random_range(ranges[key].clone()),
                    _ => rng.random(),
                });
            }
            let keys: Vec<i64> = keys.into_iter().collect();
            let ranges: Vec<_> = (0..rng.random_range(0..3)).map(|_| draw_range(&mut rng)).collect();
            let columns = ranges.iter().map(|range| draw_column(&mut rng, keys.len(), range, 0.1)).collect();
            joins.push(Build { key: key as u32, keys, columns });
            join_ranges.push(ranges);
        }
        Self { table: Table { chunks, joins }, lies, ranges, join_ranges, rng }
    }

    /// Copies the table to a device that does not fail.
    pub fn upload(&self, device: &dyn Device) -> (Vec<ChunkColumns>, Vec<ScanJoin>) {
        self.try_upload(device).unwrap()
    }

    /// Copies the table to a device.
    pub fn try_upload(&self, device: &dyn Device) -> Result<(Vec<ChunkColumns>, Vec<ScanJoin>)> {
        let mut chunks = Vec::new();
        for (chunk, lies) in self.table.chunks.iter().zip(&self.lies) {
            let mut columns = Vec::new();
            for ((column, lies), range) in chunk.iter().zip(lies).zip(&self.ranges) {
                let codes = if let Lies::Dictionary(_, codes) = lies { Some(codes.clone()) } else { None };
                columns.push(ChunkColumn { column: Arc::new(upload(device, column, lies, range)?), codes });
            }
            chunks.push(ChunkColumns { rows: chunk[0].len() as u32, columns });
        }
        let mut joins = Vec::new();
        for build in &self.table.joins {
            let values = build.columns.iter().map(|column| column.iter().map(|value| value.unwrap_or(7)).collect());
            let values: Vec<Vec<i64>> = values.collect();
            let bitmaps: Vec<_> = build.columns.iter().map(bitmap).collect();
            let columns = values.iter().zip(&bitmaps);
            let columns = columns.map(|(values, validity)| JoinColumn { values, validity: validity.as_deref() });
            let table = JoinTable::build(device, &build.keys, &columns.collect::<Vec<_>>())?;
            joins.push(ScanJoin { key: build.key, table: Arc::new(table) });
        }
        Ok((chunks, joins))
    }

    /// All columns, and the values that they may have.
    fn columns(&self) -> Vec<(ColumnRef, RangeInclusive<i64>)> {
        let chunk = (0..).zip(&self.ranges).map(|(column, range)| (ColumnRef::Chunk(column), range.clone()));
        let joined = (0..).zip(&self.join_ranges).flat_map(|(join, ranges)| {
            (0..).zip(ranges).map(move |(column, range)| (ColumnRef::Join { join, column }, range.clone()))
        });
        chunk.chain(joined).collect()
    }

    fn draw_value(&mut self, range: &RangeInclusive<i64>) -> i64 {
        match self.rng.random_range(0..8) {
            0 => self.rng.random(),
            1 => range.start().saturating_sub(1),
            2 => range.end().saturating_add(1),
            3 => *range.start(),
            4 => *range.end(),
            _ => self.rng.random_range(range.clone()),
        }
    }

    fn draw_filter(&mut self, depth: u32) -> Filter {
        let columns = self.columns();
        let (column, range) = columns.choose(&mut self.rng).unwrap().clone();
        let parts = self.rng.random_range(0..4);
        match self.rng.random_range(if depth == 0 { 3..10 } else { 0..10 }) {
            0 => Filter::And((0..parts).map(|_| self.draw_filter(depth - 1)).collect()),
            1 => Filter::Or((0..parts).map(|_| self.draw_filter(depth - 1)).collect()),
            2 => Filter::Not(Box::new(self.draw_filter(depth - 1))),
            3 => Filter::Constant(*[None, Some(true), Some(true), Some(false)].choose(&mut self.rng).unwrap()),
            4 => Filter::IsNull(column),
            5 if !self.table.joins.is_empty() => {
                Filter::Matches(self.rng.random_range(0..self.table.joins.len() as u32))
            }
            6 => {
                let count = self.rng.random_range(0..5);
                Filter::In { column, values: (0..count).map(|_| self.draw_value(&range)).collect() }
            }
            _ => {
                let (one, other) = (self.draw_value(&range), self.draw_value(&range));
                // Seldom an empty one.
                if self.rng.random_bool(0.1) {
                    column.between(one, other)
                } else {
                    column.between(one.min(other), one.max(other))
                }
            }
        }
    }

    fn draw_measure(&mut self) -> Measure {
        let columns = self.columns();
        let factors = (0..self.rng.random_range(0..4)).map(|_| Factor {
            column: columns.choose(&mut self.rng).unwrap().0,
            offset: self.rng.random_range(-2..3),
            scale: self.rng.random_range(-2..3),
        });
        let factors = factors.collect();
        let aggregate =
            *[Aggregate::Sum, Aggregate::Sum, Aggregate::Min, Aggregate::Max].choose(&mut self.rng).unwrap();
        let filter = self.rng.random_bool(0.3).then(|| self.draw_filter(2));
        Measure { aggregate, filter, factors }
    }

    /// A scan of the table; not every one is one that the kernels compute.
    pub fn draw_scan(&mut self) -> Scan {
        let small: Vec<ColumnRef> = self
            .columns()
            .into_iter()
            .filter(|(_, range)| range.end().abs_diff(*range.start()) < 300)
            .map(|(column, _)| column)
            .collect();
        let keys = if small.is_empty() { 0 } else { self.rng.random_range(0..3) };
        let keys = (0..keys).map(|_| *small.choose(&mut self.rng).unwrap()).collect();
        let filter = self.draw_filter(3);
        let measures = (0..self.rng.random_range(1..5)).map(|_| self.draw_measure()).collect();
        Scan { filter, keys, measures }
    }
}
