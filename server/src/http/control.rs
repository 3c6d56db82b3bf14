//! Control of the tiering loop: its mode for all tables and for one, and the freeze.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::TieringMode;
use utoipa::ToSchema;

use super::placement::table_name;
use super::problem::Result;
use super::state::AppState;
use super::tables::TablePath;

/// The present state of the loop.
#[derive(Debug, Serialize, ToSchema)]
pub struct Placement {
    /// The mode for all tables.
    mode: TieringMode,
    /// True while nothing moves.
    frozen: bool,
    /// Start of the freeze in microseconds since the Unix epoch.
    #[schema(required)]
    frozen_unix_us: Option<u64>,
    /// The running epoch or order.
    #[schema(required)]
    epoch_under_way: Option<u64>,
    /// Tables with another mode than auto.
    tables: Vec<TableTiering>,
}

/// The mode of one table.
#[derive(Debug, Serialize, ToSchema)]
pub struct TableTiering {
    /// Full name.
    table: String,
    /// The mode of the table.
    mode: TieringMode,
}

/// A change of the state; missing fields stay as they are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct PlacementOrder {
    /// The mode for all tables.
    mode: Option<TieringMode>,
    /// True: nothing moves. False: segments move again.
    frozen: Option<bool>,
}

/// The mode of a table.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
pub struct TieringOrder {
    /// The new mode.
    mode: TieringMode,
}

/// Shows the mode of the tiering loop and the freeze.
#[utoipa::path(
    get,
    path = "/api/v1/placement",
    operation_id = "showPlacement",
    responses((status = 200, description = "The present state", body = Placement)),
)]
pub async fn show(State(state): State<Arc<AppState>>) -> Json<Placement> {
    Json(now(&state))
}

/// Sets the mode of the tiering loop, freezes or unfreezes placement.
#[utoipa::path(
    put,
    path = "/api/v1/placement",
    operation_id = "changePlacement",
    request_body = PlacementOrder,
    responses((status = 200, description = "The state after the change", body = Placement)),
)]
pub async fn change(
    State(state): State<Arc<AppState>>,
    order: std::result::Result<Json<PlacementOrder>, JsonRejection>,
) -> Result<Json<Placement>> {
    let Json(order) = order?;
    state
        .blocking(move |state| {
            let tiering = state.store().tiering();
            if let Some(mode) = order.mode {
                tiering.set_mode(mode)?;
            }
            match order.frozen {
                Some(true) => tiering.freeze()?,
                Some(false) => tiering.unfreeze()?,
                None => {}
            }
            tracing::info!(?order, "tiering loop changed over HTTP");
            Ok(Json(now(state)))
        })
        .await
}

/// Sets the mode of the tiering loop for a table; it stays after restarts.
#[utoipa::path(
    put,
    path = "/api/v1/tables/{name}/tiering",
    operation_id = "setTableTiering",
    params(TablePath),
    request_body = TieringOrder,
    responses((status = 200, description = "The new mode", body = TableTiering)),
)]
pub async fn change_table(
    State(state): State<Arc<AppState>>,
    Path(TablePath { name }): Path<TablePath>,
    order: std::result::Result<Json<TieringOrder>, JsonRejection>,
) -> Result<Json<TableTiering>> {
    let Json(order) = order?;
    let table = table_name(&state, &name)?;
    state.engine.set_table_tiering(&table, order.mode).await?;
    tracing::info!(%table, mode = %order.mode, "tiering of a table changed over HTTP");
    Ok(Json(TableTiering { table: table.to_string(), mode: order.mode }))
}

fn now(state: &AppState) -> Placement {
    let control = state.store().tiering().control();
    let tables = state.store().tables();
    let tables = tables.iter().map(|table| (table.name().to_string(), table.options().tiering));
    let others = tables.filter(|(_, mode)| *mode != TieringMode::Auto);
    Placement {
        mode: control.mode,
        frozen: control.frozen_unix_us.is_some(),
        frozen_unix_us: control.frozen_unix_us,
        epoch_under_way: state.store().tiering().under_way(),
        tables: others.map(|(table, mode)| TableTiering { table, mode }).collect(),
    }
}
