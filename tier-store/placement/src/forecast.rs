//! Forecasts how long the statements of a workload would have taken with another placement. Pure.
//!
//! A scan passes its rows on to the rest of the statement as they arrive, and its reads continue meanwhile: two stages of a
//! pipeline that passes on one window of reads at a time. It takes as long as the slower stage, plus the faster one for
//! a single window.
//!
//! ```text
//!   work(placement)  = fixed + (reading + decompressing + unpacking + slower memory) / partitions     cores
//!   reads(placement) = latency + time of the reads from home                             device, kept busy
//!   span(placement)  = max(work, reads) + min(work, reads) / windows        windows = bytes / depth of the device
//!   time(placement)  = measured + sum over scans of (span(placement) - span(as it was))
//! ```
//!
//! Reading itself takes CPU time (submission, page handling, checksums); calibration measures it over all threads.
//!
//! `fixed` is the measured span minus the time for which its partitions waited, and minus the work that the model gives
//! for the placement at that time. The time of the device for a read depends on its pattern and size, as calibrated
//! with many reads at once: scattered pages are slower than whole columns. The bytes that a scan reads from home follow
//! from the number of segments that it read of each column and the share of the column's reads that go to segments at
//! home, by heat. Nothing else about a statement is used.

use std::collections::HashMap;

use terrace_model::{ColumnId, MAX_TIERS, Pattern, TableId, TierId};
use terrace_storage::io::Depth;
use terrace_storage::tier::codec::Form;

use super::calibrate::Calibration;
use super::cost::{Extent, TierCost, share_read};
use super::epoch::{Inputs, SegmentInput, reads_us};
use super::place::Place;
use super::workload::{ScanProfile, StatementProfile, Workload};
use crate::heat::decay::SegmentHeat;

/// Performance of the home's device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// Time before the first byte of a read, in microseconds.
    pub latency_us: f64,
    /// Bytes per microsecond when it is kept busy with large reads.
    pub bytes_per_us: f64,
    /// Cost of its reads by pattern.
    pub cost: TierCost,
    /// Bytes in flight that keep it busy: a scan waits for so many at a time.
    pub window_bytes: f64,
    /// CPU time to read and check a byte, in microseconds.
    pub work_us_per_byte: f64,
}

impl Device {
    /// The device as calibrated; `None` without a profile of any tier.
    pub(super) fn from_calibration(calibration: &Calibration) -> Option<Self> {
        let home = calibration.tiers.last()?;
        let fastest = calibration.tiers.first()?;
        let [sequential, .., point] = home.cost.patterns;
        let [memory, ..] = fastest.cost.patterns;
        let work_us_per_byte = home.busy.and_then(|busy| busy.cores_us_per_byte).unwrap_or_default();
        Some(Self {
            latency_us: point.latency_us,
            bytes_per_us: home.busy.map_or(sequential.bytes_per_us, |busy| busy.bytes_per_us),
            cost: home.cost,
            window_bytes: home.busy.map_or(Depth::LEAST, |busy| busy.depth_bytes) as f64,
            // Where it is not known, the estimate is one more pass over the bytes in memory.
            work_us_per_byte: if work_us_per_byte > 0.0 {
                work_us_per_byte
            } else {
                1.0 / memory.bytes_per_us.max(1e-3)
            },
        })
    }
}

/// Cost of the reads of a segment, per epoch.
#[derive(Debug, Clone, Copy, Default)]
struct SegmentReads {
    /// Position of the column in [`Forecast::columns`].
    column: u32,
    reads: f64,
    /// Bytes read from the device if the segment is at home.
    device_bytes: f64,
    /// Time of the device for them, in microseconds.
    device_us: f64,
    /// Work of a core to read and check these bytes, and to decompress or unpack them, in microseconds.
    home_work_us: f64,
    /// Additional time on each memory tier compared with the fastest one, in microseconds: in the plain form, and in the packed
    /// one.
    slower_us: [[f64; 2]; MAX_TIERS],
    /// The same in the form that the segment usually has there.
    usual_us: [f64; MAX_TIERS],
}

/// Cost of one read of a segment of a column, on average under a placement.
#[derive(Debug, Clone, Copy, Default)]
struct PerRead {
    device_bytes: f64,
    device_us: f64,
    work_us: f64,
}

/// Sums of [`SegmentReads`] over a column: its cost where all of it lies on one tier.
#[derive(Debug, Clone, Copy, Default)]
struct ColumnSums {
    reads: f64,
    home_work_us: f64,
    device_bytes: f64,
    device_us: f64,
    usual_us: [f64; MAX_TIERS],
}

/// A statement prepared for forecasts.
#[derive(Debug)]
struct Statement {
    elapsed_us: f64,
    scans: Vec<Scan>,
}

/// A scan prepared for forecasts.
#[derive(Debug)]
struct Scan {
    /// Work without that which depends on the placement, in microseconds.
    fixed_work_us: f64,
    /// The span that the model predicts for the placement at that time.
    modelled_us: f64,
    partitions: f64,
    /// Positions of columns, and the number of their segments that were read.
    reads: Vec<(u32, f64)>,
}

/// Reads from the device of the home.
#[derive(Debug, Clone, Copy)]
struct DeviceReads {
    bytes: f64,
    /// Time of the device for them, in microseconds.
    us: f64,
}

/// Forecasts for one workload.
#[derive(Debug)]
pub(super) struct Forecast {
    segments: Vec<SegmentReads>,
    columns: Vec<ColumnSums>,
    statements: Vec<Statement>,
    device: Device,
    home: TierId,
}

impl Forecast {
    /// Prepares forecasts for a workload over the segments of `inputs`; `stored_bytes` are the bytes of each of them in its
    /// file.
    pub(super) fn new(inputs: &Inputs, stored_bytes: &[u64], device: Device, workload: &Workload) -> Self {
        let mut known: HashMap<(TableId, ColumnId), u32> = HashMap::new();
        let mut columns: Vec<ColumnSums> = Vec::new();
        for segment in &inputs.segments {
            let next = known.len() as u32;
            let at = *known.entry((segment.key.table, segment.key.column)).or_insert(next);
            if at == next {
                columns.push(ColumnSums::default());
            }
            if let Some(column) = columns.get_mut(at as usize) {
                column.reads += f64::from(segment.heat.total());
            }
        }
        let is_read: Vec<bool> = columns.iter().map(|column| column.reads > 0.0).collect();
        columns.fill(ColumnSums::default());
        let mut segments = Vec::with_capacity(inputs.segments.len());
        for (segment, stored) in inputs.segments.iter().zip(stored_bytes) {
            let at = known.get(&(segment.key.table, segment.key.column)).copied().unwrap_or_default();
            let heat = if is_read.get(at as usize) == Some(&true) {
                segment.heat
            } else {
                SegmentHeat::full_scan(segment.rows)
            };
            let reads = segment_reads(inputs, segment, *stored, at, heat, device);
            if let Some(column) = columns.get_mut(at as usize) {
                column.add(&reads);
            }
            segments.push(reads);
        }
        let mut forecast = Self { segments, columns, statements: Vec::new(), device, home: inputs.home() };
        let statements = workload.statements.iter();
        forecast.statements = statements.map(|profile| forecast.statement(profile, &known)).collect();
        forecast
    }

    /// Number of statements.
    pub(super) fn statements(&self) -> usize {
        self.statements.len()
    }

    fn statement(&self, profile: &StatementProfile, known: &HashMap<(TableId, ColumnId), u32>) -> Statement {
        let scans = profile.scans.iter().map(|scan| self.scan(scan, known)).collect();
        Statement { elapsed_us: profile.elapsed_us, scans }
    }

    fn scan(&self, profile: &ScanProfile, known: &HashMap<(TableId, ColumnId), u32>) -> Scan {
        let partitions = f64::from(profile.partitions.max(1));
        let mut reads = Vec::new();
        let mut work_us = 0.0;
        let mut device_bytes = 0.0;
        let mut device_us = 0.0;
        for read in &profile.reads {
            // A table that was dropped since keeps its measured time.
            let Some(at) = known.get(&(read.table, read.column)).copied() else { continue };
            let Some(column) = self.columns.get(at as usize) else { continue };
            reads.push((at, read.total() as f64));
            device_bytes += read.cold_bytes as f64;
            device_us += read.cold_bytes as f64 * column.device_us_per_byte(self.device);
            for (id, count) in (0_u8..).zip(read.segments).filter(|(_, count)| *count > 0) {
                work_us += f64::from(count) * column.work_us(TierId(id), self.home);
            }
        }
        let work_us = work_us / partitions;
        let fixed_work_us = (profile.span_us - profile.wait_us / partitions - work_us).max(0.0);
        let modelled_us = self.span_us(fixed_work_us + work_us, DeviceReads { bytes: device_bytes, us: device_us });
        Scan { fixed_work_us, modelled_us, partitions, reads }
    }

    /// The span of a scan with work of `work_us` and these reads from home.
    fn span_us(&self, work_us: f64, reads: DeviceReads) -> f64 {
        if reads.bytes <= 0.0 {
            return work_us;
        }
        let reads_us = self.device.latency_us + reads.us;
        let windows = (reads.bytes / self.device.window_bytes.max(1.0)).max(1.0);
        work_us.max(reads_us) + work_us.min(reads_us) / windows
    }

    /// The time of each statement, in microseconds, with each segment at its place in `placed`.
    pub(super) fn times_us(&self, placed: &[Place]) -> Vec<f64> {
        let mut per_read = vec![PerRead::default(); self.columns.len()];
        for (segment, place) in self.segments.iter().zip(placed) {
            let (Some(column), Some(sums)) =
                (per_read.get_mut(segment.column as usize), self.columns.get(segment.column as usize))
            else {
                continue;
            };
            let reads = sums.reads.max(f64::MIN_POSITIVE);
            if place.tier == self.home {
                column.device_bytes += segment.device_bytes / reads;
                column.device_us += segment.device_us / reads;
                column.work_us += segment.home_work_us / reads;
            } else {
                let [plain, packed] = segment.slower_us.get(usize::from(place.tier.0)).copied().unwrap_or_default();
                let slower_us = if place.form == Form::Plain { plain } else { packed };
                column.work_us += slower_us / reads;
            }
        }
        let change_us = |scan: &Scan| {
            let mut bytes = 0.0;
            let mut device_us = 0.0;
            let mut work_us = 0.0;
            for (column, count) in &scan.reads {
                let per_read = per_read.get(*column as usize).copied().unwrap_or_default();
                bytes += count * per_read.device_bytes;
                device_us += count * per_read.device_us;
                work_us += count * per_read.work_us;
            }
            let reads = DeviceReads { bytes, us: device_us };
            self.span_us(scan.fixed_work_us + work_us / scan.partitions, reads) - scan.modelled_us
        };
        let time_us = |statement: &Statement| {
            (statement.elapsed_us + statement.scans.iter().map(change_us).sum::<f64>()).max(0.0)
        };
        self.statements.iter().map(time_us).collect()
    }
}

impl ColumnSums {
    fn add(&mut self, reads: &SegmentReads) {
        self.reads += reads.reads;
        self.home_work_us += reads.home_work_us;
        self.device_bytes += reads.device_bytes;
        self.device_us += reads.device_us;
        for (sum, us) in self.usual_us.iter_mut().zip(reads.usual_us) {
            *sum += us;
        }
    }

    /// Time of the device per byte of its reads.
    fn device_us_per_byte(&self, device: Device) -> f64 {
        match self.device_bytes > 0.0 {
            true => self.device_us / self.device_bytes,
            false => 1.0 / device.bytes_per_us.max(1e-3),
        }
    }

    /// Additional work on one read of a segment on `tier`, compared with the fastest tier.
    fn work_us(&self, tier: TierId, home: TierId) -> f64 {
        let sum = match tier == home {
            true => self.home_work_us,
            false => self.usual_us.get(usize::from(tier.0)).copied().unwrap_or(0.0),
        };
        sum / self.reads.max(f64::MIN_POSITIVE)
    }
}

/// Cost of the reads of a segment, of which its file holds `stored` bytes; `column` is its position in
/// [`Forecast::columns`].
fn segment_reads(
    inputs: &Inputs,
    segment: &SegmentInput,
    stored: u64,
    column: u32,
    heat: SegmentHeat,
    device: Device,
) -> SegmentReads {
    let reads = f64::from(heat.total());
    let at_home = Extent { bytes: stored, rows: segment.rows, whole: segment.whole_at_home };
    let device_bytes: f64 = Pattern::ALL
        .into_iter()
        .zip(heat.accesses.iter().zip(heat.values))
        .filter(|(_, (accesses, _))| **accesses > 0.0)
        .map(|(pattern, (accesses, values))| {
            let values = f64::from(values) / f64::from(*accesses);
            f64::from(*accesses) * stored as f64 * share_read(pattern, at_home, values)
        })
        .sum();
    let device_us = device.cost.expected_us(&heat, at_home);
    // The bytes that planning adds to those of a compressed column stand for the time to decompress it.
    let decompression_us = segment.home_bytes.saturating_sub(stored) as f64 / device.bytes_per_us.max(1e-3);
    let share = if stored > 0 { device_bytes / stored as f64 } else { 0.0 };
    let mut slower_us = [[0.0; 2]; MAX_TIERS];
    let mut usual_us = [0.0; MAX_TIERS];
    let at = |place: Place| reads_us(inputs, segment, &heat, place);
    // Work at home is counted from zero, and so is that of a packed copy, also where the segment may have no plain one.
    let least_us = Form::ALL.map(|form| at(Place { tier: TierId(0), form })).into_iter().fold(f64::INFINITY, f64::min);
    let memory = (0..inputs.home().0).map(TierId);
    for ((tier, forms), usual) in memory.zip(&mut slower_us).zip(&mut usual_us) {
        *forms = Form::ALL.map(|form| (at(Place { tier, form }) - least_us).max(0.0));
        *usual = (at(segment.usual_place(tier)) - least_us).max(0.0);
    }
    let unpacking_us =
        segment.packed_at_home.map_or(0.0, |values| inputs.form_cost.unpacking_us(&heat, segment.rows, values));
    let home_work_us = share * decompression_us + unpacking_us + device_bytes * device.work_us_per_byte;
    SegmentReads { column, reads, device_bytes, device_us, home_work_us, slower_us, usual_us }
}

#[cfg(test)]
mod tests;
