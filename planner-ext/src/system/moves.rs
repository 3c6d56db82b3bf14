//! `system.moves`: one row per move of a segment, newest epoch first, each with its reason. Moves between epochs are
//! aggregated to one row for each direction. With MONITOR all, else those of the tables whose figures one may see, which keep their
//! moves when they get another name.

use std::collections::HashSet;

use terrace_access::Right;
use terrace_tier_store::placement::MoveRecord;

use super::{Batches, ColumnList, Live, NameFilter};
use crate::error::Result;

/// Most moves that are shown.
const LIMIT: usize = 100_000;

pub(crate) fn columns() -> ColumnList<MoveRecord> {
    ColumnList::<MoveRecord>::new()
        .count("epoch", |m| m.epoch)
        .count("number", |m| m.number.into())
        .text("table_schema", |m| split(&m.table).0.to_owned())
        .text("table_name", |m| split(&m.table).1.to_owned())
        .count("chunk", |m| m.chunk)
        .text("column_name", |m| m.column.clone())
        .text("from_tier", |m| m.from.clone())
        .text("to_tier", |m| m.to.clone())
        .count("segments", |m| m.segments)
        .count("bytes", |m| m.bytes)
        .real("benefit_us", |m| m.benefit_us)
        .real("benefit_ns_per_byte", |m| m.benefit_ns_per_byte)
        .optional_real("price_ns_per_byte", |m| m.price_ns_per_byte)
        .optional_text("runner_up", |m| m.runner_up.clone())
        .optional_real("runner_up_us", |m| m.runner_up_us)
        .text("reason", |m| m.reason.clone())
        .text("condition", |m| m.condition.clone())
        .text("status", |m| m.status.name().to_owned())
        .optional_text("why_skipped", |m| m.why.clone())
        .time("ended", |m| m.unix_us)
        .count("took_us", |m| m.took_us)
        .optional_real("measured_us", |m| m.measured_us)
        .count("measured_epochs", |m| m.measured_epochs.into())
        .optional_text("from_form", |m| m.from_form.map(|form| form.to_string()))
        .optional_text("to_form", |m| m.to_form.map(|form| form.to_string()))
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    let mut moves = live.store.moves(LIMIT)?;
    if !live.viewer.may_on_server(Right::Monitor) {
        let tables = live.store.tables();
        let shown = tables.iter().filter(|table| live.viewer.sees_figures(table.name()));
        let shown: HashSet<u64> = shown.map(|table| table.id().0).collect();
        // Not by name: another table may have had it.
        moves.retain(|m| m.table_id.is_some_and(|id| shown.contains(&id)));
    }
    Ok(columns().batches(moves.into_iter()))
}

/// Schema and name of a table's full name.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or(("", name))
}
