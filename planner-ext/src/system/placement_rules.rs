//! `system.placement_rules`: the placement rules of users, and how far they are met.

use arrow::datatypes::Field;
use terrace_tier_store::store::RuleStatus;
use terrace_tier_store::tier::TierKind;

use super::{Batches, Live, NameFilter, count, counts, flag, flags, in_batches, text, texts, time, times};
use crate::error::Result;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        count("rule"),
        text("kind"),
        text("tier"),
        text("definition"),
        time("made_at"),
        count("segments"),
        count("bytes"),
        count("met_bytes"),
        count("unmet_bytes"),
        count("overruled_bytes"),
        count("dram_bytes"),
        count("nvm_bytes"),
        count("ssd_bytes"),
        flag("met"),
    ]
}

struct Row {
    status: RuleStatus,
    /// Bytes in the scope of the rule on DRAM, NVM and SSD tiers.
    bytes_by_kind: [u64; 3],
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let kinds: Vec<TierKind> =
        live.store.memory_tiers().iter().map(|tier| tier.kind()).chain([TierKind::Ssd]).collect();
    let row = move |status: RuleStatus| {
        let bytes_on =
            |kind| status.bytes_by_tier.iter().zip(&kinds).filter(|(_, k)| **k == kind).map(|(b, _)| b).sum();
        let bytes_by_kind = [bytes_on(TierKind::Dram), bytes_on(TierKind::Nvm), bytes_on(TierKind::Ssd)];
        Row { status, bytes_by_kind }
    };
    let statuses = live.store.rule_statuses(&|name| names.matches(name));
    Ok(in_batches(statuses.into_iter().map(row), fields(), |rows: &[Row]| {
        let [dram, nvm, ssd] = [0, 1, 2].map(|kind| counts(rows, |r| r.bytes_by_kind.get(kind).copied().unwrap_or(0)));
        vec![
            texts(rows, |r| r.status.table_name.schema.clone()),
            texts(rows, |r| r.status.table_name.name.clone()),
            counts(rows, |r| r.status.rule),
            texts(rows, |r| r.status.kind.to_owned()),
            texts(rows, |r| r.status.tier.clone()),
            texts(rows, |r| r.status.definition.clone()),
            times(rows, |r| r.status.made_unix_us),
            counts(rows, |r| r.status.segments),
            counts(rows, |r| r.status.bytes),
            counts(rows, |r| r.status.met_bytes),
            counts(rows, |r| r.status.unmet_bytes),
            counts(rows, |r| r.status.overruled_bytes),
            dram,
            nvm,
            ssd,
            flags(rows, |r| r.status.met),
        ]
    }))
}
