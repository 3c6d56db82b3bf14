//! What accesses cost on each tier: as measured, and measured anew.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use terrace_tier_store::placement::{Calibration, TierCost};

use super::problem::{Problem, Result};
use super::state::AppState;

/// A calibration, and the costs that placement reckons with.
#[derive(Debug, Serialize)]
pub struct Answer {
    #[serde(flatten)]
    calibration: Calibration,
    /// By tier, in order: the home's with what scans say of it.
    used: Vec<TierCost>,
}

impl From<Calibration> for Answer {
    fn from(calibration: Calibration) -> Self {
        Self { used: calibration.costs(), calibration }
    }
}

/// `GET /api/v1/calibration`
pub async fn show(State(state): State<Arc<AppState>>) -> Result<Json<Answer>> {
    state
        .blocking(|state| {
            let known = state.store().tiering().calibration();
            let none = || {
                let words = "the tiers are not calibrated yet; they are measured with the first epoch";
                Problem::new(StatusCode::NOT_FOUND, words)
            };
            Ok(Json(known.ok_or_else(none)?.into()))
        })
        .await
}

/// `POST /api/v1/calibration`: measures all tiers anew and answers with what was found.
pub async fn measure(State(state): State<Arc<AppState>>) -> Result<Json<Answer>> {
    state
        .blocking(|state| {
            let measured = state.store().tiering().calibrate()?;
            tracing::info!(took_us = measured.took_us, "tiers measured anew over HTTP");
            Ok(Json(measured.into()))
        })
        .await
}
