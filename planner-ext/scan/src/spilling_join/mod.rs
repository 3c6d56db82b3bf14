//! Hash joins that complete when their build side does not fit into query memory.
//!
//! [`with_spilling_joins`] wraps each [`HashJoinExec`] of a plan. The wrapper collects the build side and reserves its
//! memory first. While it fits, DataFusion's join runs over the collected batches. When it does not fit, the wrapper
//! splits the rows of both sides into spill files by a hash of the join keys and joins the files pair by pair, each pair
//! with DataFusion's join. A build file that does not fit either is split again with another seed. Where splitting cannot
//! help (one key has nearly all rows), the build file is joined in blocks that fit, each with the whole probe file.
//!
//! ```text
//! build ─► BuildRows ── fits ─────────────► HashJoinExec(batches, probe)
//!              └─ does not fit ─► Partitioner ─► build files ┐
//!                      probe ───► Partitioner ─► probe files ┴► pair by pair: BuildRows, as above
//!                                                                └─ too deep or skewed ─► blocks
//! ```
//!
//! Invariants: two rows that the join's equality matches are in files of the same number. A file is deleted with its last
//! reader. What a build side holds is reserved before the join takes it, without a gap.
//!
//! - [`exec`]: the plan node
//! - `shared`: a build side that all partitions of the probe side share
//! - `memory`: the reservation of a build side, passed on to the join
//! - `rows`: collects a build side
//! - `input`: gives the join its inputs
//! - `partitioner`: splits rows into spill files
//! - `writer`: writes one spill file
//! - `plans`: the joins of a pair of files
//! - `pairs`: joins pairs of files
//! - `blocks`: joins a build file that cannot be split in blocks
//! - `output`: order, limit and count of what a spilled join returns
//!
//! Upstream: <https://github.com/apache/datafusion/issues/24768> (\[EPIC\] Spilling Hash Join — run any join in a bounded
//! memory budget), open; can go when `HashJoinExec` spills and the tests of this module pass with it.

mod blocks;
pub mod exec;
mod input;
mod memory;
mod output;
mod pairs;
mod partitioner;
mod plans;
mod rows;
mod shared;
mod writer;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

pub use exec::SpillingHashJoinExec;

/// Replaces each [`HashJoinExec`] of a plan by a [`SpillingHashJoinExec`]. The last change to a plan: optimizer rules of
/// DataFusion look for `HashJoinExec`.
pub fn with_spilling_joins(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match node.downcast_ref::<HashJoinExec>() {
        Some(join) => {
            let spilling = SpillingHashJoinExec::try_new(join.builder().build()?)?;
            Ok(Transformed::yes(Arc::new(spilling) as Arc<dyn ExecutionPlan>))
        }
        None => Ok(Transformed::no(node)),
    })
    .data()
}

/// Sizes that decide when and how a join spills.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// A build side of so few bytes never spills: when others hold all memory, writing the probe side for it would cost
    /// more than the bytes.
    small_build_bytes: usize,
    /// Files that a side is split into.
    files: usize,
    /// How often rows are split before a build file is joined in blocks.
    splits: usize,
    /// Bytes of rows that a partitioner collects before it writes them.
    buffer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { small_build_bytes: 64 << 10, files: 16, splits: 4, buffer_bytes: 16 << 20 }
    }
}
