//! The build side of a join in the memory of a device: unique keys, and columns that the probe side may read.
//!
//! Keys in a small range are places of an array. Otherwise they are hashed, with linear probing over at least twice as
//! many slots as rows (Hetero-DB, section 4.1: tables of twice the cardinality).

use crate::column::{ColumnData, DeviceColumn, Form, Values, append_section};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout;
use crate::memory::DeviceMemory;

/// A range of keys that is an array whatever the number of rows: 16 MiB of slots. On an H200, hashing took eight times
/// the instructions of an array.
const SMALL_RANGE: u64 = 4 << 20;
/// Steps of linear probing, at most: only keys chosen for it need more.
const MOST_STEPS: u64 = 1024;
/// A range of keys per row up to which they are an array: hashing takes 16 to 24 bytes a row, an array 4 a slot.
const RANGE_PER_ROW: u64 = 6;

/// A column of the build side.
#[derive(Debug, Clone, Copy)]
pub struct JoinColumn<'a> {
    /// A value for each row.
    pub values: &'a [i64],
    /// Arrow's bitmap from its first bit on; `None`: no row is null.
    pub validity: Option<&'a [u8]>,
}

impl JoinColumn<'_> {
    /// Copies the column to a device, in 32 bits where they hold all values: the kernels read these two forms.
    fn upload(&self, device: &dyn Device) -> Result<DeviceColumn> {
        let range = self.values.iter().min().copied().unwrap_or(0)..=self.values.iter().max().copied().unwrap_or(-1);
        let is_narrow = Form::I32.range().contains(range.start()) && Form::I32.range().contains(range.end());
        let form = if is_narrow { Form::I32 } else { Form::I64 };
        let mut bytes = Vec::with_capacity(self.values.len() * form.width());
        self.values.iter().for_each(|value| form.write(*value, &mut bytes));
        let (rows, values) = (self.values.len() as u32, Values::Plain(form, &bytes));
        DeviceColumn::upload(device, &ColumnData { rows, values, validity: self.validity, range })
    }
}

/// The build side of a join.
#[derive(Debug)]
pub struct JoinTable {
    memory: DeviceMemory,
    columns: Vec<DeviceColumn>,
    rows: u32,
    low: i64,
    slots: u64,
    /// Offset of the keys by row, where they are hashed.
    keys: Option<u64>,
    /// Offset of a bit for each slot, where they are not.
    members: Option<u64>,
}

/// Place where linear probing starts; the kernels compute the same.
fn first_slot(key: i64, slots: u64) -> u64 {
    (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - slots.trailing_zeros())
}

impl JoinTable {
    /// Builds the table of rows with these keys, and copies it to a device. Fails if two rows have the same key, or a
    /// column has another number of rows.
    pub fn build(device: &dyn Device, keys: &[i64], columns: &[JoinColumn<'_>]) -> Result<Self> {
        let rows = u32::try_from(keys.len()).ok().filter(|rows| *rows < u32::MAX / 4);
        let rows = rows.ok_or_else(|| Error::Unsupported(format!("a join with {} rows to build", keys.len())))?;
        if let Some(column) = columns.iter().find(|column| column.values.len() != keys.len()) {
            let what = format!("a column of a join has {} rows, the keys {rows}", column.values.len());
            return Err(Error::Invalid(what));
        }
        let (low, high) = keys.iter().fold((i64::MAX, i64::MIN), |(low, high), key| (low.min(*key), high.max(*key)));
        let range = if keys.is_empty() { 0 } else { high.abs_diff(low).saturating_add(1) };
        let is_array = range <= SMALL_RANGE.max(u64::from(rows) * RANGE_PER_ROW);
        let slots = if is_array { range.max(1) } else { (u64::from(rows) * 2).next_power_of_two() };
        let mut table = vec![0_u32; slots as usize];
        for (row, key) in (0_u32..).zip(keys) {
            let mut slot = if is_array { key.abs_diff(low) } else { first_slot(*key, slots) };
            let first = slot;
            while let Some(other) = table[slot as usize].checked_sub(1) {
                if keys[other as usize] == *key {
                    return Err(Error::Unsupported(format!("a join whose build side has the key {key} twice")));
                }
                slot = (slot + 1) % slots;
                if slot.wrapping_sub(first) % slots > MOST_STEPS {
                    return Err(Error::Unsupported("a join whose keys hash alike".to_owned()));
                }
            }
            table[slot as usize] = row + 1;
        }
        let mut bytes = Vec::new();
        append_section(&mut bytes, &table.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<u8>>());
        let key_bytes = || keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<u8>>();
        let keys = (!is_array).then(|| append_section(&mut bytes, &key_bytes()));
        let members = is_array.then(|| {
            let words = table
                .chunks(32)
                .map(|slots| (0..).zip(slots).fold(0_u32, |word, (bit, row)| word | u32::from(*row != 0) << bit));
            append_section(&mut bytes, &words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
        });
        let mut memory = device.allocate(bytes.len() as u64)?;
        device.upload(&bytes, &mut memory, 0)?;
        let columns = columns.iter().map(|column| column.upload(device)).collect::<Result<_>>()?;
        Ok(Self { memory, columns, rows, low, slots, keys, members })
    }

    /// Number of rows.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Its columns.
    pub fn columns(&self) -> &[DeviceColumn] {
        &self.columns
    }

    /// Bytes of device memory, with its columns.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() + self.columns.iter().map(DeviceColumn::bytes).sum::<u64>()
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// What the kernels read: `columns` is the address of the layouts of its columns, `key` the chunk's column.
    pub(crate) fn layout(&self, columns: u64, key: u32) -> layout::Join {
        let place = |offset: Option<u64>| offset.map_or(0, |offset| self.memory.address() + offset);
        layout::Join {
            table: self.memory.address(),
            members: place(self.members),
            keys: place(self.keys),
            columns,
            low: self.low,
            slots: self.slots,
            shift: if self.keys.is_some() { 64 - self.slots.trailing_zeros() } else { 0 },
            key,
        }
    }
}
