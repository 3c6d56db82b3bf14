//! Tests of spilling joins: each against DataFusion's join with unlimited memory.
//!
//! - `tables`: random tables with all that is hard about keys
//! - `harness`: runs a join with little memory and counts what is left
//! - `equal`: random joins of all types return the same rows
//! - `cases`: order, limit, cancellation, one key
//! - `filters`: dynamic filters
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod equal;
mod filters;
mod harness;
mod tables;
