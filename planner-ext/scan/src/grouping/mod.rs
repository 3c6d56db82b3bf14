//! Aggregations with few groups over scans, by codes instead of values.
//!
//! DataFusion's aggregation looks up the texts of each row in a hash table, and adds each value with a branch. Where the columns of
//! the groups are stored as keys of dictionaries, or are numbers in a small range, [`KeyedAggregateExec`] takes codes: of texts from
//! the scan, which looks up each value of a chunk's dictionary once, of numbers from a table. The codes of a row are its
//! place in a table of groups, and states are arrays by group. It makes the partial states that DataFusion's final
//! aggregation merges, so it may hand the rows that are left to DataFusion's partial aggregation at any time: when there
//! are more groups than expected, or no memory (docs/design/grouping.md).
//!
//! - `exec`: the plan node
//! - `run`: one partition that is being executed
//! - `fused`: a projection that the operator above evaluates
//! - `layout`: the columns of the scan that are keys
//! - `groups`: the groups of rows, by the codes of their columns
//! - `numbers`: codes of numbers
//! - `functions`: the aggregates, and their states by group
//! - `narrow`: decimals that are summed, computed in 64 bits
//! - `sums`: sums and counts by group
//! - `extremes`: least and greatest values by group
//! - `handed_over`: gives DataFusion's aggregation the rows that are left

mod exec;
mod extremes;
mod functions;
mod fused;
mod groups;
mod handed_over;
mod layout;
mod narrow;
mod numbers;
mod run;
mod sums;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};

use exec::KeyedAggregateExec;
use layout::scan_below;

/// Puts [`KeyedAggregateExec`] in place of partial aggregations, and below a final one in place of single ones.
#[derive(Debug)]
pub(crate) struct GroupingRule;

impl PhysicalOptimizerRule for GroupingRule {
    fn name(&self) -> &str {
        "grouping_by_keys"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| Ok(keyed(&node)?.map_or_else(|| Transformed::no(node), Transformed::yes))).data()
    }
}

/// The plan in place of an aggregation; `None` where that stays, and for other operators.
fn keyed(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    if aggregate.group_expr().is_empty() || scan_below(aggregate).is_none() {
        return Ok(None);
    }
    if *aggregate.mode() != AggregateMode::Single {
        return Ok(KeyedAggregateExec::over(aggregate).map(|keyed| Arc::new(keyed) as _));
    }
    if aggregate.limit_options().is_some() || !aggregate.group_expr().is_single() {
        return Ok(None);
    }
    let partial = AggregateExec::try_new(
        AggregateMode::Partial,
        aggregate.group_expr().clone(),
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        Arc::clone(aggregate.input()),
        aggregate.input_schema(),
    )?;
    let Some(keyed) = KeyedAggregateExec::over(&partial) else { return Ok(None) };
    let merged = AggregateExec::try_new(
        AggregateMode::Final,
        partial.group_expr().as_final(),
        partial.aggr_expr().to_vec(),
        partial.filter_expr().to_vec(),
        Arc::new(keyed),
        partial.input_schema(),
    )?;
    // Plans above name the columns that were there before.
    Ok((merged.schema() == aggregate.schema()).then(|| Arc::new(merged) as _))
}
