//! Storage of Terrace: segments on tiers, the files that they come from, and the catalog that describes them.
//!
//! A table is cut into *chunks* of up to 65,536 rows; each column of a chunk is a *segment*. Every segment has a durable
//! *home* in a chunk file and may have one faster copy on a byte-addressable tier. Readers take a handle and never
//! wait for a move. The crate knows the model only: it places nothing and opens no store.
//!
//! Modules, the upper layers first:
//!
//! - [`migrate`]: carries out moves between tiers
//! - [`table`]: versions, chunks, deltas, statistics
//! - [`catalog`]: the durable key-value store
//! - [`heat`]: counters of accesses
//! - [`tier`]: places for bytes: DRAM, NVM, SSD
//! - [`io`]: block reads and the file system

pub mod catalog;
pub mod heat;
pub mod io;
pub mod migrate;
pub mod table;
pub mod tier;
