//! The Star Schema Benchmark: the 13 queries and the tables of the server, and the order that `lineorder` is stored in.

use terrace_server::ssb::QUERIES;
pub use terrace_server::ssb::TABLES;

/// The columns that `lineorder` is sorted by. The keys behind the date make the order the same on every machine.
pub const LINEORDER: &[&str] = &["lo_orderdate", "lo_orderkey", "lo_linenumber"];

/// The text of "ssb1.1" to "ssb4.3".
pub fn query(op: &str) -> Option<&'static str> {
    let wanted = op.strip_prefix("ssb")?;
    QUERIES.iter().find(|(name, _)| *name == wanted).map(|(_, sql)| *sql)
}

/// "ssb1.1" to "ssb4.3".
pub fn names() -> impl Iterator<Item = String> {
    QUERIES.into_iter().map(|(name, _)| format!("ssb{name}"))
}
