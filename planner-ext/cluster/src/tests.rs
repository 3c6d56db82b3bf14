//! Queries on nodes give the rows that one process gives, whatever the number of nodes, and each part of their plans goes
//! through bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{CastExpr, Column, binary, col, lit};
use datafusion::physical_expr::{LexOrdering, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{DistributedCodec, NetworkShuffleExec};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_proto_converter, physical_plan_to_bytes_with_proto_converter,
};
use datafusion_proto::physical_plan::DeduplicatingProtoConverter;
use proptest::prelude::*;
use terrace_scan::TierTable;
use terrace_scan::joins::part_rules;
use terrace_scan::scan::TierScanExec;
use terrace_test_support::depth::by_depth;
use terrace_tier_store::table::{TableDefinition, TableName};
use terrace_tier_store::{Store, StoreOptions};
use tokio::runtime::Handle;

use crate::encodable::obstacle;
use crate::seal::with_seals;
use crate::{Distribution, Nodes, Statement, TaskHost, distribute, planning_state, session_config, with_head};

/// Tables `fact`, of many chunks and a delta, and `dim`, of two chunks.
struct Tables {
    store: Arc<Store>,
    _dir: tempfile::TempDir,
}

fn fact_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("d", DataType::Int32, true),
        Field::new("s", DataType::Utf8View, true),
    ]))
}

fn fact(keys: std::ops::Range<i64>) -> RecordBatch {
    let days = keys.clone().map(|k| (k % 11 != 0).then_some((k * 7919 % 101) as i32));
    let texts = keys.clone().map(|k| (k % 13 != 0).then(|| format!("a text of some length {}", k * 31 % 17)));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(keys.clone().collect::<Int64Array>()),
        Arc::new(days.collect::<Int32Array>()),
        Arc::new(texts.collect::<StringViewArray>()),
    ];
    RecordBatch::try_new(fact_schema(), columns).unwrap()
}

impl Tables {
    fn new(rows: i64, chunk_rows: u32, delta: i64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::new(dir.path());
        options.epoch_interval = None;
        let store = Store::open(options).unwrap();
        let dim_schema = Arc::new(Schema::new(vec![
            Field::new("d", DataType::Int32, false),
            Field::new("label", DataType::Utf8View, false),
        ]));
        let labels = (0..101).map(|d| Some(format!("label {}", d % 9))).collect::<StringViewArray>();
        let columns: Vec<ArrayRef> = vec![Arc::new((0..101).collect::<Int32Array>()), Arc::new(labels)];
        let dim = RecordBatch::try_new(Arc::clone(&dim_schema), columns).unwrap();
        let tables = [("fact", fact_schema(), fact(0..rows), chunk_rows), ("dim", dim_schema, dim, 60)];
        for (name, schema, rows, chunk_rows) in tables {
            let mut definition = TableDefinition::new(TableName::new("public", name), schema);
            definition.options.chunk_rows = chunk_rows;
            let table = store.create_table(definition).unwrap();
            let mut ingest = store.ingest(&table);
            ingest.write(rows).unwrap();
            ingest.finish().unwrap();
        }
        if delta > 0 {
            let table = store.table(&TableName::new("public", "fact")).unwrap();
            store.insert(&table, &[fact(rows..rows + delta)]).unwrap();
        }
        Self { store, _dir: dir }
    }

    fn session(&self) -> SessionContext {
        let context = SessionContext::new_with_state(base_state());
        for name in ["fact", "dim"] {
            let table = self.store.table(&TableName::new("public", name)).unwrap();
            let version = table.version();
            context.register_table(name, Arc::new(TierTable::new(Arc::clone(&self.store), table, version))).unwrap();
        }
        context
    }
}

fn base_state() -> SessionState {
    let config = terrace_scan::joins::session_config(SessionConfig::new().with_target_partitions(2));
    let builder = SessionStateBuilder::new().with_default_features().with_config(config);
    terrace_scan::joins::with_rules(builder).build()
}

/// A host without an engine.
struct Host;

impl TaskHost for Host {
    fn session_state(&self, config: SessionConfig) -> Result<SessionState> {
        let mut state = base_state();
        *state.config_mut() = config;
        Ok(state)
    }

    fn operators(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        with_rules(plan)
    }
}

fn with_rules(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    part_rules().into_iter().try_fold(plan, |plan, rule| rule.optimize(plan, &ConfigOptions::new()))
}

/// A query in stages, ready to be executed; or why it stays whole.
async fn staged(
    nodes: &Nodes,
    statement: &Arc<Statement>,
    context: &SessionContext,
    sql: &str,
) -> std::result::Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>), String> {
    let plan = context.sql(sql).await.unwrap().into_unoptimized_plan();
    let config = session_config(nodes, statement, context.copied_config()).unwrap();
    let mut state = planning_state(context.state());
    *state.config_mut() = config;
    let optimized = state.optimize(&plan).unwrap();
    match distribute(&state, &optimized).await.unwrap() {
        Distribution::Stages(plan) => Ok((with_head(plan, with_rules).unwrap(), state.task_ctx())),
        Distribution::Whole(why) => Err(why),
    }
}

fn sorted(batches: &[RecordBatch]) -> Vec<String> {
    let text = pretty_format_batches(batches).unwrap().to_string();
    // Without the names of columns, which no batch may tell.
    let mut lines: Vec<String> = text.lines().filter(|line| line.starts_with('|')).skip(1).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

async fn whole(context: &SessionContext, sql: &str) -> Vec<String> {
    sorted(&context.sql(sql).await.unwrap().collect().await.unwrap_or_else(|e| panic!("{sql}: {e}")))
}

/// Queries with each kind of boundary: broadcasts, shuffles, merges.
const QUERIES: [&str; 16] = [
    "SELECT d, count(*), sum(k), min(s) FROM fact GROUP BY d",
    "SELECT count(*), sum(k) FROM fact WHERE s LIKE '%7%' AND d > 20",
    "SELECT label, count(*), sum(k) FROM fact JOIN dim ON fact.d = dim.d WHERE label < 'label 3' GROUP BY label",
    "SELECT a.k, b.k FROM fact a JOIN fact b ON a.k = b.k + 1 WHERE a.d = 5 AND b.s IS NOT NULL",
    "SELECT k, s FROM fact ORDER BY d NULLS LAST, k DESC LIMIT 20",
    "SELECT k FROM fact WHERE d IN (SELECT d FROM dim WHERE label = 'label 4')",
    "SELECT k FROM fact WHERE d NOT IN (SELECT d FROM dim WHERE label <> 'label 4')",
    "SELECT k FROM fact f WHERE NOT EXISTS (SELECT 1 FROM dim WHERE dim.d = f.d AND label = 'label 1')",
    "SELECT dim.d, k FROM dim LEFT JOIN fact ON fact.d = dim.d AND k < 40",
    "SELECT fact.k, label FROM fact FULL JOIN dim ON fact.d = dim.d AND label = 'label 2' WHERE k < 30 OR k IS NULL",
    "SELECT k, row_number() OVER (PARTITION BY d ORDER BY k) FROM fact WHERE k % 5 = 0",
    "SELECT k, sum(k) OVER (ORDER BY k ROWS 2 PRECEDING) FROM fact WHERE d = 3",
    "SELECT d FROM fact UNION ALL SELECT d FROM dim",
    "SELECT d FROM fact UNION SELECT k FROM fact WHERE k < 50",
    "SELECT count(DISTINCT s), count(DISTINCT d) FROM fact",
    "SELECT count(*) FROM fact WHERE k > (SELECT avg(k) FROM fact WHERE d = 7)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_nodes_gives_the_rows_of_one_process() {
    let tables = Tables::new(6_000, 300, 70);
    let context = tables.session();
    for count in 1..=4 {
        let nodes = Nodes::start(count, &Handle::current()).unwrap();
        let mut reasons = Vec::new();
        for sql in QUERIES {
            let expected = whole(&context, sql).await;
            let statement = nodes.register(Arc::new(Host));
            match staged(&nodes, &statement, &context, sql).await {
                Ok((plan, task)) => {
                    let found = collect(plan, task).await.unwrap_or_else(|e| panic!("{sql} on {count}: {e}"));
                    assert_eq!(sorted(&found), expected, "{sql} on {count} nodes");
                }
                Err(why) => reasons.push((sql, why)),
            }
        }
        if count == 1 {
            assert_eq!(reasons.len(), QUERIES.len());
            continue;
        }
        assert!(reasons.len() <= 6, "these are not executed by {count} nodes: {reasons:#?}");
        let records = nodes.records();
        let items: u64 = records.iter().map(|record| record.items).sum();
        for record in &records {
            assert!(record.tasks > 0 && record.items * 2 * count as u64 >= items, "{records:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_side_split_over_tasks_filters_by_all_of_its_keys() {
    let tables = Tables::new(4_000, 200, 0);
    let context = tables.session();
    // The build side has 20 chunks: each task reads a part of it, and all tasks join with the whole.
    let sql = "SELECT count(*), sum(b.k) FROM (SELECT k + 0 AS k FROM fact WHERE d = 5) a JOIN fact b ON a.k = b.k";
    let expected = whole(&context, sql).await;
    for count in 2..=4 {
        let nodes = Nodes::start(count, &Handle::current()).unwrap();
        let statement = nodes.register(Arc::new(Host));
        let (plan, task) = staged(&nodes, &statement, &context, sql).await.unwrap();
        assert_eq!(sorted(&collect(plan, task).await.unwrap()), expected, "{count} nodes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_below_a_shuffle_does_without_the_filter_of_its_join() {
    let tables = Tables::new(4_000, 200, 0);
    let context = tables.session();
    let nodes = Nodes::start(3, &Handle::current()).unwrap();
    let sql = "SELECT count(*) FROM fact a JOIN fact b ON a.k = b.k WHERE a.d = 5";
    let statement = nodes.register(Arc::new(Host));
    let (broadcast, _) = staged(&nodes, &statement, &context, sql).await.unwrap();
    let broadcast = crate::shown(&broadcast);
    assert!(broadcast.contains("NetworkBroadcastExec") && !broadcast.contains("no filter: shuffle"), "{broadcast}");
    for option in ["hash_join_single_partition_threshold", "hash_join_single_partition_threshold_rows"] {
        context.sql(&format!("SET datafusion.optimizer.{option} = 0")).await.unwrap();
    }
    let statement = nodes.register(Arc::new(Host));
    let (shuffled, task) = staged(&nodes, &statement, &context, sql).await.unwrap();
    let text = crate::shown(&shuffled);
    assert!(text.contains("NetworkShuffleExec") && text.contains("no filter: shuffle"), "{text}");
    assert_eq!(sorted(&collect(shuffled, task).await.unwrap()), whole(&context, sql).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_that_would_lose_something_stay_whole() {
    let tables = Tables::new(4_000, 200, 0);
    let context = tables.session();
    let nodes = Nodes::start(2, &Handle::current()).unwrap();
    for window in [
        "sum(k) FILTER (WHERE k % 3 = 0) OVER (PARTITION BY d ORDER BY k)",
        "sum(k) FILTER (WHERE k % 3 = 0) OVER (PARTITION BY d)",
        "first_value(s) IGNORE NULLS OVER (PARTITION BY d ORDER BY k)",
        "lag(s) IGNORE NULLS OVER (PARTITION BY d ORDER BY k)",
    ] {
        let statement = nodes.register(Arc::new(Host));
        let why = staged(&nodes, &statement, &context, &format!("SELECT k, {window} FROM fact")).await.err();
        assert!(why.as_ref().is_some_and(|why| why.contains("a window with")), "{window}: {why:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unions_of_nullable_columns_and_constant_keys_are_executed_by_nodes() {
    let tables = Tables::new(4_000, 200, 0);
    let context = tables.session();
    let nodes = Nodes::start(2, &Handle::current()).unwrap();
    for sql in [
        "SELECT x, count(*), sum(n) FROM (SELECT CAST(d AS BIGINT) AS x, k AS n FROM fact UNION ALL SELECT k, CAST(d AS BIGINT) \
         FROM fact) t GROUP BY x",
        "SELECT d, s, count(*), sum(k) FROM fact WHERE d = 5 GROUP BY d, s",
    ] {
        let statement = nodes.register(Arc::new(Host));
        let staged = staged(&nodes, &statement, &context, sql).await;
        let (plan, task) = staged.unwrap_or_else(|why| panic!("{sql} stays whole: {why}"));
        let found = collect(plan, task).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(sorted(&found), whole(&context, sql).await, "{sql}");
    }
}

/// What the coordinator of a statement encodes with.
fn coordinator(nodes: &Nodes, statement: &Arc<Statement>) -> TaskContext {
    let state = base_state();
    let config = session_config(nodes, statement, state.config().clone()).unwrap();
    TaskContext::from(&state).with_session_config(config)
}

/// A plan as the stage of two tasks below a boundary.
fn shuffled(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let key: Arc<dyn PhysicalExpr> = Arc::new(Column::new(plan.schema().field(0).name(), 0));
    let exchange = RepartitionExec::try_new(plan, Partitioning::Hash(vec![key], 4)).unwrap();
    Arc::new(NetworkShuffleExec::try_new(Arc::new(exchange), 2).unwrap())
}

fn no_rows(fields: Vec<Field>) -> Arc<dyn ExecutionPlan> {
    Arc::new(EmptyExec::new(Arc::new(Schema::new(fields))))
}

fn through_bytes(plan: &Arc<dyn ExecutionPlan>, context: &TaskContext) -> Arc<dyn ExecutionPlan> {
    let codec = DistributedCodec::new_combined_with_user(context.session_config());
    let converter = DeduplicatingProtoConverter::default();
    let bytes = physical_plan_to_bytes_with_proto_converter(Arc::clone(plan), &codec, &converter).unwrap();
    physical_plan_from_bytes_with_proto_converter(&bytes, context, &codec, &converter).unwrap()
}

#[tokio::test]
async fn a_union_keeps_its_casts_to_fields_in_bytes() {
    let nodes = Nodes::start(2, &Handle::current()).unwrap();
    let statement = nodes.register(Arc::new(Host));
    let context = coordinator(&nodes, &statement);
    let number = |is_nullable| no_rows(vec![Field::new("n", DataType::Int64, is_nullable)]);
    // The planner may merge the projection of a cast with others.
    let field = Arc::new(Field::new("n", DataType::Int64, true));
    let cast = CastExpr::new_with_target_field(Arc::new(Column::new("n", 0)), field, None);
    let sum = binary(Arc::new(cast), Operator::Plus, lit(1_i64), &number(false).schema()).unwrap();
    let merged = ProjectionExpr { expr: sum, alias: "n".to_owned() };
    let merged: Arc<dyn ExecutionPlan> = Arc::new(ProjectionExec::try_new(vec![merged], number(false)).unwrap());
    for inputs in [vec![number(false), number(true)], vec![merged, number(true)]] {
        let plan = shuffled(UnionExec::try_new(inputs).unwrap());
        let why = obstacle(&plan, &context).unwrap();
        assert!(why.as_ref().is_some_and(|why| why.contains("would change")), "no seal is needed: {why:?}");
        let plan = with_seals(&plan).unwrap();
        assert_eq!(obstacle(&plan, &context).unwrap(), None);
        let union = Arc::clone(plan.children()[0].children()[0]);
        assert!(union.is::<UnionExec>());
        let arrived = through_bytes(&union, &context);
        let shown = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
        assert_eq!((shown(&arrived), arrived.schema()), (shown(&union), union.schema()));
        let input = arrived.children()[0];
        assert!(input.is::<ProjectionExec>() && input.schema().field(0).is_nullable());
        assert!(!union.children()[0].is::<ProjectionExec>(), "it is not sealed");
        let open = crate::without_seals(plan).unwrap();
        assert!(open.children()[0].children()[0].children()[0].is::<ProjectionExec>());
    }
}

/// So many projections above a plan.
fn tower(levels: usize, bottom: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    (0..levels).fold(bottom, |input, _| {
        let column = ProjectionExpr { expr: Arc::new(Column::new("n", 0)), alias: "n".to_owned() };
        Arc::new(ProjectionExec::try_new(vec![column], input).unwrap())
    })
}

#[test]
fn a_deep_plan_is_sent_and_one_beyond_reason_is_not() {
    // Without optimization, reading takes much of the stack; the threads of the server have more than that of a test.
    let test = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let nodes = Nodes::start(2, runtime.handle()).unwrap();
        let statement = nodes.register(Arc::new(Host));
        let context = coordinator(&nodes, &statement);
        let bottom = no_rows(vec![Field::new("n", DataType::Int64, true)]);
        let plan = shuffled(tower(70, Arc::clone(&bottom)));
        let why = obstacle(&plan, &context).unwrap();
        assert!(why.as_ref().is_some_and(|why| why.contains("cannot be read")), "no seal is needed: {why:?}");
        assert_eq!(obstacle(&with_seals(&plan).unwrap(), &context).unwrap(), None);
        let why = obstacle(&with_seals(&shuffled(tower(400, Arc::clone(&bottom)))).unwrap(), &context).unwrap();
        assert!(why.as_ref().is_some_and(|why| why.contains("seals within each other")), "{why:?}");
        // Stages are sent by themselves: together they may be deeper.
        let stages = shuffled(tower(30, shuffled(tower(30, bottom))));
        assert_eq!(obstacle(&stages, &context).unwrap(), None);
    };
    let thread = std::thread::Builder::new().name("deep".to_owned()).stack_size(64 << 20).spawn(test).unwrap();
    thread.join().unwrap();
}

/// Both halves of an aggregation by the keys, with a boundary between them.
fn grouped_in_stages(input: Arc<dyn ExecutionPlan>, keys: &[&str]) -> Arc<AggregateExec> {
    let schema = input.schema();
    let grouped = |mode, input: Arc<dyn ExecutionPlan>| {
        let keys = keys.iter().map(|key| (col(key, &input.schema()).unwrap(), (*key).to_owned())).collect();
        let keys = PhysicalGroupBy::new_single(keys);
        AggregateExec::try_new(mode, keys, vec![], vec![], input, Arc::clone(&schema)).unwrap()
    };
    let partial = grouped(AggregateMode::Partial, input);
    Arc::new(grouped(AggregateMode::FinalPartitioned, shuffled(Arc::new(partial))))
}

#[tokio::test]
async fn constant_keys_need_no_order_and_others_do() {
    let nodes = Nodes::start(2, &Handle::current()).unwrap();
    let statement = nodes.register(Arc::new(Host));
    let context = coordinator(&nodes, &statement);
    let rows = || no_rows(vec![Field::new("d", DataType::Int32, false), Field::new("e", DataType::Int32, false)]);
    let schema = rows().schema();
    let is_five = binary(col("d", &schema).unwrap(), Operator::Eq, lit(5_i32), &schema).unwrap();
    let filtered = Arc::new(FilterExec::try_new(is_five, rows()).unwrap());
    let constant = grouped_in_stages(filtered, &["d", "e"]);
    assert_eq!(constant.input_order_mode(), &InputOrderMode::PartiallySorted(vec![0]));
    assert_eq!(obstacle(&shuffled(constant), &context).unwrap(), None);
    let order = LexOrdering::new([PhysicalSortExpr::new_default(col("d", &schema).unwrap())]).unwrap();
    let in_order = grouped_in_stages(Arc::new(SortExec::new(order, rows())), &["d", "e"]);
    assert_eq!(in_order.input_order_mode(), &InputOrderMode::PartiallySorted(vec![0]));
    let why = obstacle(&shuffled(in_order), &context).unwrap();
    assert!(why.as_ref().is_some_and(|why| why.contains("ordering_mode=PartiallySorted([0])")), "{why:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_kept_of_a_statement_that_has_ended() {
    let tables = Tables::new(4_000, 200, 0);
    let context = tables.session();
    let nodes = Nodes::start(2, &Handle::current()).unwrap();
    let host: Arc<dyn TaskHost> = Arc::new(Host);
    let known = Arc::downgrade(&host);
    {
        let statement = nodes.register(host);
        let (plan, task) =
            staged(&nodes, &statement, &context, "SELECT d, count(*) FROM fact GROUP BY d").await.unwrap();
        assert_eq!(nodes.statements(), 1);
        collect(plan, task).await.unwrap();
    }
    // Who executes it lets go of it a moment later.
    for _ in 0..500 {
        if nodes.statements() == 0 && known.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} statements are known", nodes.statements());
}

fn scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        if node.is::<TierScanExec>() {
            found.push(Arc::clone(node));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(6, 40), ..ProptestConfig::default() })]

    /// Each share of a scan gives its rows after a way through bytes, and all shares together give those of the scan.
    #[test]
    fn shares_of_scans_survive_bytes(
        rows in 1_i64..5_000, chunk_rows in 100_u32..900, delta in 0_i64..200, shares in 1_usize..5, kind in 0_usize..4,
    ) {
        let tables = Tables::new(rows, chunk_rows, delta);
        let context = tables.session();
        let sql = [
            "SELECT * FROM fact",
            "SELECT s, k FROM fact WHERE d > 30 AND s LIKE '%1%'",
            "SELECT k FROM fact WHERE d IN (1, 5, 9) OR s IS NULL",
            "SELECT d FROM fact WHERE k BETWEEN 50 AND 700",
        ][kind];
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let nodes = Nodes::start(1, &Handle::current()).unwrap();
            let statement = nodes.register(Arc::new(Host));
            let config = session_config(&nodes, &statement, context.copied_config()).unwrap();
            let task = Arc::new(TaskContext::from(&context.state()).with_session_config(config));
            let codec = DistributedCodec::new_combined_with_user(task.session_config());
            let converter = DeduplicatingProtoConverter::default();
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let mut found = Vec::new();
            for scan in scans(&plan) {
                for share in scan.downcast_ref::<TierScanExec>().unwrap().split(shares).unwrap() {
                    let bytes =
                        physical_plan_to_bytes_with_proto_converter(Arc::clone(&share), &codec, &converter).unwrap();
                    let arrived =
                        physical_plan_from_bytes_with_proto_converter(&bytes, &task, &codec, &converter).unwrap();
                    let again =
                        physical_plan_to_bytes_with_proto_converter(Arc::clone(&arrived), &codec, &converter).unwrap();
                    assert_eq!(bytes, again);
                    let sent = sorted(&collect(share, Arc::clone(&task)).await.unwrap());
                    let arrived = collect(arrived, Arc::clone(&task)).await.unwrap();
                    assert_eq!(sorted(&arrived), sent);
                    found.extend(arrived);
                }
            }
            if scans(&plan).iter().any(|scan| Arc::ptr_eq(scan, &plan)) {
                assert_eq!(sorted(&found), whole(&context, sql).await);
            }
        });
    }
}
