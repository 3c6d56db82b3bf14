//! Pruning: decides which chunks can have rows for which a predicate is true, by the bounds of their columns and by
//! membership filters.
//!
//! Bounds are one Arrow array per column over all chunks of the version, so one evaluation of a `PruningPredicate`
//! decides about all of them. If the predicate asks for single values, the membership filters of the remaining chunks
//! are probed for them. Static predicates are evaluated at plan time; run-time filters at the first chunk and again
//! when one of them changed.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Column as PhysicalColumn, Literal, lit};
use datafusion::physical_expr::{DynamicFilterTracking, PhysicalExpr, conjunction};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use terrace_tier_store::table::{Chunk, ChunkEntry};

use super::keys::JoinKeys;
use super::probe_values::ProbeValues;
use super::source::ScanSource;
use crate::floats::present_form;

/// The bounds of all chunks of a version.
struct ChunkBounds<'a> {
    source: &'a ScanSource,
}

impl ChunkBounds<'_> {
    fn column_bounds(&self, column: &Column) -> Option<&terrace_tier_store::table::ColumnBounds> {
        let index = self.source.schema().index_of(&column.name).ok()?;
        self.source.version.statistics.column(index).ok()
    }
}

impl PruningStatistics for ChunkBounds<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.column_bounds(column).map(|b| Arc::clone(&b.min))
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.column_bounds(column).map(|b| Arc::clone(&b.max))
    }

    fn num_containers(&self) -> usize {
        self.source.version.chunks.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        self.column_bounds(column).map(|b| Arc::new(b.null_counts.clone()) as ArrayRef)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let rows = self.source.version.chunks.iter().map(|c| u64::from(c.chunk.rows));
        Some(Arc::new(UInt64Array::from_iter_values(rows)))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// Whether a chunk can have a row for which a predicate is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It can, as far as is known.
    Keep,
    /// It cannot, by the bounds of its columns or the keys of a join.
    OutOfBounds,
    /// The bounds allow it, but a membership filter has none of the values.
    NoMember,
}

/// For each chunk of the version: whether it can have a row for which all `filters` (over the table's schema) are true.
/// `None` when nothing is known, so that all chunks are kept.
pub(super) fn judge_chunks(source: &ScanSource, filters: &[Arc<dyn PhysicalExpr>]) -> Option<Vec<Verdict>> {
    let chunks = &source.version.chunks;
    if filters.is_empty() || chunks.is_empty() {
        return None;
    }
    let predicate = present_conjunction(filters).ok()?;
    let probes = ProbeValues::from_predicate(&predicate, source.schema());
    let within = within_bounds(source, predicate);
    if within.is_none() && probes.is_empty() {
        return None;
    }
    let pool = source.store.filters();
    let denied = |chunk: &Chunk| {
        let denies =
            |probe: &ProbeValues| chunk.columns().get(probe.column).is_some_and(|s| pool.excludes(s, &probe.values));
        probes.iter().any(denies)
    };
    let judge = |(position, entry): (usize, &ChunkEntry)| {
        let within = within.as_ref().and_then(|within| within.get(position)).copied().unwrap_or(true);
        match within {
            false => Verdict::OutOfBounds,
            true if denied(&entry.chunk) => Verdict::NoMember,
            true => Verdict::Keep,
        }
    };
    Some(chunks.iter().enumerate().map(judge).collect())
}

/// The conjunction of filters in their present form.
pub(super) fn present_conjunction(filters: &[Arc<dyn PhysicalExpr>]) -> Result<Arc<dyn PhysicalExpr>> {
    let present = filters.iter().map(present_form).collect::<Result<Vec<_>>>()?;
    Ok(widen(&conjunction(present), usize::MAX))
}

fn within_bounds(source: &ScanSource, predicate: Arc<dyn PhysicalExpr>) -> Option<Vec<bool>> {
    let pruning = PruningPredicateBuilder::new().with_file_schema(Arc::clone(source.schema())).build(predicate)?;
    match pruning.prune(&ChunkBounds { source }) {
        Ok(keep) if keep.len() == source.version.chunks.len() => Some(keep),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, table = %source.table.name(), "cannot prune chunks by the bounds of their columns");
            None
        }
    }
}

/// Replaces a filter that is routed by hash by the disjunction of its branches. A partitioned hash join routes its
/// filter through `CASE hash % n WHEN i THEN filter_i`. Bounds say nothing about hashes, but every row that passes also
/// passes one of the branches, and their disjunction can be used for pruning.
pub(super) fn widen(predicate: &Arc<dyn PhysicalExpr>, most_branches: usize) -> Arc<dyn PhysicalExpr> {
    // Only whole conjuncts may be replaced by a weaker expression: below a NOT it would make the conjunct stronger.
    let conjuncts = datafusion::physical_expr::split_conjunction(predicate);
    let widened = conjuncts.into_iter().map(|conjunct| {
        let Some(case) = conjunct.downcast_ref::<CaseExpr>() else { return Arc::clone(conjunct) };
        let mut branches: Vec<_> = case.when_then_expr().iter().map(|(_, then)| Arc::clone(then)).collect();
        branches.extend(case.else_expr().cloned());
        if branches.len() > most_branches.saturating_add(1) {
            return Arc::clone(conjunct);
        }
        let never = |b: &Arc<dyn PhysicalExpr>| {
            b.downcast_ref::<Literal>().is_some_and(|l| *l.value() == ScalarValue::from(false))
        };
        branches.retain(|branch| !never(branch));
        let either = |a, b| Arc::new(BinaryExpr::new(a, Operator::Or, b)) as Arc<dyn PhysicalExpr>;
        branches.into_iter().reduce(either).unwrap_or_else(|| lit(false))
    });
    conjunction(widened)
}

/// Prunes by filters that change while the scan runs.
pub(super) struct DynamicPruner {
    source: Arc<ScanSource>,
    filters: Vec<Arc<dyn PhysicalExpr>>,
    keys: Vec<KeyPruner>,
    tracking: Option<DynamicFilterTracking>,
    verdicts: Option<Vec<Verdict>>,
}

/// Prunes by the keys of a join, once they are all known: a chunk without a key between its bounds has no match.
struct KeyPruner {
    keys: Arc<JoinKeys>,
    /// Minimum and maximum of the join's column in each chunk.
    bounds: Option<(Int64Array, Int64Array)>,
}

impl KeyPruner {
    fn new(source: &ScanSource, keys: &Arc<JoinKeys>, column: usize) -> Self {
        let as_numbers = |bounds: &ArrayRef| {
            let days = matches!(bounds.data_type(), DataType::Date32);
            let bounds = if days { cast(bounds, &DataType::Int32).ok()? } else { Arc::clone(bounds) };
            Some(cast(&bounds, &DataType::Int64).ok()?.as_primitive::<Int64Type>().clone())
        };
        let bounds = source.version.statistics.column(column).ok();
        let bounds = bounds.and_then(|bounds| as_numbers(&bounds.min).zip(as_numbers(&bounds.max)));
        Self { keys: Arc::clone(keys), bounds }
    }

    fn keeps(&self, item: u32) -> bool {
        let (Some(keys), Some((min, max))) = (self.keys.complete(), &self.bounds) else { return true };
        let item = item as usize;
        let known = item < min.len() && min.is_valid(item) && max.is_valid(item);
        !known || keys.any_in(&(min.value(item)..=max.value(item)))
    }
}

impl DynamicPruner {
    /// A pruner by `filters` over the table's schema; static filters may be among them, as they make the others more
    /// selective. `keys` are those of joins that publish some of the filters.
    pub(super) fn new(source: Arc<ScanSource>, filters: Vec<Arc<dyn PhysicalExpr>>, keys: &[Arc<JoinKeys>]) -> Self {
        let key_pruner = |keys: &Arc<JoinKeys>| {
            let filter = filters.iter().find(|filter| filter.expression_id() == Some(keys.filter()))?;
            let column = filter.children().first()?.downcast_ref::<PhysicalColumn>()?.index();
            Some(KeyPruner::new(&source, keys, column))
        };
        let keys = keys.iter().filter_map(key_pruner).collect();
        Self { source, filters, keys, tracking: None, verdicts: None }
    }

    /// Whether a row of the item can pass the filters in their present form. Rows of the delta always can.
    pub(super) fn judge(&mut self, item: u32) -> Verdict {
        if self.filters.is_empty() {
            return Verdict::Keep;
        }
        let changed = match &mut self.tracking {
            Some(tracking) => tracking.watcher().is_some_and(|w| w.changed()),
            None => {
                // Subscribes before the first evaluation, so that no change in between is missed.
                self.tracking = Some(DynamicFilterTracking::classify(&conjunction(self.filters.iter().cloned())));
                true
            }
        };
        if changed {
            self.verdicts = judge_chunks(&self.source, &self.filters);
        }
        let known = self.verdicts.as_ref().and_then(|verdicts| verdicts.get(item as usize).copied());
        match known.unwrap_or(Verdict::Keep) {
            Verdict::Keep if !self.keys.iter().all(|keys| keys.keeps(item)) => Verdict::OutOfBounds,
            verdict => verdict,
        }
    }
}
