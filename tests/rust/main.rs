//! End-to-end tests in Rust: one binary, because each binary links all of DataFusion.
//!
//! - [`house`]: the layout of the source tree
//! - [`moves`]: statements while segments move
//! - [`sql_logic`]: DataFusion's SQL logic files

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// The tests wait for a server in real time.
#![allow(clippy::disallowed_methods)]

mod house;
mod moves;
mod sql_logic;
