//! Filters on whole chunks outside of scans (for hot views and tiering runs): which rows pass, and which chunks may
//! have such rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, NullArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;

use super::filter::{Conjunct, DynamicFilterUse, Selection, SliceFilter};
use super::pruning::{Verdict, judge_chunks};
use super::source::ScanSource;

/// Conjuncts over the columns of a table, evaluated as in a scan: those that can fail on a value run last, on the rows
/// that passed the others.
#[derive(Debug, Clone)]
pub struct RowFilter {
    conjuncts: Arc<[Conjunct]>,
    columns: Vec<usize>,
}

impl RowFilter {
    /// The conjunction of `filters` over `schema`.
    pub fn new(filters: &[Arc<dyn PhysicalExpr>], schema: &Schema) -> Result<Self> {
        let mut columns: Vec<usize> = filters.iter().flat_map(collect_columns).map(|c| c.index()).collect();
        columns.sort_unstable();
        columns.dedup();
        Ok(Self { conjuncts: Conjunct::bind_all(filters, &[], schema, &columns)?.into(), columns })
    }

    /// Positions of the columns it reads.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The rows for which it is true, of `rows` rows; `values` are those of [`RowFilter::columns`], in that order.
    pub fn passing(&self, rows: usize, values: &[ArrayRef]) -> Result<BooleanArray> {
        let mut value =
            |slot: usize| Ok(values.get(slot).map_or_else(|| Arc::new(NullArray::new(rows)) as ArrayRef, Arc::clone));
        let mut filter = SliceFilter::new(Arc::clone(&self.conjuncts));
        Ok(match filter.apply(rows, Selection::All, &mut value, DynamicFilterUse::Always)? {
            Selection::All => BooleanArray::new(BooleanBuffer::new_set(rows), None),
            Selection::Nothing => BooleanArray::new(BooleanBuffer::new_unset(rows), None),
            Selection::Some(mask) => mask,
        })
    }
}

/// For each chunk of the version: whether it can have a row for which all `filters` are true, by its bounds and
/// membership filters.
pub fn may_have(source: &ScanSource, filters: &[Arc<dyn PhysicalExpr>]) -> Vec<bool> {
    match judge_chunks(source, filters) {
        Some(verdicts) => verdicts.into_iter().map(|verdict| verdict == Verdict::Keep).collect(),
        None => vec![true; source.version.chunks.len()],
    }
}
