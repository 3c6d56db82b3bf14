//! `system.placement_rules`: the placement rules of users, and how far they are met.

use terrace_tier_store::store::RuleStatus;
use terrace_tier_store::tier::TierKind;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

pub(super) fn columns() -> ColumnList<Row> {
    ColumnList::<Row>::new()
        .text("table_schema", |r| r.status.table_name.schema.clone())
        .text("table_name", |r| r.status.table_name.name.clone())
        .count("rule", |r| r.status.rule)
        .text("kind", |r| r.status.kind.to_owned())
        .text("tier", |r| r.status.tier.clone())
        .text("definition", |r| r.status.definition.clone())
        .time("made_at", |r| r.status.made_unix_us)
        .count("segments", |r| r.status.segments)
        .count("bytes", |r| r.status.bytes)
        .count("met_bytes", |r| r.status.met_bytes)
        .count("unmet_bytes", |r| r.status.unmet_bytes)
        .count("overruled_bytes", |r| r.status.overruled_bytes)
        .count("dram_bytes", |r| r.bytes_by_kind[0])
        .count("nvm_bytes", |r| r.bytes_by_kind[1])
        .count("ssd_bytes", |r| r.bytes_by_kind[2])
        .flag("met", |r| r.status.met)
        .optional_text("form", |r| r.status.form.map(|form| form.to_string()))
}

pub(super) struct Row {
    status: RuleStatus,
    /// Bytes in the scope of the rule on DRAM tiers, on NVM tiers, and at the home.
    bytes_by_kind: [u64; 3],
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let kinds: Vec<TierKind> =
        live.store.memory_tiers().iter().map(|tier| tier.kind()).chain([live.store.home().kind()]).collect();
    let row = move |status: RuleStatus| {
        let bytes_on = |kind| -> u64 {
            status.bytes_by_tier.iter().zip(&kinds).filter(|(_, k)| **k == kind).map(|(b, _)| b).sum()
        };
        // The home is of one of two kinds.
        let home = bytes_on(TierKind::Ssd) + bytes_on(TierKind::Object);
        let bytes_by_kind = [bytes_on(TierKind::Dram), bytes_on(TierKind::Nvm), home];
        Row { status, bytes_by_kind }
    };
    let statuses = live.store.rule_statuses(&|name| names.matches(name) && live.viewer.sees_figures(name));
    Ok(columns().batches(statuses.into_iter().map(row)))
}
