//! The log of moves, newest first.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use terrace_tier_store::placement::MoveRecord;

use super::page::{Page, Paged};
use super::problem::Result;
use super::state::AppState;

/// `GET /api/v1/moves`
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<MoveRecord>>> {
    state.blocking(move |state| Ok(Json(page.cut_log(state.store().moves(page.reach())?)))).await
}
