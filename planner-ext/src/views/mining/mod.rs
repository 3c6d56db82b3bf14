//! Mined views: which hot views would pay for the statements that run.
//!
//! ```text
//!   log         what scans asked for since the last epoch
//!   scan        the same, analysed, for as many epochs as count
//!   pattern     conditions without their values; these beside them
//!   window      bounds that move with the clock
//!   candidate   patterns with room for the values of many scans
//!   search      the candidates that pay, judged by epochs that they were not made from
//!   table_rows  what samples and bounds say of them
//!   proposal    what people are told of them, and what becomes of it
//!   kept        the same in the catalog
//!   miner       one turn of all that
//!   counters    the same for metrics
//!   sql         conditions as text
//! ```
//!
//! `pattern`, `window`, `candidate`, `search` and `proposal` know neither store nor engine. Scans of the past are kept in memory: a
//! server that starts knows what it proposed and made, and learns anew.

mod candidate;
mod counters;
mod kept;
mod log;
mod miner;
mod options;
mod pattern;
mod proposal;
mod scan;
mod search;
mod sql;
mod table_rows;
#[cfg(test)]
mod tests;
mod window;

pub use counters::MiningCounters;
pub(crate) use log::{Asking, Volume};
pub(crate) use miner::{Action, Miner};
pub use options::{MiningMode, MiningOptions};
pub(crate) use proposal::Proposal;
