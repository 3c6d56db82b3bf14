//! `system.hot_views`: all hot views, with their states, the coverage of their tables' chunks and the counts of scans.
//! Also the rows of EXPLAIN HOT VIEWS.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};

use terrace_tier_store::tier::TierKind;

use super::{
    Batches, Live, NameFilter, count, counts, flag, flags, in_batches, optional_count, optional_counts, optional_text,
    optional_texts, text, texts, time, times,
};
use crate::error::Result;
use crate::views::{Coverage, Definition, PublishedView, Status, ViewTally};

pub(super) fn fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        text("columns"),
        text("predicate"),
        optional_text("bound_predicate"),
        flag("moving"),
        count("version"),
        time("bound_at"),
        time("made_at"),
        optional_text("problem"),
        optional_count("published_version"),
        count("chunks"),
        count("hot_chunks"),
        count("unknown_chunks"),
        count("rows"),
        count("bytes"),
        count("hits"),
        count("misses"),
        count("pruned_chunks"),
        count("saved_bytes"),
        text("state"),
        text("refresh"),
        optional_text("last_error"),
        optional_count("budget_bytes"),
        count("dram_bytes"),
    ]
}

/// A view with its state.
struct Row {
    status: Status,
    coverage: Coverage,
    dram_bytes: u64,
    tally: Arc<ViewTally>,
    state: &'static str,
    last_error: Option<String>,
}

impl Row {
    fn new(live: &Live, status: Status) -> Self {
        let definition = &status.definition;
        let mark = status.published.as_ref().map(PublishedView::mark);
        let version = live.store.table(&definition.table).map(|table| table.version());
        let memory = live.store.memory_tiers();
        let dram: Vec<_> = memory.iter().filter(|tier| tier.kind() == TierKind::Dram).map(|tier| tier.id()).collect();
        let figures = version.map(|version| {
            (Coverage::new(&version, definition, mark), Coverage::bytes_on(&version, definition, mark, &dram))
        });
        let (coverage, dram_bytes) = figures.unwrap_or_default();
        let runs = live.hot_views.runs();
        let state = match definition.is_pending() {
            _ if runs.running().as_ref() == Some(&definition.name) => "running",
            true => "pending",
            false => "published",
        };
        let tally = live.hot_views.tally(&definition.name);
        let last_error = runs.error(&definition.name);
        Self { coverage, dram_bytes, tally, state, last_error, status }
    }
}

pub(super) fn rows(live: Live, names: NameFilter) -> Result<Batches> {
    let views = live.hot_views.current()?;
    let found: Vec<Status> = views.iter().filter(|status| names.matches(&status.definition.table)).cloned().collect();
    let found = found.into_iter().map(move |status| Row::new(&live, status));
    Ok(in_batches(found, fields(), |rows: &[Row]| {
        let definition = |row: &Row| Arc::clone(&row.status.definition);
        let published = |row: &Row| Some(row.status.published.as_ref()?.view().definition().version);
        vec![
            texts(rows, |r| definition(r).table.schema.clone()),
            texts(rows, |r| definition(r).table.name.clone()),
            texts(rows, |r| definition(r).name.name.clone()),
            texts(rows, |r| columns(&r.status.definition)),
            texts(rows, |r| definition(r).predicate.clone()),
            optional_texts(rows, |r| r.status.bound.as_ref().ok().map(|bound| bound.text().to_owned())),
            flags(rows, |r| r.status.bound.as_ref().is_ok_and(|bound| bound.is_moving())),
            counts(rows, |r| definition(r).version),
            times(rows, |r| definition(r).bound_at_us),
            times(rows, |r| definition(r).made_at_us),
            optional_texts(rows, |r| r.status.bound.as_ref().err().map(|error| error.message().to_owned())),
            optional_counts(rows, published),
            counts(rows, |r| r.coverage.chunks),
            counts(rows, |r| r.coverage.hot_chunks),
            counts(rows, |r| r.coverage.unknown_chunks),
            counts(rows, |r| r.coverage.hot_rows),
            counts(rows, |r| r.coverage.hot_bytes),
            counts(rows, |r| r.tally.hits()),
            counts(rows, |r| r.tally.misses()),
            counts(rows, |r| r.tally.pruned_chunks()),
            counts(rows, |r| r.tally.saved_bytes()),
            texts(rows, |r| r.state.to_owned()),
            texts(rows, |r| definition(r).refresh()),
            optional_texts(rows, |r| r.last_error.clone()),
            optional_counts(rows, |r| definition(r).budget_bytes),
            counts(rows, |r| r.dram_bytes),
        ]
    }))
}

fn columns(definition: &Definition) -> String {
    if definition.columns.is_empty() { "*".to_owned() } else { definition.columns.join(", ") }
}

/// Result of checking one scan against one view.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub(crate) definition: Arc<Definition>,
    /// The conjunct that is not proven; `None` if the view is implied.
    pub(crate) lacks: Option<String>,
    /// Columns that are read and that the view does not have.
    pub(crate) outside: String,
    /// Coverage of the table's chunks; `None` while no chunk knows the view.
    pub(crate) coverage: Option<Coverage>,
}

/// Columns of checks; there is one row per scan and view.
pub(crate) fn checked_fields() -> Vec<Field> {
    vec![
        text("table_schema"),
        text("table_name"),
        text("view_name"),
        count("version"),
        flag("implied"),
        optional_text("reason"),
        optional_text("columns_outside"),
        flag("published"),
        optional_count("chunks_left"),
        optional_count("chunks"),
    ]
}

/// The rows of checks.
pub(crate) fn checked(items: &[Checked]) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = vec![
        texts(items, |c| c.definition.table.schema.clone()),
        texts(items, |c| c.definition.table.name.clone()),
        texts(items, |c| c.definition.name.name.clone()),
        counts(items, |c| c.definition.version),
        flags(items, |c| c.lacks.is_none()),
        optional_texts(items, |c| c.lacks.clone()),
        optional_texts(items, |c| Some(c.outside.clone()).filter(|outside| !outside.is_empty())),
        flags(items, |c| c.coverage.is_some()),
        optional_counts(items, |c| c.coverage.map(|coverage| coverage.chunks_to_read())),
        optional_counts(items, |c| c.coverage.map(|coverage| coverage.chunks)),
    ];
    Ok(RecordBatch::try_new(Arc::new(Schema::new(checked_fields())), columns)?)
}
