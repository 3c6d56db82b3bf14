//! The Terrace server: command line, configuration, start and stop, HTTP.
//!
//! ```text
//!   cli -> config -> memory -> instance (store + engine + CPU runtime) -> serve (Flight, HTTP on the network runtime)
//!       \-> load, sql, demo -> client (Flight SQL)
//!       \-> maintenance (check, backup, restore, rebuild-catalog, du) -> files, or http_client
//! ```
//!
//! - [`adapter`]: the engine behind Flight
//! - [`advise`]: `terrace advise`
//! - [`allocator`]: settings of the allocator
//! - `bar`: a bar on standard error that counts bytes
//! - [`calibrate`]: `terrace calibrate`
//! - [`cli`]: the command line
//! - [`client`]: the Flight SQL client
//! - [`config`]: the configuration
//! - [`control_group`]: what the kernel charges to the control group of this process
//! - [`demo`]: `terrace demo`
//! - [`error`]: errors of this crate
//! - [`health`]: `terrace health`
//! - [`history`]: the last hours of the server
//! - [`http`]: the HTTP side of the server
//! - [`http_client`]: the HTTP client of the command line
//! - [`instance`]: a store with its engine
//! - `layout`: text of reports
//! - [`load`]: `terrace load`
//! - [`logging`]: the log
//! - [`maintenance`]: check, backup, restore, rebuild-catalog, du
//! - [`memory`]: the memory limit and its parts
//! - [`memory_watch`]: stops statements before memory runs out
//! - [`metrics`]: Prometheus metrics
//! - [`moves`]: `terrace moves`
//! - [`network`]: connections, with and without TLS
//! - `oidc`: the issuer of tokens: where its keys come from
//! - [`placement`]: `terrace placement`
//! - [`profiles`]: where a command finds its server, and who asks
//! - [`serve`]: start and stop of a server
//! - [`sql`]: `terrace sql`
//! - [`ssb`]: queries and generators of the Star Schema Benchmark
//! - [`status`]: `terrace status`
//! - [`terminal`]: standard output and standard error
//! - [`tiers`]: `terrace tiers`
//! - [`top`]: `terrace top`
//! - [`tpch`]: TPC-H queries and generators
//! - [`traces`]: spans for an OpenTelemetry collector
//! - [`users`]: `terrace user`
//!
//! The binary is a thin shell around [`main`]. Tests use [`serve::Server`] in their own process.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod adapter;
pub mod advise;
pub mod allocator;
mod bar;
pub mod calibrate;
pub mod cli;
pub mod client;
pub mod config;
pub mod control_group;
pub mod demo;
pub mod error;
pub mod health;
pub mod history;
pub mod http;
pub mod http_client;
pub mod instance;
mod layout;
pub mod load;
pub mod logging;
pub mod maintenance;
pub mod memory;
pub mod memory_watch;
pub mod metrics;
pub mod moves;
pub mod network;
mod oidc;
pub mod placement;
pub mod profiles;
pub mod serve;
pub mod sql;
pub mod ssb;
pub mod status;
pub mod terminal;
pub mod tiers;
pub mod top;
pub mod tpch;
pub mod traces;
pub mod users;

use std::process::ExitCode;

pub(crate) use terrace_tier_store::units;

pub use error::{Error, Result};

/// Runs the command line of this process. Errors go to stderr and exit with 1. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    allocator::use_memory_freely(true);
    match cli::run(version).and_then(|()| terminal::finish()) {
        // A reader that closed the output early is no failure.
        Ok(()) | Err(Error::OutputClosed) => ExitCode::SUCCESS,
        Err(Error::Logged) => ExitCode::FAILURE,
        Err(error) => {
            terminal::errln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A number of microseconds since the Unix epoch.
pub(crate) fn unix_us() -> u64 {
    use terrace_tier_store::clock::{Clock, SystemClock};
    SystemClock::default().unix_us()
}
