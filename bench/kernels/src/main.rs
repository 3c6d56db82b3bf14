//! Measures the kernels of `terrace-device` on a GPU, or on the host device, over data made in memory.
//!
//! A program of its own, without DataFusion, because it travels to machines with a GPU: a few MB instead of 200.
//!
//! - [`ceilings`]: what the device can do
//! - [`check`]: equal results on this device and the host device
//! - [`columns`]: makes columns on a device, chunk by chunk
//! - [`measure`]: times launches
//! - [`report`]: prints what was measured
//! - [`ssb`]: data and queries of the Star Schema Benchmark
//! - [`tpch`]: data and queries of TPC-H

mod ceilings;
mod check;
mod columns;
mod measure;
mod report;
mod ssb;
mod tpch;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use terrace_device::cuda::CudaDevice;
use terrace_device::host::{HostDevice, HostOptions};
use terrace_device::{Device, Error, Result};

use columns::Lay;
use report::Report;

/// Measures scan kernels on a GPU, or on the processor in place of one.
///
/// Data are made in memory from a seed. Each query is launched several times, and its time is set against the time
/// that the device needs to read the same bytes.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Ceilings, Part::Check, Part::Scan, Part::Star])]
    parts: Vec<Part>,
    /// "host", or "cuda:" and the number of a GPU.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Scale factor; 1 is 6 million rows of lineitem or lineorder. Part `check` takes at most a tenth of it.
    #[arg(long, default_value_t = 30.0)]
    scale: f64,
    /// Launches of each query that are timed.
    #[arg(long, default_value_t = 20)]
    launches: u32,
    /// How columns lie in the device's memory.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Lay::Plain, Lay::Packed])]
    lay: Vec<Lay>,
    /// Seed of the data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Speed of the device's memory, of transfers, of a launch.
    Ceilings,
    /// All queries on this device and on the host device, at a small scale: the results must be equal.
    Check,
    /// TPC-H Q1 and Q6: figure G1.
    Scan,
    /// The 13 queries of the Star Schema Benchmark: figure G2.
    Star,
}

fn open(name: &str) -> Result<Arc<dyn Device>> {
    if name == "host" {
        return Ok(Arc::new(HostDevice::new(HostOptions { memory_bytes: 16 << 30, ..HostOptions::default() })));
    }
    let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
    let number =
        number.ok_or_else(|| Error::Invalid(format!("no device '{name}': there are host, cuda:0, cuda:1, ..")))?;
    Ok(Arc::new(CudaDevice::open(number)?))
}

fn run(arguments: &Arguments) -> Result<()> {
    let device = open(&arguments.device)?;
    let mut report = Report::new(device.properties(), arguments.json);
    let mut read_rate = None;
    for part in &arguments.parts {
        match part {
            Part::Ceilings => ceilings::measure(&*device, arguments.launches, &mut report)?,
            Part::Check => check::run(&*device, arguments.scale.min(3.0) / 10.0, arguments.seed, &mut report)?,
            Part::Scan | Part::Star => {
                let rate = match read_rate {
                    Some(rate) => rate,
                    None => ceilings::read_rate(&*device, arguments.launches)?,
                };
                read_rate = Some(rate);
                for lay in &arguments.lay {
                    let queries = match part {
                        Part::Scan => tpch::queries(&*device, *lay, arguments.scale, arguments.seed)?,
                        _ => ssb::queries(&*device, *lay, arguments.scale, arguments.seed)?,
                    };
                    measure::queries(&*device, queries, *lay, rate, arguments.launches, &mut report)?;
                }
            }
        }
    }
    report.finish();
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
