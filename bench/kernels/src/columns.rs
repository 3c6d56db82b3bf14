//! Makes columns on a device, chunk by chunk, on all processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::ValueEnum;
use rand::SeedableRng;
use rand::rngs::StdRng;
use terrace_device::column::{ColumnData, DeviceColumn, Form, Packed, Values};
use terrace_device::program::{ChunkColumn, ChunkColumns};
use terrace_device::{Device, Error, Result};

/// Rows of a chunk, as Terrace seals them.
const CHUNK_ROWS: u32 = 65_536;

/// How columns lie in the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lay {
    /// In the narrowest type that Terrace stores them in.
    Plain,
    /// A base and few bits a value.
    Packed,
}

/// A column: its form when it lies plain, and the values of a chunk.
pub type Made = (Form, Vec<i64>);

/// Copies a column to a device.
pub fn upload(device: &dyn Device, lay: Lay, (form, values): &Made) -> Result<DeviceColumn> {
    let (low, high) = (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(-1));
    let mut data =
        ColumnData { rows: values.len() as u32, values: Values::Plain(*form, &[]), validity: None, range: low..=high };
    if lay == Lay::Packed {
        let packed =
            Packed::new(values).ok_or_else(|| Error::Invalid("a column is too wide to be packed".to_owned()))?;
        data.values = Values::Packed(&packed);
        return DeviceColumn::upload(device, &data);
    }
    let mut bytes = Vec::with_capacity(values.len() * form.width());
    values.iter().for_each(|value| form.write(*value, &mut bytes));
    data.values = Values::Plain(*form, &bytes);
    DeviceColumn::upload(device, &data)
}

/// Makes a table of `rows` rows; `make` gives the columns of a chunk with so many rows.
pub fn table(
    device: &dyn Device,
    lay: Lay,
    rows: u64,
    seed: u64,
    make: impl Fn(&mut StdRng, usize) -> Vec<Made> + Sync,
) -> Result<Vec<ChunkColumns>> {
    let count = rows.div_ceil(CHUNK_ROWS.into()) as u32;
    let next = AtomicU32::new(0);
    let chunk = |number: u32| -> Result<(u32, ChunkColumns)> {
        let mut rng = StdRng::seed_from_u64(seed ^ (u64::from(number) + 1) << 20);
        let first = u64::from(number) * u64::from(CHUNK_ROWS);
        let rows = (rows - first).min(CHUNK_ROWS.into()) as u32;
        let columns = make(&mut rng, rows as usize);
        let columns = columns.iter().map(|made| Ok(ChunkColumn::from(Arc::new(upload(device, lay, made)?))));
        Ok((number, ChunkColumns { rows, columns: columns.collect::<Result<_>>()? }))
    };
    let work = || -> Result<Vec<(u32, ChunkColumns)>> {
        let numbers =
            std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < count));
        numbers.map(chunk).collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let made = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .filter_map(|_| std::thread::Builder::new().name("make-data".to_owned()).spawn_scoped(scope, work).ok())
            .collect();
        let mut made = vec![work()];
        made.extend(workers.into_iter().map(|worker| {
            worker.join().unwrap_or_else(|_| Err(Error::Invalid("a thread that makes data stopped".to_owned())))
        }));
        made
    });
    let mut chunks = made.into_iter().collect::<Result<Vec<_>>>()?.concat();
    chunks.sort_by_key(|(number, _)| *number);
    Ok(chunks.into_iter().map(|(_, chunk)| chunk).collect())
}

/// Bytes of some columns of all chunks.
pub fn bytes(chunks: &[ChunkColumns], columns: &[u32]) -> u64 {
    let of_chunk =
        |chunk: &ChunkColumns| columns.iter().map(|column| chunk.columns[*column as usize].column.bytes()).sum::<u64>();
    chunks.iter().map(of_chunk).sum()
}
