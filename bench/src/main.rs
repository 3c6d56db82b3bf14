//! `terrace-bench`: every figure of Terrace, as a ratio of two sides measured in turn on one machine.
//!
//! ```text
//!   cli         list, run
//!   experiments one noun per file; each names the figure it measures
//!   bench       what an experiment works with: options, children, rows
//!   child side  a side in its own process: JSON lines over stdin and stdout
//!   cgroup      limits on a side's memory and disk
//!   data tpch   TPC-H, generated and clustered once, read by all sides
//!   tenants tpcds  the same for TPC-H of ten tenants, and for TPC-DS
//!   order_line  ORDER_LINE of CH-benCHmark, and what of it is hot
//!   row report  results, as JSON and as one HTML page
//!   plot bars heat_map  drawings in it
//! ```

// Benchmarks measure the machine's own time; there is nothing to simulate.
#![allow(clippy::disallowed_methods)]

mod bars;
mod bench;
mod cgroup;
mod child;
mod cli;
mod data;
mod environment;
mod error;
mod experiments;
mod heat_map;
mod order_line;
mod plot;
mod report;
mod row;
mod server;
mod side;
mod statistics;
mod tenants;
mod tpcds;
mod tpch;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    terrace_server::allocator::keep_freed_memory();
    match cli::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
