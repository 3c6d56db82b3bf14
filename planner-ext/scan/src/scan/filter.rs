//! Evaluating the filters of a scan on slices.
//!
//! Conjuncts run cheapest first and stop when no row is left. Conjuncts that can fail on a value (casts, arithmetic,
//! functions) run last and only on rows that passed the others, so a guard written before them still guards. A run-time
//! filter is skipped for a while when it costs more than it saves: its join or top-k checks every row again anyway.

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
use terrace_tier_store::tier::codec::Dictionary;

use super::comparison::Comparison;
use super::dictionary_filter::DictionaryFilter;
use super::keys::JoinKeys;
use super::like::by_pieces;
use super::membership::{self, Membership};
use super::packed_test::{PackedTest, StoredTest};
use super::pruning::widen;
use super::stream::FEW_SELECTED;
use crate::floats::present_form;

/// Cost of an expression that can fail on a value; dearer than any that cannot.
const FALLIBLE_COST: u32 = 1000;
/// Cost of a run-time filter: usually a range and a hash lookup.
const DYNAMIC_COST: u32 = 20;
/// From this cost on, a conjunct is evaluated on surviving rows only, when they are at most half.
const DEAR_COST: u32 = 12;

/// The columns of a slice, by their positions in the scan's list.
pub(super) trait Columns {
    /// The values of a column.
    fn values(&mut self, slot: usize) -> Result<ArrayRef>;
    /// The dictionary and the keys of a column; `None` if it is stored without a dictionary.
    fn keys(&mut self, slot: usize) -> Option<(Dictionary, ArrayRef)>;
    /// The values of a column as they are stored, which may be narrower than declared; `None` for keys of a dictionary.
    fn stored(&mut self, slot: usize) -> Option<ArrayRef>;
    /// For each row, whether its packed value passes a test, and null for null; `None` where it is not packed, or not so.
    fn packed(&mut self, slot: usize, test: PackedTest<'_>) -> Option<BooleanArray>;
    /// For each row, whether it is null; `None` when only the values show it.
    fn is_null(&mut self, slot: usize) -> Option<BooleanArray>;
    /// True for a column of packed values, no keys of a dictionary, that were not unpacked yet.
    fn is_packed(&self, slot: usize) -> bool;
    /// The dictionary of a column that is stored as keys.
    fn dictionary(&self, slot: usize) -> Option<Dictionary>;
    /// Like `values`, but only values of selected rows have to be right.
    fn selected_values(&mut self, slot: usize, selected: &BooleanArray) -> Result<ArrayRef>;
}

impl<F: FnMut(usize) -> Result<ArrayRef>> Columns for F {
    fn values(&mut self, slot: usize) -> Result<ArrayRef> {
        self(slot)
    }

    fn keys(&mut self, _slot: usize) -> Option<(Dictionary, ArrayRef)> {
        None
    }

    fn stored(&mut self, _slot: usize) -> Option<ArrayRef> {
        None
    }

    fn packed(&mut self, _slot: usize, _test: PackedTest<'_>) -> Option<BooleanArray> {
        None
    }

    fn is_null(&mut self, _slot: usize) -> Option<BooleanArray> {
        None
    }

    fn is_packed(&self, _slot: usize) -> bool {
        false
    }

    fn dictionary(&self, _slot: usize) -> Option<Dictionary> {
        None
    }

    fn selected_values(&mut self, slot: usize, _selected: &BooleanArray) -> Result<ArrayRef> {
        self(slot)
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
    /// The conjunct as a comparison with a number, if it is one.
    comparison: Option<Comparison>,
    /// The conjunct as a test of values where they lie, if it is another one.
    test: Option<StoredTest>,
    /// For a run-time filter: the bitmap of its generation, once a partition found that it pays.
    membership: Arc<Mutex<SharedMembership>>,
    /// For the run-time filter of a join: the join's keys.
    keys: Option<Arc<JoinKeys>>,
}

/// A bitmap and the generation of the filter that it was made from.
type SharedMembership = Option<(u64, Arc<Membership>)>;

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
        let comparison = Comparison::from_expr(&expr, &narrow);
        let is_other = comparison.is_none() && !dynamic;
        let test = is_other.then(|| StoredTest::from_expr(&expr, &narrow)).flatten();
        let membership = Arc::default();
        Ok(Self { expr, schema: narrow, slots, cost, dynamic, comparison, test, membership, keys: None })
    }

    /// Binds all filters, cheapest first; equal ones keep their order.
    pub(super) fn bind_all(
        filters: &[Arc<dyn PhysicalExpr>],
        keys: &[Arc<JoinKeys>],
        schema: &Schema,
        columns: &[usize],
    ) -> Result<Vec<Self>> {
        let join_keys = |f: &Arc<dyn PhysicalExpr>| {
            let filter = f.expression_id()?;
            keys.iter().find(|keys| keys.filter() == filter).cloned()
        };
        let bind = |f| Ok(Self { keys: join_keys(f), ..Self::bind(f, schema, columns)? });
        let mut bound = filters.iter().map(bind).collect::<Result<Vec<_>>>()?;
        bound.sort_by_key(|c| c.cost);
        Ok(bound)
    }

    /// The rows of `batch` for which it is true; `None` when all. With few rows left in `selection`, it is evaluated on
    /// those only.
    fn pass(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        batch: &RecordBatch,
        selection: &Selection,
    ) -> Result<Option<BooleanArray>> {
        let value = match selection {
            Selection::Some(mask) if self.evaluates_on_survivors(mask.true_count(), batch.num_rows()) => {
                expr.evaluate_selection(batch, mask)?
            }
            _ => expr.evaluate(batch)?,
        };
        mask_of(value)
    }

    /// The rows for which it is true, found by their dictionary keys; `known` is the dictionary filter of an earlier
    /// slice. `None` when it has to be evaluated on the rows: it is not about one column of keys, or it fails on a
    /// value, which may be one that no row has.
    fn pass_keys(
        &self,
        known: &mut Option<DictionaryFilter>,
        columns: &mut impl Columns,
    ) -> Option<Option<BooleanArray>> {
        let [slot] = self.slots.as_slice() else { return None };
        let dictionary = if self.dynamic { None } else { columns.dictionary(*slot) }?;
        if !known.as_ref().is_some_and(|known| known.is_for(&dictionary)) {
            *known = Some(DictionaryFilter::new(&self.expr, &self.schema, &dictionary));
        }
        let filter = known.as_ref().filter(|filter| filter.has_verdicts())?;
        match filter.pass_packed(|keys| columns.packed(*slot, PackedTest::Keys(keys))) {
            Some(passed) => Some(passed),
            None => filter.pass(&columns.keys(*slot)?.1),
        }
    }

    /// Like `pass_keys`, but on values of `rows` rows as they are stored; `None` when it has to be evaluated on the declared
    /// values.
    fn pass_stored(&self, rows: usize, columns: &mut impl Columns) -> Option<BooleanArray> {
        let passed = match (&self.comparison, &self.test) {
            (Some(comparison), _) => self.compare(comparison, columns),
            (None, Some(test)) => test.pass(rows, &self.slots, columns),
            (None, None) => None,
        };
        passed.map(without_nulls)
    }

    /// For each row, whether the value of the one column passes, by the values as they are stored.
    fn compare(&self, comparison: &Comparison, columns: &mut impl Columns) -> Option<BooleanArray> {
        let [slot] = self.slots.as_slice() else { return None };
        match comparison.pass_packed(|values| columns.packed(*slot, PackedTest::Within(values))) {
            Some(passed) => Some(passed),
            None => comparison.pass(&columns.stored(*slot)?),
        }
    }

    /// The columns of `rows` rows. Where few are left in `selection` and the conjunct is evaluated on these, the values of others
    /// are arbitrary.
    fn batch(&self, rows: usize, selection: &Selection, columns: &mut impl Columns) -> Result<RecordBatch> {
        let few = match selection {
            Selection::Some(mask) => {
                let survivors = mask.true_count();
                let few = survivors * FEW_SELECTED < rows && self.evaluates_on_survivors(survivors, rows);
                few.then_some(mask)
            }
            Selection::All | Selection::Nothing => None,
        };
        let values = self.slots.iter().map(|slot| match few {
            Some(mask) => columns.selected_values(*slot, mask),
            None => columns.values(*slot),
        });
        let values = values.collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), values, &options)?)
    }

    /// True when it is about one column alone, and neither true for a value of the column's dictionary in a chunk nor,
    /// if the column has `nulls`, for null.
    pub(super) fn denies(&self, dictionary: &Dictionary, nulls: bool) -> bool {
        !self.dynamic
            && self.slots.len() == 1
            && DictionaryFilter::new(&self.expr, &self.schema, dictionary).passes_nothing(nulls)
    }

    /// The position in the scan's list of its one column, if bounds of values show that none of them passes
    /// ([`Conjunct::may_pass`]).
    pub(super) fn bounded_slot(&self) -> Option<usize> {
        let [slot] = self.slots.as_slice() else { return None };
        let is_bounded =
            self.comparison.is_some() || self.test.as_ref().is_some_and(|test| test.may_pass(0, 0).is_some());
        is_bounded.then_some(*slot)
    }

    /// False when no value from `min` to `max` of its one column passes.
    pub(super) fn may_pass(&self, min: i64, max: i64) -> bool {
        match (&self.comparison, &self.test) {
            (Some(comparison), _) => comparison.may_pass(min, max),
            (None, Some(test)) => test.may_pass(min, max).unwrap_or(true),
            (None, None) => true,
        }
    }

    /// The bitmap of `current`; the first partition that asks for it makes it.
    fn membership(&self, current: &CurrentForm, range: RangeInclusive<i64>) -> Result<Arc<Membership>> {
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

/// Cost per row, for ordering conjuncts; not a measure of time.
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
    /// Number of rows at the beginning of the slice that contain the first `rows` selected rows; there are more
    /// selected ones.
    pub(super) fn length_with(&self, rows: usize) -> usize {
        match (self, rows.checked_sub(1)) {
            (Self::Nothing, _) | (_, None) => 0,
            (Self::All, _) => rows,
            (Self::Some(mask), Some(last)) => mask.values().set_indices().nth(last).map_or(mask.len(), |at| at + 1),
        }
    }

    /// True when a selected row is among those of `mask`, which has no nulls.
    fn has_any_of(&self, mask: &BooleanArray) -> bool {
        match self {
            Self::All => mask.true_count() > 0,
            Self::Nothing => false,
            Self::Some(selected) => (selected.values() & mask.values()).count_set_bits() > 0,
        }
    }

    /// A sample of the selected rows, if some are selected and not all.
    pub(super) fn sample(&self) -> Sample {
        match self {
            Self::Some(mask) => Sample::from_bitmap(mask.values()),
            Self::All | Self::Nothing => Sample::default(),
        }
    }
}

/// Which run-time filters are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DynamicFilterUse {
    /// Those that save more processor time than they take.
    WhenUseful,
    /// All of them, because other columns are read for the rows that pass.
    Always,
}

/// The filters of one partition, with the state of the run-time ones.
#[derive(Debug)]
pub(super) struct SliceFilter {
    conjuncts: Arc<[Conjunct]>,
    states: Vec<DynamicFilterState>,
    dictionary_filters: Vec<Option<DictionaryFilter>>,
}

/// State of a run-time filter in one partition: its current form, and whether it pays.
#[derive(Debug, Default)]
struct DynamicFilterState {
    current: Option<CurrentForm>,
    /// The keys of its join, once they are all known.
    keys: Option<Arc<Membership>>,
    /// Rows evaluated, rows removed and time spent since the filter was judged last.
    seen: usize,
    removed: usize,
    spent_ns: u64,
    /// Slices for which the filter is still to be skipped.
    skip: usize,
    /// Slices skipped after the last judgement; doubles while the filter does not pay.
    penalty: usize,
}

/// The form of a run-time filter as of one generation.
#[derive(Debug)]
struct CurrentForm {
    generation: u64,
    expr: Arc<dyn PhysicalExpr>,
    comparison: Option<Comparison>,
    /// A test of values where they lie that is a part of it, or all of it.
    test: Option<StoredTest>,
    /// Rows evaluated so far.
    evaluated: usize,
    /// Range of values that could each be evaluated once instead.
    range: Option<RangeInclusive<i64>>,
    membership: Option<Arc<Membership>>,
}

impl DynamicFilterState {
    /// Rows after which the filter is judged.
    const WINDOW_ROWS: usize = 4 * super::SLICE_ROWS;
    /// Time that a removed row saves in the operators above: its copy, its hash, its probe.
    const ROW_GAIN_NS: u64 = 40;
    /// Branches of a routed filter up to which evaluating all of them is cheaper than routing.
    const MOST_BRANCHES: usize = 4;

    /// True when the filter is to be evaluated on the next slice; counts down the slices to skip.
    fn evaluates(&mut self) -> bool {
        let skips = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        !skips
    }

    /// Records an evaluation and judges the filter when enough rows were seen.
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

    /// Prepares for `rows` more rows: adopts the filter's newest form, and its bitmap once that pays.
    fn prepare(&mut self, conjunct: &Conjunct, rows: usize) -> Result<()> {
        if let Some(keys) = conjunct.keys.as_ref().and_then(|keys| keys.complete()) {
            self.keys.get_or_insert_with(|| Arc::clone(keys));
            return Ok(());
        }
        let current = Self::current(&mut self.current, conjunct)?;
        current.evaluated += rows;
        // A value of the range costs as much as a row. Once half as many rows as the range has values were evaluated,
        // as many again are likely to come, and the bitmap pays.
        let pays = |r: &mut RangeInclusive<i64>| r.end().abs_diff(*r.start()) <= 2 * current.evaluated as u64;
        if let Some(range) = current.range.take_if(pays) {
            // The filter may fail on a value that no row has; the statement must not fail because of that.
            current.membership = conjunct.membership(current, range).ok();
            (self.seen, self.removed, self.spent_ns, self.penalty) = (0, 0, 0, 0);
        }
        Ok(())
    }

    /// The keys that pass, once they are known.
    fn members(&self) -> Option<&Arc<Membership>> {
        self.keys.as_ref().or(self.current.as_ref().and_then(|c| c.membership.as_ref()))
    }

    /// The rows of `rows` rows that pass `conjunct`, `Some(None)` when all, found where the values lie; `None` when it has to be
    /// evaluated on the declared values.
    fn pass_stored(
        &self,
        conjunct: &Conjunct,
        rows: usize,
        selection: &Selection,
        columns: &mut impl Columns,
    ) -> Option<Option<BooleanArray>> {
        if let Some(members) = self.members() {
            let [slot] = conjunct.slots.as_slice() else { return None };
            return Some(Some(without_nulls(columns.packed(*slot, PackedTest::Members(members))?)));
        }
        let current = self.current.as_ref()?;
        // As long as its join or top-k knows nothing, a filter is true.
        if current.expr.downcast_ref::<Literal>().is_some_and(|l| *l.value() == ScalarValue::Boolean(Some(true))) {
            return Some(None);
        }
        if let Some(comparison) = &current.comparison {
            return conjunct.compare(comparison, columns).map(|passed| Some(without_nulls(passed)));
        }
        let test = current.test.as_ref()?;
        let passed = without_nulls(test.pass(rows, &conjunct.slots, columns)?);
        // A part decides alone where it leaves no row.
        (test.is_exact() || !selection.has_any_of(&passed)).then_some(Some(passed))
    }

    /// The rows of `batch` that pass `conjunct`; `None` when all.
    fn pass(&self, conjunct: &Conjunct, batch: &RecordBatch, selection: &Selection) -> Result<Option<BooleanArray>> {
        let tested = self.members().and_then(|m| m.test(batch.columns().first()?));
        match (tested, &self.current) {
            (Some(tested), _) => mask_of(tested),
            (None, Some(current)) => conjunct.pass(&current.expr, batch, selection),
            (None, None) => Ok(None),
        }
    }

    /// The current form of the filter. Routing a row to the branch of its hash costs several times as much as a branch,
    /// so with few branches a row passes if it passes any of them.
    fn current<'a>(known: &'a mut Option<CurrentForm>, conjunct: &Conjunct) -> Result<&'a mut CurrentForm> {
        let generation = snapshot_generation(&conjunct.expr);
        match known {
            Some(current) if current.generation == generation => {}
            _ => {
                let expr = widen(&present_form(&conjunct.expr)?, Self::MOST_BRANCHES);
                let range = membership::range(&expr, &conjunct.schema);
                let comparison = Comparison::from_expr(&expr, &conjunct.schema);
                let test = StoredTest::part_of_expr(&expr, &conjunct.schema);
                *known =
                    Some(CurrentForm { generation, expr, comparison, test, evaluated: 0, range, membership: None });
            }
        }
        known.as_mut().ok_or_else(|| DataFusionError::Internal("a run-time filter has no current form".into()))
    }
}

impl SliceFilter {
    pub(super) fn new(conjuncts: Arc<[Conjunct]>) -> Self {
        let states = conjuncts.iter().map(|_| DynamicFilterState::default()).collect();
        let dictionary_filters = conjuncts.iter().map(|_| None).collect();
        Self { conjuncts, states, dictionary_filters }
    }

    /// Evaluates the filters on `rows` rows, starting from `selection`; takes the columns it needs from `columns`.
    pub(super) fn apply(
        &mut self,
        rows: usize,
        mut selection: Selection,
        columns: &mut impl Columns,
        dynamic_filters: DynamicFilterUse,
    ) -> Result<Selection> {
        let states = self.states.iter_mut().zip(&mut self.dictionary_filters);
        for (conjunct, (state, dictionary_filter)) in self.conjuncts.iter().zip(states) {
            let before = match &selection {
                Selection::Nothing => break,
                Selection::All => rows,
                Selection::Some(mask) => mask.true_count(),
            };
            if conjunct.dynamic && !state.evaluates() && dynamic_filters == DynamicFilterUse::WhenUseful {
                continue;
            }
            let mut start = None;
            let passed = if conjunct.dynamic {
                state.prepare(conjunct, before)?;
                start = Some(thread_cpu_ns());
                match state.pass_stored(conjunct, rows, &selection, columns) {
                    Some(passed) => passed,
                    None => {
                        // Unpacking is not counted: the values are likely to be wanted anyway.
                        let batch = conjunct.batch(rows, &selection, columns)?;
                        start = Some(thread_cpu_ns());
                        state.pass(conjunct, &batch, &selection)?
                    }
                }
            } else {
                let by_keys = conjunct.pass_keys(dictionary_filter, columns);
                match by_keys.or_else(|| conjunct.pass_stored(rows, columns).map(Some)) {
                    Some(passed) => passed,
                    None => {
                        let batch = conjunct.batch(rows, &selection, columns)?;
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
                state.learn(before, after, thread_cpu_ns().saturating_sub(start));
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
    /// True when evaluating the `survivors` of `rows` rows is cheaper, or safer, than evaluating all of them.
    fn evaluates_on_survivors(&self, survivors: usize, rows: usize) -> bool {
        self.cost >= FALLIBLE_COST || survivors * 5 <= rows || (self.cost >= DEAR_COST && survivors * 2 <= rows)
    }
}

/// False where it is null.
fn without_nulls(mask: BooleanArray) -> BooleanArray {
    if mask.null_count() > 0 { prep_null_mask_filter(&mask) } else { mask }
}

/// The rows for which a boolean value is true; `None` when it is true for all, an empty mask when for none.
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
