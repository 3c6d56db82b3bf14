//! The HTTP side of the server: health, metrics, the admin API and the cockpit.
//!
//! Everything is read from the same engine and store that SQL and Flight use. Reads are `GET`; whatever changes state
//! is `POST`, `PUT` or `DELETE`, needs JSON, and passes [`guard`]. Calls that may block (store, catalog, walks over all
//! segments) run on the blocking pool, so the network threads stay free. Statements run on the engine's own threads.
//!
//! ```text
//!   /  /cockpit...        cockpit                      /api/v1/...        admin API (JSON, problem+json)
//!   /healthz  /readyz     for supervisors              /api/v1/openapi.json
//!   /metrics  /metrics/segments                        Prometheus text format
//! ```
//!
//! - [`advisor`]: advice on budgets
//! - [`audit`]: what the audit trail records of requests
//! - [`calibration`]: cost of accesses per tier
//! - [`cockpit`]: the page for administrators
//! - [`control`]: mode and freeze of the tiering loop
//! - [`epochs`]: epochs: log, run, cancel
//! - [`explain`]: explanations of placement
//! - [`guard`]: authorisation of requests
//! - [`health`]: liveness, readiness, status
//! - [`heatmap`]: heat map of a table
//! - [`history`]: the last hours, as points of lines
//! - [`io`]: reads of the SSD tier by class
//! - [`maintenance`]: check, backup, disk usage
//! - [`metrics`]: Prometheus text
//! - [`moves`]: log of moves
//! - [`nodes`]: nodes that execute parts of queries
//! - [`openapi`]: the OpenAPI document
//! - [`orders`]: bring back, warm up, roll back
//! - [`page`]: paging of lists
//! - [`placement`]: placement rules
//! - [`problem`]: errors as `application/problem+json`
//! - [`queries`]: statements: list, cancel
//! - [`query_parameters`]: refuses query parameters that a route does not have
//! - [`rights`]: what each route needs
//! - [`routes`]: the list of routes
//! - [`service`]: serves connections, within limits of time and size
//! - [`sql`]: runs statements
//! - [`state`]: state that handlers share
//! - [`tables`]: tables and segments
//! - [`tasks`]: checks and backups under way
//! - [`tiers`]: tiers and budgets
//! - [`trace`]: the span of a request, for traces

mod advisor;
mod audit;
mod calibration;
mod cockpit;
mod control;
mod epochs;
mod explain;
mod guard;
mod health;
mod heatmap;
mod history;
mod io;
mod maintenance;
mod metrics;
mod moves;
mod nodes;
mod openapi;
mod orders;
mod page;
mod placement;
mod problem;
mod queries;
mod query_parameters;
mod rights;
mod routes;
mod service;
mod sql;
mod state;
mod tables;
mod tasks;
mod tiers;
mod trace;

#[cfg(test)]
mod fuzz_tests;

pub use problem::Problem;
pub use routes::{probes, router};
pub(crate) use service::{HEAD_TIMEOUT, PROBE_HEAD_TIMEOUT, serve};
pub use state::{AppState, ServerInfo};
