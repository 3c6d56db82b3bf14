//! Random joins return what DataFusion's join returns.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use super::harness::{JoinSpec, Room, TINY, run, run_in_turn, sorted_rows, spilled_rows};
use super::tables::{Keys, Numbers, schema, table};
use crate::spilling_join::Limits;

const TYPES: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::RightSemi,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::LeftMark,
    JoinType::RightMark,
];

/// The condition that the number of the build row is less than that of the probe row.
fn filter() -> JoinFilter {
    let column = |name: &str, index| Arc::new(Column::new(name, index));
    let less = BinaryExpr::new(column("build", 0), Operator::Lt, column("probe", 1));
    let side = |side| ColumnIndex { index: 4, side };
    let field = |name: &str| Field::new(name, DataType::Int32, true);
    let schema = Schema::new(vec![field("build"), field("probe")]);
    JoinFilter::new(Arc::new(less), vec![side(JoinSide::Left), side(JoinSide::Right)], Arc::new(schema))
}

async fn random_join(numbers: &mut Numbers, join_type: JoinType) -> JoinSpec {
    let rows = [0, 1, 30, 250, 400];
    let keys = Keys {
        count: numbers.choose(&[1, 6, 40, 300]),
        skew: numbers.choose(&[0, 0, 30, 95]),
        nulls: numbers.choose(&[0, 5, 60]),
    };
    let side = |numbers: &mut Numbers, side: &str| {
        let rows = numbers.choose(&rows);
        table(numbers, side, rows, keys)
    };
    let build = side(numbers, "build");
    let partitions = 1 + numbers.below(4);
    let probe: Vec<_> = (0..partitions).map(|_| side(numbers, "probe")).collect();
    let spec = JoinSpec {
        build: vec![build],
        probe,
        build_schema: schema("build"),
        probe_schema: schema("probe"),
        keys: numbers.choose(&[&[0][..], &[1], &[2], &[1, 2], &[0, 1, 2]]).to_vec(),
        join_type,
        mode: PartitionMode::CollectLeft,
        null_equality: numbers.choose(&[NullEquality::NullEqualsNothing, NullEquality::NullEqualsNull]),
        null_aware: false,
        filter: (numbers.below(2) == 0).then(filter),
        projection: None,
    };
    let spec = JoinSpec { projection: random_projection(numbers, &spec), ..spec };
    if numbers.below(2) == 0 { spec } else { spec.partitioned(partitions).await }
}

fn random_projection(numbers: &mut Numbers, spec: &JoinSpec) -> Option<Vec<usize>> {
    let columns = spec.plan().schema().fields().len();
    (numbers.below(2) == 0).then(|| (0..columns).rev().filter(|_| numbers.below(3) > 0).collect())
}

/// A context of random small memory.
fn random_room(numbers: &mut Numbers) -> Room {
    let limit_bytes = numbers.choose(&[0, 6_000, 20_000, 60_000, 1 << 30]);
    let batch_rows = numbers.choose(&[3, 20, 200]);
    match numbers.below(2) {
        0 => Room::new(limit_bytes, batch_rows),
        _ => Room::with_pool(Arc::new(FairSpillPool::new(limit_bytes)), batch_rows),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_joins_return_the_rows_that_they_return_in_memory() {
    let (mut joins, mut spilled, mut split_again, mut in_memory) = (0, 0, 0, 0);
    for seed in 0..30 {
        for join_type in TYPES {
            let mut numbers = Numbers(seed * 100 + joins % 10);
            let spec = random_join(&mut numbers, join_type).await;
            let limits = Limits {
                files: 2 + numbers.below(4),
                splits: 1 + numbers.below(4),
                buffer_bytes: numbers.choose(&[1, 4 << 10, 1 << 20]),
                ..TINY
            };
            let room = random_room(&mut numbers);
            let plan = spec.spilling(limits);
            let in_turn = numbers.below(3) == 0;
            let rows = match in_turn {
                true => run_in_turn(Arc::clone(&plan), &room).await,
                false => run(Arc::clone(&plan), &room).await,
            };
            let case = format!(
                "seed {seed}: {join_type:?} of keys {:?} {:?} {:?} {:?}, filter {}, projection {:?}, {limits:?}, {:?}",
                spec.keys,
                spec.mode,
                spec.null_equality,
                room.pool,
                spec.filter.is_some(),
                spec.projection,
                spec.build.iter().chain(&spec.probe).map(|rows| rows.len()).collect::<Vec<_>>(),
            );
            assert_eq!(sorted_rows(&rows), spec.expected().await, "{case}");
            let counted = plan.metrics().unwrap().output_rows().unwrap();
            assert_eq!(counted, rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), "{case}");
            let written = spilled_rows(&plan);
            drop(plan);
            room.assert_empty();
            let all: usize = spec.build.iter().chain(&spec.probe).flatten().map(|batch| batch.num_rows()).sum();
            joins += 1;
            spilled += usize::from(written > 0);
            in_memory += usize::from(written == 0 && all > 0);
            split_again += usize::from(written > all);
        }
    }
    assert!(
        spilled > 90 && split_again > 45 && in_memory > 100,
        "of {joins} joins {spilled} spilled, {split_again} again, and {in_memory} did not"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_in_returns_the_rows_that_it_returns_in_memory() {
    let (mut spilled, mut empty, mut null_rows) = (0, 0, 0);
    for seed in 0..300 {
        let mut numbers = Numbers(seed);
        let nulls = |numbers: &mut Numbers| numbers.choose(&[0, 0, 10]);
        let keys = |numbers: &mut Numbers| Keys { count: 60, skew: 0, nulls: nulls(numbers) };
        let build_keys = keys(&mut numbers);
        let probe_keys = keys(&mut numbers);
        let build = table(&mut numbers, "build", 200, build_keys);
        let partitions = 1 + numbers.below(3);
        let probe = (0..partitions).map(|_| {
            let rows = numbers.choose(&[0, 0, 40]);
            table(&mut numbers, "probe", rows, probe_keys)
        });
        let spec = JoinSpec {
            build: vec![build],
            probe: probe.collect(),
            build_schema: schema("build"),
            probe_schema: schema("probe"),
            keys: vec![numbers.below(3)],
            join_type: JoinType::LeftAnti,
            mode: PartitionMode::CollectLeft,
            null_equality: NullEquality::NullEqualsNothing,
            null_aware: true,
            filter: None,
            projection: None,
        };
        let room = random_room(&mut numbers);
        let plan = spec.spilling(TINY);
        let rows = sorted_rows(&run(Arc::clone(&plan), &room).await);
        assert_eq!(rows, spec.expected().await, "seed {seed}");
        if spilled_rows(&plan) > 0 {
            spilled += 1;
            empty += usize::from(rows.is_empty());
            null_rows += usize::from(rows.iter().any(|row| row.starts_with("NULL")));
        }
        drop(plan);
        room.assert_empty();
    }
    assert!(spilled > 100 && empty > 20 && null_rows > 10, "{spilled} spilled, {empty} empty, {null_rows} with NULL");
}
