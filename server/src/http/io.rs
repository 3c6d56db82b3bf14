//! Reads of the SSD tier by class.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use terrace_tier_store::io::Class;
use utoipa::ToSchema;

use super::state::AppState;

/// Reads of the SSD tier since the server started.
#[derive(Debug, Serialize, ToSchema)]
pub struct Io {
    /// The engine: `io_uring` or `blocking`.
    engine: &'static str,
    /// The classes of reads, in the order in which they are served.
    classes: Vec<IoClass>,
}

/// Reads of a class.
#[derive(Debug, Serialize, ToSchema)]
struct IoClass {
    /// Its name: `point`, `needed`, `spill`, `prefetch` or `upkeep`.
    name: &'static str,
    /// Its rank in the queue; 1 is served first.
    rank: usize,
    /// Whether its reads pass those that the disk has not begun.
    overtakes: bool,
    /// Completed reads.
    reads: u64,
    /// Their bytes.
    bytes: u64,
    /// Sum of the times from the request of a read to its bytes, in microseconds.
    wait_us: u64,
    /// The time that half of the reads did not exceed, an estimate in microseconds; `null` without reads.
    #[schema(required)]
    wait_p50_us: Option<u64>,
    /// The time that 99 % of the reads did not exceed, an estimate in microseconds; `null` without reads.
    #[schema(required)]
    wait_p99_us: Option<u64>,
}

/// Shows the reads of the SSD tier by class, and how long they took.
#[utoipa::path(
    get,
    path = "/api/v1/io",
    operation_id = "getIo",
    responses((status = 200, description = "Reads by class", body = Io)),
)]
pub async fn show(State(state): State<Arc<AppState>>) -> Json<Io> {
    let io = state.store().io();
    let rules = io.rules();
    let mut classes = Class::ALL;
    classes.sort_by_key(|class| rules.rank(*class));
    let shown = classes.map(|class| {
        let sums = io.stats().class(class).sums();
        let wait_us_at = |share| sums.wait_us_at(share).map(|us| us as u64);
        IoClass {
            name: class.name(),
            rank: rules.rank(class),
            overtakes: rules.overtakes(class),
            reads: sums.reads(),
            bytes: sums.bytes,
            wait_us: sums.wait_us,
            wait_p50_us: wait_us_at(0.5),
            wait_p99_us: wait_us_at(0.99),
        }
    });
    Json(Io { engine: io.name(), classes: shown.into() })
}
