//! Scans of the store's tables, and the planning that they need: all that lies between DataFusion and the store.
//!
//! It knows DataFusion and the store, but neither SQL text nor sessions nor the engine. Of hot views it knows the trait
//! [`ViewOracle`](hot_views::ViewOracle), which tells a scan the views that serve it.
//!
//! - [`provider`]: a table of the store as a table provider of DataFusion
//! - [`scan`]: reads chunks and the delta
//! - [`hot_views`]: what scans and hot views tell each other
//! - [`sink`]: writes rows
//! - [`joins`]: the order of inner joins; all planner rules and options of a session
//! - [`coercion`]: coercion of numbers of different types
//! - [`comparison`]: rewrites comparisons into the type of a column
//! - [`safe_cast`]: casts that keep every value
//! - `decimal`: arithmetic on decimals in 64 bits
//! - `floats`: one zero and one NaN for all operations on floats
//! - `subqueries`: scalar subqueries that return no row

pub mod coercion;
pub mod comparison;
mod decimal;
mod floats;
pub mod hot_views;
pub mod joins;
pub mod provider;
pub mod safe_cast;
pub mod scan;
pub mod sink;
mod subqueries;

pub use provider::TierTable;
