//! Why segments lie where they lie, and what a query would read.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::{Explanation, Outlook};

use super::placement::{NewScope, table_name};
use super::problem::Result;
use super::state::AppState;

/// Explanations of segments.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// One per segment in the scope.
    items: Vec<Explanation>,
}

/// A query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    sql: String,
}

/// `POST /api/v1/tables/{name}/explain-placement`: changes nothing.
pub async fn table(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    scope: std::result::Result<Json<NewScope>, JsonRejection>,
) -> Result<Json<Explained>> {
    let Json(scope) = scope?;
    let table = table_name(&state, &name)?;
    let scope = scope.order()?;
    Ok(Json(Explained { items: state.engine.explain_placement(&table, &scope).await? }))
}

/// `POST /api/v1/explain-placement`: plans the query and runs nothing.
pub async fn query(
    State(state): State<Arc<AppState>>,
    asked: std::result::Result<Json<Asked>, JsonRejection>,
) -> Result<Json<Outlook>> {
    let Json(asked) = asked?;
    Ok(Json(state.engine.explain_query_placement(&asked.sql, "http").await?))
}
