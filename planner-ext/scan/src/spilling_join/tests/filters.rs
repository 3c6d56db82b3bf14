//! Joins whose dynamic filter prunes the scan of the probe side.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;

use super::harness::{ExchangesFirst, Room, TINY, sorted_rows, spilled_rows};
use crate::spilling_join::{Limits, SpillingHashJoinExec};

/// A session over two Parquet tables. `build` has one frequent key and a thousand rare ones; `probe` has all of them and
/// many others.
async fn session(folder: &Path, partitioned: bool) -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(4).with_batch_size(500);
    let options = config.options_mut();
    options.execution.parquet.pushdown_filters = true;
    options.optimizer.enable_join_dynamic_filter_pushdown = true;
    if partitioned {
        options.optimizer.hash_join_single_partition_threshold = 0;
        options.optimizer.hash_join_single_partition_threshold_rows = 0;
    }
    let session = SessionContext::new_with_config(config);
    let numbers = "unnest(generate_series(1, 6000)) as t(n)";
    let tables = [
        (
            "build",
            format!(
                "select case when n % 2 = 0 then 0 else n % 1001 end as key, n as id from (select n from {numbers}) s"
            ),
        ),
        ("probe", format!("select n - 1 as key, n as id, 'note ' || n as note from (select n from {numbers}) s")),
    ];
    for (name, query) in tables {
        let folder = folder.join(format!("{name}_{partitioned}"));
        // A file for each partition of the scan.
        for number in 0..4 {
            let file = folder.join(format!("{number}.parquet"));
            let rows = session.sql(&format!("{query} where n % 4 = {number}")).await.unwrap();
            let one_file = DataFrameWriteOptions::new().with_single_file_output(true);
            rows.write_parquet(file.to_str().unwrap(), one_file, None).await.unwrap();
        }
        session.register_parquet(name, folder.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    session
}

const QUERY: &str = "select b.id, p.id, p.note from build b join probe p on b.key = p.key";

async fn plan(session: &SessionContext) -> Arc<dyn ExecutionPlan> {
    session.sql(QUERY).await.unwrap().create_physical_plan().await.unwrap()
}

fn with_limits(plan: Arc<dyn ExecutionPlan>, limits: Limits) -> Arc<dyn ExecutionPlan> {
    plan.transform_up(|node| match node.downcast_ref::<HashJoinExec>() {
        Some(join) => {
            assert!(!join.dynamic_expressions_produced().is_empty(), "the join has a dynamic filter");
            let join = join.builder().build()?;
            let join = SpillingHashJoinExec::with_limits(join, limits)?;
            Ok(Transformed::yes(Arc::new(join) as Arc<dyn ExecutionPlan>))
        }
        None => Ok(Transformed::no(node)),
    })
    .data()
    .unwrap()
}

/// The join of a plan.
fn join(plan: &Arc<dyn ExecutionPlan>) -> &SpillingHashJoinExec {
    match plan.downcast_ref::<SpillingHashJoinExec>() {
        Some(join) => join,
        None => join(plan.children()[0]),
    }
}

/// A context of the session with the memory of `room`.
fn context(session: &SessionContext, room: &Room) -> Arc<TaskContext> {
    let mut config = session.copied_config();
    config.options_mut().execution.sort_spill_reservation_bytes = 1 << 10;
    let context = TaskContext::from(&session.state());
    Arc::new(context.with_session_config(config).with_runtime(room.context.runtime_env()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_with_a_dynamic_filter_return_all_rows_whoever_spills() {
    let folder = tempfile::tempdir().unwrap();
    for partitioned in [true, false] {
        let session = session(folder.path(), partitioned).await;
        let expected = collect(plan(&session).await, session.task_ctx()).await.unwrap();
        let expected = sorted_rows(&expected);
        assert_eq!(expected.len(), 6_000);
        // All spill, some (the partition of the frequent key), none.
        let mut spilled = Vec::new();
        for limit_bytes in [0, 250_000, 10 << 20] {
            let plan = with_limits(plan(&session).await, TINY);
            let room = Room::with_pool(Arc::new(ExchangesFirst::new(limit_bytes)), 500);
            let rows = collect(Arc::clone(&plan), context(&session, &room));
            let rows: Vec<RecordBatch> = tokio::time::timeout(Duration::from_secs(60), rows).await.unwrap().unwrap();
            assert_eq!(sorted_rows(&rows), expected, "partitioned {partitioned}, {limit_bytes} bytes");
            spilled.push(spilled_rows(join(&plan)));
        }
        assert!(spilled[0] > 6_000 && spilled[2] == 0, "{spilled:?}");
        if partitioned {
            assert!(spilled[1] > 0 && spilled[1] < spilled[0], "{spilled:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_do_not_wait_for_one_that_is_dropped() {
    for (partitioned, limit_bytes) in [(true, 1), (true, 10 << 20), (false, 1), (false, 10 << 20)] {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path(), partitioned).await;
        let plan = with_limits(plan(&session).await, TINY);
        let room = Room::with_pool(Arc::new(ExchangesFirst::new(limit_bytes)), 500);
        let context = context(&session, &room);
        let join = join(&plan);
        let streams: Vec<_> = (0..4).map(|partition| join.execute(partition, Arc::clone(&context)).unwrap()).collect();
        let mut streams = streams.into_iter();
        drop(streams.next());
        let others = futures::stream::select_all(streams).collect::<Vec<_>>();
        let rows = tokio::time::timeout(Duration::from_secs(60), others).await.unwrap();
        let rows: Vec<_> = rows.into_iter().collect::<Result<_, _>>().unwrap();
        assert!(rows.iter().map(RecordBatch::num_rows).sum::<usize>() > 100);
    }
}
