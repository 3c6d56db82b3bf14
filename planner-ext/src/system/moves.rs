//! `system.moves`: one row per move of a segment, newest epoch first, each with its reason. Moves between epochs are
//! aggregated to one row for each direction.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use terrace_tier_store::placement::MoveRecord;

use super::{
    Batches, Live, NameFilter, count, counts, in_batches, optional_real, optional_reals, optional_text, optional_texts,
    real, reals, text, texts, time, times,
};
use crate::error::Result;

/// Most moves that are shown.
const LIMIT: usize = 100_000;

pub(crate) fn fields() -> Vec<Field> {
    vec![
        count("epoch"),
        count("number"),
        text("table_schema"),
        text("table_name"),
        count("chunk"),
        text("column_name"),
        text("from_tier"),
        text("to_tier"),
        count("segments"),
        count("bytes"),
        real("benefit_us"),
        real("benefit_ns_per_byte"),
        optional_real("price_ns_per_byte"),
        optional_text("runner_up"),
        optional_real("runner_up_us"),
        text("reason"),
        text("condition"),
        text("status"),
        optional_text("why_skipped"),
        time("ended"),
        count("took_us"),
        optional_real("measured_us"),
        count("measured_epochs"),
    ]
}

pub(super) fn rows(live: Live, _: NameFilter) -> Result<Batches> {
    Ok(in_batches(live.store.moves(LIMIT)?.into_iter(), fields(), columns))
}

/// Like the table, but for moves that are not in the log.
pub(crate) fn batch(moves: &[MoveRecord]) -> Result<RecordBatch> {
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields())), columns(moves))?)
}

fn columns(m: &[MoveRecord]) -> Vec<ArrayRef> {
    vec![
        counts(m, |m| m.epoch),
        counts(m, |m| m.number.into()),
        texts(m, |m| split(&m.table).0.to_owned()),
        texts(m, |m| split(&m.table).1.to_owned()),
        counts(m, |m| m.chunk),
        texts(m, |m| m.column.clone()),
        texts(m, |m| m.from.clone()),
        texts(m, |m| m.to.clone()),
        counts(m, |m| m.segments),
        counts(m, |m| m.bytes),
        reals(m, |m| m.benefit_us),
        reals(m, |m| m.benefit_ns_per_byte),
        optional_reals(m, |m| m.price_ns_per_byte),
        optional_texts(m, |m| m.runner_up.clone()),
        optional_reals(m, |m| m.runner_up_us),
        texts(m, |m| m.reason.clone()),
        texts(m, |m| m.condition.clone()),
        texts(m, |m| m.status.name().to_owned()),
        optional_texts(m, |m| m.why.clone()),
        times(m, |m| m.unix_us),
        counts(m, |m| m.took_us),
        optional_reals(m, |m| m.measured_us),
        counts(m, |m| m.measured_epochs.into()),
    ]
}

/// Schema and name of a table's full name.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or(("", name))
}
