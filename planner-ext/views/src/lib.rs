//! Hot views: named conditions over a table whose rows lie in separate hot chunks, and the check whether a query asks only
//! for rows of a view.
//!
//! This crate depends on the store, the scan (whose [`ViewOracle`](terrace_scan::hot_views::ViewOracle) is
//! [`HotViews`]) and the SQL dialect, but not the engine, which executes statements on views and schedules their runs.
//!
//! - `bound`: a view bound to its table: conditions with its window at a fixed time
//! - `cast`: casts that keep the order of values
//! - `condition`: evaluates the condition of a view on rows and on the bounds of chunks
//! - `coverage`: chunks, rows and bytes of a view in a version of its table
//! - `definition`: a view as it is stored: the text of its SELECT, and when its window was bound last
//! - `domain`: a set of values: NULL or not, and spans of an ordered type
//! - `facts`: the domains of terms in one disjunct of a filter
//! - `filter`: the filter of a query in disjunctive form: analysed once, checked against every view
//! - `formula`: a condition as AND and OR over "term in domain", true for exactly the rows that it keeps
//! - `mining`: finds the views that would pay for the statements that run
//! - `point`: a value of an ordered type
//! - `proof`: proves that every row with some facts fulfils a formula
//! - `published`: views whose marks chunks know
//! - `registry`: all views, bound to their tables
//! - `run`: the tiering run of a view: marks chunks and rewrites them so that its rows lie together
//! - `term`: the subject of a domain: an expression, or the comparison of two expressions
//! - `weights`: the weights of hot views for placement
//!
//! The check ("tiering check", Meyer et al., 4.2) is sound: `implied` means that no row can pass the filter and fail
//! the view, in SQL's three-valued logic and the order by which the engine compares. It denies whatever it cannot
//! prove.

mod bound;
mod cast;
mod condition;
mod coverage;
mod definition;
mod domain;
mod facts;
mod filter;
mod formula;
mod mining;
mod point;
mod proof;
mod published;
mod registry;
mod run;
mod term;
#[cfg(test)]
mod tests;
mod weights;

pub use bound::BoundView;
pub use coverage::Coverage;
pub use definition::{Definition, Mined, PublishedVersion, USUAL_REFRESH};
pub use filter::{Filter, Verdict};
pub use mining::{Action, Basis, Miner, Proposal};
pub use published::PublishedView;
pub use registry::{HotViews, Status, Views};
pub use run::{Forecast, Job, KeepGoing};
