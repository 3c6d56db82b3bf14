//! Check, backup and disk usage of the running server.
//!
//! Checks and backups read files beside the statements: after each file they sleep as long as it took, so they take at
//! most half of the device. They end when the client goes away.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::Deserialize;
use terrace_tier_store::store::{BackupReport, CheckOptions, CheckReport, Progress, Usage};

use super::problem::{Problem, Result};
use super::state::AppState;

/// Longest pause after a file.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How to check.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckOrder {
    /// Only sizes and headers.
    #[serde(default)]
    quick: bool,
    /// Heal what has a good copy.
    #[serde(default)]
    repair: bool,
}

/// Where a backup goes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupOrder {
    /// A folder on the server's machine that does not exist yet.
    path: PathBuf,
}

/// `POST /api/v1/check`: verifies all tables as they are now and answers with the report.
pub async fn check(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<CheckOrder>, JsonRejection>,
) -> Result<Json<CheckReport>> {
    let Json(CheckOrder { quick, repair }) = order?;
    let client = Client::default();
    let mut watch = client.watch();
    state
        .blocking(move |state| {
            tracing::info!(quick, repair, "check asked for over HTTP");
            Ok(Json(state.store().check(CheckOptions { quick, repair }, &mut watch)?))
        })
        .await
}

/// `POST /api/v1/backup`: copies all tables as of one commit and answers when the copy is complete.
pub async fn backup(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<BackupOrder>, JsonRejection>,
) -> Result<Json<BackupReport>> {
    let Json(BackupOrder { path }) = order?;
    if !path.is_absolute() {
        return Err(Problem::bad_request("'path' must be absolute: it is a folder on the server's machine"));
    }
    let client = Client::default();
    let mut watch = client.watch();
    state
        .blocking(move |state| {
            tracing::info!(path = %path.display(), "backup asked for over HTTP");
            // Through the folder that was checked, whatever becomes of the way to it.
            let place = state.engine.files().place(&path)?;
            let copied = state.store().backup(&place.path(), &mut watch).map_err(Problem::from);
            Ok(Json(copied.map_err(|problem| problem.in_words(|detail| place.named(detail)))?))
        })
        .await
}

/// `GET /api/v1/usage`
pub async fn usage(State(state): State<Arc<AppState>>) -> Result<Json<Usage>> {
    state.blocking(move |state| Ok(Json(state.store().usage()?))).await
}

/// The client that waits: the request's future is dropped when it goes away, and this with it.
#[derive(Default)]
struct Client {
    gone: Arc<AtomicBool>,
}

impl Client {
    /// Sleeps as long as the last step took; false once the client is gone.
    fn watch(&self) -> impl FnMut(Progress) -> bool + Send + use<> {
        let gone = Arc::clone(&self.gone);
        let mut since = Instant::now();
        move |_| {
            std::thread::sleep(since.elapsed().min(LONGEST_PAUSE));
            since = Instant::now();
            !gone.load(Ordering::Relaxed)
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}
