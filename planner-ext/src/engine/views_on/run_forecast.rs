//! Forecasts of tiering runs: the answer of EXPLAIN CREATE HOT VIEW and EXPLAIN ALTER HOT VIEW .. REFRESH.

use std::sync::Arc;

use terrace_tier_store::Store;
use terrace_tier_store::heat::Pattern;
use terrace_views::{Definition, Forecast};

use crate::system::ColumnList;

/// The forecast of the run of one hot view.
pub(super) struct RunForecast {
    pub(super) view: Arc<Definition>,
    pub(super) forecast: Forecast,
    /// Expected duration in microseconds, if it can be estimated.
    pub(super) us: Option<f64>,
}

/// Columns of the answer.
pub(super) fn columns() -> ColumnList<RunForecast> {
    ColumnList::<RunForecast>::new()
        .text("table_schema", |run| run.view.table.schema.clone())
        .text("table_name", |run| run.view.table.name.clone())
        .text("view_name", |run| run.view.name.name.clone())
        .count("version", |run| run.view.version)
        .count("chunks", |run| run.forecast.chunks)
        .count("chunks_none", |run| run.forecast.chunks_none)
        .count("chunks_all", |run| run.forecast.chunks_all)
        .count("chunks_some", |run| run.forecast.chunks_some)
        .count("chunks_unread", |run| run.forecast.chunks_unread)
        .count("chunks_to_read", |run| run.forecast.chunks_read)
        .count("chunks_to_rewrite", |run| run.forecast.chunks_rewritten)
        .count("chunks_to_write", |run| run.forecast.chunks_written)
        .count("bytes_to_read", |run| run.forecast.read_bytes)
        .count("bytes_to_write", |run| run.forecast.written_bytes)
        .count("rows", |run| run.forecast.rows)
        .count("rows_read_now", |run| run.forecast.rows_read_before)
        .count("rows_read_then", |run| run.forecast.rows_read_after)
        .optional_real("seconds", |run| run.us.map(|us| us / 1e6))
}

/// Expected duration of a run by the measured speed of the home tier, and no faster than `bytes_per_s` allows; `None`
/// before the tier was measured, and if a limit of 0 means that runs do not start automatically.
pub(super) fn estimate_us(forecast: &Forecast, store: &Store, bytes_per_s: Option<u64>) -> Option<f64> {
    let costs = store.costs();
    let home = costs.get(usize::from(store.home_tier().0))?;
    let sequential = Pattern::ALL.iter().position(|pattern| *pattern == Pattern::Sequential)?;
    let bytes_per_us = home.patterns.get(sequential)?.bytes_per_us;
    let bytes = (forecast.read_bytes + forecast.written_bytes) as f64;
    match bytes_per_s {
        Some(0) => None,
        Some(limit) => Some((bytes / bytes_per_us).max(bytes * 1e6 / limit as f64)),
        None => Some(bytes / bytes_per_us),
    }
}
