//! `system.epochs`: one row per epoch of the tiering loop, newest first.

use arrow::datatypes::Field;

use terrace_tier_store::placement::{EpochRecord, TierPrice};

use super::{
    Batches, Live, NameFilter, count, counts, flag, flags, in_batches, optional_real, optional_reals, real, reals,
    text, texts, time, times,
};
use crate::error::Result;

/// Most epochs that are shown.
const LIMIT: usize = 1000;

pub(super) fn fields() -> Vec<Field> {
    vec![
        count("epoch"),
        time("decided"),
        text("trigger"),
        flag("dry_run"),
        count("segments"),
        count("moves"),
        count("moves_done"),
        count("moves_skipped"),
        count("moves_proposed"),
        count("planned_bytes"),
        count("moved_bytes"),
        real("before_us"),
        real("after_us"),
        real("objective_us"),
        real("bound_us"),
        real("gap"),
        text("solver"),
        count("solve_us"),
        count("move_us"),
        text("policy"),
        optional_real("dram_price_ns_per_byte"),
        optional_real("nvm_price_ns_per_byte"),
        text("prices_ns_per_byte"),
        real("predicted_us"),
        optional_real("measured_us"),
        optional_real("prediction_error"),
        count("measured_epochs"),
    ]
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(in_batches(live.store.epochs(LIMIT)?.into_iter(), fields(), |e| {
        vec![
            counts(e, |e| e.id),
            times(e, |e| e.unix_us),
            texts(e, |e| e.trigger.clone()),
            flags(e, |e| e.dry_run),
            counts(e, |e| e.segments),
            counts(e, |e| e.moves.into()),
            counts(e, |e| e.moves_done.into()),
            counts(e, |e| e.moves_skipped.into()),
            counts(e, |e| e.moves_proposed.into()),
            counts(e, |e| e.planned_bytes),
            counts(e, |e| e.moved_bytes),
            reals(e, |e| e.before_us),
            reals(e, |e| e.after_us),
            reals(e, |e| e.objective_us),
            reals(e, |e| e.bound_us),
            reals(e, |e| e.gap),
            texts(e, |e| e.solver.clone()),
            counts(e, |e| e.solve_us),
            counts(e, |e| e.move_us),
            texts(e, |e| e.policy.clone()),
            optional_reals(e, |e| price(e, "dram")),
            optional_reals(e, |e| price(e, "nvm")),
            texts(e, prices),
            reals(e, |e| e.predicted_us),
            optional_reals(e, |e| e.measured_us),
            optional_reals(e, |e| e.prediction_error),
            counts(e, |e| e.measured_epochs.into()),
        ]
    }))
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
