//! Liveness, readiness, and what the server says of itself.
//!
//! `/healthz` answers as long as the network runtime turns. `/readyz` asks whether statements can be served: the catalog
//! reads and every tier is mounted.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::problem::{Problem, Result};
use super::state::AppState;

/// `GET /healthz`
pub async fn alive() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /readyz`: 503 with the reason when statements cannot be served.
pub async fn ready(State(state): State<Arc<AppState>>) -> Result<Json<Value>> {
    let unavailable = |what: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, what);
    state
        .blocking(move |state| {
            state.store().epochs(1).map_err(|e| unavailable(format!("the catalog does not read: {e}")))?;
            let tiers: Vec<String> = state.store().tier_infos().into_iter().map(|t| t.name).collect();
            if tiers.is_empty() {
                return Err(unavailable("no tier is mounted".into()));
            }
            Ok(Json(json!({"status": "ready", "tiers": tiers, "tables": state.store().tables().len()})))
        })
        .await
}

/// What the server says of itself.
#[derive(Debug, Serialize)]
pub struct ServerStatus {
    version: String,
    uptime_us: u64,
    flight_url: String,
    data_dir: String,
    resident_bytes: u64,
    sessions: i64,
    authentication: bool,
}

/// `GET /api/v1/server`
pub async fn server(State(state): State<Arc<AppState>>) -> Json<ServerStatus> {
    let info = &state.info;
    Json(ServerStatus {
        version: info.version.clone(),
        uptime_us: crate::unix_us().saturating_sub(info.started_unix_us),
        flight_url: format!("grpc://{}", info.flight_addr),
        data_dir: info.data_dir.display().to_string(),
        resident_bytes: crate::metrics::resident_bytes(),
        sessions: state.flight.sessions(),
        authentication: info.credentials.is_some(),
    })
}
