//! Measures what a device does: transfers, the scan kernel, launches. Placement weighs images by these rates.

use std::sync::Arc;

use terrace_model::clock::Clock;

use crate::column::{ColumnData, DeviceColumn, Form, Values};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::program::{ChunkColumns, Program};
use crate::scan::{ColumnRef, Measure, Scan};

/// Rounds of each measurement, of which the fastest counts: others work on the machine, too.
const ROUNDS: u32 = 3;
/// Launches of a round.
const LAUNCHES: u32 = 10;
/// Bytes that are measured with on a device: several times any cache.
const DEVICE_BYTES: u64 = 256 << 20;
/// Bytes that are measured with on an emulated one, which is slow.
const EMULATED_BYTES: u64 = 8 << 20;
/// Fewer free bytes than this are too few to measure anything.
const LEAST_BYTES: u64 = 64 << 10;
/// Bytes of a value.
const VALUE_BYTES: u64 = 4;

/// What a device does in a microsecond, and what a launch takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Bytes per microsecond from the host to the device.
    pub upload_bytes_per_us: f64,
    /// Bytes per microsecond from the device to the host.
    pub download_bytes_per_us: f64,
    /// Bytes per microsecond that the scan kernel reads.
    pub scan_bytes_per_us: f64,
    /// Microseconds of a launch over one row.
    pub launch_us: f64,
}

impl Rates {
    /// Plausible rates where they cannot be measured: a GPU behind PCIe 4.
    pub const TYPICAL: Self = Self {
        upload_bytes_per_us: 20_000.0,
        download_bytes_per_us: 20_000.0,
        scan_bytes_per_us: 1_000_000.0,
        launch_us: 10.0,
    };

    /// Measures a device; takes some tens of milliseconds, and up to half of the free bytes.
    ///
    /// # Errors
    /// Those of the device; [`Error::OutOfMemory`] where too few bytes are free.
    pub fn measure(device: &dyn Device, clock: &dyn Clock) -> Result<Self> {
        let free_bytes = device.free_bytes()?;
        let most = if device.properties().emulated { EMULATED_BYTES } else { DEVICE_BYTES };
        let bytes = (free_bytes / 4).min(most) / VALUE_BYTES * VALUE_BYTES;
        if bytes < LEAST_BYTES {
            let device = device.properties().name.clone();
            return Err(Error::OutOfMemory { device, asked_bytes: 4 * LEAST_BYTES, free_bytes });
        }
        let rows = (bytes / VALUE_BYTES) as u32;
        let values: Vec<u8> = (0..rows).flat_map(|row| (row % 1000).to_le_bytes()).collect();
        let [upload_us, download_us] = transfers_us(device, clock, &values)?;
        let launch_us = scan_us(device, clock, values.get(..VALUE_BYTES as usize).unwrap_or_default())?;
        let scan_us = scan_us(device, clock, &values)?;
        let rate = |us: f64| bytes as f64 / us.max(1e-3);
        Ok(Self {
            upload_bytes_per_us: rate(upload_us),
            download_bytes_per_us: rate(download_us),
            // A scan of many bytes takes longer than a launch; where noise says otherwise, at least a tenth is reading.
            scan_bytes_per_us: rate((scan_us - launch_us).max(scan_us / 10.0)),
            launch_us,
        })
    }
}

/// Microseconds to copy bytes to the device, and back.
fn transfers_us(device: &dyn Device, clock: &dyn Clock, bytes: &[u8]) -> Result<[f64; 2]> {
    let mut memory = device.allocate(bytes.len() as u64)?;
    let mut back = vec![0; bytes.len()];
    let mut least = [f64::MAX; 2];
    for _ in 0..ROUNDS {
        let upload_us = time_us(clock, || {
            device.upload(bytes, &mut memory, 0)?;
            device.finish()
        })?;
        let download_us = time_us(clock, || device.download(&memory, 0, &mut back))?;
        least = [least[0].min(upload_us), least[1].min(download_us)];
    }
    Ok(least)
}

/// Microseconds of a launch that filters and adds up the numbers of 32 bits in `values`.
fn scan_us(device: &dyn Device, clock: &dyn Clock, values: &[u8]) -> Result<f64> {
    let rows = (values.len() as u64 / VALUE_BYTES) as u32;
    let data = ColumnData { rows, values: Values::Plain(Form::I32, values), validity: None, range: 0..=999 };
    let column = Arc::new(DeviceColumn::upload(device, &data)?);
    let chunk = ChunkColumns { rows, columns: vec![column.into()] };
    let number = ColumnRef::Chunk(0);
    let measures = vec![Measure::sum(vec![number.factor()])];
    let scan = Scan { filter: number.between(0, 499), keys: Vec::new(), measures };
    let mut program = Program::new(device, &scan, &[chunk], &[])?;
    program.launch(device)?;
    device.finish()?;
    let mut least = f64::MAX;
    for _ in 0..ROUNDS {
        let round_us = time_us(clock, || {
            (0..LAUNCHES).try_for_each(|_| program.launch(device))?;
            device.finish()
        })?;
        least = least.min(round_us / f64::from(LAUNCHES));
    }
    Ok(least)
}

/// Microseconds that something takes.
fn time_us(clock: &dyn Clock, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start_us = clock.now_us();
    work()?;
    Ok(clock.now_us().saturating_sub(start_us) as f64)
}
