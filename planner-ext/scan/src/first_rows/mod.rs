//! The first rows of each group by `row_number()`: drops rows before they are sorted.
//!
//! A filter `row_number() OVER (PARTITION BY g ORDER BY x) <= k` lets pass k rows of each group, but the window needs all rows of its
//! input in order. [`FirstRowsPerGroupExec`] is put below that sort, and below the exchange in front of it: of each group it passes on
//! the first k rows of its partition. Sort, window and filter stay as they are, so the operator may pass on more rows at any time: when
//! memory is refused, or when groups have too few rows to be worth it (docs/design/first-rows.md).
//!
//! ```text
//!   FilterExec: n <= 2                                    stays
//!     BoundedWindowAggExec: row_number() ..               stays
//!       SortExec: [g, x]                                  stays
//!         RepartitionExec: Hash([g])                      stays
//!           FirstRowsPerGroupExec: rows=2, groups=[g], order=[x]
//!             TierScanExec
//! ```
//!
//! - `pattern`: finds such filters in a plan
//! - `exec`: the plan node
//! - `run`: one partition that is being executed
//! - `candidates`: the first rows of each group so far
//! - `store`: the rows themselves

mod candidates;
mod exec;
mod pattern;
mod run;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

pub use exec::FirstRowsPerGroupExec;

/// Puts [`FirstRowsPerGroupExec`] below sorts whose windows only number rows, of which a filter lets pass the first.
#[derive(Debug)]
pub(crate) struct FirstRowsRule;

impl PhysicalOptimizerRule for FirstRowsRule {
    fn name(&self) -> &str {
        "first_rows_per_group"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let found = pattern::with_first_rows(&node)?;
            Ok(found.map_or_else(|| Transformed::no(node), Transformed::yes))
        })
        .data()
    }
}
