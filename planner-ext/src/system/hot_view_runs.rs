//! What the run of a hot view would do: the answer of EXPLAIN CREATE HOT VIEW and EXPLAIN ALTER HOT VIEW .. REFRESH.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};
use terrace_tier_store::Store;
use terrace_tier_store::heat::Pattern;

use super::{count, counts, optional_real, optional_reals, text, texts};
use crate::error::Result;
use crate::views::{Definition, Forecast};

type Row = (Arc<Definition>, Forecast, Option<f64>);

/// Columns of the answer.
pub(crate) fn fields() -> Vec<Field> {
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
pub(crate) fn batch(rows: &[Row]) -> Result<RecordBatch> {
    let counted: [fn(&Row) -> u64; 14] = [
        |(view, ..)| view.version,
        |(_, all, _)| all.chunks,
        |(_, all, _)| all.chunks_none,
        |(_, all, _)| all.chunks_all,
        |(_, all, _)| all.chunks_some,
        |(_, all, _)| all.chunks_unread,
        |(_, all, _)| all.chunks_read,
        |(_, all, _)| all.chunks_rewritten,
        |(_, all, _)| all.chunks_written,
        |(_, all, _)| all.read_bytes,
        |(_, all, _)| all.written_bytes,
        |(_, all, _)| all.rows,
        |(_, all, _)| all.rows_read_before,
        |(_, all, _)| all.rows_read_after,
    ];
    let mut columns = vec![
        texts(rows, |(view, ..)| view.table.schema.clone()),
        texts(rows, |(view, ..)| view.table.name.clone()),
        texts(rows, |(view, ..)| view.name.name.clone()),
    ];
    columns.extend(counted.map(|value| counts(rows, value)));
    columns.push(optional_reals(rows, |(.., us)| us.map(|us| us / 1e6)));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields())), columns)?)
}

/// How long it takes by what the home tier was measured to do, and no faster than `bytes_per_s` allows; `None` before it was
/// measured, and for what does not run by itself.
pub(crate) fn estimate_us(forecast: &Forecast, store: &Store, bytes_per_s: Option<u64>) -> Option<f64> {
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
