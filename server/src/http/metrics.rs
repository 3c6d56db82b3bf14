//! `/metrics` and `/metrics/segments` in the Prometheus text format.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::problem::{Problem, Result};
use super::state::AppState;
use crate::metrics::{self, Exposition};
use crate::traces;

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const DEFAULT_SERIES: usize = 1_000;
const MAX_SERIES: usize = 100_000;

/// Limit of the series that `/metrics/segments` returns.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Limit {
    /// Most series in the answer.
    #[param(minimum = 0, maximum = 100_000, default = 1_000)]
    limit: Option<usize>,
}

/// Metrics with a bounded number of series.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    responses((status = 200, description = "Prometheus text format 0.0.4", content_type = "text/plain", body = String)),
)]
pub async fn all(State(state): State<Arc<AppState>>) -> Result<Response> {
    state
        .blocking(|state| {
            let mut out = Exposition::default();
            metrics::process(&mut out, &state.info.version, state.info.started_unix_us);
            metrics::memory(&mut out, &state.memory);
            metrics::statements(&mut out, &state.engine);
            metrics::durations(&mut out, &state.engine);
            metrics::tiers(&mut out, state.store());
            metrics::tiering(&mut out, state.store());
            metrics::storage(&mut out, state.store());
            metrics::disk(&mut out, state.store());
            metrics::heat(&mut out, state.store());
            metrics::flight(&mut out, &state.flight);
            metrics::network(&mut out, &state.network);
            metrics::audit(&mut out, state.engine.audit(), &state.network.logins);
            metrics::query_log(&mut out, state.engine.query_log().map(Arc::as_ref));
            metrics::traces(&mut out, traces::figures());
            respond(out)
        })
        .await
}

/// Accesses of every segment, the most accessed first.
///
/// Two more series sum up the segments beyond the limit.
#[utoipa::path(
    get,
    path = "/metrics/segments",
    operation_id = "segmentMetrics",
    params(Limit),
    responses((status = 200, description = "Prometheus text format 0.0.4", content_type = "text/plain", body = String)),
)]
pub async fn segments(
    State(state): State<Arc<AppState>>,
    limit: std::result::Result<Query<Limit>, QueryRejection>,
) -> Result<Response> {
    let limit = limit?.0.limit.unwrap_or(DEFAULT_SERIES);
    if limit > MAX_SERIES {
        return Err(Problem::bad_request(format!("limit must be at most {MAX_SERIES}, not {limit}")));
    }
    state
        .blocking(move |state| {
            let mut out = Exposition::default();
            metrics::segments(&mut out, state.store(), limit);
            respond(out)
        })
        .await
}

fn respond(out: Exposition) -> Result<Response> {
    let text = out.encode().map_err(|e| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, e))?;
    Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response())
}
