//! Measures over a part of the rows: what FILTER and CASE leave of an aggregate.
//!
//! `sum(x) FILTER (WHERE c)` and `sum(CASE WHEN c THEN x END)` add up x where c is true. With `ELSE 0` all other rows count as well,
//! although they add nothing: with one of them the sum is not null, and an average divides by their number. So a number of rows may
//! be put together of several measures.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, CastExpr, Literal};
use terrace_tier_store::tier::hbm::device::scan::{ColumnRef, Factor, Measure};

use super::condition::{Condition, KernelColumns, literal_number};
use super::texts::Texts;

/// Rows that pass the filter of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// All of them.
    All,
    /// Those that pass the mask of this number as well.
    Masked(usize),
}

/// The argument of an aggregate.
#[derive(Debug)]
pub(super) struct Argument {
    /// The expression over the table.
    pub(super) expr: Arc<dyn PhysicalExpr>,
    /// The rows whose value it is.
    pub(super) rows: Rows,
    /// Where the value of all others is 0: these and they.
    pub(super) with_zeros: Option<Rows>,
}

/// A number of rows, as a sum of measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// The number of the measure that counts them.
    measure: usize,
    /// Others that count.
    zeros: Option<Zeros>,
}

/// Rows whose value is 0 because a condition is not true, by the numbers of measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Zeros {
    /// Counts these and those for which it is true.
    all: usize,
    /// Counts those for which it is true.
    taken: usize,
}

impl Counted {
    /// The rows that one measure counts.
    #[cfg(test)]
    pub(super) const fn by(measure: usize) -> Self {
        Self { measure, zeros: None }
    }

    /// The rows, for a group with these measures.
    pub(super) fn rows(self, measures: &[i128]) -> Option<i128> {
        let count = |number: usize| measures.get(number).copied();
        let zeros = match self.zeros {
            Some(Zeros { all, taken }) => count(all)? - count(taken)?,
            None => 0,
        };
        Some(count(self.measure)? + zeros)
    }
}

/// A condition of measures.
#[derive(Debug)]
struct Mask {
    /// As an expression over the table.
    expr: Arc<dyn PhysicalExpr>,
    /// As kernels test it.
    condition: Condition,
}

/// The measure of some rows.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    measure: Measure,
    rows: Rows,
}

/// The measures of a plan; each is there once. The first one counts all rows.
#[derive(Debug)]
pub(super) struct Measures {
    parts: Vec<Part>,
    masks: Vec<Mask>,
}

impl Measures {
    /// The count of all rows.
    pub(super) fn new() -> Self {
        Self { parts: vec![Part { measure: Measure::count(), rows: Rows::All }], masks: Vec::new() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.parts.len()
    }

    /// The argument that an expression over the table is, of the rows that pass a filter; `None` where kernels do not compute the
    /// filter.
    pub(super) fn argument(
        &mut self,
        expr: Arc<dyn PhysicalExpr>,
        filter: Option<Arc<dyn PhysicalExpr>>,
        columns: &mut KernelColumns,
    ) -> Option<Argument> {
        let Some(Case { condition, value, has_zeros }) = Case::from_expr(&expr) else {
            return Some(Argument { expr, rows: self.rows(filter, columns)?, with_zeros: None });
        };
        let with_zeros = match has_zeros {
            true => Some(self.rows(filter.clone(), columns)?),
            false => None,
        };
        let mask: Arc<dyn PhysicalExpr> = match filter {
            Some(filter) => Arc::new(BinaryExpr::new(filter, Operator::And, condition)),
            None => condition,
        };
        Some(Argument { expr: value, rows: self.rows(Some(mask), columns)?, with_zeros })
    }

    /// The rows for which a mask is true.
    fn rows(&mut self, mask: Option<Arc<dyn PhysicalExpr>>, columns: &mut KernelColumns) -> Option<Rows> {
        let Some(expr) = mask else { return Some(Rows::All) };
        if let Some(known) = self.masks.iter().position(|mask| mask.expr.eq(&expr)) {
            return Some(Rows::Masked(known));
        }
        let condition = Condition::from_expr(&expr, columns)?;
        self.masks.push(Mask { expr, condition });
        Some(Rows::Masked(self.masks.len() - 1))
    }

    /// The number of a measure.
    pub(super) fn number_of(&mut self, measure: Measure, rows: Rows) -> usize {
        let part = Part { measure, rows };
        let known = self.parts.iter().position(|known| *known == part);
        known.unwrap_or_else(|| {
            self.parts.push(part);
            self.parts.len() - 1
        })
    }

    /// The rows for which an argument that needs these columns is not null.
    pub(super) fn counted(&mut self, columns: impl IntoIterator<Item = ColumnRef>, argument: &Argument) -> Counted {
        // In some order without duplicates, so that equal counts are one measure.
        let mut distinct: Vec<ColumnRef> = Vec::new();
        for column in columns {
            if !distinct.contains(&column) {
                distinct.push(column);
            }
        }
        distinct.sort_by_key(|column| match column {
            ColumnRef::Chunk(column) | ColumnRef::Join { column, .. } => *column,
        });
        let one = |column| Factor { column, offset: 1, scale: 0 };
        let measure = self.number_of(Measure::sum(distinct.into_iter().map(one).collect()), argument.rows);
        let zeros = argument.with_zeros.map(|all| Zeros {
            all: self.number_of(Measure::count(), all),
            taken: self.number_of(Measure::count(), argument.rows),
        });
        Counted { measure, zeros }
    }

    /// The measures of kernels, where the columns of texts have these codes; `None` where a mask has no filter.
    pub(super) fn with_codes(&self, texts: &HashMap<u32, Texts>) -> Result<Option<Vec<Measure>>> {
        let filters = self.masks.iter().map(|mask| mask.condition.filter(texts));
        let Some(filters) = filters.collect::<Result<Option<Vec<_>>>>()? else { return Ok(None) };
        let measure = |part: &Part| match part.rows {
            Rows::All => Some(part.measure.clone()),
            Rows::Masked(mask) => Some(part.measure.clone().filtered(filters.get(mask)?.clone())),
        };
        Ok(self.parts.iter().map(measure).collect())
    }
}

/// `CASE WHEN condition THEN value END`, or with `ELSE 0`.
struct Case {
    condition: Arc<dyn PhysicalExpr>,
    value: Arc<dyn PhysicalExpr>,
    has_zeros: bool,
}

impl Case {
    /// An expression as such a case; `None` for others.
    fn from_expr(expr: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            // The cast of a case is the case of a cast: 0 stays 0 in every type that kernels add up.
            let case = Self::from_expr(cast.expr())?;
            let value = Arc::clone(expr).with_new_children(vec![case.value]).ok()?;
            return Some(Self { value, ..case });
        }
        let case = expr.downcast_ref::<CaseExpr>().filter(|case| case.expr().is_none())?;
        let [(condition, value)] = case.when_then_expr() else { return None };
        let has_zeros = match case.else_expr() {
            None => false,
            Some(other) => {
                let other = other.downcast_ref::<Literal>()?.value();
                let is_zero = literal_number(other, &other.data_type()) == Some(0);
                (other.is_null() || is_zero).then_some(is_zero)?
            }
        };
        Some(Self { condition: Arc::clone(condition), value: Arc::clone(value), has_zeros })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::ScalarValue;
    use datafusion::physical_expr::expressions::{Column, case, lit};

    use super::Rows::{All, Masked};
    use super::*;

    fn columns() -> KernelColumns {
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, true));
        KernelColumns::new(Arc::new(Schema::new(fields.to_vec())))
    }

    fn column(at: usize) -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(["a", "b"][at], at))
    }

    fn above(at: usize, number: i64) -> Arc<dyn PhysicalExpr> {
        Arc::new(BinaryExpr::new(column(at), Operator::Gt, lit(number)))
    }

    fn case_of_b(other: Option<Arc<dyn PhysicalExpr>>) -> Arc<dyn PhysicalExpr> {
        case(None, vec![(above(0, 5), column(1))], other).unwrap()
    }

    #[test]
    fn filters_and_cases_become_masks_and_each_is_there_once() {
        let (mut measures, mut columns) = (Measures::new(), columns());
        let mut argument = |expr, filter| measures.argument(expr, filter, &mut columns).unwrap();
        let found = [
            argument(column(1), None),
            argument(column(1), Some(above(0, 5))),
            argument(case_of_b(None), None),
            argument(case_of_b(Some(lit(0_i64))), None),
            argument(case_of_b(None), Some(above(1, 7))),
            argument(case_of_b(Some(lit(0_i64))), Some(above(1, 7))),
            // Not a case of 0.
            argument(case_of_b(Some(lit(3_i64))), None),
        ];
        let rows: Vec<(Rows, Option<Rows>)> = found.iter().map(|found| (found.rows, found.with_zeros)).collect();
        assert_eq!(
            rows,
            [
                (All, None),
                (Masked(0), None),
                (Masked(0), None),
                (Masked(0), Some(All)),
                (Masked(1), None),
                (Masked(1), Some(Masked(2))),
                (All, None),
            ]
        );
        assert!(found[..6].iter().all(|found| found.expr.eq(&column(1))));
        let measures = measures.with_codes(&HashMap::new()).unwrap().unwrap();
        assert_eq!(measures, [Measure::count()]);
    }

    #[test]
    fn rows_whose_value_is_zero_count() {
        let (mut measures, mut columns) = (Measures::new(), columns());
        let argument = measures.argument(case_of_b(Some(lit(0_i64))), None, &mut columns).unwrap();
        let counted = measures.counted([ColumnRef::Chunk(1)], &argument);
        assert_eq!((measures.count(), counted.measure), (3, 1));
        // Of 10 rows the condition is true for 4, of which 3 have a value.
        assert_eq!(counted.rows(&[10, 3, 4]), Some(9));
        assert_eq!(counted.rows(&[10, 3]), None);
        let null = measures.argument(case_of_b(Some(lit(ScalarValue::Int64(None)))), None, &mut columns).unwrap();
        assert_eq!(measures.counted([ColumnRef::Chunk(1)], &null), Counted::by(1));
    }
}
