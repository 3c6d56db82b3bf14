//! `terrace-bench`: measures every figure of Terrace as a ratio of two sides, in turn on one machine.
//!
//! - [`bars`]: horizontal bars as SVG
//! - [`bench`](mod@bench): the context of an experiment: options, children, rows
//! - [`black_friday`]: TPC-H with days that have half of the orders of their year
//! - [`cgroup`]: limits on a side's memory and disk
//! - [`child`]: a side in its own process: JSON lines over stdin and stdout
//! - [`cli`]: the commands `list` and `run`
//! - [`data`]: generated benchmarks on disk, clustered once, read by all sides
//! - [`db_benchmark`]: tables and queries of db-benchmark
//! - [`environment`]: the machine and the versions of a row
//! - [`error`]: errors of this crate
//! - [`experiments`]: one experiment or group per file, with its figure
//! - [`heat_map`]: heat maps as SVG
//! - [`look_ups`]: look-ups of a row at random times over Flight SQL
//! - [`order_line`]: ORDER_LINE of CH-benCHmark and its hot lines
//! - [`plot`]: line plots as SVG
//! - [`report`]: results as one HTML page
//! - [`row`]: results as rows and samples
//! - [`server`]: a running `terrace serve`
//! - [`side`]: the sides as child processes
//! - [`ssb`]: queries and tables of the Star Schema Benchmark
//! - [`statistics`]: mean, median, percentiles, spread, geometric mean
//! - [`streams`]: statements that run at the same time over Flight SQL
//! - [`tenants`]: TPC-H of ten tenants
//! - [`tpcds`]: TPC-DS on disk
//! - [`tpch`]: queries and tables of TPC-H
//! - [`vector`]: a vector in a hot, a warm and a cold part

// Benchmarks measure the machine's own time; there is nothing to simulate.
#![allow(clippy::disallowed_methods)]

mod bars;
mod bench;
mod black_friday;
mod cgroup;
mod child;
mod cli;
mod data;
mod db_benchmark;
mod environment;
mod error;
mod experiments;
mod heat_map;
mod look_ups;
mod order_line;
mod plot;
mod report;
mod row;
mod server;
mod side;
mod ssb;
mod statistics;
mod streams;
mod tenants;
mod tpcds;
mod tpch;
mod vector;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    terrace_server::allocator::use_memory_freely(true);
    match cli::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
