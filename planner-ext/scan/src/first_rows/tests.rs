//! The first rows of each group against DataFusion's own plans over `MemTable`: random queries, plans with the operator and without, rows that
//! are handed over, refused memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringViewArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue, resources_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, lit};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use proptest::prelude::*;
use terrace_test_support::depth::by_depth;

use super::FirstRowsPerGroupExec;
use super::candidates::Candidates;
use super::pattern::{FirstRows, limit};
use crate::scan::tests::{Fixture, Rng, lines, run};

/// The operators in a plan.
fn operators(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let own = plan.is::<FirstRowsPerGroupExec>().then(|| Arc::clone(plan));
    own.into_iter().chain(plan.children().into_iter().flat_map(operators)).collect()
}

/// The sum of a metric of all operators in a plan.
fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let metrics = operators(plan).into_iter().filter_map(|node| node.metrics()?.sum_by_name(name));
    metrics.map(|metric| metric.as_usize()).sum()
}

async fn planned(context: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    context.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

async fn expected(fixture: &Fixture, sql: &str) -> Vec<RecordBatch> {
    fixture.oracle().sql(sql).await.unwrap().collect().await.unwrap()
}

/// The plan with operators that give up early.
fn with_patience(plan: Arc<dyn ExecutionPlan>, patience: usize) -> Arc<dyn ExecutionPlan> {
    let impatient = |node: Arc<dyn ExecutionPlan>| {
        let first = node.downcast_ref::<FirstRowsPerGroupExec>().map(|first| first.with_patience(patience));
        Ok(match first {
            Some(first) => Transformed::yes(Arc::new(first) as Arc<dyn ExecutionPlan>),
            None => Transformed::no(node),
        })
    };
    plan.transform_up(impatient).data().unwrap()
}

/// The rows of `t` with their numbers `n`, of which `filter` lets some pass.
fn numbered(window: &str, filter: &str) -> String {
    format!("SELECT k, n FROM (SELECT *, row_number() OVER ({window}) AS n FROM t) WHERE {filter}")
}

#[tokio::test]
async fn filters_of_the_first_rows_are_found() {
    let fixture = Fixture::new(&mut Rng(1), 20_000, 1000, 150);
    let window = "PARTITION BY s ORDER BY f DESC, k";
    for (sql, is_found) in [
        (numbered(window, "n <= 2"), true),
        (numbered(window, "n < 3"), true),
        (numbered(window, "n = 3"), true),
        (numbered(window, "3 >= n"), true),
        (numbered(window, "4 > n"), true),
        (numbered(window, "n BETWEEN 2 AND 3"), true),
        (numbered(window, "n <= 2 AND k % 2 = 0"), true),
        (numbered(window, "CAST(n AS BIGINT) <= 2"), true),
        (numbered(window, "CAST(n AS DECIMAL(22, 1)) < CAST(2.0 AS DECIMAL(22, 1))"), true),
        (numbered("PARTITION BY s, b ORDER BY d NULLS FIRST, k", "n <= 2"), true),
        (numbered("PARTITION BY d, b ORDER BY u, k", "n <= 1"), true),
        (numbered("PARTITION BY i % 7 ORDER BY k DESC", "n <= 5"), true),
        (numbered("ORDER BY f, k", "n <= 3"), true),
        ("SELECT n, s FROM (SELECT row_number() OVER (PARTITION BY s ORDER BY k) AS n, s FROM t) WHERE n <= 2".into(), true),
        ("SELECT k, n + 1 FROM (SELECT k, row_number() OVER (PARTITION BY s ORDER BY k) AS n FROM t WHERE i > 0) WHERE n <= 2".into(), true),
        // All rows are needed, or none.
        (numbered(window, "n >= 2"), false),
        (numbered(window, "n <> 2"), false),
        (numbered(window, "n <= 2 OR k = 5"), false),
        (numbered(window, "n < 1"), false),
        (numbered(window, "n <= 20000"), false),
        (numbered(window, "TRUE"), false),
        // Groups of one row.
        (numbered("PARTITION BY k ORDER BY f", "n <= 2"), false),
        // There are two zeros.
        (numbered("PARTITION BY f ORDER BY k", "n <= 2"), false),
        // Other windows read rows behind the first ones.
        (
            "SELECT k, n, x FROM (SELECT k, row_number() OVER w AS n, lead(k) OVER w AS x FROM t \
             WINDOW w AS (PARTITION BY s ORDER BY f, k)) WHERE n <= 2"
                .into(),
            false,
        ),
        (
            "SELECT k, n, x FROM (SELECT k, row_number() OVER (PARTITION BY s ORDER BY k) AS n, \
             sum(k) OVER (PARTITION BY s) AS x FROM t) WHERE n <= 2"
                .into(),
            false,
        ),
        ("SELECT k, n FROM (SELECT k, rank() OVER (PARTITION BY s ORDER BY k) AS n FROM t) WHERE n <= 2".into(), false),
    ] {
        for partitions in [1, 2] {
            let (plan, found) = run(&fixture.session(partitions), &sql).await;
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(operators(&plan).len(), usize::from(is_found), "{sql}, {partitions} partitions: {shown}");
            assert_eq!(lines(&found), lines(&expected(&fixture, &sql).await), "{sql}, {partitions} partitions");
        }
    }
    fixture.assert_idle().await;
}

#[test]
fn bounds_are_whole_numbers_of_rows() {
    let number: Arc<dyn PhysicalExpr> = Arc::new(Column::new("n", 3));
    let cast = |to| Arc::new(CastExpr::new(Arc::clone(&number), to, None)) as Arc<dyn PhysicalExpr>;
    let decimal = cast(DataType::Decimal128(22, 1));
    let tenths = |tenths| lit(ScalarValue::Decimal128(Some(tenths), 22, 1));
    for (left, operator, right, bound) in [
        (Arc::clone(&number), Operator::LtEq, lit(5_u64), Some(5)),
        (Arc::clone(&number), Operator::Lt, lit(5_i32), Some(4)),
        (lit(5_u64), Operator::Gt, Arc::clone(&number), Some(4)),
        (lit(5_u64), Operator::Eq, Arc::clone(&number), Some(5)),
        (lit(5_u64), Operator::LtEq, Arc::clone(&number), None),
        (cast(DataType::Int64), Operator::LtEq, lit(5_i64), Some(5)),
        // A number of a row may not fit, which is an error.
        (cast(DataType::Int8), Operator::LtEq, lit(5_i8), None),
        (cast(DataType::Float64), Operator::LtEq, lit(5.0), None),
        (Arc::clone(&decimal), Operator::Lt, tenths(30), Some(2)),
        // 2.5 is between two numbers.
        (Arc::clone(&decimal), Operator::Lt, tenths(25), None),
        (Arc::clone(&number), Operator::LtEq, lit(-5_i64), None),
        (Arc::clone(&number), Operator::Lt, lit(0_u64), None),
        (Arc::clone(&number), Operator::LtEq, lit(ScalarValue::UInt64(None)), None),
    ] {
        let condition: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(left, operator, right));
        assert_eq!(limit(&condition), bound.map(|bound| (3, bound)), "{condition}");
    }
}

#[tokio::test]
async fn rows_are_dropped_below_the_exchange() {
    let fixture = Fixture::new(&mut Rng(2), 20_000, 1000, 0);
    let (plan, found) = run(&fixture.session(2), &numbered("PARTITION BY s ORDER BY f DESC, k", "n <= 2")).await;
    let shown = displayable(plan.as_ref()).indent(false).to_string();
    let operator = shown.find("FirstRowsPerGroupExec: rows=2, groups=[s@").unwrap_or_else(|| panic!("{shown}"));
    assert!(shown.find("SortExec").is_some_and(|sort| sort < operator), "{shown}");
    assert!(shown.find("RepartitionExec: partitioning=Hash").is_some_and(|exchange| exchange < operator), "{shown}");
    let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
    // 50 texts and null, twice each; each of the two partitions keeps as many.
    assert_eq!(rows, 102);
    assert!((rows..=2 * rows).contains(&metric(&plan, "kept")), "{shown}");
    assert_eq!(metric(&plan, "kept") + metric(&plan, "dropped"), 20_000);
    assert_eq!(metric(&plan, "handed_over"), 0);
}

#[tokio::test]
async fn groups_that_do_not_repeat_are_handed_over() {
    let fixture = Fixture::new(&mut Rng(3), 30_000, 1000, 700);
    let context = fixture.session(2);
    // A thousand numbers and null: a chunk of a thousand rows has few of them twice.
    let sql = numbered("PARTITION BY i ORDER BY u DESC, k", "n <= 3");
    let expected = lines(&expected(&fixture, &sql).await);
    for patience in [1, 1 << 20] {
        let plan = with_patience(planned(&context, &sql).await, patience);
        assert_eq!(operators(&plan).len(), 1);
        let found = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
        assert_eq!(lines(&found), expected);
        assert_eq!(metric(&plan, "handed_over") > 0, patience == 1);
        let seen = metric(&plan, "kept") + metric(&plan, "dropped");
        assert!(if patience == 1 { seen < 30_700 } else { seen == 30_700 }, "{seen}");
    }
    fixture.assert_idle().await;
}

/// Refuses memory to the operator, from a number of bytes on.
#[derive(Debug)]
struct RefusingPool(UnboundedMemoryPool, usize);

impl fmt::Display for RefusingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefusingPool")
    }
}

impl MemoryPool for RefusingPool {
    fn name(&self) -> &str {
        "RefusingPool"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let is_ours = reservation.consumer().name().starts_with("FirstRowsPerGroupExec");
        match is_ours && reservation.size() + additional > self.1 {
            true => resources_err!("no memory for first rows"),
            false => self.0.try_grow(reservation, additional),
        }
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }
}

#[tokio::test]
async fn rows_are_handed_over_when_memory_is_refused() {
    let fixture = Fixture::new(&mut Rng(4), 20_000, 1000, 100);
    let context = fixture.session(2);
    let sql = numbered("PARTITION BY i, b ORDER BY u, k", "n <= 1");
    let expected = lines(&expected(&fixture, &sql).await);
    for bytes in [0, 100_000, usize::MAX] {
        let pool = Arc::new(RefusingPool(UnboundedMemoryPool::default(), bytes));
        let runtime =
            RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as Arc<dyn MemoryPool>).build_arc().unwrap();
        let plan = planned(&context, &sql).await;
        assert_eq!(operators(&plan).len(), 1);
        let config = context.task_ctx().session_config().clone();
        let refusing = TaskContext::default().with_session_config(config).with_runtime(runtime);
        let found = collect(Arc::clone(&plan), Arc::new(refusing)).await.unwrap();
        assert_eq!(lines(&found), expected, "{bytes} bytes");
        assert_eq!(metric(&plan, "handed_over") > 0, bytes < usize::MAX, "{bytes} bytes");
        drop(plan);
        assert_eq!(pool.reserved(), 0);
    }
    fixture.assert_idle().await;
}

#[tokio::test]
async fn dropping_the_rows_frees_everything() {
    let fixture = Fixture::new(&mut Rng(5), 30_000, 1000, 100);
    let context = fixture.session(1);
    for polls in 0..3 {
        let sql = numbered("PARTITION BY s ORDER BY u, k", "n <= 2");
        let plan = planned(&context, &sql).await;
        let node = Arc::clone(&operators(&plan)[0]);
        let mut rows = node.execute(0, context.task_ctx()).unwrap();
        for _ in 0..polls {
            let _ = futures::poll!(rows.next());
        }
        drop((rows, node, plan));
        fixture.assert_idle().await;
        assert_eq!(context.runtime_env().memory_pool.reserved(), 0);
    }
}

/// Rows with a group, a key, and a text that is the number of the row.
fn keyed(groups: Vec<Option<i64>>, keys: Vec<Option<f64>>, first: usize) -> RecordBatch {
    let texts = (first..first + groups.len()).map(|row| format!("the text of row number {row}"));
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("g", Arc::new(Int64Array::from(groups)), true),
        ("x", Arc::new(Float64Array::from(keys)), true),
        ("t", Arc::new(StringViewArray::from_iter_values(texts)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn candidates(batch: &RecordBatch, most: usize, descending: bool, nulls_first: bool) -> Candidates {
    let options = arrow::compute::SortOptions { descending, nulls_first };
    let order = vec![PhysicalSortExpr::new(Arc::new(Column::new("x", 1)), options)];
    let first = FirstRows { most, groups: vec![Arc::new(Column::new("g", 0))], order };
    Candidates::new(&first, &batch.schema()).unwrap()
}

/// All rows that are kept, in batches of seven.
fn rows(candidates: Candidates) -> RecordBatch {
    let (store, places) = candidates.into_rows();
    let parts: Vec<RecordBatch> = places.chunks(7).map(|places| store.copied(places).unwrap()).collect();
    concat_batches(&parts[0].schema(), &parts).unwrap()
}

fn groups_of(batch: &RecordBatch) -> Vec<Option<i64>> {
    batch.column(0).as_primitive::<Int64Type>().iter().collect()
}

#[test]
fn rows_that_are_replaced_again_and_again_are_given_up() {
    let mut all: Option<Candidates> = None;
    let mut most_bytes = 0;
    for part in 0..200 {
        // Each row comes before all earlier ones of its group, but the first one is a group of its own.
        let numbers = part * 2000..(part + 1) * 2000;
        let group = |row: usize| Some(if row == numbers.start { -1 - row as i64 } else { (row % 10) as i64 });
        let batch = keyed(
            numbers.clone().map(group).collect(),
            numbers.clone().map(|row| Some(-(row as f64))).collect(),
            numbers.start,
        );
        let candidates = all.get_or_insert_with(|| candidates(&batch, 3, false, false));
        candidates.add(&batch).unwrap();
        assert_eq!(candidates.kept(), 30 + part + 1);
        most_bytes = most_bytes.max(candidates.bytes());
    }
    // 400,000 rows have 20 MB and more.
    assert!(most_bytes < 10_000_000, "{most_bytes} bytes");
    let kept = rows(all.unwrap());
    let texts: Vec<&str> = kept.column(2).as_string_view().iter().flatten().collect();
    let kept = (0..200).map(|part| part * 2000).chain(399_970..400_000);
    let kept: Vec<String> = kept.map(|row| format!("the text of row number {row}")).collect();
    assert_eq!(texts, kept);
}

#[test]
fn keys_have_the_order_of_sorts() {
    let keys = vec![
        Some(0.0),
        Some(f64::NAN),
        None,
        Some(-0.0),
        Some(f64::INFINITY),
        Some(-f64::NAN),
        Some(-1.0),
        Some(f64::NEG_INFINITY),
        Some(0.0),
        None,
    ];
    let count = keys.len();
    for (descending, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let batch = keyed(vec![Some(1); count], keys.clone(), 0);
        let options = arrow::compute::SortOptions { descending, nulls_first };
        for most in 1..=count {
            let sorted = arrow::compute::sort_to_indices(batch.column(1), Some(options), None).unwrap();
            let sorted = arrow::compute::take(batch.column(1), &sorted, None).unwrap().slice(0, most);
            let mut candidates = candidates(&batch, most, descending, nulls_first);
            candidates.add(&batch).unwrap();
            let kept = rows(candidates);
            let kept = arrow::compute::sort(kept.column(1), Some(options)).unwrap();
            let bits = |array: &ArrayRef| {
                let floats = array.as_primitive::<arrow::datatypes::Float64Type>();
                floats.iter().map(|value| value.map(f64::to_bits)).collect::<Vec<_>>()
            };
            assert_eq!(bits(&kept), bits(&sorted), "{most}, descending {descending}, nulls first {nulls_first}");
        }
    }
}

#[test]
fn of_equal_rows_the_earlier_ones_stay() {
    let batch = keyed(vec![Some(1), None, Some(1), None, Some(1), None], vec![Some(2.0); 6], 0);
    let mut candidates = candidates(&batch, 2, false, false);
    candidates.add(&batch).unwrap();
    candidates.add(&batch).unwrap();
    let kept = rows(candidates);
    assert_eq!(kept, batch.slice(0, 4));
    assert_eq!(groups_of(&kept), [Some(1), None, Some(1), None]);
}

fn random_query(rng: &mut Rng) -> String {
    let groups = ["s", "b", "d", "i", "s, b", "d, s", "i % 20", "i > 0, s", "substr(u, 1, 2)", "k / 100", "k"];
    let orders = [
        "f",
        "f DESC",
        "f NULLS FIRST",
        "f DESC NULLS LAST",
        // Both zeros.
        "f * CAST(0 AS DOUBLE) * i, f",
        "u DESC NULLS LAST",
        "s, u NULLS FIRST",
        "i DESC, d",
        "b, f DESC",
        "CAST(i AS DECIMAL(12, 3)) DESC",
        "abs(i) % 5, f",
    ];
    let filters = ["TRUE", "k % 3 = 0", "i > 100", "s IS NOT NULL", "f IS NOT NULL", "k < 0"];
    let tests = ["n <= 1", "n <= 2", "n < 4", "n = 2", "n <= 17", "n BETWEEN 2 AND 40", "n <= 3 AND k % 2 = 1"];
    let mut one = |all: &[&'static str]| all[rng.below(all.len() as u64) as usize];
    let group = one(&groups);
    let order = one(&orders);
    let filter = one(&filters);
    let test = one(&tests);
    // The order is total: the numbers of all rows are determined.
    format!(
        "SELECT k, i, f, u, n FROM (SELECT *, row_number() OVER (PARTITION BY {group} ORDER BY {order}, k) AS n FROM t \
         WHERE {filter}) WHERE {test}"
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(8, 30), ..ProptestConfig::default() })]

    #[test]
    fn first_rows_are_those_of_all_rows_in_order(seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let count = rng.below(25_000) as usize + 1;
        let delta = rng.below(3) as usize * 700;
        let chunk_rows = [300, 1000, 8192, 9000][rng.below(4) as usize];
        let mut fixture = Fixture::new(&mut rng, count, chunk_rows.max(count as u32 / 100), delta);
        fixture.place_all(|_, _| rng.below(3) as usize);
        if seed % 2 == 0 {
            fixture.delete(&mut Rng(seed), 2 + seed % 50);
        }
        let context = fixture.session(1 + seed as usize % 3);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        for _ in 0..10 {
            let sql = random_query(&mut rng);
            let expected = lines(&runtime.block_on(expected(&fixture, &sql)));
            for patience in [1 << 20, 1, 3000] {
                let plan = with_patience(runtime.block_on(planned(&context, &sql)), patience);
                let found = runtime.block_on(collect(plan, context.task_ctx())).unwrap();
                prop_assert_eq!(lines(&found), expected.clone(), "{}, {} partitions, {}", sql, 1 + seed % 3, patience);
            }
        }
        runtime.block_on(fixture.assert_idle());
    }
}
