//! What a scan computes: a filter, keys of groups, measures.

/// A column that a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnRef {
    /// Column of the chunks.
    Chunk(u32),
    /// Column of the build side of a join, null where the join does not match.
    Join {
        /// Number of the join.
        join: u32,
        /// Number of the column.
        column: u32,
    },
}

/// A condition with SQL's three truth values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// True, false, or unknown.
    Constant(Option<bool>),
    /// `low <= column <= high`; unknown where the column is null.
    Range {
        /// The column.
        column: ColumnRef,
        /// Lower bound.
        low: i64,
        /// Upper bound.
        high: i64,
    },
    /// The column has one of these values; unknown where it is null.
    In {
        /// The column.
        column: ColumnRef,
        /// In any order.
        values: Vec<i64>,
    },
    /// The column is null.
    IsNull(ColumnRef),
    /// The join of this number has a row; false where the key is null.
    Matches(u32),
    /// True when all are.
    And(Vec<Self>),
    /// True when one is.
    Or(Vec<Self>),
    /// The opposite; unknown stays unknown.
    Not(Box<Self>),
}

/// `offset + scale * column`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor {
    /// The column.
    pub column: ColumnRef,
    /// What is added.
    pub offset: i64,
    /// What the column is multiplied with.
    pub scale: i64,
}

/// How a measure combines rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// Their sum, exactly.
    Sum,
    /// The least; `i64::MAX` of no row.
    Min,
    /// The greatest; `i64::MIN` of no row.
    Max,
}

/// An aggregate over a product of factors. A row counts when the filter is true and no factor is null: without factors
/// the product is 1, so a sum counts rows; with `offset` 1 and `scale` 0 it counts those that are not null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measure {
    /// How rows are combined.
    pub aggregate: Aggregate,
    /// Condition of this measure only (`CASE`, `FILTER`).
    pub filter: Option<Filter>,
    /// At most 64 bits of product for every row.
    pub factors: Vec<Factor>,
}

impl Measure {
    /// Counts rows.
    pub fn count() -> Self {
        Self::sum(Vec::new())
    }

    /// Adds up products.
    pub fn sum(factors: Vec<Factor>) -> Self {
        Self { aggregate: Aggregate::Sum, filter: None, factors }
    }

    /// The measure of rows that pass a filter.
    #[must_use]
    pub fn filtered(self, filter: Filter) -> Self {
        Self { filter: Some(filter), ..self }
    }
}

impl ColumnRef {
    /// The column itself as a factor.
    pub fn factor(self) -> Factor {
        Factor { column: self, offset: 0, scale: 1 }
    }

    /// `low <= self <= high`.
    pub fn between(self, low: i64, high: i64) -> Filter {
        Filter::Range { column: self, low, high }
    }

    /// `self = value`.
    pub fn equals(self, value: i64) -> Filter {
        self.between(value, value)
    }
}

/// A scan over chunks of equal columns, which may be joined with unique keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Rows that count. An inner join is a filter that it [`Filter::Matches`].
    pub filter: Filter,
    /// Columns whose values make groups; null is a value. Their ranges multiply: they must be small.
    pub keys: Vec<ColumnRef>,
    /// What is computed for each group.
    pub measures: Vec<Measure>,
}
