//! Liveness, readiness, and what the server says of itself.
//!
//! `/healthz` answers as long as the network runtime turns. `/readyz` asks whether statements can be served: the catalog
//! reads and every tier is mounted. A device that fails moves, or a disk on which nothing can be stored, keeps nobody from
//! reading: the answer is `degraded` then, and says of what tier, or that writes are refused. What the device said names
//! files, so it is told to those who may see them only.

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
            let failing = state.store().catalog_failing();
            let read = state.store().epochs(1).map_err(|e| unavailable(format!("the catalog does not read: {e}")));
            // A disk that refused a write may have to be opened again before it can be read.
            if failing.is_none() {
                read?;
            }
            let infos = state.store().tier_infos();
            if infos.is_empty() {
                return Err(unavailable("no tier is mounted".into()));
            }
            let now_unix_us = crate::unix_us();
            let writes = failing.map(|failing| failing.retry_unix_us.saturating_sub(now_unix_us).div_ceil(1_000_000));
            Ok(Json(readiness(&infos, writes, state.store().tables().len())))
        })
        .await
}

/// The answer of a server that serves; `writes_in_s`: nothing can be stored, and it is tried again after so many seconds.
fn readiness(infos: &[TierInfo], writes_in_s: Option<u64>, tables: usize) -> Value {
    let tiers: Vec<&str> = infos.iter().map(|tier| tier.name.as_str()).collect();
    let failing = infos.iter().filter(|tier| tier.failing.is_some());
    let writes = writes_in_s.map(|seconds| {
        format!(
            "the disk of the data directory fails or is full; writes are refused, reads go on, tried again in {seconds} s, \
             unless the log says restart"
        )
    });
    let tiers_failing = failing
        .map(|tier| format!("the device of tier {} fails; moves to and from it pause, see system.tiers", tier.name));
    let degraded: Vec<String> = writes.into_iter().chain(tiers_failing).collect();
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
        let ready = readiness(&[tier("dram", None), tier("nvm", None)], None, 3);
        assert_eq!(ready, json!({"status": "ready", "tiers": ["dram", "nvm"], "tables": 3}));
        let failing = Failing { since_unix_us: 1, retry_unix_us: 2, error: "cannot read /secret".into() };
        let degraded = readiness(&[tier("dram", None), tier("nvm", Some(failing))], None, 3);
        assert_eq!((&degraded["status"], &degraded["tiers"]), (&json!("degraded"), &json!(["dram", "nvm"])));
        let said = degraded.to_string();
        assert!(said.contains("the device of tier nvm fails") && !said.contains("secret"), "{said}");
        let degraded = readiness(&[tier("dram", None)], Some(7), 3);
        let said = degraded.to_string();
        assert!(
            degraded["status"] == "degraded"
                && said.contains("writes are refused, reads go on, tried again in 7 s, unless the log says restart"),
            "{said}"
        );
    }
}
