//! Scans of the store's tables for DataFusion: table provider, plan nodes, and planner rules.
//!
//! This crate depends on DataFusion and the store, but not on SQL text, sessions or the engine. It reaches hot views only
//! through the trait [`ViewOracle`](hot_views::ViewOracle), which returns the views that a scan can use.
//!
//! - [`provider`]: a table of the store as a table provider of DataFusion
//! - [`scan`]: reads chunks and the delta
//! - [`hot_views`]: the interface between scans and hot views
//! - [`sink`]: writes rows
//! - [`spilling_join`]: hash joins that complete when their build side does not fit into memory
//! - [`joins`]: the order of inner joins; all planner rules and options of a session
//! - [`coercion`]: coercion of numbers of different types
//! - [`comparison`]: rewrites comparisons into the type of a column
//! - [`safe_cast`]: casts that keep every value
//! - [`session_options`]: options of a session
//! - [`pause`]: pauses reading while memory is critically short
//! - `compact`: copies batches that keep more memory than their rows need
//! - `decimal`: arithmetic on decimals in 64 bits
//! - `distinct`: aggregates of the distinct values of several columns
//! - `first_rows`: the first rows of each group by `row_number()`, before rows are sorted
//! - `floats`: one zero and one NaN for all operations on floats
//! - `grouping`: aggregations with few groups, by codes instead of values
//! - `subqueries`: scalar subqueries that return no row

pub mod coercion;
mod compact;
pub mod comparison;
mod decimal;
mod distinct;
mod first_rows;
mod floats;
mod grouping;
pub mod hot_views;
pub mod joins;
pub mod pause;
pub mod provider;
pub mod safe_cast;
pub mod scan;
pub mod session_options;
pub mod sink;
pub mod spilling_join;
mod subqueries;

pub use compact::compact;
pub use first_rows::FirstRowsPerGroupExec;
pub use provider::TierTable;
pub use subqueries::null_if_empty_function;
