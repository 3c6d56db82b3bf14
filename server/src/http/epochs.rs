//! Epochs: the log, and a turn of the loop on demand.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::{EpochRecord, EpochReport, EpochRequest};

use super::page::{Page, Paged};
use super::problem::Result;
use super::state::AppState;

/// How to run an epoch.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochOrder {
    /// Decide and explain, move nothing.
    #[serde(default)]
    dry_run: bool,
}

/// `GET /api/v1/epochs`, newest first.
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<EpochRecord>>> {
    state.blocking(move |state| Ok(Json(page.cut_log(state.store().epochs(page.reach())?)))).await
}

/// `POST /api/v1/epochs`: runs an epoch (or only plans it) and answers with its moves once they are done.
pub async fn run(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<EpochOrder>, JsonRejection>,
) -> Result<Json<EpochReport>> {
    let Json(order) = order?;
    state
        .blocking(move |state| {
            tracing::info!(dry_run = order.dry_run, "epoch asked for over HTTP");
            let request = if order.dry_run { EpochRequest::dry_run("http") } else { EpochRequest::now("http") };
            Ok(Json(state.store().tiering().run_epoch(request)?))
        })
        .await
}

/// An epoch that was cancelled.
#[derive(Debug, Serialize)]
pub struct Cancelled {
    /// Its number.
    cancelled: u64,
}

/// `POST /api/v1/epochs/cancel`: ends the epoch or order under way after the move it is at.
pub async fn cancel(State(state): State<Arc<AppState>>) -> Result<Json<Cancelled>> {
    let cancelled = state.store().tiering().cancel_epoch()?;
    tracing::info!(cancelled, "epoch cancelled over HTTP");
    Ok(Json(Cancelled { cancelled }))
}
