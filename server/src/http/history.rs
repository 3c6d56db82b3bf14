//! The last hours of the server, as points of lines.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::{Problem, Result};
use super::state::AppState;
use crate::history::{INTERVAL, MOST_SAMPLES, Point};
use crate::units::Span;

/// Points of an answer when the request does not say.
const POINTS: usize = 240;

/// Which part of the history a request asks for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// Only the time up to so long ago, such as 2h; without it all that is kept.
    #[param(value_type = Option<String>)]
    last: Option<Span>,
    /// Most points of the answer; where there are more samples, neighbours are merged.
    #[param(minimum = 2, maximum = 1_440, default = 240)]
    points: Option<usize>,
}

/// The last hours of the server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = History)]
pub struct HistoryAnswer {
    /// Time between two samples, in microseconds.
    interval_us: u64,
    /// Samples that are kept at most; older ones go, and all of them with the process.
    most_samples: usize,
    /// The points, oldest first.
    points: Vec<Point>,
}

/// Shows the last hours: tiers, statements, their times, moves and the disk.
#[utoipa::path(
    get,
    path = "/api/v1/history",
    operation_id = "getHistory",
    params(HistoryQuery),
    responses((status = 200, description = "The last hours", body = HistoryAnswer)),
)]
pub async fn show(
    State(state): State<Arc<AppState>>,
    query: std::result::Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<HistoryAnswer>> {
    let Query(query) = query?;
    let points = query.points.unwrap_or(POINTS);
    if !(2..=MOST_SAMPLES).contains(&points) {
        return Err(Problem::bad_request(format!("points must be between 2 and {MOST_SAMPLES}, not {points}")));
    }
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let now_unix_us = state.engine.options().clock.unix_us();
    let since_unix_us = query.last.map_or(0, |Span(last)| now_unix_us.saturating_sub(micros(last)));
    let points = state.history().points(since_unix_us, points);
    Ok(Json(HistoryAnswer { interval_us: micros(INTERVAL), most_samples: MOST_SAMPLES, points }))
}
