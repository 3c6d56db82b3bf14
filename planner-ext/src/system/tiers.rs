//! `system.tiers`: one row per tier, fastest first.

use super::{Batches, Live, NameFilter, count, counts, flag, flags, in_batches};
use super::{
    optional_count, optional_counts, optional_text, optional_texts, optional_time, optional_times, text, texts,
};
use crate::error::Result;
use arrow::datatypes::Field;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("tier"),
        text("kind"),
        flag("emulated"),
        text("description"),
        text("state"),
        count("budget_bytes"),
        count("used_bytes"),
        count("placed_bytes"),
        count("stored_bytes"),
        count("segments"),
        optional_count("read_gap_bytes"),
        optional_count("rate_limit_bytes_per_s"),
        optional_time("failing_since"),
        optional_time("retry_at"),
        optional_text("last_error"),
    ]
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(in_batches(live.store.tier_infos().into_iter(), fields(), |tiers| {
        vec![
            texts(tiers, |t| t.name.clone()),
            texts(tiers, |t| t.kind.to_string()),
            flags(tiers, |t| t.emulated),
            texts(tiers, |t| t.description.clone()),
            texts(tiers, |t| t.state.name().to_owned()),
            counts(tiers, |t| t.budget_bytes),
            counts(tiers, |t| t.used_bytes),
            counts(tiers, |t| t.placed_bytes),
            counts(tiers, |t| t.stored_bytes),
            counts(tiers, |t| t.segments),
            optional_counts(tiers, |t| t.read_gap_bytes),
            optional_counts(tiers, |t| t.rate_limit_bytes_per_s),
            optional_times(tiers, |t| t.failing.as_ref().map(|failing| failing.since_unix_us)),
            optional_times(tiers, |t| t.failing.as_ref().map(|failing| failing.retry_unix_us)),
            optional_texts(tiers, |t| t.failing.as_ref().map(|failing| failing.error.clone())),
        ]
    }))
}
