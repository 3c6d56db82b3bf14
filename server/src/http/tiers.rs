//! Tiers: list, add, change of budgets and rates, drain, drop.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::Error;
use terrace_tier_store::migrate::Failing;
use terrace_tier_store::placement::TierState;
use terrace_tier_store::store::{NewTierSpec, TierInfo};
use terrace_tier_store::tier::TierKind;
use utoipa::ToSchema;

use super::page::{Page, Paged, RawPage};
use super::problem::Result;
use super::state::AppState;
use crate::units::Size;

/// A tier as the API shows it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Tier {
    /// Its name.
    name: String,
    /// Its kind.
    kind: TierKind,
    /// True when ordinary memory stands in for the device.
    emulated: bool,
    /// Description of its device.
    description: String,
    /// Whether it takes segments.
    state: TierState,
    /// Limit of the loop's own reads from its device, and of its writes; `null`: no limit.
    #[schema(required)]
    rate_limit_bytes_per_s: Option<u64>,
    /// The reason for which moves to and from it pause; `null` while its device works.
    #[schema(required)]
    failing: Option<Failing>,
    /// Its budget; `null`: no limit.
    #[schema(required)]
    budget_bytes: Option<u64>,
    /// Bytes that count against the budget now, copies that readers hold included.
    used_bytes: u64,
    /// Bytes of the segments whose fastest copy it holds.
    placed_bytes: u64,
    /// Bytes of all copies that it holds.
    stored_bytes: u64,
    /// Number of segments on it.
    segments: u64,
    /// Price of 10^9 bytes; `null`: none is configured.
    #[schema(required)]
    price_per_gb: Option<f64>,
}

impl Tier {
    fn from_info(state: &AppState, info: TierInfo) -> Self {
        let price = state.info.prices_per_gb.iter().find(|(tier, _)| *tier == info.name);
        Self {
            price_per_gb: price.map(|(_, price)| *price),
            name: info.name,
            kind: info.kind,
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

/// A change of a tier; missing fields stay as they are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct TierChange {
    /// The new budget; a percentage is of the bytes of all sealed data.
    budget: Option<Size>,
    /// Bytes per second that the loop's own moves read from its device, and write to it, at most; 0: no limit.
    rate_limit: Option<Size>,
    /// True: the tier takes no more segments, and its segments move elsewhere. False: it takes segments again.
    draining: Option<bool>,
}

/// A dropped tier.
#[derive(Debug, Serialize, ToSchema)]
pub struct DroppedTier {
    /// Its name.
    dropped: String,
}

/// Lists the tiers, fastest first.
#[utoipa::path(
    get,
    path = "/api/v1/tiers",
    operation_id = "listTiers",
    params(RawPage),
    responses((status = 200, description = "A page of tiers", body = Paged<Tier>)),
)]
pub async fn list(State(state): State<Arc<AppState>>, page: Page) -> Result<Json<Paged<Tier>>> {
    state
        .blocking(move |state| {
            let tiers = state.store().all_tier_infos();
            let total = tiers.len();
            Ok(Json(page.cut(tiers.into_iter().map(|tier| Tier::from_info(state, tier)), total)))
        })
        .await
}

/// Shows one tier.
#[utoipa::path(
    get,
    path = "/api/v1/tiers/{name}",
    operation_id = "getTier",
    params(("name" = String, Path, description = "Name of the tier", example = "dram")),
    responses((status = 200, description = "The tier", body = Tier)),
)]
pub async fn one(State(state): State<Arc<AppState>>, Path(name): Path<String>) -> Result<Json<Tier>> {
    state.blocking(move |state| Ok(Json(Tier::from_info(state, find(state, &name)?)))).await
}

/// Adds a memory tier while statements run, until the server stops.
///
/// The next epoch may use it.
#[utoipa::path(
    post,
    path = "/api/v1/tiers",
    operation_id = "addTier",
    request_body = NewTierSpec,
    responses((status = 200, description = "The new tier", body = Tier)),
)]
pub async fn add(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<NewTierSpec>, JsonRejection>,
) -> Result<Json<Tier>> {
    let Json(order) = order?;
    state
        .blocking(move |state| {
            let name = order.name.clone();
            state.engine.add_tier(order)?;
            Ok(Json(Tier::from_info(state, find(state, &name)?)))
        })
        .await
}

/// Drops a drained tier.
///
/// Refused, with the figures, while segments or readers hold bytes of it.
#[utoipa::path(
    delete,
    path = "/api/v1/tiers/{name}",
    operation_id = "dropTier",
    params(("name" = String, Path, description = "Name of the tier", example = "dram")),
    responses((status = 200, description = "The dropped tier", body = DroppedTier)),
)]
pub async fn drop_one(State(state): State<Arc<AppState>>, Path(name): Path<String>) -> Result<Json<DroppedTier>> {
    state
        .blocking(move |state| {
            state.store().tiering().drop_tier(&name)?;
            Ok(Json(DroppedTier { dropped: name }))
        })
        .await
}

/// Sets budget and rate of a tier, drains it, or lets it take segments again.
///
/// Segments that no longer fit leave at once, those of a drained tier in epochs; until then the tier takes nothing new.
#[utoipa::path(
    put,
    path = "/api/v1/tiers/{name}",
    operation_id = "changeTier",
    params(("name" = String, Path, description = "Name of the tier", example = "dram")),
    request_body = TierChange,
    responses((status = 200, description = "The tier as it is then", body = Tier)),
)]
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
            Ok(Json(Tier::from_info(state, find(state, &name)?)))
        })
        .await
}

fn find(state: &AppState, name: &str) -> Result<TierInfo> {
    let tiers = state.store().all_tier_infos();
    let known: Vec<String> = tiers.iter().map(|tier| tier.name.clone()).collect();
    let found = tiers.into_iter().find(|tier| tier.name == name);
    found.ok_or_else(|| Error::unknown_tier(name, &known).into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use serde_json::{Map, Value, json, to_value};
    use utoipa::PartialSchema as _;

    use super::*;

    fn keys(value: &Value) -> BTreeSet<&String> {
        value.as_object().unwrap().keys().collect()
    }

    /// What the document says of a request must be what the server reads.
    #[test]
    fn orders_of_the_document_are_read() {
        let order = to_value(NewTierSpec::schema()).unwrap();
        let all = json!({
            "name": "pmem", "path": "/mnt/pmem", "emulated": false, "capacity": "2GiB", "budget": "10%", "slow": false
        });
        assert_eq!(keys(&all), keys(&order["properties"]));
        serde_json::from_value::<NewTierSpec>(all.clone()).unwrap();
        let required = order["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        let least: Value = required.map(|name| (name.to_owned(), all[name].clone())).collect::<Map<_, _>>().into();
        serde_json::from_value::<NewTierSpec>(least).unwrap();
        let examples = to_value(Size::schema()).unwrap()["examples"].clone();
        assert_eq!(serde_json::from_value::<Vec<Size>>(examples).unwrap().len(), 3);
    }
}
