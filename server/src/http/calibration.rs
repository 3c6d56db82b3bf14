//! The cost of accesses on each tier: the known calibration, and a new measurement.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use terrace_tier_store::placement::{Calibration, TierCost};
use utoipa::ToSchema;

use super::problem::{Problem, Result};
use super::state::AppState;

/// A calibration, and the costs that placement uses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Calibration)]
pub struct Answer {
    #[serde(flatten)]
    calibration: Calibration,
    /// Costs by tier, in order; those of the home tier are corrected by scans.
    used: Vec<TierCost>,
}

impl From<Calibration> for Answer {
    fn from(calibration: Calibration) -> Self {
        Self { used: calibration.costs(), calibration }
    }
}

/// Shows the cost of accesses on each tier, as measured and as placement uses it.
#[utoipa::path(
    get,
    path = "/api/v1/calibration",
    operation_id = "getCalibration",
    responses((status = 200, description = "The known calibration", body = Answer)),
)]
pub async fn show(State(state): State<Arc<AppState>>) -> Result<Json<Answer>> {
    state
        .blocking(|state| {
            let known = state.store().tiering().calibration();
            let none = || {
                let detail = "the tiers are not calibrated yet; the first epoch measures them";
                Problem::new(StatusCode::NOT_FOUND, detail)
            };
            Ok(Json(known.ok_or_else(none)?.into()))
        })
        .await
}

/// Measures all tiers again, which takes about a second.
///
/// A tier that cannot be measured now, because it is full, keeps its costs.
#[utoipa::path(
    post,
    path = "/api/v1/calibration",
    operation_id = "calibrate",
    responses((status = 200, description = "The new calibration", body = Answer)),
)]
pub async fn measure(State(state): State<Arc<AppState>>) -> Result<Json<Answer>> {
    state
        .blocking(|state| {
            let measured = state.store().tiering().calibrate()?;
            tracing::info!(took_us = measured.took_us, "tiers calibrated over HTTP");
            Ok(Json(measured.into()))
        })
        .await
}
