//! Check, backup and disk usage of the running server.
//!
//! Checks and backups read files beside the statements: after each file they sleep as long as it took, so they use at
//! most half of the device. Where all processors are busy, statements come first. They end when the client disconnects.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::Deserialize;
use terrace_tier_store::clock::{Clock, SystemClock};
use terrace_tier_store::io::{Priority, with_priority};
use terrace_tier_store::store::{BackupReport, CheckOptions, CheckReport, Progress, Usage};
use utoipa::ToSchema;

use super::problem::{Problem, Result};
use super::state::AppState;
use super::tasks::{RunningTask, TaskKind};

/// Longest pause after a file.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Options of a check.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct CheckOrder {
    /// Check only sizes and headers.
    #[serde(default)]
    #[schema(default = false)]
    quick: bool,
    /// Repair damage from good copies.
    #[serde(default)]
    #[schema(default = false)]
    repair: bool,
}

/// The folder of a backup.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct BackupOrder {
    /// Absolute path of a folder on the server's machine that does not exist yet, or is empty.
    #[schema(value_type = String)]
    path: PathBuf,
}

/// Verifies all tables as they are now.
///
/// Answers when done, and ends when the client disconnects.
#[utoipa::path(
    post,
    path = "/api/v1/check",
    operation_id = "check",
    request_body = CheckOrder,
    responses((status = 200, description = "The report", body = CheckReport)),
)]
pub async fn check(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<CheckOrder>, JsonRejection>,
) -> Result<Json<CheckReport>> {
    let Json(CheckOrder { quick, repair }) = order?;
    let client = Client::default();
    let mut watch = client.watch(state.tasks.begin(TaskKind::Check));
    state
        .blocking(move |state| {
            tracing::info!(quick, repair, "check requested over HTTP");
            let check = || state.store().check(CheckOptions { quick, repair }, &mut watch);
            Ok(Json(with_priority(Priority::Planning, check)??))
        })
        .await
}

/// Copies all tables as of one commit to a folder on the server's machine; answers when the copy is complete.
#[utoipa::path(
    post,
    path = "/api/v1/backup",
    operation_id = "backup",
    request_body = BackupOrder,
    responses((status = 200, description = "What was copied", body = BackupReport)),
)]
pub async fn backup(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<BackupOrder>, JsonRejection>,
) -> Result<Json<BackupReport>> {
    let Json(BackupOrder { path }) = order?;
    if !path.is_absolute() {
        return Err(Problem::bad_request("'path' must be absolute: it is a folder on the server's machine"));
    }
    let client = Client::default();
    let mut watch = client.watch(state.tasks.begin(TaskKind::Backup));
    state
        .blocking(move |state| {
            tracing::info!(path = %path.display(), "backup requested over HTTP");
            // Writes through the folder handle that was checked, even if the path changes meanwhile.
            let output_path = state.engine.files().backup_path(&path)?;
            let copy = || state.store().backup(&output_path.path(), &mut watch);
            let copied = with_priority(Priority::Planning, copy)?.map_err(Problem::from);
            Ok(Json(copied.map_err(|problem| problem.map_detail(|detail| output_path.with_shown_path(detail)))?))
        })
        .await
}

/// Shows the disk usage of the data directory, by table.
#[utoipa::path(
    get,
    path = "/api/v1/usage",
    operation_id = "usage",
    responses((status = 200, description = "The disk usage", body = Usage)),
)]
pub async fn usage(State(state): State<Arc<AppState>>) -> Result<Json<Usage>> {
    state.blocking(move |state| Ok(Json(state.store().usage()?))).await
}

/// The waiting client. When it disconnects, the request's future is dropped, and this value with it.
#[derive(Default)]
struct Client {
    gone: Arc<AtomicBool>,
}

impl Client {
    /// Reports the progress, and sleeps as long as the last step took; false once the client is gone.
    fn watch(&self, task: RunningTask) -> impl FnMut(Progress) -> bool + Send + use<> {
        let gone = Arc::clone(&self.gone);
        let clock = SystemClock::default();
        let mut since_us = clock.now_us();
        move |progress| {
            task.report(progress);
            let step = Duration::from_micros(clock.now_us().saturating_sub(since_us));
            clock.sleep(step.min(LONGEST_PAUSE));
            since_us = clock.now_us();
            !gone.load(Ordering::Relaxed)
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}
