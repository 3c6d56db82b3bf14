//! TPC-H: the 22 queries and the tables of the server, and the order that the tables are stored in.

pub use terrace_server::tpch::{QUERIES, TABLES, Table};

/// Rows of a generated batch.
pub const BATCH_ROWS: usize = 8192;

/// The columns that a table is sorted by; none keep the generator's order. A key behind the date makes the order the same
/// on every machine.
pub fn order(table: &Table) -> &'static [&'static str] {
    match table.name {
        "orders" => &["o_orderdate", "o_orderkey"],
        "lineitem" => &["l_shipdate", "l_orderkey", "l_linenumber"],
        _ => &[],
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
