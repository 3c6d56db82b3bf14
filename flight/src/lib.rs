//! Flight SQL for any engine that implements [`Engine`].
//!
//! The service speaks every command and action that ADBC, JDBC and Grafana use, holds sessions, tickets and prepared
//! statements, and turns engine errors into gRPC codes. It does not know how statements are planned or where rows are
//! stored.
//!
//! ```text
//! client -> connection -> service -> session (auth) -> command: statement, prepared, ingest, metadata -> Engine
//!                                                          |                                              |
//!                                                        ticket ------------------ encode <----- BatchStream
//! ```
//!
//! - [`action`]: actions: prepared statements, transactions, cancelling, session options
//! - [`auth`]: credentials and users
//! - [`bearer`]: tokens that callers show
//! - [`bodies`]: bodies of uploaded messages in aligned memory
//! - [`compact`]: views that carry the bytes of their values only
//! - [`connection`]: one client connection and its sessions
//! - [`dictionaries`]: columns of texts as keys of dictionaries
//! - [`direct`]: a wrapper around the gRPC layer, for bodies that are not copied and uploads that are aborted
//! - [`encode`]: batches to Flight messages
//! - [`endpoints`]: the rows of a result for several connections
//! - [`engine`]: the trait that an engine implements
//! - [`error`]: errors, and engine errors as gRPC codes
//! - [`execution`]: the executions of a query, and cancelling them
//! - [`frames`]: messages as frames of Arrow's buffers
//! - [`info`]: Flight information of commands and tables
//! - [`ingest`]: bulk ingest
//! - [`kept`]: the memory that sessions keep between calls
//! - [`logins`]: delays after wrong passwords
//! - [`metadata`]: catalogs, schemas, tables, keys
//! - [`metrics`]: counters per operation
//! - [`options`]: options of the service
//! - [`plain`]: rows with the columns in which they are sent
//! - [`prepared`]: prepared statements
//! - [`proto`]: messages that `arrow-flight` lacks
//! - [`put`]: streams from a client: ingest, parameters, updates
//! - [`receive`]: the memory of messages that are being received
//! - [`results`]: large messages of results
//! - [`schema`]: the schema in which rows are sent
//! - [`sender`]: uploads of a client
//! - [`server`]: the service on accepted connections
//! - [`service`]: the remote procedures
//! - [`session`]: sessions and their tokens
//! - [`sql_info`]: the server's capabilities (`CommandGetSqlInfo`)
//! - [`stall`]: ends results that their client does not read
//! - [`statement`]: queries and updates
//! - [`text`]: validation of strings
//! - [`ticket`]: planned queries that wait to be fetched
//! - [`trace`]: the span of a call, for traces
//! - [`types`]: SQL names of Arrow types
//! - [`write_buffer`]: collects frames of HTTP/2 for a socket

mod action;
mod auth;
mod bearer;
mod bodies;
mod compact;
mod connection;
mod dictionaries;
mod direct;
mod encode;
mod endpoints;
pub mod engine;
mod error;
mod execution;
mod frames;
mod info;
mod ingest;
mod kept;
mod logins;
mod metadata;
mod metrics;
mod options;
mod plain;
mod prepared;
mod proto;
mod put;
mod receive;
mod results;
mod schema;
mod sender;
mod server;
mod service;
mod session;
mod sql_info;
mod stall;
mod statement;
#[cfg(test)]
mod tests;
mod text;
mod ticket;
mod trace;
mod types;
mod write_buffer;

pub use bearer::{BearerError, check_bearer};
pub use bodies::LARGE_BODY_BYTES;
pub use connection::Peer;
pub use direct::DirectBodies;
pub use engine::*;
pub use error::Error;
pub use logins::{Logins, TooManyLogins, client_network};
pub use metrics::{FlightMetrics, Operation, OperationSnapshot};
pub use options::FlightOptions;
pub use plain::{plain_rows, plain_schema, sql_type};
pub use sender::upload;
pub use server::FlightServer;
pub use stall::end_unread_rows;
pub use trace::AdoptParent;
