//! Flight SQL for any engine that implements [`Engine`].
//!
//! The service speaks every command and action that ADBC, JDBC and Grafana use, holds sessions, tickets and prepared
//! statements, and turns engine errors into gRPC codes. It does not know how statements are planned or where rows lie.
//!
//! ```text
//! client -> connection -> service -> session (auth) -> command: statement, prepared, ingest, metadata -> Engine
//!                                                          |                                              |
//!                                                        ticket ------------------ encode <----- BatchStream
//! ```

mod action;
mod auth;
mod bodies;
mod connection;
mod encode;
pub mod engine;
mod error;
mod info;
mod ingest;
mod metadata;
mod metrics;
mod options;
mod prepared;
mod proto;
mod put;
mod schema;
mod sender;
mod server;
mod service;
mod session;
mod sql_info;
mod statement;
#[cfg(test)]
mod tests;
mod text;
mod ticket;
mod types;
mod upload;

pub use auth::Authentication;
pub use engine::*;
pub use error::Error;
pub use metrics::{FlightMetrics, Operation, OperationSnapshot};
pub use options::FlightOptions;
pub use sender::upload;
pub use server::{FlightServer, serve};
pub use upload::CompleteUploads;
