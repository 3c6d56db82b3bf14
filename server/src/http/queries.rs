//! Running and finished statements, and cancelling.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;
use terrace_access::{Authority, Origin, Principal, Right};
use terrace_planner_ext::engine::StatementRecord;
use utoipa::ToSchema;

use super::page::{Page, Paged, RawPage};
use super::problem::{Problem, ProblemBody, Result};
use super::state::AppState;

/// The state of a statement.
// For the document alone: its names come from `terrace_planner_ext::engine::StatementState`.
#[allow(dead_code)]
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
enum StatementState {
    Planning,
    Queued,
    Running,
    Stalled,
    Done,
    Failed,
    Cancelled,
}

/// Bytes that were read on a tier.
#[derive(Debug, Serialize, ToSchema)]
pub struct TierBytes {
    /// Name of the tier.
    tier: String,
    /// The bytes.
    bytes: u64,
}

/// A statement as the API shows it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Query)]
pub struct QueryItem {
    /// Its id.
    id: String,
    /// Id of its session.
    session: String,
    /// Name of its user.
    user: String,
    /// Its workload group.
    workload_group: String,
    /// Its text; of statements of others without literals, except for superusers.
    sql: String,
    /// Its kind, such as query or insert.
    kind: &'static str,
    /// Its state.
    #[schema(value_type = StatementState)]
    state: String,
    /// True until it has ended.
    running: bool,
    /// Its start, in microseconds since the Unix epoch.
    started_unix_us: u64,
    /// Duration until now or its end, in microseconds.
    elapsed_us: u64,
    /// Rows that it returned or changed so far.
    rows: u64,
    /// Bytes of these rows.
    bytes: u64,
    /// Time that it waited for an execution slot, in microseconds.
    queued_us: u64,
    /// Time for which it had no execution slot because its client took no rows, in microseconds.
    stalled_us: u64,
    /// Time for which threads worked for it, in microseconds.
    busy_us: u64,
    /// Times that it started again before its first rows: query memory ran out, or it was no point statement.
    restarts: u64,
    /// Query memory that it was expected to need, weighted by time, in bytes.
    demand_bytes: u64,
    /// Query memory that it takes, in bytes: what its operators reserve, and what it has allocated far beyond.
    reserved_bytes: u64,
    /// The most that it took so far.
    reserved_peak_bytes: u64,
    /// What its work has allocated and not freed, an estimate in bytes.
    allocated_bytes: u64,
    /// The most that it had allocated so far.
    allocated_peak_bytes: u64,
    /// Bytes that it wrote to spill files.
    spilled_bytes: u64,
    /// Bytes that its scans read from the home tier.
    cold_bytes: u64,
    /// Bytes that its scans read on each tier, those included of segments in memory.
    tier_bytes: Vec<TierBytes>,
    /// Chunks of the tables that it scans, once for each scan.
    chunks: u64,
    /// Those of them that were not read: filters, run-time filters, hot views or a limit excluded them.
    pruned_chunks: u64,
    /// Time that its scans waited for such reads, summed over partitions, and its checks of keys, in microseconds.
    read_wait_us: u64,
    /// The part of it that a read of a few rows ended.
    point_wait_us: u64,
    /// The part of it that a read of some rows ended, or one without room to read ahead, or one of keys.
    needed_wait_us: u64,
    /// The part of it that a read of whole columns ended, which scans read ahead.
    prefetch_wait_us: u64,
    /// Time that it waited for rows that it had spilled, in microseconds.
    spill_wait_us: u64,
    /// Time until the chunk files of its rows were durable, summed over the threads that write them, in microseconds.
    write_wait_us: u64,
    /// Bytes of its work that are done, where it counts its work, as OPTIMIZE does.
    work_done_bytes: u64,
    /// Bytes of its work in all, as far as they are known; 0 where it does not count its work.
    work_total_bytes: u64,
    /// The error with which it ended; of statements of others its kind, except for superusers. `null`: none.
    #[schema(required)]
    error: Option<String>,
}

impl From<StatementRecord> for QueryItem {
    fn from(record: StatementRecord) -> Self {
        let state = record.state.name();
        Self {
            running: record.state.is_active(),
            state: state.to_owned(),
            id: record.id,
            session: record.session,
            user: record.user,
            workload_group: record.workload_group,
            sql: record.sql,
            kind: record.kind.name(),
            started_unix_us: record.started_unix_us,
            elapsed_us: record.elapsed_us,
            rows: record.rows,
            bytes: record.bytes,
            queued_us: record.queued_us,
            stalled_us: record.stalled_us,
            busy_us: record.busy_us,
            restarts: record.restarts,
            demand_bytes: record.demand_bytes,
            reserved_bytes: record.memory.reserved,
            reserved_peak_bytes: record.memory.reserved_peak,
            allocated_bytes: record.memory.allocated,
            allocated_peak_bytes: record.memory.allocated_peak,
            spilled_bytes: record.spilled_bytes,
            cold_bytes: record.cold_bytes,
            tier_bytes: record.tier_bytes.into_iter().map(|(tier, bytes)| TierBytes { tier, bytes }).collect(),
            chunks: record.chunks.chunks,
            pruned_chunks: record.chunks.pruned,
            read_wait_us: record.read_wait_us,
            point_wait_us: record.read_waits.point_us,
            needed_wait_us: record.read_waits.needed_us,
            prefetch_wait_us: record.read_waits.prefetch_us,
            spill_wait_us: record.read_waits.spill_us,
            write_wait_us: record.write_wait_us,
            work_done_bytes: record.work.done_bytes,
            work_total_bytes: record.work.total_bytes,
            error: record.error,
        }
    }
}

fn newest_first(state: &AppState) -> Vec<StatementRecord> {
    let mut records = state.engine.statements();
    records.sort_by_key(|r| (std::cmp::Reverse(r.state.is_active()), std::cmp::Reverse(r.started_unix_us)));
    records
}

/// Lists statements: running ones first, then the newest.
#[utoipa::path(
    get,
    path = "/api/v1/queries",
    operation_id = "listQueries",
    params(RawPage),
    responses((status = 200, description = "A page of statements", body = Paged<QueryItem>)),
)]
pub async fn list(
    State(state): State<Arc<AppState>>,
    Extension(viewer): Extension<Authority>,
    page: Page,
) -> Result<Json<Paged<QueryItem>>> {
    // A thousand long texts take some time to mask.
    state
        .blocking(move |state| {
            let records = newest_first(state);
            let total = records.len();
            let items = records.into_iter().map(|record| QueryItem::from(record.seen_by(&viewer)));
            Ok(Json(page.cut(items, total)))
        })
        .await
}

/// Shows one statement.
#[utoipa::path(
    get,
    path = "/api/v1/queries/{id}",
    operation_id = "getQuery",
    params(("id" = String, Path, description = "Id of the statement")),
    responses((status = 200, description = "The statement", body = QueryItem)),
)]
pub async fn one(
    State(state): State<Arc<AppState>>,
    Extension(viewer): Extension<Authority>,
    Path(id): Path<String>,
) -> Result<Json<QueryItem>> {
    let found = newest_first(&state).into_iter().find(|record| record.id == id);
    let found = found.ok_or_else(|| Problem::not_found("query", &id))?;
    Ok(Json(found.seen_by(&viewer).into()))
}

/// Cancels a running statement: an own one, or with CANCEL any.
#[utoipa::path(
    delete,
    path = "/api/v1/queries/{id}",
    operation_id = "cancelQuery",
    params(("id" = String, Path, description = "Id of the statement")),
    responses(
        (status = 204, description = "It is being cancelled"),
        (status = 409, description = "It has ended already", body = ProblemBody, content_type = "application/problem+json"),
    ),
)]
pub async fn cancel(
    State(state): State<Arc<AppState>>,
    Extension(caller): Extension<Principal>,
    Extension(origin): Extension<Origin>,
    Path(id): Path<String>,
) -> Result<StatusCode> {
    if state.engine.cancel_for(&caller, origin, &id)? {
        tracing::info!(statement = id, user = caller.user, "query cancelled over HTTP");
        return Ok(StatusCode::NO_CONTENT);
    }
    let sees_all = state.users().authority(&caller).may_on_server(Right::Monitor);
    let known = newest_first(&state).into_iter().find(|r| r.id == id && (sees_all || r.user == caller.user));
    let ended = known.filter(|record| !record.state.is_active()).ok_or_else(|| Problem::not_found("query", &id))?;
    Err(Problem::new(StatusCode::CONFLICT, format!("query '{id}' has ended: {}", ended.state.name())))
}
