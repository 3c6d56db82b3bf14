//! What is believed of rows and of the values of columns, and what joins make of it.
//!
//! One set of rules for both that ask: `logical` for the order of joins, `physical` for the side that each of them builds.
//! Distinct values and ranges are those without filters: a filter leaves each value its share of rows, so that a join with
//! a filtered relation keeps that share of the other one's rows.
//!
//! Where two keys overlap in a part of their ranges only, the values outside have no partner. A filtered relation is
//! believed to be filtered for what the other one has: of 73,000 days, a year is asked for in which something was sold.

use datafusion::common::JoinType;

use crate::scan::ScanSource;

/// Share of pairs that a comparison of two relations keeps which is no equality.
pub(super) const COMPARISON_SELECTIVITY: f64 = 1.0 / 3.0;

/// What is believed of a relation.
#[derive(Debug, Clone)]
pub(super) struct Estimate {
    /// Rows that it gives.
    pub(super) rows: f64,
    /// Rows without its filters.
    pub(super) base_rows: f64,
    /// Per column of its output its values without filters.
    pub(super) columns: Vec<Values>,
}

/// What is believed of the values of a column.
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

/// One side of an equality: its values, and its column if it is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) values: Values,
    pub(super) column: Option<usize>,
}

impl Range {
    /// What lies in all the ranges that are known; `low > high` where they do not meet.
    pub(super) fn common(ranges: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let meet = |a: Self, b: Self| Self { low: a.low.max(b.low), high: a.high.min(b.high) };
        ranges.into_iter().flatten().reduce(meet)
    }

    /// The range that has all of both.
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

    /// Those of a column of a table.
    pub(super) fn of_column(source: &ScanSource, column: usize) -> Self {
        let range = source.range(column).map(|(low, high)| Range { low, high });
        Self { distinct: source.distinct(column), range }
    }

    /// The share of the values that lies in `part`; all where that is unknown.
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

    fn or(&self, other: &Self) -> Self {
        let range = self.range.zip(other.range).map(|(a, b)| a.hull(b));
        Self { distinct: self.distinct.max(other.distinct), range }
    }
}

impl Estimate {
    /// A relation of which only the number of rows is known.
    pub(super) fn unknown(rows: f64, columns: usize) -> Self {
        Self { rows, base_rows: rows, columns: vec![Values::unknown(rows); columns] }
    }

    /// The rows of all inputs, whose columns are believed to have values of the same kind.
    pub(super) fn union(inputs: &[Self]) -> Option<Self> {
        let (first, rest) = inputs.split_first()?;
        Some(rest.iter().fold(first.clone(), |all, input| Self {
            rows: all.rows + input.rows,
            base_rows: all.base_rows + input.base_rows,
            columns: all.columns.iter().zip(&input.columns).map(|(a, b)| a.or(b)).collect(),
        }))
    }

    /// The relation with no more than `rows`.
    pub(super) fn limited(self, rows: Option<f64>) -> Self {
        let Some(rows) = rows.filter(|rows| *rows < self.rows) else { return self };
        Self { rows, base_rows: rows, ..self }
    }

    /// The groups of values of which each column has one.
    pub(super) fn grouped(&self, groups: Vec<Values>, columns: usize) -> Self {
        let rows = groups.iter().map(|g| g.distinct).product::<f64>().min(self.rows);
        let mut values = groups;
        values.resize(columns, Values::unknown(rows));
        Self { rows, base_rows: rows, columns: values }
    }

    /// Rows, and rows without filters, when only a share of the values can have a partner.
    pub(super) fn facing(&self, share: f64) -> (f64, f64) {
        let base_rows = self.base_rows * share;
        (self.rows.min(base_rows), base_rows)
    }

    /// Within its bounds: no column has more values than there are rows.
    pub(super) fn clamped(mut self) -> Self {
        self.base_rows = self.base_rows.max(1.0);
        self.rows = self.rows.clamp(1.0, self.base_rows);
        for values in &mut self.columns {
            values.distinct = values.distinct.clamp(1.0, self.base_rows);
        }
        self
    }

    fn share(&self, keys: impl Iterator<Item = (Key, Option<Range>)>) -> (f64, f64) {
        self.facing(keys.map(|(key, part)| key.values.share(part)).fold(1.0, f64::min))
    }
}

/// The share of pairs that equalities keep, from the distinct values on both sides, and those that all of a side's columns
/// can have together.
pub(super) fn kept(pairs: &[(f64, f64)], together: impl FnOnce() -> Option<f64>) -> f64 {
    let independent: f64 = pairs.iter().map(|(a, b)| 1.0 / a.max(*b).max(1.0)).product();
    match pairs.len() {
        0 | 1 => independent,
        _ => together().map_or(independent, |distinct| independent.max(1.0 / distinct.max(1.0))),
    }
}

/// The join of two relations, by the type of the join, its equalities, and whether it has another condition.
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

/// Two relations and what their equalities leave of each.
struct Pairs<'a> {
    left: &'a Estimate,
    right: &'a Estimate,
    on: &'a [(Key, Key)],
    common: Vec<Option<Range>>,
    /// Distinct values that can have a partner.
    distinct: Vec<(f64, f64)>,
    /// Rows that can have a partner, and those without filters.
    left_rows: (f64, f64),
    right_rows: (f64, f64),
}

impl<'a> Pairs<'a> {
    fn new(left: &'a Estimate, right: &'a Estimate, on: &'a [(Key, Key)]) -> Self {
        let common: Vec<_> = on.iter().map(|(a, b)| Range::common([a.values.range, b.values.range])).collect();
        let both = || on.iter().zip(common.iter().copied());
        let distinct = both().map(|((a, b), part)| (a.values.distinct_in(part), b.values.distinct_in(part))).collect();
        let left_rows = left.share(both().map(|((a, _), part)| (*a, part)));
        let right_rows = right.share(both().map(|((_, b), part)| (*b, part)));
        Self { left, right, on, distinct, left_rows, right_rows, common }
    }

    fn inner(&self, other: bool) -> Estimate {
        let together = || {
            let (left, right): (Vec<f64>, Vec<f64>) = self.distinct.iter().copied().unzip();
            let of = |each: Vec<f64>, rows: f64| each.into_iter().product::<f64>().min(rows);
            Some(of(left, self.left_rows.1).min(of(right, self.right_rows.1)))
        };
        let kept = kept(&self.distinct, together) * if other { COMPARISON_SELECTIVITY } else { 1.0 };
        let mut columns: Vec<Values> = self.left.columns.iter().chain(&self.right.columns).copied().collect();
        for (((a, b), part), distinct) in self.on.iter().zip(&self.common).zip(&self.distinct) {
            let equal = Values { distinct: distinct.0.min(distinct.1), range: *part };
            for at in [a.column, b.column.map(|at| at + self.left.columns.len())].into_iter().flatten() {
                if let Some(values) = columns.get_mut(at) {
                    *values = equal;
                }
            }
        }
        let rows = self.left_rows.0 * self.right_rows.0 * kept;
        Estimate { rows, base_rows: self.left_rows.1 * self.right_rows.1 * kept, columns }
    }

    /// The share of the left side's rows with a partner: as many values as the other side has left.
    fn left_matched(&self) -> f64 {
        matched(self.left, self.left_rows, self.distinct.iter().map(|d| d.0), self.right_rows)
    }

    fn right_matched(&self) -> f64 {
        matched(self.right, self.right_rows, self.distinct.iter().map(|d| d.1), self.left_rows)
    }
}

fn matched(side: &Estimate, facing: (f64, f64), distinct: impl Iterator<Item = f64>, other: (f64, f64)) -> f64 {
    let values = distinct.fold(1.0, f64::max);
    (facing.0 / side.rows.max(1.0) * (other.0 / values).min(1.0)).clamp(0.0, 1.0)
}
