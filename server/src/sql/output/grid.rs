//! Tables with aligned columns: numbers at the right, everything else at the left.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::cells::{is_number, padded, texts, visible, widest, width};
use super::records::records;
use super::{Expanded, Look, Out, RowWriter, TABLE_ROWS, plan, write_error};
use crate::error::Result;

/// How the columns are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Lines around all.
    Lines,
    /// As Markdown wants it.
    Markdown,
}

/// Collects rows, and writes them as a table at the end.
pub struct Grid<'a> {
    style: Style,
    look: Look,
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
    room: usize,
    is_cut: bool,
    out: Out<'a>,
}

impl<'a> Grid<'a> {
    /// Writes nothing yet.
    pub fn new(style: Style, look: Look, schema: &SchemaRef, out: Out<'a>) -> Self {
        let schema = SchemaRef::clone(schema);
        Self { style, look, schema, rows: Vec::new(), room: TABLE_ROWS, is_cut: false, out }
    }

    fn text(&self) -> Result<String> {
        if self.style == Style::Lines && plan::is_plan(&self.schema) {
            return plan::render(&self.rows, self.look.columns);
        }
        let mut cells = Vec::new();
        for batch in &self.rows {
            cells.extend(texts(batch)?);
        }
        let columns = self.schema.fields().iter();
        let columns = columns
            .map(|field| Column { name: visible(field.name()).into_owned(), is_number: is_number(field.data_type()) });
        let table = Table { columns: columns.collect(), rows: cells };
        let text = match self.style {
            Style::Lines => table.with_lines(),
            Style::Markdown => table.markdown(),
        };
        let is_too_wide = || self.look.columns.is_some_and(|columns| text.lines().next().map_or(0, width) > columns);
        if self.style == Style::Lines && self.look.expanded == Expanded::Auto && is_too_wide() {
            let mut first = 1;
            let mut out = String::new();
            for batch in &self.rows {
                out.push_str(&records(batch, first)?);
                first += batch.num_rows() as u64;
            }
            return Ok(out);
        }
        Ok(text)
    }
}

impl RowWriter for Grid<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let shown = rows.num_rows().min(self.room);
        self.is_cut |= shown < rows.num_rows();
        self.room -= shown;
        if shown > 0 {
            self.rows.push(rows.slice(0, shown));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let mut text = self.text()?;
        if self.is_cut {
            text.push_str(&format!("(the first {TABLE_ROWS} rows; --format csv writes all)\n"));
        }
        self.out.write_all(text.as_bytes()).map_err(write_error)
    }
}

struct Column {
    name: String,
    is_number: bool,
}

struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The width of each column.
    fn widths(&self, least: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| widest(&column.name).max(least)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(widest(cell));
            }
        }
        widths
    }

    fn with_lines(&self) -> String {
        let widths = self.widths(0);
        let rule: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect();
        let rule = rule + "+\n";
        let mut out = rule.clone();
        let names: Vec<String> = self.columns.iter().map(|column| column.name.clone()).collect();
        self.push_row(&mut out, &names, &widths);
        out.push_str(&rule);
        self.rows.iter().for_each(|row| self.push_row(&mut out, row, &widths));
        if !self.rows.is_empty() {
            out.push_str(&rule);
        }
        out
    }

    /// Adds a row, which takes as many lines as its highest cell.
    fn push_row(&self, out: &mut String, row: &[String], widths: &[usize]) {
        let mut cells: Vec<_> = row.iter().map(|cell| cell.split('\n')).collect();
        let height = row.iter().map(|cell| cell.split('\n').count()).max().unwrap_or(1);
        for _ in 0..height {
            for ((lines, width), column) in cells.iter_mut().zip(widths).zip(&self.columns) {
                let line = lines.next().unwrap_or_default();
                out.push_str(&format!("| {} ", padded(line, *width, column.is_number)));
            }
            out.push_str("|\n");
        }
    }

    fn markdown(mut self) -> String {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace('\n', "<br>");
        self.columns.iter_mut().for_each(|column| column.name = escaped(&column.name));
        self.rows.iter_mut().flatten().for_each(|cell| *cell = escaped(cell));
        // Markdown wants three dashes at least.
        let widths = self.widths(3);
        let mut out = String::new();
        let names: Vec<String> = self.columns.iter().map(|column| column.name.clone()).collect();
        self.push_row(&mut out, &names, &widths);
        for (width, column) in widths.iter().zip(&self.columns) {
            let rule = "-".repeat(width - 1);
            out.push_str(&if column.is_number { format!("| {rule}: ") } else { format!("| {rule}- ") });
        }
        out.push_str("|\n");
        self.rows.iter().for_each(|row| self.push_row(&mut out, row, &widths));
        out
    }
}
