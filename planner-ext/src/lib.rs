//! The engine of Terrace: sessions and statements over one store, on DataFusion.
//!
//! - [`engine`]: sessions, statements, admission, query memory, DDL, COPY, ingest
//! - [`system`]: live state as tables of schema `system`
//!
//! It depends on the crates that execute the parts of a statement: `terrace_sql` (text to command), `terrace_scan` (tables and
//! their scans), `terrace_views` (hot views, with the feature `hot-views`) and the store. Nothing here depends on Flight
//! or HTTP; the server adapts [`Engine`] to both.

pub mod engine;
pub mod system;

pub use engine::{Engine, EngineOptions, IngestMode, IngestRequest, Prepared, RunningQuery, Session};
pub use error::{Error, ErrorKind, Result};
pub use terrace_error as error;
pub use terrace_scan::{TierTable, scan};
