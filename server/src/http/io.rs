//! Reads and writes of the SSD tier by class.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use terrace_tier_store::io::{Class, ClassSums};
use utoipa::ToSchema;

use super::state::AppState;

/// Reads and writes of the SSD tier since the server started.
#[derive(Debug, Serialize, ToSchema)]
pub struct Io {
    /// The engine: `io_uring` or `blocking`.
    engine: &'static str,
    /// The classes, in the order in which they are served.
    classes: Vec<IoClass>,
}

/// Reads and writes of a class.
#[derive(Debug, Serialize, ToSchema)]
struct IoClass {
    /// Its name: `point`, `needed`, `spill`, `prefetch`, `write` or `upkeep`.
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
    /// Completed writes.
    writes: u64,
    /// Their bytes.
    written_bytes: u64,
    /// Sum of the times from the request of a write to its end, in microseconds.
    write_wait_us: u64,
    /// The time that half of the writes did not exceed, an estimate in microseconds; `null` without writes.
    #[schema(required)]
    write_wait_p50_us: Option<u64>,
    /// The time that 99 % of the writes did not exceed, an estimate in microseconds; `null` without writes.
    #[schema(required)]
    write_wait_p99_us: Option<u64>,
}

/// Shows the reads and writes of the SSD tier by class, and how long they took.
#[utoipa::path(
    get,
    path = "/api/v1/io",
    operation_id = "getIo",
    responses((status = 200, description = "Reads and writes by class", body = Io)),
)]
pub async fn show(State(state): State<Arc<AppState>>) -> Json<Io> {
    let io = state.store().io();
    let rules = io.rules();
    let mut classes = Class::ALL;
    classes.sort_by_key(|class| rules.rank(*class));
    let shown = classes.map(|class| {
        let (reads, writes) = (io.stats().class_reads(class).sums(), io.stats().class_writes(class).sums());
        let wait_us_at = |sums: &ClassSums, share| sums.wait_us_at(share).map(|us| us as u64);
        IoClass {
            name: class.name(),
            rank: rules.rank(class),
            overtakes: rules.overtakes(class),
            wait_p50_us: wait_us_at(&reads, 0.5),
            wait_p99_us: wait_us_at(&reads, 0.99),
            reads: reads.operations(),
            bytes: reads.bytes,
            wait_us: reads.wait_us,
            write_wait_p50_us: wait_us_at(&writes, 0.5),
            write_wait_p99_us: wait_us_at(&writes, 0.99),
            writes: writes.operations(),
            written_bytes: writes.bytes,
            write_wait_us: writes.wait_us,
        }
    });
    Json(Io { engine: io.name(), classes: shown.into() })
}
