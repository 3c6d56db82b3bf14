//! A line per value: for rows that are wider than the terminal.

use arrow::array::RecordBatch;

use super::cells::{padded, texts, visible, widest};
use super::{Out, RowWriter, write_error};
use crate::error::Result;

/// Width of the line above each row.
const RULE: usize = 40;

/// Writes rows as records, as they come.
pub struct Records<'a> {
    out: Out<'a>,
    number: u64,
}

impl<'a> Records<'a> {
    /// Writes nothing yet.
    pub fn new(out: Out<'a>) -> Self {
        Self { out, number: 0 }
    }
}

impl RowWriter for Records<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let text = records(rows, self.number + 1)?;
        self.number += rows.num_rows() as u64;
        self.out.write_all(text.as_bytes()).map_err(write_error)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The rows, the first of which has the number `first`.
pub fn records(rows: &RecordBatch, first: u64) -> Result<String> {
    let schema = rows.schema();
    let names: Vec<String> = schema.fields().iter().map(|field| visible(field.name()).replace('\n', " ")).collect();
    let width = names.iter().map(|name| widest(name)).max().unwrap_or(0);
    let mut out = String::new();
    for (number, row) in (first..).zip(texts(rows)?) {
        let head = format!("-[ row {number} ]");
        out.push_str(&format!("{head:-<RULE$}\n"));
        for (name, value) in names.iter().zip(&row) {
            let mut name = padded(name, width, false);
            for line in value.split('\n') {
                out.push_str(format!("{name} | {line}").trim_end());
                out.push('\n');
                name = " ".repeat(width);
            }
        }
    }
    Ok(out)
}
