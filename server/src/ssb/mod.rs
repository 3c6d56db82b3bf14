//! The Star Schema Benchmark (O'Neil, O'Neil, Chen: "Star Schema Benchmark", revision 3, 2009): its five tables with
//! their generators (section 2), and its 13 queries (section 3).
//!
//! Where the specification says nothing, rows follow `ssb-dbgen`, the generator of its authors, which takes its numbers
//! from TPC-H's streams: at scale 1 `lineorder` has the same rows. Two things differ: its days of the week are one day
//! off, and the range from which it draws the parts of lines is not that of the keys of `part`. Two columns have no
//! stream in TPC-H, the category of a part and the digit of a city; theirs are our own. Prices are in cents, and days
//! are numbers like 19960102.
//!
//! - [`cardinality`]: numbers of rows at a scale
//! - [`customer`], [`date`], [`lineorder`], [`part`], [`supplier`]: the tables
//! - [`place`]: cities, nations and regions
//! - `reader`: rows as record batches
//! - [`stream`]: random streams

mod cardinality;
mod customer;
mod date;
mod lineorder;
mod part;
mod place;
mod reader;
mod stream;
mod supplier;
#[cfg(test)]
mod tests;

use std::ops::Range;

use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;

use cardinality::Cardinality;
use customer::Customers;
use date::Days;
use lineorder::Lines;
use part::Parts;
use reader::{Reader, Row};
use supplier::Suppliers;

macro_rules! queries {
    ($($name:literal),+) => { [$(($name, include_str!(concat!("q", $name, ".sql")))),+] };
}

/// The 13 queries in order: the name, as "1.1", and the text; none ends in a semicolon. Texts in circulation differ in the
/// quantities of 1.3 and in the brand of 2.3. Here 1.3 has the quantities of the filter factor that the specification
/// states; both brands have the same one.
pub const QUERIES: [(&str, &str); 13] =
    queries!("1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "3.1", "3.2", "3.3", "3.4", "4.1", "4.2", "4.3");

/// Rows per generated batch.
const BATCH_ROWS: usize = 65_536;

/// One generated table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The column that it is clustered by by default.
    pub cluster_by: &'static str,
}

/// All tables, small ones first.
pub const TABLES: [Table; 5] = [
    Table { name: "date", cluster_by: "" },
    Table { name: "supplier", cluster_by: "" },
    Table { name: "customer", cluster_by: "" },
    Table { name: "part", cluster_by: "" },
    Table { name: "lineorder", cluster_by: "lo_orderdate" },
];

impl Table {
    /// Number of rows at a scale; for `lineorder` an estimate.
    pub fn rows(&self, scale: f64) -> u64 {
        let counts = Cardinality::for_scale(scale);
        let rows = match self.name {
            "date" => counts.days,
            "supplier" => counts.suppliers,
            "customer" => counts.customers,
            "part" => counts.parts,
            _ => counts.estimated_lines(),
        };
        rows.unsigned_abs()
    }

    /// Columns.
    pub fn schema(&self) -> SchemaRef {
        self.generate(0.001).schema()
    }

    /// A reader that generates the rows.
    pub fn generate(&self, scale: f64) -> Box<dyn RecordBatchReader + Send> {
        self.generate_part(scale, 1, 1, BATCH_ROWS)
    }

    /// A reader that generates part `part` (from 1) of `parts` in batches of `rows` rows. The parts in their order have
    /// the rows of the table, whatever `parts` and `rows` are. A part of `lineorder` has whole orders.
    pub fn generate_part(&self, scale: f64, part: i32, parts: i32, rows: usize) -> Box<dyn RecordBatchReader + Send> {
        let counts = Cardinality::for_scale(scale);
        let share = |count: i64| share(count, i64::from(part), i64::from(parts));
        match self.name {
            "date" => reader(Days::new(share(counts.days)), rows),
            "supplier" => reader(Suppliers::new(share(counts.suppliers)), rows),
            "customer" => reader(Customers::new(share(counts.customers)), rows),
            "part" => reader(Parts::new(share(counts.parts)), rows),
            _ => reader(Lines::new(share(counts.orders), counts), rows),
        }
    }
}

/// The numbers, from 0, of the rows of part `part` (from 1); the last part has the remainder.
fn share(count: i64, part: i64, parts: i64) -> Range<i64> {
    let each = count / parts;
    let start = each * (part - 1);
    start..if part == parts { count } else { start + each }
}

fn reader<I>(rows: I, batch_rows: usize) -> Box<dyn RecordBatchReader + Send>
where
    I: Iterator + Send + 'static,
    I::Item: Row,
{
    Box::new(Reader::new(rows, batch_rows))
}

/// Parses the scale of `ssb:SF`.
///
/// # Errors
/// A message that explains valid scales.
pub fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.001..=10_000.0).contains(&scale) => Ok(scale),
        _ => Err(format!(
            "'{text}' is not a scale of the Star Schema Benchmark; write a number from 0.001 to 10000, for example ssb:1"
        )),
    }
}
