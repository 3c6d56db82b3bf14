//! Mining: finds the hot views that would pay for the statements that run.
//!
//! - `candidate`: patterns with the values of many scans
//! - `log`: the scans that were executed since the last epoch
//! - `miner`: one epoch of mining
//! - `pattern`: conditions without their values, and the values beside them
//! - `proposal`: proposals of views, and their states
//! - `scan`: the logged scans, analysed, of as many epochs as are looked back on
//! - `search`: finds the candidates that pay, judged by later epochs than those their values come from
//! - `sql`: conditions as text
//! - `stored_proposals`: proposals in the catalog
//! - `table_rows`: estimates of views by samples and bounds
//! - `window`: bounds that move with the clock
//!
//! `pattern`, `window`, `candidate`, `search` and `proposal` do not depend on the store or the engine. Scans are only
//! kept in memory: after a restart the server has its proposals and mined views, but no scans.

mod candidate;
mod log;
mod miner;
mod pattern;
mod proposal;
mod scan;
mod search;
mod sql;
mod stored_proposals;
mod table_rows;
#[cfg(test)]
mod tests;
mod window;

pub use miner::{Action, Miner};
pub use proposal::{Basis, Proposal};
