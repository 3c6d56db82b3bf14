//! Storage and placement of Arrow data on tiers of memory.
//!
//! A table is cut into *chunks* of up to 65,536 rows; each column of a chunk is a *segment*. Every segment has a
//! durable *home* in an Arrow IPC file and may have one faster copy on a byte-addressable tier. Placement chooses the
//! tier; readers take a handle and never wait for a move.
//!
//! Modules, the upper layers first:
//!
//! - [`simulate`]: runs placement on virtual time, for tests and benchmarks
//! - [`store`]: the facade that wires all layers
//! - [`placement`]: decides which tier each segment should lie on
//! - [`migrate`]: carries out moves between tiers
//! - [`table`]: versions, chunks, deltas, statistics
//! - [`heat`]: counters of accesses and their decay
//! - `catalog`: the durable key-value store
//! - [`tier`]: places for bytes: DRAM, NVM, SSD
//! - [`io`]: block reads and the file system
//! - [`clock`]: time as a dependency
//! - [`error`]: the errors of the crate
//! - [`units`]: sizes and durations as text
//! - `seeds`: seeds of random tests
//!
//! The crate knows Arrow, not DataFusion and not tokio; it is usable as a library by itself.

mod catalog;
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
