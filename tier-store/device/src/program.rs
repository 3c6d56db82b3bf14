//! A scan in the memory of a device, ready to launch.
//!
//! [`Program::new`] checks everything that the kernels rely on: columns exist and have the rows of their chunk, products
//! fit in 64 bits, sums fit in the places that they get, groups are few. No content of a column makes a kernel read or
//! write elsewhere. That values are in the range given for their column is checked of the keys of groups only: a measure
//! of values outside of it may be wrong.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::column::{DeviceColumn, NO_VALUES, append_section};
use crate::device::{Device, Kernel, Launch};
use crate::error::{Error, Result};
use crate::groups::{Groups, KeyRange};
use crate::join::JoinTable;
use crate::layout::{
    self, BLOCK_BYTES, DEPTH, LANES, MEASURES, OWN_PLACES, PROBLEM_GROUP, Places, TILE_ROWS, WIDTH, kind, operation,
};
use crate::memory::DeviceMemory;
use crate::scan::{Aggregate, ColumnRef, Factor, Filter, Measure, Scan};

/// Places of the output, at most: 32 MiB.
const MAX_PLACES: u64 = 4 << 20;
/// Bits of the set of an IN list, at most: 1 MiB.
const MAX_SET_BITS: u64 = 8 << 20;
/// Values of an IN list that has no set.
const MAX_LISTED: usize = 64;

/// The columns of a chunk in the memory of a device.
#[derive(Debug, Clone)]
pub struct ChunkColumns {
    /// Number of rows.
    pub rows: u32,
    /// The same columns in every chunk.
    pub columns: Vec<ChunkColumn>,
}

/// A column of a chunk.
#[derive(Debug, Clone)]
pub struct ChunkColumn {
    /// Its values.
    pub column: Arc<DeviceColumn>,
    /// For a dictionary column the statement's code of each key; the scan sees these codes.
    pub codes: Option<Vec<u32>>,
}

impl From<Arc<DeviceColumn>> for ChunkColumn {
    fn from(column: Arc<DeviceColumn>) -> Self {
        Self { column, codes: None }
    }
}

/// A join of a scan.
#[derive(Debug, Clone)]
pub struct ScanJoin {
    /// The column of the chunks that has the key.
    pub key: u32,
    /// The build side.
    pub table: Arc<JoinTable>,
}

/// What is known of the values of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bounds {
    range: RangeInclusive<i64>,
    is_nullable: bool,
}

/// A scan in the memory of a device.
#[derive(Debug)]
pub struct Program {
    blocks: u32,
    /// Where blocks add up groups.
    places: Places,
    /// Memory of each block: of the program, the columns of chunks, the places.
    shared_bytes: u32,
    parameters: DeviceMemory,
    offset: u64,
    output: DeviceMemory,
    initial: Vec<u8>,
    keys: Vec<KeyRange>,
    measures: Vec<layout::Measure>,
    slots: u32,
    /// What the parameters point to.
    _chunks: Vec<ChunkColumns>,
    _joins: Vec<ScanJoin>,
}

impl Program {
    /// Checks a scan, and copies it to a device.
    pub fn new(device: &dyn Device, scan: &Scan, chunks: &[ChunkColumns], joins: &[ScanJoin]) -> Result<Self> {
        let parts = Parts::new(scan, chunks, joins)?;
        let initial = parts.initial_output();
        let mut output = device.allocate(initial.len() as u64)?;
        device.upload(&initial, &mut output, 0)?;
        for column in chunks.iter().flat_map(|chunk| &chunk.columns) {
            output.check_same_device(column.column.memory())?;
        }
        for ScanJoin { table, .. } in joins {
            output.check_same_device(table.memory())?;
            table.columns().iter().try_for_each(|column| output.check_same_device(column.memory()))?;
        }
        let length = parts.assemble(chunks, joins, 0, &output).0.len();
        let mut parameters = device.allocate(length as u64)?;
        let (bytes, offset, near_bytes) = parts.assemble(chunks, joins, parameters.address(), &output);
        let block_bytes = near_bytes + parts.columns as usize * size_of::<layout::Column>() * (WIDTH / LANES) as usize;
        if block_bytes > BLOCK_BYTES {
            let what = format!("a scan that takes {block_bytes} bytes of a block; {BLOCK_BYTES} is the most");
            return Err(Error::Unsupported(what));
        }
        device.upload(&bytes, &mut parameters, 0)?;
        Ok(Self {
            blocks: (parts.tiles.len() as u32).div_ceil(WIDTH / LANES).max(1),
            places: parts.kind_of_places(),
            shared_bytes: block_bytes as u32 + parts.places_bytes(),
            parameters,
            offset,
            output,
            initial,
            keys: parts.keys,
            measures: parts.measures,
            slots: parts.slots,
            _chunks: chunks.to_vec(),
            _joins: joins.to_vec(),
        })
    }

    /// Where blocks add up groups.
    pub fn places(&self) -> Places {
        self.places
    }

    /// Forgets what was found so far.
    pub fn reset(&mut self, device: &dyn Device) -> Result<()> {
        device.upload(&self.initial, &mut self.output, 0)
    }

    /// Scans all chunks. A second launch without [`Program::reset`] between counts every row twice; the bounds of sums are
    /// those of one.
    pub fn launch(&mut self, device: &dyn Device) -> Result<()> {
        device.launch(Launch {
            kernel: Kernel::Scan,
            blocks: self.blocks,
            shared_bytes: self.shared_bytes,
            parameters: &self.parameters,
            offset: self.offset,
            output: &mut self.output,
        })
    }

    /// What was found, after everything launched before.
    pub fn groups(&self, device: &dyn Device) -> Result<Groups> {
        let mut bytes = vec![0; self.initial.len()];
        device.download(&self.output, 0, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| i64::from_le_bytes(*word));
        let problems = words.next_back().unwrap_or(0) as u64;
        let what = match problems {
            0 => None,
            PROBLEM_GROUP => Some("a column has values outside of the range given for it"),
            _ => Some("a dictionary column has keys that its dictionary does not have"),
        };
        if let Some(what) = what {
            return Err(Error::Invalid(what.to_owned()));
        }
        let words: Vec<i64> = words.collect();
        let mut values = Vec::new();
        // A key without values has no groups.
        let has_groups = self.keys.iter().all(|key| key.values() > 0);
        for group in words.chunks_exact(self.slots.max(1) as usize).filter(|_| has_groups) {
            values.extend(self.measures.iter().map(|measure| {
                let slot = measure.slot as usize;
                match measure.kind {
                    // The sum of numbers of 32 bits without sign may use all 64.
                    kind::SUM_WIDE => i128::from(group[slot] as u64) + (i128::from(group[slot + 1]) << 32),
                    _ => i128::from(group[slot]),
                }
            }));
        }
        Ok(Groups { keys: self.keys.clone(), measures: self.measures.len(), values })
    }
}

/// The parts of a program, before they have addresses.
struct Parts {
    /// The chunk of each tile.
    tiles: Vec<u32>,
    /// Columns of a chunk.
    columns: u32,
    steps: Vec<layout::Step>,
    /// For steps that test a set, its bits.
    sets: Vec<(usize, Vec<u32>)>,
    filter_steps: u32,
    factors: Vec<layout::Factor>,
    measures: Vec<layout::Measure>,
    keys: Vec<KeyRange>,
    key_columns: Vec<ColumnRef>,
    groups: u32,
    slots: u32,
}

/// A column as the kernels number it; the default is for steps that have none.
#[derive(Clone, Copy, Default)]
struct Numbered {
    source: u32,
    column: u32,
}

impl From<ColumnRef> for Numbered {
    fn from(column: ColumnRef) -> Self {
        match column {
            ColumnRef::Chunk(column) => Self { source: 0, column },
            ColumnRef::Join { join, column } => Self { source: join + 1, column },
        }
    }
}

impl Parts {
    fn new(scan: &Scan, chunks: &[ChunkColumns], joins: &[ScanJoin]) -> Result<Self> {
        let input = Input::new(chunks, joins)?;
        let mut parts = Self {
            tiles: input.tiles()?,
            columns: chunks.first().map_or(0, |chunk| chunk.columns.len() as u32),
            steps: Vec::new(),
            sets: Vec::new(),
            filter_steps: 0,
            factors: Vec::new(),
            measures: Vec::new(),
            keys: Vec::new(),
            key_columns: scan.keys.clone(),
            groups: 1,
            slots: 0,
        };
        parts.add_condition(&scan.filter, &input)?;
        parts.filter_steps = parts.steps.len() as u32;
        for key in &scan.keys {
            parts.add_key(*key, &input)?;
        }
        if scan.measures.is_empty() || scan.measures.len() > MEASURES {
            return Err(Error::Unsupported(format!("{} measures; 1 to {MEASURES} are", scan.measures.len())));
        }
        let mut before = None;
        for measure in &scan.measures {
            parts.add_measure(measure, before, &input)?;
            before = Some(measure);
        }
        if u64::from(parts.groups) * u64::from(parts.slots) > MAX_PLACES {
            return Err(too_many_groups());
        }
        Ok(parts)
    }

    fn places(&self) -> u32 {
        self.groups * self.slots
    }

    fn kind_of_places(&self) -> Places {
        if self.places() + self.slots <= OWN_PLACES {
            Places::Own
        } else if self.places() <= OWN_PLACES * WIDTH {
            Places::Block
        } else {
            Places::Output
        }
    }

    /// Memory of each block for places. Of its own a thread has those of one group more: rows that do not count go there.
    fn places_bytes(&self) -> u32 {
        match self.kind_of_places() {
            Places::Own => (self.places() + self.slots) * WIDTH * 8,
            Places::Block => self.places() * 8,
            Places::Output => 0,
        }
    }

    /// Adds the steps of a condition that keeps rows; each part of an AND keeps its own.
    fn add_condition(&mut self, filter: &Filter, input: &Input<'_>) -> Result<()> {
        if let Filter::And(parts) = filter {
            return parts.iter().try_for_each(|part| self.add_condition(part, input));
        }
        let depth = self.add_filter(filter, input)?;
        if depth > DEPTH {
            return Err(Error::Unsupported(format!("a condition of depth {depth}; {DEPTH} is the most")));
        }
        self.add_step(operation::KEEP, Numbered::default(), 0..=0);
        Ok(())
    }

    fn add_step(&mut self, operation: u32, column: Numbered, range: RangeInclusive<i64>) {
        let Numbered { source, column } = column;
        let (low, high) = range.into_inner();
        self.steps.push(layout::Step { operation, source, column, low, high, ..layout::Step::default() });
    }

    /// Adds steps that push the truth value of a filter. Gives how many values they push at the same time.
    fn add_filter(&mut self, filter: &Filter, input: &Input<'_>) -> Result<usize> {
        match filter {
            Filter::Constant(value) => {
                let code = value.map_or(2, i64::from);
                self.add_step(operation::CONSTANT, Numbered::default(), code..=code);
                Ok(1)
            }
            Filter::Range { column, low, high } => {
                input.bounds(*column)?;
                self.add_step(operation::TEST_RANGE, (*column).into(), *low..=*high);
                Ok(1)
            }
            Filter::In { column, values } => {
                input.bounds(*column)?;
                self.add_list(*column, values)
            }
            Filter::IsNull(column) => {
                input.bounds(*column)?;
                self.add_step(operation::TEST_NULL, (*column).into(), 0..=0);
                Ok(1)
            }
            Filter::Matches(join) => {
                input.join(*join)?;
                self.add_step(operation::TEST_MATCH, Numbered { source: join + 1, column: 0 }, 0..=0);
                Ok(1)
            }
            Filter::And(filters) => self.add_combined(operation::BOTH, filters, input),
            Filter::Or(filters) => self.add_combined(operation::EITHER, filters, input),
            Filter::Not(filter) => {
                let depth = self.add_filter(filter, input)?;
                self.add_step(operation::NEGATE, Numbered::default(), 0..=0);
                Ok(depth)
            }
        }
    }

    fn add_combined(&mut self, operation: u32, filters: &[Filter], input: &Input<'_>) -> Result<usize> {
        let Some((first, rest)) = filters.split_first() else {
            return self.add_filter(&Filter::Constant(Some(operation == operation::BOTH)), input);
        };
        let mut depth = self.add_filter(first, input)?;
        for filter in rest {
            depth = depth.max(1 + self.add_filter(filter, input)?);
            self.add_step(operation, Numbered::default(), 0..=0);
        }
        Ok(depth)
    }

    /// Adds the test of an IN list: a set of bits where the values are close, else a test for each of them.
    fn add_list(&mut self, column: ColumnRef, values: &[i64]) -> Result<usize> {
        let values: BTreeSet<i64> = values.iter().copied().collect();
        let (Some(low), Some(high)) = (values.first().copied(), values.last().copied()) else {
            // Of no values: false, but unknown for null.
            self.add_step(operation::TEST_RANGE, column.into(), NO_VALUES);
            return Ok(1);
        };
        if high.abs_diff(low) < MAX_SET_BITS {
            let mut words = vec![0_u32; (high.abs_diff(low) / 32 + 1) as usize];
            for bit in values.iter().map(|value| value.abs_diff(low)) {
                words[(bit / 32) as usize] |= 1 << (bit % 32);
            }
            self.sets.push((self.steps.len(), words));
            self.add_step(operation::TEST_SET, column.into(), low..=high);
            return Ok(1);
        }
        if values.len() > MAX_LISTED {
            return Err(Error::Unsupported(format!("a list of {} values from {low} to {high}", values.len())));
        }
        for (at, value) in values.iter().enumerate() {
            self.add_step(operation::TEST_RANGE, column.into(), *value..=*value);
            if at > 0 {
                self.add_step(operation::EITHER, Numbered::default(), 0..=0);
            }
        }
        Ok(2)
    }

    fn add_key(&mut self, column: ColumnRef, input: &Input<'_>) -> Result<()> {
        let Bounds { range, is_nullable } = input.bounds(column)?;
        let count = if range.is_empty() { 0 } else { range.end().abs_diff(*range.start()).saturating_add(1) };
        let count = u32::try_from(count).ok().filter(|count| *count < u32::MAX).ok_or_else(too_many_groups)?;
        let key = KeyRange { range, count, is_nullable, stride: self.groups };
        let groups = u64::from(self.groups) * u64::from(key.values());
        if groups > MAX_PLACES {
            return Err(too_many_groups());
        }
        // Without a value there is no row, but the kernels divide by this.
        self.groups = (groups as u32).max(1);
        self.keys.push(key);
        Ok(())
    }

    /// Adds a measure, whose product may start with that of the measure before.
    fn add_measure(&mut self, measure: &Measure, before: Option<&Measure>, input: &Input<'_>) -> Result<()> {
        let before =
            before.filter(|before| before.filter == measure.filter && measure.factors.starts_with(&before.factors));
        let first_step = self.steps.len() as u32;
        if let (None, Some(filter)) = (before, &measure.filter) {
            self.add_condition(filter, input)?;
        }
        let first_factor = self.factors.len() as u32;
        let done = before.map_or(0, |before| before.factors.len());
        let mut product = 1..=1;
        for (at, Factor { column, offset, scale }) in measure.factors.iter().enumerate() {
            let range = input.bounds(*column)?.range;
            let term = affine(&range, *offset, *scale);
            product = multiply(&product, &term).ok_or_else(too_large)?;
            if at < done {
                continue;
            }
            let Numbered { source, column } = (*column).into();
            let is_narrow = *term.start() >= i128::from(i32::MIN) && *term.end() <= i128::from(i32::MAX);
            let (offset, scale, narrow) = (*offset, *scale, u32::from(is_narrow));
            self.factors.push(layout::Factor { offset, scale, source, column, narrow, unused: 0 });
        }
        let most = product.start().unsigned_abs().max(product.end().unsigned_abs());
        if *product.start() < i128::from(i64::MIN) || *product.end() > i128::from(i64::MAX) {
            return Err(too_large());
        }
        let is_narrow = most.checked_mul(input.rows().into()).is_some_and(|sum| sum <= i64::MAX as u128);
        let kind = match measure.aggregate {
            Aggregate::Sum if is_narrow => kind::SUM,
            Aggregate::Sum => kind::SUM_WIDE,
            Aggregate::Min => kind::LEAST,
            Aggregate::Max => kind::GREATEST,
        };
        self.measures.push(layout::Measure {
            kind,
            slot: self.slots,
            first_step,
            steps: self.steps.len() as u32 - first_step,
            first_factor,
            factors: self.factors.len() as u32 - first_factor,
            continues: u32::from(before.is_some()),
            unused: 0,
        });
        self.slots += 1 + u32::from(kind == kind::SUM_WIDE);
        Ok(())
    }

    /// The output before the first launch: what each measure is of no row, then the problems.
    fn initial_output(&self) -> Vec<u8> {
        let mut group = vec![0_i64; self.slots as usize];
        for measure in &self.measures {
            group[measure.slot as usize] = match measure.kind {
                kind::LEAST => i64::MAX,
                kind::GREATEST => i64::MIN,
                _ => 0,
            };
        }
        let groups = std::iter::repeat_n(&group, self.groups as usize).flatten();
        groups.chain(&[0]).flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The bytes of all parts when they begin at `address`, the offset of the structure that the kernel takes, and how
    /// many bytes of there on each block copies.
    fn assemble(
        &self,
        chunks: &[ChunkColumns],
        joins: &[ScanJoin],
        address: u64,
        output: &DeviceMemory,
    ) -> (Vec<u8>, u64, usize) {
        let mut bytes = Vec::new();
        let mut chunk_layouts = Vec::new();
        let mut first_tile = 0;
        for chunk in chunks {
            let mut columns = Vec::new();
            for ChunkColumn { column, codes } in &chunk.columns {
                let codes = codes.as_ref().map(|codes| {
                    let at = append_section(&mut bytes, &words(codes));
                    (address + at, codes.len() as u32)
                });
                column.layout(codes).write(&mut columns);
            }
            let columns = address + append_section(&mut bytes, &columns);
            layout::Chunk { columns, rows: chunk.rows, first_tile }.write(&mut chunk_layouts);
            first_tile += chunk.rows.div_ceil(TILE_ROWS);
        }
        let mut steps = self.steps.clone();
        for (step, set) in &self.sets {
            steps[*step].set = address + append_section(&mut bytes, &words(set));
        }
        let keys = self.keys.iter().zip(&self.key_columns).map(|(key, column)| {
            let Numbered { source, column } = (*column).into();
            let (base, nullable) = (*key.range.start(), u32::from(key.is_nullable));
            layout::Key { base, count: key.count, nullable, stride: key.stride, source, column, unused: 0 }
        });
        let chunk_layouts = append_section(&mut bytes, &chunk_layouts);
        let tile_chunks = append_section(&mut bytes, &words(&self.tiles));
        // What follows, a block copies: the places in it count from the program, which is the first of it.
        let mut near = vec![0; size_of::<layout::Program>()];
        let mut join_layouts = Vec::new();
        for ScanJoin { key, table } in joins {
            let mut columns = Vec::new();
            table.columns().iter().for_each(|column| column.layout(None).write(&mut columns));
            let columns = append_section(&mut near, &columns);
            table.layout(columns, *key).write(&mut join_layouts);
        }
        let program = layout::Program {
            chunks: address + chunk_layouts,
            tile_chunks: address + tile_chunks,
            output: output.address(),
            problems: output.address() + u64::from(self.places()) * 8,
            joins: append_section(&mut near, &join_layouts),
            steps: append_section(&mut near, &written(steps, |step, to| step.write(to))),
            factors: append_section(&mut near, &written(&self.factors, |factor, to| factor.write(to))),
            keys: append_section(&mut near, &written(keys, |key, to| key.write(to))),
            measures: append_section(&mut near, &written(&self.measures, |measure, to| measure.write(to))),
            bytes: near.len() as u32,
            columns: self.columns,
            tiles: self.tiles.len() as u32,
            filter_steps: self.filter_steps,
            key_count: self.keys.len() as u32,
            measure_count: self.measures.len() as u32,
            groups: self.groups,
            slots: self.slots,
            where_: self.kind_of_places() as u32,
            unused: 0,
        };
        let mut content = Vec::new();
        program.write(&mut content);
        near[..size_of::<layout::Program>()].copy_from_slice(&content);
        let offset = append_section(&mut bytes, &near);
        (bytes, offset, near.len())
    }
}

/// Bytes of a section of structures.
fn written<T>(items: impl IntoIterator<Item = T>, write: impl Fn(T, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    items.into_iter().for_each(|item| write(item, &mut bytes));
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn too_many_groups() -> Error {
    Error::Unsupported(format!("groups whose measures take more than {MAX_PLACES} places"))
}

fn too_large() -> Error {
    Error::Unsupported("a product that may exceed 64 bits".to_owned())
}

/// Range of `offset + scale * value`.
fn affine(range: &RangeInclusive<i64>, offset: i64, scale: i64) -> RangeInclusive<i128> {
    let at = |value: i64| i128::from(offset) + i128::from(scale) * i128::from(value);
    let (one, other) = (at(*range.start()), at(*range.end()));
    one.min(other)..=one.max(other)
}

/// Range of the product of two values; `None` beyond 128 bits.
fn multiply(one: &RangeInclusive<i128>, other: &RangeInclusive<i128>) -> Option<RangeInclusive<i128>> {
    let ends = [one.start(), one.end()].into_iter().flat_map(|a| [other.start(), other.end()].map(|b| (a, b)));
    let products = ends.map(|(a, b)| a.checked_mul(*b)).collect::<Option<Vec<i128>>>()?;
    Some(*products.iter().min()?..=*products.iter().max()?)
}

/// Chunks and joins, checked.
struct Input<'a> {
    chunks: &'a [ChunkColumns],
    joins: &'a [ScanJoin],
}

impl<'a> Input<'a> {
    fn new(chunks: &'a [ChunkColumns], joins: &'a [ScanJoin]) -> Result<Self> {
        let columns = chunks.first().map_or(0, |chunk| chunk.columns.len());
        for (at, chunk) in chunks.iter().enumerate() {
            if chunk.columns.len() != columns {
                let what = format!("chunk {at} has {} columns, the first one {columns}", chunk.columns.len());
                return Err(Error::Invalid(what));
            }
            if let Some(short) = chunk.columns.iter().position(|column| column.column.rows() < chunk.rows) {
                return Err(Error::Invalid(format!("column {short} of chunk {at} has fewer rows than the chunk")));
            }
        }
        let input = Self { chunks, joins };
        for ScanJoin { key, .. } in joins {
            input.bounds(ColumnRef::Chunk(*key))?;
        }
        Ok(input)
    }

    fn rows(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.rows)).sum()
    }

    fn tiles(&self) -> Result<Vec<u32>> {
        let count: u64 = self.chunks.iter().map(|chunk| u64::from(chunk.rows.div_ceil(TILE_ROWS))).sum();
        if count > u64::from(u32::MAX / TILE_ROWS) {
            return Err(Error::Unsupported(format!("a launch over {} rows", self.rows())));
        }
        let tiles = (0..).zip(self.chunks);
        Ok(tiles.flat_map(|(at, chunk)| std::iter::repeat_n(at, chunk.rows.div_ceil(TILE_ROWS) as usize)).collect())
    }

    fn join(&self, join: u32) -> Result<&JoinTable> {
        let found = self.joins.get(join as usize).map(|join| &*join.table);
        found.ok_or_else(|| Error::Invalid(format!("there is no join {join}")))
    }

    /// What all values of a column have in common.
    fn bounds(&self, column: ColumnRef) -> Result<Bounds> {
        let missing = || Error::Invalid(format!("there is no column {column:?}"));
        match column {
            ColumnRef::Join { join, column } => {
                let column = self.join(join)?.columns().get(column as usize).ok_or_else(missing)?;
                Ok(Bounds { range: column.range(), is_nullable: true })
            }
            ColumnRef::Chunk(column) => {
                let columns = self.chunks.iter().map(|chunk| chunk.columns.get(column as usize).ok_or_else(missing));
                // Of no chunk: no value.
                let mut bounds = Bounds { range: NO_VALUES, is_nullable: false };
                for column in columns {
                    let ChunkColumn { column, codes } = column?;
                    let range = match codes {
                        Some(codes) => codes.iter().max().map_or(NO_VALUES, |most| 0..=i64::from(*most)),
                        None => column.range(),
                    };
                    bounds.is_nullable |= column.is_nullable();
                    bounds.range = match (bounds.range.is_empty(), range.is_empty()) {
                        (true, _) => range,
                        (_, true) => bounds.range,
                        _ => *bounds.range.start().min(range.start())..=*bounds.range.end().max(range.end()),
                    };
                }
                Ok(bounds)
            }
        }
    }
}
