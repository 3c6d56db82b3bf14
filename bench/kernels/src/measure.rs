//! Times launches.

use terrace_device::program::{ChunkColumns, Program, ScanJoin};
use terrace_device::scan::Scan;
use terrace_device::{Device, Result};
use terrace_model::clock::{Clock, SystemClock};

use crate::columns::{self, Lay};
use crate::report::{QueryRow, Report};

/// A query over a table on the device.
#[derive(Debug)]
pub struct Query {
    /// Its name in the benchmark.
    pub name: &'static str,
    /// What it computes.
    pub scan: Scan,
    /// Its joins.
    pub joins: Vec<ScanJoin>,
    /// Columns of the chunks that it reads.
    pub reads: Vec<u32>,
}

/// Queries over one table.
#[derive(Debug)]
pub struct Queries {
    /// The benchmark that they are of.
    pub benchmark: &'static str,
    /// The table.
    pub chunks: Vec<ChunkColumns>,
    /// The queries.
    pub queries: Vec<Query>,
}

/// Microseconds of each of `launches` launches, the mean of those of the better half of five rounds: the first rounds
/// of a program find the clocks low.
pub fn launch_us(device: &dyn Device, launches: u32, mut launch: impl FnMut() -> Result<()>) -> Result<f64> {
    let clock = SystemClock::default();
    launch()?;
    device.finish()?;
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let start = clock.now_us();
        for _ in 0..launches.max(1) {
            launch()?;
        }
        device.finish()?;
        rounds.push((clock.now_us() - start) as f64 / f64::from(launches.max(1)));
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[..3].iter().sum::<f64>() / 3.0)
}

/// Times all queries; `read_rate` is what the device reads, in bytes per microsecond.
pub fn queries(
    device: &dyn Device,
    queries: Queries,
    lay: Lay,
    read_rate: f64,
    launches: u32,
    report: &mut Report,
) -> Result<()> {
    let clock = SystemClock::default();
    let rows = queries.chunks.iter().map(|chunk| u64::from(chunk.rows)).sum();
    for query in &queries.queries {
        let start = clock.now_us();
        let mut program = Program::new(device, &query.scan, &queries.chunks, &query.joins)?;
        let prepare_us = (clock.now_us() - start) as f64;
        program.launch(device)?;
        let found = program.groups(device)?;
        let first_us = (clock.now_us() - start) as f64;
        let us = launch_us(device, launches, || program.launch(device))?;
        let read = columns::bytes(&queries.chunks, &query.reads);
        let joined: u64 = query.joins.iter().map(|join| join.table.bytes()).sum();
        let counted = found.iter().map(|(_, measures)| measures.last().copied().unwrap_or(0)).sum::<i128>();
        report.query(QueryRow {
            benchmark: queries.benchmark,
            query: query.name,
            lay: format!("{lay:?}").to_lowercase(),
            places: format!("{:?}", program.places()).to_lowercase(),
            rows,
            selected: counted as u64,
            bytes: read,
            table_bytes: joined,
            prepare_us,
            first_us,
            us,
            bytes_per_us: (read + joined) as f64 / us,
            share_of_ceiling: (read + joined) as f64 / us / read_rate,
        });
    }
    Ok(())
}
