//! The condition of a hot view, evaluated on rows and on the bounds of chunks.
//!
//! Rows for which the condition is NULL do not belong to the view. "No row" has to be certain, as scans skip such
//! chunks; "all rows" only saves evaluating the condition, so NULLs that an expression makes of other values may count
//! as fulfilled.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt64Array};
use datafusion::execution::session_state::SessionState;
use datafusion::physical_expr::PhysicalExpr;
use terrace_error::Result;
use terrace_scan::scan::{RowFilter, ScanSource, may_have};

use super::bound::BoundView;

/// A condition over the columns of a table.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    conjuncts: Vec<Arc<dyn PhysicalExpr>>,
    negation: Arc<dyn PhysicalExpr>,
    filter: RowFilter,
}

/// Verdict of the bounds of a chunk on a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoundsVerdict {
    /// No row fulfils it.
    Nothing,
    /// All rows fulfil it.
    Everything,
    /// Neither is certain.
    Unsure,
}

impl Condition {
    /// Plans the condition of a view with the functions and options of `state`.
    ///
    /// # Errors
    /// When it cannot be planned.
    pub(crate) fn new(view: &BoundView, state: &SessionState) -> Result<Self> {
        let physical = |expr| state.create_physical_expr(expr, view.schema());
        let conjuncts = view.exprs().iter().cloned().map(physical).collect::<Result<Vec<_>, _>>()?;
        let filter = RowFilter::new(&conjuncts, view.schema().as_arrow())?;
        Ok(Self { conjuncts, negation: physical(view.negation().clone())?, filter })
    }

    /// Positions of the columns of the condition.
    pub(crate) fn columns(&self) -> &[usize] {
        self.filter.columns()
    }

    /// The rows that fulfil it, without nulls; `values` are those of [`Condition::columns`], in that order.
    ///
    /// # Errors
    /// When it fails on a value, such as a division by zero.
    pub(crate) fn holds(&self, rows: usize, values: &[ArrayRef]) -> Result<BooleanArray> {
        Ok(self.filter.passing(rows, values)?)
    }

    /// Verdict on each chunk of a version without reading it.
    pub(crate) fn judge_by_bounds(&self, source: &ScanSource) -> Vec<BoundsVerdict> {
        let some = may_have(source, &self.conjuncts);
        let others = may_have(source, std::slice::from_ref(&self.negation));
        let nulls: Vec<_> =
            self.columns().iter().map(|column| source.version.statistics.column(*column).ok()).collect();
        let has_none =
            |counts: &UInt64Array, chunk| chunk < counts.len() && counts.is_valid(chunk) && counts.value(chunk) == 0;
        let has_nulls =
            |chunk| !nulls.iter().all(|bounds| bounds.is_some_and(|bounds| has_none(&bounds.null_counts, chunk)));
        let judge = |(chunk, (some, others)): (usize, (bool, bool))| match (some, others) {
            (false, _) => BoundsVerdict::Nothing,
            (true, false) if !has_nulls(chunk) => BoundsVerdict::Everything,
            _ => BoundsVerdict::Unsure,
        };
        some.into_iter().zip(others).enumerate().map(judge).collect()
    }
}
