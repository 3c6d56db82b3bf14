//! `system.hot_view_proposals`: hot views that would pay for the statements of the last epochs, with reasons and
//! states.

use arrow::datatypes::Field;

use super::{Batches, Live, NameFilter, count, counts, in_batches, real, reals, text, texts, time, times};
use crate::error::Result;
use crate::views::Proposal;

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        text("state"),
        text("predicate"),
        text("statement"),
        text("reason"),
        real("scans_per_epoch"),
        real("served_per_epoch"),
        count("read_bytes_per_epoch"),
        count("saved_bytes_per_epoch"),
        count("rows"),
        count("table_rows"),
        count("cost_bytes"),
        real("payback_epochs"),
        time("proposed_at"),
        time("changed_at"),
    ]
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let proposals = live.hot_views.miner().proposals().into_iter();
    let found = proposals.filter(move |proposal| names.matches(&proposal.table));
    Ok(in_batches(found, fields(), |rows: &[Proposal]| {
        vec![
            texts(rows, |p| p.table.schema.clone()),
            texts(rows, |p| p.table.name.clone()),
            texts(rows, |p| p.view.name.clone()),
            texts(rows, |p| p.state.name().to_owned()),
            texts(rows, |p| p.predicate.clone()),
            texts(rows, Proposal::statement),
            texts(rows, |p| p.reason.clone()),
            reals(rows, |p| p.basis.scans),
            reals(rows, |p| p.basis.served),
            counts(rows, |p| p.basis.read_bytes as u64),
            counts(rows, |p| p.basis.saved_bytes as u64),
            counts(rows, |p| p.basis.rows as u64),
            counts(rows, |p| p.basis.table_rows as u64),
            counts(rows, |p| p.basis.cost_bytes as u64),
            reals(rows, |p| p.basis.payback_epochs()),
            times(rows, |p| p.made_at_us),
            times(rows, |p| p.changed_at_us),
        ]
    }))
}
