//! Rows for people and programs: aligned table, CSV, JSON.
//!
//! CSV and JSON are written batch by batch as they arrive; a table needs its rows first to align them, and shows at
//! most [`TABLE_ROWS`] of them.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::util::display::FormatOptions;
use futures::{Stream, StreamExt};

use crate::error::{Error, Result};

/// Rows a table shows at most.
pub const TABLE_ROWS: usize = 10_000;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// An aligned table
    Table,
    /// Comma-separated values with a header
    Csv,
    /// An array of objects
    Json,
}

/// Writes all rows of a result; returns their number.
pub async fn write<S>(format: Format, schema: SchemaRef, rows: S, out: &mut (dyn Write + Send)) -> Result<u64>
where
    S: Stream<Item = Result<RecordBatch, arrow_flight::error::FlightError>> + Unpin,
{
    match format {
        Format::Table => write_table(schema, rows, out).await,
        Format::Csv => {
            let mut writer = arrow::csv::WriterBuilder::new().with_header(true).build(&mut *out);
            writer.write(&RecordBatch::new_empty(schema))?;
            for_each_batch(rows, |batch| Ok(writer.write(batch)?)).await
        }
        Format::Json => {
            let options = arrow::json::WriterBuilder::new().with_explicit_nulls(true);
            let mut writer = options.build::<_, arrow::json::writer::JsonArray>(&mut *out);
            let count = for_each_batch(rows, |batch| Ok(writer.write(batch)?)).await?;
            writer.finish()?;
            drop(writer);
            writeln!(out).map_err(write_error)?;
            Ok(count)
        }
    }
}

async fn for_each_batch<S>(mut rows: S, mut take: impl FnMut(&RecordBatch) -> Result<()>) -> Result<u64>
where
    S: Stream<Item = Result<RecordBatch, arrow_flight::error::FlightError>> + Unpin,
{
    let mut count = 0;
    while let Some(batch) = rows.next().await.transpose()? {
        count += batch.num_rows() as u64;
        take(&batch)?;
    }
    Ok(count)
}

async fn write_table<S>(schema: SchemaRef, rows: S, out: &mut (dyn Write + Send)) -> Result<u64>
where
    S: Stream<Item = Result<RecordBatch, arrow_flight::error::FlightError>> + Unpin,
{
    let mut shown = Vec::new();
    let mut room = TABLE_ROWS;
    let count = for_each_batch(rows, |batch| {
        if room > 0 {
            shown.push(batch.slice(0, batch.num_rows().min(room)));
            room = room.saturating_sub(batch.num_rows());
        }
        Ok(())
    })
    .await?;
    let options = FormatOptions::default().with_null("NULL");
    let table = arrow::util::pretty::pretty_format_batches_with_schema(schema, &shown)
        .and_then(|_| arrow::util::pretty::pretty_format_batches_with_options(&shown, &options))?;
    writeln!(out, "{table}").map_err(write_error)?;
    if count > TABLE_ROWS as u64 {
        writeln!(out, "(the first {TABLE_ROWS} rows; --format csv writes all)").map_err(write_error)?;
    }
    Ok(count)
}

fn write_error(error: std::io::Error) -> Error {
    Error::System(format!("cannot write the result: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::Arc;

    use super::*;
    use arrow::array::{Int64Array, StringArray};

    fn written(format: Format) -> String {
        let ids = Arc::new(Int64Array::from(vec![1, 20]));
        let names = Arc::new(StringArray::from(vec![Some("a,b"), None]));
        let batch = RecordBatch::try_from_iter([("id", ids as _), ("name", names as _)]).unwrap();
        let rows = futures::stream::iter([Ok(batch.slice(0, 1)), Ok(batch.slice(1, 1))]);
        let mut out = Vec::new();
        let count = futures::executor::block_on(write(format, batch.schema(), rows, &mut out)).unwrap();
        assert_eq!(count, 2);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_are_written_in_every_format() {
        assert_eq!(written(Format::Csv), "id,name\n1,\"a,b\"\n20,\n");
        assert_eq!(written(Format::Json), "[{\"id\":1,\"name\":\"a,b\"},{\"id\":20,\"name\":null}]\n");
        let table = written(Format::Table);
        assert!(table.contains("| 20 | NULL |"), "{table}");
    }
}
