//! What users say to the tiering loop: its mode, of all tables and of one, and the freeze.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use terrace_tier_store::placement::TieringMode;

use super::placement::table_name;
use super::problem::Result;
use super::state::AppState;

/// What holds now.
#[derive(Debug, Serialize)]
pub struct Placement {
    /// What the loop does with all tables.
    mode: TieringMode,
    /// True while nothing moves.
    frozen: bool,
    /// Since when, in microseconds since the Unix epoch.
    frozen_unix_us: Option<u64>,
    /// The epoch or order that is under way.
    epoch_under_way: Option<u64>,
    /// Tables with another mode than auto.
    tables: Vec<TableTiering>,
}

/// The mode of one table.
#[derive(Debug, Serialize)]
pub struct TableTiering {
    /// Full name.
    table: String,
    /// What the loop does with it.
    mode: TieringMode,
}

/// What is to hold; what is left out stays.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementOrder {
    mode: Option<TieringMode>,
    frozen: Option<bool>,
}

/// The mode of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TieringOrder {
    mode: TieringMode,
}

/// `GET /api/v1/placement`
pub async fn show(State(state): State<Arc<AppState>>) -> Json<Placement> {
    Json(now(&state))
}

/// `PUT /api/v1/placement`: sets the mode of all tables, freezes or unfreezes.
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

/// `PUT /api/v1/tables/{name}/tiering`
pub async fn change_table(
    State(state): State<Arc<AppState>>,
    Path(name): Path<String>,
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
