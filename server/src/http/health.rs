//! Liveness, readiness, and the status of the server.
//!
//! `/healthz` answers as long as the network runtime works. `/readyz` says whether statements can be served: the
//! catalog can be read and every tier is mounted. Reads still work when a device fails moves or a disk cannot store
//! anything. Then the answer is `degraded` and names the tier, or says that writes are refused. The device's error
//! names files, so it is sent only to users who may see them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;
use terrace_access::Principal;
use terrace_tier_store::store::TierInfo;
use utoipa::ToSchema;

use super::problem::{Problem, Result};
use super::state::AppState;

/// The answer of a living process.
#[derive(Debug, Serialize, ToSchema)]
pub struct Alive {
    /// Always ok.
    status: AliveStatus,
}

/// The status of a living process.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum AliveStatus {
    /// The process answers.
    Ok,
}

/// The answer of a ready server.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ready {
    /// Whether something should be looked at.
    status: ReadyStatus,
    /// What should be looked at; only where the status is degraded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<String>,
    /// Names of the tiers.
    tiers: Vec<String>,
    /// Number of tables.
    tables: usize,
}

/// ready: statements are served; degraded: they are, and something should be looked at.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ReadyStatus {
    /// Statements are served.
    Ready,
    /// Statements are served, and something should be looked at.
    Degraded,
}

/// Is the process alive?
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "alive",
    responses((status = 200, description = "It is", body = Alive)),
)]
pub async fn alive() -> Json<Alive> {
    Json(Alive { status: AliveStatus::Ok })
}

/// Can statements be served?
///
/// 503 with the reason when not, and `degraded` when moves pause because a device fails, or writes are refused.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "ready",
    responses((status = 200, description = "They can", body = Ready)),
)]
pub async fn ready(State(state): State<Arc<AppState>>) -> Result<Json<Ready>> {
    let unavailable = |what: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, what);
    state
        .blocking(move |state| {
            let failing = state.store().catalog_failing();
            let read = state.store().epochs(1).map_err(|e| unavailable(format!("cannot read the catalog: {e}")));
            // A catalog on a disk that refused a write may have to be opened again before it can be read.
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

/// The answer of a ready server. `writes_in_s`: writes are refused, and the server tries again after so many seconds.
fn readiness(infos: &[TierInfo], writes_in_s: Option<u64>, tables: usize) -> Ready {
    let tiers = infos.iter().map(|tier| tier.name.clone()).collect();
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
    let status = if degraded.is_empty() { ReadyStatus::Ready } else { ReadyStatus::Degraded };
    Ready { status, degraded, tiers, tables }
}

/// The status of the server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Server)]
pub struct ServerStatus {
    /// Version of the build.
    version: String,
    /// Time since the start of the process, in microseconds.
    uptime_us: u64,
    /// Address of Flight SQL.
    flight_url: String,
    /// The data directory.
    data_dir: String,
    /// Memory of the process.
    resident_bytes: u64,
    /// Open sessions.
    sessions: i64,
    /// True when the API needs credentials.
    authentication: bool,
    /// Name of the user who asks.
    user: String,
    /// Nodes of the process that execute parts of queries; 0 where there are not several.
    nodes: usize,
}

/// Shows the status of the server.
#[utoipa::path(
    get,
    path = "/api/v1/server",
    operation_id = "server",
    responses((status = 200, description = "The status", body = ServerStatus)),
)]
pub async fn server(State(state): State<Arc<AppState>>, Extension(caller): Extension<Principal>) -> Json<ServerStatus> {
    let info = &state.info;
    Json(ServerStatus {
        version: info.version.clone(),
        uptime_us: crate::unix_us().saturating_sub(info.started_unix_us),
        flight_url: format!("{}://{}", if info.tls { "grpc+tls" } else { "grpc" }, info.flight_addr),
        data_dir: info.data_dir.display().to_string(),
        resident_bytes: crate::metrics::resident_bytes(),
        sessions: state.flight.sessions(),
        authentication: !state.users().is_open(),
        user: caller.user,
        nodes: state.engine.nodes().len(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use terrace_tier_store::migrate::Failing;
    use terrace_tier_store::placement::TierState;
    use terrace_tier_store::tier::{TierId, TierKind};

    use super::*;

    #[test]
    fn a_failing_tier_degrades_and_does_not_stop_serving() {
        let answer = |infos: &[TierInfo], writes| serde_json::to_value(readiness(infos, writes, 3)).unwrap();
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
        let ready = answer(&[tier("dram", None), tier("nvm", None)], None);
        assert_eq!(ready, json!({"status": "ready", "tiers": ["dram", "nvm"], "tables": 3}));
        let failing = Failing { since_unix_us: 1, retry_unix_us: 2, error: "cannot read /secret".into() };
        let degraded = answer(&[tier("dram", None), tier("nvm", Some(failing))], None);
        assert_eq!((&degraded["status"], &degraded["tiers"]), (&json!("degraded"), &json!(["dram", "nvm"])));
        let said = degraded.to_string();
        assert!(said.contains("the device of tier nvm fails") && !said.contains("secret"), "{said}");
        let degraded = answer(&[tier("dram", None)], Some(7));
        let said = degraded.to_string();
        assert!(
            degraded["status"] == "degraded"
                && said.contains("writes are refused, reads go on, tried again in 7 s, unless the log says restart"),
            "{said}"
        );
    }
}
