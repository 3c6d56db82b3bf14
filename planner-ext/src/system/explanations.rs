//! Answers of statements about placement as rows: explanations of segments, the costs of a query, outcomes of orders.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use terrace_tier_store::placement::{Explanation, Lever, OrderOutcome, QueryCost, ReadPart};

use super::moves::split;
use super::{
    count, counts, optional_count, optional_counts, optional_real, optional_reals, optional_text, optional_texts, real,
    reals, text, texts,
};
use crate::error::Result;

/// Columns of explanations; there is one row per segment.
pub(crate) fn segment_fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        count("chunk"),
        text("column_name"),
        text("tier"),
        text("planned_tier"),
        count("bytes"),
        real("sequential"),
        real("monotonic"),
        real("random"),
        real("point"),
        real("reads"),
        real("benefit_us"),
        real("benefit_ns_per_byte"),
        real("price_ns_per_byte"),
        optional_text("runner_up"),
        optional_real("runner_up_us"),
        optional_real("reads_above"),
        optional_real("reads_below"),
        optional_count("more_room_bytes"),
        optional_count("less_room_bytes"),
        text("condition"),
        optional_text("basis"),
        optional_text("rules"),
        text("why"),
    ]
}

/// The rows of explanations.
pub(crate) fn segments(items: &[Explanation]) -> Result<RecordBatch> {
    let lever = |e: &Explanation, lever: Lever| e.conditions.iter().find(|c| c.lever == lever).map(|c| c.value);
    let heat = |at: usize| reals(items, move |e| e.heat.get(at).map_or(0.0, |(_, reads)| *reads));
    let columns: Vec<ArrayRef> = vec![
        texts(items, |e| split(&e.table).0.to_owned()),
        texts(items, |e| split(&e.table).1.to_owned()),
        counts(items, |e| e.chunk),
        texts(items, |e| e.column.clone()),
        texts(items, |e| e.tier.clone()),
        texts(items, |e| e.planned.clone()),
        counts(items, |e| e.bytes),
        heat(0),
        heat(1),
        heat(2),
        heat(3),
        reals(items, |e| e.reads),
        reals(items, |e| e.benefit_us),
        reals(items, |e| e.benefit_ns_per_byte),
        reals(items, |e| e.price_ns_per_byte),
        optional_texts(items, |e| e.runner_up.clone()),
        optional_reals(items, |e| e.runner_up_us),
        optional_reals(items, |e| lever(e, Lever::ReadsAbove)),
        optional_reals(items, |e| lever(e, Lever::ReadsBelow)),
        optional_counts(items, |e| lever(e, Lever::MoreRoom).map(|bytes| bytes as u64)),
        optional_counts(items, |e| lever(e, Lever::LessRoom).map(|bytes| bytes as u64)),
        texts(items, |e| e.condition.clone()),
        optional_texts(items, |e| e.conditions.first().map(|c| c.basis.name().to_owned())),
        optional_texts(items, |e| (!e.rules.is_empty()).then(|| e.rules.join("; "))),
        texts(items, |e| e.why.clone()),
    ];
    Ok(RecordBatch::try_new(Arc::new(Schema::new(segment_fields())), columns)?)
}

/// Columns of the costs of a query; there is one row per table, column and tier that it reads, and a last one for the
/// total.
pub(crate) fn query_cost_fields() -> Vec<Field> {
    vec![
        optional_text("table_schema"),
        optional_text("table_name"),
        optional_text("column_name"),
        optional_text("tier"),
        count("chunks"),
        count("bytes"),
        real("read_us"),
        real("fast_us"),
        optional_real("runs_per_epoch"),
        optional_count("more_room_bytes"),
        optional_text("why"),
    ]
}

/// The rows of the costs of a query.
pub(crate) fn query_cost(cost: &QueryCost) -> Result<RecordBatch> {
    let rows: Vec<Option<&ReadPart>> = cost.parts.iter().map(Some).chain([None]).collect();
    let part_texts =
        |value: fn(&ReadPart) -> &str| optional_texts(&rows, move |row| row.map(|part| value(part).to_owned()));
    let last = |row: &Option<&ReadPart>| row.is_none().then_some(cost);
    let columns: Vec<ArrayRef> = vec![
        part_texts(|part| split(&part.table).0),
        part_texts(|part| split(&part.table).1),
        part_texts(|part| &part.column),
        part_texts(|part| &part.tier),
        counts(&rows, |row| row.map_or_else(|| cost.parts.iter().map(|part| part.chunks).sum(), |part| part.chunks)),
        counts(&rows, |row| row.map_or(cost.bytes, |part| part.bytes)),
        reals(&rows, |row| row.map_or(cost.read_us, |part| part.read_us)),
        reals(&rows, |row| row.map_or(cost.fast_us, |part| part.fast_us)),
        optional_reals(&rows, |row| last(row)?.runs_per_epoch),
        optional_counts(&rows, |row| last(row)?.more_room_bytes),
        optional_texts(&rows, |row| last(row).map(|cost| cost.why.clone())),
    ];
    Ok(RecordBatch::try_new(Arc::new(Schema::new(query_cost_fields())), columns)?)
}

/// Columns of outcomes; there is one row per outcome of an order.
pub(crate) fn outcome_fields() -> Vec<Field> {
    vec![text("outcome"), count("segments"), count("bytes")]
}

/// The rows of outcomes.
pub(crate) fn outcomes(items: &[OrderOutcome]) -> Result<RecordBatch> {
    let columns = vec![texts(items, |o| o.what.clone()), counts(items, |o| o.segments), counts(items, |o| o.bytes)];
    Ok(RecordBatch::try_new(Arc::new(Schema::new(outcome_fields())), columns)?)
}
