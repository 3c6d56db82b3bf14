//! The joins of a pair of spill files, as plans of DataFusion's join over [`InputExec`]s.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use datafusion::common::{JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};

use super::Limits;
use super::input::{InputExec, Side};
use super::partitioner::Split;

/// The joins that a spilled join consists of.
#[derive(Debug)]
pub(super) struct PairJoins {
    /// Joins a pair of which the build side is in memory.
    pub(super) pair: HashJoinExec,
    /// Joins a block of a build side with all probe rows and returns what no other block can change. `None` if that is
    /// nothing.
    pub(super) block: Option<HashJoinExec>,
    /// Marks the probe rows that match a row of a block. `None` if no result depends on probe rows without a match.
    pub(super) mark: Option<HashJoinExec>,
}

/// How a join is done over spill files.
#[derive(Debug)]
pub(super) struct PairPlans {
    /// The join as it was planned; never executed.
    join: Arc<HashJoinExec>,
    /// Made when they are first needed: most joins never spill, and planning three joins for each takes its time.
    joins: OnceLock<PairJoins>,
    pub(super) join_type: JoinType,
    pub(super) null_equality: NullEquality,
    pub(super) null_aware: bool,
    pub(super) build_schema: SchemaRef,
    pub(super) probe_schema: SchemaRef,
    /// Columns of the join's schema that it returns; `None` if all.
    pub(super) projection: Option<Vec<usize>>,
    build_keys: Vec<PhysicalExprRef>,
    probe_keys: Vec<PhysicalExprRef>,
    pub(super) limits: Limits,
}

impl PairPlans {
    pub(super) fn new(join: &Arc<HashJoinExec>, limits: Limits) -> Self {
        Self {
            joins: OnceLock::new(),
            join_type: *join.join_type(),
            null_equality: join.null_equality(),
            null_aware: join.null_aware,
            projection: join.projection.as_ref().map(|columns| columns.to_vec()),
            build_schema: join.left().schema(),
            probe_schema: join.right().schema(),
            build_keys: join.on().iter().map(|(build, _)| Arc::clone(build)).collect(),
            probe_keys: join.on().iter().map(|(_, probe)| Arc::clone(probe)).collect(),
            join: Arc::clone(join),
            limits,
        }
    }

    /// Columns of the rows that the join returns.
    pub(super) fn schema(&self) -> SchemaRef {
        self.join.schema()
    }

    /// The joins of pairs of files.
    pub(super) fn joins(&self) -> Result<&PairJoins> {
        match self.joins.get() {
            Some(joins) => Ok(joins),
            None => {
                let new = self.make_joins()?;
                Ok(self.joins.get_or_init(|| new))
            }
        }
    }

    fn make_joins(&self) -> Result<PairJoins> {
        let join = &self.join;
        let join_type = self.join_type;
        let block = match join_type {
            JoinType::Right => Some(JoinType::Inner),
            JoinType::Full => Some(JoinType::Left),
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => None,
            complete => Some(complete),
        };
        let projection = || self.projection.clone();
        let mark = returns_probe_rows_once(join_type).then_some(JoinType::RightMark);
        Ok(PairJoins {
            pair: pair_join(join, join_type, projection())?,
            block: block.map(|block| pair_join(join, block, projection())).transpose()?,
            mark: mark.map(|mark| pair_join(join, mark, None)).transpose()?,
        })
    }

    /// How rows of a side that were split `depth` times are split.
    pub(super) fn split(&self, side: Side, depth: usize) -> Split {
        let keys = match side {
            Side::Build => &self.build_keys,
            Side::Probe => &self.probe_keys,
        };
        Split { keys: keys.clone(), null_equality: self.null_equality, depth, limits: self.limits }
    }

    /// Keys of the build side.
    pub(super) fn build_keys(&self) -> &[PhysicalExprRef] {
        &self.build_keys
    }
}

/// A join of one partition with one partition. Without the dynamic filter, whose readers have no part in it, and with
/// metrics of its own.
fn pair_join(join: &HashJoinExec, join_type: JoinType, projection: Option<Vec<usize>>) -> Result<HashJoinExec> {
    let build = InputExec::for_rows(Side::Build, join.left().schema());
    let probe = InputExec::for_rows(Side::Probe, join.right().schema());
    HashJoinExecBuilder::new(build, probe, join.on().to_vec(), join_type)
        .with_filter(join.filter().cloned())
        .with_projection(projection)
        .with_partition_mode(PartitionMode::Partitioned)
        .with_null_equality(join.null_equality())
        .build()
}

/// Whether the join returns rows of the build side by whether they have a match.
pub(super) fn returns_build_rows_once(join_type: JoinType) -> bool {
    match join_type {
        JoinType::Left | JoinType::Full | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => true,
        JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => false,
    }
}

/// Whether the join returns rows of the probe side by whether they have a match.
pub(super) fn returns_probe_rows_once(join_type: JoinType) -> bool {
    match join_type {
        JoinType::Right | JoinType::Full | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => true,
        JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => false,
    }
}

/// Whether the join returns rows where the side has rows and the other has none.
pub(super) fn returns_rows_of_one_side(join_type: JoinType, side: Side) -> bool {
    match side {
        Side::Build => returns_build_rows_once(join_type) && join_type != JoinType::LeftSemi,
        Side::Probe => returns_probe_rows_once(join_type) && join_type != JoinType::RightSemi,
    }
}
