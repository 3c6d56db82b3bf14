//! Orders on placement: bring back, warm up, roll back. Each answers when its moves are done.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::Deserialize;
use terrace_tier_store::placement::{Order, OrderReport};
use utoipa::ToSchema;

use super::placement::{NewScope, Span, table_name};
use super::problem::Result;
use super::state::AppState;
use super::tables::TablePath;

/// Segments, and the tier to move them to.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = BringBackOrder)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct BringBack {
    /// Name of the tier.
    tier: String,
    /// Column names; all columns when missing.
    columns: Option<Vec<String>>,
    /// Ranges of chunks, and the chunks that take their rows over; all chunks when missing.
    chunks: Option<Vec<Span>>,
    /// A condition in SQL; chunks whose bounds rule it out are not in scope. Not together with `chunks`.
    #[serde(rename = "where")]
    #[schema(examples("day >= '2026-01-01'"))]
    condition: Option<String>,
}

/// The epoch whose placement is restored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = RollBackOrder)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct RollBack {
    /// Number of the epoch.
    epoch: u64,
}

/// Brings segments to a tier, now and once.
///
/// What cannot fit is refused with the figures.
#[utoipa::path(
    post,
    path = "/api/v1/tables/{name}/bring-back",
    operation_id = "bringBack",
    params(TablePath),
    request_body = BringBack,
    responses((status = 200, description = "The result of the order", body = OrderReport)),
)]
pub async fn bring_back(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    order: std::result::Result<Json<BringBack>, JsonRejection>,
) -> Result<Json<OrderReport>> {
    let Json(BringBack { tier, columns, chunks, condition }) = order?;
    let table = table_name(&state, &name)?;
    let scope = NewScope { columns, chunks, condition }.order()?;
    tracing::info!(%table, tier, "bring-back requested over HTTP");
    Ok(Json(state.engine.bring_back(&table, &scope, tier).await?))
}

/// Brings segments into memory as far as it pays, without reading rows.
#[utoipa::path(
    post,
    path = "/api/v1/tables/{name}/warm-up",
    operation_id = "warmUp",
    params(TablePath),
    request_body = NewScope,
    responses((status = 200, description = "The result of the order", body = OrderReport)),
)]
pub async fn warm_up(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    scope: std::result::Result<Json<NewScope>, JsonRejection>,
) -> Result<Json<OrderReport>> {
    let Json(scope) = scope?;
    let table = table_name(&state, &name)?;
    let scope = scope.order()?;
    tracing::info!(%table, "warm-up requested over HTTP");
    Ok(Json(state.engine.warm_up(&table, &scope).await?))
}

/// Brings every segment to its tier after an epoch, as far as the segment is still there.
#[utoipa::path(
    post,
    path = "/api/v1/placement/roll-back",
    operation_id = "rollBackPlacement",
    request_body = RollBack,
    responses((status = 200, description = "The result of the order", body = OrderReport)),
)]
pub async fn roll_back(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<RollBack>, JsonRejection>,
) -> Result<Json<OrderReport>> {
    let Json(RollBack { epoch }) = order?;
    tracing::info!(epoch, "roll-back requested over HTTP");
    Ok(Json(state.engine.order_placement(Order::RollBack { epoch }).await?))
}
