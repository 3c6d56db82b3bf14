//! Orders on placement: bring back, warm up, roll back. Each answers when its moves are done.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::Deserialize;
use terrace_tier_store::placement::{Order, OrderReport};

use super::placement::{NewScope, Span, table_name};
use super::problem::Result;
use super::state::AppState;

/// What goes where.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BringBack {
    tier: String,
    columns: Option<Vec<String>>,
    chunks: Option<Vec<Span>>,
    #[serde(rename = "where")]
    condition: Option<String>,
}

/// Where to go back to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    epoch: u64,
}

/// `POST /api/v1/tables/{name}/bring-back`
pub async fn bring_back(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    order: std::result::Result<Json<BringBack>, JsonRejection>,
) -> Result<Json<OrderReport>> {
    let Json(BringBack { tier, columns, chunks, condition }) = order?;
    let table = table_name(&state, &name)?;
    let scope = NewScope { columns, chunks, condition }.order()?;
    tracing::info!(%table, tier, "bring back asked for over HTTP");
    Ok(Json(state.engine.bring_back(&table, &scope, tier).await?))
}

/// `POST /api/v1/tables/{name}/warm-up`
pub async fn warm_up(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    scope: std::result::Result<Json<NewScope>, JsonRejection>,
) -> Result<Json<OrderReport>> {
    let Json(scope) = scope?;
    let table = table_name(&state, &name)?;
    let scope = scope.order()?;
    tracing::info!(%table, "warm-up asked for over HTTP");
    Ok(Json(state.engine.warm_up(&table, &scope).await?))
}

/// `POST /api/v1/placement/roll-back`
pub async fn roll_back(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<RollBack>, JsonRejection>,
) -> Result<Json<OrderReport>> {
    let Json(RollBack { epoch }) = order?;
    tracing::info!(epoch, "roll back asked for over HTTP");
    Ok(Json(state.engine.order_placement(Order::RollBack { epoch }).await?))
}
