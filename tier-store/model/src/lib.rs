//! The basic types that all crates of Terrace share: ids, tiers, modes, accounts, errors, units and time.
//!
//! The crate depends on no other crate of Terrace. Its types are plain values, apart from byte accounts, tier indexes,
//! histograms and clocks.
//!
//! - [`account`]: byte limits and the charges against them
//! - [`clock`]: time as a dependency
//! - [`durations`]: histograms of durations
//! - [`error`]: the error of the tier store, and the kinds of errors
//! - [`file_format`]: the formats of chunk files
//! - [`ids`]: numbers and names of tables, columns, chunks and marks
//! - [`mode`]: the modes auto, advise and off of the tiering loop
//! - [`pattern`]: patterns of accesses
//! - [`tier`]: positions and kinds of tiers
//! - [`tier_index`]: the position of a tier in the list, which changes when tiers come and go
//! - [`trace`]: the mark of spans that belong to traces
//! - [`units`]: sizes and durations as text

pub mod account;
pub mod clock;
pub mod durations;
pub mod error;
pub mod file_format;
pub mod ids;
pub mod mode;
pub mod pattern;
pub mod tier;
pub mod tier_index;
pub mod trace;
pub mod units;

pub use account::{Account, Charge, Loan};
pub use error::{Error, ErrorKind, Result};
pub use file_format::FileFormat;
pub use ids::{ChunkId, ColumnId, MarkId, SYSTEM_SCHEMA, TableId, TableName};
pub use mode::TieringMode;
pub use pattern::Pattern;
pub use tier::{MAX_TIERS, TierId, TierKind};
pub use tier_index::{TierIndex, TierRows};
