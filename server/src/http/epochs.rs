//! Epochs: the log, and an epoch on demand.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::{EpochRecord, EpochReport, EpochRequest};
use utoipa::ToSchema;

use super::page::{Page, Paged, RawPage};
use super::problem::Result;
use super::state::AppState;

/// Options of an epoch.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct EpochOrder {
    /// Decide and explain, move nothing.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
}

/// Lists the epochs that were carried out, newest first.
#[utoipa::path(
    get,
    path = "/api/v1/epochs",
    operation_id = "listEpochs",
    params(RawPage),
    responses((status = 200, description = "A page of epochs", body = Paged<EpochRecord>)),
)]
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<EpochRecord>>> {
    state.blocking(move |state| Ok(Json(page.cut_log(state.store().epochs(page.items_to_read())?)))).await
}

/// Runs an epoch, or only plans it, and answers once its moves are done.
#[utoipa::path(
    post,
    path = "/api/v1/epochs",
    operation_id = "runEpoch",
    request_body = EpochOrder,
    responses((status = 200, description = "The epoch and its moves", body = EpochReport)),
)]
pub async fn run(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<EpochOrder>, JsonRejection>,
) -> Result<Json<EpochReport>> {
    let Json(order) = order?;
    state
        .blocking(move |state| {
            tracing::info!(dry_run = order.dry_run, "epoch requested over HTTP");
            let request = if order.dry_run { EpochRequest::dry_run("http") } else { EpochRequest::now("http") };
            Ok(Json(state.store().tiering().run_epoch(request)?))
        })
        .await
}

/// An epoch that was cancelled.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CancelledEpoch)]
pub struct Cancelled {
    /// Its number; its finished moves stay, the others are logged as skipped.
    cancelled: u64,
}

/// Ends the epoch or order under way after the move it is at.
///
/// Refused when none is under way.
#[utoipa::path(
    post,
    path = "/api/v1/epochs/cancel",
    operation_id = "cancelEpoch",
    responses((status = 200, description = "The cancelled epoch", body = Cancelled)),
)]
pub async fn cancel(State(state): State<Arc<AppState>>) -> Result<Json<Cancelled>> {
    let cancelled = state.store().tiering().cancel_epoch()?;
    tracing::info!(cancelled, "epoch cancelled over HTTP");
    Ok(Json(Cancelled { cancelled }))
}
