//! Evaluating the filters of a scan on slices.
//!
//! Conjuncts run cheapest first and stop when no row is left. What can fail on a value (casts, arithmetic, functions)
//! runs last and only on rows that passed the rest, so a guard written before it still guards. A run-time filter is
//! dropped for a while when it costs more than it saves: its join or top-k checks every row again anyway.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::prep_null_mask_filter;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr::{DynamicFilterTracking, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::snapshot_generation;
use parking_lot::Mutex;
use terrace_tier_store::clock::thread_cpu_ns;
use terrace_tier_store::heat::Sample;
use terrace_tier_store::tier::codec::Words;

use super::comparison::Comparison;
use super::keys::JoinKeys;
use super::like::by_pieces;
use super::membership::{self, Membership};
use super::pruning::widen;
use super::words::Verdicts;
use crate::floats::present_form;

/// Cost of what can fail on a value; dearer than anything that cannot.
const FALLIBLE_COST: u32 = 1000;
/// Cost of a run-time filter: usually a range and a hash lookup.
const DYNAMIC_COST: u32 = 20;
/// From this cost on, a conjunct is evaluated on surviving rows only, when they are at most half.
const DEAR_COST: u32 = 12;

/// The columns of a slice, by their positions in the scan's list.
pub(super) trait Columns {
    /// The values of one.
    fn values(&mut self, slot: usize) -> Result<ArrayRef>;
    /// Of one that is stored so: keys, and what they stand for.
    fn keys(&mut self, slot: usize) -> Option<(Words, ArrayRef)>;
    /// The values of a column as they are stored, perhaps narrower than declared; not keys of texts.
    fn stored(&mut self, slot: usize) -> Option<ArrayRef>;
}

impl<F: FnMut(usize) -> Result<ArrayRef>> Columns for F {
    fn values(&mut self, slot: usize) -> Result<ArrayRef> {
        self(slot)
    }

    fn keys(&mut self, _slot: usize) -> Option<(Words, ArrayRef)> {
        None
    }

    fn stored(&mut self, _slot: usize) -> Option<ArrayRef> {
        None
    }
}

/// One conjunct, bound to the columns a scan reads.
#[derive(Debug, Clone)]
pub(super) struct Conjunct {
    expr: Arc<dyn PhysicalExpr>,
    schema: SchemaRef,
    /// Positions in the scan's list of read columns, in the order of `schema`.
    slots: Vec<usize>,
    cost: u32,
    dynamic: bool,
    /// What it is, if it is one.
    comparison: Option<Comparison>,
    /// Of a run-time filter: the bitmap of its generation, once a partition found that it pays.
    membership: Arc<Mutex<Shared>>,
    /// Of a join's run-time filter: the join's keys.
    keys: Option<Arc<JoinKeys>>,
}

/// A bitmap and the generation it was made of.
type Shared = Option<(u64, Arc<Membership>)>;

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
        let expr = by_pieces(reassign_expr_columns(Arc::clone(expr), &narrow)?)?;
        let comparison = Comparison::of(&expr, &narrow);
        Ok(Self { expr, schema: narrow, slots, cost, dynamic, comparison, membership: Arc::default(), keys: None })
    }

    /// Binds all filters, cheapest first; equal ones keep their order.
    pub(super) fn bind_all(
        filters: &[Arc<dyn PhysicalExpr>],
        keys: &[Arc<JoinKeys>],
        schema: &Schema,
        columns: &[usize],
    ) -> Result<Vec<Self>> {
        let of_join = |f: &Arc<dyn PhysicalExpr>| {
            let filter = f.expression_id()?;
            keys.iter().find(|keys| keys.filter() == filter).cloned()
        };
        let bind = |f| Ok(Self { keys: of_join(f), ..Self::bind(f, schema, columns)? });
        let mut bound = filters.iter().map(bind).collect::<Result<Vec<_>>>()?;
        bound.sort_by_key(|c| c.cost);
        Ok(bound)
    }

    /// The rows of `batch` it is true for; `None` when all. With few rows left in `selection`, only those are asked.
    fn pass(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        batch: &RecordBatch,
        selection: &Selection,
    ) -> Result<Option<BooleanArray>> {
        let value = match selection {
            Selection::Some(mask) if self.on_survivors(mask.true_count(), batch.num_rows()) => {
                expr.evaluate_selection(batch, mask)?
            }
            _ => expr.evaluate(batch)?,
        };
        mask_of(value)
    }

    /// The rows it is true for, told from their keys; `known` are the verdicts of another slice. `None`: rows have to be
    /// asked, as it is not about one column of keys, or fails on one of the values, which perhaps no row has.
    fn pass_keys(&self, known: &mut Option<Verdicts>, columns: &mut impl Columns) -> Option<Option<BooleanArray>> {
        let [slot] = self.slots.as_slice() else { return None };
        let (words, keys) = if self.dynamic { None } else { columns.keys(*slot) }?;
        if !known.as_ref().is_some_and(|known| known.are_of(&words)) {
            *known = Some(Verdicts::of(&self.expr, &self.schema, &words));
        }
        known.as_ref()?.pass(&keys)
    }

    /// The same on values as they are stored. `None` when it has to be asked of others.
    fn pass_stored(&self, columns: &mut impl Columns) -> Option<BooleanArray> {
        let comparison = self.comparison?;
        let [slot] = self.slots.as_slice() else { return None };
        let passed = comparison.pass(&columns.stored(*slot)?)?;
        Some(if passed.null_count() > 0 { prep_null_mask_filter(&passed) } else { passed })
    }

    /// True when it is about one column alone, and true for none of the words that all values of a chunk are, nor for null
    /// if there are `nulls`.
    pub(super) fn denies(&self, words: &Words, nulls: bool) -> bool {
        !self.dynamic && self.slots.len() == 1 && Verdicts::of(&self.expr, &self.schema, words).none(nulls)
    }

    /// A comparison, and the position of its column in the scan's list.
    pub(super) fn comparison(&self) -> Option<(usize, &Comparison)> {
        let [slot] = self.slots.as_slice() else { return None };
        self.comparison.as_ref().map(|comparison| (*slot, comparison))
    }

    /// The bitmap of `current`, made by whichever partition asks first.
    fn membership(&self, current: &Current, range: RangeInclusive<i64>) -> Result<Arc<Membership>> {
        let mut shared = self.membership.lock();
        if let Some((_, known)) = shared.as_ref().filter(|(generation, _)| *generation == current.generation) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(Membership::new(&current.expr, &self.schema, range)?);
        *shared = Some((current.generation, Arc::clone(&made)));
        Ok(made)
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
#[derive(Debug, Clone)]
pub(super) enum Selection {
    /// Every row.
    All,
    /// No row.
    Nothing,
    /// The rows that are true; without nulls.
    Some(BooleanArray),
}

impl Selection {
    /// How many rows of the slice hold the first `rows` selected ones; there are more than these.
    pub(super) fn length_with(&self, rows: usize) -> usize {
        match (self, rows.checked_sub(1)) {
            (Self::Nothing, _) | (_, None) => 0,
            (Self::All, _) => rows,
            (Self::Some(mask), Some(last)) => mask.values().set_indices().nth(last).map_or(mask.len(), |at| at + 1),
        }
    }

    /// A sample of the rows, where these are some of them.
    pub(super) fn sample(&self) -> Sample {
        match self {
            Self::Some(mask) => Sample::of_bitmap(mask.values()),
            Self::All | Self::Nothing => Sample::default(),
        }
    }
}

/// Which run-time filters are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// Those that save more processor time than they take.
    WhatPays,
    /// All: other columns are read for the rows that pass.
    All,
}

/// The filters of one partition, with what was learned about the run-time ones.
#[derive(Debug)]
pub(super) struct SliceFilter {
    conjuncts: Arc<[Conjunct]>,
    worth: Vec<Worth>,
    verdicts: Vec<Option<Verdicts>>,
}

/// What a partition knows of a run-time filter: its form as of now, and whether it pays.
#[derive(Debug, Default)]
struct Worth {
    current: Option<Current>,
    /// The keys of its join, once they are all known.
    keys: Option<Arc<Membership>>,
    seen: usize,
    removed: usize,
    spent_ns: u64,
    skip: usize,
    penalty: usize,
}

/// The form of a run-time filter as of one generation.
#[derive(Debug)]
struct Current {
    generation: u64,
    expr: Arc<dyn PhysicalExpr>,
    /// Rows asked so far, and the range whose values could be asked once instead.
    asked: usize,
    range: Option<RangeInclusive<i64>>,
    membership: Option<Arc<Membership>>,
}

impl Worth {
    /// Rows after which it is judged.
    const WINDOW_ROWS: usize = 4 * super::SLICE_ROWS;
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

    /// Before `rows` more rows are asked: takes up the filter's newest form, and its bitmap once that pays.
    fn prepare(&mut self, conjunct: &Conjunct, rows: usize) -> Result<()> {
        if let Some(keys) = conjunct.keys.as_ref().and_then(|keys| keys.complete()) {
            self.keys.get_or_insert_with(|| Arc::clone(keys));
            return Ok(());
        }
        let current = Self::current(&mut self.current, conjunct)?;
        current.asked += rows;
        // A value of the range costs as much as a row: with half as many rows asked, as many are likely to come.
        let pays = |r: &mut RangeInclusive<i64>| r.end().abs_diff(*r.start()) <= 2 * current.asked as u64;
        if let Some(range) = current.range.take_if(pays) {
            // What fails on a value that perhaps no row has is no reason to fail.
            current.membership = conjunct.membership(current, range).ok();
            (self.seen, self.removed, self.spent_ns, self.penalty) = (0, 0, 0, 0);
        }
        Ok(())
    }

    /// The rows of `batch` that pass `conjunct`; `None` when all.
    fn pass(&self, conjunct: &Conjunct, batch: &RecordBatch, selection: &Selection) -> Result<Option<BooleanArray>> {
        let of_values = self.keys.as_ref().or(self.current.as_ref().and_then(|c| c.membership.as_ref()));
        let tested = of_values.and_then(|m| m.test(batch.columns().first()?));
        match (tested, &self.current) {
            (Some(tested), _) => mask_of(tested),
            (None, Some(current)) => conjunct.pass(&current.expr, batch, selection),
            (None, None) => Ok(None),
        }
    }

    /// The filter as it is now. Routing rows to the branch of their hash costs several times a branch, so a row that
    /// passes any of few branches passes.
    fn current<'a>(known: &'a mut Option<Current>, conjunct: &Conjunct) -> Result<&'a mut Current> {
        let generation = snapshot_generation(&conjunct.expr);
        match known {
            Some(current) if current.generation == generation => {}
            _ => {
                let expr = widen(&present_form(&conjunct.expr)?, Self::MOST_BRANCHES);
                let range = membership::range(&expr, &conjunct.schema);
                *known = Some(Current { generation, expr, asked: 0, range, membership: None });
            }
        }
        known.as_mut().ok_or_else(|| DataFusionError::Internal("a run-time filter has no form".into()))
    }
}

impl SliceFilter {
    pub(super) fn new(conjuncts: Arc<[Conjunct]>) -> Self {
        let worth = conjuncts.iter().map(|_| Worth::default()).collect();
        let verdicts = conjuncts.iter().map(|_| None).collect();
        Self { conjuncts, worth, verdicts }
    }

    /// Evaluates on `rows` rows, starting from `selection`; asks for the columns that it needs.
    pub(super) fn apply(
        &mut self,
        rows: usize,
        mut selection: Selection,
        columns: &mut impl Columns,
        asking: Asking,
    ) -> Result<Selection> {
        let learned = self.worth.iter_mut().zip(&mut self.verdicts);
        for (conjunct, (worth, verdicts)) in self.conjuncts.iter().zip(learned) {
            let before = match &selection {
                Selection::Nothing => break,
                Selection::All => rows,
                Selection::Some(mask) => mask.true_count(),
            };
            if conjunct.dynamic && !worth.evaluates() && asking == Asking::WhatPays {
                continue;
            }
            let mut start = None;
            let as_stored = conjunct.pass_keys(verdicts, columns);
            let passed = match as_stored.or_else(|| conjunct.pass_stored(columns).map(Some)) {
                Some(passed) => passed,
                None => {
                    let values = conjunct.slots.iter().map(|slot| columns.values(*slot)).collect::<Result<_>>()?;
                    let options = RecordBatchOptions::new().with_row_count(Some(rows));
                    let batch = RecordBatch::try_new_with_options(Arc::clone(&conjunct.schema), values, &options)?;
                    if conjunct.dynamic {
                        worth.prepare(conjunct, before)?;
                        start = Some(thread_cpu_ns());
                        worth.pass(conjunct, &batch, &selection)?
                    } else {
                        conjunct.pass(&conjunct.expr, &batch, &selection)?
                    }
                }
            };
            let Some(passed) = passed else { continue };
            let passed = match &selection {
                Selection::Some(mask) if passed.len() == mask.len() => {
                    BooleanArray::new(mask.values() & passed.values(), None)
                }
                _ => passed,
            };
            let after = passed.true_count();
            if let Some(start) = start {
                worth.learn(before, after, thread_cpu_ns().saturating_sub(start));
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
pub(super) fn mask_of(value: ColumnarValue) -> Result<Option<BooleanArray>> {
    match value {
        ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))) => Ok(None),
        ColumnarValue::Scalar(_) => Ok(Some(BooleanArray::from(Vec::<bool>::new()))),
        ColumnarValue::Array(array) => {
            let mask = as_boolean_array(&array)?;
            Ok(Some(if mask.null_count() > 0 { prep_null_mask_filter(mask) } else { mask.clone() }))
        }
    }
}
