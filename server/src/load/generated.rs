//! Tables that are generated instead of read: those of TPC-H and of the Star Schema Benchmark.

use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;

use crate::error::{Error, Result};
use crate::{ssb, tpch};

/// A table of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    Tpch(tpch::Table),
    Ssb(ssb::Table),
}

/// A table of a benchmark at a scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generated {
    table: Table,
    scale: f64,
}

impl Generated {
    /// All tables of the benchmark that `text` names, `tpch:SF` or `ssb:SF`; `None` when it names none.
    ///
    /// # Errors
    /// When the scale is no valid one.
    pub fn find(text: &str) -> Result<Option<Vec<Self>>> {
        if let Some(scale) = text.strip_prefix("tpch:") {
            let scale = tpch::parse_scale(scale).map_err(Error::Usage)?;
            return Ok(Some(tpch::TABLES.map(|table| Self::tpch(table, scale)).to_vec()));
        }
        if let Some(scale) = text.strip_prefix("ssb:") {
            let scale = ssb::parse_scale(scale).map_err(Error::Usage)?;
            return Ok(Some(ssb::TABLES.map(|table| Self::ssb(table, scale)).to_vec()));
        }
        Ok(None)
    }

    /// A table of TPC-H.
    pub fn tpch(table: tpch::Table, scale: f64) -> Self {
        Self { table: Table::Tpch(table), scale }
    }

    /// A table of the Star Schema Benchmark.
    pub fn ssb(table: ssb::Table, scale: f64) -> Self {
        Self { table: Table::Ssb(table), scale }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self.table {
            Table::Tpch(table) => table.name,
            Table::Ssb(table) => table.name,
        }
    }

    /// The columns that it is clustered by by default.
    pub fn cluster_by(&self) -> Vec<String> {
        let column = match self.table {
            Table::Tpch(table) => table.cluster_by,
            Table::Ssb(table) => table.cluster_by,
        };
        if column.is_empty() { Vec::new() } else { vec![column.to_owned()] }
    }

    /// Columns.
    pub fn schema(&self) -> SchemaRef {
        match self.table {
            Table::Tpch(table) => table.schema(),
            Table::Ssb(table) => table.schema(),
        }
    }

    /// Number of rows; for `lineitem` and `lineorder` an estimate.
    pub fn rows(&self) -> u64 {
        match self.table {
            Table::Tpch(table) => table.rows(self.scale),
            Table::Ssb(table) => table.rows(self.scale),
        }
    }

    /// A reader that generates the rows, in the same order each time.
    pub fn generate(&self) -> Box<dyn RecordBatchReader + Send> {
        match self.table {
            Table::Tpch(table) => table.generate(self.scale),
            Table::Ssb(table) => table.generate(self.scale),
        }
    }

    /// A reader that generates part `part` (from 1) of `parts` in batches of `rows` rows.
    pub fn generate_part(&self, part: i32, parts: i32, rows: usize) -> Box<dyn RecordBatchReader + Send> {
        match self.table {
            Table::Tpch(table) => table.generate_part(self.scale, part, parts, rows),
            Table::Ssb(table) => table.generate_part(self.scale, part, parts, rows),
        }
    }

    /// A string that differs between tables and between scales.
    pub fn identity(&self) -> String {
        let benchmark = match self.table {
            Table::Tpch(_) => "tpch",
            Table::Ssb(_) => "ssb",
        };
        format!("{benchmark}:{} {}", self.scale, self.name())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn benchmarks_are_found_by_their_names() {
        for (text, count, first) in [("tpch:0.1", 8, "tpch:0.1 region"), ("ssb:2", 5, "ssb:2 date")] {
            let tables = Generated::find(text).unwrap().unwrap();
            assert_eq!((tables.len(), tables[0].identity().as_str()), (count, first));
        }
        assert_eq!(Generated::find("tpch.parquet").unwrap(), None);
        for (text, advice) in [("tpch:big", "tpch:1"), ("ssb:", "ssb:1")] {
            assert!(Generated::find(text).unwrap_err().to_string().contains(advice), "{text}");
        }
    }

    #[test]
    fn readers_have_the_columns_of_their_tables() {
        for text in ["tpch:0.001", "ssb:0.001"] {
            for table in Generated::find(text).unwrap().unwrap() {
                let batch = table.generate().next().unwrap().unwrap();
                assert_eq!(batch.schema(), table.schema(), "{}", table.name());
                assert!(table.cluster_by().iter().all(|column| batch.column_by_name(column).is_some()));
            }
        }
    }
}
