//! Tiers with their budgets: new ones, other budgets, draining, and those that go.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::Error;
use terrace_tier_store::migrate::Failing;
use terrace_tier_store::placement::TierState;
use terrace_tier_store::store::{TierInfo, TierOrder};

use super::page::{Page, Paged};
use super::problem::Result;
use super::state::AppState;
use crate::units::Size;

/// A tier as the API shows it.
#[derive(Debug, Serialize)]
pub struct Tier {
    name: String,
    kind: String,
    emulated: bool,
    description: String,
    state: TierState,
    /// What the loop's own moves read from its device, and write to it; `null`: no limit.
    rate_limit_bytes_per_s: Option<u64>,
    /// Why moves to and from it pause; `null` while its device is well.
    failing: Option<Failing>,
    /// `null`: no limit.
    budget_bytes: Option<u64>,
    used_bytes: u64,
    placed_bytes: u64,
    stored_bytes: u64,
    segments: u64,
    /// Of 10^9 bytes; `null`: none is configured.
    price_per_gb: Option<f64>,
}

impl Tier {
    fn of(state: &AppState, info: TierInfo) -> Self {
        let price = state.info.prices_per_gb.iter().find(|(tier, _)| *tier == info.name);
        Self {
            price_per_gb: price.map(|(_, price)| *price),
            name: info.name,
            kind: info.kind.to_string(),
            emulated: info.emulated,
            description: info.description,
            state: info.state,
            rate_limit_bytes_per_s: info.rate_limit_bytes_per_s,
            failing: info.failing,
            budget_bytes: limit(info.budget_bytes),
            used_bytes: info.used_bytes,
            placed_bytes: info.placed_bytes,
            stored_bytes: info.stored_bytes,
            segments: info.segments,
        }
    }
}

fn limit(bytes: u64) -> Option<u64> {
    (bytes < u64::MAX).then_some(bytes)
}

/// What may change about a tier; what is left out stays.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierChange {
    /// The new budget; a percentage is of the bytes of all sealed data.
    budget: Option<Size>,
    /// Bytes per second that the loop's own moves read from its device, and write to it, at most; 0: no limit.
    rate_limit: Option<Size>,
    /// True: it takes nothing more, and what lies there leaves. False: it takes segments again.
    draining: Option<bool>,
}

/// A tier that is gone.
#[derive(Debug, Serialize)]
pub struct DroppedTier {
    dropped: String,
}

/// `GET /api/v1/tiers`
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<Tier>>> {
    state
        .blocking(move |state| {
            let tiers = state.store().tier_infos();
            let total = tiers.len();
            Ok(Json(page.cut(tiers.into_iter().map(|tier| Tier::of(state, tier)), total)))
        })
        .await
}

/// `GET /api/v1/tiers/{name}`
pub async fn one(State(state): State<Arc<AppState>>, Path(name): Path<String>) -> Result<Json<Tier>> {
    state.blocking(move |state| Ok(Json(Tier::of(state, find(state, &name)?)))).await
}

/// `POST /api/v1/tiers`: adds a tier and answers with it.
pub async fn add(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<TierOrder>, JsonRejection>,
) -> Result<Json<Tier>> {
    let Json(order) = order?;
    state
        .blocking(move |state| {
            let name = order.name.clone();
            state.engine.add_tier(order)?;
            Ok(Json(Tier::of(state, find(state, &name)?)))
        })
        .await
}

/// `DELETE /api/v1/tiers/{name}`: takes a drained tier away.
pub async fn drop_one(State(state): State<Arc<AppState>>, Path(name): Path<String>) -> Result<Json<DroppedTier>> {
    state
        .blocking(move |state| {
            state.store().tiering().drop_tier(&name)?;
            Ok(Json(DroppedTier { dropped: name }))
        })
        .await
}

/// `PUT /api/v1/tiers/{name}`: sets budget and rate, drains or resumes, and answers with the tier as it is then. Segments that
/// no longer fit leave at once, those of a drained tier in epochs; until then the tier takes nothing new.
pub async fn change(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
    change: std::result::Result<Json<TierChange>, JsonRejection>,
) -> Result<Json<Tier>> {
    let Json(change) = change?;
    state
        .blocking(move |state| {
            find(state, &name)?;
            let store = state.store();
            let tiering = state.store().tiering();
            if let Some(rate) = change.rate_limit {
                tiering.set_rate_limit(&name, rate)?;
                tracing::info!(tier = %name, %rate, "rate limit changed over HTTP");
            }
            if let Some(budget) = change.budget {
                let bytes = budget.resolve(store.data_bytes());
                tiering.set_budget(&name, bytes)?;
                tracing::info!(tier = %name, bytes, "budget changed over HTTP");
            }
            match change.draining {
                Some(true) => tiering.drain_tier(&name)?,
                Some(false) => tiering.resume_tier(&name)?,
                None => {}
            }
            Ok(Json(Tier::of(state, find(state, &name)?)))
        })
        .await
}

fn find(state: &AppState, name: &str) -> Result<TierInfo> {
    let tiers = state.store().tier_infos();
    let known: Vec<String> = tiers.iter().map(|tier| tier.name.clone()).collect();
    let found = tiers.into_iter().find(|tier| tier.name == name);
    found.ok_or_else(|| Error::unknown_tier(name, &known).into())
}
