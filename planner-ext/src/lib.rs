//! All of Terrace that uses DataFusion: the engine, the table provider and its scan, the sink, the system tables.
//!
//! - [`engine`]: sessions, statements, admission, query memory, DDL, COPY, ingest
//! - [`system`]: live state as tables of schema `system`
//! - [`provider`]: a table of the store as a table provider of DataFusion
//! - [`scan`]: reads chunks and the delta
//! - [`sink`]: writes rows
//! - [`views`]: hot views, and the queries that they serve
//! - [`error`]: errors of the engine, and their kinds
//! - [`dialect`]: the SQL dialect
//! - [`joins`]: the order of inner joins
//! - [`coercion`]: coercion of numbers of different types
//! - [`decimal`]: arithmetic on decimals in 64 bits
//! - [`floats`]: one zero and one NaN for all operations on floats
//! - [`subqueries`]: scalar subqueries that return no row
//!
//! Nothing here depends on Flight or HTTP; the server adapts [`Engine`] to both.

mod coercion;
mod decimal;
mod dialect;
pub mod engine;
pub mod error;
mod floats;
mod joins;
pub mod provider;
pub mod scan;
pub mod sink;
mod subqueries;
pub mod system;
mod views;

pub use engine::{Engine, EngineOptions, IngestMode, IngestRequest, Prepared, RunningQuery, Session};
pub use error::{Error, ErrorKind, Result};
pub use provider::TierTable;
