//! The log of moves: pages, newest first, and all of it as a file, oldest first.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use terrace_tier_store::placement::MoveRecord;
use tokio::sync::mpsc;

use super::page::{Page, Paged};
use super::problem::{Problem, Result};
use super::state::AppState;
use crate::moves;

/// Bytes of one part of an export.
const PART_BYTES: usize = 64 << 10;

/// `GET /api/v1/moves`
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<MoveRecord>>> {
    state.blocking(move |state| Ok(Json(page.cut_log(state.store().moves(page.reach())?)))).await
}

/// The form of an export.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    format: Option<String>,
}

/// `GET /api/v1/moves/export?format=jsonl`: every move that is logged, a line each.
pub async fn export(
    State(state): State<Arc<AppState>>,
    form: std::result::Result<Query<Form>, QueryRejection>,
) -> Result<Response> {
    let Query(form) = form?;
    let csv = match form.format.as_deref() {
        None | Some("jsonl") => false,
        Some("csv") => true,
        Some(other) => return Err(Problem::bad_request(format!("format is jsonl or csv, not '{other}'"))),
    };
    let (parts, mut receiver) = mpsc::channel::<std::result::Result<Bytes, std::io::Error>>(2);
    tokio::task::spawn_blocking(move || {
        let mut part = if csv { moves::CSV_HEAD.to_owned() } else { String::new() };
        let walked = state.store().walk_moves(|record| {
            part.push_str(&if csv { moves::csv_line(&record) } else { moves::json_line(&record) });
            let is_full = part.len() >= PART_BYTES;
            Ok(!is_full || parts.blocking_send(Ok(std::mem::take(&mut part).into())).is_ok())
        });
        let last = walked.map(|()| part.into()).map_err(|error| std::io::Error::other(error.to_string()));
        let _ = parts.blocking_send(last);
    });
    let body = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    let kind = if csv { "text/csv; charset=utf-8" } else { "application/x-ndjson" };
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(body)).into_response())
}
