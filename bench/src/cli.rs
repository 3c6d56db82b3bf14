//! The command line.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Parser, Subcommand};

use crate::bench::Bench;
use crate::db_benchmark::LEAST_ROWS;
use crate::error::{Error, Result};
use crate::experiments::{self, Experiment};
use crate::{report, side};

/// Measures Terrace: every figure is a ratio of two sides that ran in turn on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "terrace-bench",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  terrace-bench list
  terrace-bench run P1                               TPC-H in DRAM against DataFusion's memory tables
  terrace-bench run tpch-duckdb --scale 5 --json duckdb.json
  terrace-bench run P3 P7 P8 --scale 1,10 --report report/
  terrace-bench run all --quick --report report/     everything, small: the order of magnitude only
"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the experiments and the figures they measure
    List,
    /// Run experiments; ends with an error when one failed or was left out
    Run(RunOptions),
    /// One side of an experiment; started by `run`
    #[command(hide = true)]
    Side {
        /// What it is, as JSON
        spec: String,
    },
}

#[derive(Debug, clap::Args)]
struct RunOptions {
    /// Experiments or figures; `all` for everything
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Scale factor of TPC-H, instead of the one that each figure asks for; several run one after the other
    #[arg(long, value_name = "SF[,SF..]", value_delimiter = ',')]
    scale: Vec<f64>,
    /// Small data, and one round where time is short: shows the order of magnitude only
    #[arg(long)]
    quick: bool,
    /// Measured rounds, after one to warm up
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Sides of tiered-streams and slow-streams, the measured one first; at SF 10 each takes a quarter of an hour on the slow disk
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=4))]
    sides: u8,
    /// Rows of the large tables of db-benchmark, instead of its scale times ten million
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(LEAST_ROWS..))]
    rows: Option<u64>,
    /// What experiments draw from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads of each side [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write all rows there, as a JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with tables and plots there, and the raw samples
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Where generated data is kept for the next run
    #[arg(long, value_name = "DIR", default_value = "target/bench-data")]
    data_dir: PathBuf,
}

/// Parses the command line of this process and runs its command.
pub fn run() -> Result<()> {
    match Cli::parse().command {
        Command::List => list(),
        Command::Run(options) => run_experiments(&options)?,
        Command::Side { spec } => side::serve(&spec)?,
    }
    Ok(())
}

fn list() {
    for Experiment { name, figure, about, .. } in experiments::ALL {
        println!("{name:<16}{figure:<6}{about}");
    }
}

fn run_experiments(options: &RunOptions) -> Result<()> {
    let chosen = experiments::choose(&options.names)?;
    std::fs::create_dir_all(&options.data_dir).map_err(Error::path("create", &options.data_dir))?;
    let data_dir = options.data_dir.canonicalize().map_err(Error::path("read", &options.data_dir))?;
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let start = Instant::now();
    let mut bench = Bench::new(data_dir, options.quick, options.runs.max(1), threads);
    (bench.seed, bench.report_dir) = (options.seed, options.report.clone());
    bench.sides = usize::from(options.sides);
    bench.table_rows = options.rows;
    if bench.environment().load_average > 0.5 {
        eprintln!("note: the machine is busy (load {}); figures are noisy", bench.environment().load_average);
    }
    println!("{:<16}{:<5}{:<34}{:>10}  {:<8}  {:<11}", "experiment", "", "what", "ratio", "spread", "reach");
    let mut failed = Vec::new();
    let scales = if options.scale.is_empty() { vec![None] } else { options.scale.iter().copied().map(Some).collect() };
    let all: Vec<_> = scales.iter().flat_map(|scale| chosen.iter().map(|experiment| (*scale, *experiment))).collect();
    for (number, (scale, experiment)) in all.iter().enumerate() {
        let left = Bench::QUICK.saturating_sub(start.elapsed()) / (all.len() - number) as u32;
        bench.scale = *scale;
        bench.label = scale.filter(|_| scales.len() > 1).map_or_else(String::new, |scale| format!("SF {scale}: "));
        let begun = Instant::now();
        bench.begin(experiment.name, experiment.figure, begun + left);
        match (experiment.run)(&mut bench) {
            Ok(()) => {}
            Err(Error::Missing(why)) => bench.leave_out("", &why),
            Err(error) => {
                eprintln!("{} failed: {error}", experiment.name);
                failed.push(experiment.name);
            }
        }
        println!(
            "  {} took {:.1} minutes, with its preparations",
            experiment.name,
            begun.elapsed().as_secs_f64() / 60.0
        );
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&bench.rows)?;
        std::fs::write(file, text).map_err(Error::path("write", file))?;
    }
    if let Some(folder) = &options.report {
        report::write(folder, &bench)?;
    }
    outcome(&failed, &bench.left_out)
}

/// An error that names the experiments without figures, so that the caller sees that they are missing.
fn outcome(failed: &[&str], left_out: &[String]) -> Result<()> {
    let lists = [("failed", failed.join(", ")), ("left out", left_out.join(", "))];
    let lists: Vec<_> = lists.iter().filter(|(_, names)| !names.is_empty()).collect();
    let lists: Vec<String> = lists.iter().map(|(what, names)| format!("{what}: {names}")).collect();
    if lists.is_empty() { Ok(()) } else { Err(Error::failed(lists.join("; "))) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_left_out_is_an_error_as_what_failed_is() {
        assert!(outcome(&[], &[]).is_ok());
        let left_out = ["ycsb".to_owned(), "access-methods on a slowed disk".to_owned()];
        assert_eq!(outcome(&[], &left_out[..1]).unwrap_err().to_string(), "left out: ycsb");
        let both = outcome(&["moves"], &left_out).unwrap_err().to_string();
        assert_eq!(both, "failed: moves; left out: ycsb, access-methods on a slowed disk");
    }

    #[test]
    fn a_comparison_needs_a_peer() {
        let parsed = |sides: &str| Cli::try_parse_from(["terrace-bench", "run", "slow-streams", "--sides", sides]);
        assert!(parsed("2").is_ok() && parsed("1").is_err());
    }
}
