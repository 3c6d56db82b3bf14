//! All of Terrace that touches DataFusion: the engine, the table provider and its scan, the sink, the system tables.
//!
//! ```text
//!   engine     sessions, statements, admission, query memory, DDL, COPY, ingest
//!   system     live state as tables of schema `system`
//!   provider   a table of the store as DataFusion sees it
//!   dialect    how SQL text is read
//!   decimal    arithmetic on decimals in 64 bits
//!   joins      the order of inner joins
//!   coercion   where numbers of different types meet
//!   subqueries scalar subqueries that give no row
//!   scan       reading chunks and the delta
//!   sink       writing rows
//!   views      hot data views: which queries ask for rows of a view only
//! ```
//!
//! Nothing here knows Flight or HTTP; the server adapts [`Engine`] to both.

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
