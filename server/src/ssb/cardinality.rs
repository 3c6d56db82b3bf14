//! Numbers of rows at a scale (revision 3, figure 2).
//!
//! The table of days has 2,557 rows at every scale: all days from 1992 to 1998. The specification counts 2,556, which
//! leaves out 31 December 1998; no order and no commitment is later than October 1998, so no answer depends on it.

use tpchgen::dates::TOTAL_DATE_RANGE;

/// Lines of an order on average, as drawn at scale 1: 6,001,215 lines of 1,500,000 orders.
const LINES_PER_ORDER: f64 = 4.000_81;

/// Numbers of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cardinality {
    /// Rows of `date`.
    pub days: i64,
    /// Rows of `supplier`.
    pub suppliers: i64,
    /// Rows of `customer`.
    pub customers: i64,
    /// Rows of `part`.
    pub parts: i64,
    /// Orders; each has 1 to 7 rows of `lineorder`.
    pub orders: i64,
}

impl Cardinality {
    /// The numbers at a scale from 0.001 on. Parts grow with its logarithm: 200,000 x (1 + floor(log2 SF)); below scale
    /// 1, which the specification does not have, in proportion.
    pub fn for_scale(scale: f64) -> Self {
        let scaled = |at_one: f64| (at_one * scale).round() as i64;
        let parts = if scale < 1.0 {
            scaled(200_000.0)
        } else {
            // The floor changes neither side of a power of two.
            200_000 * (1 + i64::from((scale as u64).max(1).ilog2()))
        };
        Self {
            days: i64::from(TOTAL_DATE_RANGE),
            suppliers: scaled(2_000.0),
            customers: scaled(30_000.0),
            parts,
            orders: scaled(1_500_000.0),
        }
    }

    /// About the number of rows of `lineorder`.
    pub fn estimated_lines(&self) -> i64 {
        (self.orders as f64 * LINES_PER_ORDER).round() as i64
    }
}
