//! `system.placement_rules`: what users want of the placement, and what it comes to.

use arrow::datatypes::Field;
use terrace_tier_store::store::RuleStatus;
use terrace_tier_store::tier::TierKind;

use super::{Batches, Live, Wanted, count, counts, flag, flags, in_batches, text, texts, time, times};
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
    /// Bytes in its scope on tiers of a kind.
    held: [u64; 3],
}

pub(super) fn rows(live: Live, wanted: Wanted) -> Result<Batches> {
    let kinds: Vec<TierKind> =
        live.store.memory_tiers().iter().map(|tier| tier.kind()).chain([TierKind::Ssd]).collect();
    let row = move |status: RuleStatus| {
        let of = |kind| status.bytes_by_tier.iter().zip(&kinds).filter(|(_, k)| **k == kind).map(|(b, _)| b).sum();
        let held = [of(TierKind::Dram), of(TierKind::Nvm), of(TierKind::Ssd)];
        Row { status, held }
    };
    let statuses = live.store.rule_statuses(&|name| wanted.fits(name));
    Ok(in_batches(statuses.into_iter().map(row), fields(), |rows: &[Row]| {
        let [dram, nvm, ssd] = [0, 1, 2].map(|kind| counts(rows, |r| r.held.get(kind).copied().unwrap_or(0)));
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
