//! Answers of statements about placement as rows: explanations of segments, the costs of a query, outcomes of orders.

use terrace_tier_store::placement::{Explanation, Lever, OrderOutcome, QueryCost, ReadPart};

use super::ColumnList;
use super::moves::split;

/// Columns of explanations; there is one row per segment.
pub(crate) fn segment_columns() -> ColumnList<Explanation> {
    let lever = |e: &Explanation, lever: Lever| e.conditions.iter().find(|c| c.lever == lever).map(|c| c.value);
    let heat = |e: &Explanation, at: usize| e.heat.get(at).map_or(0.0, |(_, reads)| *reads);
    ColumnList::<Explanation>::new()
        .text("table_schema", |e| split(&e.table).0.to_owned())
        .text("table_name", |e| split(&e.table).1.to_owned())
        .count("chunk", |e| e.chunk)
        .text("column_name", |e| e.column.clone())
        .text("tier", |e| e.tier.clone())
        .text("planned_tier", |e| e.planned.clone())
        .optional_text("form", |e| e.form.map(|form| form.to_string()))
        .optional_text("planned_form", |e| e.planned_form.map(|form| form.to_string()))
        .count("bytes", |e| e.bytes)
        .real("sequential", move |e| heat(e, 0))
        .real("monotonic", move |e| heat(e, 1))
        .real("random", move |e| heat(e, 2))
        .real("point", move |e| heat(e, 3))
        .real("reads", |e| e.reads)
        .real("benefit_us", |e| e.benefit_us)
        .real("benefit_ns_per_byte", |e| e.benefit_ns_per_byte)
        .real("price_ns_per_byte", |e| e.price_ns_per_byte)
        .optional_text("runner_up", |e| e.runner_up.clone())
        .optional_real("runner_up_us", |e| e.runner_up_us)
        .optional_real("reads_above", move |e| lever(e, Lever::ReadsAbove))
        .optional_real("reads_below", move |e| lever(e, Lever::ReadsBelow))
        .optional_count("more_room_bytes", move |e| lever(e, Lever::MoreRoom).map(|bytes| bytes as u64))
        .optional_count("less_room_bytes", move |e| lever(e, Lever::LessRoom).map(|bytes| bytes as u64))
        .text("condition", |e| e.condition.clone())
        .optional_text("basis", |e| e.conditions.first().map(|c| c.basis.name().to_owned()))
        .optional_text("rules", |e| (!e.rules.is_empty()).then(|| e.rules.join("; ")))
        .text("why", |e| e.why.clone())
}

/// A row of the costs of a query: there is one per table, column and tier that it reads, and a last one for the total.
pub(crate) enum QueryCostRow {
    Part(ReadPart),
    Total(QueryCost),
}

impl QueryCostRow {
    pub(crate) fn all(cost: QueryCost) -> Vec<Self> {
        cost.parts.clone().into_iter().map(Self::Part).chain([Self::Total(cost)]).collect()
    }

    fn part_text(&self, text: fn(&ReadPart) -> &str) -> Option<String> {
        match self {
            Self::Part(part) => Some(text(part).to_owned()),
            Self::Total(_) => None,
        }
    }

    fn total(&self) -> Option<&QueryCost> {
        match self {
            Self::Part(_) => None,
            Self::Total(cost) => Some(cost),
        }
    }

    /// A value of the part, or of the total.
    fn either<V>(&self, part: fn(&ReadPart) -> V, total: fn(&QueryCost) -> V) -> V {
        match self {
            Self::Part(row) => part(row),
            Self::Total(row) => total(row),
        }
    }
}

/// Columns of the costs of a query.
pub(crate) fn query_cost_columns() -> ColumnList<QueryCostRow> {
    ColumnList::<QueryCostRow>::new()
        .optional_text("table_schema", |row| row.part_text(|part| split(&part.table).0))
        .optional_text("table_name", |row| row.part_text(|part| split(&part.table).1))
        .optional_text("column_name", |row| row.part_text(|part| &part.column))
        .optional_text("tier", |row| row.part_text(|part| &part.tier))
        .count("chunks", |row| row.either(|part| part.chunks, |cost| cost.parts.iter().map(|part| part.chunks).sum()))
        .count("bytes", |row| row.either(|part| part.bytes, |cost| cost.bytes))
        .real("read_us", |row| row.either(|part| part.read_us, |cost| cost.read_us))
        .real("fast_us", |row| row.either(|part| part.fast_us, |cost| cost.fast_us))
        .optional_real("runs_per_epoch", |row| row.total()?.runs_per_epoch)
        .optional_count("more_room_bytes", |row| row.total()?.more_room_bytes)
        .optional_text("why", |row| row.total().map(|cost| cost.why.clone()))
}

/// Columns of outcomes; there is one row per outcome of an order.
pub(crate) fn outcome_columns() -> ColumnList<OrderOutcome> {
    ColumnList::<OrderOutcome>::new()
        .text("outcome", |o| o.what.clone())
        .count("segments", |o| o.segments)
        .count("bytes", |o| o.bytes)
}
