//! The levels of operators: the example of the papers, DataFusion's operators, plans of queries, and how long a level counts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, JoinType};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use futures::StreamExt;
use parking_lot::Mutex;
use terrace_tier_store::Error;
use terrace_tier_store::io::{
    AlignedBuffer, BlockIo, BufferPool, Depth, Intent, IoFile, IoRules, IoStats, Level, ReadHandle, best_engine,
};
use terrace_tier_store::table::{TableDefinition, TableName};

use super::heat::{LARGE, SCATTERED, surroundings};
use super::{Fixture, Rng, run, scans};
use crate::scan::expected_reads::StatementScans;
use crate::scan::levels::LevelRule;
use crate::scan::{FetchExec, ScanConfig, ScanSource, TierScanExec};

type Plan = Arc<dyn ExecutionPlan>;

/// Empty tables with a column `k`.
fn tables(fixture: &Fixture) -> [Arc<ScanSource>; 3] {
    ["a", "b", "c"].map(|name| {
        let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, false)]));
        let definition = TableDefinition::new(TableName::new("public", name), schema);
        let table = fixture.store.create_table(definition).unwrap();
        let version = table.version();
        Arc::new(ScanSource::new(Arc::clone(&fixture.store), table, version))
    })
}

fn key() -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new("k", 0))
}

fn scan(table: &Arc<ScanSource>, filters: Vec<Arc<dyn PhysicalExpr>>) -> Plan {
    Arc::new(TierScanExec::try_new(ScanConfig::new(Arc::clone(table), vec![0], filters, None, 1)).unwrap())
}

fn sequential(table: &Arc<ScanSource>) -> Plan {
    scan(table, Vec::new())
}

fn random(table: &Arc<ScanSource>) -> Plan {
    scan(table, vec![Arc::new(BinaryExpr::new(key(), Operator::Gt, lit(5_i64)))])
}

fn union(inputs: [Plan; 2]) -> Plan {
    UnionExec::try_new(inputs.into()).unwrap()
}

fn hash_join(build: Plan, probe: Plan) -> Plan {
    let join = HashJoinExecBuilder::new(build, probe, vec![(key(), key())], JoinType::Inner);
    let join = join.with_projection(Some(vec![0])).with_partition_mode(PartitionMode::CollectLeft);
    Arc::new(join.build().unwrap())
}

fn limit(input: Plan) -> Plan {
    Arc::new(GlobalLimitExec::new(input, 0, Some(5)))
}

fn sort(input: Plan) -> Plan {
    let order = LexOrdering::new([PhysicalSortExpr::new_default(key())]).unwrap();
    Arc::new(SortExec::new(order, input))
}

fn aggregate(input: Plan) -> Plan {
    let groups = PhysicalGroupBy::new_single(vec![(key(), "k".to_owned())]);
    let schema = input.schema();
    let aggregate = AggregateExec::try_new(AggregateMode::Single, groups, Vec::new(), Vec::new(), input, schema);
    Arc::new(aggregate.unwrap())
}

fn with_levels(plan: Plan) -> Plan {
    LevelRule.optimize(plan, &ConfigOptions::default()).unwrap()
}

/// The levels of the scans of a plan, from left to right.
fn levels(plan: &Plan) -> Vec<Level> {
    scans(plan).iter().map(|scan| scan.downcast_ref::<TierScanExec>().unwrap().config().level).collect()
}

/// The level of an operator that reads a column and runs alone.
fn alone() -> Level {
    Level::new(1000)
}

/// The best level at which a column is read now.
fn best(table: &ScanSource, column: usize) -> Level {
    table.begin_reads(alone(), &[column]).best(table.column_ids(&[column]))
}

/// Figure 5 of Hetero-DB. Unions are in the places of its joins, which pass on the rows of both inputs as they come.
#[test]
fn levels_are_those_of_the_example_of_the_papers() {
    let fixture = Fixture::new(&mut Rng(24), 100, 100, 0);
    let [a, b, c] = tables(&fixture);
    let lowest = union([random(&a), sequential(&b)]);
    let hashed = union([random(&b), union([random(&a), lowest])]);
    let plan = with_levels(hash_join(hashed, random(&c)));
    let [zero, one, two] = [0, 1, 2].map(Level::new);
    assert_eq!(levels(&plan), [two, one, zero, Level::NONE, zero]);
    // All requests to a table at random have the best level: the papers give a, b and c the priorities 2, 4 and 2, of 2 to 5.
    let running: Vec<_> = scans(&plan).iter().map(|scan| scan.execute(0, Arc::default()).unwrap()).collect();
    assert_eq!([&a, &b, &c].map(|table| best(table, 0)), [zero, two, zero]);
    drop(running);
    assert_eq!([&a, &b, &c].map(|table| best(table, 0)), [alone(); 3]);
}

#[test]
fn what_is_below_a_blocking_operator_counts_by_itself() {
    let fixture = Fixture::new(&mut Rng(24), 100, 100, 0);
    let [a, b, c] = tables(&fixture);
    let below = || limit(random(&a));
    let beside = |branch: Plan| levels(&with_levels(union([limit(branch), random(&c)])));
    assert_eq!(beside(limit(below())), [0, 3].map(Level::new), "a limit does not block");
    assert_eq!(beside(sort(below())), [0, 1].map(Level::new));
    assert_eq!(beside(aggregate(below())), [0, 1].map(Level::new));
    assert_eq!(beside(hash_join(below(), random(&b))), [0, 0, 2].map(Level::new), "the build side blocks");
}

#[tokio::test]
async fn queries_have_levels_above_the_lowest_where_nothing_blocks() {
    let fixture = Fixture::new(&mut Rng(21), LARGE.0, LARGE.1, 0);
    let context = fixture.session(2);
    let planned = async |sql: &str| context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    // Build sides block, so each part that works at one time has one scan, at its foot.
    let joined = "SELECT count(*) FROM t x, t y, t z WHERE x.k = y.k AND y.k = z.k AND x.i > 5 AND y.i < 3 AND z.f < 7";
    assert_eq!(levels(&planned(joined).await), [Level::new(0); 3]);
    // A fetch by position is above the sort whose rows it completes.
    let fetched = planned(SCATTERED).await;
    let shown = displayable(fetched.as_ref()).indent(false).to_string();
    let chain = std::iter::successors(Some(fetched), |node| node.children().into_iter().next().cloned());
    let chain: Vec<Plan> = chain.collect();
    let fetch = chain.iter().position(|node| node.is::<FetchExec>()).unwrap();
    let sort = chain.iter().position(|node| node.is::<SortExec>()).unwrap();
    assert!(shown.contains(&format!("by position at {}", Level::new(sort - fetch))), "{shown}");
}

#[tokio::test]
async fn a_level_counts_until_its_scan_ends_fails_or_is_dropped() {
    let fixture = Fixture::new(&mut Rng(25), 60_000, 2000, 0);
    let table = Arc::clone(&fixture.table);
    let table = ScanSource::new(Arc::clone(&fixture.store), table, Arc::clone(&fixture.version));
    let context = fixture.session(1);
    let sql = "SELECT s FROM t WHERE i > 0";
    let mut rows = context.sql(sql).await.unwrap().execute_stream().await.unwrap();
    rows.next().await.unwrap().unwrap();
    // Column 1 is that of the filter; the scan does not read column 2.
    assert_eq!([1, 2].map(|column| best(&table, column)), [Level::new(0), alone()]);
    drop(rows);
    fixture.assert_idle().await;
    assert_eq!(best(&table, 1), alone());
    let (_plan, found) = run(&context, sql).await;
    assert!(!found.is_empty());
    assert_eq!(best(&table, 1), alone(), "it has ended");
    let stopped = || Err(DataFusionError::Execution("stopped".to_owned()));
    let scans = Arc::new(StatementScans::with_stop_check(stopped, Arc::default()));
    let task = TaskContext::from(&context.state());
    let config = task.session_config().clone().with_extension(scans);
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let failed = collect(Arc::clone(&plan), Arc::new(task.with_session_config(config))).await;
    assert!(failed.is_err());
    assert_eq!(best(&table, 1), alone(), "it has failed");
}

/// An engine that notes what it reads.
#[derive(Debug)]
pub(super) struct Noting {
    pub(super) inner: Arc<dyn BlockIo>,
    /// The intent and the bytes of each read.
    pub(super) reads: Mutex<Vec<(Intent, usize)>>,
}

impl BlockIo for Noting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self, path: &Path) -> Result<Arc<IoFile>, Error> {
        self.inner.open(path)
    }

    fn read_windows(&self, intent: Intent, file: &Arc<IoFile>, windows: &[(u64, usize)]) -> Vec<ReadHandle> {
        self.reads.lock().push((intent, windows.iter().map(|(_, len)| len).sum()));
        self.inner.read_windows(intent, file, windows)
    }

    fn write_as(&self, intent: Intent, file: &Arc<IoFile>, offset: u64, bytes: AlignedBuffer) -> ReadHandle {
        self.inner.write_as(intent, file, offset, bytes)
    }

    fn raise(&self, intent: Intent, handle: &ReadHandle) {
        self.inner.raise(intent, handle);
    }

    fn rules(&self) -> IoRules {
        self.inner.rules()
    }

    fn set_rules(&self, rules: IoRules) {
        self.inner.set_rules(rules);
    }

    fn stats(&self) -> &IoStats {
        self.inner.stats()
    }

    fn pool(&self) -> &Arc<BufferPool> {
        self.inner.pool()
    }

    fn depth(&self) -> &Depth {
        self.inner.depth()
    }
}

#[tokio::test]
async fn reads_at_random_bring_their_level_to_the_disk() {
    let io = Arc::new(Noting { inner: best_engine(), reads: Mutex::default() });
    let engine = Arc::clone(&io) as Arc<dyn BlockIo>;
    let fixture = Fixture::with(&mut Rng(21), LARGE.0, LARGE.1, 0, |options| options.io = Some(engine));
    let context = fixture.session(1);
    let levels = async |sql: &str| {
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let task = surroundings(&context, 8192);
        let statement = task.session_config().get_extension::<StatementScans>().unwrap().id();
        io.reads.lock().clear();
        collect(plan, task).await.unwrap();
        let reads = io.reads.lock();
        assert!(!reads.is_empty(), "{sql}");
        let is_own = |(intent, bytes): &(Intent, usize)| intent.statement == statement && *bytes > 0;
        assert!(reads.iter().all(is_own), "{sql}: {reads:?}");
        reads.iter().map(|(intent, _)| intent.level).collect::<BTreeSet<_>>()
    };
    assert_eq!(levels("SELECT sum(i) FROM t").await, [Level::NONE].into(), "whole columns");
    let found = levels(SCATTERED).await;
    assert!(found.iter().any(|level| (Level::new(1)..Level::NONE).contains(level)), "{found:?}");
}
