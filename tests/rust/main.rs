//! End-to-end tests in Rust: one binary, as each links all of DataFusion.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod moves;
mod sql_logic;
