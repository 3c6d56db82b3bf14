//! `system.epochs`: one row per epoch of the tiering loop, newest first.

use terrace_tier_store::placement::{EpochRecord, TierPrice};

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

/// Most epochs that are shown.
const LIMIT: usize = 1000;

pub(super) fn columns() -> ColumnList<EpochRecord> {
    ColumnList::<EpochRecord>::new()
        .count("epoch", |e| e.id)
        .time("decided", |e| e.unix_us)
        .text("trigger", |e| e.trigger.clone())
        .flag("dry_run", |e| e.dry_run)
        .count("segments", |e| e.segments)
        .count("moves", |e| e.moves.into())
        .count("moves_done", |e| e.moves_done.into())
        .count("moves_skipped", |e| e.moves_skipped.into())
        .count("moves_proposed", |e| e.moves_proposed.into())
        .count("planned_bytes", |e| e.planned_bytes)
        .count("moved_bytes", |e| e.moved_bytes)
        .real("before_us", |e| e.before_us)
        .real("after_us", |e| e.after_us)
        .real("objective_us", |e| e.objective_us)
        .real("bound_us", |e| e.bound_us)
        .real("gap", |e| e.gap)
        .text("solver", |e| e.solver.clone())
        .count("solve_us", |e| e.solve_us)
        .count("move_us", |e| e.move_us)
        .text("policy", |e| e.policy.clone())
        .optional_real("dram_price_ns_per_byte", |e| price(e, "dram"))
        .optional_real("nvm_price_ns_per_byte", |e| price(e, "nvm"))
        .text("prices_ns_per_byte", prices)
        .real("predicted_us", |e| e.predicted_us)
        .optional_real("measured_us", |e| e.measured_us)
        .optional_real("prediction_error", |e| e.prediction_error)
        .count("measured_epochs", |e| e.measured_epochs.into())
        .optional_text("certified_by", |e| e.certified_by.clone())
        .optional_real("certified_gap", |e| e.certified_gap)
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(columns().batches(live.store.epochs(LIMIT)?.into_iter()))
}

/// The prices of all tiers of the epoch as JSON; a record has the tiers by name, as there may be others now.
fn prices(epoch: &EpochRecord) -> String {
    let price =
        |price: &TierPrice| format!("{}:{}", serde_json::Value::from(price.tier.as_str()), price.price_ns_per_byte);
    format!("{{{}}}", epoch.prices.iter().map(price).collect::<Vec<_>>().join(","))
}

fn price(epoch: &EpochRecord, tier: &str) -> Option<f64> {
    epoch.prices.iter().find(|price| price.tier == tier).map(|price| price.price_ns_per_byte)
}
