//! Equal results on this device and the host device.

use terrace_device::groups::Groups;
use terrace_device::host::{HostDevice, HostOptions};
use terrace_device::program::Program;
use terrace_device::{Device, Error, Result};

use crate::columns::Lay;
use crate::measure::Queries;
use crate::report::Report;
use crate::{ssb, tpch};

fn results(device: &dyn Device, queries: &Queries) -> Result<Vec<Groups>> {
    let run = |query: &crate::measure::Query| {
        let mut program = Program::new(device, &query.scan, &queries.chunks, &query.joins)?;
        program.launch(device)?;
        program.groups(device)
    };
    queries.queries.iter().map(run).collect()
}

/// Runs all queries on both devices, and in both lays; fails if results differ.
pub fn run(device: &dyn Device, scale: f64, seed: u64, report: &mut Report) -> Result<()> {
    let host = HostDevice::new(HostOptions { memory_bytes: 8 << 30, ..HostOptions::default() });
    let mut count = 0;
    for make in [tpch::queries, ssb::queries] {
        let expected = results(&host, &make(&host, Lay::Plain, scale, seed)?)?;
        for lay in [Lay::Plain, Lay::Packed] {
            let queries = make(device, lay, scale, seed)?;
            for ((query, found), expected) in queries.queries.iter().zip(results(device, &queries)?).zip(&expected) {
                if found != *expected {
                    let what = format!("{} {}: this device and the host device differ", queries.benchmark, query.name);
                    return Err(Error::Invalid(what));
                }
                count += 1;
            }
        }
    }
    report.fact("equal_results", count.into());
    report.fact("equal_results_scale", scale.into());
    Ok(())
}
