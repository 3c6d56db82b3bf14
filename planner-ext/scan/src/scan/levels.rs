//! The levels of the operators of a plan, by which their random reads wait for the disk (rule 2 of hStorage-DB; Hetero-DB,
//! section 5.3.2).
//!
//! The leaf that is farthest from the root is at level 0, and each operator one level above its inputs, so that all operators
//! of one depth have one level. A blocking operator takes all rows of an input before it passes on its own: what is below it
//! runs before what is above it and beside it. Each part therefore counts by itself, as if it were the whole plan; in the part
//! above, the blocking operator is a leaf. The example of the papers (figure 5), counted as a whole and as it holds:
//!
//! ```text
//!   5  1   join
//!   4  0   ├─ hash: blocks
//!   3  3   │  └─ join
//!   2  2   │     ├─ scan of b at random
//!   2  2   │     └─ join
//!   1  1   │        ├─ scan of a at random (reads as at level 0, the better one of a: `ColumnLevels`)
//!   1  1   │        └─ join
//!   0  0   │           ├─ scan of a at random
//!   0      │           └─ sequential scan of b
//!   4  0   └─ scan of c at random
//! ```
//!
//! The papers then map the levels to a fixed number of priorities. The queue of reads compares the levels themselves, which
//! gives the same order. DataFusion has no operator `hash`: an input of the join blocks, its build side.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use terrace_tier_store::io::Level;

use super::exec::TierScanExec;
use super::fetch::FetchExec;
use crate::first_rows::FirstRowsPerGroupExec;
use crate::spilling_join::SpillingHashJoinExec;

/// Optimizer rule that gives scans with filters, and fetches by position, their levels.
#[derive(Debug)]
pub(super) struct LevelRule;

impl PhysicalOptimizerRule for LevelRule {
    fn name(&self) -> &str {
        "levels"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let level = height(&plan);
        with_levels(plan, level)
    }
}

/// The plan with the levels of all operators that read at random; its root is at `level`.
fn with_levels(plan: Arc<dyn ExecutionPlan>, level: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs = plan.children().into_iter().enumerate().map(|(place, input)| {
        let level = if runs_before(&plan, place) { height(input) } else { level.saturating_sub(1) };
        with_levels(Arc::clone(input), level)
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let plan = if inputs.is_empty() { plan } else { replace_children_if_necessary(plan, inputs)? };
    if let Some(scan) = plan.downcast_ref::<TierScanExec>().filter(|scan| scan.config().has_filters()) {
        return Ok(Arc::new(scan.at_level(Level::new(level))));
    }
    if let Some(fetch) = plan.downcast_ref::<FetchExec>() {
        return Ok(Arc::new(fetch.at_level(Level::new(level))));
    }
    Ok(plan)
}

/// The level of the highest operator of a part: the root, or one whose rows a blocking operator takes.
fn height(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let inputs = plan.children().into_iter().enumerate().filter(|(place, _)| !runs_before(plan, *place));
    inputs.map(|(_, input)| 1 + height(input)).max().unwrap_or(0)
}

/// Whether the input at `place` is a part by itself, which ends before the operator passes on rows.
fn runs_before(plan: &Arc<dyn ExecutionPlan>, place: usize) -> bool {
    blocks_on(plan, place) || place > 0 && plan.is::<ScalarSubqueryExec>()
}

/// Whether an operator takes all rows of the input at `place` before it passes on its own.
pub fn blocks_on(operator: &Arc<dyn ExecutionPlan>, place: usize) -> bool {
    let is_join = operator.is::<HashJoinExec>()
        || operator.is::<SpillingHashJoinExec>()
        || operator.is::<CrossJoinExec>()
        || operator.is::<NestedLoopJoinExec>();
    if is_join {
        return place == 0;
    }
    let aggregates_all = |aggregate: &AggregateExec| *aggregate.input_order_mode() == InputOrderMode::Linear;
    operator.is::<SortExec>()
        || operator.is::<FirstRowsPerGroupExec>()
        || operator.is::<WindowAggExec>()
        || operator.downcast_ref::<AggregateExec>().is_some_and(aggregates_all)
}
