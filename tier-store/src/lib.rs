//! Storage and placement of Arrow data on tiers of memory.
//!
//! A table is cut into *chunks* of up to 65,536 rows; each column of a chunk is a *segment*. Every segment has a durable
//! *home* in an Arrow IPC file and may have one faster copy on a byte-addressable tier. Placement decides which; readers
//! take a handle and never wait for a move.
//!
//! Layers call downwards only:
//!
//! ```text
//!   simulate                   placement on virtual time, for tests and benchmarks
//!   store                      the facade that wires all of it
//!   placement  migrate         what should lie where, and bringing it there
//!   table      heat            versions, chunks, delta; counters of accesses
//!   catalog                    durable truth (redb)
//!   tier       io              places for bytes; block reads
//! ```
//!
//! The crate knows Arrow, not DataFusion and not tokio; it is usable as a library by itself.

pub mod catalog;
pub mod clock;
pub mod error;
pub mod heat;
pub mod io;
pub mod migrate;
pub mod placement;
#[cfg(test)]
mod seeds;
pub mod simulate;
pub mod store;
pub mod table;
pub mod tier;
pub mod units;

pub use error::{Error, Result};
pub use store::{Store, StoreOptions};
