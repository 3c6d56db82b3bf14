//! `system.tiers`: one row per tier, fastest first.

use terrace_tier_store::store::TierInfo;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<TierInfo> {
    ColumnList::<TierInfo>::new()
        .text("tier", |t| t.name.clone())
        .text("kind", |t| t.kind.to_string())
        .flag("emulated", |t| t.emulated)
        .text("description", |t| t.description.clone())
        .text("state", |t| t.state.name().to_owned())
        .count("budget_bytes", |t| t.budget_bytes)
        .count("used_bytes", |t| t.used_bytes)
        .count("placed_bytes", |t| t.placed_bytes)
        .count("stored_bytes", |t| t.stored_bytes)
        .count("segments", |t| t.segments)
        .optional_count("read_gap_bytes", |t| t.read_gap_bytes)
        .optional_count("rate_limit_bytes_per_s", |t| t.rate_limit_bytes_per_s)
        .optional_time("failing_since", |t| t.failing.as_ref().map(|failing| failing.since_unix_us))
        .optional_time("retry_at", |t| t.failing.as_ref().map(|failing| failing.retry_unix_us))
        .optional_text("last_error", |t| t.failing.as_ref().map(|failing| failing.error.clone()))
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(columns().batches(live.store.all_tier_infos().into_iter()))
}
