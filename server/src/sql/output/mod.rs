//! Rows for people and programs, in one of [`Format`].
//!
//! Most formats are written batch by batch as they arrive. Tables need their rows first to align them, and show at most
//! [`TABLE_ROWS`] of them.
//!
//! - [`cells`]: texts of values, and their width on a terminal
//! - [`data`]: formats for programs
//! - [`grid`]: aligned tables
//! - [`nested`]: values that a format does not have
//! - [`plan`]: plans of statements as a tree
//! - [`records`]: a line per value

mod cells;
mod data;
mod grid;
mod nested;
mod plan;
mod records;

use std::io::Write;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::error::FlightError;
use futures::{Stream, StreamExt};

use crate::error::{Error, Result};

pub use plan::is_plan;

/// Rows that a table shows at most.
pub const TABLE_ROWS: usize = 10_000;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// An aligned table
    Table,
    /// A line per value
    Vertical,
    /// Comma-separated values with a header; nested values as JSON
    Csv,
    /// The same, separated by tabs
    Tsv,
    /// An array of objects
    Json,
    /// An object per line
    Ndjson,
    /// A table for Markdown
    Markdown,
    /// An Arrow IPC stream
    Arrow,
    /// An Arrow IPC file, also known as Feather
    ArrowFile,
    /// A Parquet file
    Parquet,
}

impl Format {
    /// The format that the ending of a file name stands for.
    pub fn from_ending(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "txt" => Self::Table,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "json" => Self::Json,
            "ndjson" | "jsonl" => Self::Ndjson,
            "md" | "markdown" => Self::Markdown,
            "arrows" => Self::Arrow,
            "arrow" | "ipc" | "feather" => Self::ArrowFile,
            "parquet" | "pq" => Self::Parquet,
            _ => return None,
        })
    }

    /// Whether it is for people to read on a terminal.
    pub fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Vertical)
    }

    /// Whether it is no text: a file of it holds one result, and a terminal cannot show it.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Arrow | Self::ArrowFile | Self::Parquet)
    }

    /// Its name, as options and `\pset` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Vertical => "vertical",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Markdown => "markdown",
            Self::Arrow => "arrow",
            Self::ArrowFile => "arrow-file",
            Self::Parquet => "parquet",
        }
    }
}

/// Whether a table becomes records, a line per value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expanded {
    /// Never.
    Off,
    /// Always.
    On,
    /// When it is wider than the terminal.
    Auto,
}

impl Expanded {
    /// Its name, as `\x` and `\pset` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        }
    }
}

/// How a result is written.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The format.
    pub format: Format,
    /// Whether a table becomes records.
    pub expanded: Expanded,
    /// Columns of the terminal that shows it; none elsewhere.
    pub columns: Option<usize>,
}

/// Where rows are written; it may be sent to another thread with its writer.
type Out<'a> = &'a mut (dyn Write + Send);

/// Writes the rows of one result.
trait RowWriter {
    /// Takes the next rows.
    fn write(&mut self, rows: &RecordBatch) -> Result<()>;
    /// Writes what comes behind the last row.
    fn finish(&mut self) -> Result<()>;
}

fn row_writer<'a>(look: Look, schema: &SchemaRef, out: Out<'a>) -> Result<Box<dyn RowWriter + 'a>> {
    let writer: Box<dyn RowWriter + 'a> = match look.format {
        Format::Vertical => Box::new(records::Records::new(out)),
        Format::Table if look.expanded == Expanded::On => Box::new(records::Records::new(out)),
        Format::Table => Box::new(grid::Grid::new(grid::Style::Lines, look, schema, out)),
        Format::Markdown => Box::new(grid::Grid::new(grid::Style::Markdown, look, schema, out)),
        Format::Csv => Box::new(data::Delimited::new(b',', schema, out)?),
        Format::Tsv => Box::new(data::Delimited::new(b'\t', schema, out)?),
        Format::Json => Box::new(data::JsonArray::new(out)),
        Format::Ndjson => Box::new(data::JsonLines::new(out)),
        Format::Arrow => Box::new(data::IpcStream::new(schema, out)?),
        Format::ArrowFile => Box::new(data::IpcFile::new(schema, out)?),
        Format::Parquet => Box::new(data::Parquet::new(schema, out)?),
    };
    Ok(writer)
}

/// Writes all rows of a result; returns their number.
///
/// # Errors
/// Those of `rows`; when `out` fails, or the format has no such type.
pub async fn write<S>(look: Look, schema: &SchemaRef, mut rows: S, out: &mut (dyn Write + Send)) -> Result<u64>
where
    S: Stream<Item = Result<RecordBatch, FlightError>> + Unpin,
{
    let mut writer = row_writer(look, schema, out)?;
    let mut count = 0;
    while let Some(batch) = rows.next().await.transpose()? {
        count += batch.num_rows() as u64;
        writer.write(&batch)?;
    }
    writer.finish()?;
    Ok(count)
}

/// Writes rows that are there already.
///
/// # Errors
/// As [`write`].
pub fn write_batch(look: Look, rows: &RecordBatch, out: &mut (dyn Write + Send)) -> Result<()> {
    let mut writer = row_writer(look, &rows.schema(), out)?;
    writer.write(rows)?;
    writer.finish()
}

fn write_error(error: std::io::Error) -> Error {
    Error::System(format!("cannot write the result: {error}"))
}

#[cfg(test)]
mod tests;
