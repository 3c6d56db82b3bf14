//! One key, order, limit, and cancellation.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int32Array, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::Int32Type;
use datafusion::catalog::memory::{DataSourceExec, MemorySourceConfig};
use datafusion::common::{JoinType, NullEquality};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExprRef, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode};
use futures::StreamExt;

use super::harness::{JoinSpec, Room, TINY, run, sorted_rows, spilled_rows};
use super::tables::{Keys, Numbers, schema, table};
use crate::spilling_join::{Limits, SpillingHashJoinExec, with_spilling_joins};

const MANY_KEYS: Keys = Keys { count: 500, skew: 0, nulls: 3 };

fn join(build_rows: usize, probe_rows: usize, keys: Keys) -> JoinSpec {
    let mut numbers = Numbers(7);
    JoinSpec {
        build: vec![table(&mut numbers, "build", build_rows, keys)],
        probe: vec![table(&mut numbers, "probe", probe_rows, keys)],
        build_schema: schema("build"),
        probe_schema: schema("probe"),
        keys: vec![0],
        join_type: JoinType::Inner,
        mode: PartitionMode::CollectLeft,
        null_equality: NullEquality::NullEqualsNothing,
        null_aware: false,
        filter: None,
        projection: None,
    }
}

#[tokio::test]
async fn a_build_side_of_one_key_is_joined_in_blocks() {
    let one_key = Keys { count: 1, skew: 0, nulls: 0 };
    for join_type in [JoinType::Inner, JoinType::Full, JoinType::RightSemi, JoinType::RightMark, JoinType::LeftMark] {
        let spec = JoinSpec { join_type, ..join(600, 60, one_key) };
        let room = Room::new(40_000, 50);
        let plan = spec.spilling(Limits { splits: 100, ..TINY });
        assert_eq!(sorted_rows(&run(Arc::clone(&plan), &room).await), spec.expected().await, "{join_type:?}");
        let written = spilled_rows(&plan);
        // Rows are split once; only probe rows that blocks pass on are written again, and here all match.
        assert_eq!(written, 660, "{join_type:?}");
        drop(plan);
        room.assert_empty();
    }
}

#[tokio::test]
async fn a_join_that_fits_writes_nothing_and_holds_what_its_build_side_needs() {
    let spec = join(2_000, 2_000, MANY_KEYS);
    let room = Room::new(10 << 20, 100);
    let plan = spec.spilling(Limits::default());
    let mut rows = plan.execute(0, Arc::clone(&room.context)).unwrap();
    rows.next().await.unwrap().unwrap();
    let batches = &spec.build[0];
    let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
    let held = room.pool.reserved();
    assert!(held > bytes / 2 && held < bytes * 3, "holds {held} for {bytes}");
    let rest: Vec<_> = rows.collect().await;
    assert!(rest.iter().all(Result::is_ok));
    assert_eq!(spilled_rows(&plan), 0);
    drop(plan);
    room.assert_empty();
}

#[tokio::test]
async fn a_small_build_side_does_not_spill_when_others_hold_all_memory() {
    let spec = join(100, 2_000, MANY_KEYS);
    let room = Room::new(0, 100);
    let plan = spec.spilling(Limits::default());
    assert_eq!(sorted_rows(&run(Arc::clone(&plan), &room).await), spec.expected().await);
    assert_eq!(spilled_rows(&plan), 0);
}

/// Returns a probe side that announces the order of its ids.
fn ordered_probe(spec: &JoinSpec) -> Arc<dyn ExecutionPlan> {
    let id = PhysicalSortExpr::new(Arc::new(Column::new("probe_id", 3)), SortOptions::default());
    let source = MemorySourceConfig::try_new(&spec.probe, Arc::clone(&spec.probe_schema), None).unwrap();
    let source = source.try_with_sort_information(vec![LexOrdering::new([id]).unwrap()]).unwrap();
    DataSourceExec::from_data_source(source)
}

fn ids(batches: &[RecordBatch], column: usize) -> Vec<i32> {
    batches.iter().flat_map(|batch| batch.column(column).as_primitive::<Int32Type>().values().to_vec()).collect()
}

#[tokio::test]
async fn what_announces_an_order_is_returned_in_it() {
    for (join_type, id_column) in [(JoinType::Inner, 9), (JoinType::Right, 9), (JoinType::RightAnti, 3)] {
        let spec = JoinSpec { join_type, ..join(1_000, 1_000, MANY_KEYS) };
        let build = MemorySourceConfig::try_new_exec(&spec.build, Arc::clone(&spec.build_schema), None).unwrap();
        let plan = spec.plan_over(build, ordered_probe(&spec));
        assert!(plan.properties().output_ordering().is_some(), "{join_type:?}");
        let limited = plan.builder().with_fetch(Some(17)).build().unwrap();
        let room = Room::new(100_000, 50);
        let plan = Arc::new(SpillingHashJoinExec::with_limits(plan, TINY).unwrap());
        let rows = run(Arc::clone(&plan), &room).await;
        assert!(spilled_rows(&plan) > 1_000, "{join_type:?}");
        let in_order = ids(&rows, id_column);
        assert!(in_order.is_sorted(), "{join_type:?}");
        assert_eq!(sorted_rows(&rows), spec.expected().await, "{join_type:?}");
        let plan = Arc::new(SpillingHashJoinExec::with_limits(limited, TINY).unwrap());
        assert_eq!(ids(&run(Arc::clone(&plan), &room).await, id_column), in_order[..17], "{join_type:?}");
        drop(plan);
    }
}

/// Makes a source that announces each of these orders of integer columns.
fn announcing(batches: &[Vec<RecordBatch>], orders: &[&[usize]]) -> Arc<dyn ExecutionPlan> {
    let schema = batches[0][0].schema();
    let order = |columns: &&[usize]| {
        let sort = |column: &usize| {
            let column = Column::new(schema.field(*column).name(), *column);
            PhysicalSortExpr::new(Arc::new(column), SortOptions::default())
        };
        LexOrdering::new(columns.iter().map(sort)).unwrap()
    };
    let source = MemorySourceConfig::try_new(batches, Arc::clone(&schema), None).unwrap();
    let source = source.try_with_sort_information(orders.iter().map(order).collect()).unwrap();
    DataSourceExec::from_data_source(source)
}

/// The plan announces the days and then the build side's order, and the numbers and then that.
#[tokio::test]
async fn all_orders_of_the_probe_side_are_kept() {
    let table = |names: [&str; 2], columns: [Vec<i32>; 2]| {
        let columns = columns.map(|values| Arc::new(Int32Array::from(values)) as ArrayRef);
        vec![vec![RecordBatch::try_from_iter(names.into_iter().zip(columns)).unwrap()]]
    };
    let build = table(["key", "x"], [(0..12_000).map(|n| n % 300).collect(), (0..12_000).collect()]);
    let probe = table(["day", "number"], [(0..500).map(|n| n / 50).collect(), (0..500).collect()]);
    let left = announcing(&build, &[&[1]]);
    let right = announcing(&probe, &[&[0], &[1]]);
    let on: Vec<(PhysicalExprRef, PhysicalExprRef)> =
        vec![(Arc::new(Column::new("key", 0)), Arc::new(Column::new("day", 0)))];
    let join =
        HashJoinExecBuilder::new(left, right, on, JoinType::Inner).with_partition_mode(PartitionMode::CollectLeft);
    let plan = Arc::new(SpillingHashJoinExec::with_limits(join.build().unwrap(), TINY).unwrap());
    let room = Room::new(100_000, 50);
    let rows = run(Arc::clone(&plan), &room).await;
    assert!(spilled_rows(&plan) > 1_000);
    for column in [2, 3] {
        let values = ids(&rows, column);
        assert!(values.len() == 500 * 40 && values.is_sorted(), "column {column}");
    }
}

#[tokio::test]
async fn a_limit_without_an_order_limits() {
    let spec = join(1_000, 1_000, MANY_KEYS);
    let plan = spec.plan().builder().with_fetch(Some(17)).build().unwrap();
    let plan = Arc::new(SpillingHashJoinExec::with_limits(plan, TINY).unwrap());
    let room = Room::new(30_000, 50);
    let rows = run(Arc::clone(&plan), &room).await;
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 17);
    assert!(spilled_rows(&plan) > 1_000);
}

#[tokio::test]
async fn a_stream_that_is_dropped_leaves_no_file_and_no_memory() {
    for (mode, polls) in [PartitionMode::CollectLeft, PartitionMode::Partitioned]
        .into_iter()
        .flat_map(|mode| [0, 1, 3].map(|polls| (mode, polls)))
    {
        let spec = JoinSpec { mode, ..join(3_000, 3_000, MANY_KEYS) };
        let room = Room::new(100_000, 50);
        let plan = spec.spilling(TINY);
        let mut rows = plan.execute(0, Arc::clone(&room.context)).unwrap();
        for _ in 0..polls {
            rows.next().await.unwrap().unwrap();
            assert!(room.files() > 0, "{mode:?} {polls}");
        }
        drop(rows);
        room.assert_empty();
    }
}

#[tokio::test]
async fn a_stream_that_is_dropped_while_it_spills_leaves_no_file() {
    let spec = join(30_000, 10, MANY_KEYS);
    let room = Room::new(100_000, 50);
    let plan = spec.spilling(TINY);
    let mut rows = plan.execute(0, Arc::clone(&room.context)).unwrap();
    // The writer yields between writes, so a task beside it sees its files.
    let seen = async {
        while room.files() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = rows.next() => panic!("the join ended before it was dropped"),
        () = seen => (),
    }
    drop(rows);
    room.assert_empty();
}

#[tokio::test]
async fn partitions_of_a_shared_build_side_end_when_others_are_dropped_or_never_run() {
    let spec = join(2_000, 1_000, MANY_KEYS);
    let parts: Vec<_> = spec.probe[0].chunks(10).map(<[_]>::to_vec).collect();
    for join_type in [JoinType::Left, JoinType::Inner] {
        let spec = JoinSpec { join_type, probe: parts.clone(), ..spec.clone() };
        let room = Room::new(100_000, 50);
        let plan = spec.spilling(TINY);
        // The first is dropped, the second does the work where one does it all, the others are not executed.
        drop(plan.execute(0, Arc::clone(&room.context)).unwrap());
        let rows = plan.execute(1, Arc::clone(&room.context)).unwrap();
        let rows = tokio::time::timeout(Duration::from_secs(60), rows.collect::<Vec<_>>()).await.unwrap();
        let rows: Vec<_> = rows.into_iter().collect::<Result<_, _>>().unwrap();
        match join_type {
            JoinType::Left => assert_eq!(sorted_rows(&rows), spec.expected().await),
            _ => assert!(!rows.is_empty()),
        }
        drop(plan);
        room.assert_empty();
    }
}

#[test]
fn every_hash_join_of_a_plan_is_replaced() {
    let spec = join(10, 10, MANY_KEYS);
    let inner: Arc<dyn ExecutionPlan> =
        Arc::new(JoinSpec { projection: Some(vec![0, 1, 2, 3, 4, 5]), ..spec.clone() }.plan());
    let probe = MemorySourceConfig::try_new_exec(&spec.probe, Arc::clone(&spec.probe_schema), None).unwrap();
    let outer: Arc<dyn ExecutionPlan> = Arc::new(spec.plan_over(inner, probe));
    let text =
        |plan: &Arc<dyn ExecutionPlan>| datafusion::physical_plan::displayable(plan.as_ref()).indent(true).to_string();
    let replaced = with_spilling_joins(Arc::clone(&outer)).unwrap();
    assert_eq!(text(&replaced), text(&outer));
    assert!(replaced.is::<SpillingHashJoinExec>() && replaced.children()[0].is::<SpillingHashJoinExec>());
}
