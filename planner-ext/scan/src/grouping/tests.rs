//! Aggregations by codes against DataFusion's over `MemTable`: random tables and queries, too many groups, refused memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, resources_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use proptest::prelude::*;
use terrace_test_support::depth::by_depth;

use super::KeyedAggregateExec;
use crate::scan::tests::{Fixture, Rng, lines, run};

/// The aggregations by codes in a plan.
fn keyed(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let own = (plan.name() == "KeyedAggregateExec").then(|| Arc::clone(plan));
    own.into_iter().chain(plan.children().into_iter().flat_map(keyed)).collect()
}

/// The sum of a metric of all aggregations by codes in a plan.
fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let metrics = keyed(plan).into_iter().filter_map(|node| node.metrics()?.sum_by_name(name));
    metrics.map(|metric| metric.as_usize()).sum()
}

async fn planned(context: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    context.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

async fn expected(fixture: &Fixture, sql: &str) -> Vec<RecordBatch> {
    fixture.oracle().sql(sql).await.unwrap().collect().await.unwrap()
}

/// The plan with all partial aggregations by codes, also where many groups are expected.
fn with_codes(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let forced = |node: Arc<dyn ExecutionPlan>| {
        let keyed = node.downcast_ref::<AggregateExec>().and_then(KeyedAggregateExec::unestimated);
        Ok(match keyed {
            Some(keyed) => Transformed::yes(Arc::new(keyed) as Arc<dyn ExecutionPlan>),
            None => Transformed::no(node),
        })
    };
    plan.transform_up(forced).data().unwrap()
}

#[tokio::test]
async fn few_groups_of_a_scan_are_found_by_codes() {
    let fixture = Fixture::new(&mut Rng(1), 20_000, 1000, 150);
    for (partitions, sql, by_codes) in [
        (2, "SELECT s, count(*), sum(i) FROM t GROUP BY s", true),
        (1, "SELECT s, count(*), sum(i) FROM t GROUP BY s", true),
        (2, "SELECT s, b, avg(CAST(k AS DECIMAL(15, 2))) FROM t WHERE i > 0 GROUP BY s, b", true),
        (2, "SELECT DISTINCT s FROM t", true),
        (2, "SELECT i, min(d), max(d) FROM t GROUP BY i", true),
        (2, "SELECT s, count(*) FILTER (WHERE b), bool_or(b), min(u) FROM t GROUP BY s", true),
        // The order of one partition's floats is kept, whoever takes over.
        (2, "SELECT s, sum(f) FROM t GROUP BY s", true),
        (1, "SELECT s, sum(f) FROM t GROUP BY s", false),
        // Too many groups.
        (2, "SELECT u, count(*) FROM t GROUP BY u", false),
        (2, "SELECT k, count(*) FROM t GROUP BY k", false),
        (2, "SELECT s, i, count(*) FROM t GROUP BY s, i", false),
        // The texts themselves are needed, or there is no column.
        (2, "SELECT s, max(s) FROM t GROUP BY s", false),
        (2, "SELECT upper(s), count(*) FROM t GROUP BY upper(s)", false),
        (2, "SELECT s, array_agg(i) FROM t GROUP BY s", false),
        (2, "SELECT s, b, count(*) FROM t GROUP BY ROLLUP (s, b)", false),
        (2, "SELECT count(*), sum(i) FROM t WHERE k > 5", false),
    ] {
        let (plan, found) = run(&fixture.session(partitions), sql).await;
        assert_eq!(keyed(&plan).len(), usize::from(by_codes), "{sql}, {partitions} partitions");
        assert_eq!(metric(&plan, "handed_over"), 0, "{sql}");
        assert_eq!(metric(&plan, "groups") > 0, by_codes, "{sql}");
        if !sql.contains("array_agg") {
            assert_eq!(lines(&found), lines(&expected(&fixture, sql).await), "{sql}, {partitions} partitions");
        }
    }
    fixture.assert_idle().await;
}

#[tokio::test]
async fn plans_say_that_groups_are_found_by_codes() {
    let fixture = Fixture::new(&mut Rng(2), 3000, 1000, 0);
    let plan = planned(&fixture.session(1), "SELECT s, sum(i + 1) AS total FROM t GROUP BY s").await;
    let shown = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
    assert!(shown.contains("KeyedAggregateExec: mode=Partial, gby=[s@"), "{shown}");
    assert!(shown.contains("AggregateExec: mode=Final, gby=[s@0 as s]"), "{shown}");
    assert_eq!(plan.schema().field(0).name(), "s");
    // Whoever looks for aggregations finds it, and whoever puts something below it gets DataFusion's operator.
    let node = &keyed(&plan)[0];
    assert!(node.is::<AggregateExec>());
    let other = Arc::clone(node).reset_state().unwrap();
    assert_eq!(other.name(), "KeyedAggregateExec");
}

#[tokio::test]
async fn projections_are_evaluated_with_the_aggregation() {
    let fixture = Fixture::new(&mut Rng(6), 10_000, 1000, 100);
    let sql = "SELECT s, sum(CAST(i AS BIGINT) * k), sum(CAST(i AS BIGINT) * k * 2), min(CAST(i AS BIGINT) * k) FROM t GROUP BY s";
    let (plan, found) = run(&fixture.session(1), sql).await;
    assert_eq!(lines(&found), lines(&expected(&fixture, sql).await));
    let node = Arc::clone(&keyed(&plan)[0]);
    let input = Arc::clone(node.children()[0]);
    assert_eq!(input.name(), "FusedProjectionExec", "{plan:?}");
    assert!(input.is::<ProjectionExec>() && input.metrics().is_none());
    // Whoever puts an operator below gets DataFusion's operators.
    let scan = Arc::clone(input.children()[0]);
    let other: Arc<dyn ExecutionPlan> = Arc::new(CooperativeExec::new(scan));
    let recompute = || ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let projection = input.replace_children(vec![other], recompute()).unwrap();
    let aggregate = node.replace_children(vec![projection], recompute()).unwrap();
    assert_eq!((aggregate.name(), aggregate.children()[0].name()), ("AggregateExec", "ProjectionExec"));
}

#[tokio::test]
async fn only_rows_that_pass_are_computed_and_counted() {
    let fixture = Fixture::new(&mut Rng(7), 10_000, 1000, 100);
    for (partitions, sql) in [
        // Other rows divide by zero.
        (2, "SELECT s, sum(1000 / i), count(1000 / i) FROM t WHERE i <> 0 GROUP BY s"),
        (1, "SELECT s, sum(1000 / i), count(1000 / i) FROM t WHERE i <> 0 GROUP BY s"),
        (1, "SELECT s, sum(i) FROM t WHERE s = '17 some longer text 17' OR s IS NULL GROUP BY s"),
        (1, "SELECT sum(n) FROM (SELECT s, count(*) AS n FROM (SELECT s FROM t LIMIT 1500) GROUP BY s)"),
        (1, "SELECT sum(n) FROM (SELECT s, count(*) AS n FROM (SELECT s FROM t WHERE b LIMIT 1500) GROUP BY s)"),
    ] {
        let context = fixture.session(partitions);
        for expects_few in [true, false] {
            let plan = planned(&context, sql).await;
            let plan = if expects_few { plan } else { with_codes(plan) };
            let found = collect(plan, context.task_ctx()).await.unwrap();
            assert_eq!(lines(&found), lines(&expected(&fixture, sql).await), "{sql}, {partitions} partitions");
        }
    }
    let failing = "SELECT s, sum(1000 / i) FROM t GROUP BY s";
    let context = fixture.session(2);
    let plan = planned(&context, failing).await;
    assert_eq!(keyed(&plan).len(), 1);
    let error = collect(plan, context.task_ctx()).await.unwrap_err().to_string();
    assert!(error.contains("Divide by zero"), "{error}");
    fixture.assert_idle().await;
}

#[tokio::test]
async fn rows_beyond_few_groups_are_handed_over() {
    let fixture = Fixture::new(&mut Rng(3), 30_000, 1000, 700);
    let context = fixture.session(2);
    for sql in [
        // Texts that are no keys, and too many.
        "SELECT u, count(*), sum(i), min(d) FROM t GROUP BY u",
        "SELECT s, u, count(*), avg(CAST(i AS DECIMAL(9, 1))) FROM t WHERE k % 2 = 0 GROUP BY s, u",
        // Numbers that are too many, beside codes.
        "SELECT s, k, count(i), sum(i) FROM t GROUP BY s, k",
        // Too many combinations of few values.
        "SELECT s, i, b, count(*), max(k), min(u) FROM t GROUP BY s, i, b",
        "SELECT i, d, sum(CAST(k AS DECIMAL(12, 0)) * CAST('1000000000000000000000' AS DECIMAL(22, 0))) FROM t GROUP BY i, d",
    ] {
        let plan = planned(&context, sql).await;
        assert!(keyed(&plan).is_empty(), "{sql}");
        let plan = with_codes(plan);
        let found = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
        assert_eq!(lines(&found), lines(&expected(&fixture, sql).await), "{sql}");
        assert!(metric(&plan, "handed_over") > 0, "{sql}");
    }
    fixture.assert_idle().await;
}

/// Refuses memory to aggregations by codes.
#[derive(Debug, Default)]
struct RefusingPool(UnboundedMemoryPool);

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
        match reservation.consumer().name().starts_with("KeyedAggregateExec") {
            true => resources_err!("no memory for groups by codes"),
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
    let pool: Arc<RefusingPool> = Arc::default();
    let runtime =
        RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as Arc<dyn MemoryPool>).build_arc().unwrap();
    let sql = "SELECT s, b, count(*), sum(i), min(u), avg(CAST(k AS DECIMAL(12, 3))) FROM t GROUP BY s, b";
    let plan = planned(&context, sql).await;
    assert_eq!(keyed(&plan).len(), 1);
    let config = context.task_ctx().session_config().clone();
    let refusing = TaskContext::default().with_session_config(config).with_runtime(runtime);
    let found = collect(Arc::clone(&plan), Arc::new(refusing)).await.unwrap();
    assert_eq!(lines(&found), lines(&expected(&fixture, sql).await));
    assert!(metric(&plan, "handed_over") > 0);
    assert_eq!(pool.reserved(), 0);
    let (plan, found) = run(&context, sql).await;
    assert_eq!(lines(&found), lines(&expected(&fixture, sql).await));
    assert_eq!(metric(&plan, "handed_over"), 0);
    fixture.assert_idle().await;
}

#[tokio::test]
async fn dropping_an_aggregation_by_codes_frees_everything() {
    let fixture = Fixture::new(&mut Rng(5), 30_000, 1000, 100);
    let context = fixture.session(1);
    for polls in 0..3 {
        let plan = planned(&context, "SELECT s, count(*), sum(i) FROM t GROUP BY s").await;
        let node = Arc::clone(&keyed(&plan)[0]);
        let mut rows = node.execute(0, context.task_ctx()).unwrap();
        for _ in 0..polls {
            let _ = futures::poll!(rows.next());
        }
        drop((rows, node, plan));
        fixture.assert_idle().await;
        assert_eq!(context.runtime_env().memory_pool.reserved(), 0);
    }
}

fn random_query(rng: &mut Rng) -> String {
    let all_keys = ["s", "b", "d", "i", "s, b", "b, s", "s, d", "b, i", "s, b, d", "d, b"];
    let all_aggregates = [
        "count(*)",
        "count(i)",
        "count(u)",
        "count(k)",
        "sum(i)",
        "sum(k)",
        "sum(k * 300000000000000)",
        "sum(CAST(abs(i) AS BIGINT UNSIGNED))",
        "min(i)",
        "max(i)",
        "min(d)",
        "max(d)",
        "max(k)",
        "avg(CAST(i AS DECIMAL(10, 2)))",
        "sum(CAST(i AS DECIMAL(10, 2)))",
        "max(CAST(i AS DECIMAL(10, 2)))",
        "sum(CAST(k AS DECIMAL(20, 4)) * CAST(i AS DECIMAL(10, 3)))",
        "sum(CAST(i AS DECIMAL(4, 0)) * CAST('1000000000000000000000000000' AS DECIMAL(28, 0)))",
        "avg(CAST(i AS DECIMAL(20, 0)) * CAST('1000000000000' AS DECIMAL(13, 0)))",
        "min(CAST(NULL AS INT))",
        "sum(CASE WHEN k % 7 = 0 THEN i END)",
        "sum(f)",
        "count(f)",
        "avg(i)",
        "min(u)",
        "bool_and(b)",
        "sum(i) FILTER (WHERE k % 3 = 1)",
        "count(*) FILTER (WHERE b)",
        "count(DISTINCT d)",
    ];
    let filters = [
        "TRUE",
        "k % 3 = 0",
        "i > 100",
        "i IS NULL",
        "s LIKE '1%'",
        "s = '17 some longer text 17'",
        "s IS NULL",
        "b AND i < 0",
        "k < 50",
        "k < 0",
        "d > DATE '1970-01-20'",
    ];
    let keys = all_keys[rng.below(all_keys.len() as u64) as usize];
    let count = 1 + rng.below(6) as usize;
    let aggregates: Vec<&str> =
        (0..count).map(|_| all_aggregates[rng.below(all_aggregates.len() as u64) as usize]).collect();
    let named = aggregates.iter().enumerate().map(|(number, aggregate)| format!("{aggregate} AS a{number}"));
    let named = named.collect::<Vec<_>>().join(", ");
    let filter = filters[rng.below(filters.len() as u64) as usize];
    format!("SELECT {keys}, {named} FROM t WHERE {filter} GROUP BY {keys}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(8, 30), ..ProptestConfig::default() })]

    #[test]
    fn groups_by_codes_are_those_of_values(seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let rows = rng.below(25_000) as usize + 1;
        let delta = rng.below(3) as usize * 700;
        // Small chunks have no dictionaries.
        let chunk_rows = [40, 300, 1000, 8192, 9000][rng.below(5) as usize];
        let mut fixture = Fixture::new(&mut rng, rows, chunk_rows.max(rows as u32 / 100), delta);
        // Chunks in both forms, on all tiers.
        fixture.place_all(|_, _| rng.below(3) as usize);
        if seed % 2 == 0 {
            fixture.delete(&mut Rng(seed), 2 + seed % 50);
        }
        let context = fixture.session(1 + seed as usize % 3);
        let oracle = fixture.oracle();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        for _ in 0..10 {
            let sql = random_query(&mut rng);
            let expected = runtime.block_on(async { oracle.sql(&sql).await?.collect().await });
            let Ok(expected) = expected else { continue };
            for expects_few in [true, false] {
                let plan = runtime.block_on(planned(&context, &sql));
                let plan = if expects_few { plan } else { with_codes(plan) };
                let found = runtime.block_on(collect(plan, context.task_ctx())).unwrap();
                prop_assert_eq!(lines(&found), lines(&expected), "{}", sql);
            }
        }
        runtime.block_on(fixture.assert_idle());
    }
}
