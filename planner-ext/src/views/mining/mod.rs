//! Mined views: which hot views would pay for the statements that run.
//!
//! ```text
//!   log         what scans asked for since the last epoch
//!   scan        the same, analysed, for as many epochs as count
//!   pattern     conditions without their values; these beside them
//!   window      bounds that move with the clock
//!   candidate   patterns with room for the values of many scans
//!   search      the candidates that pay, judged by epochs that they were not made from
//!   proposal    what people are told of them, and what becomes of it
//!   miner       one turn of all that
//!   sql         conditions as text
//! ```
//!
//! `pattern`, `window`, `candidate`, `search` and `proposal` know neither store nor engine. The past is kept in memory: a server
//! that starts knows nothing of it.

mod candidate;
mod log;
mod miner;
mod options;
mod pattern;
mod proposal;
mod scan;
mod search;
mod sql;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use log::{Asking, Volume};
pub(crate) use miner::{Action, Miner};
pub use options::{MiningMode, MiningOptions};
pub(crate) use proposal::Proposal;
