//! Explanations of the placement of segments and of the reads of a query.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use terrace_access::Principal;
use terrace_tier_store::placement::{Explanation, QueryCost};
use utoipa::ToSchema;

use super::placement::{NewScope, table_name};
use super::problem::Result;
use super::state::AppState;
use super::tables::TablePath;

/// Explanations of segments.
#[derive(Debug, Serialize, ToSchema)]
pub struct Explanations {
    /// One per segment in the scope.
    items: Vec<Explanation>,
}

/// A query to explain.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = QueryText)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct ExplainQuery {
    /// The query in SQL.
    sql: String,
}

/// Explains why segments of a table lie where they lie, and what would change it; changes nothing.
#[utoipa::path(
    post,
    path = "/api/v1/tables/{name}/explain-placement",
    operation_id = "explainPlacement",
    params(TablePath),
    request_body = NewScope,
    responses((status = 200, description = "One explanation per segment", body = Explanations)),
)]
pub async fn table(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    scope: std::result::Result<Json<NewScope>, JsonRejection>,
) -> Result<Json<Explanations>> {
    let Json(scope) = scope?;
    let table = table_name(&state, &name)?;
    let scope = scope.order()?;
    Ok(Json(Explanations { items: state.engine.explain_placement(&table, &scope).await? }))
}

/// Explains what a query would read and from where.
///
/// The query is planned, not run.
#[utoipa::path(
    post,
    path = "/api/v1/explain-placement",
    operation_id = "explainQueryPlacement",
    request_body = ExplainQuery,
    responses((status = 200, description = "The reads of the query", body = QueryCost)),
)]
pub async fn query(
    State(state): State<Arc<AppState>>,
    Extension(caller): Extension<Principal>,
    request: std::result::Result<Json<ExplainQuery>, JsonRejection>,
) -> Result<Json<QueryCost>> {
    let Json(request) = request?;
    Ok(Json(state.engine.explain_query_placement(&request.sql, caller).await?))
}
