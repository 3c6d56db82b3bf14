//! Estimates of rows and of the values of columns, and their change by joins.
//!
//! `logical` uses these rules for the order of joins, `physical` for the build side of each join. Distinct values and
//! ranges are those without filters: a filter is assumed to keep the same share of the rows of each value, so a join
//! with a filtered relation keeps that share of the other relation's rows.
//!
//! If two keys overlap in only a part of their ranges, the values outside have no partner. A filter is assumed to
//! select values that the other relation has: of a calendar of 73,000 days, a statement asks for a year with sales.

use datafusion::common::JoinType;

use crate::scan::ScanSource;

/// Selectivity of a comparison of two relations other than an equality.
pub(super) const COMPARISON_SELECTIVITY: f64 = 1.0 / 3.0;

/// Estimate of a relation.
#[derive(Debug, Clone)]
pub(super) struct Estimate {
    /// Number of rows.
    pub(super) rows: f64,
    /// Number of rows without filters.
    pub(super) base_rows: f64,
    /// For each column of its output its values without filters.
    pub(super) columns: Vec<Values>,
}

/// Estimate of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Values {
    pub(super) distinct: f64,
    pub(super) range: Option<Range>,
}

/// Least and largest value of a column of integers or dates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// One side of an equality: its values, and its column if it is a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) values: Values,
    pub(super) column: Option<usize>,
}

impl Range {
    /// The intersection of the known ranges; `low > high` if it is empty.
    pub(super) fn common(ranges: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let intersect = |a: Self, b: Self| Self { low: a.low.max(b.low), high: a.high.min(b.high) };
        ranges.into_iter().flatten().reduce(intersect)
    }

    /// The smallest range that contains both.
    fn hull(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn width(self) -> f64 {
        (self.high - self.low + 1.0).max(0.0)
    }
}

impl Values {
    pub(super) fn unknown(distinct: f64) -> Self {
        Self { distinct, range: None }
    }

    /// The values of a column of a table.
    pub(super) fn from_column(source: &ScanSource, column: usize) -> Self {
        let range = source.range(column).map(|(low, high)| Range { low, high });
        Self { distinct: source.distinct(column), range }
    }

    /// The share of the values that lie in `part`; 1 if it is unknown.
    pub(super) fn share(&self, part: Option<Range>) -> f64 {
        match (self.range, part) {
            (Some(all), Some(part)) if all.width() > 0.0 => (part.width() / all.width()).clamp(0.0, 1.0),
            _ => 1.0,
        }
    }

    /// Distinct values in `part`.
    pub(super) fn distinct_in(&self, part: Option<Range>) -> f64 {
        (self.distinct * self.share(part)).max(1.0)
    }

    fn union(&self, other: &Self) -> Self {
        let range = self.range.zip(other.range).map(|(a, b)| a.hull(b));
        Self { distinct: self.distinct.max(other.distinct), range }
    }
}

impl Estimate {
    /// A relation of which only the number of rows is known.
    pub(super) fn unknown(rows: f64, columns: usize) -> Self {
        Self { rows, base_rows: rows, columns: vec![Values::unknown(rows); columns] }
    }

    /// The union of all inputs, whose columns are assumed to have the same values.
    pub(super) fn union(inputs: &[Self]) -> Option<Self> {
        let (first, others) = inputs.split_first()?;
        Some(others.iter().fold(first.clone(), |all, input| Self {
            rows: all.rows + input.rows,
            base_rows: all.base_rows + input.base_rows,
            columns: all.columns.iter().zip(&input.columns).map(|(a, b)| a.union(b)).collect(),
        }))
    }

    /// The relation with no more than `rows`.
    pub(super) fn limited(self, rows: Option<f64>) -> Self {
        let Some(rows) = rows.filter(|rows| *rows < self.rows) else { return self };
        Self { rows, base_rows: rows, ..self }
    }

    /// The result of grouping by keys with the given values.
    pub(super) fn grouped(&self, groups: Vec<Values>, columns: usize) -> Self {
        let rows = groups.iter().map(|g| g.distinct).product::<f64>().min(self.rows);
        let mut values = groups;
        values.resize(columns, Values::unknown(rows));
        Self { rows, base_rows: rows, columns: values }
    }

    /// The rows that can have a partner when a share of the values can have one.
    pub(super) fn matchable(&self, share: f64) -> MatchableRows {
        let base = self.base_rows * share;
        MatchableRows { rows: self.rows.min(base), base }
    }

    /// The estimate within its bounds: no column has more values than there are rows.
    pub(super) fn clamped(mut self) -> Self {
        self.base_rows = self.base_rows.max(1.0);
        self.rows = self.rows.clamp(1.0, self.base_rows);
        for values in &mut self.columns {
            values.distinct = values.distinct.clamp(1.0, self.base_rows);
        }
        self
    }

    fn matchable_by(&self, keys: impl Iterator<Item = (Key, Option<Range>)>) -> MatchableRows {
        self.matchable(keys.map(|(key, part)| key.values.share(part)).fold(1.0, f64::min))
    }
}

/// Rows of a relation that can have a partner in a join.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatchableRows {
    pub(super) rows: f64,
    /// The same without filters.
    pub(super) base: f64,
}

/// Selectivity of equalities, from the distinct values on both sides of each; `together` gives the distinct
/// combinations that all key columns of a side can have.
pub(super) fn equality_selectivity(pairs: &[(f64, f64)], together: impl FnOnce() -> Option<f64>) -> f64 {
    let independent: f64 = pairs.iter().map(|(a, b)| 1.0 / a.max(*b).max(1.0)).product();
    match pairs.len() {
        0 | 1 => independent,
        _ => together().map_or(independent, |distinct| independent.max(1.0 / distinct.max(1.0))),
    }
}

/// The estimate of a join of two relations; `other` is true if it has a condition beside the equalities `on`.
pub(super) fn join(left: &Estimate, right: &Estimate, on: &[(Key, Key)], join_type: JoinType, other: bool) -> Estimate {
    let pairs = Pairs::new(left, right, on);
    let inner = || pairs.inner(other);
    let outer = |preserved: f64| {
        let inner = inner();
        let columns = left.columns.iter().chain(&right.columns).copied().collect();
        Estimate { rows: inner.rows.max(preserved), base_rows: inner.base_rows.max(preserved), columns }
    };
    let some = |side: &Estimate, share: f64| Estimate { rows: side.rows * share, ..side.clone() };
    let none = |side: &Estimate, share: f64| some(side, (1.0 - share).max(0.1));
    let marked = |side: &Estimate| {
        let mut side = side.clone();
        side.columns.push(Values::unknown(2.0));
        side
    };
    match join_type {
        JoinType::Inner => inner(),
        JoinType::Left => outer(left.rows),
        JoinType::Right => outer(right.rows),
        JoinType::Full => outer(left.rows + right.rows),
        JoinType::LeftSemi => some(left, pairs.left_matched()),
        JoinType::RightSemi => some(right, pairs.right_matched()),
        JoinType::LeftAnti => none(left, pairs.left_matched()),
        JoinType::RightAnti => none(right, pairs.right_matched()),
        JoinType::LeftMark => marked(left),
        JoinType::RightMark => marked(right),
    }
    .clamped()
}

/// Two relations, and the values and rows of each that can have a partner by their equalities.
struct Pairs<'a> {
    left: &'a Estimate,
    right: &'a Estimate,
    on: &'a [(Key, Key)],
    /// For each equality the range that both sides have in common.
    common: Vec<Option<Range>>,
    /// For each equality the distinct values on both sides that can have a partner.
    distinct: Vec<(f64, f64)>,
    left_rows: MatchableRows,
    right_rows: MatchableRows,
}

impl<'a> Pairs<'a> {
    fn new(left: &'a Estimate, right: &'a Estimate, on: &'a [(Key, Key)]) -> Self {
        let common: Vec<_> = on.iter().map(|(a, b)| Range::common([a.values.range, b.values.range])).collect();
        let both = || on.iter().zip(common.iter().copied());
        let distinct = both().map(|((a, b), part)| (a.values.distinct_in(part), b.values.distinct_in(part))).collect();
        let left_rows = left.matchable_by(both().map(|((a, _), part)| (*a, part)));
        let right_rows = right.matchable_by(both().map(|((_, b), part)| (*b, part)));
        Self { left, right, on, distinct, left_rows, right_rows, common }
    }

    fn inner(&self, other: bool) -> Estimate {
        let together = || {
            let (left, right): (Vec<f64>, Vec<f64>) = self.distinct.iter().copied().unzip();
            let combinations = |each: Vec<f64>, rows: f64| each.into_iter().product::<f64>().min(rows);
            Some(combinations(left, self.left_rows.base).min(combinations(right, self.right_rows.base)))
        };
        let comparison = if other { COMPARISON_SELECTIVITY } else { 1.0 };
        let selectivity = equality_selectivity(&self.distinct, together) * comparison;
        let mut columns: Vec<Values> = self.left.columns.iter().chain(&self.right.columns).copied().collect();
        for (((a, b), part), distinct) in self.on.iter().zip(&self.common).zip(&self.distinct) {
            let equal = Values { distinct: distinct.0.min(distinct.1), range: *part };
            for at in [a.column, b.column.map(|at| at + self.left.columns.len())].into_iter().flatten() {
                if let Some(values) = columns.get_mut(at) {
                    *values = equal;
                }
            }
        }
        let rows = self.left_rows.rows * self.right_rows.rows * selectivity;
        Estimate { rows, base_rows: self.left_rows.base * self.right_rows.base * selectivity, columns }
    }

    /// The share of the left side's rows with a partner: they have as many values as the other side has rows, at most.
    fn left_matched(&self) -> f64 {
        matched(self.left, self.left_rows, self.distinct.iter().map(|d| d.0), self.right_rows)
    }

    fn right_matched(&self) -> f64 {
        matched(self.right, self.right_rows, self.distinct.iter().map(|d| d.1), self.left_rows)
    }
}

fn matched(
    side: &Estimate,
    matchable: MatchableRows,
    distinct: impl Iterator<Item = f64>,
    other: MatchableRows,
) -> f64 {
    let values = distinct.fold(1.0, f64::max);
    (matchable.rows / side.rows.max(1.0) * (other.rows / values).min(1.0)).clamp(0.0, 1.0)
}
