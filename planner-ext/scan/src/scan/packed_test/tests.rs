//! Tests of values where they lie, against the expressions that they were made of.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Decimal128Array, Int16Array, Int32Array, Int64Array,
    RecordBatch, StringViewArray, UInt64Array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, ScalarValue, ToDFSchema};
use datafusion::logical_expr::{Operator, binary_expr};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{self, DynamicFilterPhysicalExpr};
use datafusion::prelude::{Expr, SessionContext, col, lit, not};
use terrace_test_support::depth::by_depth;
use terrace_tier_store::tier::codec::{Dictionary, Form, StoredColumn, encode_chunk, stored_bytes};

use super::super::filter::{Columns, Conjunct, DynamicFilterUse, Selection, SliceFilter};
use super::{PackedTest, StoredTest};
use crate::scan::tests::Rng;

const ROWS: usize = 2 * 8192 + 77;
/// Positions of the columns of texts: packed one by one, and as keys.
const TEXT: usize = 7;
const MODE: usize = 8;

/// A column of each kind: narrow, of 64 bits, unsigned, days, one value, runs, decimals, texts, keys.
fn rows() -> RecordBatch {
    let rng = &mut Rng(3);
    let mut some = |below: u64| (rng.below(9) > 0).then(|| rng.below(below) as usize);
    let rows = || 0..ROWS;
    let narrow: Int64Array = rows().map(|_| some(1000).map(|value| value as i64 - 500)).collect();
    let wide: Int64Array = rows().map(|_| some(4).map(|value| [i64::MIN, i64::MAX, 0, -1][value])).collect();
    let unsigned: UInt64Array = rows().map(|_| some(3).map(|value| [0, u64::MAX, 1 << 63][value])).collect();
    let day: Date32Array = rows().map(|_| some(2500).map(|value| value as i32 - 1000)).collect();
    let run: Int16Array = rows().map(|row| Some(row as i16 / 40)).collect();
    let price: Decimal128Array = rows().map(|_| some(900).map(|value| value as i128 * 25 - 5000)).collect();
    let text = |value: usize| if value < 40 { String::new() } else { format!("über text {value} of some words") };
    let text: StringViewArray = rows().map(|_| some(4000).map(text)).collect();
    let mode: StringViewArray = rows().map(|_| some(3).map(|value| ["MAIL", "SHIP", "AIR"][value])).collect();
    let columns: [(&str, ArrayRef); 9] = [
        ("narrow", Arc::new(narrow)),
        ("wide", Arc::new(wide)),
        ("unsigned", Arc::new(unsigned)),
        ("day", Arc::new(day)),
        ("same", Arc::new(Int32Array::from(vec![7; ROWS]))),
        ("run", Arc::new(run)),
        ("price", Arc::new(price.with_precision_and_scale(20, 2).unwrap())),
        ("text", Arc::new(text)),
        ("mode", Arc::new(mode)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

/// Packed columns of a chunk, and a slice of it that is looked at.
struct Stored {
    columns: Vec<StoredColumn>,
    slice: Range<usize>,
    /// Columns that were unpacked.
    unpacked: Vec<usize>,
    /// Columns of which selected values were unpacked.
    selected: Vec<usize>,
}

impl Stored {
    fn new(batch: &RecordBatch) -> Self {
        let encoded = encode_chunk(batch).unwrap();
        let columns = encoded.homes.iter().zip(batch.columns()).map(|(home, column)| {
            let bytes = Buffer::from(stored_bytes(home, &encoded.bytes).unwrap());
            let plain = StoredColumn::decode(home, column.data_type(), ROWS, &bytes).unwrap();
            let image = Buffer::from(plain.packed_image().unwrap().as_slice());
            StoredColumn::open_packed(home, column.data_type(), ROWS, &image).unwrap()
        });
        let columns: Vec<_> = columns.collect();
        assert!(columns[MODE].dictionary().is_some() && columns[TEXT].has_packed_texts());
        Self { columns, slice: 0..8192, unpacked: Vec::new(), selected: Vec::new() }
    }
}

impl Columns for Stored {
    fn values(&mut self, slot: usize) -> Result<ArrayRef> {
        self.unpacked.push(slot);
        Ok(self.columns[slot].slice(self.slice.start, self.slice.len()).unwrap())
    }

    fn keys(&mut self, slot: usize) -> Option<(Dictionary, ArrayRef)> {
        let (dictionary, keys) = self.columns[slot].keys(self.slice.start, self.slice.len())?;
        self.unpacked.push(slot);
        Some((dictionary.clone(), keys))
    }

    fn stored(&mut self, slot: usize) -> Option<ArrayRef> {
        self.unpacked.push(slot);
        self.columns[slot].stored_values(self.slice.start, self.slice.len())
    }

    fn packed(&mut self, slot: usize, test: PackedTest<'_>) -> Option<BooleanArray> {
        test.pass(&self.columns[slot], self.slice.start, self.slice.len())
    }

    fn is_null(&mut self, slot: usize) -> Option<BooleanArray> {
        self.columns[slot].is_null(self.slice.start, self.slice.len())
    }

    fn is_packed(&self, slot: usize) -> bool {
        self.columns[slot].form() == Form::Packed && self.columns[slot].dictionary().is_none()
    }

    fn dictionary(&self, slot: usize) -> Option<Dictionary> {
        self.columns[slot].dictionary().cloned()
    }

    fn selected_values(&mut self, slot: usize, selected: &BooleanArray) -> Result<ArrayRef> {
        self.selected.push(slot);
        Ok(self.columns[slot].slice_selected(self.slice.start, selected.values()).unwrap())
    }
}

fn compiled(context: &SessionContext, expr: Expr, schema: &Arc<Schema>) -> Arc<dyn PhysicalExpr> {
    context.create_physical_expr(expr, &Arc::clone(schema).to_dfschema().unwrap()).unwrap()
}

/// A value of the column, or one that it lacks.
fn value(rng: &mut Rng, column: &ArrayRef) -> ScalarValue {
    let low = rng.below(2) == 0;
    let other = match column.data_type() {
        DataType::Int16 => ScalarValue::Int16(Some(if low { i16::MIN } else { i16::MAX })),
        DataType::Int32 => ScalarValue::Int32(Some(if low { i32::MIN } else { 8 })),
        DataType::Int64 => ScalarValue::Int64(Some(if low { i64::MIN } else { i64::MAX })),
        DataType::UInt64 => ScalarValue::UInt64(Some(if low { 0 } else { u64::MAX - 1 })),
        DataType::Date32 => ScalarValue::Date32(Some(if low { i32::MIN } else { 1500 })),
        DataType::Decimal128(..) => {
            ScalarValue::Decimal128(Some(if low { -99_999_999_999_999_999_999 } else { 1 }), 20, 2)
        }
        _ => ScalarValue::Utf8View(Some(if low { "" } else { "über text 7 of some wordt" }.to_owned())),
    };
    match ScalarValue::try_from_array(column, rng.below(ROWS as u64) as usize).unwrap() {
        value if rng.below(5) > 0 && !value.is_null() => value,
        _ => other,
    }
}

fn leaf(rng: &mut Rng, batch: &RecordBatch) -> Expr {
    let at = rng.below(MODE as u64) as usize;
    let column = batch.column(at);
    let name = col(batch.schema().field(at).name());
    match rng.below(5) {
        0 => name.is_null(),
        1 => name.is_not_null(),
        2 => {
            let ops = [Operator::Eq, Operator::NotEq, Operator::Lt, Operator::LtEq, Operator::Gt, Operator::GtEq];
            let op = ops[rng.below(if at == TEXT { 2 } else { 6 }) as usize];
            let value = lit(value(rng, column));
            if rng.below(2) == 0 { binary_expr(name, op, value) } else { binary_expr(value, op.swap().unwrap(), name) }
        }
        _ => {
            let count = [1, 2, 6, 50][rng.below(4) as usize];
            let mut values: Vec<Expr> = (0..count).map(|_| lit(value(rng, column))).collect();
            if rng.below(3) == 0 {
                values.push(lit(ScalarValue::try_from(column.data_type()).unwrap()));
            }
            name.in_list(values, rng.below(2) == 0)
        }
    }
}

fn tree(rng: &mut Rng, batch: &RecordBatch, depth: u64) -> Expr {
    match rng.below(if depth > 0 { 5 } else { 1 }) {
        1 => tree(rng, batch, depth - 1).and(tree(rng, batch, depth - 1)),
        2 | 3 => tree(rng, batch, depth - 1).or(tree(rng, batch, depth - 1)),
        4 => not(tree(rng, batch, depth - 1)),
        _ => leaf(rng, batch),
    }
}

/// True, false and null alike.
#[test]
fn tests_where_values_lie_have_the_answers_of_their_expressions() {
    let batch = rows();
    let schema = batch.schema();
    let context = SessionContext::new();
    let mut stored = Stored::new(&batch);
    let slots: Vec<usize> = (0..batch.num_columns()).collect();
    for seed in 0..by_depth(400, 20_000) {
        let rng = &mut Rng(seed);
        let expr = tree(rng, &batch, 3);
        let text = format!("seed {seed}: {expr}");
        let expr = compiled(&context, expr, &schema);
        let test = StoredTest::from_expr(&expr, &schema).unwrap_or_else(|| panic!("{text}"));
        let start = [0, 8192, rng.below(ROWS as u64) as usize][rng.below(3) as usize];
        let len = [8192, 1 + rng.below(9000) as usize][rng.below(2) as usize].min(ROWS - start);
        stored.slice = start..start + len;
        let expected = expr.evaluate(&batch.slice(start, len)).unwrap().into_array(len).unwrap();
        let found = test.pass(len, &slots, &mut stored).unwrap();
        assert_eq!(&(Arc::new(found) as ArrayRef), &expected, "{text}");
    }
    assert!(stored.unpacked.is_empty() && stored.selected.is_empty());
}

/// More values than those of one list.
#[test]
fn long_chains_of_comparisons_have_the_answers_of_their_expressions() {
    let batch = rows();
    let schema = batch.schema();
    let context = SessionContext::new();
    let mut stored = Stored::new(&batch);
    let slots: Vec<usize> = (0..batch.num_columns()).collect();
    let number = |at: i64| col("narrow").eq(lit(at * 2 - 500));
    let text = |at: i64| col("text").eq(lit(ScalarValue::Utf8View(Some(format!("über text {at} of some words")))));
    let chain = |one: &dyn Fn(i64) -> Expr| (1..600).map(one).fold(one(0), Expr::or);
    for expr in [chain(&number), chain(&text), not(chain(&number)), chain(&text).or(chain(&number))] {
        let expr = compiled(&context, expr, &schema);
        let test = StoredTest::from_expr(&expr, &schema).unwrap();
        let expected = expr.evaluate(&batch.slice(0, 8192)).unwrap().into_array(8192).unwrap();
        let found = test.pass(8192, &slots, &mut stored).unwrap();
        assert_eq!(&(Arc::new(found) as ArrayRef), &expected);
    }
    assert!(stored.unpacked.is_empty());
}

#[test]
fn lists_and_other_expressions_that_are_no_tests_are_left_to_their_expressions() {
    let batch = rows();
    let schema = batch.schema();
    let context = SessionContext::new();
    let narrow = || col("narrow");
    let null = || lit(ScalarValue::Int64(None));
    for expr in [
        narrow().in_list(vec![null()], false),
        narrow().eq(null()),
        narrow().eq(col("wide")),
        (narrow() + lit(1_i64)).eq(lit(2_i64)),
        narrow().eq(lit(1_i64)).or((narrow() % lit(3_i64)).eq(lit(1_i64))),
        col("text").lt(lit(ScalarValue::Utf8View(Some("x".into())))),
    ] {
        let text = expr.to_string();
        assert_eq!(StoredTest::from_expr(&compiled(&context, expr, &schema), &schema), None, "{text}");
    }
    // An empty list is not known to the parser, but expressions may have one.
    let empty = expressions::in_list(expressions::col("narrow", &schema).unwrap(), Vec::new(), &false, &schema);
    assert_eq!(StoredTest::from_expr(&empty.unwrap(), &schema), None);
    let part = narrow().gt(lit(5_i64)).and((narrow() % lit(3_i64)).eq(lit(1_i64)));
    let part = compiled(&context, part, &schema);
    assert_eq!(StoredTest::from_expr(&part, &schema), None);
    let part = StoredTest::part_of_expr(&part, &schema).unwrap();
    assert!(!part.is_exact() && part.may_pass(5, 5) == Some(false) && part.may_pass(0, 6) == Some(true));
    // What is true for a part does not follow from its negation.
    let negated = not(narrow().gt(lit(5_i64)).and((narrow() % lit(3_i64)).eq(lit(1_i64))));
    assert_eq!(StoredTest::part_of_expr(&compiled(&context, negated, &schema), &schema), None);
}

#[test]
fn bounds_of_pages_exclude_values_that_no_test_lets_pass() {
    let batch = rows();
    let schema = batch.schema();
    let context = SessionContext::new();
    let narrow = || col("narrow");
    let bounded = |expr: Expr, min, max| {
        StoredTest::from_expr(&compiled(&context, expr, &schema), &schema).unwrap().may_pass(min, max)
    };
    let list = || narrow().in_list(vec![lit(1_i64), lit(7_i64), lit(90_i64), lit(ScalarValue::Int64(None))], false);
    assert_eq!(
        [(0, 1), (2, 6), (8, 90), (91, i64::MAX)].map(|(min, max)| bounded(list(), min, max)),
        [Some(true), Some(false), Some(true), Some(false)]
    );
    assert_eq!(bounded(list().or(narrow().gt(lit(200_i64))), 100, 201), Some(true));
    assert_eq!(bounded(list().and(narrow().gt(lit(90_i64))), 0, 90), Some(false));
    // Pages of nulls have no bounds, and would be left out.
    for (min, max) in [(2, 6), (0, 1), (0, 0)] {
        assert_eq!(bounded(list().or(narrow().is_null()), min, max), None);
    }
    assert_eq!(bounded(not(list()), 2, 6), None);
}

/// The rows of the slice that pass, and for how many of them all filters are true.
fn check(
    filter: &mut SliceFilter,
    filters: &[Arc<dyn PhysicalExpr>],
    batch: &RecordBatch,
    stored: &mut Stored,
) -> usize {
    let rows = stored.slice.len();
    let slice = batch.slice(stored.slice.start, rows);
    let answers = filters.iter().map(|filter| filter.evaluate(&slice).unwrap().into_array(rows).unwrap());
    let answers: Vec<BooleanArray> = answers.map(|answer| answer.as_boolean().clone()).collect();
    let passes = |row: usize| answers.iter().all(|answer| answer.is_valid(row) && answer.value(row));
    let expected: Vec<bool> = (0..rows).map(passes).collect();
    (stored.unpacked, stored.selected) = (Vec::new(), Vec::new());
    let found = match filter.apply(rows, Selection::All, stored, DynamicFilterUse::Always).unwrap() {
        Selection::All => vec![true; rows],
        Selection::Nothing => vec![false; rows],
        Selection::Some(mask) => mask.values().iter().collect(),
    };
    assert_eq!(found, expected);
    expected.into_iter().filter(|passes| *passes).count()
}

fn slice_filter(filters: &[Arc<dyn PhysicalExpr>], batch: &RecordBatch) -> SliceFilter {
    let columns: Vec<usize> = (0..batch.num_columns()).collect();
    SliceFilter::new(Conjunct::bind_all(filters, &[], &batch.schema(), &columns).unwrap().into())
}

#[test]
fn nothing_is_unpacked_of_slices_in_which_no_row_passes() {
    let batch = rows();
    let context = SessionContext::new();
    let mut stored = Stored::new(&batch);
    let text = |text: &str| lit(ScalarValue::Utf8View(Some(text.into())));
    let like = || col("text").like(text("%1%"));
    let price = |cents: i128| lit(ScalarValue::Decimal128(Some(cents), 20, 2));
    let prices = || col("price").in_list((1..9).map(price).collect(), false);
    let known = batch.column(TEXT).as_string_view().iter().flatten().find(|text| !text.is_empty()).unwrap();
    for (filters, passes, selected) in [
        (vec![prices(), like()], false, vec![]),
        (vec![col("same").is_null(), like()], false, vec![]),
        (vec![col("text").in_list(vec![text("a"), text("über text 0 of some words")], false), like()], false, vec![]),
        (vec![col("mode").eq(text("RAIL")), like()], false, vec![]),
        (vec![col("mode").eq(text("SHIP"))], true, vec![]),
        (vec![col("mode").is_null().or(col("mode").not_eq(text("SHIP")))], true, vec![]),
        (vec![col("text").eq(text(known)), col("same").is_not_null().or(col("day").is_null())], true, vec![]),
        (vec![col("text").eq(text(""))], true, vec![]),
        // Of few rows that are left, the texts of these.
        (vec![col("run").eq(lit(3_i16)), like()], true, vec![TEXT]),
    ] {
        let filters: Vec<_> = filters.into_iter().map(|expr| compiled(&context, expr, &batch.schema())).collect();
        let found = check(&mut slice_filter(&filters, &batch), &filters, &batch, &mut stored);
        assert_eq!(found > 0, passes, "{filters:?}");
        assert_eq!((&stored.unpacked, &stored.selected), (&vec![], &selected), "{filters:?}");
    }
}

#[test]
fn run_time_filters_unpack_nothing() {
    let batch = rows();
    let schema = batch.schema();
    let context = SessionContext::new();
    let mut stored = Stored::new(&batch);
    let column = expressions::col("narrow", &schema).unwrap();
    let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(vec![column], expressions::lit(true)));
    let filters = [Arc::clone(&dynamic) as Arc<dyn PhysicalExpr>];
    let mut filter = slice_filter(&filters, &batch);
    let narrow = || col("narrow");
    let third = || (narrow() % lit(3_i64)).eq(lit(0_i64));
    for (expr, passes) in [
        (lit(true), true),
        // A top-k.
        (narrow().gt(lit(400_i64)), true),
        (narrow().is_null().or(narrow().lt(lit(-450_i64))), true),
        (narrow().is_not_null(), true),
        // A join with bounds on both sides: a bitmap of the values.
        (narrow().gt_eq(lit(-20_i64)).and(narrow().lt_eq(lit(300_i64))).and(third()), true),
        (narrow().gt_eq(lit(600_i64)).and(narrow().lt_eq(lit(900_i64))).and(third()), false),
        // One with a part that leaves no row.
        (narrow().gt(lit(600_i64)).and(third()), false),
        (narrow().in_list(vec![lit(1000_i64), lit(2000_i64)], false).and(third()), false),
    ] {
        dynamic.update(compiled(&context, expr, &schema)).unwrap();
        for start in [0, 8192] {
            stored.slice = start..start + 8192;
            let found = check(&mut filter, &filters, &batch, &mut stored);
            assert_eq!(found > 0, passes, "{dynamic}");
            assert!(stored.unpacked.is_empty() && stored.selected.is_empty(), "{dynamic}");
        }
    }
    // A part that leaves rows: they are evaluated.
    dynamic.update(compiled(&context, narrow().gt(lit(0_i64)).and(third()), &schema)).unwrap();
    assert!(check(&mut filter, &filters, &batch, &mut stored) > 0);
    assert_eq!(stored.unpacked, [0]);
}
