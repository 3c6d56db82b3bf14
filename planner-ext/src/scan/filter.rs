//! Evaluating the filters of a scan on slices.
//!
//! Conjuncts run cheapest first and stop when no row is left. What can fail on a value (casts, arithmetic, functions)
//! runs last and only on rows that passed the rest, so a guard written before it still guards. A run-time filter is
//! dropped for a while when it costs more than it saves: its join or top-k checks every row again anyway.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::prep_null_mask_filter;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr::{DynamicFilterTracking, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::{snapshot_generation, snapshot_physical_expr};

use super::metrics::now;
use super::pruning::widen;

/// Cost of what can fail on a value; dearer than anything that cannot.
const FALLIBLE_COST: u32 = 1000;
/// Cost of a run-time filter: usually a range and a hash lookup.
const DYNAMIC_COST: u32 = 20;
/// From this cost on, a conjunct is evaluated on surviving rows only, when they are at most half.
const DEAR_COST: u32 = 12;

/// One conjunct, bound to the columns a scan reads.
#[derive(Debug, Clone)]
pub(super) struct Conjunct {
    expr: Arc<dyn PhysicalExpr>,
    schema: SchemaRef,
    /// Positions in the scan's list of read columns, in the order of `schema`.
    slots: Vec<usize>,
    cost: u32,
    dynamic: bool,
}

impl Conjunct {
    /// Binds `expr` over the table's `schema` to `columns`, the table columns the scan reads.
    fn bind(expr: &Arc<dyn PhysicalExpr>, schema: &Schema, columns: &[usize]) -> Result<Self> {
        let mut used: Vec<usize> = collect_columns(expr).iter().map(Column::index).collect();
        used.sort_unstable();
        used.dedup();
        let narrow = Arc::new(schema.project(&used)?);
        let dynamic = DynamicFilterTracking::classify(expr).contains_dynamic_filter();
        let slots = used.iter().filter_map(|u| columns.iter().position(|c| c == u)).collect();
        let cost = if dynamic { DYNAMIC_COST } else { cost(expr, schema) };
        Ok(Self { expr: reassign_expr_columns(Arc::clone(expr), &narrow)?, schema: narrow, slots, cost, dynamic })
    }

    /// Binds all filters, cheapest first; equal ones keep their order.
    pub(super) fn bind_all(filters: &[Arc<dyn PhysicalExpr>], schema: &Schema, columns: &[usize]) -> Result<Vec<Self>> {
        let mut bound = filters.iter().map(|f| Self::bind(f, schema, columns)).collect::<Result<Vec<_>>>()?;
        bound.sort_by_key(|c| c.cost);
        Ok(bound)
    }

    /// Columns it reads, as positions in the scan's list.
    pub(super) fn slots(&self) -> &[usize] {
        &self.slots
    }
}

/// A rough order of cost per row, not a measure.
fn cost(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> u32 {
    let children = expr.children().into_iter().map(|c| cost(c, schema)).sum::<u32>();
    let own = if expr.is::<Column>() {
        match expr.data_type(schema) {
            Ok(t) if t.is_nested() => 50,
            Ok(DataType::Decimal128(..) | DataType::Decimal256(..)) => 2,
            Ok(t) if t.is_primitive() || t == DataType::Boolean => 1,
            _ => 5,
        }
    } else if expr.is::<Literal>() || expr.is::<NotExpr>() || expr.is::<IsNullExpr>() || expr.is::<IsNotNullExpr>() {
        0
    } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        match binary.op() {
            Operator::And | Operator::Or => 0,
            Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => 1,
            Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => 1,
            _ => FALLIBLE_COST,
        }
    } else if expr.is::<LikeExpr>() {
        20
    } else if expr.is::<InListExpr>() {
        3
    } else {
        FALLIBLE_COST
    };
    own.saturating_add(children)
}

/// Rows of a slice that passed.
#[derive(Debug)]
pub(super) enum Selection {
    /// Every row.
    All,
    /// No row.
    Nothing,
    /// The rows that are true; without nulls.
    Some(BooleanArray),
}

/// The filters of one partition, with what was learned about the run-time ones.
#[derive(Debug)]
pub(super) struct SliceFilter {
    conjuncts: Arc<[Conjunct]>,
    worth: Vec<Worth>,
}

/// What a partition knows of a run-time filter: its form as of now, and whether it pays.
#[derive(Debug, Default, Clone)]
struct Worth {
    /// Generation and expression to evaluate.
    current: Option<(u64, Arc<dyn PhysicalExpr>)>,
    seen: usize,
    removed: usize,
    spent_ns: u64,
    skip: usize,
    penalty: usize,
}

impl Worth {
    /// Rows after which it is judged.
    const WINDOW_ROWS: usize = 4 * super::SLICE_ROWS;
    /// What a row that is removed saves above: its copy, its hash, its way through a repartitioning, its probe.
    /// What a row that is removed saves above: its copy, its hash, its probe.
    const ROW_GAIN_NS: u64 = 40;
    /// Branches of a routed filter up to which asking all of them is cheaper than routing.
    const MOST_BRANCHES: usize = 4;

    fn evaluates(&mut self) -> bool {
        let skips = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        !skips
    }

    fn learn(&mut self, before: usize, after: usize, spent_ns: u64) {
        self.seen += before;
        self.removed += before - after;
        self.spent_ns += spent_ns;
        if self.seen >= Self::WINDOW_ROWS {
            let pays = self.removed as u64 * Self::ROW_GAIN_NS >= self.spent_ns;
            self.penalty = if pays { 0 } else { (self.penalty * 2).clamp(32, 512) };
            self.skip = self.penalty;
            (self.seen, self.removed, self.spent_ns) = (0, 0, 0);
        }
    }

    /// The filter as it is now. Routing rows to the branch of their hash costs several times a branch, so a row that
    /// passes any of few branches passes.
    fn current(&mut self, filter: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let generation = snapshot_generation(filter);
        if let Some((_, current)) = self.current.as_ref().filter(|(g, _)| *g == generation) {
            return Ok(Arc::clone(current));
        }
        let snapshot = snapshot_physical_expr(Arc::clone(filter))?;
        let current = widen(&snapshot, Self::MOST_BRANCHES);
        self.current = Some((generation, Arc::clone(&current)));
        Ok(current)
    }
}

impl SliceFilter {
    pub(super) fn new(conjuncts: Arc<[Conjunct]>) -> Self {
        let worth = vec![Worth::default(); conjuncts.len()];
        Self { conjuncts, worth }
    }

    /// Evaluates on `rows` rows whose columns `column` slices on demand, starting from `selection`.
    pub(super) fn apply(
        &mut self,
        rows: usize,
        mut selection: Selection,
        mut column: impl FnMut(usize) -> ArrayRef,
    ) -> Result<Selection> {
        for (conjunct, worth) in self.conjuncts.iter().zip(&mut self.worth) {
            let before = match &selection {
                Selection::Nothing => break,
                Selection::All => rows,
                Selection::Some(mask) => mask.true_count(),
            };
            if conjunct.dynamic && !worth.evaluates() {
                continue;
            }
            let columns = conjunct.slots.iter().map(|slot| column(*slot)).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&conjunct.schema), columns, &options)?;
            let start = conjunct.dynamic.then(now);
            let expr = if conjunct.dynamic { &worth.current(&conjunct.expr)? } else { &conjunct.expr };
            let value = match &selection {
                Selection::Some(mask) if conjunct.on_survivors(before, rows) => {
                    expr.evaluate_selection(&batch, mask)?
                }
                _ => expr.evaluate(&batch)?,
            };
            let Some(passed) = mask_of(value)? else { continue };
            let passed = match &selection {
                Selection::Some(mask) if passed.len() == mask.len() => {
                    BooleanArray::new(mask.values() & passed.values(), None)
                }
                _ => passed,
            };
            let after = passed.true_count();
            if let Some(start) = start {
                worth.learn(before, after, start.elapsed().as_nanos() as u64);
            }
            selection = match after {
                0 => Selection::Nothing,
                all if all == rows => Selection::All,
                _ => Selection::Some(passed),
            };
        }
        Ok(selection)
    }
}

impl Conjunct {
    fn on_survivors(&self, survivors: usize, rows: usize) -> bool {
        self.cost >= FALLIBLE_COST || survivors * 5 <= rows || (self.cost >= DEAR_COST && survivors * 2 <= rows)
    }
}

/// The rows a value is true for; `None` when it is true for all, an empty mask when for none.
fn mask_of(value: ColumnarValue) -> Result<Option<BooleanArray>> {
    match value {
        ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))) => Ok(None),
        ColumnarValue::Scalar(_) => Ok(Some(BooleanArray::from(Vec::<bool>::new()))),
        ColumnarValue::Array(array) => {
            let mask = as_boolean_array(&array)?;
            Ok(Some(if mask.null_count() > 0 { prep_null_mask_filter(mask) } else { mask.clone() }))
        }
    }
}
