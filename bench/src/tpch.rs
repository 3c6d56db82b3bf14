//! TPC-H: the 22 queries of the server, and the tables with their generators and the order they are stored in.

use arrow::array::RecordBatchReader;
use tpchgen::generators as gen_rows;

macro_rules! queries {
    ($($number:literal),+) => { [$(include_str!(concat!("../../server/src/tpch/q", $number, ".sql"))),+] };
}

/// The queries, in order.
pub const QUERIES: [&str; 22] = queries!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22);

/// A table and the columns it is sorted by; a key behind the date makes the order the same on every machine.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Sort columns; empty keeps the generator's order.
    pub order: &'static [&'static str],
}

const fn table(name: &'static str, order: &'static [&'static str]) -> Table {
    Table { name, order }
}

/// All tables.
pub const TABLES: [Table; 8] = [
    table("region", &[]),
    table("nation", &[]),
    table("supplier", &[]),
    table("customer", &[]),
    table("part", &[]),
    table("partsupp", &[]),
    table("orders", &["o_orderdate", "o_orderkey"]),
    table("lineitem", &["l_shipdate", "l_orderkey", "l_linenumber"]),
];

impl Table {
    /// Generates part `part` (from 1) of `parts`.
    pub fn generate(&self, scale: f64, part: i32, parts: i32) -> Box<dyn RecordBatchReader + Send> {
        macro_rules! reader {
            ($arrow:ident, $rows:ident) => {
                Box::new(tpchgen_arrow::$arrow::new(gen_rows::$rows::new(scale, part, parts)).with_batch_size(8192))
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

/// The text of "q1" to "q22".
pub fn query(op: &str) -> Option<&'static str> {
    let number = op.strip_prefix('q')?.parse::<usize>().ok()?;
    QUERIES.get(number.checked_sub(1)?).copied()
}

/// "q1" to "q22".
pub fn names() -> impl Iterator<Item = String> {
    (1..=QUERIES.len()).map(|number| format!("q{number}"))
}
