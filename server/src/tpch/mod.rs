//! TPC-H: the 22 queries with the validation parameters of the specification, and the tables with their generators.
//!
//! Query 15 uses the specification's variant with a common table expression, so that each query is one statement.

use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;
use tpchgen::generators as gen_rows;

macro_rules! queries {
    ($($file:literal),+) => { [$(include_str!($file)),+] };
}

/// The 22 queries in order; none ends in a semicolon.
pub const QUERIES: [&str; 22] = queries!(
    "q1.sql", "q2.sql", "q3.sql", "q4.sql", "q5.sql", "q6.sql", "q7.sql", "q8.sql", "q9.sql", "q10.sql", "q11.sql",
    "q12.sql", "q13.sql", "q14.sql", "q15.sql", "q16.sql", "q17.sql", "q18.sql", "q19.sql", "q20.sql", "q21.sql",
    "q22.sql"
);

/// Rows per generated batch.
const BATCH_ROWS: usize = 65_536;

/// One generated table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The column that it is clustered by by default.
    pub cluster_by: &'static str,
    rows_at_one: u64,
    scales: bool,
}

/// All tables, small ones first.
pub const TABLES: [Table; 8] = [
    Table { name: "region", cluster_by: "", rows_at_one: 5, scales: false },
    Table { name: "nation", cluster_by: "", rows_at_one: 25, scales: false },
    Table { name: "supplier", cluster_by: "", rows_at_one: 10_000, scales: true },
    Table { name: "customer", cluster_by: "", rows_at_one: 150_000, scales: true },
    Table { name: "part", cluster_by: "", rows_at_one: 200_000, scales: true },
    Table { name: "partsupp", cluster_by: "", rows_at_one: 800_000, scales: true },
    Table { name: "orders", cluster_by: "o_orderdate", rows_at_one: 1_500_000, scales: true },
    Table { name: "lineitem", cluster_by: "l_shipdate", rows_at_one: 6_001_215, scales: true },
];

impl Table {
    /// Number of rows at a scale; for `lineitem` an estimate.
    pub fn rows(&self, scale: f64) -> u64 {
        if self.scales { (self.rows_at_one as f64 * scale).round() as u64 } else { self.rows_at_one }
    }

    /// Columns.
    pub fn schema(&self) -> SchemaRef {
        self.generate(0.001).schema()
    }

    /// A reader that generates the rows.
    pub fn generate(&self, scale: f64) -> Box<dyn RecordBatchReader + Send> {
        self.generate_part(scale, 1, 1, BATCH_ROWS)
    }

    /// A reader that generates part `part` (from 1) of `parts` in batches of `rows` rows.
    pub fn generate_part(&self, scale: f64, part: i32, parts: i32, rows: usize) -> Box<dyn RecordBatchReader + Send> {
        macro_rules! reader {
            ($arrow:ident, $rows:ident) => {
                Box::new(tpchgen_arrow::$arrow::new(gen_rows::$rows::new(scale, part, parts)).with_batch_size(rows))
            };
        }
        match self.name {
            "region" => reader!(RegionArrow, RegionGenerator),
            "nation" => reader!(NationArrow, NationGenerator),
            "supplier" => reader!(SupplierArrow, SupplierGenerator),
            "customer" => reader!(CustomerArrow, CustomerGenerator),
            "part" => reader!(PartArrow, PartGenerator),
            "partsupp" => reader!(PartSuppArrow, PartSuppGenerator),
            "orders" => reader!(OrderArrow, OrderGenerator),
            _ => reader!(LineItemArrow, LineItemGenerator),
        }
    }
}

/// Parses `tpch:SF`.
///
/// # Errors
/// A message that explains valid scales.
pub fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale.is_finite() && (0.001..=10_000.0).contains(&scale) => Ok(scale),
        _ => Err(format!("'{text}' is not a TPC-H scale; write a number from 0.001 to 10000, for example tpch:1")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_table_generates_the_rows_it_says() {
        for table in TABLES {
            let rows: usize = table.generate(0.01).map(|batch| batch.unwrap().num_rows()).sum();
            let said = table.rows(0.01) as f64;
            assert!((rows as f64 - said).abs() / said < 0.02, "{}: {rows} rows, {said} said", table.name);
            let columns = table.schema();
            assert!(table.cluster_by.is_empty() || columns.field_with_name(table.cluster_by).is_ok());
        }
    }

    #[test]
    fn queries_are_one_statement_each() {
        for (number, query) in QUERIES.iter().enumerate() {
            assert!(!query.contains(';'), "query {}", number + 1);
            assert_eq!(crate::sql::split::split(query).parts.len(), 1, "query {}", number + 1);
        }
    }
}
