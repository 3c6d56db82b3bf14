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
use utoipa::{IntoParams, ToSchema};

use super::page::{Page, Paged, RawPage};
use super::problem::{Problem, Result};
use super::state::AppState;
use crate::moves;

/// Bytes of one part of an export.
const PART_BYTES: usize = 64 << 10;

/// Lists moves with reasons, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/moves",
    operation_id = "listMoves",
    params(RawPage),
    responses((status = 200, description = "A page of moves", body = Paged<MoveRecord>)),
)]
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<MoveRecord>>> {
    state.blocking(move |state| Ok(Json(page.cut_log(state.store().moves(page.items_to_read())?)))).await
}

/// A format of an export.
// For the document alone: an unknown format is refused with a sentence of ours.
#[allow(dead_code)]
#[derive(ToSchema)]
#[schema(rename_all = "lowercase", default = "jsonl")]
enum Format {
    Jsonl,
    Csv,
}

/// The format of an export.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Form {
    /// Objects in JSON, or rows of CSV with a head.
    #[param(value_type = Option<Format>, inline)]
    format: Option<String>,
}

/// Exports every move that is logged, oldest first, a line each.
#[utoipa::path(
    get,
    path = "/api/v1/moves/export",
    operation_id = "exportMoves",
    params(Form),
    responses((status = 200, description = "The moves", content((String = "application/x-ndjson"), (String = "text/csv")))),
)]
pub async fn export(
    State(state): State<Arc<AppState>>,
    form: std::result::Result<Query<Form>, QueryRejection>,
) -> Result<Response> {
    let Query(form) = form?;
    let csv = match form.format.as_deref() {
        None | Some("jsonl") => false,
        Some("csv") => true,
        Some(other) => return Err(Problem::bad_request(format!("format must be jsonl or csv, not '{other}'"))),
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
