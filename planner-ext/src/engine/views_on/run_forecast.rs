//! Forecasts of tiering runs: the answer of EXPLAIN CREATE HOT VIEW and EXPLAIN ALTER HOT VIEW .. REFRESH.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};
use terrace_tier_store::Store;
use terrace_tier_store::heat::Pattern;
use terrace_views::{Definition, Forecast};

use crate::error::Result;
use crate::system::{count, counts, optional_real, optional_reals, text, texts};

/// The forecast of the run of one hot view.
pub(super) struct RunForecast {
    pub(super) view: Arc<Definition>,
    pub(super) forecast: Forecast,
    /// Expected duration in microseconds, if it can be estimated.
    pub(super) us: Option<f64>,
}

/// Columns of the answer.
pub(super) fn fields() -> Vec<Field> {
    let counted = [
        "version",
        "chunks",
        "chunks_none",
        "chunks_all",
        "chunks_some",
        "chunks_unread",
        "chunks_to_read",
        "chunks_to_rewrite",
        "chunks_to_write",
        "bytes_to_read",
        "bytes_to_write",
        "rows",
        "rows_read_now",
        "rows_read_then",
    ];
    let names = ["table_schema", "table_name", "view_name"];
    names.map(text).into_iter().chain(counted.map(count)).chain([optional_real("seconds")]).collect()
}

/// The answer.
pub(super) fn batch(rows: &[RunForecast]) -> Result<RecordBatch> {
    let counted: [fn(&RunForecast) -> u64; 14] = [
        |run| run.view.version,
        |run| run.forecast.chunks,
        |run| run.forecast.chunks_none,
        |run| run.forecast.chunks_all,
        |run| run.forecast.chunks_some,
        |run| run.forecast.chunks_unread,
        |run| run.forecast.chunks_read,
        |run| run.forecast.chunks_rewritten,
        |run| run.forecast.chunks_written,
        |run| run.forecast.read_bytes,
        |run| run.forecast.written_bytes,
        |run| run.forecast.rows,
        |run| run.forecast.rows_read_before,
        |run| run.forecast.rows_read_after,
    ];
    let mut columns = vec![
        texts(rows, |run| run.view.table.schema.clone()),
        texts(rows, |run| run.view.table.name.clone()),
        texts(rows, |run| run.view.name.name.clone()),
    ];
    columns.extend(counted.map(|value| counts(rows, value)));
    columns.push(optional_reals(rows, |run| run.us.map(|us| us / 1e6)));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields())), columns)?)
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
