//! Liveness, readiness, and what the server says of itself.
//!
//! `/healthz` answers as long as the network runtime turns. `/readyz` asks whether statements can be served: the catalog
//! reads and every tier is mounted. A device that fails moves keeps nobody from reading: the answer is `degraded` then, and
//! says of what tier. What the device said names files, so it is told to those who may see them only.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use terrace_tier_store::store::TierInfo;

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
            let infos = state.store().tier_infos();
            if infos.is_empty() {
                return Err(unavailable("no tier is mounted".into()));
            }
            Ok(Json(readiness(&infos, state.store().tables().len())))
        })
        .await
}

/// The answer of a server that serves.
fn readiness(infos: &[TierInfo], tables: usize) -> Value {
    let tiers: Vec<&str> = infos.iter().map(|tier| tier.name.as_str()).collect();
    let failing = infos.iter().filter(|tier| tier.failing.is_some());
    let degraded: Vec<String> = failing
        .map(|tier| format!("the device of tier {} fails; moves to and from it pause, see system.tiers", tier.name))
        .collect();
    match degraded.as_slice() {
        [] => json!({"status": "ready", "tiers": tiers, "tables": tables}),
        degraded => json!({"status": "degraded", "degraded": degraded, "tiers": tiers, "tables": tables}),
    }
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

#[cfg(test)]
mod tests {
    use terrace_tier_store::migrate::Failing;
    use terrace_tier_store::placement::TierState;
    use terrace_tier_store::tier::{TierId, TierKind};

    use super::*;

    #[test]
    fn a_failing_tier_degrades_and_does_not_stop_serving() {
        let tier = |name: &str, failing| TierInfo {
            id: TierId(0),
            name: name.into(),
            kind: TierKind::Nvm,
            emulated: false,
            description: String::new(),
            state: TierState::Active,
            failing,
            rate_limit_bytes_per_s: None,
            read_gap_bytes: None,
            budget_bytes: 1,
            used_bytes: 0,
            placed_bytes: 0,
            stored_bytes: 0,
            segments: 0,
        };
        let ready = readiness(&[tier("dram", None), tier("nvm", None)], 3);
        assert_eq!(ready, json!({"status": "ready", "tiers": ["dram", "nvm"], "tables": 3}));
        let failing = Failing { since_unix_us: 1, retry_unix_us: 2, error: "cannot read /secret".into() };
        let degraded = readiness(&[tier("dram", None), tier("nvm", Some(failing))], 3);
        assert_eq!((&degraded["status"], &degraded["tiers"]), (&json!("degraded"), &json!(["dram", "nvm"])));
        let said = degraded.to_string();
        assert!(said.contains("the device of tier nvm fails") && !said.contains("secret"), "{said}");
    }
}
