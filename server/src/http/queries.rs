//! Statements that run or ran, and the cancel of one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use terrace_planner_ext::engine::StatementRecord;

use super::page::{Page, Paged};
use super::problem::{Problem, Result};
use super::state::AppState;

/// A statement as the API shows it.
#[derive(Debug, Serialize)]
pub struct QueryItem {
    id: String,
    session: String,
    user: String,
    sql: String,
    kind: &'static str,
    state: String,
    running: bool,
    started_unix_us: u64,
    elapsed_us: u64,
    rows: u64,
    bytes: u64,
    error: Option<String>,
}

impl From<StatementRecord> for QueryItem {
    fn from(record: StatementRecord) -> Self {
        let state = record.state.name();
        Self {
            running: matches!(state, "planning" | "queued" | "running"),
            state: state.to_owned(),
            id: record.id,
            session: record.session,
            user: record.user,
            sql: record.sql,
            kind: record.kind.name(),
            started_unix_us: record.started_unix_us,
            elapsed_us: record.elapsed_us,
            rows: record.rows,
            bytes: record.bytes,
            error: record.error,
        }
    }
}

fn newest_first(state: &AppState) -> Vec<QueryItem> {
    let mut items: Vec<QueryItem> = state.engine.statements().into_iter().map(QueryItem::from).collect();
    items.sort_by_key(|q| (std::cmp::Reverse(q.running), std::cmp::Reverse(q.started_unix_us)));
    items
}

/// `GET /api/v1/queries`: running ones first, then the newest.
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Json<Paged<QueryItem>> {
    let items = newest_first(&state);
    let total = items.len();
    Json(page.cut(items, total))
}

/// `GET /api/v1/queries/{id}`
pub async fn one(State(state): State<Arc<AppState>>, Path(id): Path<String>) -> Result<Json<QueryItem>> {
    let found = newest_first(&state).into_iter().find(|q| q.id == id);
    found.map(Json).ok_or_else(|| Problem::not_found("query", &id))
}

/// `DELETE /api/v1/queries/{id}`: cancels a running statement; 204, or 409 when it has ended already.
pub async fn cancel(State(state): State<Arc<AppState>>, Path(id): Path<String>) -> Result<StatusCode> {
    let Json(query) = one(State(Arc::clone(&state)), Path(id.clone())).await?;
    if !query.running || !state.engine.cancel(&id) {
        return Err(Problem::new(StatusCode::CONFLICT, format!("query '{id}' has ended: {}", query.state)));
    }
    tracing::info!(query = %id, "query cancelled over HTTP");
    Ok(StatusCode::NO_CONTENT)
}
