//! Rows of the tables and answers about hot views.

use std::sync::Arc;

use terrace_scan::hot_views::ViewTally;
use terrace_tier_store::table::TableName;
use terrace_tier_store::tier::TierKind;
use terrace_views::{Coverage, Definition, Proposal, PublishedView, Status};

use crate::error::Result;
use crate::system::{
    Batches, ColumnList, Live, NameFilter, counts, flags, hot_view_proposals, hot_views, in_batches, optional_counts,
    optional_texts, reals, texts, times,
};

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
        let runs = live.hot_views.views.runs();
        let state = match definition.is_pending() {
            _ if runs.running().as_ref() == Some(&definition.name) => "running",
            true => "pending",
            false => "published",
        };
        let tally = live.hot_views.views.tally(&definition.name);
        let last_error = runs.error(&definition.name);
        Self { coverage, dram_bytes, tally, state, last_error, status }
    }
}

/// Rows of `system.hot_views`.
pub(crate) fn hot_view_rows(live: Live, names: NameFilter) -> Result<Batches> {
    let views = live.hot_views.views.current()?;
    let is_shown = |table: &TableName| names.matches(table) && live.viewer.sees_figures(table);
    let found: Vec<Status> = views.iter().filter(|status| is_shown(&status.definition.table)).cloned().collect();
    let found = found.into_iter().map(move |status| Row::new(&live, status));
    Ok(in_batches(found, hot_views::schema(), |rows: &[Row]| {
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

/// Rows of `system.hot_view_proposals`.
pub(crate) fn proposal_rows(live: Live, names: NameFilter) -> Result<Batches> {
    let proposals = live.hot_views.views.miner().proposals().into_iter();
    let viewer = live.viewer;
    let found = proposals.filter(move |p| names.matches(&p.table) && viewer.sees_figures(&p.table));
    Ok(in_batches(found, hot_view_proposals::schema(), |rows: &[Proposal]| {
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

/// Result of checking one scan against one view.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) definition: Arc<Definition>,
    /// The conjunct that is not proven; `None` if the view is implied.
    pub(super) lacks: Option<String>,
    /// Columns that are read and that the view does not have.
    pub(super) outside: String,
    /// Coverage of the table's chunks; `None` while no chunk has its mark.
    pub(super) coverage: Option<Coverage>,
}

/// Columns of checks; there is one row per scan and view.
pub(super) fn checked_columns() -> ColumnList<Checked> {
    ColumnList::<Checked>::new()
        .text("table_schema", |c| c.definition.table.schema.clone())
        .text("table_name", |c| c.definition.table.name.clone())
        .text("view_name", |c| c.definition.name.name.clone())
        .count("version", |c| c.definition.version)
        .flag("implied", |c| c.lacks.is_none())
        .optional_text("reason", |c| c.lacks.clone())
        .optional_text("columns_outside", |c| Some(c.outside.clone()).filter(|outside| !outside.is_empty()))
        .flag("published", |c| c.coverage.is_some())
        .optional_count("chunks_left", |c| c.coverage.map(|coverage| coverage.chunks_to_read()))
        .optional_count("chunks", |c| c.coverage.map(|coverage| coverage.chunks))
}
